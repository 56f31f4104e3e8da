//! Podman's variant of Docker's API: engines in its containers, deferred restarts and `adopt`, on a
//! service of our own.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::enabled;
use crate::daemon::{Daemon, binary, history, of_kind};

/// Its own storage, and its API at a socket of its own.
struct Podman {
    service: Child,
    folder: tempfile::TempDir,
}

/// Whether it is installed; prints why the test is skipped if not.
fn is_there() -> bool {
    let found = Command::new("podman").arg("--version").output();
    let is_there = found.is_ok_and(|output| output.status.success());
    if !is_there {
        eprintln!("skipped: podman is not installed");
    }
    is_there
}

impl Podman {
    fn start() -> Self {
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        let service = Self::serve(folder.path());
        let podman = Self { service, folder };
        let root = podman.folder.path().join("root/bin");
        std::fs::create_dir_all(&root).unwrap();
        std::fs::copy("/bin/busybox", root.join("busybox")).unwrap();
        let archive = podman.folder.path().join("root.tar").display().to_string();
        let below = podman.folder.path().join("root").display().to_string();
        let packed = Command::new("tar").args(["-C", &below, "-cf", &archive, "."]).status();
        assert!(packed.unwrap().success());
        podman.must(&["import", &archive, "busybox"]);
        podman
    }

    fn command(folder: &Path) -> Command {
        let mut command = Command::new("podman");
        // conmon leaves files in its working directory.
        command.current_dir(folder);
        let path = |name: &str| folder.join(name).display().to_string();
        command.args(["--root", &path("storage"), "--runroot", &path("run")]);
        // There may be neither systemd nor an overlay file system.
        command.args(["--cgroup-manager=cgroupfs", "--events-backend=file"]);
        command.args(["--storage-driver=vfs"]);
        command
    }

    fn serve(folder: &Path) -> Child {
        let socket = folder.join("sock");
        // It may be absent.
        let _ = std::fs::remove_file(&socket);
        let mut command = Self::command(folder);
        command.args(["system", "service", "--time=0"]);
        command.arg(format!("unix://{}", socket.display()));
        let log = std::fs::File::create(folder.join("log")).unwrap();
        let mut service = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        while std::os::unix::net::UnixStream::connect(&socket).is_err() {
            assert!(service.try_wait().unwrap().is_none(), "the service has ended");
            assert!(Instant::now() < deadline, "the service does not answer");
            std::thread::sleep(Duration::from_millis(50));
        }
        service
    }

    fn end(&mut self) {
        // It may have ended.
        let _ = self.service.kill();
        let _ = self.service.wait();
    }

    fn call(&self, arguments: &[&str]) -> Output {
        Self::command(self.folder.path()).args(arguments).output().unwrap()
    }

    fn must(&self, arguments: &[&str]) -> String {
        let done = self.call(arguments);
        let stderr = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{arguments:?}: {stderr}");
        String::from_utf8(done.stdout).unwrap().trim().to_owned()
    }

    fn run(&self, name: &str, script: &str, more: &[&str]) {
        let mut arguments = vec!["run", "-d", "--name", name, "--network", "none"];
        // The default limits may exceed those of the machine.
        arguments.extend(["--ulimit", "nofile=1024:2048", "--ulimit", "nproc=1000:1000"]);
        arguments.extend(more);
        arguments.extend(["busybox", "/bin/busybox", "sh", "-c", script]);
        self.must(&arguments);
    }

    fn state(&self, name: &str) -> String {
        self.must(&["inspect", "-f", "{{.State.Status}} {{.State.StartedAt}}", name])
    }

    fn is_running(&self, name: &str) -> bool {
        self.state(name).starts_with("running")
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        // There may be no containers.
        let _ = self.call(&["rm", "--force", "--all", "--time", "0"]);
        self.end();
    }
}

fn deferred(daemon: &Daemon, name: &str) -> Value {
    let response: Value = serde_json::from_str(&daemon.get("/api/v1/engines").1).unwrap();
    let all = response["data"]["deferred_restarts"].as_array().unwrap();
    all.iter().find(|one| one["name"] == name).cloned().unwrap_or_default()
}

fn engines(daemon: &Daemon) -> Vec<Value> {
    let response: Value = serde_json::from_str(&daemon.get("/api/v1/engines").1).unwrap();
    response["data"]["engines"].as_array().unwrap().clone()
}

fn wait_for(what: &str, seconds: u64, daemon: &Daemon, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(seconds);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}\n{}", daemon.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

const LABEL: &str = "umawarden.restart=when-ready";

const DIES_ONCE: &str = "if [ -e /lived ]; then exec /bin/busybox sleep 1000; fi
    /bin/busybox touch /lived; echo RuntimeError: CUDA out of memory >&2; /bin/busybox sleep 1; ";

#[test]
fn real_podman_engines_are_found_and_restarted_once_after_a_death() {
    if !enabled() || !is_there() {
        return;
    }
    let mut podman = Podman::start();
    let files = tempfile::tempdir().unwrap();
    let config = files.path().join("umawarden.yaml");
    let socket = podman.folder.path().join("sock").display().to_string();
    let text = format!(
        "mode: enforce\nrule_files: []\npath: {{docker_socket: {socket}}}\n\
         engines: [{{name: boxed, match: {{container: lives, comm: busybox}}}}]\n\
         restarts: [{{label: umawarden.restart, ready_within: 1s}}]\n"
    );
    std::fs::write(&config, text).unwrap();
    let storage = files.path().join("data");
    let config = format!("--config.file={}", config.display());
    let daemon = Daemon::start(&storage, &[&config]);
    // An engine is found in a container by its name.
    let lives = "trap 'exit 0' TERM; while true; do /bin/busybox sleep 0.1; done";
    podman.run("lives", lives, &["--label", LABEL]);
    wait_for("known", 20, &daemon, || {
        engines(&daemon).iter().any(|engine| engine["container_name"] == "lives")
    });
    // A dead container is restarted once; the report has its log.
    podman.run("llm", &format!("{DIES_ONCE} exit 3"), &["--label", LABEL]);
    let acts = |name: &str| {
        let history = history(&storage);
        of_kind(&history, "decision")
            .filter(|made| made["rule"]["alert"] == name && made["decision"] == "act")
            .count()
    };
    wait_for("started", 30, &daemon, || acts("llm") == 1 && podman.is_running("llm"));
    wait_for("reported", 10, &daemon, || of_kind(&history(&storage), "engine_died").count() == 1);
    let entries = history(&storage);
    let report = &of_kind(&entries, "engine_died").next().unwrap()["report"];
    assert_eq!(report["killer"]["reason"], "RuntimeError: CUDA out of memory", "{report:#}");
    // A container killed at its limit is restarted too, though Podman does not report that on
    // cgroup v1.
    let oom = format!("{DIES_ONCE} exec /bin/busybox tail /dev/zero");
    podman.run("oom", &oom, &["--label", LABEL, "--memory", "30m"]);
    wait_for("started", 30, &daemon, || acts("oom") == 1 && podman.is_running("oom"));
    // A stopped or killed container stays down, also over a restart of the service.
    podman.must(&["stop", "lives"]);
    podman.must(&["kill", "llm"]);
    wait_for("reported", 10, &daemon, || {
        deferred(&daemon, "lives")["state"] == "stopped"
            && deferred(&daemon, "llm")["state"] == "stopped"
    });
    podman.end();
    wait_for("unknown", 10, &daemon, || deferred(&daemon, "oom")["state"] == "unknown");
    podman.service = Podman::serve(podman.folder.path());
    wait_for("known", 10, &daemon, || deferred(&daemon, "lives")["state"] == "stopped");
    let runs = podman.state("oom");
    std::thread::sleep(Duration::from_secs(3));
    assert!(!podman.is_running("lives") && !podman.is_running("llm"));
    assert_eq!((podman.state("oom"), acts("lives"), acts("llm")), (runs, 0, 1));
    adopts(&podman, &daemon, (&config, &storage));
    daemon.terminate();
}

/// A container without a restart policy can be adopted; others are rejected with a message.
fn adopts(podman: &Podman, daemon: &Daemon, (config, storage): (&str, &Path)) {
    let adopt = |arguments: &[&str]| {
        let output = Command::new(binary())
            .arg("adopt")
            .args(arguments)
            .args([config, "--storage.path"])
            .arg(storage)
            .output()
            .unwrap();
        let printed = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.code().unwrap(), printed)
    };
    podman.run("always", "/bin/busybox sleep 1000", &["--restart", "always"]);
    let (code, printed) = adopt(&["always", "--yes"]);
    assert!(code == 1 && printed.contains("Podman cannot"), "{printed}");
    podman.run("none", "/bin/busybox sleep 1000", &[]);
    assert!(deferred(daemon, "none").is_null());
    let (code, printed) = adopt(&["none", "--yes"]);
    assert_eq!(code, 0, "{printed}");
    wait_for("deferred", 20, daemon, || !deferred(daemon, "none").is_null());
    let (code, printed) = adopt(&["none", "--undo", "--yes"]);
    assert_eq!(code, 0, "{printed}");
    wait_for("released", 20, daemon, || deferred(daemon, "none").is_null());
}
