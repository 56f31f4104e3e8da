use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::*;
use crate::actions::Evictor;
use crate::model::{CacheKind, DecisionId, Moment, RuleId, Target};

const DROP: Action = Action::DropCaches { what: CacheKind::All, sync: false };

fn decision(mode: Mode, action: Action) -> Decision {
    Decision {
        id: DecisionId(7),
        at: Moment { uptime: Duration::from_secs(1), utc: Timestamp::UNIX_EPOCH },
        rule: RuleId { group: Arc::from("memory"), alert: Arc::from("CacheEatsReserve") },
        mode,
        verdict: Verdict::Act,
        step: 0,
        action,
        target: Target::Node,
        approved: None,
        because: Vec::new(),
    }
}

fn ready(procfs: &Path) -> Ready {
    let live = Live {
        procfs: procfs.to_owned(),
        sysfs: procfs.join("no sysfs"),
        evictor: Evictor::new(|| Duration::ZERO),
        docker: procfs.join("none"),
        systemd: crate::supervisors::systemd::Bus::system(),
    };
    let mut ready = Ready::new(live);
    ready.open();
    ready
}

#[test]
fn a_file_that_is_not_the_kernels_and_was_replaced_is_the_new_one() {
    let procfs = tempfile::tempdir().unwrap();
    let vm = procfs.path().join("sys/vm");
    fs::create_dir_all(&vm).unwrap();
    for name in ["drop_caches", "compact_memory"] {
        fs::write(vm.join(name), "").unwrap();
    }
    let mut ready = ready(procfs.path());
    for name in ["drop_caches", "compact_memory"] {
        fs::write(vm.join("new"), "").unwrap();
        fs::rename(vm.join("new"), vm.join(name)).unwrap();
    }
    let written = |name: &str| fs::read_to_string(vm.join(name)).unwrap();
    assert_eq!(ready.execute(&decision(Mode::Observe, DROP)), OutcomeResult::Skipped);
    assert_eq!(written("drop_caches"), "");
    assert_eq!(ready.execute(&decision(Mode::Enforce, DROP)), OutcomeResult::Done);
    assert_eq!((written("drop_caches").as_str(), written("compact_memory").as_str()), ("3", ""));
    let compact = decision(Mode::Enforce, Action::CompactMemory);
    assert_eq!(ready.execute(&compact), OutcomeResult::Done);
    assert_eq!(written("compact_memory"), "1");
}

#[test]
fn what_it_keeps_nothing_open_for_is_done_as_well() {
    let procfs = tempfile::tempdir().unwrap();
    let notify = decision(Mode::Enforce, Action::Notify { message: "low".into() });
    assert_eq!(ready(procfs.path()).execute(&notify), OutcomeResult::Done);
    let missing = ready(procfs.path()).execute(&decision(Mode::Enforce, DROP));
    assert!(matches!(missing, OutcomeResult::Failed(why) if why.contains("No such file")));
}
