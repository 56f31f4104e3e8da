//! The daemon and the loads that it tracks: a process of the test acts as the engine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;

use crate::daemon::{Daemon, binary, history, of_kind};

/// Among them is the shipped rule.
const RULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/rules/engines.yaml");

const FOLLOWED: &str = "uma_engine_evicting{engine=\"slow\"}";

/// A process that reads its model again and again; the name of the model is an argument of it.
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
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct World {
    folder: tempfile::TempDir,
    name: String,
}

impl World {
    fn new(name: &str) -> Self {
        // Not below /tmp, which may be a tmpfs: files there do not count as models.
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

    /// A daemon that tracks the engine's load, or would in enforce mode.
    fn start(&self, mode: &str) -> (Daemon, Engine) {
        self.configure(mode);
        let config = format!("--config.file={}", self.path("umawarden.yaml").display());
        let daemon = Daemon::start(&self.path("data"), &[&config]);
        (daemon, Engine::start(&self.name, &self.path("model.safetensors")))
    }

    fn is_noted(&self, text: &str) -> bool {
        let entries = history(&self.path("data"));
        of_kind(&entries, "note").any(|note| note["text"].as_str().unwrap().contains(text))
    }
}

fn follows(daemon: &Daemon) -> bool {
    daemon.metrics().get(FOLLOWED) == Some(&1.0)
}

fn is_done(daemon: &Daemon, outcome: &str, times: f64) -> bool {
    let series = format!("uma_actions_total{{action=\"evict_checkpoint\",outcome=\"{outcome}\"}}");
    daemon.count(&series) >= times
}

#[test]
fn a_load_is_tracked_until_its_rule_is_silenced() {
    let world = World::new("umawarden-silenced-load");
    let (daemon, _engine) = world.start("enforce");
    daemon.wait_until("tracking", follows);
    let silenced = Command::new(binary())
        .args(["silence", "CheckpointLoads", "--for", "1h", "--storage.path"])
        .arg(world.path("data"))
        .status()
        .unwrap();
    assert!(silenced.success());
    daemon.wait_until("tracking no more", |daemon| !follows(daemon));
    daemon.wait_until("reported", |_| world.is_noted("since a person has silenced its rule"));
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert!(!follows(&daemon), "it is not begun again either");
}

#[test]
fn a_load_is_tracked_until_its_rule_observes_and_then_planned_once() {
    let world = World::new("umawarden-observed-load");
    let (daemon, _engine) = world.start("enforce");
    daemon.wait_until("tracking", follows);
    world.configure("observe");
    daemon.signal(Signal::HUP);
    daemon.wait_until("tracking no more", |daemon| !follows(daemon));
    daemon.wait_until("reported", |_| world.is_noted("since its rule only observes now"));
    daemon.wait_until("planned", |daemon| is_done(daemon, "skipped", 1.0));
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert!(!is_done(&daemon, "skipped", 2.0), "{}", daemon.log());
}
