//! The reason in one sentence.

use std::time::Duration;

use jiff::Timestamp;
use promql_rules::{Relation, Traced};

use super::show::value;
use super::{ReportSource, RuleReport};
use crate::journal::StoredDecision;
use crate::model::{Decision, HoldReason, Mode, OutcomeResult, duration_text};
use crate::policy::explain::RemedyExplanation;
use crate::policy::status::{RuleState, RuleStatus};

/// An act this recent is reported even if the condition has ended since.
const JUST_NOW: Duration = Duration::from_secs(10);

/// Parts of a condition that are named as the reason.
const MOST_PARTS: usize = 3;

/// Why the rule acted or did not act.
pub(super) fn sentence(report: &RuleReport) -> String {
    let explanation = &report.explanation;
    let rule = &explanation.rule;
    let last = report.decisions.last();
    if let (Some(record), ReportSource::Journal) = (last, &report.source) {
        return decided(record, explanation.remedy.as_ref());
    }
    if rule.is_idle {
        return "It did not act because no cluster is configured, and it compares nodes."
            .to_owned();
    }
    match rule.state {
        RuleState::Inactive => match last.filter(|record| is_recent(record, report.at)) {
            Some(record) => {
                let decided = decided(record, explanation.remedy.as_ref());
                format!("{decided} Its condition does not hold any more.")
            }
            None => format!("It did not act because {}.", ended(&explanation.condition)),
        },
        RuleState::Pending => format!("It did not act because {}.", waits(rule, report.at)),
        RuleState::Unknown => {
            format!("It did not act because its condition is unknown: {}.", rule.unknown.join("; "))
        }
        RuleState::Firing => match (&explanation.remedy, last) {
            (None, _) => "It fires, and did not act because it has no remedy.".to_owned(),
            (Some(remedy), Some(record)) => decided(record, Some(remedy)),
            (Some(remedy), None) => format!("It did not act because {}.", held(remedy, None)),
        },
    }
}

fn is_recent(record: &StoredDecision, at: Timestamp) -> bool {
    let ago = at.duration_since(record.decision.at.utc);
    record.decision.is_act() && Duration::try_from(ago).is_ok_and(|ago| ago <= JUST_NOW)
}

/// That so many more parts are false.
fn further(count: usize) -> String {
    match count {
        1 => "1 more part does not hold either".to_owned(),
        count => format!("{count} more parts do not hold either"),
    }
}

/// Why a condition is false.
fn ended(condition: &Traced) -> String {
    let culprits = condition.culprits();
    let mut reasons: Vec<String> = culprits.iter().take(MOST_PARTS).map(|part| why(part)).collect();
    if culprits.len() > MOST_PARTS {
        reasons.push(further(culprits.len() - MOST_PARTS));
    }
    match reasons.is_empty() {
        true => "its condition did not hold when it was evaluated last".to_owned(),
        false => format!("its condition does not hold: {}", reasons.join("; ")),
    }
}

fn why(part: &Traced) -> String {
    let text = &part.text;
    match (part.relation, part.parts.as_slice()) {
        (Relation::Compares, [left, right]) => {
            format!("`{text}` is false, {} against {}", value(left), value(right))
        }
        (Relation::Compares, [left]) => format!("`{text}` is false, it is {}", value(left)),
        (Relation::And, _) => format!("the two sides of `{text}` have no labels in common"),
        (Relation::Unless, _) => format!("`{text}` leaves nothing over"),
        _ => format!("`{text}` yields nothing"),
    }
}

fn waits(rule: &RuleStatus, at: Timestamp) -> String {
    let since = rule.alerts.iter().map(|alert| alert.active_since.utc).min();
    let held = since.and_then(|since| Duration::try_from(at.duration_since(since)).ok());
    let held = held.map_or_else(|| "a while".to_owned(), duration_text);
    let required = duration_text(rule.hold_for);
    format!("its condition has held for {held} only, and must for {required}")
}

/// The result of a decision.
fn decided(record: &StoredDecision, remedy: Option<&RemedyExplanation>) -> String {
    let decision = &record.decision;
    let (action, at) = (decision.deed(), decision.at.utc);
    match (decision.decision, decision.mode) {
        (Decision::Hold(reason), _) => {
            format!("It did not act because {}.", held_for(reason, remedy))
        }
        (Decision::Act, Mode::Observe) => {
            format!("It would have acted ({action}, at {at:.3}) but mode is observe.")
        }
        (Decision::Act, Mode::Enforce) => match not_done(record) {
            Some(why) => format!("It was to act ({action}, at {at:.3}), and did not: {why}."),
            None => format!("It acted ({action}, at {at:.3}), and {}.", came_to(record)),
        },
    }
}

fn not_done(record: &StoredDecision) -> Option<&str> {
    match &record.outcome.as_ref()?.result {
        OutcomeResult::NotDone(why) => Some(why),
        _ => None,
    }
}

fn came_to(record: &StoredDecision) -> String {
    let aim = record.aim_check.as_ref().map(|aim_check| aim_check.aim_met);
    match (record.outcome.as_ref().map(|outcome| &outcome.result), aim) {
        (None, _) => "its outcome is not known".to_owned(),
        (Some(OutcomeResult::Failed(why)), _) => format!("that failed: {why}"),
        (Some(OutcomeResult::TimedOut), _) => "that did not end in time".to_owned(),
        (Some(OutcomeResult::Skipped | OutcomeResult::NotDone(_)), _) => {
            "nothing was done".to_owned()
        }
        (Some(OutcomeResult::Done), Some(Some(true))) => "the aim was met".to_owned(),
        (Some(OutcomeResult::Done), Some(Some(false))) => "the aim was missed".to_owned(),
        (Some(OutcomeResult::Done), Some(None)) => "whether the aim was met is unknown".to_owned(),
        (Some(OutcomeResult::Done), None) => "its effect is not measured yet".to_owned(),
    }
}

fn held_for(reason: HoldReason, remedy: Option<&RemedyExplanation>) -> String {
    remedy.map_or_else(|| said(reason, ""), |remedy| held(remedy, Some(reason)))
}

/// The reason of the last decision, or else the current guard rail.
fn held(remedy: &RemedyExplanation, reason: Option<HoldReason>) -> String {
    let rail = match reason {
        Some(reason) => remedy.rails.iter().find(|rail| rail.reason == reason),
        None => remedy.rails.iter().find(|rail| rail.holds),
    };
    match (rail, reason) {
        (Some(rail), _) if rail.holds => said(rail.reason, &rail.detail),
        // The hold has ended since the decision.
        (_, Some(reason)) => said(reason, ""),
        _ => "it has not been evaluated since it fires".to_owned(),
    }
}

/// `detail` is empty for decisions in the past.
fn said(reason: HoldReason, detail: &str) -> String {
    if reason == HoldReason::StepsExhausted {
        return "every step has been tried and the aim is still missed".to_owned();
    }
    match (reason, detail) {
        (HoldReason::AimMet, _) => "its aim is met already".to_owned(),
        (HoldReason::Cooldown, "") => "it was resting after its last round".to_owned(),
        (HoldReason::Cooldown, detail) => format!("it {detail} (cooldown)"),
        (HoldReason::Budget, "") => "its budget was used up".to_owned(),
        (HoldReason::Budget, detail) => format!("its budget is used up: {detail}"),
        (HoldReason::Busy, "") => "another action was under way".to_owned(),
        (HoldReason::Busy, detail) => detail.to_owned(),
        (HoldReason::Unknown, "") => "whether it should was unknown".to_owned(),
        (HoldReason::Unknown, detail) => format!("whether it should is unknown: {detail}"),
        (reason, "") => format!("{} held it back", reason.name()),
        (reason, detail) => format!("{} holds it back: {detail}", reason.name()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_beyond_the_first_are_counted() {
        assert_eq!(further(1), "1 more part does not hold either");
        assert_eq!(further(2), "2 more parts do not hold either");
    }
}
