//! What is kept of reboots, and what follows from it for the next boot.

use rusqlite::Connection;

use super::super::{BootDuration, FILE_NAME, JournalReader, RebootRow, past_reboots};
use super::*;
use crate::model::{
    PastReboots, ProgramEvent, RebootAct, RebootLock, RebootMeans, RebootOrder, RebootPlan,
    RebootResult, RebootWay,
};

fn plan(boot: &str) -> RebootPlan {
    RebootPlan { why: "a leak".to_owned(), boot_id: boot.into(), ..RebootPlan::default() }
}

fn act(id: u64, act: RebootAct) -> DecisionRecord {
    let action = Action::Reboot(Box::new(act));
    let at = moment(id.cast_signed());
    DecisionRecord { action, at, mode: Mode::Enforce, decision: Decision::Act, ..decision(id) }
}

fn schedule(id: u64, boot: &str) -> DecisionRecord {
    act(id, RebootAct::Schedule(plan(boot)))
}

fn perform(id: u64, boot: &str, how: RebootMeans) -> DecisionRecord {
    let order = RebootOrder { boot_id: boot.into(), how, plan: plan(boot) };
    act(id, RebootAct::Perform(order))
}

const ORDERLY: RebootMeans = RebootMeans::Way(RebootWay::Logind);

fn ended(decision: &DecisionRecord, result: OutcomeResult) -> Outcome {
    Outcome { action: decision.action.name().to_owned(), result, ..outcome(decision.id.0) }
}

fn order(order: OperatorOrder) -> OperatorCommand {
    OperatorCommand {
        at: moment(9),
        author: "a".to_owned(),
        comment: String::new(),
        order,
        refused: None,
    }
}

fn checked(decision: u64, result: RebootResult) -> Event {
    let (ended_boot_id, reason) = ("a".to_owned(), String::new());
    let kind = ProgramEvent::RebootChecked { decision, ended_boot_id, result, reason };
    Event { kind: kind.into(), utc: Some(moment(9).utc), seq: None }
}

fn alive(boot: &str, seconds: u64) -> JournalEntry {
    JournalEntry::Alive { boot_id: boot.into(), uptime: Duration::from_secs(seconds) }
}

fn known(dir: &std::path::Path, boot: &str) -> PastReboots {
    JournalReader::open(dir).unwrap().reboots(Some(boot)).unwrap()
}

#[test]
fn reboots_are_read_back_with_their_outcome_and_least_age() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    let (one, other) = (schedule(2, "a"), perform(5, "a", ORDERLY));
    journal.intent(&one, PATIENCE).unwrap();
    // The intent and the entry are one row.
    journal.record(&JournalEntry::Decision(one.clone()));
    journal.record(&JournalEntry::Outcome(ended(&one, OutcomeResult::Done)));
    journal.record(&JournalEntry::Decision(other.clone()));
    journal.intent(&other, PATIENCE).unwrap();
    journal.record(&JournalEntry::Outcome(ended(&other, OutcomeResult::TimedOut)));
    journal.record(&JournalEntry::Decision(perform(7, "a", RebootMeans::Sysrq)));
    journal.record(&alive("a", 105));
    journal.record(&alive("b", 1_000));
    journal.record(&alive("c", 10));
    journal.record(&JournalEntry::Event {
        boot_id: "b".into(),
        event: checked(5, RebootResult::Helped),
    });
    journal.close(PATIENCE).unwrap();
    let past = known(dir.path(), "c");
    let [attempt] = &past.attempts[..] else { panic!("{past:?}") };
    assert_eq!((attempt.decision, &*attempt.boot_id), (DecisionId(5), "a"));
    assert_eq!((attempt.was_begun, attempt.result), (Some(true), Some(RebootResult::Helped)));
    // The rest of its boot and the next one: this one counts by its own clock.
    assert_eq!(attempt.uptime_ms, -1_100_000);
    assert_eq!((past.boot_id.as_deref(), past.scheduled), (Some("c"), None));
    assert_eq!(known(dir.path(), "a").attempts[0].uptime_ms, 5_000);
    let reader = JournalReader::open(dir.path()).unwrap();
    assert_eq!(reader.reboots(None).unwrap(), PastReboots::default());
    // What follows on what was scheduled is no act of its rule.
    assert_eq!(reader.acts(None).unwrap().len(), 1);
}

#[test]
fn neither_age_nor_size_makes_a_reboot_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let retention = Retention { max_age: Duration::from_secs(1), max_bytes: 1 };
    let journal = Journal::open(dir.path(), retention);
    journal.record(&JournalEntry::Decision(perform(5, "a", ORDERLY)));
    for id in 100..3_000 {
        journal.record(&JournalEntry::Decision(decision(id)));
    }
    journal.close(PATIENCE).unwrap();
    let journal = Journal::open(dir.path(), retention);
    for id in 3_000..6_000 {
        journal.record(&JournalEntry::Decision(decision(id)));
    }
    journal.close(PATIENCE).unwrap();
    let file = Connection::open(dir.path().join(FILE_NAME)).unwrap();
    let left: i64 = file
        .query_row("SELECT count(*) FROM decisions WHERE id = 5", [], |row| row.get(0))
        .unwrap();
    assert_eq!((left, known(dir.path(), "b").attempts.len()), (0, 1));
}

#[test]
fn an_unreadable_row_prevents_reboots() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    journal.record(&JournalEntry::Decision(perform(5, "a", ORDERLY)));
    journal.close(PATIENCE).unwrap();
    assert!(known(dir.path(), "b").boot_id.is_some());
    let file = Connection::open(dir.path().join(FILE_NAME)).unwrap();
    file.execute("UPDATE reboots SET json = '{\"newer\": 1}'", []).unwrap();
    assert_eq!(known(dir.path(), "b").boot_id, None);
}

#[test]
fn a_reboot_is_scheduled_until_it_is_cancelled_or_begun() {
    let boots = [BootDuration { boot_id: "a".into(), uptime_ms: 99_000 }];
    let read = |rows: &[RebootRow], boot: &str| past_reboots(rows, &boots, boot);
    let decided = |decision: &DecisionRecord| RebootRow::Decision(decision.clone());
    let (one, done) = (schedule(2, "a"), perform(5, "a", ORDERLY));
    let rows = [decided(&one)];
    assert_eq!(read(&rows, "a").scheduled.map(|known| known.decision), Some(DecisionId(2)));
    assert_eq!(read(&rows, "b").scheduled, None, "of another boot");
    let not_done = || OutcomeResult::NotDone("no disk".to_owned());
    let rows = [decided(&one), RebootRow::Outcome(ended(&one, not_done()))];
    assert_eq!(read(&rows, "a").scheduled, None);
    let rows = [decided(&one), RebootRow::Order(order(OperatorOrder::CancelReboot))];
    assert_eq!((read(&rows, "a").scheduled, read(&rows, "a").is_called_off), (None, true));
    assert!(!read(&rows, "b").is_called_off);
    let rows = [decided(&one), decided(&done)];
    assert_eq!((read(&rows, "a").scheduled, read(&rows, "a").attempts[0].was_begun), (None, None));
    let rows = [decided(&one), decided(&done), RebootRow::Outcome(ended(&done, not_done()))];
    let past = read(&rows, "a");
    assert!(past.scheduled.is_some() && past.attempts[0].was_begun == Some(false));
    let rows = [decided(&done), RebootRow::Order(order(OperatorOrder::ClearReboots))];
    assert!(read(&rows, "b").attempts[0].is_cleared);
}

#[test]
fn a_slot_may_be_held_until_its_release_was_done() {
    let lock =
        RebootLock { url: "http://l".to_owned(), group: "g".to_owned(), ..RebootLock::default() };
    let take = act(2, RebootAct::TakeSlot(lock.clone()));
    let release = act(4, RebootAct::ReleaseSlot(lock.clone()));
    let row = |decision: &DecisionRecord| RebootRow::Decision(decision.clone());
    let mut rows = vec![row(&take)];
    assert_eq!(past_reboots(&rows, &[], "a").slot, Some(lock.clone()), "it is not known");
    rows.push(RebootRow::Outcome(ended(&take, OutcomeResult::Failed("lost".to_owned()))));
    assert_eq!(past_reboots(&rows, &[], "a").slot, Some(lock.clone()), "it may be granted");
    rows.push(row(&release));
    rows.push(RebootRow::Outcome(ended(&release, OutcomeResult::TimedOut)));
    assert_eq!(past_reboots(&rows, &[], "a").slot, Some(lock));
    rows.push(RebootRow::Outcome(ended(&release, OutcomeResult::Done)));
    assert_eq!(past_reboots(&rows, &[], "a").slot, None);
}

#[test]
fn a_loss_ages_by_uptime_since_its_record_and_can_be_cleared() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(FILE_NAME), vec![b'x'; 40_000]).unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    settle(&journal);
    let of = |boot: &str| known(dir.path(), boot);
    assert_eq!((of("a").lost_ms, of("a").is_newly_lost), (None, true));
    let kind = ProgramEvent::JournalLost { boot_id: "a".to_owned(), uptime_ms: 50_000 };
    let event = Event { kind: kind.into(), utc: Some(moment(9).utc), seq: None };
    journal.record(&JournalEntry::Event { boot_id: "a".into(), event });
    journal.record(&alive("a", 80));
    journal.record(&alive("b", 100));
    journal.record(&alive("c", 1));
    settle(&journal);
    assert_eq!((of("a").lost_ms, of("a").is_newly_lost), (Some(50_000), false));
    // 30 s of the first boot have certainly passed since, and 100 of the second.
    assert_eq!(of("c").lost_ms, Some(-130_000));
    journal.record(&JournalEntry::Operator(order(OperatorOrder::ClearReboots)));
    settle(&journal);
    assert_eq!((of("c").lost_ms, of("c").is_newly_lost), (None, false));
    journal.close(PATIENCE).unwrap();
}

fn lock() -> RebootLock {
    RebootLock { url: "http://lock".into(), group: "g".into(), ..RebootLock::default() }
}

#[test]
fn a_slot_is_known_from_its_first_request_to_its_confirmed_release() {
    let row = |decision: &DecisionRecord| RebootRow::Decision(decision.clone());
    let found = |decision: &DecisionRecord, result| RebootRow::Outcome(ended(decision, result));
    let read = |rows: &[RebootRow], boot: &str| {
        let known = past_reboots(rows, &[], boot);
        (known.slot.is_some(), known.is_slot_of_boot, known.is_slot_unknown)
    };
    assert_eq!(read(&[], "a"), (false, false, true));
    let not_done = || OutcomeResult::NotDone("full".to_owned());
    let [one, two] = [3, 4].map(|id| act(id, RebootAct::TakeSlot(lock())));
    let release = act(5, RebootAct::ReleaseSlot(lock()));
    let mut rows = vec![row(&schedule(2, "a")), row(&one)];
    let asked_nobody = [rows.clone(), vec![found(&one, not_done())]].concat();
    assert_eq!(read(&asked_nobody, "a"), (false, false, true));
    assert_eq!(read(&rows, "a"), (true, true, true));
    assert_eq!(read(&rows, "b"), (true, false, true), "a reboot was made with it");
    // A second request reached nobody: the first one remains.
    rows.extend([found(&one, OutcomeResult::Done), row(&two), found(&two, not_done())]);
    assert_eq!(read(&rows, "a"), (true, true, true));
    rows.extend([row(&release), found(&release, OutcomeResult::TimedOut)]);
    assert_eq!(read(&rows, "a"), (true, true, true), "the server may not have received it");
    rows.push(found(&release, OutcomeResult::Done));
    assert_eq!(read(&rows, "a"), (false, false, false));
    rows.push(RebootRow::Lost { at: None });
    assert_eq!(read(&rows, "a"), (false, false, true));
}
