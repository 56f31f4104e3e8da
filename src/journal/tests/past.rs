//! What guard rails are told of earlier runs.

use rusqlite::Connection;

use super::super::{FILE_NAME, JournalReader};
use super::*;

fn act(id: u64, mode: Mode) -> Decision {
    Decision { mode, verdict: Verdict::Act, ..decision(id) }
}

fn acts_before(dir: &std::path::Path, before: u64) -> Vec<(u64, Mode, bool, Option<bool>)> {
    let reader = JournalReader::open(dir).unwrap();
    let acts = reader.acts_before(DecisionId(before)).unwrap();
    acts.iter().map(|act| (act.id.0, act.mode, act.has_ended, act.aim_met)).collect()
}

#[test]
fn acts_come_with_what_became_of_them_oldest_first_and_holds_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    for id in [2, 4, 6] {
        journal.record(&Entry::Decision(act(id, Mode::Enforce)));
    }
    journal.record(&Entry::Decision(act(8, Mode::Observe)));
    journal.record(&Entry::Decision(decision(3)));
    journal.record(&Entry::Outcome(outcome(2)));
    journal.record(&Entry::Assessment(assessment(2)));
    let timed_out = Outcome { result: OutcomeResult::TimedOut, ..outcome(4) };
    journal.record(&Entry::Outcome(timed_out));
    journal.close(PATIENCE).unwrap();
    let enforce = Mode::Enforce;
    assert_eq!(
        acts_before(dir.path(), 8),
        [(2, enforce, true, Some(true)), (4, enforce, false, None), (6, enforce, false, None)]
    );
    assert_eq!(acts_before(dir.path(), 9).len(), 4);
}

#[test]
fn an_act_in_words_of_another_version_is_an_act_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    journal.record(&Entry::Decision(act(2, Mode::Enforce)));
    journal.record(&Entry::Decision(act(4, Mode::Observe)));
    journal.close(PATIENCE).unwrap();
    let file = Connection::open(dir.path().join(FILE_NAME)).unwrap();
    let unknown_action =
        "UPDATE decisions SET json = json_set(json, '$.action', json('{\"reboot\": {}}'))";
    file.execute(&format!("{unknown_action} WHERE id = 4"), []).unwrap();
    file.execute("UPDATE decisions SET json = '{}' WHERE id = 2", []).unwrap();
    let reader = JournalReader::open(dir.path()).unwrap();
    let acts = reader.acts_before(DecisionId(9)).unwrap();
    assert_eq!(acts.len(), 2);
    assert_eq!((acts[0].mode, &acts[0].rule), (Mode::Enforce, &decision(2).rule));
    assert_eq!((acts[1].mode, acts[1].is_notice), (Mode::Observe, false));
}

#[test]
fn of_one_rule_no_more_acts_are_told_than_any_limit_counts() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    for id in 0..1_500 {
        let rule = rule(if id % 10 == 0 { "Seldom" } else { "Often" });
        journal.record(&Entry::Decision(Decision { rule, ..act(id, Mode::Enforce) }));
    }
    journal.close(PATIENCE).unwrap();
    let reader = JournalReader::open(dir.path()).unwrap();
    let acts = reader.acts_before(DecisionId(1_500)).unwrap();
    let of = |alert: &str| acts.iter().filter(|act| &*act.rule.alert == alert).count();
    assert_eq!((of("Seldom"), of("Often")), (150, 1_000));
    assert_eq!(acts.last().map(|act| act.id.0), Some(1_499), "the newest are kept");
}

#[test]
fn questions_to_people_are_told_with_their_action() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    let held = |id, reason| Decision { verdict: Verdict::Hold(reason), ..decision(id) };
    for (id, reason) in
        [(1, HoldReason::Approval), (100, HoldReason::Approval), (101, HoldReason::Busy)]
    {
        journal.record(&Entry::Decision(held(id, reason)));
    }
    journal.close(PATIENCE).unwrap();
    let reader = JournalReader::open(dir.path()).unwrap();
    let asked = reader.asked_for_approval(moment(50).utc, DecisionId(200)).unwrap();
    assert_eq!(asked, [held(100, HoldReason::Approval)]);
}

#[test]
fn the_first_decision_of_a_boot_is_remembered_until_the_next_boot() {
    let dir = tempfile::tempdir().unwrap();
    let first = |boot: &str, next: u64| {
        let journal = Journal::open(dir.path(), KEEP_ALL);
        let first = journal.first_decision_of_boot(boot, DecisionId(next), PATIENCE).unwrap();
        journal.close(PATIENCE).unwrap();
        first.0
    };
    assert_eq!(first("one", 10), 10);
    assert_eq!(first("one", 25), 10);
    assert_eq!(first("two", 40), 40);
    assert_eq!(first("two", 41), 40);
}

#[test]
fn what_a_damaged_journal_held_is_told_to_be_lost() {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let journal = Journal::open(dir.path(), KEEP_ALL);
        journal.record(&Entry::Decision(act(2, Mode::Enforce)));
        settle(&journal);
        journal.close(PATIENCE).unwrap();
        JournalReader::open(dir.path()).unwrap().lost_before().unwrap()
    };
    assert_eq!(open(), None);
    std::fs::write(dir.path().join(FILE_NAME), vec![b'x'; 40_000]).unwrap();
    assert!(open().is_some());
    assert!(open().is_some(), "and stays so");
}
