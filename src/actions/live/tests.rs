use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tempfile::TempDir;

use super::*;
use crate::actions::DryRun;
use crate::model::{CacheKind, DecisionId, HoldReason, Moment, RuleId, Target};

const DROP: Action = Action::DropCaches { what: CacheKind::PageCache, sync: false };
const DROP_ALL: Action = Action::DropCaches { what: CacheKind::All, sync: true };

fn decision(action: Action) -> Decision {
    Decision {
        id: DecisionId(7),
        at: Moment { uptime: Duration::from_secs(1), utc: Timestamp::UNIX_EPOCH },
        rule: RuleId { group: Arc::from("memory"), alert: Arc::from("CacheEatsReserve") },
        mode: Mode::Enforce,
        verdict: Verdict::Act,
        step: 0,
        action,
        target: Target::Node,
        approved: None,
        because: Vec::new(),
    }
}

fn procfs() -> TempDir {
    let procfs = TempDir::new().unwrap();
    fs::create_dir_all(procfs.path().join("sys/vm")).unwrap();
    fs::write(procfs.path().join("sys/vm/drop_caches"), "").unwrap();
    fs::write(procfs.path().join("sys/vm/compact_memory"), "").unwrap();
    procfs
}

fn live(procfs: &Path) -> Live {
    Live {
        procfs: procfs.to_owned(),
        sysfs: procfs.join("no sysfs"),
        evictor: Evictor::new(|| Duration::ZERO),
        docker: procfs.join("none"),
        systemd: Bus::system(),
    }
}

fn written(procfs: &Path, name: &str) -> String {
    fs::read_to_string(procfs.join("sys/vm").join(name)).unwrap()
}

#[test]
fn each_action_writes_its_value_to_its_file_only() {
    for (action, drop_caches, compact_memory) in
        [(DROP, "1", ""), (DROP_ALL, "3", ""), (Action::CompactMemory, "", "1")]
    {
        let procfs = procfs();
        assert_eq!(live(procfs.path()).execute(&decision(action)), OutcomeResult::Done);
        assert_eq!(written(procfs.path(), "drop_caches"), drop_caches);
        assert_eq!(written(procfs.path(), "compact_memory"), compact_memory);
    }
}

#[test]
fn observed_and_held_decisions_open_nothing() {
    // A directory in the files' place: opening it for writing would fail and be told.
    let procfs = TempDir::new().unwrap();
    fs::create_dir_all(procfs.path().join("sys/vm/drop_caches")).unwrap();
    let observed = Decision { mode: Mode::Observe, ..decision(DROP) };
    let held = Decision { verdict: Verdict::Hold(HoldReason::Busy), ..decision(DROP) };
    assert_eq!(live(procfs.path()).execute(&observed), OutcomeResult::Skipped);
    assert_eq!(live(procfs.path()).execute(&held), OutcomeResult::Skipped);
    assert_eq!(DryRun.execute(&decision(DROP)), OutcomeResult::Skipped);
    let acted = live(procfs.path()).execute(&decision(DROP));
    assert!(matches!(acted, OutcomeResult::Failed(text) if text.contains("os error 21")));
}

#[test]
fn a_missing_file_is_named_and_not_created() {
    let procfs = TempDir::new().unwrap();
    fs::create_dir_all(procfs.path().join("sys/vm")).unwrap();
    let result = live(procfs.path()).execute(&decision(Action::CompactMemory));
    let file = procfs.path().join("sys/vm/compact_memory");
    let OutcomeResult::Failed(text) = result else { panic!("{result:?}") };
    assert!(text.starts_with(&format!("writing 1 to {} failed: No such file", file.display())));
    assert!(text.contains("(os error 2)") && text.contains("CONFIG_COMPACTION"), "{text}");
    assert!(!file.exists());
}

#[test]
fn notify_touches_no_file() {
    let procfs = TempDir::new().unwrap();
    let notify = Action::Notify { message: "low\nmemory".into() };
    assert_eq!(live(procfs.path()).execute(&decision(notify)), OutcomeResult::Done);
    assert_eq!(fs::read_dir(procfs.path()).unwrap().count(), 0);
}

#[test]
fn a_denied_write_says_who_may() {
    if rustix::process::geteuid().is_root() {
        eprintln!("skipped: root may write everything; the integration test drops to nobody");
        return;
    }
    let procfs = procfs();
    let file = procfs.path().join("sys/vm/drop_caches");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o400)).unwrap();
    let result = live(procfs.path()).execute(&decision(DROP));
    assert!(matches!(result, OutcomeResult::Failed(text) if text.contains("uid 0 of the host")));
}
