//! What the log says of events, decisions and outcomes.

use crate::model::{
    AlertState, Assessment, Decision, Evidence, Mode, Outcome, OutcomeResult, Reading, Verdict,
};
use crate::policy::Step;

/// Bound on the events that one step logs one by one: a storm in the kernel log shall not become
/// one in ours. All of them are counted and journalled.
const EVENTS_LOGGED: usize = 16;

/// Logs what a step brought.
pub(super) fn step(step: &Step) {
    for event in step.events.iter().take(EVENTS_LOGGED) {
        let kind = event.kind.kind();
        let seq = event.seq;
        let detail = serde_json::to_string(&event.kind).unwrap_or_default();
        tracing::warn!(kind, seq, detail, "kernel event");
    }
    if let Some(more) = step.events.len().checked_sub(EVENTS_LOGGED).filter(|more| *more > 0) {
        tracing::warn!("{more} more kernel events: see umawarden history");
    }
    for doubt in &step.doubts {
        if doubt.reasons.is_empty() {
            tracing::info!(rule = %doubt.rule, "rule can be judged again");
        } else {
            let reasons = doubt.reasons.join("; ");
            tracing::warn!(rule = %doubt.rule, reasons, "rule cannot be judged: unknown");
        }
    }
    for change in &step.alerts {
        let (from, to) = (change.from.name(), change.to.name());
        let summary = change.annotations.get("summary").map_or("", String::as_str);
        let value = change.value.value();
        if change.to == AlertState::Firing {
            tracing::warn!(rule = %change.rule, from, to, value, summary, "alert");
        } else {
            tracing::info!(rule = %change.rule, from, to, value, summary, "alert");
        }
    }
    step.decisions.iter().for_each(decision);
    step.assessments.iter().for_each(assessment);
}

fn decision(decision: &Decision) {
    let (id, rule, action) = (decision.id, &decision.rule, &decision.action);
    let because = list(&decision.because);
    match (decision.verdict, decision.mode) {
        (Verdict::Hold(reason), _) => {
            let reason = reason.name();
            tracing::info!(%id, %rule, %action, reason, because, "hold");
        }
        (Verdict::Act, Mode::Observe) => {
            tracing::warn!(%id, %rule, %action, because, "would act (observe mode)");
        }
        (Verdict::Act, Mode::Enforce) => tracing::warn!(%id, %rule, %action, because, "act"),
    }
}

/// Logs how an action ended.
pub(super) fn outcome(outcome: &Outcome) {
    let (id, action, took) = (outcome.decision, outcome.action.as_str(), outcome.took);
    match &outcome.result {
        OutcomeResult::Done => tracing::info!(%id, action, ?took, "done"),
        OutcomeResult::Skipped => tracing::debug!(%id, action, "not done: observe mode"),
        OutcomeResult::Failed(error) => tracing::error!(%id, action, error, "failed"),
        OutcomeResult::TimedOut => {
            tracing::error!(%id, action, ?took, "not ended in time; it may still be going on");
        }
    }
}

fn assessment(assessment: &Assessment) {
    let aim = match assessment.aim_met {
        Some(true) => "met",
        Some(false) => "missed",
        None => "unknown",
    };
    let (before, after) = (list(&assessment.before), list(&assessment.after));
    tracing::info!(id = %assessment.decision, aim, before, after, "measured");
}

fn list(evidence: &[Evidence]) -> String {
    let one = |evidence: &Evidence| match evidence.value {
        Reading::Value(value) => format!("{}={value}", evidence.series),
        Reading::Unsupported => format!("{}=unsupported", evidence.series),
        Reading::Failed => format!("{}=failed", evidence.series),
    };
    evidence.iter().map(one).collect::<Vec<_>>().join(" ")
}
