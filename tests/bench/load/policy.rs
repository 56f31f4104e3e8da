//! The policies that keep pages free while an engine loads.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::checkpoint::Checkpoint;
use crate::options::Policy;
use crate::served::Served;

/// The readahead of the published recipe.
const READAHEAD_KIB: &str = "8";

const DROP_LOOP: &str = "while :; do echo 3 > /proc/sys/vm/drop_caches; sleep 0.1; done";

/// A running policy; dropping it restores all settings.
pub struct InForce {
    child: Option<Child>,
    readahead: Option<(PathBuf, String)>,
    storage: Option<TempDir>,
    /// The folder of rules, unless they are the shipped ones.
    rules: Option<TempDir>,
}

/// The step of the shipped rule to which options are added.
const STEP: &str = "evict_checkpoint: {behind: 64MiB";

/// Processor time of a policy.
#[derive(Clone, Copy, Debug, Default)]
pub struct Used {
    pub seconds: f64,
    /// The share of it in the kernel.
    pub in_kernel_seconds: f64,
}

/// Starts the policy; umawarden has the served model in its configuration.
pub fn start(
    policy: Policy,
    checkpoint: &Checkpoint,
    served: &Served,
    floor_bytes: Option<u64>,
) -> InForce {
    let mut in_force = InForce { child: None, readahead: None, storage: None, rules: None };
    match policy {
        Policy::None => {}
        Policy::DropLoop => in_force.spawn(Command::new("sh").args(["-c", DROP_LOOP])),
        Policy::DropLoopReadahead => {
            let setting = readahead_of(&checkpoint.shards()[0]);
            let before = fs::read_to_string(&setting).unwrap();
            fs::write(&setting, READAHEAD_KIB).unwrap();
            in_force.readahead = Some((setting, before));
            in_force.spawn(Command::new("sh").args(["-c", DROP_LOOP]));
        }
        Policy::Earlyoom => in_force.spawn(&mut Command::new("earlyoom")),
        Policy::Umawarden | Policy::UmawardenNoPrefetch => {
            let mut more = floor_bytes.map(|bytes| format!(", floor: {bytes}")).unwrap_or_default();
            if policy == Policy::UmawardenNoPrefetch {
                more.push_str(", prefetch: off");
            }
            let rules = (!more.is_empty()).then(|| rules_with(&more));
            let folder = rules.as_ref().map(TempDir::path);
            in_force = start_umawarden(&configuration(checkpoint, served, folder));
            in_force.rules = rules;
            return in_force;
        }
    }
    std::thread::sleep(Duration::from_secs(1));
    in_force
}

/// Starts umawarden with a configuration.
pub fn start_umawarden(configuration: &str) -> InForce {
    let mut in_force = InForce { child: None, readahead: None, storage: None, rules: None };
    let storage = tempfile::tempdir().unwrap();
    let file = storage.path().join("umawarden.yaml");
    fs::write(&file, configuration).unwrap();
    in_force.spawn(
        Command::new(env!("CARGO_BIN_EXE_umawarden"))
            .args(["run", "--web.listen-address", "127.0.0.1:19955", "--config.file"])
            .arg(&file)
            .arg("--storage.path")
            .arg(storage.path()),
    );
    in_force.storage = Some(storage);
    std::thread::sleep(Duration::from_secs(1));
    in_force
}

/// The shipped rules with more options in that step.
fn rules_with(more: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/rules")).unwrap() {
        let file = entry.unwrap().path();
        let name = file.file_name().unwrap().to_str().unwrap();
        if name.ends_with("_test.yaml") {
            continue;
        }
        let mut text = fs::read_to_string(&file).unwrap();
        if name == "engines.yaml" {
            assert!(text.contains(STEP), "{name} has no {STEP}");
            text = text.replace(STEP, &format!("{STEP}{more}"));
        }
        fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

/// A configuration that declares the processes as engines, with the shipped rules unless `rules` is
/// given.
fn configuration(checkpoint: &Checkpoint, served: &Served, rules: Option<&Path>) -> String {
    let rules = rules.map(|folder| format!("rule_files: [\"{}\"]\n", folder.display()));
    let shards = checkpoint.shards()[0].parent().unwrap().canonicalize().unwrap();
    let shards = shards.join("model-*.safetensors");
    format!(
        "mode: enforce
{}engines:
- name: loading
  match: {{cmdline: \"*load* engine *\"}}
  model_files: [\"{}\"]
- name: served
  match: {{cmdline: \"*load* served *\"}}
  model_files: [\"{}\"]
  health: http://127.0.0.1:{}/health
",
        rules.unwrap_or_default(),
        shards.display(),
        served.file().display(),
        served.port(),
    )
}

impl InForce {
    fn spawn(&mut self, command: &mut Command) {
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.child = Some(quiet.spawn().unwrap());
    }

    /// Processor time so far, children included.
    pub fn used(&self) -> Used {
        let Some(child) = &self.child else {
            return Used::default();
        };
        let text = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        let fields: Vec<_> = text.rsplit_once(") ").unwrap().1.split(' ').collect();
        // User and kernel time of the process and of its children.
        let seconds = |field: usize| fields[field].parse::<f64>().unwrap() / 100.0;
        let in_kernel_seconds = seconds(12) + seconds(14);
        Used { seconds: seconds(11) + seconds(13) + in_kernel_seconds, in_kernel_seconds }
    }

    fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
        if let Some((setting, before)) = self.readahead.take() {
            fs::write(setting, before.trim()).unwrap();
        }
    }
}

impl Used {
    /// The difference to `before`.
    pub fn since(self, before: Self) -> Self {
        Self {
            seconds: self.seconds - before.seconds,
            in_kernel_seconds: self.in_kernel_seconds - before.in_kernel_seconds,
        }
    }
}

impl Drop for InForce {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The readahead setting of the device that holds a file.
fn readahead_of(file: &Path) -> PathBuf {
    let device = file.metadata().unwrap().dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let device = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}"))
        .expect("drop-loop-readahead wants a file system with a block device of its own");
    // A partition has its disk's queue.
    let queues = [device.join("queue"), device.parent().unwrap().join("queue")];
    let queue = queues.into_iter().find(|queue| queue.exists()).unwrap();
    queue.join("read_ahead_kb")
}
