//! Podman, which speaks Docker's language with an accent: engines in its containers, held restarts
//! and `adopt`, on a service of our own.

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

/// Whether it is installed, and why it is skipped if not.
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
        podman.does(&["import", &archive, "busybox"]);
        podman
    }

    fn command(folder: &Path) -> Command {
        let mut command = Command::new("podman");
        // conmon leaves files where it was started.
        command.current_dir(folder);
        let path = |name: &str| folder.join(name).display().to_string();
        command.args(["--root", &path("storage"), "--runroot", &path("run")]);
        // There may be no systemd, and nothing to lay file systems over each other.
        command.args(["--cgroup-manager=cgroupfs", "--events-backend=file"]);
        command.args(["--storage-driver=vfs"]);
        command
    }

    fn serve(folder: &Path) -> Child {
        let socket = folder.join("sock");
        let _absent = std::fs::remove_file(&socket);
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
        let _already_dead = self.service.kill();
        let _already_reaped = self.service.wait();
    }

    fn ask(&self, arguments: &[&str]) -> Output {
        Self::command(self.folder.path()).args(arguments).output().unwrap()
    }

    fn does(&self, arguments: &[&str]) -> String {
        let done = self.ask(arguments);
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{arguments:?}: {said}");
        String::from_utf8(done.stdout).unwrap().trim().to_owned()
    }

    fn run(&self, name: &str, script: &str, more: &[&str]) {
        let mut arguments = vec!["run", "-d", "--name", name, "--network", "none"];
        // The usual ones are higher than a machine's own may be.
        arguments.extend(["--ulimit", "nofile=1024:2048", "--ulimit", "nproc=1000:1000"]);
        arguments.extend(more);
        arguments.extend(["busybox", "/bin/busybox", "sh", "-c", script]);
        self.does(&arguments);
    }

    fn state(&self, name: &str) -> String {
        self.does(&["inspect", "-f", "{{.State.Status}} {{.State.StartedAt}}", name])
    }

    fn is_running(&self, name: &str) -> bool {
        self.state(name).starts_with("running")
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        let _gone = self.ask(&["rm", "--force", "--all", "--time", "0"]);
        self.end();
    }
}

fn held(daemon: &Daemon, name: &str) -> Value {
    let told: Value = serde_json::from_str(&daemon.get("/api/v1/engines").1).unwrap();
    let held = told["data"]["deferred_restarts"].as_array().unwrap();
    held.iter().find(|held| held["name"] == name).cloned().unwrap_or_default()
}

fn engines(daemon: &Daemon) -> Vec<Value> {
    let told: Value = serde_json::from_str(&daemon.get("/api/v1/engines").1).unwrap();
    told["data"]["engines"].as_array().unwrap().clone()
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
    // What dies is started once; the report has its log.
    podman.run("llm", &format!("{DIES_ONCE} exit 3"), &["--label", LABEL]);
    let acts = |name: &str| {
        let history = history(&storage);
        of_kind(&history, "decision")
            .filter(|made| made["rule"]["alert"] == name && made["verdict"] == "act")
            .count()
    };
    wait_for("started", 30, &daemon, || acts("llm") == 1 && podman.is_running("llm"));
    wait_for("told", 10, &daemon, || of_kind(&history(&storage), "engine_died").count() == 1);
    let told = history(&storage);
    let report = &of_kind(&told, "engine_died").next().unwrap()["report"];
    assert_eq!(report["killer"]["reason"], "RuntimeError: CUDA out of memory", "{report:#}");
    // What its limit kills is started, too, though Podman does not tell of that on cgroup v1.
    let oom = format!("{DIES_ONCE} exec /bin/busybox tail /dev/zero");
    podman.run("oom", &oom, &["--label", LABEL, "--memory", "30m"]);
    wait_for("started", 30, &daemon, || acts("oom") == 1 && podman.is_running("oom"));
    // What somebody stopped or killed stays down; the service may go and come.
    podman.does(&["stop", "lives"]);
    podman.does(&["kill", "llm"]);
    wait_for("told", 10, &daemon, || {
        held(&daemon, "lives")["state"] == "stopped" && held(&daemon, "llm")["state"] == "stopped"
    });
    podman.end();
    wait_for("doubt", 10, &daemon, || held(&daemon, "oom")["state"] == "unknown");
    podman.service = Podman::serve(podman.folder.path());
    wait_for("known", 10, &daemon, || held(&daemon, "lives")["state"] == "stopped");
    let runs = podman.state("oom");
    std::thread::sleep(Duration::from_secs(3));
    assert!(!podman.is_running("lives") && !podman.is_running("llm"));
    assert_eq!((podman.state("oom"), acts("lives"), acts("llm")), (runs, 0, 1));
    adopts(&podman, &daemon, (&config, &storage));
    daemon.terminate();
}

/// A container without a policy of its own can be adopted; of others it is said that they cannot.
fn adopts(podman: &Podman, daemon: &Daemon, (config, storage): (&str, &Path)) {
    let adopt = |arguments: &[&str]| {
        let output = Command::new(binary())
            .arg("adopt")
            .args(arguments)
            .args([config, "--storage.path"])
            .arg(storage)
            .output()
            .unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.code().unwrap(), said)
    };
    podman.run("always", "/bin/busybox sleep 1000", &["--restart", "always"]);
    let (code, said) = adopt(&["always", "--yes"]);
    assert!(code == 1 && said.contains("Podman cannot"), "{said}");
    podman.run("none", "/bin/busybox sleep 1000", &[]);
    assert!(held(daemon, "none").is_null());
    let (code, said) = adopt(&["none", "--yes"]);
    assert_eq!(code, 0, "{said}");
    wait_for("held", 20, daemon, || !held(daemon, "none").is_null());
    let (code, said) = adopt(&["none", "--undo", "--yes"]);
    assert_eq!(code, 0, "{said}");
    wait_for("left", 20, daemon, || held(daemon, "none").is_null());
}
