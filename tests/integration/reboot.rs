//! Reboots with a fake logind, systemd and lock server, which refuse, hang and answer falsely. No
//! test can reboot anything: every service is fake, and sysrq is a file.

mod cordon;
mod drain;
mod fake_bus;
mod fake_lock;
mod logged_in;
mod loss;
mod program;
mod sentinel;
mod slot;
mod tls;
mod ways;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use umawarden::actions::{Executor as _, Performed, RebootExecutor};
use umawarden::model::{
    Action, DecisionRecord, OutcomeResult, RebootAct, RebootMeans, RebootOrder, RebootPlan,
    RebootWay,
};
use umawarden::supervisors::logind::Bus;

use fake_bus::FakeBus;

const BOOT: &str = "11111111-2222-3333-4444-555555555555";

/// Paths and services of a machine that could be rebooted, all of them fake.
struct Machine {
    folder: tempfile::TempDir,
    bus: FakeBus,
}

/// The result, and the remark that comes with it.
type Outcome = (OutcomeResult, Option<String>);

impl Machine {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("proc/sys/kernel/random")).unwrap();
        fs::write(folder.path().join("proc/sys/kernel/random/boot_id"), BOOT).unwrap();
        fs::write(folder.path().join("proc/sysrq-trigger"), "").unwrap();
        fs::write(folder.path().join("machine-id"), "1c09ca98649c4c7abc779cd04c96812e\n").unwrap();
        let bus = FakeBus::start(&folder.path().join("bus"));
        Self { folder, bus }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn rebooter(&self) -> RebootExecutor {
        let mut rebooter = RebootExecutor::new(&self.path("proc"), Bus::Peer(self.path("bus")));
        rebooter.utmp = self.path("utmp");
        rebooter.machine_id = self.path("machine-id");
        rebooter.sleep = |_| {};
        rebooter
    }

    fn perform(&self, act: RebootAct) -> Outcome {
        let mut rebooter = self.rebooter();
        let decision = decision(act);
        let Performed { result, effect } = rebooter.execute(&crate::actions::act(decision));
        (result, effect)
    }

    fn reboot(&self) -> Outcome {
        self.perform(RebootAct::Perform(order()))
    }
}

fn order() -> RebootOrder {
    let plan = RebootPlan { why: "33 GiB are leaked".to_owned(), ..RebootPlan::default() };
    RebootOrder { boot_id: BOOT.into(), how: RebootMeans::Way(RebootWay::Logind), plan }
}

fn decision(act: RebootAct) -> DecisionRecord {
    crate::actions::decision(Action::Reboot(Box::new(act)))
}

fn not_done(outcome: &Outcome) -> &str {
    match &outcome.0 {
        OutcomeResult::NotDone(why) => why,
        other => panic!("{other:?}"),
    }
}

fn failed(outcome: &Outcome) -> &str {
    match &outcome.0 {
        OutcomeResult::Failed(why) => why,
        other => panic!("{other:?}"),
    }
}

/// Fails unless it is done within that time.
fn within<T>(time: Duration, work: impl FnOnce() -> T) -> T {
    let began = std::time::Instant::now();
    let done = work();
    assert!(began.elapsed() < time, "it took {:?}", began.elapsed());
    done
}
