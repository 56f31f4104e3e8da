//! What people ordered: kept, found again while it is in force, and never later than they know.

use rusqlite::Connection;

use super::super::retention::step;
use super::super::{
    FILE_NAME, JournalError, JournalReader, OperatorMemory, Order, OrderQuery, TimelineItem,
    TimelineQuery, file,
};
use super::*;

fn approve(seconds: i64, decision: u64, lasts: i64) -> OperatorCommand {
    let until = moment(seconds + lasts).utc;
    order(seconds, OperatorOrder::Approve { decision: DecisionId(decision), until })
}

fn reset(seconds: i64) -> OperatorCommand {
    let rules = RuleSelector::Rule(rule("PageCacheEatsReserve"));
    order(seconds, OperatorOrder::ResetBreaker { rules })
}

fn memory(journal: &Journal, now: i64) -> OperatorMemory {
    journal.operator_memory(moment(now).utc, PATIENCE).unwrap()
}

fn kept(dir: &std::path::Path) -> Vec<OperatorCommand> {
    let query = OrderQuery { order: Order::OldestFirst, limit: 100, ..Default::default() };
    let page = JournalReader::open(dir).unwrap().orders(&query).unwrap();
    assert_eq!((page.next, page.unreadable), (None, 0));
    page.rows.into_iter().map(|row| row.command).collect()
}

#[test]
fn a_refused_order_replaces_what_was_kept_of_it_and_has_no_effect() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    let given = [silence(1, 1, 1_000), silence(2, 2, 1_000), order(3, OperatorOrder::CancelReboot)];
    for command in &given {
        journal.keep_order(command, PATIENCE).unwrap();
    }
    let [first, second, third] = given;
    let refuse = |command| OperatorCommand { refused: Some("it cannot be".to_owned()), ..command };
    let refused = [refuse(second), refuse(third)];
    for command in &refused {
        journal.keep_order(command, PATIENCE).unwrap();
    }
    let [second, third] = refused;
    assert_eq!(kept(dir.path()), [first.clone(), second, third]);
    let in_force = OperatorMemory { commands: vec![first], last_silence: 2 };
    assert_eq!(memory(&journal, 50), in_force);
    journal.close(PATIENCE).unwrap();
}

#[test]
fn orders_in_force_are_read_back_in_order_and_ended_ones_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    let orders = [
        silence(1, 1, 100),
        silence(2, 2, 1_000),
        approve(3, 7, 100),
        reset(4),
        silence(5, 3, 1_000),
        order(6, OperatorOrder::EndSilence { id: 3 }),
        approve(7, 8, 1_000),
    ];
    for command in &orders {
        journal.keep_order(command, PATIENCE).unwrap();
    }
    assert_eq!(kept(dir.path()), orders);
    journal.close(PATIENCE).unwrap();

    let journal = Journal::open(dir.path(), KEEP_ALL);
    let [first, second, third, _, _, _, seventh] = orders;
    assert_eq!(memory(&journal, 50).commands, [first, second.clone(), third, seventh.clone()]);
    assert_eq!(
        memory(&journal, 500),
        OperatorMemory { commands: vec![second, seventh], last_silence: 3 }
    );
    assert_eq!(
        memory(&journal, 5_000),
        OperatorMemory { commands: Vec::new(), last_silence: 3 },
        "a number is never given again"
    );
    // Where the clock has gone back, a silence that was ended stays ended.
    assert!(memory(&journal, -1_000).commands.iter().all(|command| command.at != moment(5)));
}

#[test]
fn a_later_approval_of_a_decision_replaces_an_earlier_one_even_a_lapsed_one() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    let orders = [approve(1, 7, 1_000), approve(2, 8, 1_000), approve(3, 7, 100)];
    for command in &orders {
        journal.keep_order(command, PATIENCE).unwrap();
    }
    assert_eq!(memory(&journal, 50).commands, orders[1..]);
    assert_eq!(memory(&journal, 500).commands, orders[1..2]);
}

#[test]
fn an_unreadable_order_is_an_error_since_it_may_forbid_anything() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    journal.keep_order(&silence(1, 1, 100), PATIENCE).unwrap();
    let connection = Connection::open(dir.path().join(FILE_NAME)).unwrap();
    connection.execute("UPDATE operator_commands SET json = '{\"order\": 5}'", []).unwrap();
    drop(connection);
    let error = journal.operator_memory(moment(2).utc, PATIENCE).unwrap_err();
    assert!(matches!(error, JournalError::Unreadable(_)), "{error}");
}

#[test]
fn an_unavailable_journal_never_stores_an_approval_but_later_a_silence() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    std::fs::write(&state, "in the way").unwrap();
    let journal = Journal::open(&state, KEEP_ALL);
    for command in [approve(1, 7, 1_000), silence(2, 1, 1_000)] {
        let error = journal.keep_order(&command, PATIENCE).unwrap_err();
        assert!(matches!(error, JournalError::Down(_)), "{error}");
    }
    std::fs::remove_file(&state).unwrap();
    journal.keep_order(&reset(3), PATIENCE).unwrap();
    journal.close(PATIENCE).unwrap();
    assert_eq!(kept(&state), [silence(2, 1, 1_000), reset(3)]);
}

#[test]
fn an_abandoned_approval_is_withdrawn() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    settle(&journal);
    let blocker = Connection::open(dir.path().join(FILE_NAME)).unwrap();
    blocker.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = journal.keep_order(&approve(1, 7, 1_000), Duration::ZERO).unwrap_err();
    assert!(matches!(error, JournalError::TimedOut(_)), "{error}");
    blocker.execute_batch("ROLLBACK").unwrap();
    settle(&journal);
    journal.keep_order(&silence(2, 1, 1_000), PATIENCE).unwrap();
    assert_eq!(kept(dir.path()), [silence(2, 1, 1_000)]);
}

#[test]
fn an_order_in_force_outlives_retention_by_age_and_size() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    let lasting = silence(1, 1, 100_000);
    for command in [&lasting, &silence(2, 2, 10), &silence(3, 3, 100_000), &reset(4)] {
        journal.keep_order(command, PATIENCE).unwrap();
    }
    let end = order(5, OperatorOrder::EndSilence { id: 3 });
    journal.keep_order(&end, PATIENCE).unwrap();
    journal.close(PATIENCE).unwrap();
    let mut connection = file::open(dir.path()).unwrap();
    let young = Retention { max_age: Duration::from_secs(500), ..KEEP_ALL };
    while step(&mut connection, young, Some(moment(1_000).utc_ms())).unwrap() {}
    assert_eq!(kept(dir.path()), std::slice::from_ref(&lasting));
    let small = Retention { max_bytes: 0, ..KEEP_ALL };
    for age_from in [None, Some(moment(1_000).utc_ms())] {
        while step(&mut connection, small, age_from).unwrap() {}
        assert_eq!(kept(dir.path()), std::slice::from_ref(&lasting));
    }
}

#[test]
fn the_timeline_of_a_rule_has_the_orders_that_concern_it() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    let other = RuleSelector::Alert("Other".into());
    let until = moment(100).utc;
    journal.record(&JournalEntry::Decision(decision(9)));
    for command in [
        silence(1, 1, 100),
        order(2, OperatorOrder::Silence { id: 2, rules: other, until }),
        reset(3),
        approve(4, 9, 100),
        approve(5, 10, 100),
        order(6, OperatorOrder::EndSilence { id: 1 }),
    ] {
        journal.keep_order(&command, PATIENCE).unwrap();
    }
    let reader = JournalReader::open(dir.path()).unwrap();
    for (rule, seconds) in [
        ("PageCacheEatsReserve", vec![1, 3, 4]),
        ("memory/PageCacheEatsReserve", vec![1, 3, 4]),
        ("Other", vec![1, 2]),
        ("any/Other", vec![1, 2]),
    ] {
        let query = TimelineQuery {
            rule: Some(rule.to_owned()),
            kinds: vec!["operator".to_owned()],
            ..Default::default()
        };
        let mut found = Vec::new();
        reader
            .timeline(&query, |time, item| {
                assert!(matches!(item, TimelineItem::Operator(_)));
                found.push(time.as_second() - 1_700_000_000);
                true
            })
            .unwrap();
        assert_eq!(found, seconds, "{rule}");
    }
}
