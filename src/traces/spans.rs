//! A round as spans.

use jiff::Timestamp;
use opentelemetry::trace::{Link, SpanContext, SpanId, SpanKind, Status};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

use super::ids::Ids;
use super::round::{RoundEnd, TraceRound, TracedAct};
use super::{Trace, TracedAlert};
use crate::model::{
    AimCheck, Decision, Event, Evidence, Moment, Outcome, OutcomeResult, Pod, Reading, RuleId,
    Target,
};

/// No text is longer, in bytes.
const LONGEST_TEXT: usize = 1024;

/// Labels of an alert in its span.
const MOST_LABELS: usize = 16;

/// A span with no parent becomes a child of the root, unless it is the root.
fn span(
    context: SpanContext,
    parent: SpanId,
    name: String,
    (begins, ends): (Timestamp, Timestamp),
    attributes: Vec<KeyValue>,
) -> SpanData {
    SpanData {
        span_context: context,
        parent_span_id: parent,
        parent_span_is_remote: false,
        span_kind: SpanKind::Internal,
        name: name.into(),
        start_time: begins.into(),
        // The wall clock may have been set back meanwhile.
        end_time: ends.max(begins).into(),
        attributes,
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: Status::Unset,
        instrumentation_scope: scope(),
    }
}

/// The instrumentation scope: this program and its version.
pub fn scope() -> InstrumentationScope {
    InstrumentationScope::builder("umawarden").with_version(env!("CARGO_PKG_VERSION")).build()
}

fn text(key: impl Into<String>, value: &str) -> KeyValue {
    let mut end = value.len().min(LONGEST_TEXT);
    while !value.is_char_boundary(end) {
        end -= 1;
    }
    KeyValue::new(key.into(), value[..end].to_owned())
}

fn number(key: &'static str, value: u64) -> KeyValue {
    KeyValue::new(key, i64::try_from(value).unwrap_or(i64::MAX))
}

/// Values by their series. Missing values are listed by name, since they are not 0.
fn values<'e>(prefix: &'e str, evidence: &'e [Evidence]) -> impl Iterator<Item = KeyValue> {
    let known = evidence.iter().filter_map(move |one| {
        let value = one.value.value()?;
        Some(KeyValue::new(format!("{prefix}.{}", one.series), value))
    });
    let missing = evidence.iter().filter_map(|one| {
        let why = match one.value {
            Reading::Value(_) => return None,
            Reading::Unsupported => "unsupported",
            Reading::Failed => "failed",
        };
        Some(format!("{} {why}", one.series))
    });
    let missing = missing.collect::<Vec<_>>().join(", ");
    let missing = (!missing.is_empty()).then(|| text(format!("{prefix}.unknown"), &missing));
    known.chain(missing)
}

/// The trace of a round, its root first.
pub(super) fn of_round(
    round: &TraceRound,
    rule: &RuleId,
    boot_id: &str,
    ending: RoundEnd,
) -> Trace {
    let root = round.ids().root();
    let below = |mut spans: Vec<SpanData>| {
        spans.iter_mut().filter(|span| span.parent_span_id == SpanId::INVALID).for_each(|span| {
            span.parent_span_id = root.span_id();
        });
        spans
    };
    let mut spans = Vec::new();
    spans.extend(round.events.iter().map(|event| of_event(round.ids(), event)));
    spans.extend(
        round.alerts.iter().enumerate().map(|(index, alert)| of_alert(round, rule, index, alert)),
    );
    for act in &round.acts {
        spans.extend(of_act(round, act, ending));
    }
    let spans = below(spans);
    let ends = spans.iter().map(|span| span.end_time).max();
    let begins = spans.iter().map(|span| span.start_time).min();
    let name = format!("remedy {}", rule.alert);
    let (result, status) = result(round, ending);
    let mut attributes = vec![
        text("umawarden.rule.group", &rule.group),
        text("umawarden.rule.name", &rule.alert),
        text("umawarden.result", result),
        text("umawarden.boot_id", boot_id),
    ];
    attributes.extend(round.acts.first().map(mode));
    let at = (round.began.utc, round.last.utc);
    let mut whole = span(root, SpanId::INVALID, name, at, attributes);
    whole.start_time = begins.map_or(whole.start_time, |begins| whole.start_time.min(begins));
    whole.end_time = ends.map_or(whole.end_time, |ends| whole.end_time.max(ends));
    whole.status = status;
    if let Some(previous) = &round.previous {
        let kind = vec![KeyValue::new("umawarden.link", "the round before, of the same alert")];
        whole.links.links.push(Link::new(previous.root(), kind, 0));
    }
    let mut trace = vec![whole];
    trace.extend(spans);
    trace
}

fn mode(act: &TracedAct) -> KeyValue {
    KeyValue::new("umawarden.mode", act.decision.mode.name())
}

/// The result of a round, by its last act.
fn result(round: &TraceRound, ending: RoundEnd) -> (&'static str, Status) {
    let mut acts = round.acts.iter().rev().filter(|act| act.decision.is_act());
    let Some(act) = acts.next() else { return ("held", Status::Unset) };
    if let Some(aim_check) = &act.aim_check {
        return match aim_check.aim_met {
            Some(true) => ("met", Status::Ok),
            Some(false) => ("missed", Status::error("the aim is still missed")),
            None => ("unknown", Status::Unset),
        };
    }
    match &act.outcome {
        None if ending == RoundEnd::Cut => ("cut", Status::Unset),
        None => ("unknown", Status::Unset),
        Some(outcome) => match &outcome.result {
            OutcomeResult::Skipped => ("skipped", Status::Unset),
            OutcomeResult::Done => ("done", Status::Unset),
            other => (other.name(), error(other)),
        },
    }
}

/// A failure as a status. Of what did not fail, the aim has the status.
fn error(result: &OutcomeResult) -> Status {
    match result {
        OutcomeResult::Done => Status::Ok,
        OutcomeResult::Skipped => Status::Unset,
        OutcomeResult::NotDone(why) | OutcomeResult::Failed(why) => {
            let why: String = why.chars().take(LONGEST_TEXT / 4).collect();
            Status::error(why)
        }
        OutcomeResult::TimedOut => Status::error("timed out; the action may still be running"),
    }
}

fn of_event(ids: &Ids, event: &Event) -> SpanData {
    let kind = event.kind.kind();
    let seq = event.seq.map(|seq| seq.to_string()).unwrap_or_default();
    let mut attributes = vec![text("umawarden.event.kind", kind)];
    attributes.extend(event.seq.map(|seq| number("umawarden.event.seq", seq)));
    let detail = serde_json::to_string(&event.kind).unwrap_or_default();
    attributes.push(text("umawarden.event.detail", &detail));
    // Only events with a time are in a trace: see `is_recent`.
    let at = event.utc.unwrap_or_default();
    let context = ids.part("event", &format!("{kind} {seq}"));
    span(context, SpanId::INVALID, format!("event {kind}"), (at, at), attributes)
}

fn of_alert(round: &TraceRound, rule: &RuleId, index: usize, alert: &TracedAlert) -> SpanData {
    let mut attributes = Vec::new();
    attributes.extend(alert.value.value().map(|v| KeyValue::new("umawarden.alert.value", v)));
    attributes.extend(alert.summary.as_deref().map(|s| text("umawarden.alert.summary", s)));
    let labels = alert.labels.iter().take(MOST_LABELS);
    attributes.extend(labels.map(|(name, value)| text(format!("label.{name}"), value)));
    let state = if alert.firing.is_some() { "firing" } else { "pending" };
    attributes.push(text("umawarden.alert.state", state));
    let begins = alert.pending.or(alert.firing).map_or(round.began.utc, |at| at.utc);
    let ends = alert.firing.map_or(round.began.utc, |at| at.utc);
    let context = round.ids().part("alert", &index.to_string());
    span(context, SpanId::INVALID, format!("alert {}", rule.alert), (begins, ends), attributes)
}

fn of_act(round: &TraceRound, act: &TracedAct, ending: RoundEnd) -> Vec<SpanData> {
    let decision = &act.decision;
    let decided = decision.decision;
    let context = round.ids().of_decision("decision", decision.id);
    let mut attributes = vec![
        number("umawarden.decision.id", decision.id.0),
        text("umawarden.decision", decided.name()),
        mode(act),
        text("umawarden.action", decision.action.name()),
    ];
    if let Decision::Hold(reason) = decided {
        attributes.push(text("umawarden.reason", reason.name()));
        attributes.push(text("umawarden.reason.meaning", reason.meaning()));
    }
    attributes.extend(decision.approved.map(|id| number("umawarden.approved", id.0)));
    attributes.extend(values("because", &decision.because));
    let of_step = decision.is_act().then(|| step(round, act, ending));
    let of_aim = act.aim_check.as_ref().map(|seen| aim(round.ids(), seen, ended(act)));
    let below: Vec<SpanData> = of_step.into_iter().chain(of_aim).collect();
    let ends = below.iter().map(|span| span.end_time).max();
    let (at, name) = (decision.at.utc, format!("decision {}", decided.name()));
    let mut made = span(context, SpanId::INVALID, name, (at, at), attributes);
    made.end_time = ends.map_or(made.end_time, |ends| made.end_time.max(ends));
    std::iter::once(made).chain(below).collect()
}

fn ended(act: &TracedAct) -> Moment {
    act.outcome.as_ref().map_or(act.decision.at, |outcome| outcome.ended)
}

/// From the start of the action to its outcome. An act without an outcome ends with the last entry
/// of its round, and its outcome is unknown.
fn step(round: &TraceRound, act: &TracedAct, ending: RoundEnd) -> SpanData {
    let decision = &act.decision;
    let parameters = serde_json::to_string(&decision.action).unwrap_or_default();
    let mut attributes = vec![
        number("umawarden.step", decision.step as u64),
        text("umawarden.action", decision.action.name()),
        text("umawarden.action.parameters", &parameters),
        text("umawarden.target", &decision.target.to_string()),
        text("umawarden.deed", &decision.deed()),
    ];
    attributes.extend(of_pod(&decision.target));
    let name = format!("step {}", decision.action.name());
    let context = round.ids().of_decision("step", decision.id);
    let parent = round.ids().of_decision("decision", decision.id).span_id();
    let Some(outcome) = &act.outcome else {
        let why = match ending {
            RoundEnd::Rest => "no outcome was recorded",
            RoundEnd::Cut => "the program ended before the outcome",
        };
        attributes.push(text("umawarden.outcome", "unknown"));
        attributes.push(text("umawarden.outcome.detail", why));
        let at = (decision.at.utc, round.last.utc);
        return span(context, parent, name, at, attributes);
    };
    attributes.extend(of_outcome(outcome));
    let began = began(outcome).max(decision.at.utc);
    let mut step = span(context, parent, name, (began, outcome.ended.utc), attributes);
    step.status = error(&outcome.result);
    step
}

/// The pod of an engine, by the names of OpenTelemetry's semantic conventions.
fn of_pod(target: &Target) -> Vec<KeyValue> {
    let Target::Engine(engine) = target else { return Vec::new() };
    let Some(pod) = &engine.pod else { return Vec::new() };
    let Pod { namespace, name, uid, container, .. } = &**pod;
    let pairs = [
        ("k8s.namespace.name", namespace),
        ("k8s.pod.name", name),
        ("k8s.pod.uid", uid),
        ("k8s.container.name", container),
    ];
    pairs.map(|(key, value)| text(key, value)).to_vec()
}

fn began(outcome: &Outcome) -> Timestamp {
    let took = jiff::SignedDuration::try_from(outcome.took).unwrap_or_default();
    outcome.ended.utc.checked_sub(took).unwrap_or(outcome.ended.utc)
}

fn of_outcome(outcome: &Outcome) -> Vec<KeyValue> {
    let mut attributes = vec![text("umawarden.outcome", outcome.result.name())];
    if let OutcomeResult::NotDone(why) | OutcomeResult::Failed(why) = &outcome.result {
        attributes.push(text("umawarden.outcome.detail", why));
    }
    attributes.extend(outcome.effect.as_deref().map(|effect| text("umawarden.effect", effect)));
    attributes
}

/// From the outcome to the measurement after it.
fn aim(ids: &Ids, seen: &AimCheck, since: Moment) -> SpanData {
    let (result, status) = match seen.aim_met {
        Some(true) => ("met", Status::Ok),
        Some(false) => ("missed", Status::error("the aim is still missed")),
        None => ("unknown", Status::Unset),
    };
    let mut attributes =
        vec![text("umawarden.aim", result), KeyValue::new("umawarden.aim.of_rule", seen.has_aim)];
    attributes.extend(seen.died_in.map(|phase| text("umawarden.died_in", phase.name())));
    attributes.extend(values("before", &seen.before));
    attributes.extend(values("after", &seen.after));
    let context = ids.of_decision("aim", seen.decision);
    let parent = ids.of_decision("decision", seen.decision).span_id();
    let at = (since.utc.min(seen.at.utc), seen.at.utc);
    let mut aim = span(context, parent, "aim".to_owned(), at, attributes);
    aim.status = status;
    aim
}

/// An outcome after the trace of its round was finished.
pub(super) fn late_step(ids: &Ids, outcome: &Outcome) -> SpanData {
    let mut attributes = vec![text("umawarden.action", &outcome.action)];
    attributes.extend(of_outcome(outcome));
    let context = ids.of_decision("late step", outcome.decision);
    let parent = ids.of_decision("decision", outcome.decision).span_id();
    let at = (began(outcome), outcome.ended.utc);
    let name = format!("late outcome of {}", outcome.action);
    let mut step = span(context, parent, name, at, attributes);
    step.status = error(&outcome.result);
    step
}

/// An aim check after the trace of its round was finished.
pub(super) fn late_aim(ids: &Ids, aim_check: &AimCheck) -> SpanData {
    aim(ids, aim_check, aim_check.at)
}
