use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tempfile::TempDir;

use super::*;
use crate::actions::TemporarySetup;
use crate::actions::tests::act;
use crate::model::{CacheKind, Moment};

const DROP: Action = Action::DropCaches { what: CacheKind::PageCache, sync: false };
const DROP_ALL: Action = Action::DropCaches { what: CacheKind::All, sync: true };

fn procfs() -> TempDir {
    let procfs = TempDir::new().unwrap();
    fs::create_dir_all(procfs.path().join("sys/vm")).unwrap();
    fs::write(procfs.path().join("sys/vm/drop_caches"), "").unwrap();
    fs::write(procfs.path().join("sys/vm/compact_memory"), "").unwrap();
    procfs
}

fn executor(procfs: &Path) -> MemoryExecutor {
    let clock = || Moment { uptime: Duration::ZERO, utc: Timestamp::UNIX_EPOCH };
    MemoryExecutor::new(MemorySetup {
        procfs: procfs.to_owned(),
        sysfs: procfs.join("no sysfs"),
        evictor: Evictor::new(|| Duration::ZERO),
        temporary: TemporarySettings::new(TemporarySetup {
            procfs: procfs.to_owned(),
            sysfs: procfs.join("no sysfs"),
            storage: procfs.join("no storage"),
            boot_id: None,
            clock,
            report: Box::new(|_| {}),
            tally: Arc::default(),
        }),
        emptier: CacheEmptier {
            procfs: procfs.to_owned(),
            uptime: || Duration::ZERO,
            sleep: |_| {},
            tally: Arc::default(),
        },
    })
}

fn perform(procfs: &Path, action: Action) -> OutcomeResult {
    executor(procfs).execute(&act(1, action)).result
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
        assert_eq!(perform(procfs.path(), action), OutcomeResult::Done);
        assert_eq!(written(procfs.path(), "drop_caches"), drop_caches);
        assert_eq!(written(procfs.path(), "compact_memory"), compact_memory);
    }
}

#[test]
fn a_directory_instead_of_a_file_is_reported() {
    let procfs = TempDir::new().unwrap();
    fs::create_dir_all(procfs.path().join("sys/vm/drop_caches")).unwrap();
    let acted = perform(procfs.path(), DROP);
    assert!(matches!(acted, OutcomeResult::Failed(text) if text.contains("os error 21")));
}

#[test]
fn a_replaced_file_outside_procfs_is_reopened() {
    let procfs = procfs();
    let vm = procfs.path().join("sys/vm");
    let mut executor = executor(procfs.path());
    executor.open();
    for name in ["drop_caches", "compact_memory"] {
        fs::write(vm.join("new"), "").unwrap();
        fs::rename(vm.join("new"), vm.join(name)).unwrap();
    }
    let written = |name: &str| fs::read_to_string(vm.join(name)).unwrap();
    assert_eq!(executor.execute(&act(1, DROP_ALL)), OutcomeResult::Done.into());
    assert_eq!((written("drop_caches").as_str(), written("compact_memory").as_str()), ("3", ""));
    assert_eq!(executor.execute(&act(2, Action::CompactMemory)), OutcomeResult::Done.into());
    assert_eq!(written("compact_memory"), "1");
}

#[test]
fn an_action_of_another_lane_is_not_done() {
    let procfs = procfs();
    let start = Action::StartUnit { ended: Arc::from("1") };
    let refused = perform(procfs.path(), start);
    assert!(matches!(refused, OutcomeResult::NotDone(why) if why.contains("another lane")));
}

#[test]
fn a_missing_file_is_named_and_not_created() {
    let procfs = TempDir::new().unwrap();
    fs::create_dir_all(procfs.path().join("sys/vm")).unwrap();
    let result = perform(procfs.path(), Action::CompactMemory);
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
    assert_eq!(perform(procfs.path(), notify), OutcomeResult::Done);
    assert_eq!(fs::read_dir(procfs.path()).unwrap().count(), 0);
}

#[test]
fn a_denied_write_names_the_required_user() {
    if rustix::process::geteuid().is_root() {
        eprintln!("skipped: root may write everything; the integration test drops to nobody");
        return;
    }
    let procfs = procfs();
    let file = procfs.path().join("sys/vm/drop_caches");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o400)).unwrap();
    let result = perform(procfs.path(), DROP);
    assert!(matches!(result, OutcomeResult::Failed(text) if text.contains("uid 0 of the host")));
}
