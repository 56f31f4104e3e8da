//! Reading during writes, in pages, and the timeline.

use super::super::{
    DecisionQuery, EventQuery, FILE_NAME, JournalReader, Order, ReadError, TimelineItem,
    TimelineQuery,
};
use super::*;

#[test]
fn a_reader_sees_entries_written_while_it_is_open() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    settle(&journal);
    let reader = JournalReader::open(dir.path()).unwrap();
    let query = EventQuery { limit: 1_000, ..Default::default() };
    for seq in 0..50 {
        journal.record(&log(vec![event(seq)], seq + 1));
        settle(&journal);
        assert_eq!(reader.events(&query).unwrap().rows.len() as u64, seq + 1);
    }
    assert!(!reader.may_lack_newest());
}

#[test]
fn pages_in_both_directions_give_every_event_once() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    journal.record(&log((0..25).map(event).collect(), 25));
    journal.close(PATIENCE).unwrap();
    let reader = JournalReader::open(dir.path()).unwrap();
    for order in [Order::NewestFirst, Order::OldestFirst] {
        let mut query = EventQuery { order, limit: 5, ..Default::default() };
        let mut seen = Vec::new();
        let mut pages = 0;
        loop {
            let page = reader.events(&query).unwrap();
            seen.extend(page.rows.iter().map(|row| row.event.seq.unwrap()));
            pages += 1;
            match order {
                Order::NewestFirst => query.before_id = page.next,
                Order::OldestFirst => query.after_id = page.next,
            }
            if page.next.is_none() {
                break;
            }
        }
        assert_eq!(pages, 5);
        if order == Order::NewestFirst {
            seen.reverse();
        }
        assert_eq!(seen, Vec::from_iter(0..25));
    }
}

#[test]
fn events_are_chosen_by_time_and_kind() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    let fatal = Event { kind: KernelEvent::UvmFatal.into(), ..event(5) };
    journal.record(&log((0..5).map(event).chain([fatal]).collect(), 6));
    journal.close(PATIENCE).unwrap();
    let reader = JournalReader::open(dir.path()).unwrap();
    let seqs = |query: EventQuery| -> Vec<u64> {
        let query = EventQuery { limit: 99, ..query };
        reader.events(&query).unwrap().rows.iter().filter_map(|row| row.event.seq).collect()
    };
    let (since, until) = (Some(moment(2).utc), Some(moment(4).utc));
    assert_eq!(seqs(EventQuery { since, until, ..Default::default() }), [3, 2]);
    let kinds = vec!["uvm_fatal".to_owned()];
    assert_eq!(seqs(EventQuery { kinds, ..Default::default() }), [5]);
    let kinds = vec!["'; DROP TABLE events; --".to_owned()];
    assert_eq!(seqs(EventQuery { kinds, ..Default::default() }), Vec::<u64>::new());
}

#[test]
fn decisions_are_read_with_their_outcomes() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    for id in 1..=3 {
        journal.record(&JournalEntry::Decision(decision(id)));
    }
    let other = DecisionRecord { rule: rule("Other"), ..decision(4) };
    journal.record(&JournalEntry::Decision(other.clone()));
    journal.record(&JournalEntry::Outcome(outcome(2)));
    journal.record(&JournalEntry::AimCheck(aim_check(2)));
    journal.close(PATIENCE).unwrap();
    let reader = JournalReader::open(dir.path()).unwrap();
    let read = |query: DecisionQuery| {
        reader.decisions(&DecisionQuery { limit: 99, ..query }).unwrap().rows
    };
    let all = read(DecisionQuery { order: Order::OldestFirst, ..Default::default() });
    assert_eq!(all.len(), 4);
    assert_eq!(all[0].outcome, None);
    assert_eq!(all[1].decision, decision(2));
    assert_eq!(all[1].outcome, Some(outcome(2)));
    assert_eq!(all[1].aim_check, Some(aim_check(2)));
    for name in ["Other", "memory/Other"] {
        let rows = read(DecisionQuery { rule: Some(name.to_owned()), ..Default::default() });
        assert_eq!(rows.iter().map(|row| &row.decision).collect::<Vec<_>>(), [&other], "{name}");
    }
    let held = read(DecisionQuery { decision: Some("hold".to_owned()), ..Default::default() });
    assert_eq!(held.iter().map(|row| row.decision.id.0).collect::<Vec<_>>(), [3, 1]);
}

#[test]
fn the_timeline_mixes_everything_in_the_order_of_time() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    journal.record(&JournalEntry::Outcome(outcome(30)));
    journal.record(&JournalEntry::AimCheck(aim_check(30)));
    journal.record(&JournalEntry::Decision(decision(30)));
    journal.record(&log(vec![event(20), event(40)], 41));
    journal.record(&JournalEntry::Alert(alert(25)));
    journal.record(&JournalEntry::Note(note(10)));
    journal.record(&JournalEntry::Operator(silence(22, 1, 3_600)));
    journal.close(PATIENCE).unwrap();
    let reader = JournalReader::open(dir.path()).unwrap();
    let read = |query: TimelineQuery| {
        let mut items = Vec::new();
        reader
            .timeline(&query, |time, item| {
                let kind = match item {
                    TimelineItem::Event(stored) => {
                        assert_eq!(stored.boot_id, BOOT);
                        "event"
                    }
                    TimelineItem::Decision(_) => "decision",
                    TimelineItem::Outcome { decision: found, aim_check: measured, .. } => {
                        assert_eq!(found, Some(decision(30)));
                        assert_eq!(measured, Some(aim_check(30)));
                        "outcome"
                    }
                    TimelineItem::Alert(_) => "alert",
                    TimelineItem::Note(_) => "note",
                    TimelineItem::Operator(_) => "operator",
                    TimelineItem::Unreadable => "unreadable",
                };
                items.push((time.as_second() - 1_700_000_000, kind));
                true
            })
            .unwrap();
        items
    };
    let all = [
        (10, "note"),
        (20, "event"),
        (22, "operator"),
        (25, "alert"),
        (30, "decision"),
        (30, "outcome"),
        (40, "event"),
    ];
    assert_eq!(read(TimelineQuery::default()), all);
    assert_eq!(read(TimelineQuery { limit: Some(2), ..Default::default() }), all[5..]);
    let kinds = vec!["decision".to_owned(), "nv_no_memory".to_owned()];
    let chosen = read(TimelineQuery { kinds, ..Default::default() });
    assert_eq!(chosen, [all[1], all[4], all[6]]);
    let rule = Some("PageCacheEatsReserve".to_owned());
    assert_eq!(read(TimelineQuery { rule, ..Default::default() }), all[2..6]);
    let since = Some(moment(30).utc);
    assert_eq!(read(TimelineQuery { since, ..Default::default() }), all[4..]);
}

#[test]
fn what_is_recorded_later_is_newer_whatever_its_time_is() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    journal.record(&JournalEntry::Note(note(10)));
    journal.record(&JournalEntry::Outcome(outcome(20)));
    settle(&journal);
    let reader = JournalReader::open(dir.path()).unwrap();
    let mut end = reader.end(Timestamp::MAX).unwrap();
    let mut newer = |settled: Timestamp| {
        let mut kinds = Vec::new();
        let collect = |time: Timestamp, item| {
            kinds.push((
                time.as_second() - 1_700_000_000,
                match item {
                    TimelineItem::Note(_) => "note",
                    TimelineItem::Outcome { .. } => "outcome",
                    TimelineItem::Decision(_) => "decision",
                    other => panic!("{other:?}"),
                },
            ));
            true
        };
        reader.newer(&TimelineQuery::default(), (&mut end, settled), collect).unwrap();
        kinds
    };
    assert_eq!(newer(Timestamp::MAX), []);
    journal.record(&JournalEntry::Note(note(5)));
    journal.record(&JournalEntry::Decision(decision(30)));
    journal.record(&JournalEntry::Outcome(outcome(30)));
    settle(&journal);
    // Another outcome of the same time may follow.
    assert_eq!(newer(moment(29).utc), [(5, "note"), (30, "decision")]);
    journal.record(&JournalEntry::Outcome(Outcome { ended: moment(30), ..outcome(29) }));
    settle(&journal);
    assert_eq!(newer(moment(31).utc), [(30, "outcome"), (30, "outcome")]);
    assert_eq!(newer(Timestamp::MAX), []);
    assert!(!reader.is_replaced());
    std::fs::remove_file(dir.path().join(FILE_NAME)).unwrap();
    assert!(reader.is_replaced());
}

#[test]
fn a_long_timeline_has_every_entry_once_even_at_one_and_the_same_instant() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    let now = |seq| Event { utc: Some(moment(7).utc), ..event(seq) };
    journal.record(&log((0..700).map(now).collect(), 700));
    for id in 0..700 {
        let text = id.to_string();
        journal.record(&JournalEntry::Note(Note { at: moment(7), text }));
        journal.record(&JournalEntry::Outcome(Outcome { ended: moment(7), ..outcome(id) }));
    }
    journal.close(PATIENCE).unwrap();
    let reader = JournalReader::open(dir.path()).unwrap();
    let read = |limit| {
        let mut items = Vec::new();
        let query = TimelineQuery { limit, ..Default::default() };
        let collect = |_, item| {
            items.push(match item {
                TimelineItem::Event(stored) => ("event", stored.event.seq.unwrap()),
                TimelineItem::Outcome { outcome, .. } => ("outcome", outcome.decision.0),
                TimelineItem::Note(note) => ("note", note.text.parse().unwrap()),
                other => panic!("{other:?}"),
            });
            true
        };
        reader.timeline(&query, collect).unwrap();
        items
    };
    let each_of = |kind| (0..700).map(move |number| (kind, number));
    let all = Vec::from_iter(each_of("event").chain(each_of("outcome")).chain(each_of("note")));
    assert!(read(None) == all);
    for limit in [0, 1, 255, 256, 257, 1_000, 2_099, 2_100, 9_999] {
        assert!(read(Some(limit)) == all[all.len().saturating_sub(limit)..], "{limit}");
    }
}

#[test]
fn rows_of_unknown_meaning_are_counted_and_skipped() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    journal.record(&log(vec![event(1), event(2)], 3));
    journal.close(PATIENCE).unwrap();
    let connection = rusqlite::Connection::open(dir.path().join(FILE_NAME)).unwrap();
    connection
        .execute_batch("UPDATE events SET json = '{\"kind\":\"later\"}' WHERE seq = 2")
        .unwrap();
    let reader = JournalReader::open(dir.path()).unwrap();
    let page = reader.events(&EventQuery { limit: 1, ..Default::default() }).unwrap();
    assert_eq!((page.rows.len(), page.unreadable), (0, 1));
    let query = EventQuery { before_id: page.next, limit: 1, ..Default::default() };
    assert_eq!(reader.events(&query).unwrap().rows[0].event, event(1));
}

#[test]
fn a_file_other_than_a_journal_is_distinguished_from_a_missing_one() {
    let dir = tempfile::tempdir().unwrap();
    let open = || JournalReader::open(dir.path()).unwrap_err();
    assert!(matches!(open(), ReadError::Missing(_)));
    std::fs::write(dir.path().join(FILE_NAME), "rubbish of some length, not a database").unwrap();
    let error = open();
    assert!(matches!(error, ReadError::NotAJournal(_)), "{error:?}");
    std::fs::write(dir.path().join(FILE_NAME), "").unwrap();
    let error = open();
    assert!(matches!(error, ReadError::NotAJournal(_)), "{error:?}");
}

#[test]
fn odd_characters_in_the_path_are_no_obstacle() {
    let dir = tempfile::tempdir().unwrap();
    let odd = dir.path().join("a b?c#d%e&ü");
    let journal = Journal::open(&odd, KEEP_ALL);
    journal.record(&JournalEntry::Note(note(1)));
    journal.close(PATIENCE).unwrap();
    let page = JournalReader::open(&odd).unwrap().notes(Order::OldestFirst, 9).unwrap();
    assert_eq!(page.rows[0].note, note(1));
}
