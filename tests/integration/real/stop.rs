//! Engines are stopped: processes that cannot die, and containers that restart.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use procfs::process::Process;
use umawarden::actions::{Executor as _, StopExecutor};
use umawarden::model::{
    Action, DecisionRecord, EngineTarget, OutcomeResult, ProcessId, Proof, Target,
};

use super::docker::Dockerd;
use super::enabled;

fn stat(pid: u32) -> Option<procfs::process::Stat> {
    Process::new(i32::try_from(pid).unwrap()).and_then(|process| process.stat()).ok()
}

fn id(pid: u32) -> ProcessId {
    ProcessId { pid, start_ticks: stat(pid).unwrap().starttime }
}

fn stop(engine: EngineTarget, grace_ms: u64, docker: &str) -> OutcomeResult {
    let action =
        Action::StopEngine { engine: None, grace_ms, unless_free_bytes: None, for_reboot: None };
    let target = Target::Engine(Box::new(engine));
    let decision = DecisionRecord { target, ..crate::actions::decision(action) };
    let mut executor = StopExecutor {
        procfs: "/proc".into(),
        sysfs: "/sys".into(),
        docker: docker.into(),
        user_folders: "/nowhere".into(),
    };
    executor.execute(&crate::actions::act(decision)).result
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn run(program: &str, arguments: &[&str]) {
    let done = Command::new(program).args(arguments).output().unwrap();
    assert!(done.status.success(), "{program}: {}", String::from_utf8_lossy(&done.stderr));
}

/// A file system whose writers wait in state D while it is frozen.
struct Frozen {
    folder: tempfile::TempDir,
}

impl Frozen {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        fs::File::create(&image).unwrap().set_len(32 << 20).unwrap();
        let mount = folder.path().join("mount");
        fs::create_dir(&mount).unwrap();
        run("mkfs.ext4", &["-q", image.to_str().unwrap()]);
        run("mount", &["-o", "loop", image.to_str().unwrap(), mount.to_str().unwrap()]);
        let frozen = Self { folder };
        run("fsfreeze", &["--freeze", frozen.mount().to_str().unwrap()]);
        frozen
    }

    fn mount(&self) -> std::path::PathBuf {
        self.folder.path().join("mount")
    }

    fn thaw(&self) {
        // It may be thawed already.
        let _ = Command::new("fsfreeze").arg("--unfreeze").arg(self.mount()).output();
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.thaw();
        let _ = Command::new("umount").arg(self.mount()).status();
    }
}

fn shell(script: &str) -> Child {
    Command::new("sh").args(["-c", script]).stdout(Stdio::null()).spawn().unwrap()
}

#[test]
fn real_process_stuck_in_the_kernel_is_reported_and_dies_once_it_wakes() {
    if !enabled() {
        return;
    }
    let frozen = Frozen::new();
    let mut writer = shell(&format!("echo > {}/file", frozen.mount().display()));
    wait_for("state D", || stat(writer.id()).is_some_and(|stat| stat.state == 'D'));
    let engine = EngineTarget {
        name: Arc::from("stuck"),
        processes: vec![id(writer.id())],
        ..EngineTarget::default()
    };
    let result = stop(engine, 0, "/nowhere");
    frozen.thaw();
    let OutcomeResult::Failed(why) = result else { panic!("{result:?}") };
    assert!(why.contains(&format!("process {} (sh) [D]", writer.id())), "{why}");
    assert!(why.contains("cannot die"), "{why}");
    // The signal stays pending until then.
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&writer.wait().unwrap()), Some(9));
}

#[test]
fn real_container_with_restart_always_stays_stopped() {
    if !enabled() {
        return;
    }
    assert!(Path::new("/bin/busybox").exists(), "tests/run installs busybox-static");
    let dockerd = Dockerd::start();
    dockerd.import_busybox();
    // Its first process ignores SIGTERM, as a shell in a container does.
    let script = "/bin/busybox sleep 1000 & wait; /bin/busybox sleep 1000";
    let created = dockerd.docker(&[
        "run",
        "-d",
        "--network",
        "none",
        "--restart",
        "always",
        "busybox",
        "/bin/busybox",
        "sh",
        "-c",
        script,
    ]);
    let container = String::from_utf8(created.stdout).unwrap().trim().to_owned();
    let inspect = |what: &str| {
        let output = dockerd.docker(&["inspect", "-f", what, &container]);
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    wait_for("a container", || inspect("{{.State.Running}}") == "true");
    let server: u32 = inspect("{{.State.Pid}}").parse().unwrap();
    wait_for("its child", || {
        fs::read_to_string(format!("/proc/{server}/task/{server}/children"))
            .is_ok_and(|children| !children.trim().is_empty())
    });
    let cgroups = fs::read_to_string(format!("/proc/{server}/cgroup")).unwrap();
    let cgroup = cgroups.lines().find_map(|line| {
        let path = line.splitn(3, ':').nth(2)?;
        path.contains(&container).then(|| path.to_owned())
    });
    let engine = EngineTarget {
        name: Arc::from("boxed"),
        processes: vec![id(server)],
        cgroup: cgroup.map(Arc::from),
        container: Some(Arc::from(container.as_str())),
        proof: Proof::Container,
        ..EngineTarget::default()
    };
    assert!(engine.cgroup.is_some(), "{cgroups}");
    let socket = dockerd.socket_path();
    assert_eq!(stop(engine, 300, &socket), OutcomeResult::Done);
    wait_for("it is stopped", || inspect("{{.State.Running}}") == "false");
    // Docker restarts it after 100 ms, then 200 ms.
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(inspect("{{.State.Status}} {{.RestartCount}}"), "exited 0");
}
