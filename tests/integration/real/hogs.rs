//! Engines of user `nobody` that take the memory are stopped, whatever the user claims or locks.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::enabled;
use super::identity::{Group, as_user, docker};
use crate::daemon::{Daemon, binary};
use crate::evict::{Bench, Reader};
use crate::run::Node;
use crate::run::brake::{ENGINE, GIB, Process};

const RULES: &str = "
groups:
- name: g
  interval: 100ms
  rules:
  - alert: Collapse
    expr: uma_memory_available_bytes < 3e9
    remedy:
      aim: uma_memory_available_bytes > 8e9
      steps:
      - stop_engine: {grace: 1s}
  - alert: Loads
    expr: uma_engine_phase{engine=\"collection\",phase=\"loading\"} == 1
    remedy:
      aim: uma_memory_free_bytes < 0
      steps:
      - evict_checkpoint: {behind: 64MiB, for: 1h}
";

/// On a node whose available memory the test can reduce.
struct Stage {
    node: Node,
    daemon: Daemon,
}

impl Stage {
    /// Enforces [`RULES`] with a limit of 1,024 open files.
    fn new(hog: &Process, engines: &str, others: &[u32]) -> Self {
        let node = Node::new("gb10-4k");
        let declared = format!("- {{name: hog, match: {{cmdline: \"*{ENGINE}\"}}}}\n{engines}");
        let config = node.path("umawarden.yaml");
        let docker = node.path("docker.sock");
        let paths = format!("path: {{docker_socket: {}}}", docker.display());
        let text = format!("mode: enforce\n{paths}\nengines:\n{declared}");
        fs::write(&config, text).unwrap();
        node.write_rules(RULES);
        node.set_meminfo("Cached", 4 * GIB);
        node.leave(16 * GIB);
        node.adopt_user(hog.0.id());
        others.iter().for_each(|pid| node.adopt(*pid));
        let mut command = Command::new("prlimit");
        command.arg("--nofile=1024:1024").arg(binary());
        command.args(["run", "--web.listen-address", "127.0.0.1:0", "--storage.path"]);
        command.arg(node.storage()).args(node.arguments());
        command.arg(format!("--config.file={}", config.display()));
        let daemon = Daemon::from_command(&mut command);
        std::os::unix::fs::symlink(daemon.pid().to_string(), node.path("proc/self")).unwrap();
        node.adopt(daemon.pid());
        daemon.wait_until("reporting the hog", |daemon| {
            daemon.metrics().contains_key("uma_engine_growth_bytes{engine=\"hog\"}")
        });
        Self { node, daemon }
    }

    /// Memory runs out, and the hog is stopped.
    fn collapses(&self, hog: &mut Process) {
        self.node.collapse(GIB);
        let deadline = Instant::now() + Duration::from_secs(20);
        while hog.signal().is_none() {
            assert!(Instant::now() < deadline, "{}", self.daemon.log());
            std::thread::sleep(Duration::from_millis(5));
        }
        self.daemon.wait_until("done", |daemon| {
            let done = "uma_actions_total{action=\"stop_engine\",outcome=\"done\"}";
            daemon.count(done) == 1.0
        });
    }
}

fn hog() -> Process {
    Process::working_as(as_user("nobody", Path::new("sh")), ENGINE)
}

#[test]
fn a_collection_of_thousands_of_files_leaves_descriptors_to_stop_a_hog() {
    if !enabled() {
        return;
    }
    let Some(bench) = Bench::new() else { return };
    let first = bench.file("lora-0000.safetensors", 1);
    let folder = first.parent().unwrap();
    for number in 1..3_000 {
        fs::write(folder.join(format!("lora-{number:04}.safetensors")), "weights").unwrap();
    }
    let marker = format!("umawarden-collection-{}", std::process::id());
    let program = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(program.path(), Some(65_534), None).unwrap();
    let copy = program.path().join("test");
    fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    let mut reader = Reader::run(as_user("nobody", &copy), &[&marker]);
    reader.does(&format!("open {}", first.display()));
    let mut hog = hog();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let engines = format!(
        "- name: collection\n  match: {{cmdline: \"* {marker}\"}}\n  \
         model_files: ['{}/*.safetensors']\n  health: http://127.0.0.1:{port}/health\n",
        folder.display()
    );
    let stage = Stage::new(&hog, &engines, &[reader.id().pid]);
    stage.daemon.wait_until("the collection is followed", |daemon| {
        daemon.log().contains("evict_checkpoint")
    });
    std::thread::sleep(Duration::from_secs(1));
    stage.collapses(&mut hog);
}

#[test]
fn a_hog_that_claims_a_foreign_container_is_stopped_alone() {
    if !enabled() {
        return;
    }
    let id = "5b".repeat(32);
    let group = Group::new(&format!("docker-{id}.scope"));
    let mut hog = hog();
    fs::write(group.path().join("cgroup.procs"), hog.0.id().to_string()).unwrap();
    let stage = Stage::new(&hog, "", &[]);
    // Docker reports another process for that container.
    let requests = docker(&stage.node.path("docker.sock"), &id, std::process::id());
    stage.collapses(&mut hog);
    let requests = requests.lock().unwrap();
    assert!(!requests.iter().any(|line| line.contains("/kill")), "{requests:?}");
}
