use std::fs;
use std::sync::Arc;

use super::*;
use crate::model::Sysctl;

fn change(log: &mut UndoLog, setting: Sysctl) -> SettingChange {
    SettingChange {
        number: log.next_number(),
        setting: Setting::Sysctl(setting),
        old: "60".to_owned(),
        new: "10".to_owned(),
        boot_id: "boot".to_owned(),
        decision: DecisionId(7),
        rule: RuleId { group: Arc::from("g"), alert: Arc::from("A") },
        at: Timestamp::UNIX_EPOCH,
        until: Timestamp::UNIX_EPOCH,
    }
}

fn reopened(folder: &Path) -> LoggedChanges {
    UndoLog::open(folder).unwrap().1
}

/// A log in which the first of two changes is undone; returns the second.
fn with_one_open(folder: &Path) -> SettingChange {
    let (mut log, found) = UndoLog::open(folder).unwrap();
    assert_eq!(found, LoggedChanges::default());
    let changes = [change(&mut log, Sysctl::Swappiness), change(&mut log, Sysctl::DirtyRatio)];
    log.begin(&changes).unwrap();
    let at = Timestamp::UNIX_EPOCH;
    log.end(changes[0].number, Some(UndoResult::Restored), Some("10".to_owned()), at).unwrap();
    changes[1].clone()
}

#[test]
fn open_changes_are_found_again_and_numbering_continues() {
    let folder = tempfile::tempdir().unwrap();
    let open = with_one_open(folder.path());
    assert_eq!(reopened(folder.path()).open, std::slice::from_ref(&open));
    let (mut log, _) = UndoLog::open(folder.path()).unwrap();
    assert_eq!(log.next_number(), open.number + 1);
}

#[test]
fn a_log_torn_anywhere_keeps_its_complete_entries_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    with_one_open(folder.path());
    let path = folder.path().join(FILE_NAME);
    let whole = fs::read(&path).unwrap();
    let ends: Vec<usize> =
        (0..whole.len()).filter(|at| whole[*at] == b'\n').map(|at| at + 1).collect();
    for length in 0..whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        let lines = ends.iter().filter(|end| **end <= length).count();
        let (mut log, found) = UndoLog::open(folder.path()).unwrap();
        let open = [0, 0, 1, 2, 1][lines];
        assert_eq!((found.open.len(), found.damaged.len()), (open, 0), "{length} bytes");
        let more = change(&mut log, Sysctl::VfsCachePressure);
        log.begin(std::slice::from_ref(&more)).unwrap();
        drop(log);
        let found = reopened(folder.path());
        assert_eq!((found.open.last(), found.torn_bytes), (Some(&more), 0), "{length} bytes");
        assert_eq!(found.open.len(), open + 1);
    }
}

#[test]
fn zeros_and_garbage_at_the_end_are_cut() {
    let folder = tempfile::tempdir().unwrap();
    let open = with_one_open(folder.path());
    let path = folder.path().join(FILE_NAME);
    let whole = fs::read(&path).unwrap();
    for garbage in [&b"\0\0\0\0\0"[..], b"00000000 {}\n", b"\xff\xfe\n\n", b"zzzzzzzz x"] {
        fs::write(&path, [&whole, garbage].concat()).unwrap();
        let found = reopened(folder.path());
        assert_eq!(found.open, std::slice::from_ref(&open));
        assert_eq!(found.torn_bytes, garbage.len() as u64);
        assert_eq!(fs::read(&path).unwrap(), whole);
    }
}

#[test]
fn a_damaged_line_is_reported_and_alone_lost() {
    let folder = tempfile::tempdir().unwrap();
    let open = with_one_open(folder.path());
    let path = folder.path().join(FILE_NAME);
    let text = fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let damaged = lines[1].replace("swappiness", "swappinest");
    fs::write(&path, format!("{}\n{damaged}\n{}\n{}\n", lines[0], lines[2], lines[3])).unwrap();
    let found = reopened(folder.path());
    assert_eq!((found.open, found.damaged), (vec![open], vec![2]));
}

#[test]
fn a_log_of_a_newer_version_is_neither_read_nor_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(FILE_NAME);
    for foreign in ["umawarden undo log 2\n", "PK\x03\x04", "umawarden undo logs"] {
        fs::write(&path, foreign).unwrap();
        assert!(matches!(UndoLog::open(folder.path()), Err(UndoLogError::Foreign(_))));
        assert_eq!(fs::read_to_string(&path).unwrap(), foreign);
    }
}

#[test]
fn only_one_process_opens_the_undo_log() {
    let folder = tempfile::tempdir().unwrap();
    let (log, _) = UndoLog::open(folder.path()).unwrap();
    assert!(matches!(UndoLog::open(folder.path()), Err(UndoLogError::InUse(_))));
    // As a process that is being started has one.
    let _copy = log.file.try_clone().unwrap();
    drop(log);
    UndoLog::open(folder.path()).unwrap();
}

#[test]
fn the_undo_log_is_emptied_when_large() {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, _) = UndoLog::open(folder.path()).unwrap();
    while log.length < EMPTIED_FROM_BYTES {
        let change = change(&mut log, Sysctl::Swappiness);
        log.begin(std::slice::from_ref(&change)).unwrap();
        log.end(change.number, Some(UndoResult::Restored), None, Timestamp::UNIX_EPOCH).unwrap();
    }
    log.tidy().unwrap();
    let path = folder.path().join(FILE_NAME);
    assert_eq!(fs::read(&path).unwrap(), HEADER);
    let change = change(&mut log, Sysctl::Swappiness);
    log.begin(std::slice::from_ref(&change)).unwrap();
    drop(log);
    assert_eq!(reopened(folder.path()).open, [change]);
}
