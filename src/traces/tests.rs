use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use opentelemetry::Value;
use opentelemetry::trace::{SpanId, Status};

use super::*;
use crate::model::{
    Action, CacheKind, Decision, Evidence, HoldReason, KernelEvent, Mode, OutcomeResult, Target,
};

fn at(seconds: u64) -> Moment {
    let utc = Timestamp::from_second(1_700_000_000 + seconds as i64).unwrap();
    Moment { uptime: Duration::from_secs(1000 + seconds), utc }
}

fn rule() -> RuleId {
    RuleId { group: "g".into(), alert: "Low".into() }
}

fn change(seconds: u64, from: AlertState, to: AlertState) -> TraceInput {
    TraceInput::Alert(AlertChange {
        at: at(seconds),
        rule: rule(),
        labels: BTreeMap::from([("severity".into(), "warning".into())]),
        from,
        to,
        value: Reading::Value(7.0),
        annotations: BTreeMap::from([("summary".into(), "little is free".to_owned())]),
    })
}

fn fires(tracer: &mut Tracer, seconds: u64) {
    tracer.take(change(seconds - 2, AlertState::Inactive, AlertState::Pending));
    tracer.take(change(seconds, AlertState::Pending, AlertState::Firing));
}

fn evidence(series: &str, value: Reading<f64>) -> Evidence {
    Evidence { series: series.to_owned(), value }
}

fn decision(id: u64, seconds: u64, step: usize, decision: Decision) -> DecisionRecord {
    DecisionRecord {
        id: DecisionId(id),
        at: at(seconds),
        rule: rule(),
        mode: Mode::Enforce,
        decision,
        step,
        action: Action::DropCaches { what: CacheKind::PageCache, sync: false },
        target: Target::Node,
        approved: None,
        goes_ahead: None,
        because: vec![
            evidence("uma_memory_free_bytes", Reading::Value(5.0)),
            evidence("uma_memory_cma_free_bytes", Reading::Unsupported),
        ],
    }
}

fn outcome(id: u64, seconds: u64, result: OutcomeResult) -> TraceInput {
    TraceInput::Outcome(Outcome {
        decision: DecisionId(id),
        action: "drop_caches".to_owned(),
        result,
        ended: at(seconds),
        took: Duration::from_secs(1),
        effect: Some("1 GiB".to_owned()),
    })
}

fn aim_check(id: u64, seconds: u64, aim_met: Option<bool>) -> TraceInput {
    TraceInput::AimCheck(AimCheck {
        decision: DecisionId(id),
        at: at(seconds),
        aim_met,
        has_aim: true,
        died_in: None,
        before: vec![evidence("uma_memory_free_bytes", Reading::Value(5.0))],
        after: vec![evidence("uma_memory_free_bytes", Reading::Value(9.0))],
    })
}

fn tracer() -> Tracer {
    Tracer::new("boot".into())
}

/// Names with those of their parents; all must belong to one trace.
fn shape(trace: &Trace) -> Vec<String> {
    let id = trace[0].span_context.trace_id();
    let one = |span: &SpanData| {
        assert_eq!(span.span_context.trace_id(), id);
        assert!(span.span_context.is_valid() && span.start_time <= span.end_time);
        let parent = trace.iter().find(|other| other.span_context.span_id() == span.parent_span_id);
        match parent {
            Some(parent) => format!("{} < {}", span.name, parent.name),
            None => {
                assert_eq!(span.parent_span_id, SpanId::INVALID);
                span.name.to_string()
            }
        }
    };
    let shape = trace.iter().map(one).collect();
    let id = |span: &SpanData| span.span_context.span_id().to_bytes();
    let mut spans: Vec<_> = trace.iter().map(id).collect();
    spans.sort_unstable();
    spans.dedup();
    assert_eq!(spans.len(), trace.len(), "each span has an id of its own");
    shape
}

fn attribute<'t>(trace: &'t Trace, span: &str, key: &str) -> Option<&'t Value> {
    let span = trace.iter().find(|one| one.name == span).unwrap();
    span.attributes.iter().find(|pair| pair.key.as_str() == key).map(|pair| &pair.value)
}

#[test]
fn a_round_is_one_trace_from_its_event_to_its_effect() {
    let mut tracer = tracer();
    let kind = KernelEvent::UvmFatal;
    tracer.take(TraceInput::Event(Event {
        kind: kind.into(),
        utc: Some(at(6).utc),
        seq: Some(77),
    }));
    fires(&mut tracer, 10);
    let mut first = decision(1, 10, 0, Decision::Act);
    let name = KernelEvent::UvmFatal;
    let series = format!("uma_kernel_events_total{{event=\"{}\"}}", name.kind());
    first.because.push(evidence(&series, Reading::Value(1.0)));
    tracer.take(TraceInput::Decision(first));
    tracer.take(outcome(1, 12, OutcomeResult::Done));
    tracer.take(aim_check(1, 13, Some(false)));
    tracer.take(TraceInput::Decision(decision(2, 13, 1, Decision::Act)));
    tracer.take(outcome(2, 15, OutcomeResult::Failed("no such file".to_owned())));
    assert!(tracer.ended(at(40)).is_empty(), "its effect is still to be measured");
    tracer.take(aim_check(2, 41, Some(true)));
    assert!(tracer.ended(at(42)).is_empty(), "what follows at once belongs to it");
    let traces = tracer.ended(at(60));
    let [trace] = &traces[..] else { panic!("{}", traces.len()) };
    let expected = [
        "remedy Low",
        "event uvm_fatal < remedy Low",
        "alert Low < remedy Low",
        "decision act < remedy Low",
        "step drop_caches < decision act",
        "aim < decision act",
        "decision act < remedy Low",
        "step drop_caches < decision act",
        "aim < decision act",
    ];
    assert_eq!(shape(trace), expected);
    assert_eq!(attribute(trace, "remedy Low", "umawarden.result"), Some(&"met".into()));
    assert_eq!(trace[0].status, Status::Ok);
    assert_eq!(trace[0].start_time, SystemTime::from(at(6).utc), "it begins with the event");
    assert_eq!(
        trace[0].end_time,
        SystemTime::from(at(41).utc),
        "and ends with the last that was seen"
    );
    assert_eq!(
        attribute(trace, "decision act", "because.uma_memory_free_bytes"),
        Some(&5.0.into())
    );
    let unknown = "uma_memory_cma_free_bytes unsupported".into();
    assert_eq!(attribute(trace, "decision act", "because.unknown"), Some(&unknown));
    assert_eq!(attribute(trace, "aim", "after.uma_memory_free_bytes"), Some(&9.0.into()));
    assert_eq!(attribute(trace, "event uvm_fatal", "umawarden.event.seq"), Some(&77.into()));
    assert_eq!(attribute(trace, "alert Low", "label.severity"), Some(&"warning".into()));
    assert_eq!(trace[4].start_time, SystemTime::from(at(11).utc), "the action took a second");
    assert_eq!(trace[7].status, Status::error("no such file"));
    assert!(tracer.ended(at(4000)).is_empty(), "no trace comes twice");
}

#[test]
fn holds_are_in_the_trace_and_the_next_round_links_to_the_previous() {
    let mut tracer = tracer();
    fires(&mut tracer, 10);
    let mut would = decision(1, 10, 0, Decision::Act);
    would.mode = Mode::Observe;
    tracer.take(TraceInput::Decision(would));
    tracer.take(outcome(1, 10, OutcomeResult::Skipped));
    tracer.take(TraceInput::Decision(decision(2, 11, 0, Decision::Hold(HoldReason::Cooldown))));
    tracer.take(TraceInput::Decision(decision(3, 300, 0, Decision::Act)));
    let first = tracer.ended(at(300)).remove(0);
    assert_eq!(
        shape(&first)[2..],
        [
            "decision act < remedy Low",
            "step drop_caches < decision act",
            "decision hold < remedy Low",
        ]
    );
    assert_eq!(attribute(&first, "remedy Low", "umawarden.result"), Some(&"skipped".into()));
    assert_eq!(attribute(&first, "decision hold", "umawarden.reason"), Some(&"cooldown".into()));
    tracer.take(outcome(3, 301, OutcomeResult::NotDone("busy".to_owned())));
    let second = tracer.ended(at(400)).remove(0);
    assert_eq!(second[0].links.links[0].span_context, first[0].span_context);
    assert!(!shape(&second).iter().any(|span| span.starts_with("alert")), "in the first trace");
    assert_eq!(second[0].status, Status::error("busy"));
}

#[test]
fn a_missing_outcome_is_unknown_and_a_late_one_still_finds_its_trace() {
    let mut tracer = tracer();
    fires(&mut tracer, 10);
    tracer.take(TraceInput::Decision(decision(1, 10, 0, Decision::Act)));
    tracer.take(change(20, AlertState::Firing, AlertState::Inactive));
    assert!(tracer.ended(at(900)).is_empty(), "it may still come");
    let trace = tracer.ended(at(911)).remove(0);
    assert_eq!(attribute(&trace, "step drop_caches", "umawarden.outcome"), Some(&"unknown".into()));
    assert_eq!(trace[0].status, Status::Unset, "unknown");
    assert_eq!(trace[0].end_time, SystemTime::from(at(20).utc), "nothing was seen after that");
    tracer.take(outcome(1, 2000, OutcomeResult::Done));
    let late = tracer.ended(at(2000)).remove(0);
    let decided = trace.iter().find(|span| span.name == "decision act").unwrap();
    assert_eq!(late[0].span_context.trace_id(), decided.span_context.trace_id());
    assert_eq!(late[0].parent_span_id, decided.span_context.span_id());
    assert_eq!(late[0].name, "late outcome of drop_caches");
    tracer.take(outcome(99, 2000, OutcomeResult::Done));
    assert!(tracer.ended(at(2000)).is_empty(), "an unknown decision has no trace");
}

#[test]
fn the_same_decision_has_the_same_ids_in_the_same_boot_alone() {
    let trace = |boot: &str| {
        let mut tracer = Tracer::new(boot.into());
        tracer.take(TraceInput::Decision(decision(1, 10, 0, Decision::Act)));
        tracer.end().remove(0)
    };
    let ids =
        |trace: &Trace| -> Vec<_> { trace.iter().map(|span| span.span_context.clone()).collect() };
    assert_eq!(ids(&trace("a")), ids(&trace("a")));
    assert_ne!(ids(&trace("a")), ids(&trace("b")));
    assert_eq!(attribute(&trace("a"), "remedy Low", "umawarden.result"), Some(&"cut".into()));
}

#[test]
fn traces_are_bounded_for_any_input() {
    let mut tracer = tracer();
    fires(&mut tracer, 10);
    for id in 0..1000 {
        let hold = HoldReason::ALL[id as usize % HoldReason::ALL.len()];
        let mut decision = decision(id, 10, 0, Decision::Hold(hold));
        decision.because[0].series = "x".repeat(5000);
        tracer.take(TraceInput::Decision(decision));
    }
    let traces = tracer.ended(at(10));
    assert_eq!(traces.len(), 31, "a long round goes on in the next trace");
    assert!(traces.iter().all(|trace| trace.len() <= 34));
    for number in 0..5000 {
        let mut change = change(10, AlertState::Inactive, AlertState::Firing);
        if let TraceInput::Alert(change) = &mut change {
            change.rule.alert = format!("r{number}").into();
        }
        tracer.take(change);
    }
    assert!(tracer.rules.len() <= MOST_RULES);
    for id in 2000..3000 {
        let mut act = decision(id, 20, 0, Decision::Act);
        act.rule.alert = "r1".into();
        tracer.take(TraceInput::Decision(act));
    }
    tracer.end();
    assert!(tracer.unended.len() <= MOST_UNENDED);
}

#[test]
fn a_clock_set_back_ends_no_span_before_its_begin() {
    let mut tracer = tracer();
    fires(&mut tracer, 100);
    tracer.take(TraceInput::Decision(decision(1, 100, 0, Decision::Act)));
    let back = |seconds, uptime| Moment { uptime: at(uptime).uptime, ..at(seconds) };
    if let (TraceInput::Outcome(mut done), TraceInput::AimCheck(mut seen)) =
        (outcome(1, 0, OutcomeResult::Done), aim_check(1, 0, None))
    {
        (done.ended, seen.at) = (back(3, 101), back(1, 102));
        tracer.take(TraceInput::Outcome(done));
        tracer.take(TraceInput::AimCheck(seen));
    }
    let trace = tracer.ended(at(200)).remove(0);
    assert_eq!(shape(&trace).len(), 5);
    assert_eq!(attribute(&trace, "remedy Low", "umawarden.result"), Some(&"unknown".into()));
}
