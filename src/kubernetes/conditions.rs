//! Conditions of the node, from the state of alerts.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::clients::kubernetes::Reported;
use crate::model::{MemoryState, NodeCondition};
use crate::policy::status::{RuleState, RuleStatus, Status};

/// The longest message, in characters.
const MOST_CHARS: usize = 500;

/// A condition with its status: `True`, `False` or `Unknown`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ConditionState {
    pub(super) kind: Arc<str>,
    pub(super) status: &'static str,
    pub(super) reason: String,
    pub(super) message: String,
}

/// Alerts are quiet after a start, whatever the node was like before. A leak takes five minutes and
/// the remedies before it, a wedge half a minute.
const SETTLES_AFTER: Duration = Duration::from_secs(600);

/// The same for a node whose memory is well.
const WELL_AFTER: Duration = Duration::from_secs(120);

/// The present states; `before` are those that this process has reported.
pub(super) fn states(
    conditions: &[NodeCondition],
    status: &Status,
    before: &[ConditionState],
) -> Vec<ConditionState> {
    let has_settled = has_settled(status);
    let was_known = |condition: &NodeCondition| {
        let mut known = before.iter().filter(|before| before.status != "Unknown");
        known.any(|before| before.kind == condition.kind)
    };
    let one = |condition: &NodeCondition| {
        state(condition, &status.rules, has_settled || was_known(condition))
    };
    conditions.iter().map(one).collect()
}

/// Whether an alert that does not fire shows that nothing is wrong.
pub fn has_settled(status: &Status) -> bool {
    let watched = status.at.uptime.saturating_sub(status.started.uptime);
    let is_well = matches!(status.assessment.state, MemoryState::Clean | MemoryState::InUse);
    watched >= if is_well { WELL_AFTER } else { SETTLES_AFTER }
}

fn state(condition: &NodeCondition, rules: &[RuleStatus], has_settled: bool) -> ConditionState {
    let NodeCondition { kind, alerts } = condition;
    let its = |state: RuleState| {
        let is_named = |rule: &&RuleStatus| alerts.contains(&rule.rule.alert);
        rules.iter().filter(is_named).find(|rule| rule.state == state)
    };
    let is_known = rules.iter().any(|rule| alerts.contains(&rule.rule.alert));
    let (status, reason, message) = if let Some(rule) = its(RuleState::Firing) {
        ("True", rule.rule.alert.to_string(), summary(rule))
    } else if let Some(rule) = its(RuleState::Unknown) {
        let why = rule.unknown.first().map(|why| format!(": {why}")).unwrap_or_default();
        let message = format!("{} cannot be evaluated{why}", rule.rule.alert);
        ("Unknown", "AlertUnknown".to_owned(), message)
    } else if is_known && !has_settled {
        let message = "umawarden was started minutes ago, and cannot know it yet";
        ("Unknown", "NotSettled".to_owned(), message.to_owned())
    } else if is_known {
        let message = format!("none of these alerts fires: {}", alerts.join(", "));
        ("False", format!("No{kind}"), message)
    } else {
        let message = format!("no rule has one of these alerts: {}", alerts.join(", "));
        ("Unknown", "NoRule".to_owned(), message)
    };
    let message = message.chars().filter(|c| !c.is_control()).take(MOST_CHARS).collect();
    ConditionState { kind: Arc::clone(kind), status, reason, message }
}

/// The text of the first alert that fires.
fn summary(rule: &RuleStatus) -> String {
    let annotations = rule.alerts.iter().flat_map(|alert| &alert.annotations);
    let mut summaries = annotations.filter(|(name, _)| **name == *"summary");
    summaries.next().map_or_else(|| rule.rule.alert.to_string(), |(_, text)| text.clone())
}

/// No longer known: umawarden ends.
pub(super) fn left(conditions: &[NodeCondition]) -> Vec<ConditionState> {
    let state = |condition: &NodeCondition| ConditionState {
        kind: Arc::clone(&condition.kind),
        status: "Unknown",
        reason: "UmawardenStopped".to_owned(),
        message: "umawarden was stopped, so nobody checks this".to_owned(),
    };
    conditions.iter().map(state).collect()
}

/// Their form in the status of a node. A transition that was reported before keeps its time.
pub(super) fn as_json(
    states: &[ConditionState],
    reported: &[Reported],
    now: Timestamp,
) -> Vec<Value> {
    let now = second(now);
    let one = |state: &ConditionState| {
        let before = reported.iter().find(|before| before.kind == *state.kind);
        let before = before.filter(|before| before.status == state.status);
        let since = before.and_then(|before| before.last_transition_time.clone());
        json!({
            "type": state.kind,
            "status": state.status,
            "reason": state.reason,
            "message": state.message,
            "lastHeartbeatTime": now,
            "lastTransitionTime": since.unwrap_or_else(|| now.clone()),
        })
    };
    states.iter().map(one).collect()
}

/// A time as Kubernetes writes it, in whole seconds.
pub(super) fn second(at: Timestamp) -> String {
    format!("{at:.0}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::events::tests::{rule, status};
    use crate::model::MemoryAssessment;

    fn condition() -> NodeCondition {
        NodeCondition { kind: "Tight".into(), alerts: vec!["A".into(), "B".into()] }
    }

    #[test]
    fn one_firing_alert_makes_it_true_and_a_missing_one_is_no_proof() {
        use RuleState::{Firing, Inactive, Pending, Unknown};
        let all = |rules: &[(&str, RuleState)]| {
            let rules: Vec<RuleStatus> = rules.iter().map(|(a, state)| rule(a, *state)).collect();
            let state = state(&condition(), &rules, true);
            (state.status, state.reason)
        };
        let found = |status, reason: &str| (status, reason.to_owned());
        assert_eq!(all(&[("A", Inactive), ("B", Firing)]), found("True", "B"));
        assert_eq!(all(&[("A", Unknown), ("B", Firing)]), found("True", "B"));
        assert_eq!(all(&[("A", Unknown), ("B", Inactive)]), found("Unknown", "AlertUnknown"));
        assert_eq!(all(&[("A", Inactive), ("B", Pending)]), found("False", "NoTight"));
        assert_eq!(all(&[("C", Firing)]), found("Unknown", "NoRule"));
    }

    /// A node that has leaked is restarted: it must not be well until the leak shows again.
    #[test]
    fn a_quiet_alert_proves_nothing_until_umawarden_has_watched_for_a_while() {
        let mut node = status(&[]);
        let mut found = |seconds, memory, state, before: &[ConditionState]| {
            node.at.uptime = node.started.uptime + Duration::from_secs(seconds);
            node.rules = [rule("A", state)].into();
            let assessment = MemoryAssessment::unknown(node.at.utc);
            node.assessment = Arc::new(MemoryAssessment { state: memory, ..assessment });
            states(&[condition()], &node, before).remove(0)
        };
        use MemoryState::{Clean, Reclaimable};
        use RuleState::{Firing, Inactive};
        for (seconds, memory, status) in [
            (60, Clean, "Unknown"),
            (120, Clean, "False"),
            (599, Reclaimable, "Unknown"),
            (600, Reclaimable, "False"),
        ] {
            let state = found(seconds, memory, Inactive, &[]);
            assert_eq!(state.status, status, "{seconds} {memory}");
        }
        let fired = found(5, Reclaimable, Firing, &[]);
        assert_eq!(fired.status, "True");
        let over = found(60, Reclaimable, Inactive, &[fired]);
        assert_eq!((over.status, &*over.reason), ("False", "NoTight"), "this run has seen it");
        assert_eq!(found(70, Reclaimable, Inactive, &[over]).status, "False");
    }

    #[test]
    fn the_time_of_a_transition_stays_while_the_status_does() {
        let now: Timestamp = "2026-11-27T10:00:00.7Z".parse().unwrap();
        let states = [state(&condition(), &[rule("A", RuleState::Firing)], true)];
        let before = |status: &str| Reported {
            kind: "Tight".to_owned(),
            status: status.to_owned(),
            last_transition_time: Some("2026-11-01T00:00:00Z".to_owned()),
        };
        let times = |reported: &[Reported]| {
            let json = as_json(&states, reported, now);
            ["lastTransitionTime", "lastHeartbeatTime"].map(|key| json[0][key].clone())
        };
        assert_eq!(times(&[before("True")]), ["2026-11-01T00:00:00Z", "2026-11-27T10:00:00Z"]);
        for reported in [&[before("False")][..], &[]] {
            assert_eq!(times(reported), ["2026-11-27T10:00:00Z"; 2]);
        }
    }
}
