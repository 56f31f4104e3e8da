//! The daemon and the loads that it follows: a process of its own stands for the engine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;

use crate::daemon::{Daemon, binary, history, of_kind};

/// The shipped rule is among them.
const RULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/rules/engines.yaml");

const FOLLOWED: &str = "uma_engine_evicting{engine=\"slow\"}";

/// A process that has its model open and reads it again and again. That name is an argument of it.
pub struct Engine(Child);

impl Engine {
    pub fn start(name: &str, model: &Path) -> Self {
        let script = "exec 3<\"$1\"; while cat \"$1\" >/dev/null && sleep 0.05; do :; done";
        let mut command = Command::new("sh");
        command.args(["-c", script, name]).arg(model).stdin(Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _has_ended = self.0.kill();
        let _status = self.0.wait();
    }
}

struct World {
    folder: tempfile::TempDir,
    name: String,
}

impl World {
    fn new(name: &str) -> Self {
        // Not below /tmp, which may be a tmpfs: no model file is taken for one there.
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let world = Self { folder, name: format!("{name}-{}", std::process::id()) };
        fs::write(world.path("model.safetensors"), vec![1; 1 << 20]).unwrap();
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn configure(&self, mode: &str) {
        let config = format!(
            "mode: {mode}\nrule_files: [\"{RULES}\"]\nengines:\n- name: slow\n  \
             match: {{cmdline: \"* {} *\"}}\n  model_files: [\"{}\"]\n",
            self.name,
            self.path("model*.safetensors").display(),
        );
        fs::write(self.path("umawarden.yaml"), config).unwrap();
    }

    /// A daemon that follows the engine's load, or would.
    fn start(&self, mode: &str) -> (Daemon, Engine) {
        self.configure(mode);
        let config = format!("--config.file={}", self.path("umawarden.yaml").display());
        let daemon = Daemon::start(&self.path("data"), &[&config]);
        (daemon, Engine::start(&self.name, &self.path("model.safetensors")))
    }

    fn is_told(&self, text: &str) -> bool {
        let told = history(&self.path("data"));
        of_kind(&told, "note").any(|note| note["text"].as_str().unwrap().contains(text))
    }
}

fn follows(daemon: &Daemon) -> bool {
    daemon.metrics().get(FOLLOWED) == Some(&1.0)
}

fn is_done(daemon: &Daemon, outcome: &str, times: f64) -> bool {
    let series = format!("uma_actions_total{{action=\"evict_checkpoint\",outcome=\"{outcome}\"}}");
    daemon.metric(&series) >= times
}

#[test]
fn a_load_is_tracked_until_its_rule_is_silenced() {
    let world = World::new("umawarden-silenced-load");
    let (daemon, _engine) = world.start("enforce");
    daemon.wait_until("following", follows);
    let silenced = Command::new(binary())
        .args(["silence", "CheckpointLoads", "--for", "1h", "--storage.path"])
        .arg(world.path("data"))
        .status()
        .unwrap();
    assert!(silenced.success());
    daemon.wait_until("following no more", |daemon| !follows(daemon));
    daemon.wait_until("told", |_| world.is_told("since a person has silenced its rule"));
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert!(!follows(&daemon), "it is not begun again either");
}

#[test]
fn a_load_is_tracked_until_its_rule_observes_and_then_planned_once() {
    let world = World::new("umawarden-observed-load");
    let (daemon, _engine) = world.start("enforce");
    daemon.wait_until("following", follows);
    world.configure("observe");
    daemon.signal(Signal::HUP);
    daemon.wait_until("following no more", |daemon| !follows(daemon));
    daemon.wait_until("told", |_| world.is_told("since its rule only observes now"));
    daemon.wait_until("rehearsed", |daemon| is_done(daemon, "skipped", 1.0));
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert!(!is_done(&daemon, "skipped", 2.0), "{}", daemon.log());
}
