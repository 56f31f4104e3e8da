//! A user's own Podman (rootless): an engine in its container is found, named and stopped through
//! the user's socket. The user is created for the test.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use umawarden::actions::{Executor as _, StopExecutor};
use umawarden::model::{
    Action, ContainerRuntime, DecisionRecord, EngineTarget, OutcomeResult, ProcessId, Proof, Target,
};

use super::enabled;
use crate::daemon::{Daemon, history, of_kind};

/// Whether all parts are installed; prints why the test is skipped if not.
fn are_there() -> bool {
    let parts = ["podman", "newuidmap", "useradd", "setpriv"];
    let is_there = |part: &&str| Command::new(part).arg("--help").output().is_ok();
    let missing: Vec<&str> = parts.into_iter().filter(|part| !is_there(part)).collect();
    if !missing.is_empty() {
        eprintln!("skipped: not installed: {}", missing.join(", "));
    }
    missing.is_empty()
}

/// A user with a folder for the time of a session, and Podman's API at its usual socket.
struct User {
    name: String,
    uid: u32,
    service: Option<Child>,
    folder: tempfile::TempDir,
}

impl User {
    fn create() -> Self {
        let name = format!("umwtest{}", std::process::id() % 100_000);
        let run = |program: &str, arguments: &[&str]| {
            let done = Command::new(program).args(arguments).output().unwrap();
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
            String::from_utf8(done.stdout).unwrap().trim().to_owned()
        };
        run("useradd", &["--create-home", "--shell", "/bin/sh", &name]);
        let uid = run("id", &["-u", &name]).parse().unwrap();
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        let user = Self { name, uid, service: None, folder };
        fs::create_dir_all(user.runtime().join("podman")).unwrap();
        for made in [user.runtime(), user.runtime().join("podman"), user.folder.path().to_owned()] {
            chown(&made, Some(uid), Some(uid)).unwrap();
            fs::set_permissions(&made, fs::Permissions::from_mode(0o700)).unwrap();
        }
        user
    }

    fn runtime(&self) -> PathBuf {
        Path::new("/run/user").join(self.uid.to_string())
    }

    fn socket(&self) -> PathBuf {
        self.runtime().join("podman/podman.sock")
    }

    fn podman(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        let uid = self.uid.to_string();
        command.args(["--reuid", &uid, "--regid", &uid, "--init-groups", "podman"]);
        command.args(["--cgroup-manager=cgroupfs", "--events-backend=file"]);
        command.args(["--storage-driver=vfs"]).args(arguments);
        command.env("XDG_RUNTIME_DIR", self.runtime()).env("HOME", format!("/home/{}", self.name));
        command.env_remove("DBUS_SESSION_BUS_ADDRESS").current_dir(self.folder.path());
        command
    }

    fn must(&self, arguments: &[&str]) -> String {
        let done: Output = self.podman(arguments).output().unwrap();
        let stderr = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{arguments:?}: {stderr}");
        String::from_utf8(done.stdout).unwrap().trim().to_owned()
    }

    fn import(&self) {
        let root = self.folder.path().join("root/bin");
        fs::create_dir_all(&root).unwrap();
        fs::copy("/bin/busybox", root.join("busybox")).unwrap();
        let archive = self.folder.path().join("root.tar").display().to_string();
        let below = self.folder.path().join("root").display().to_string();
        let packed = Command::new("tar").args(["-C", &below, "-cf", &archive, "."]).status();
        assert!(packed.unwrap().success());
        chown(&archive, Some(self.uid), Some(self.uid)).unwrap();
        self.must(&["import", &archive, "busybox"]);
    }

    fn serve(&mut self) {
        let address = format!("unix://{}", self.socket().display());
        let mut command = self.podman(&["system", "service", "--time=0", &address]);
        let service = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        self.service = Some(service);
        wait_for("the service", || std::os::unix::net::UnixStream::connect(self.socket()).is_ok());
    }
}

impl Drop for User {
    fn drop(&mut self) {
        // There may be no containers.
        let _ = self.podman(&["rm", "--force", "--all", "--time", "0"]).output();
        if let Some(service) = &mut self.service {
            // It may have ended.
            let _ = service.kill();
            let _ = service.wait();
        }
        // All processes of the user are of this test.
        let left = Command::new("pgrep").args(["-u", &self.uid.to_string()]).output().unwrap();
        for pid in String::from_utf8_lossy(&left.stdout).lines() {
            let _ = Command::new("kill").args(["-9", pid]).output();
        }
        std::thread::sleep(Duration::from_millis(300));
        // Without a spool of mail it complains.
        let _ = Command::new("userdel").args(["--remove", &self.name]).output();
        let _ = fs::remove_dir_all(self.runtime());
    }
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn engine(daemon: &Daemon) -> Option<Value> {
    let response: Value = serde_json::from_str(&daemon.get("/api/v1/engines").1).unwrap();
    let all = response["data"]["engines"].as_array().unwrap();
    all.iter().find(|engine| engine["name"] == "boxed").cloned()
}

/// Podman would start the container again, had it not been asked to end it.
fn stop(user: &User, engine: &Value) {
    let number = |key: &str| engine["server"][key].as_u64().unwrap();
    let server =
        ProcessId { pid: number("pid").try_into().unwrap(), start_ticks: number("start_ticks") };
    let runtime: ContainerRuntime =
        serde_json::from_value(engine["container_runtime"].clone()).unwrap();
    assert!(runtime.is_podman);
    let target = EngineTarget {
        name: "boxed".into(),
        processes: vec![server],
        cgroup: engine["cgroup"].as_str().map(Into::into),
        container: engine["container"].as_str().map(Into::into),
        proof: Proof::UserContainer,
        runtime: Some(runtime),
        ..EngineTarget::default()
    };
    let action = Action::StopEngine {
        engine: None,
        grace_ms: 5_000,
        unless_free_bytes: None,
        for_reboot: None,
    };
    let target = Target::Engine(Box::new(target));
    let decision = DecisionRecord { target, ..crate::actions::decision(action) };
    let (procfs, sysfs, docker) = ("/proc".into(), "/sys".into(), "/nowhere".into());
    let user_folders = "/nowhere".into();
    let mut executor = StopExecutor { procfs, sysfs, docker, user_folders };
    let performed = executor.execute(&crate::actions::act(decision));
    assert_eq!((performed.result, performed.effect), (OutcomeResult::Done, None));
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(user.must(&["inspect", "-f", "{{.State.Status}}", "lives"]), "exited");
}

#[test]
fn real_rootless_podman_names_its_engine_and_leaves_it_stopped() {
    if !enabled() || !are_there() {
        return;
    }
    let mut user = User::create();
    user.import();
    user.serve();
    let files = tempfile::tempdir().unwrap();
    let config = files.path().join("umawarden.yaml");
    let text = "rule_files: []\npath: {docker_socket: /nonexistent/docker.sock}\n\
                engines: [{name: boxed, match: {container: lives, comm: busybox}}]\n";
    fs::write(&config, text).unwrap();
    let config = format!("--config.file={}", config.display());
    let daemon = Daemon::start(&files.path().join("data"), &[&config]);
    let script = "trap 'exit 0' TERM; echo begins; while true; do /bin/busybox sleep 0.1; done";
    let limits = ["--ulimit", "nofile=1024:2048", "--ulimit", "nproc=1000:1000"];
    let run = ["run", "-d", "--name", "lives", "--network", "none", "--restart", "always"];
    let command = ["busybox", "/bin/busybox", "sh", "-c", script];
    let id = user.must(&[&run[..], &limits, &command].concat());
    let is_named = || engine(&daemon).is_some_and(|engine| engine["container"] == *id);
    wait_for(&format!("named\n{}", daemon.log()), is_named);
    let engine = engine(&daemon).unwrap();
    assert_eq!(engine["container_name"], "lives", "{engine:#}");
    assert_eq!((&engine["proof"], &engine["uid"]), (&"user_container".into(), &user.uid.into()));
    let socket = user.socket().display().to_string();
    assert_eq!(engine["container_runtime"]["socket"], socket);
    assert_eq!(engine["container_runtime"]["user"], user.uid);
    let log = engine["container_runtime"]["log"].as_str().unwrap();
    assert!(log.starts_with(&format!("/home/{}/", user.name)) && log.ends_with("ctr.log"), "{log}");
    assert!(engine["log_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{engine:#}");
    // An end is known of a container that was seen to run.
    std::thread::sleep(Duration::from_secs(4));
    stop(&user, &engine);
    // Its death has what only the user's runtime knows: name, exit code and log.
    let deaths = || {
        let entries = history(&files.path().join("data"));
        let reports = of_kind(&entries, "engine_died").map(|entry| entry["report"].clone());
        reports.collect::<Vec<Value>>()
    };
    wait_for("a report", || !deaths().is_empty());
    let report = deaths().remove(0);
    let who = &report["who"];
    assert_eq!((&who["container_name"], &who["user"]), (&"lives".into(), &user.uid.into()));
    let text = report.to_string();
    assert!(text.contains("begins"), "the log of the container: {report:#}");
    daemon.terminate();
}
