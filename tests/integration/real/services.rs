//! Engines in services of a real systemd: a user manager with a bus, a journald, a control group
//! and a mount namespace of its own, isolated from this machine.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use umawarden::actions::{Executor as _, StartExecutor};
use umawarden::model::{
    Action, DecisionRecord, DeclaredRestart, DeferredRestart, EngineUser, Moment, Observation,
    OnRequest, OutcomeResult, RestartLimits, RestartMatch, StartNeed, Supervisor, Target,
    WorkloadState,
};
use umawarden::sources::deferred::{DeferredSetup, DeferredWatch};
use umawarden::supervisors::systemd::Bus;

use super::enabled;
use crate::daemon::{Daemon, binary, history, of_kind};

/// Moves itself to a control group of its own, and becomes the manager. Where systemd does not run
/// the machine it starts only if it is made to believe that.
const BEGIN: &str = "for tree in /sys/fs/cgroup/systemd /sys/fs/cgroup/unified /sys/fs/cgroup; do \
    [ -e $tree/cgroup.procs ] || continue; mkdir $tree/$GROUP && echo $$ >$tree/$GROUP/cgroup.procs; \
    done; mount --make-rprivate / && mount -t tmpfs none /run && mkdir -p /run/systemd/system \
    /run/log/journal && ln -s journal.uma /run/systemd/journal; /lib/systemd/systemd-journald uma & \
    echo $! >$HOME/journald; until [ -S /run/systemd/journal/stdout ]; do sleep 0.1; done; exec /lib/systemd/systemd --user --log-target=console";

const ENGINE: &str = "#!/bin/sh\necho process $$ starts\ntrap 'echo CUDA out of memory; exit 3' USR1\n\
    while :; do sleep 0.05; done\n";

/// The folder of its user, root, for the time of the session.
const RUN: &str = "users/0";

struct Systemd {
    child: Child,
    folder: tempfile::TempDir,
    group: String,
}

impl Systemd {
    fn start() -> Self {
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        // A slice at the top, as those of the system: a unit below `user.slice` is not trusted.
        let group = format!("umawarden-test-{}.slice", std::process::id());
        let path = |below: &str| folder.path().join(below);
        fs::create_dir(path("units")).unwrap();
        fs::create_dir_all(path(RUN)).unwrap();
        fs::write(path("engine"), ENGINE).unwrap();
        for target in ["default", "basic", "shutdown", "sockets", "exit"] {
            let unit = "[Unit]\nDefaultDependencies=no\n";
            fs::write(path("units").join(format!("{target}.target")), unit).unwrap();
        }
        let bus = path(RUN).join("bus").display().to_string();
        let engine = path("engine").display().to_string();
        let again = format!("ExecStart=/bin/sh {engine}\nRestart=always\n");
        for (name, text) in [
            ("dbus.socket", format!("[Socket]\nListenStream={bus}\n")),
            (
                "dbus.service",
                "[Unit]\nRequires=dbus.socket\n[Service]\nExecStart=/usr/bin/dbus-daemon \
                 --session --address=systemd: --nofork --nopidfile\n"
                    .to_owned(),
            ),
            ("bare.service", format!("[Service]\nExecStart=/bin/sh {engine}\n")),
            ("again.service", format!("[Service]\n{again}")),
            ("held.service", format!("[Service]\nExecStart=/bin/sh {engine}\n")),
            ("wanted.service", format!("[Service]\nExecStart=/bin/sh {engine}\n")),
        ] {
            fs::write(path("units").join(name), text).unwrap();
        }
        // As `systemctl enable` does: systemd remembers how it ends.
        let wants = path("units").join("default.target.wants");
        fs::create_dir(&wants).unwrap();
        symlink("../wanted.service", wants.join("wanted.service")).unwrap();
        let log = fs::File::create(path("log")).unwrap();
        let mut command = Command::new("unshare");
        command.args(["--mount", "/bin/sh", "-c", BEGIN]).env("GROUP", &group);
        set(&mut command, folder.path());
        let child = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let systemd = Self { child, folder, group };
        let began = Instant::now();
        while !systemd.ctl(&["start", "dbus.socket", "dbus.service"]).0 {
            let log = fs::read_to_string(systemd.path("log")).unwrap();
            assert!(began.elapsed() < Duration::from_secs(30), "it does not start:\n{log}");
            std::thread::sleep(Duration::from_millis(200));
        }
        systemd
    }

    fn path(&self, below: &str) -> PathBuf {
        self.folder.path().join(below)
    }

    fn ctl(&self, arguments: &[&str]) -> (bool, String) {
        let mut command = Command::new("systemctl");
        set(command.arg("--user").args(arguments), self.folder.path());
        let done = command.output().unwrap();
        (done.status.success(), String::from_utf8_lossy(&done.stdout).trim().to_owned())
    }

    fn pid(&self, unit: &str) -> i32 {
        self.ctl(&["show", "--property=MainPID", "--value", unit]).1.parse().unwrap()
    }

    fn kill(&self, unit: &str, signal: Signal) {
        kill_process(Pid::from_raw(self.pid(unit)).unwrap(), signal).unwrap();
    }

    fn daemon(&self) -> Daemon {
        let names = ["bare", "again", "held"];
        let engines =
            names.map(|name| format!("- {{name: {name}, match: {{unit: {name}.service}}}}\n"));
        let text = format!(
            "mode: enforce\nrule_files: []\nengines:\n{}restarts:\n- {{unit: held.service, need: \
             100MiB}}\n",
            engines.concat()
        );
        fs::write(self.path("umawarden.yaml"), text).unwrap();
        // The journal of that namespace.
        let read =
            "exec nsenter --mount --target $NODE /usr/bin/journalctl --namespace=uma \"$@\"\n";
        let journalctl = self.path("bin").join("journalctl");
        fs::create_dir(self.path("bin")).unwrap();
        fs::write(&journalctl, format!("#!/bin/sh\n{read}")).unwrap();
        fs::set_permissions(&journalctl, fs::Permissions::from_mode(0o755)).unwrap();
        let mut command = Command::new(binary());
        command
            .env("NODE", self.child.id().to_string())
            .env("PATH", format!("{}:{}", self.path("bin").display(), env!("PATH")))
            .args(["run", "--web.listen-address=127.0.0.1:0"])
            .arg(format!("--config.file={}", self.path("umawarden.yaml").display()))
            .arg(format!("--storage.path={}", self.path("data").display()))
            .env(
                "DBUS_SYSTEM_BUS_ADDRESS",
                format!("unix:path={}", self.path(RUN).join("bus").display()),
            );
        Daemon::from_command(&mut command)
    }
}

fn set(command: &mut Command, folder: &Path) {
    let bus = format!("unix:path={}", folder.join(RUN).join("bus").display());
    command
        .env("XDG_RUNTIME_DIR", folder.join(RUN))
        .env("SYSTEMD_UNIT_PATH", folder.join("units"))
        .env("DBUS_SESSION_BUS_ADDRESS", bus)
        .env("HOME", folder);
}

impl Drop for Systemd {
    fn drop(&mut self) {
        // They may be stopped already.
        let _ =
            self.ctl(&["stop", "bare", "again", "held", "wanted", "dbus.service", "dbus.socket"]);
        let journald = fs::read_to_string(self.path("journald")).unwrap_or_default();
        let systemd = i32::try_from(self.child.id()).unwrap();
        for pid in [journald.trim().parse().unwrap_or(systemd), systemd] {
            // It may have ended.
            let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
        }
        let _ = self.child.wait();
        for tree in ["/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"] {
            remove(&Path::new(tree).join(&self.group));
        }
    }
}

/// A control group with all below it.
fn remove(group: &Path) {
    for below in fs::read_dir(group).into_iter().flatten().flatten() {
        if below.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&below.path());
        }
    }
    // It may be absent.
    let _ = fs::remove_dir(group);
}

fn died(systemd: &Systemd, unit: &str, number: usize) -> Value {
    let began = Instant::now();
    loop {
        let history = history(&systemd.path("data"));
        let all = of_kind(&history, "engine_died").map(|event| event["report"].clone());
        let mut its = all.filter(|report| report["who"]["unit"] == unit);
        if let Some(report) = its.nth(number) {
            return report;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "{unit}: {history:#?}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn real_services_are_reported_with_their_exit_codes_and_a_deferred_one_is_restarted() {
    if !enabled() {
        return;
    }
    let systemd = Systemd::start();
    assert!(systemd.ctl(&["start", "bare", "again", "held"]).0);
    let daemon = systemd.daemon();
    let began = Instant::now();
    while ["bare", "again", "held"]
        .iter()
        .any(|name| !daemon.get("/api/v1/engines").1.contains(name))
    {
        assert!(began.elapsed() < Duration::from_secs(20), "{}", daemon.log());
        std::thread::sleep(Duration::from_millis(100));
    }
    // They are queried a second later.
    std::thread::sleep(Duration::from_secs(3));
    systemd.kill("bare.service", Signal::KILL);
    let before = systemd.pid("again.service");
    systemd.kill("again.service", Signal::USR1);
    let report = died(&systemd, "bare.service", 0);
    assert_eq!(report["exit"]["code"], 137, "{report:#}");
    // systemd has restarted it within 100 ms.
    let report = died(&systemd, "again.service", 0);
    assert_eq!(report["exit"]["code"], 3, "{report:#}");
    assert_ne!(systemd.pid("again.service"), before);
    // The run that ended wrote that, and not the one after it.
    let lines = format!("process {before} starts");
    assert_eq!(report["last_lines"], json!([lines, "CUDA out of memory"]), "{report:#}");
    assert!(report["cause"].is_string(), "{report:#}");
    std::thread::sleep(Duration::from_secs(3));
    assert!(systemd.ctl(&["stop", "again.service"]).0);
    let report = died(&systemd, "again.service", 1);
    assert_eq!(
        (&report["killer"]["sender"], &report["is_failure"]),
        (&"systemctl".into(), &false.into())
    );
    // systemd would forget a unit that exits with 0 and that no target wants.
    let before = systemd.pid("held.service");
    systemd.kill("held.service", Signal::TERM);
    let report = died(&systemd, "held.service", 0);
    assert_eq!(report["exit"]["code"], 143, "{report:#}");
    assert_eq!(report["last_lines"], json!([format!("process {before} starts")]), "{report:#}");
    let began = Instant::now();
    while [0, before].contains(&systemd.pid("held.service")) {
        assert!(began.elapsed() < Duration::from_secs(20), "{}", daemon.log());
        std::thread::sleep(Duration::from_millis(100));
    }
    daemon.terminate();
}

fn clock() -> Moment {
    Moment { uptime: crate::engines::live::uptime(), utc: Timestamp::now() }
}

/// Waits until the unit of that user is in such a state.
fn until(watch: &DeferredWatch, what: &str, is_so: fn(&WorkloadState) -> bool) -> DeferredRestart {
    let began = Instant::now();
    let mut all = Vec::new();
    loop {
        watch.take(&mut all);
        for observation in &all {
            let Observation::Restarts(readings) = observation else { continue };
            if readings.supervisor == Supervisor::SystemdOfUser(0)
                && let Some(seen) = readings.deferred.first()
                && is_so(&seen.state)
            {
                return seen.clone();
            }
        }
        assert!(began.elapsed() < Duration::from_secs(20), "{what}: {all:#?}");
        all.clear();
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_unit_of_a_real_users_systemd_is_reported_and_started_at_its_private_socket() {
    if !enabled() {
        return;
    }
    let systemd = Systemd::start();
    assert!(systemd.ctl(&["start", "wanted"]).0);
    let root = EngineUser::Name("root".into());
    let declared = DeclaredRestart {
        matches: RestartMatch::UnitOfUser(root, "wanted.service".into()),
        need: StartNeed::default(),
        limits: RestartLimits::default(),
        mode: None,
    };
    let (none, user_folders) = (systemd.path("none"), systemd.path("users"));
    let watch = DeferredWatch::start(DeferredSetup {
        docker: none.clone(),
        systemd: Bus::Peer(none.clone()),
        user_folders: user_folders.clone(),
        adopted: none.clone(),
        declared: vec![declared],
        clock,
    });
    let watch = watch.unwrap();
    let is_running = |state: &WorkloadState| matches!(state, WorkloadState::Running { .. });
    until(&watch, "it runs", is_running);
    systemd.kill("wanted.service", Signal::USR1);
    let has_ended = |state: &WorkloadState| matches!(state, WorkloadState::Ended(_));
    let seen = until(&watch, "it has ended", has_ended);
    let WorkloadState::Ended(end) = &seen.state else { panic!() };
    assert_eq!((end.exit_code, end.requested), (Some(3), OnRequest::No));
    let action = Action::StartUnit { ended: end.mark.clone() };
    let target = Target::Workload(Box::new(seen.target.clone()));
    let decision = DecisionRecord { target, ..crate::actions::decision(action) };
    let mut executor =
        StartExecutor { docker: none.clone(), systemd: Bus::Peer(none), user_folders };
    let performed = executor.execute(&crate::actions::act(decision));
    assert_eq!(performed.result, OutcomeResult::Done);
    until(&watch, "it runs again", is_running);
    assert_ne!(systemd.pid("wanted.service"), 0);
    // A stop on request is known as such.
    assert!(systemd.ctl(&["stop", "wanted"]).0);
    let seen = until(
        &watch,
        "it was stopped",
        |state| matches!(state, WorkloadState::Ended(end) if end.requested == OnRequest::Yes),
    );
    assert_eq!(seen.obstacle, None);
}
