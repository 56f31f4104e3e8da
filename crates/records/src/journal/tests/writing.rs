//! Writing, resuming, bounds, formats and damage.

use std::collections::BTreeSet;

use rusqlite::Connection;

use super::super::file::{self, DatabaseFailure};
use super::super::queue::{MOST_BYTES, MOST_ENTRIES};
use super::super::{FILE_NAME, JournalError, JournalReader, ResumePoint};
use super::*;

fn events_in(dir: &std::path::Path) -> Vec<u64> {
    let query = super::super::EventQuery {
        order: super::super::Order::OldestFirst,
        limit: 1_000_000,
        ..Default::default()
    };
    let page = JournalReader::open(dir).unwrap().events(&query).unwrap();
    page.rows.iter().filter_map(|row| row.event.seq).collect()
}

fn value(journal: &Journal, position: usize) -> f64 {
    journal.readings().values[position].value().unwrap()
}

#[test]
fn a_repeated_record_is_stored_once() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    journal.record(&log(vec![event(1), event(2)], 3));
    journal.record(&log(vec![event(2), event(3), event(3)], 4));
    journal.close(PATIENCE).unwrap();
    assert_eq!(events_in(dir.path()), [1, 2, 3]);
}

#[test]
fn a_restart_goes_on_where_the_last_one_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    assert_eq!(journal.resume_point(BOOT, PATIENCE), Ok(None));
    assert_eq!(journal.last_boot_id(PATIENCE), Ok(None));
    // An OOM trace that began at 7 is not finished; event 9 is within it.
    journal.record(&log(vec![event(5), event(9)], 7));
    journal.close(PATIENCE).unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    let expected = ResumePoint {
        resume_seq: 7,
        known: BTreeSet::from([9]),
        last_events: BTreeMap::from([("nv_no_memory".to_owned(), moment(9).utc)]),
    };
    assert_eq!(journal.resume_point(BOOT, PATIENCE), Ok(Some(expected)));
    assert_eq!(journal.resume_point("another boot", PATIENCE), Ok(None));
    assert_eq!(journal.last_boot_id(PATIENCE), Ok(Some(BOOT.to_owned())));
}

#[test]
fn sequence_numbers_beyond_the_databases_own_keep_their_order() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    let (half, top) = (1 << 63, u64::MAX);
    journal.record(&log(vec![event(1), event(half), event(top)], half - 1));
    let known = |journal: &Journal| journal.resume_point(BOOT, PATIENCE).unwrap().unwrap().known;
    settle(&journal);
    assert_eq!(known(&journal), BTreeSet::from([half, top]));
    journal.record(&log(vec![event(2)], top));
    assert_eq!(known(&journal), BTreeSet::from([top]));
}

#[test]
fn events_without_a_number_are_all_kept() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    let unnumbered = Event { utc: None, seq: None, ..event(1) };
    journal.record(&log(vec![unnumbered.clone(), unnumbered], 0));
    journal.close(PATIENCE).unwrap();
    let page = JournalReader::open(dir.path())
        .unwrap()
        .events(&super::super::EventQuery { limit: 9, ..Default::default() })
        .unwrap();
    assert_eq!(page.rows.len(), 2);
}

#[test]
fn events_without_a_log_record_are_stored_once_a_boot() {
    let dir = tempfile::tempdir().unwrap();
    let actual = |boot: &str, seconds: i64| JournalEntry::Event {
        boot_id: Arc::from(boot),
        event: Event { utc: Some(moment(seconds).utc), seq: None, kind: unclean_boot().into() },
    };
    let journal = Journal::open(dir.path(), KEEP_ALL);
    journal.record(&log(vec![event(1)], 2));
    journal.record(&actual(BOOT, 1));
    journal.close(PATIENCE).unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    journal.record(&actual(BOOT, 5));
    journal.record(&actual("another", 9));
    assert_eq!(journal.resume_point(BOOT, PATIENCE).unwrap().unwrap().resume_seq, 2);
    journal.close(PATIENCE).unwrap();
    let query = super::super::EventQuery { limit: 9, ..Default::default() };
    let page = JournalReader::open(dir.path()).unwrap().events(&query).unwrap();
    let utc = |row: &super::super::StoredEvent| row.event.utc.unwrap();
    let found: Vec<_> =
        page.rows.iter().filter(|row| row.event.kind == unclean_boot().into()).map(utc).collect();
    assert_eq!(page.rows.len(), 3);
    assert_eq!(found, [moment(9).utc, moment(1).utc], "the newest first");
}

#[test]
fn decision_ids_continue_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let now = moment(0).utc;
    let journal = Journal::open(dir.path(), KEEP_ALL);
    assert_eq!(journal.next_decision_id(now, PATIENCE), DecisionId(1));
    journal.intent(&decision(1), PATIENCE).unwrap();
    journal.record(&JournalEntry::Decision(decision(2)));
    journal.close(PATIENCE).unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    assert_eq!(journal.next_decision_id(now, PATIENCE), DecisionId(3));
}

#[test]
fn decision_ids_begin_at_the_time_without_a_journal() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), "").unwrap();
    let journal = Journal::open(&dir.path().join("file/below"), KEEP_ALL);
    let now = moment(0).utc;
    assert_eq!(journal.next_decision_id(now, PATIENCE), DecisionId(1_700_000_000_000));
}

#[test]
fn an_intent_is_stored_when_it_returns_and_may_be_repeated() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    journal.intent(&decision(8), PATIENCE).unwrap();
    journal.intent(&decision(8), PATIENCE).unwrap();
    let connection = Connection::open(dir.path().join(FILE_NAME)).unwrap();
    let count: i64 =
        connection.query_row("SELECT count(*) FROM decisions", [], |row| row.get(0)).unwrap();
    assert_eq!(count, 1);
}

#[test]
fn another_decision_of_the_same_number_is_refused_and_takes_nothing_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    journal.intent(&decision(8), PATIENCE).unwrap();
    journal.record(&log(vec![event(1)], 2));
    let error = journal.intent(&DecisionRecord { step: 7, ..decision(8) }, PATIENCE).unwrap_err();
    assert!(matches!(&error, JournalError::Refused(why) if why.contains("decision 8")), "{error}");
    journal.intent(&decision(9), PATIENCE).unwrap();
    assert_eq!(events_in(dir.path()), [1]);
    assert_eq!(value(&journal, 2), 1.0);
}

#[test]
fn an_unstorable_entry_does_not_keep_the_journal_down() {
    let dir = tempfile::tempdir().unwrap();
    let obstacle = dir.path().join("state");
    std::fs::write(&obstacle, "").unwrap();
    let journal = Journal::open(&obstacle, KEEP_ALL);
    let impossible = DecisionRecord { id: DecisionId(u64::MAX), ..decision(2) };
    journal.intent(&impossible, PATIENCE).unwrap_err();
    std::fs::remove_file(&obstacle).unwrap();
    settle(&journal);
    assert_eq!((value(&journal, 0), value(&journal, 2)), (1.0, 1.0));
}

#[test]
fn one_entry_with_a_future_time_does_not_age_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    for round in 0..2 {
        for number in 0..1_000 {
            let ahead = round == 1 && number == 999;
            journal.record(&JournalEntry::Note(note(if ahead { 10_000_000_000 } else { number })));
        }
        settle(&journal);
    }
    // Old entries are searched in these steps.
    (0..20).for_each(|_| settle(&journal));
    journal.close(PATIENCE).unwrap();
    let page = JournalReader::open(dir.path()).unwrap();
    let page = page.notes(super::super::Order::OldestFirst, 9_999).unwrap();
    assert_eq!(page.rows.len(), 2_000);
}

#[test]
fn a_position_alone_is_stored_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    for seq in 0..100_000 {
        journal.record(&log(Vec::new(), seq));
    }
    journal.close(PATIENCE).unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    assert_eq!(journal.resume_point(BOOT, PATIENCE).unwrap().unwrap().resume_seq, 99_999);
    assert_eq!(value(&journal, 2), 0.0);
}

#[test]
fn a_failure_to_create_the_directory_is_reported_and_only_the_newest_entries_wait() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), "").unwrap();
    let journal = Journal::open(&dir.path().join("file/below"), KEEP_ALL);
    let error = journal.intent(&decision(1), PATIENCE).unwrap_err();
    assert!(matches!(&error, JournalError::Down(why) if why.contains("file/below")), "{error}");
    for seq in 0..10_000 {
        journal.record(&log(vec![event(seq)], seq + 1));
    }
    let readings = journal.readings();
    assert_eq!(readings.values[0], Reading::Value(0.0));
    assert!(readings.error.unwrap().contains("file/below"));
    let waiting = journal.queue.len();
    assert!(waiting <= MOST_ENTRIES && waiting > 1_000, "{waiting}");
    // The 10,000 events and the decision are dropped or waiting, each of them once.
    assert_eq!(journal.queue.dropped(), 10_001 - waiting as u64);
    assert!(journal.queue.len() * event_bytes() <= MOST_BYTES);
    assert_eq!(journal.close(PATIENCE), Err(JournalError::Dropped));
}

fn event_bytes() -> usize {
    serde_json::to_string(&event(1)).unwrap().len()
}

#[test]
fn entries_recorded_while_the_journal_is_down_are_written_when_it_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let obstacle = dir.path().join("state");
    std::fs::write(&obstacle, "").unwrap();
    let journal = Journal::open(&obstacle, KEEP_ALL);
    journal.record(&log(vec![event(1)], 2));
    journal.intent(&decision(2), PATIENCE).unwrap_err();
    std::fs::remove_file(&obstacle).unwrap();
    journal.intent(&decision(4), PATIENCE).unwrap();
    assert_eq!(events_in(&obstacle), [1]);
    assert_eq!(journal.next_decision_id(moment(0).utc, PATIENCE), DecisionId(5));
    assert_eq!(value(&journal, 0), 1.0);
    assert_eq!(value(&journal, 2), 0.0);
}

#[test]
fn a_second_journal_reports_the_lock_holder_and_takes_over() {
    let dir = tempfile::tempdir().unwrap();
    let first = Journal::open(dir.path(), KEEP_ALL);
    first.intent(&decision(2), PATIENCE).unwrap();
    let second = Journal::open(dir.path(), KEEP_ALL);
    let error = second.intent(&decision(4), PATIENCE).unwrap_err();
    let holder = format!("held by process {}", std::process::id());
    assert!(error.to_string().contains(&holder), "{error}");
    first.close(PATIENCE).unwrap();
    second.intent(&decision(6), PATIENCE).unwrap();
}

#[test]
fn a_damaged_file_is_set_aside_and_a_new_one_created() {
    let dir = tempfile::tempdir().unwrap();
    let rubbish = [0x5a_u8; 8_192];
    std::fs::write(dir.path().join(FILE_NAME), rubbish).unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    journal.intent(&decision(2), PATIENCE).unwrap();
    let kept = dir.path().join(format!("{FILE_NAME}.damaged-1"));
    assert_eq!(std::fs::read(kept).unwrap(), rubbish);
}

#[test]
fn damage_detected_by_a_write_loses_no_entry() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    for seq in 0..300 {
        journal.record(&log(vec![event(seq)], seq + 1));
    }
    journal.close(PATIENCE).unwrap();
    let path = dir.path().join(FILE_NAME);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[4_096 * 2..].fill(0x5a);
    std::fs::write(&path, bytes).unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    for seq in 1_000..1_010 {
        journal.record(&log(vec![event(seq)], seq + 1));
    }
    journal.close(PATIENCE).unwrap();
    assert_eq!(events_in(dir.path()), Vec::from_iter(1_000..1_010));
    assert!(dir.path().join(format!("{FILE_NAME}.damaged-1")).exists());
}

#[test]
fn a_disk_that_damages_every_journal_does_not_fill_up() {
    let dir = tempfile::tempdir().unwrap();
    let mut kept = 0;
    loop {
        std::fs::write(dir.path().join(FILE_NAME), "x").unwrap();
        match file::set_aside(dir.path()) {
            Ok(_) => kept += 1,
            Err(DatabaseFailure::Later(why)) => {
                assert!(why.contains("move them away"), "{why}");
                break;
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    assert_eq!(kept, 8);
}

#[test]
fn another_programs_database_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE_NAME);
    let other = Connection::open(&path).unwrap();
    // Its way to give space back is a setting that any connection could change.
    let theirs =
        "PRAGMA auto_vacuum = FULL; CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1)";
    other.execute_batch(theirs).unwrap();
    drop(other);
    let before = std::fs::read(&path).unwrap();
    let error = Journal::open(dir.path(), KEEP_ALL).intent(&decision(2), PATIENCE).unwrap_err();
    assert!(error.to_string().contains("another program's database"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[test]
fn a_newer_format_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    Journal::open(dir.path(), KEEP_ALL).close(PATIENCE).unwrap();
    let path = dir.path().join(FILE_NAME);
    let change = |statements: &str| {
        Connection::open(&path).unwrap().execute_batch(statements).unwrap();
        let before = std::fs::read(&path).unwrap();
        let journal = Journal::open(dir.path(), KEEP_ALL);
        let written = journal.intent(&decision(2), PATIENCE).unwrap_err().to_string();
        // It ends with an entry that it could not write. The next one needs its lock.
        let _ = journal.close(PATIENCE);
        let read = JournalReader::open(dir.path()).unwrap_err().to_string();
        assert_eq!(std::fs::read(&path).unwrap(), before, "{written}");
        assert!(written.contains(&read), "{written}: {read}");
        read
    };
    let writer =
        |name: &str| format!("UPDATE meta SET value = '{name}' WHERE key = 'format_written_by'");
    let error = change(&format!("PRAGMA user_version = 99; {}", writer("umawarden 9.8.7")));
    assert!(error.contains("has format 99"), "{error}");
    assert!(error.contains("use umawarden 9.8.7, which wrote it"), "{error}");
    let error = change(&writer("a\nline"));
    assert!(error.contains("use the newer umawarden, which wrote it"), "{error}");
    let error = change("DROP TABLE meta");
    assert!(error.contains("use the newer umawarden, which wrote it"), "{error}");
}

#[test]
fn an_older_format_is_upgraded_step_by_step() {
    let mut connection = Connection::open_in_memory().unwrap();
    let path = std::path::Path::new("memory");
    let newest = ["ALTER TABLE notes ADD COLUMN second", "ALTER TABLE notes ADD COLUMN third"];
    let formats = [file::FORMATS[0], newest[0], newest[1]];
    file::bring_to_format(&mut connection, path, &formats[..1]).unwrap();
    connection.execute_batch("INSERT INTO notes (utc_ms, json) VALUES (1, '{}')").unwrap();
    file::bring_to_format(&mut connection, path, &formats).unwrap();
    file::bring_to_format(&mut connection, path, &formats).unwrap();
    let (kept, format): (i64, i64) = connection
        .query_row(
            "SELECT (SELECT count(*) FROM notes WHERE second IS NULL AND third IS NULL),
             (SELECT value FROM meta WHERE key = 'format')",
            [],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .unwrap();
    assert_eq!((kept, format), (1, 3));
    let broken = [formats[0], formats[1], formats[2], "CREATE TABLE extra (x); NONSENSE"];
    file::bring_to_format(&mut connection, path, &broken).unwrap_err();
    let extra: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_schema WHERE name = 'extra'", [], |row| row.get(0))
        .unwrap();
    assert_eq!(extra, 0, "a step that fails leaves nothing behind");
}

#[test]
fn an_oversized_journal_loses_its_oldest_entries_and_shrinks_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    for id in 1..=6_000_u64 {
        journal.record(&log(vec![event(id)], id + 1));
        if id.is_multiple_of(500) {
            settle(&journal);
        }
    }
    journal.intent(&decision(6_000), PATIENCE).unwrap();
    journal.close(PATIENCE).unwrap();
    let path = dir.path().join(FILE_NAME);
    let large = std::fs::metadata(&path).unwrap().len();

    let small = Retention { max_bytes: 512 << 10, ..KEEP_ALL };
    let journal = Journal::open(dir.path(), small);
    for id in 6_001..=8_000 {
        journal.record(&log(vec![event(id)], id + 1));
    }
    // Each question lets the writer do one step more.
    let shrunk = |_: &i32| {
        settle(&journal);
        std::fs::metadata(&path).unwrap().len() <= 512 << 10
    };
    assert!((0..10_000).find(shrunk).is_some(), "{large} bytes before");
    assert_eq!(journal.next_decision_id(moment(0).utc, PATIENCE), DecisionId(6_001));
    let resume = journal.resume_point(BOOT, PATIENCE).unwrap().unwrap();
    assert_eq!(resume.resume_seq, 8_001);
    journal.close(PATIENCE).unwrap();
    let left = events_in(dir.path());
    assert_eq!(left.last(), Some(&8_000));
    assert_eq!(left, Vec::from_iter(8_001 - left.len() as u64..=8_000), "the oldest went");
    assert!(left.len() > 300, "{}", left.len());
}

#[test]
fn the_last_event_times_of_a_boot_outlive_its_events() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    let fatal = |seq: u64| Event { kind: KernelEvent::UvmFatal.into(), ..event(seq) };
    journal.record(&log(vec![fatal(100), event(90), event(70), event(80)], 101));
    let other = Event { utc: Some(moment(5_000).utc), ..fatal(1) };
    journal.record(&JournalEntry::KernelLog {
        boot_id: "other".into(),
        events: vec![other],
        resume_seq: 2,
    });
    journal.close(PATIENCE).unwrap();
    let mut connection = file::open(dir.path()).unwrap();
    let retention = Retention { max_age: Duration::from_secs(500), ..KEEP_ALL };
    let from = Some(moment(9_000).utc_ms());
    while super::super::retention::step(&mut connection, retention, from).unwrap() {}
    drop(connection);
    assert!(events_in(dir.path()).is_empty());
    let journal = Journal::open(dir.path(), KEEP_ALL);
    let resume = journal.resume_point(BOOT, PATIENCE).unwrap().unwrap();
    let expected = [("nv_no_memory", 90), ("uvm_fatal", 100)];
    let expected = expected.map(|(kind, seconds)| (kind.to_owned(), moment(seconds).utc));
    assert_eq!(resume.last_events, expected.into());
    journal.close(PATIENCE).unwrap();
}

#[test]
fn age_deletes_decisions_with_their_outcomes() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    for id in [100, 900] {
        journal.record(&JournalEntry::Decision(decision(id)));
        journal.record(&JournalEntry::Outcome(outcome(id)));
        journal.record(&JournalEntry::AimCheck(aim_check(id)));
        journal.record(&JournalEntry::Alert(alert(id.cast_signed())));
        journal.record(&JournalEntry::Note(note(id.cast_signed())));
    }
    journal.close(PATIENCE).unwrap();
    let mut connection = file::open(dir.path()).unwrap();
    let retention = Retention { max_age: Duration::from_secs(500), ..KEEP_ALL };
    let from = Some(moment(1_000).utc_ms());
    while super::super::retention::step(&mut connection, retention, from).unwrap() {}
    for table in ["decisions", "outcomes", "aim_checks", "alerts", "notes"] {
        let times: Vec<i64> = connection
            .prepare(&format!("SELECT utc_ms FROM {table}"))
            .unwrap()
            .query_map([], |row| row.get(0))
            .unwrap()
            .collect::<Result<_, _>>()
            .unwrap();
        assert_eq!(times, [moment(900).utc_ms()], "{table}");
    }
}

/// The counter of lost journals.
fn losses(journal: &Journal) -> f64 {
    let readings = journal.readings();
    let series = &readings.schema.series;
    let position = series.iter().position(|key| &*key.name == "uma_journal_lost_total").unwrap();
    readings.values[position].value().unwrap()
}

fn is_newly_lost(dir: &std::path::Path) -> bool {
    JournalReader::open(dir).unwrap().reboots(Some(BOOT)).unwrap().is_newly_lost
}

#[test]
fn a_journal_replaced_while_open_is_continued_and_counts_as_lost() {
    let [dir, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    // Another one, and an older copy of its own.
    for is_copy in [false, true] {
        for dir in [&dir, &other] {
            let journal = Journal::open(dir.path(), KEEP_ALL);
            journal.intent(&decision(2), PATIENCE).unwrap();
            journal.close(PATIENCE).unwrap();
        }
        let source = if is_copy { &dir } else { &other };
        let copy = dir.path().join("copy");
        std::fs::copy(source.path().join(FILE_NAME), &copy).unwrap();
        let journal = Journal::open(dir.path(), KEEP_ALL);
        journal.intent(&decision(4), PATIENCE).unwrap();
        assert_eq!(losses(&journal), 0.0);
        std::fs::rename(&copy, dir.path().join(FILE_NAME)).unwrap();
        journal.intent(&decision(6), PATIENCE).unwrap();
        assert_eq!(losses(&journal), 1.0);
        journal.close(PATIENCE).unwrap();
        assert!(is_newly_lost(dir.path()));
        let query = super::super::DecisionQuery { limit: 10, ..Default::default() };
        let page = JournalReader::open(dir.path()).unwrap().decisions(&query).unwrap();
        assert!(page.rows.iter().any(|row| row.decision == decision(6)), "it is in the new one");
        std::fs::remove_file(dir.path().join(FILE_NAME)).unwrap();
    }
}

#[test]
fn a_journal_restored_unchanged_is_not_lost_and_an_older_copy_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE_NAME);
    let journal = Journal::open(dir.path(), KEEP_ALL);
    journal.intent(&decision(2), PATIENCE).unwrap();
    journal.close(PATIENCE).unwrap();
    let old = std::fs::read(&path).unwrap();
    for (comes_back, expected) in [(None, 0.0), (Some(&old), 1.0)] {
        let journal = Journal::open(dir.path(), KEEP_ALL);
        journal.intent(&decision(4), PATIENCE).unwrap();
        // It cannot be opened for a while: a folder is in its place.
        let extra = dir.path().join("extra");
        std::fs::rename(&path, &extra).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(journal.intent(&decision(6), PATIENCE).is_err());
        std::fs::remove_dir(&path).unwrap();
        match comes_back {
            Some(bytes) => std::fs::write(&path, bytes).unwrap(),
            None => std::fs::rename(&extra, &path).unwrap(),
        }
        journal.intent(&decision(8), PATIENCE).unwrap();
        assert_eq!(losses(&journal), expected);
        journal.close(PATIENCE).unwrap();
    }
}

#[test]
fn a_deleted_journal_is_created_anew() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let journal = Journal::open(&state, KEEP_ALL);
    journal.intent(&decision(2), PATIENCE).unwrap();
    std::fs::remove_dir_all(&state).unwrap();
    // The first one may still go to the deleted file.
    journal.intent(&decision(4), PATIENCE).ok();
    journal.intent(&decision(6), PATIENCE).unwrap();
    assert_eq!(losses(&journal), 1.0);
    journal.close(PATIENCE).unwrap();
    let known = JournalReader::open(&state).unwrap().reboots(Some(BOOT)).unwrap();
    assert!(known.is_newly_lost, "what it held of reboots is lost");
    let query = super::super::DecisionQuery { limit: 1, ..Default::default() };
    let page = JournalReader::open(&state).unwrap().decisions(&query).unwrap();
    assert_eq!(page.rows[0].decision, decision(6));
}
