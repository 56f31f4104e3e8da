//! Data of earlier runs for the guard rails.

use rusqlite::Connection;

use super::super::{EventQuery, FILE_NAME, JournalReader, Order};
use super::*;
use crate::model::{
    EngineKind, EnginePhase, EventKind, Grade, LoadConfiguration, LoadEnd, LoadReading,
    LoadReceipt, OperatorOrder, PastRank, PastRanks, ProgramEvent, RestartState, RuleSelector,
};

fn act(id: u64, mode: Mode) -> DecisionRecord {
    DecisionRecord { mode, decision: Decision::Act, ..decision(id) }
}

fn acts(dir: &std::path::Path, before: Option<u64>) -> Vec<(u64, Mode, bool, Option<bool>)> {
    let reader = JournalReader::open(dir).unwrap();
    let acts = reader.acts(before.map(DecisionId)).unwrap();
    acts.iter().map(|act| (act.id.0, act.mode, act.has_ended, act.aim_met)).collect()
}

#[test]
fn acts_are_read_with_their_outcomes_oldest_first_without_holds() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    for id in [2, 4, 6] {
        journal.record(&JournalEntry::Decision(act(id, Mode::Enforce)));
    }
    journal.record(&JournalEntry::Decision(act(8, Mode::Observe)));
    journal.record(&JournalEntry::Decision(decision(3)));
    journal.record(&JournalEntry::Outcome(outcome(2)));
    journal.record(&JournalEntry::AimCheck(aim_check(2)));
    let timed_out = Outcome { result: OutcomeResult::TimedOut, ..outcome(4) };
    journal.record(&JournalEntry::Outcome(timed_out));
    journal.close(PATIENCE).unwrap();
    let enforce = Mode::Enforce;
    assert_eq!(
        acts(dir.path(), Some(8)),
        [(2, enforce, true, Some(true)), (4, enforce, false, None), (6, enforce, false, None)]
    );
    assert_eq!(acts(dir.path(), None).len(), 4);
}

#[test]
fn an_act_that_was_not_done_has_used_no_approval() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    let not_done = OutcomeResult::NotDone("it has changed".to_owned());
    for (id, result) in [(2, Some(not_done)), (4, Some(OutcomeResult::TimedOut)), (6, None)] {
        let approved = Some(DecisionId(id + 1));
        journal
            .record(&JournalEntry::Decision(DecisionRecord { approved, ..act(id, Mode::Enforce) }));
        if let Some(result) = result {
            journal.record(&JournalEntry::Outcome(Outcome { result, ..outcome(id) }));
        }
    }
    journal.close(PATIENCE).unwrap();
    let acts = JournalReader::open(dir.path()).unwrap().acts(None).unwrap();
    let approved: Vec<_> = acts.iter().map(|act| act.approved.map(|id| id.0)).collect();
    assert_eq!(approved, [None, Some(5), Some(7)]);
}

#[test]
fn an_act_on_one_engine_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    let engine = crate::model::EngineTarget { name: "a".into(), ..Default::default() };
    let target = Target::Engine(Box::new(engine));
    let (name, allow) = ("a".to_owned(), Default::default());
    let reclaim = Action::Reclaim { cgroup: "/g".into(), engine: Some(name.clone()), bytes: 1 };
    let of_cgroup = Action::Reclaim { cgroup: "/g".into(), engine: None, bytes: 1 };
    let stop =
        Action::StopEngine { engine: None, grace_ms: 0, unless_free_bytes: None, for_reboot: None };
    let group = Target::Cgroup { path: "/g".into() };
    for (id, action, target) in [
        (2, Action::EmptyCache { engine: name, allow }, target.clone()),
        (4, reclaim, group.clone()),
        (6, of_cgroup, group),
        (8, stop, target),
    ] {
        let act = DecisionRecord { action, target, ..act(id, Mode::Enforce) };
        journal.record(&JournalEntry::Decision(act));
    }
    journal.close(PATIENCE).unwrap();
    let acts = JournalReader::open(dir.path()).unwrap().acts(None).unwrap();
    let found: Vec<_> =
        acts.iter().map(|act| (act.engine.as_deref(), act.takes_from_engine)).collect();
    assert_eq!(found, [(Some("a"), true), (Some("a"), true), (None, false), (Some("a"), false)]);
}

#[test]
fn an_undo_is_no_act() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    journal.record(&JournalEntry::Decision(act(2, Mode::Enforce)));
    let why = crate::model::UndoReason::AlertEnded;
    let action = Action::Undo { decision: DecisionId(2), why, grade: Grade::Drop };
    journal.record(&JournalEntry::Decision(DecisionRecord { action, ..act(4, Mode::Enforce) }));
    journal.close(PATIENCE).unwrap();
    assert_eq!(acts(dir.path(), None), [(2, Mode::Enforce, false, None)]);
}

#[test]
fn an_act_in_the_format_of_another_version_is_an_act() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    journal.record(&JournalEntry::Decision(act(2, Mode::Enforce)));
    journal.record(&JournalEntry::Decision(act(4, Mode::Observe)));
    journal.close(PATIENCE).unwrap();
    let file = Connection::open(dir.path().join(FILE_NAME)).unwrap();
    let unknown_action =
        "UPDATE decisions SET json = json_set(json, '$.action', json('{\"reboot\": {}}'))";
    file.execute(&format!("{unknown_action} WHERE id = 4"), []).unwrap();
    file.execute("UPDATE decisions SET json = '{}' WHERE id = 2", []).unwrap();
    let reader = JournalReader::open(dir.path()).unwrap();
    let acts = reader.acts(None).unwrap();
    assert_eq!(acts.len(), 2);
    assert_eq!((acts[0].mode, &acts[0].rule), (Mode::Enforce, &decision(2).rule));
    assert_eq!((acts[1].mode, acts[1].is_notice), (Mode::Observe, false));
}

#[test]
fn acts_of_one_rule_are_read_up_to_the_largest_limit() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    for id in 0..1_500 {
        let rule = rule(if id % 10 == 0 { "Seldom" } else { "Often" });
        journal.record(&JournalEntry::Decision(DecisionRecord { rule, ..act(id, Mode::Enforce) }));
    }
    journal.close(PATIENCE).unwrap();
    let reader = JournalReader::open(dir.path()).unwrap();
    let acts = reader.acts(None).unwrap();
    let of = |alert: &str| acts.iter().filter(|act| &*act.rule.alert == alert).count();
    assert_eq!((of("Seldom"), of("Often")), (150, 1_000));
    assert_eq!(acts.last().map(|act| act.id.0), Some(1_499), "the newest are kept");
}

#[test]
fn pending_approvals_are_read_with_their_action() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    let held = |id, reason| DecisionRecord { decision: Decision::Hold(reason), ..decision(id) };
    for (id, reason) in
        [(1, HoldReason::Approval), (100, HoldReason::Approval), (101, HoldReason::Busy)]
    {
        journal.record(&JournalEntry::Decision(held(id, reason)));
    }
    journal.record(&JournalEntry::Decision(held(102, HoldReason::Announced)));
    journal.close(PATIENCE).unwrap();
    let reader = JournalReader::open(dir.path()).unwrap();
    let asked = reader.asked_for_approval(moment(50).utc).unwrap();
    assert_eq!(asked.iter().map(|(_, asked)| asked.id.0).collect::<Vec<_>>(), [100, 102]);
    assert_eq!(asked[0].1, held(100, HoldReason::Approval));
    assert!(asked[0].0 < asked[1].0, "by their positions");
}

#[test]
fn acts_of_a_boot_are_distinguished_from_earlier_ones_by_position_and_not_by_id() {
    let dir = tempfile::tempdir().unwrap();
    // A process reads where its boot begins before it acts.
    let run = |boot: &str, id: u64| {
        let journal = Journal::open(dir.path(), KEEP_ALL);
        let begins_after = journal.boot_begins_after(boot, PATIENCE).unwrap();
        journal.record(&JournalEntry::Decision(act(id, Mode::Enforce)));
        journal.close(PATIENCE).unwrap();
        let acts = JournalReader::open(dir.path()).unwrap().acts(None).unwrap();
        let of_boot = acts.iter().filter(|act| act.position > begins_after);
        of_boot.map(|act| act.id.0).collect::<Vec<_>>()
    };
    assert_eq!(run("one", 10), [10]);
    // Numbers made of the time, with a clock that is set back in between.
    assert_eq!(run("one", 9_000_000), [10, 9_000_000]);
    assert_eq!(run("one", 8_000_000), [10, 9_000_000, 8_000_000]);
    assert_eq!(run("two", 7_000_000), [7_000_000]);
    assert_eq!(run("two", 9_000_001), [7_000_000, 9_000_001]);
    let before = |id| acts(dir.path(), Some(id)).iter().map(|act| act.0).collect::<Vec<_>>();
    assert_eq!(before(8_000_000), [10, 9_000_000]);
    assert_eq!(before(8_000_001), [10, 8_000_000, 7_000_000], "a number that was never given");
}

#[test]
fn a_reset_forgives_earlier_judgements_under_any_clock() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    for id in [2, 4, 6] {
        journal.record(&JournalEntry::Decision(act(id, Mode::Enforce)));
    }
    let other = DecisionRecord { rule: rule("Other"), ..act(5, Mode::Enforce) };
    journal.record(&JournalEntry::Decision(other));
    journal.record(&JournalEntry::AimCheck(aim_check(2)));
    let rules = RuleSelector::Rule(decision(2).rule);
    // By the wall clock long before and long after everything.
    journal.keep_order(&order(-9_000, OperatorOrder::ResetBreaker { rules }), PATIENCE).unwrap();
    journal.record(&JournalEntry::AimCheck(aim_check(4)));
    let late = DecisionRecord { at: moment(-20_000), ..act(1, Mode::Enforce) };
    journal.record(&JournalEntry::Decision(late));
    journal.close(PATIENCE).unwrap();
    let acts = JournalReader::open(dir.path()).unwrap().acts(None).unwrap();
    let forgiven: Vec<_> = acts.iter().map(|act| (act.id.0, act.is_forgiven)).collect();
    assert_eq!(forgiven, [(2, true), (4, false), (6, true), (5, false), (1, false)]);
}

#[test]
fn entries_of_a_damaged_journal_are_reported_as_lost() {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let journal = Journal::open(dir.path(), KEEP_ALL);
        journal.record(&JournalEntry::Decision(act(2, Mode::Enforce)));
        settle(&journal);
        journal.close(PATIENCE).unwrap();
        JournalReader::open(dir.path()).unwrap().lost_before().unwrap()
    };
    assert_eq!(open(), None);
    std::fs::write(dir.path().join(FILE_NAME), vec![b'x'; 40_000]).unwrap();
    assert!(open().is_some());
    assert!(open().is_some(), "and stays so");
    let known = JournalReader::open(dir.path()).unwrap().reboots(Some(BOOT)).unwrap();
    assert!(known.is_newly_lost, "no wall clock shows when, for reboots");
}

#[test]
fn a_loss_that_is_forgotten_among_reboots_stops_none() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(FILE_NAME), vec![b'x'; 40_000]).unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    journal.record(&JournalEntry::Decision(act(2, Mode::Enforce)));
    settle(&journal);
    journal.close(PATIENCE).unwrap();
    let connection = Connection::open(dir.path().join(FILE_NAME)).unwrap();
    connection.execute("DELETE FROM reboots", []).unwrap();
    drop(connection);
    let reader = JournalReader::open(dir.path()).unwrap();
    assert!(reader.lost_before().unwrap().is_some());
    assert!(!reader.reboots(Some(BOOT)).unwrap().is_newly_lost);
}

fn restart(engine: &str, to: RestartState) -> JournalEntry {
    restart_of_rank(engine, to, None)
}

fn restart_of_rank(engine: &str, to: RestartState, ranks: Option<&PastRanks>) -> JournalEntry {
    let (engine, reason) = (engine.to_owned(), "test".to_owned());
    let (container, ranks) = (None, ranks.cloned().map(Box::new));
    let kind = ProgramEvent::EngineRestart { engine, to, reason, container, ranks };
    JournalEntry::Event {
        boot_id: Arc::from(BOOT),
        event: Event { kind: kind.into(), utc: None, seq: None },
    }
}

#[test]
fn a_deferred_restart_has_its_last_known_state() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    journal.record(&restart("a", RestartState::Running));
    journal.record(&restart("b", RestartState::Stopped));
    journal.record(&restart("a", RestartState::Stopped));
    journal.record(&restart("b", RestartState::Running));
    journal.record(&restart("b", RestartState::Unknown));
    journal.close(PATIENCE).unwrap();
    let found = JournalReader::open(dir.path()).unwrap().restarts().unwrap();
    let wanted = [("a", RestartState::Stopped), ("b", RestartState::Running)];
    assert_eq!(found.states, wanted.map(|(name, state)| (Arc::from(name), state)).into());
    assert_eq!(found.ranks, [].into());
}

#[test]
fn the_ranks_of_a_deferred_restart_are_those_of_its_last_event() {
    let dir = tempfile::tempdir().unwrap();
    let other = PastRank {
        node: "spark-2".into(),
        rank: "unknown".into(),
        start: Duration::new(50, 120_000_001),
        engine: "vllm".into(),
    };
    let ranks = PastRanks {
        workload: "abc".into(),
        engine: "vllm-8000".into(),
        gang: "session/01000000".into(),
        user: "0".into(),
        number: None,
        serves: true,
        others: vec![other],
    };
    let journal = Journal::open(dir.path(), KEEP_ALL);
    for (name, to, ranks) in [
        ("a", RestartState::Running, None),
        ("a", RestartState::Running, Some(&ranks)),
        ("b", RestartState::Running, Some(&ranks)),
        ("a", RestartState::Unknown, Some(&ranks)),
        ("b", RestartState::Running, None),
    ] {
        journal.record(&restart_of_rank(name, to, ranks));
    }
    journal.close(PATIENCE).unwrap();
    let found = JournalReader::open(dir.path()).unwrap().restarts().unwrap();
    assert_eq!(found.ranks, [(Arc::from("a"), ranks)].into());
}

#[test]
fn a_start_is_read_with_the_end_before_it_and_the_death_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    let start = Action::StartContainer { ended: "then".into() };
    journal
        .record(&JournalEntry::Decision(DecisionRecord { action: start, ..act(2, Mode::Enforce) }));
    let died_in = Some(EnginePhase::Loading);
    let died = AimCheck { aim_met: Some(false), died_in, ..aim_check(2) };
    journal.record(&JournalEntry::AimCheck(died));
    // A start that goes well after all is the last word on the acts before it.
    journal.record(&JournalEntry::Decision(act(4, Mode::Enforce)));
    journal.record(&JournalEntry::AimCheck(AimCheck { aim_met: Some(false), ..aim_check(4) }));
    journal.record(&JournalEntry::AimCheck(aim_check(4)));
    journal.close(PATIENCE).unwrap();
    let acts = JournalReader::open(dir.path()).unwrap().acts(None).unwrap();
    let found: Vec<_> =
        acts.iter().map(|act| (act.started_after.as_deref(), act.died_in, act.aim_met)).collect();
    assert_eq!(found, [(Some("then"), died_in, Some(false)), (None, None, Some(true))]);
}

#[test]
fn a_start_not_begun_cannot_fail_later() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    let results = [
        OutcomeResult::Done,
        OutcomeResult::TimedOut,
        OutcomeResult::NotDone("it has ended again since".to_owned()),
        OutcomeResult::Skipped,
    ];
    for (id, result) in (1..).zip(results) {
        let start = Action::StartContainer { ended: "then".into() };
        journal.record(&JournalEntry::Decision(DecisionRecord {
            action: start,
            ..act(id, Mode::Enforce)
        }));
        journal.record(&JournalEntry::Outcome(Outcome { result, ..outcome(id) }));
    }
    journal.close(PATIENCE).unwrap();
    let acts = JournalReader::open(dir.path()).unwrap().acts(None).unwrap();
    let found: Vec<_> = acts.iter().map(|act| act.started_after.as_deref()).collect();
    assert_eq!(found, [Some("then"), Some("then"), None, None]);
}

#[test]
fn a_stop_for_a_reboot_is_no_act_of_the_rule() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    let stop = |id, for_reboot| {
        let action =
            Action::StopEngine { engine: None, grace_ms: 0, unless_free_bytes: None, for_reboot };
        JournalEntry::Decision(DecisionRecord { action, ..act(id, Mode::Enforce) })
    };
    journal.record(&stop(2, None));
    journal.record(&stop(4, Some(DecisionId(1))));
    journal.close(PATIENCE).unwrap();
    assert_eq!(acts(dir.path(), None), [(2, Mode::Enforce, false, None)]);
}

fn load(engine: &str, number: u64, end: LoadEnd) -> Event {
    let configuration = LoadConfiguration {
        engine_kind: EngineKind::Vllm,
        image: Some("vllm:1".into()),
        arguments: Some("vllm\nserve\n--api-key\n[hidden]".into()),
        ..LoadConfiguration::default()
    };
    let receipt = LoadReceipt {
        end,
        started: moment(1).utc,
        fingerprint: configuration.fingerprint(engine),
        configuration,
        ready_after_seconds: Some(41.5),
        ready_bytes: Some(80 << 30),
        peak_bytes: Some(82 << 30),
        growth_bytes: Some(number << 30),
        lowest_free_bytes: None,
        lowest_available_bytes: None,
        stalls: Some(3),
        read_bytes: Some(60 << 30),
        evicted_bytes: Some(50 << 30),
        prefetched_bytes: Some(40 << 30),
        prefetch_unused_bytes: Some(1 << 30),
        reading: None,
        why_unknown: None,
    };
    let kind =
        ProgramEvent::EngineLoad { engine: engine.to_owned(), pid: 7, receipt: Box::new(receipt) };
    Event { kind: kind.into(), utc: Some(moment(2).utc), seq: None }
}

#[test]
fn the_last_loads_of_each_engine_are_read_and_hostile_rows_are_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), KEEP_ALL);
    let mut events: Vec<Event> = (0..12).map(|at| load("qwen", at, LoadEnd::Ready)).collect();
    events.push(load("qwen", 99, LoadEnd::Died));
    // Of the last load of an engine, how it read counts even if it was not complete.
    let with_reading = |engine: &str, end: LoadEnd| {
        let mut event = load(engine, 50, end);
        if let EventKind::Program(ProgramEvent::EngineLoad { receipt, .. }) = &mut event.kind {
            receipt.reading = Some(LoadReading { prefetched_bytes: 7, ..LoadReading::default() });
        }
        event
    };
    events.extend([LoadEnd::Died, LoadEnd::Ready].map(|end| with_reading("well", end)));
    events.extend([LoadEnd::Ready, LoadEnd::Died].map(|end| with_reading("ill", end)));
    events.push(load("a\u{1b}[2J\n'; DROP TABLE events", 5, LoadEnd::Ready));
    let stored = events.clone();
    journal.record(&log(events, 1));
    journal.close(PATIENCE).unwrap();
    let connection = Connection::open(dir.path().join(FILE_NAME)).unwrap();
    let hostile = [
        "",
        "{",
        "null",
        "[]",
        r#"{"kind":"engine_load"}"#,
        r#"{"kind":"engine_load","engine":"x","pid":-1,"end":"ready"}"#,
        r#"{"kind":"engine_load","engine":"x","pid":1,"end":"ready","started":"never"}"#,
    ];
    for json in hostile {
        let sql = "INSERT INTO events (boot_id, utc_ms, kind, json, seq)
            SELECT boot_id, utc_ms, kind, ?1, NULL FROM events LIMIT 1";
        connection.execute(sql, [json]).unwrap();
    }
    drop(connection);
    let reader = JournalReader::open(dir.path()).unwrap();
    let loads = reader.loads(3).unwrap();
    let of_qwen = loads.iter().filter(|load| &*load.engine == "qwen");
    let grown: Vec<_> = of_qwen.map(|load| load.growth_bytes.unwrap() >> 30).collect();
    assert_eq!(grown, [9, 10, 11], "the newest, and none that died");
    let of = |engine: &str| {
        let its = loads.iter().filter(|load| &*load.engine == engine);
        its.map(|load| load.is_only_reading).collect::<Vec<_>>()
    };
    assert_eq!((of("well"), of("ill")), (vec![false], vec![false, true]));
    assert_eq!(loads.len(), 7);
    let query = EventQuery {
        kinds: vec!["engine_load".to_owned()],
        order: Order::OldestFirst,
        limit: 100,
        ..EventQuery::default()
    };
    let page = reader.events(&query).unwrap();
    let read: Vec<Event> = page.rows.into_iter().map(|row| row.event).collect();
    assert_eq!(read, stored, "a receipt is read as it was written");
    assert_eq!(page.unreadable, hostile.len());
}
