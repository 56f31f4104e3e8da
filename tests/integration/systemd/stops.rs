//! Stops of engines in a service of a user's own systemd. The user is that of the test.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Child, Command};

use umawarden::actions::{Executor as _, Performed, StopExecutor};
use umawarden::model::{
    Action, DecisionRecord, EngineTarget, OutcomeResult, ProcessId, Target, UserUnit,
};
use umawarden::parse::process::stat;

use super::{Fake, UNIT};

/// The target of the link `ns/cgroup` of a process that sees whole paths.
const ALL_GROUPS: &str = "cgroup:[4026531835]";

/// A process in the service, and a procfs that shows it there.
struct Served {
    folder: tempfile::TempDir,
    group: String,
    child: Child,
    fake: Fake,
}

fn own() -> u32 {
    rustix::process::geteuid().as_raw()
}

impl Served {
    fn new(restart: &'static str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let user = own();
        let sockets = folder.path().join("users").join(user.to_string()).join("systemd");
        fs::create_dir_all(&sockets).unwrap();
        let group = format!("/user.slice/user-{user}.slice/user@{user}.service/app.slice/{UNIT}");
        let fake = Fake::start(&sockets.join("private"));
        let its: &'static str = Box::leak(group.clone().into_boxed_str());
        fake.set(|unit| (unit.restart, unit.cgroup) = (restart, its));
        let child = Command::new("sleep").arg("100").spawn().unwrap();
        let served = Self { folder, group, child, fake };
        served.show_own();
        served.show(served.child.id(), &format!("{}/workers", served.group));
        served
    }

    fn procfs(&self) -> PathBuf {
        self.folder.path().join("proc")
    }

    /// Shows this process, as far as a stop reads it.
    fn show_own(&self) {
        let pid = std::process::id();
        self.show(pid, "/test.scope");
        let folder = self.procfs().join(pid.to_string());
        symlink(format!("/proc/{pid}/fdinfo"), folder.join("fdinfo")).unwrap();
        fs::create_dir(folder.join("ns")).unwrap();
        symlink(ALL_GROUPS, folder.join("ns/cgroup")).unwrap();
        symlink(pid.to_string(), self.procfs().join("self")).unwrap();
    }

    /// Shows a process in that control group.
    fn show(&self, pid: u32, group: &str) {
        let folder = self.procfs().join(pid.to_string());
        fs::create_dir_all(&folder).unwrap();
        symlink(format!("/proc/{pid}/stat"), folder.join("stat")).unwrap();
        fs::write(folder.join("cgroup"), format!("0::{group}\n")).unwrap();
    }

    /// Stops the process, which must end by SIGTERM.
    fn stop(&mut self) -> Performed {
        let pid = self.child.id();
        let text = fs::read(format!("/proc/{pid}/stat")).unwrap();
        let engine = EngineTarget {
            name: "vllm-8000".into(),
            processes: vec![ProcessId { pid, start_ticks: stat(&text).unwrap().start_ticks }],
            cgroup: Some(format!("{}/workers", self.group).into()),
            user_unit: Some(UserUnit { user: own(), name: UNIT.into() }),
            ..EngineTarget::default()
        };
        let action = Action::StopEngine {
            engine: None,
            grace_ms: 10_000,
            unless_free_bytes: None,
            for_reboot: None,
        };
        let target = Target::Engine(Box::new(engine));
        let decision = DecisionRecord { target, ..crate::actions::decision(action) };
        let mut executor = StopExecutor {
            procfs: self.procfs(),
            sysfs: "/nonexistent".into(),
            docker: "/nonexistent".into(),
            user_folders: self.folder.path().join("users"),
        };
        let performed = executor.execute(&crate::actions::act(decision));
        assert_eq!(performed.result, OutcomeResult::Done);
        assert_eq!(self.child.wait().unwrap().signal(), Some(15));
        performed
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("users").join(own().to_string()).join("systemd/private")
    }
}

#[test]
fn a_service_that_its_systemd_would_start_again_is_stopped_by_it() {
    let mut served = Served::new("always");
    let effect = served.stop().effect.unwrap();
    assert_eq!(served.fake.count("StopUnit"), 1);
    assert!(effect.starts_with(&format!("the systemd of user {} stops {UNIT}", own())), "{effect}");
    assert!(effect.ends_with("as that user, `systemctl --user start vllm.service`"), "{effect}");
}

/// A deferred restart takes a stop of the unit for one by a person.
#[test]
fn a_service_that_nothing_starts_again_is_only_signalled() {
    let mut served = Served::new("no");
    assert_eq!(served.stop().effect, None);
    assert_eq!(served.fake.count("StopUnit"), 0);
}

#[test]
fn an_engine_is_stopped_by_signals_where_its_systemd_cannot_be_asked() {
    let mut refused = Served::new("always");
    let socket = refused.socket();
    fs::rename(&socket, socket.with_file_name("elsewhere")).unwrap();
    symlink("elsewhere", &socket).unwrap();
    let effect = refused.stop().effect.unwrap();
    assert!(effect.contains("may start it again") && effect.contains("no socket"), "{effect}");
    assert_eq!(refused.fake.calls.lock().unwrap().len(), 0, "no link is followed");
    let mut silent = Served::new("always");
    *silent.fake.hangs.lock().unwrap() = true;
    let effect = silent.stop().effect.unwrap();
    assert!(effect.contains("it has not answered within 500 ms"), "{effect}");
    assert!(effect.ends_with("as that user, `systemctl --user stop vllm.service`"), "{effect}");
    let mut other = Served::new("always");
    other.fake.set(|unit| unit.cgroup = "/user.slice/other.service");
    let effect = other.stop().effect.unwrap();
    assert!(effect.contains("it has no service vllm.service in the control group"), "{effect}");
    assert_eq!(other.fake.count("StopUnit"), 0);
}

#[test]
fn a_service_with_other_processes_and_one_that_the_engine_has_left_are_not_stopped() {
    let mut shared = Served::new("always");
    let mut beside = Command::new("sleep").arg("100").spawn().unwrap();
    shared.show(beside.id(), &shared.group);
    let effect = shared.stop().effect.unwrap();
    assert!(effect.contains("was not asked, and starts vllm.service again"), "{effect}");
    let is_alive = beside.try_wait().unwrap().is_none();
    beside.kill().unwrap();
    beside.wait().unwrap();
    assert!(is_alive);
    let mut moved = Served::new("always");
    let cgroup = moved.procfs().join(moved.child.id().to_string()).join("cgroup");
    fs::write(cgroup, "0::/user.slice/session-1.scope\n").unwrap();
    assert!(moved.stop().effect.unwrap().contains("was not asked"));
    for served in [&shared, &moved] {
        assert_eq!(served.fake.calls.lock().unwrap().len(), 0);
    }
}
