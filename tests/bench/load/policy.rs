//! Who keeps pages free while an engine loads.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::checkpoint::Checkpoint;
use crate::options::Policy;
use crate::served::Served;

/// What the published recipe sets the readahead to.
const READAHEAD_KIB: &str = "8";

const DROP_LOOP: &str = "while :; do echo 3 > /proc/sys/vm/drop_caches; sleep 0.1; done";

/// A policy at work; everything is as before when it ends.
pub struct InForce {
    child: Option<Child>,
    readahead: Option<(PathBuf, String)>,
    storage: Option<tempfile::TempDir>,
}

/// Starts it; what is served while others load is known to whom it concerns.
pub fn start(policy: Policy, checkpoint: &Checkpoint, served: &Served) -> InForce {
    let mut in_force = InForce { child: None, readahead: None, storage: None };
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
        Policy::Umawarden => return start_umawarden(&configuration(checkpoint, served)),
    }
    std::thread::sleep(Duration::from_secs(1));
    in_force
}

/// Starts umawarden with a configuration.
pub fn start_umawarden(configuration: &str) -> InForce {
    let mut in_force = InForce { child: None, readahead: None, storage: None };
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

/// What a person writes for engines that have no known names; the rules are the shipped ones.
fn configuration(checkpoint: &Checkpoint, served: &Served) -> String {
    let shards = checkpoint.shards()[0].parent().unwrap().canonicalize().unwrap();
    let shards = shards.join("model-*.safetensors");
    format!(
        "mode: enforce
engines:
- name: loading
  match: {{cmdline: \"*load* engine *\"}}
  model_files: [\"{}\"]
- name: served
  match: {{cmdline: \"*load* served *\"}}
  model_files: [\"{}\"]
  health: http://127.0.0.1:{}/health
",
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

    /// Ends it; returns the processor time that it has used, in seconds, children included.
    pub fn end(mut self) -> f64 {
        let Some(child) = &self.child else { return 0.0 };
        let text = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        let fields: Vec<_> = text.rsplit_once(") ").unwrap().1.split(' ').collect();
        let ticks = fields[11..15].iter().map(|ticks| ticks.parse::<f64>().unwrap());
        let seconds = ticks.sum::<f64>() / 100.0;
        self.stop();
        seconds
    }

    fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _already_dead = child.kill();
            let _already_reaped = child.wait();
        }
        if let Some((setting, before)) = self.readahead.take() {
            fs::write(setting, before.trim()).unwrap();
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
    let device = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).unwrap();
    // A partition has its disk's queue.
    let places = [device.join("queue"), device.parent().unwrap().join("queue")];
    let queue = places.into_iter().find(|place| place.exists()).unwrap();
    queue.join("read_ahead_kb")
}
