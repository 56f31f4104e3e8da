//! Orders of people, where a recording begins after them.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use promql_rules::{Evaluated, Value, parse};
use umawarden::cli::replay::Replayer;
use umawarden::config::mistake::SourceText;
use umawarden::model::{
    Decision, DecisionId, EarlierRuns, Event, HoldReason, Moment, Observation, OperatorCommand,
    OperatorOrder, PastReceived, Pause, ProgramEvent, Reading, Readings, ReceivedAlert,
    ReceivedStatus, ReceivedTurn, RuleSelector, Schema, SeriesKey, Source,
};
use umawarden::policy::rule::Query;
use umawarden::recording::{RecordedStep, RecordingEntry, SegmentBegin, StepResult};

use super::{begin, moment};

const RULE: &str = "groups: [{name: g, rules: [{alert: Always, mode: enforce, \
    expr: uma_memory_free_bytes >= 0, \
    remedy: {aim: uma_memory_free_bytes < 0, steps: [compact_memory: {}], cooldown: 1ms}}]}]";

fn step(number: u64, seen: Vec<Observation>) -> RecordingEntry {
    RecordingEntry::Step(RecordedStep { at: moment(number), seen, said: StepResult::default() })
}

fn order(at: Moment, order: OperatorOrder) -> OperatorCommand {
    OperatorCommand {
        at,
        author: "root (uid 0)".to_owned(),
        comment: String::new(),
        order,
        refused: None,
    }
}

fn silence(id: u64, until: Timestamp) -> OperatorCommand {
    order(moment(0), OperatorOrder::Silence { id, rules: RuleSelector::All, until })
}

fn approval(until: Timestamp) -> OperatorCommand {
    order(moment(0), OperatorOrder::Approve { decision: DecisionId(5), until })
}

/// The decision of the rule in the first step of a recording that begins so.
fn first_decision(begin: SegmentBegin) -> Decision {
    let mut replayer = Replayer::under(vec![SourceText::new("rules.yaml", RULE)]);
    replayer.take(&RecordingEntry::Begin(Box::new(begin))).unwrap();
    let measured = Observation::Readings(Readings {
        source: Source::Meminfo,
        schema: Arc::new(Schema { series: vec![SeriesKey::new("uma_memory_free_bytes", &[])] }),
        values: vec![Reading::Value(1.0)],
        took: Duration::ZERO,
        error: None,
    });
    let stepped = replayer.take(&step(1, vec![measured])).unwrap();
    stepped.step.decisions[0].decision
}

#[test]
fn a_later_segment_knows_the_orders_in_force() {
    let (soon, late) = (moment(5).utc, moment(10_000).utc);
    let mut here = begin();
    here.pass(&step(1, vec![Observation::Operator(silence(2, late))]));
    let commands = vec![silence(1, late), approval(late)];
    let past = EarlierRuns { commands, ..EarlierRuns::default() };
    here.pass(&step(2, vec![Observation::Past(Box::new(past))]));
    here.pass(&step(3, vec![Observation::Operator(silence(3, soon))]));
    assert_eq!(here.orders.len(), 4);
    let pause = Pause { author: "a".to_owned(), comment: String::new(), since: None };
    here.pass(&step(4, vec![Observation::Pause(Some(pause.clone()))]));
    let end = order(moment(6), OperatorOrder::EndSilence { id: 1 });
    let rules = RuleSelector::All;
    let reset = order(moment(6), OperatorOrder::ResetBreaker { rules });
    here.pass(&step(6, vec![Observation::Operator(end), Observation::Operator(reset)]));
    assert_eq!(here.orders, [approval(late), silence(2, late)]);
    assert_eq!(here.pause, Some(pause));
    here.pass(&step(7, vec![Observation::Pause(None)]));
    assert_eq!(here.pause, None);
}

#[test]
fn a_replay_from_a_later_segment_holds_as_recorded() {
    let late = moment(10_000).utc;
    let middle = SegmentBegin { is_start: false, earlier_acts: Vec::new(), ..begin() };
    assert_eq!(first_decision(middle.clone()), Decision::Act);
    let silenced = SegmentBegin { orders: vec![silence(1, late)], ..middle.clone() };
    assert_eq!(first_decision(silenced), Decision::Hold(HoldReason::Silenced));
    let pause = Some(Pause { author: "a".to_owned(), comment: String::new(), since: None });
    let paused = SegmentBegin { pause, ..middle };
    assert_eq!(first_decision(paused), Decision::Hold(HoldReason::Paused));
}

#[test]
fn a_later_segment_knows_the_firing_received_alerts() {
    let received = |fingerprint: &str, to| {
        let alert = ReceivedAlert {
            by: None,
            fingerprint: fingerprint.into(),
            status: ReceivedStatus::Firing,
            starts_at: moment(0).utc,
            ends_at: None,
            labels: [("alertname".into(), "A".into())].into(),
        };
        PastReceived { to, alert: Arc::new(alert), utc: Some(moment(1).utc) }
    };
    let turn = |seconds, past: PastReceived| {
        let kind = ProgramEvent::ReceivedAlert { to: past.to, alert: past.alert };
        let event = Event { kind: kind.into(), utc: past.utc, seq: None };
        let said = StepResult { events: vec![event], ..StepResult::default() };
        RecordingEntry::Step(RecordedStep { at: moment(seconds), seen: Vec::new(), said })
    };
    let [firing, resolved] = [ReceivedTurn::Firing, ReceivedTurn::Resolved];
    let mut here = SegmentBegin { is_start: false, ..begin() };
    let earlier = vec![received("a", firing), received("b", resolved)];
    let past = EarlierRuns { received: earlier, ..EarlierRuns::default() };
    here.pass(&step(1, vec![Observation::Past(Box::new(past))]));
    here.pass(&turn(2, received("c", firing)));
    here.pass(&turn(3, received("a", resolved)));
    assert_eq!(here.received, [received("c", firing)]);
    // A replay from there knows it, however long the process has run.
    here.at = moment(1_000_000);
    let mut replayer = Replayer::under_recorded_rules();
    replayer.take(&RecordingEntry::Begin(Box::new(here))).unwrap();
    let query = Query { text: "ALERTS".into(), expr: parse("ALERTS").unwrap() };
    replayer.take(&step(1_000_001, Vec::new())).unwrap();
    let result = replayer.policy().unwrap().ask(&query, moment(1_000_001)).unwrap();
    let Evaluated::Known(Value::Vector(samples)) = result else { panic!("{result:?}") };
    assert_eq!(samples.len(), 1);
}
