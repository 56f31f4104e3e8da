//! Recordings are replayed as they were: the same steps, from damaged files too.

mod incidents;
mod kept;
mod orders;
mod program;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use proptest::prelude::*;
use umawarden::cli::replay::Replayer;
use umawarden::config::guard_rails::default_guard_rails;
use umawarden::config::mistake::SourceText;
use umawarden::config::rules::parse_rules;
use umawarden::model::{
    AssessmentLimits, DecisionId, EarlierRuns, Event, FORGET_RECEIVED_AFTER, KernelRecord, Mode,
    Moment, Observation, OperatorCommand, OperatorOrder, Outcome, OutcomeResult, PastAct, Pause,
    Reading, Readings, RuleId, RuleSelector, Schema, SeriesKey, Source,
};
use umawarden::policy::{Policy, Step};
use umawarden::recording::{
    AddOutcome, RecordedRules, RecordedStep, RecordingEntry, RuleText, SegmentBegin, SegmentReader,
    SegmentWriter, StepResult,
};

const INTERVAL: Duration = Duration::from_millis(100);

const RULES: &str = "
groups:
- name: memory
  rules:
  - alert: Low
    expr: uma_memory_free_bytes < 50
    for: 200ms
    remedy:
      aim: uma_memory_free_bytes > 70
      steps:
      - drop_caches: {what: pagecache}
      - compact_memory: {}
      cooldown: 1s
      at_most: {times: 3, per: 1h}
  - alert: Xid
    expr: sum(increase(uma_kernel_events_total{event=\"xid\"}[5s]))
      + sum(increase(uma_events_total{event=\"unclean_boot\"}[5s])) > 0
    remedy:
      steps: [{notify: {message: 'Xid, {{ $value }}'}}, {compact_memory: {}}]
      cooldown: 2s
      require_approval: {expires: 10s}
      breaker: {misses: 2, reset_after: 5s}
";

fn moment(step: u64) -> Moment {
    let since = INTERVAL * u32::try_from(step).unwrap();
    let utc = Timestamp::from_second(1_795_000_000).unwrap();
    Moment { uptime: Duration::from_secs(1000) + since, utc: utc + since }
}

fn begin() -> SegmentBegin {
    let rules = RecordedRules {
        mode: Mode::Enforce,
        evaluation_interval: INTERVAL,
        files: vec![RuleText { name: "rules.yaml".to_owned(), text: RULES.to_owned() }],
        guard_rails: serde_json::to_value(default_guard_rails()).unwrap(),
        overrides: serde_json::Value::Null,
        assessment: AssessmentLimits::default(),
        forget_received_after: FORGET_RECEIVED_AFTER,
        cluster: None,
    };
    SegmentBegin {
        earlier_acts: vec![(
            RuleId { group: "memory".into(), alert: "Low".into() },
            Mode::Enforce,
            Duration::from_millis(500),
        )],
        already_counted: BTreeSet::from([3]),
        last_events: BTreeMap::from([("uvm_fatal".to_owned(), moment(0).utc)]),
        ..SegmentBegin::of_process("boot", moment(0), DecisionId(7), rules)
    }
}

fn policy() -> Policy {
    let begin = begin();
    let text = SourceText::new("rules.yaml", RULES);
    let rules = parse_rules(&[text], INTERVAL).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    let mut policy = Policy::new(begin.at, begin.rules.mode, &rules, begin.next_decision);
    policy.resume(begin.started, &begin.past());
    policy.resume_kernel_log(begin.already_counted);
    policy.resume_events(&begin.last_events);
    policy
}

/// Input between two steps, before it gets times and identities.
#[derive(Clone, Debug)]
enum Happens {
    Free(Reading<f64>),
    Fractions(Vec<Reading<f64>>, bool),
    Xid(u32),
    UncleanBoot(f64),
    Text(String),
    Lost(u64),
    Sample(Reading<f64>),
    Malformed,
    Outcome(bool),
    Pause(bool),
    Order(OperatorOrder),
    Past(Vec<(bool, i64)>),
}

fn reading() -> impl Strategy<Value = Reading<f64>> {
    prop_oneof![
        6 => (0..100_i32).prop_map(|value| Reading::Value(f64::from(value))),
        2 => (0..10_000_i32).prop_map(|value| Reading::Value(f64::from(value) / 1e6)),
        2 => any::<f64>().prop_map(Reading::Value),
        1 => Just(Reading::Failed),
        1 => Just(Reading::Unsupported),
    ]
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        8 => reading().prop_map(Happens::Free),
        3 => (prop::collection::vec(reading(), 3), any::<bool>())
            .prop_map(|(values, fail)| Happens::Fractions(values, fail)),
        1 => (0..200_u32).prop_map(Happens::Xid),
        1 => (-1e12..1e12).prop_map(Happens::UncleanBoot),
        1 => ".{0,40}".prop_map(Happens::Text),
        1 => any::<u64>().prop_map(Happens::Lost),
        1 => reading().prop_map(Happens::Sample),
        1 => Just(Happens::Malformed),
        3 => any::<bool>().prop_map(Happens::Outcome),
        1 => any::<bool>().prop_map(Happens::Pause),
        1 => order().prop_map(Happens::Order),
        1 => prop::collection::vec((any::<bool>(), any::<i64>()), 0..4).prop_map(Happens::Past),
    ]
}

fn order() -> impl Strategy<Value = OperatorOrder> {
    let until = (0..100_u64).prop_map(|second| moment(0).utc + Duration::from_secs(second));
    let rules = prop_oneof![
        Just(RuleSelector::All),
        Just(RuleSelector::Alert("Low".into())),
        Just(RuleSelector::Rule(RuleId { group: "memory".into(), alert: "Low".into() })),
    ];
    prop_oneof![
        (0..4_u64, rules.clone(), until.clone())
            .prop_map(|(id, rules, until)| OperatorOrder::Silence { id, rules, until }),
        (0..4_u64).prop_map(|id| OperatorOrder::EndSilence { id }),
        (0..40_u64, until).prop_map(|(decision, until)| OperatorOrder::Approve {
            decision: DecisionId(decision),
            until,
        }),
        rules.prop_map(|rules| OperatorOrder::ResetBreaker { rules }),
    ]
}

fn past(at: Moment, acts: &[(bool, i64)]) -> EarlierRuns {
    let act = |(number, (helped, uptime_ms)): (usize, &(bool, i64))| PastAct {
        id: DecisionId(number as u64),
        rule: RuleId { group: "memory".into(), alert: "Low".into() },
        mode: Mode::Enforce,
        step: number % 2,
        is_notice: false,
        uptime_ms: *uptime_ms,
        utc: at.utc,
        has_ended: *helped,
        aim_met: Some(*helped),
        approved: None,
        started_after: None,
        died_in: None,
        engine: None,
        takes_from_engine: false,
        fleet_action: None,
        is_forgiven: number % 3 == 0,
    };
    EarlierRuns { acts: acts.iter().enumerate().map(act).collect(), ..EarlierRuns::default() }
}

fn observation(at: Moment, seq: u64, happens: Happens, last: Option<DecisionId>) -> Observation {
    let readings = |source, names: &[&str], values, error: Option<&str>| {
        // A schema of its own each time: equal ones must be recognised as equal.
        let series = names.iter().map(|name| SeriesKey::new(name, &[("a", "b")])).collect();
        let series = if names.len() == 1 { vec![SeriesKey::new(names[0], &[])] } else { series };
        Observation::Readings(Readings {
            source,
            schema: Arc::new(Schema { series }),
            values,
            took: Duration::from_nanos(seq),
            error: error.map(Arc::from),
        })
    };
    let record = |text: String| {
        Observation::KernelRecord(KernelRecord {
            seq,
            facility: 0,
            level: 4,
            usec: seq,
            caller: seq.is_multiple_of(2).then(|| "T1".to_owned()),
            utc: at.utc - Duration::from_nanos(seq),
            text,
            dictionary: "A=b".to_owned(),
        })
    };
    match happens {
        Happens::Free(value) => {
            readings(Source::Meminfo, &["uma_memory_free_bytes"], vec![value], None)
        }
        Happens::Fractions(values, fail) => {
            readings(Source::Vmstat, &["x", "y", "z"], values, fail.then_some("it fails"))
        }
        Happens::Xid(xid) => record(format!("NVRM: Xid (PCI:000f:01:00): {xid}, pid=1, name=x, y")),
        Happens::UncleanBoot(value) => Observation::Event(unclean_boot(at, value)),
        Happens::Text(text) => record(text),
        Happens::Lost(lost) => Observation::KernelRecordsLost(lost),
        Happens::Sample(value) => {
            Observation::Sample { series: SeriesKey::new("s", &[("a", "b")]), value }
        }
        Happens::Malformed => Observation::KernelRecordMalformed,
        Happens::Pause(pause) => Observation::Pause(pause.then(|| Pause {
            author: "ada".to_owned(),
            comment: String::new(),
            since: Some(at.utc),
        })),
        Happens::Order(order) => Observation::Operator(OperatorCommand {
            at,
            author: "ada".to_owned(),
            comment: String::new(),
            order,
            refused: None,
        }),
        Happens::Past(acts) => Observation::Past(Box::new(past(at, &acts))),
        Happens::Outcome(done) => Observation::Outcome(Outcome {
            decision: last.unwrap_or(DecisionId(0)),
            action: "drop_caches".to_owned(),
            result: if done { OutcomeResult::Done } else { OutcomeResult::Failed("x".to_owned()) },
            ended: at,
            took: Duration::from_millis(3),
            effect: None,
        }),
    }
}

fn unclean_boot(at: Moment, value: f64) -> Event {
    let kind = umawarden::model::ProgramEvent::UncleanBoot {
        ended_boot_id: "before".to_owned(),
        last_record: Some(at.utc),
        gap_seconds: Some(value),
        memory_free_bytes: None,
        memory_available_bytes: Some(value / 3.0),
        memory_unaccounted_bytes: None,
        memory_pressure_full: None,
        loop_age_seconds: Some(0.1),
        last_event: Some("xid".to_owned()),
        firing: vec!["Low".to_owned()],
    };
    Event { kind: kind.into(), utc: Some(at.utc), seq: None }
}

/// Runs a policy; returns the steps to be recorded and the decisions.
fn lived(happenings: Vec<Vec<Happens>>) -> (Vec<RecordingEntry>, Vec<Step>) {
    let (mut policy, mut last, mut seq) = (policy(), None, 0);
    let (mut entries, mut steps) = (Vec::new(), Vec::new());
    for (number, happenings) in happenings.into_iter().enumerate() {
        let at = moment(number as u64);
        let mut seen = Vec::new();
        for happens in happenings {
            seq += 1;
            seen.push(observation(at, seq, happens, last));
        }
        let step = policy.step(at, &seen);
        let acts = step.decisions.iter().filter(|decision| decision.is_act());
        last = acts.map(|decision| decision.id).next_back().or(last);
        let said = StepResult {
            events: step.events.clone(),
            alerts: step.alerts.clone(),
            decisions: step.decisions.clone(),
            aim_checks: step.aim_checks.clone(),
        };
        entries.push(RecordingEntry::Step(RecordedStep { at, seen, said }));
        steps.push(step);
    }
    (entries, steps)
}

/// A file with a block for each `every` entries.
fn file(entries: &[RecordingEntry], every: usize) -> Vec<u8> {
    let (mut writer, mut bytes) = SegmentWriter::new(&begin()).unwrap();
    for entries in entries.chunks(every) {
        for entry in entries {
            assert_eq!(writer.take(entry), AddOutcome::Yes);
        }
        bytes.extend(writer.block().unwrap().unwrap_or_default());
    }
    bytes
}

/// The decisions of a replay of a file's entries, and those that the entries contain.
fn replayed(bytes: &[u8]) -> (Vec<Step>, Vec<StepResult>, bool) {
    let mut reader = SegmentReader::open(bytes).unwrap();
    let mut replayer = Replayer::under_recorded_rules();
    let (mut steps, mut said) = (Vec::new(), Vec::new());
    while let Some(entry) = reader.next_entry().unwrap() {
        let stepped = replayer.take(&entry).unwrap();
        if let RecordingEntry::Step(recorded) = entry {
            steps.push(stepped.step);
            said.push(recorded.said);
        }
    }
    (steps, said, reader.torn().is_some())
}

fn moment_of(entry: &RecordingEntry) -> Option<Moment> {
    match entry {
        RecordingEntry::Step(recorded) => Some(recorded.at),
        _ => None,
    }
}

/// Times of the steps of a file, and whether it is torn.
fn moments(bytes: &[u8]) -> (Vec<Moment>, bool) {
    let mut reader = SegmentReader::open(bytes).unwrap();
    let mut moments = Vec::new();
    while let Some(entry) = reader.next_entry().unwrap() {
        moments.extend(moment_of(&entry));
    }
    (moments, reader.torn().is_some())
}

/// As text, since a NaN does not equal itself.
fn text(steps: &[Step]) -> String {
    format!("{steps:#?}")
}

fn falling_memory(steps: u32) -> Vec<Vec<Happens>> {
    let free = |step: u32| {
        let value = f64::from((step * 7) % 100);
        let mut happenings = vec![Happens::Free(Reading::Value(value))];
        if step.is_multiple_of(31) {
            happenings.push(Happens::Xid(step));
        }
        if step.is_multiple_of(5) {
            happenings.push(Happens::Outcome(true));
        }
        happenings
    };
    (0..steps)
        .map(|step| if step < 20 { vec![Happens::Free(Reading::Value(1.0))] } else { free(step) })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn a_replay_repeats_the_decisions_of_the_recorded_policy(
        happenings in prop::collection::vec(prop::collection::vec(happens(), 0..5), 1..80),
        every in 1..20_usize,
    ) {
        let (entries, steps) = lived(happenings);
        let (again, recorded, torn) = replayed(&file(&entries, every));
        prop_assert!(!torn);
        prop_assert_eq!(text(&steps), text(&again));
        for (step, recorded) in steps.iter().zip(&recorded) {
            prop_assert_eq!(format!("{:?}", step.decisions), format!("{:?}", recorded.decisions));
            prop_assert_eq!(format!("{:?}", step.alerts), format!("{:?}", recorded.alerts));
            prop_assert_eq!(format!("{:?}", step.events), format!("{:?}", recorded.events));
        }
    }

    #[test]
    fn hostile_bytes_end_only_the_recording(
        mut bytes in prop::collection::vec(any::<u8>(), 0..2000),
        has_magic in any::<bool>(),
    ) {
        if has_magic {
            bytes.splice(0..0, *b"umarec\x01\x00");
        }
        if let Ok(mut reader) = SegmentReader::open(&*bytes) {
            while reader.next_entry().unwrap().is_some() {}
        }
    }

    #[test]
    fn damage_anywhere_is_detected(at in any::<prop::sample::Index>(), flip in 1..=255_u8) {
        let (entries, steps) = lived(falling_memory(60));
        let mut bytes = file(&entries, 10);
        let offset = 8 + at.index(bytes.len() - 8);
        bytes[offset] ^= flip;
        let mut reader = SegmentReader::open(&*bytes).unwrap();
        let mut count = 0;
        while let Some(entry) = reader.next_entry().unwrap() {
            count += usize::from(matches!(entry, RecordingEntry::Step(_)));
        }
        prop_assert!(reader.torn().is_some());
        prop_assert!(count < steps.len());
    }
}

#[test]
fn the_generated_node_makes_the_policy_decide() {
    let (_, steps) = lived(falling_memory(200));
    let decisions: BTreeSet<&str> = steps
        .iter()
        .flat_map(|step| &step.decisions)
        .map(|decision| decision.decision.name())
        .collect();
    assert_eq!(decisions, BTreeSet::from(["act", "hold"]), "the tests here would show nothing");
}

#[test]
fn a_torn_tail_costs_at_most_the_last_block() {
    let (entries, steps) = lived(falling_memory(60));
    let whole = file(&entries, 10);
    let head = file(&[], 1).len();
    let ends: Vec<usize> = (0..=6).map(|blocks| file(&entries[..blocks * 10], 10).len()).collect();
    let all: Vec<Moment> = entries.iter().filter_map(moment_of).collect();
    for cut in head..whole.len() {
        // Entries come in whole blocks, each with its checksum.
        let (read, torn) = moments(&whole[..cut]);
        let blocks = ends.iter().filter(|end| **end <= cut).count() - 1;
        assert_eq!(read, all[..blocks * 10], "cut at {cut}");
        assert_eq!(torn, !ends.contains(&cut), "cut at {cut}");
    }
    for (blocks, end) in ends.iter().enumerate() {
        let cut = whole.len().min(end + 1);
        let (again, _, _) = replayed(&whole[..cut]);
        assert_eq!(text(&again), text(&steps[..blocks * 10]), "cut at {cut}");
    }
    for cut in 0..head {
        // Not even the first entry is whole.
        if let Ok(mut reader) = SegmentReader::open(&whole[..cut]) {
            assert!(reader.next_entry().unwrap().is_none(), "cut at {cut}");
        }
    }
}

#[test]
fn a_block_with_a_huge_declared_size_is_rejected() {
    let mut bytes = b"umarec\x01\x00".to_vec();
    bytes.extend([0xff; 12]);
    let mut reader = SegmentReader::open(&*bytes).unwrap();
    assert!(reader.next_entry().unwrap().is_none());
    assert!(reader.torn().unwrap().why.contains("out of bounds"));
}

#[test]
fn a_newer_format_is_refused_by_its_version() {
    let error = SegmentReader::open(&b"umarec\x02\x00"[..]).err().unwrap();
    assert!(error.to_string().contains("format 2 is newer than 1"), "{error}");
}

#[test]
fn a_replay_knows_the_events_of_this_boot_before_the_start() {
    let rule = "groups: [{name: g, rules: [{alert: Fatal, expr: \
                'uma_kernel_event_last_timestamp_seconds{event=\"uvm_fatal\"} > 0'}]}]";
    let firing = |begin: SegmentBegin| {
        let mut replayer = Replayer::under(vec![SourceText::new("rules.yaml", rule)]);
        replayer.take(&RecordingEntry::Begin(Box::new(begin))).unwrap();
        let measured = Observation::Readings(Readings {
            source: Source::Meminfo,
            schema: Arc::new(Schema { series: Vec::new() }),
            values: Vec::new(),
            took: Duration::ZERO,
            error: None,
        });
        let (at, said) = (moment(1), StepResult::default());
        let step = RecordedStep { at, seen: vec![measured], said };
        replayer.take(&RecordingEntry::Step(step)).unwrap().step.alerts.len()
    };
    assert_eq!(firing(begin()), 2, "pending, and firing");
    assert_eq!(firing(SegmentBegin { last_events: BTreeMap::new(), ..begin() }), 0);
}
