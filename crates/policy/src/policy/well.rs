//! Whether this node is well, and why not.

use std::cmp::Reverse;
use std::sync::Arc;

use super::Policy;
use super::assessment::VERDICT;
use super::status::{AlertStatus, EngineStatus, GuardStatus, RuleState, RuleStatus, SourceStatus};
use crate::model::{
    AlertState, EnginePhase, MemoryAssessment, MemoryState, NodeHealthLevel, Reading, RebootStatus,
    RestartState, RestartStatus, counted,
};

/// How the reason of a reading that this machine does not have ends.
const NOT_AVAILABLE: &str = "not available on this machine";

/// 0 while rules and settings of the last reload are not in force.
const RELOADED: &str = "uma_config_last_reload_successful";

/// The reasons why the node is not well.
#[derive(Debug)]
pub(super) struct Reasons {
    /// The worst of all.
    level: NodeHealthLevel,
    /// `None`: only the level is needed, and nothing is allocated.
    texts: Option<Vec<(NodeHealthLevel, String)>>,
}

impl Reasons {
    /// No reason so far; texts are kept.
    pub(super) fn with_texts() -> Self {
        Self { level: NodeHealthLevel::Well, texts: Some(Vec::new()) }
    }

    fn without_texts() -> Self {
        Self { level: NodeHealthLevel::Well, texts: None }
    }

    pub(super) fn add(&mut self, level: NodeHealthLevel, text: impl FnOnce() -> String) {
        self.level = self.level.max(level);
        if let Some(texts) = &mut self.texts {
            texts.push((level, text()));
        }
    }

    /// The worst level, and the texts, the worst first.
    pub(super) fn sorted(self) -> (NodeHealthLevel, Vec<String>) {
        let mut texts = self.texts.unwrap_or_default();
        texts.sort_by_key(|(level, _)| Reverse(*level));
        (self.level, texts.into_iter().map(|(_, text)| text).collect())
    }
}

/// What is known of the node.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeHealthInputs<'a> {
    pub(super) guard: &'a GuardStatus,
    pub(super) reboot: &'a RebootStatus,
    pub(super) rules: &'a [RuleStatus],
    pub(super) assessment: &'a MemoryAssessment,
    pub(super) engines: &'a [EngineStatus],
    pub(super) restarts: &'a [RestartStatus],
}

impl NodeHealthInputs<'_> {
    /// What holds back all remedies, or those of a rule.
    pub(super) fn of_guard(&self, reasons: &mut Reasons) {
        let guard = self.guard;
        if let Some(pause) = &guard.pause {
            reasons.add(NodeHealthLevel::Warning, || {
                let why = if pause.comment.is_empty() { "" } else { ": " };
                format!(
                    "paused by {}{why}{}; nothing is done until `umawarden resume`",
                    pause.author, pause.comment
                )
            });
        }
        if !guard.is_restored {
            let text = "the actions of earlier runs are unknown, since the journal cannot be \
                        read: nothing is done";
            reasons.add(NodeHealthLevel::Warning, || text.to_owned());
        }
        for breaker in guard.breakers.iter().filter(|breaker| breaker.is_open) {
            reasons.add(NodeHealthLevel::Warning, || {
                let (rule, misses, mode) = (&breaker.rule, breaker.misses, breaker.mode.name());
                let of = breaker.engine.as_ref().map(|engine| format!(" for engine {engine}"));
                format!(
                    "the remedy of {} is stopped{} ({mode} mode): it missed its aim {misses} \
                     times; `umawarden breaker reset {rule}` lets it act again",
                    rule.alert,
                    of.unwrap_or_default(),
                )
            });
        }
        self.of_reboots(reasons);
    }

    fn of_reboots(&self, reasons: &mut Reasons) {
        let reboot = self.reboot;
        if let Some(scheduled) = &reboot.scheduled {
            reasons.add(NodeHealthLevel::Warning, || {
                let waits = reboot.waits_for.as_ref().map(|why| format!("; it waits: {why}"));
                format!(
                    "{}: {}{}; `umawarden reboot --cancel` prevents it",
                    reboot.stage.meaning(),
                    scheduled.plan,
                    waits.unwrap_or_default(),
                )
            });
        }
        if reboot.is_given_up {
            let times = reboot.did_not_help;
            reasons.add(NodeHealthLevel::Warning, || {
                format!(
                    "{times} reboots in a row did not help: no rule reboots now; `umawarden \
                     reboot --clear` lets them"
                )
            });
        }
    }

    /// Everything else.
    pub(super) fn of_rest<'s>(
        &self,
        sources: impl Iterator<Item = &'s SourceStatus>,
        reasons: &mut Reasons,
    ) {
        for alert in self.rules.iter().flat_map(|rule| &rule.alerts) {
            if alert.state == AlertState::Firing {
                reasons.add(level_of(alert), || alert_text(alert));
            }
        }
        if let Some(why) = failed(self.rules).find_map(|rule| rule.unknown.first()) {
            reasons.add(NodeHealthLevel::Unknown, || {
                let rules = counted(failed(self.rules).count() as u64, "rule");
                format!("unknown: {rules} ({}): {why}", names(failed(self.rules)))
            });
        }
        for source in sources.filter(|source| !source.up) {
            reasons.add(NodeHealthLevel::Unknown, || {
                let why = source.detail.as_deref().unwrap_or("it has failed");
                format!("source {}: {why}", source.source.name())
            });
        }
        self.of_assessment(reasons);
        self.of_engines(reasons);
    }

    fn of_assessment(&self, reasons: &mut Reasons) {
        let state = self.assessment.state;
        let level = match state {
            MemoryState::Leaked | MemoryState::Wedged => NodeHealthLevel::Critical,
            MemoryState::Orphan | MemoryState::HeldShmem => NodeHealthLevel::Warning,
            _ => return,
        };
        reasons.add(level, || state.meaning().to_owned());
    }

    fn of_engines(&self, reasons: &mut Reasons) {
        for engine in self.engines.iter().filter(|engine| engine.phase != EnginePhase::Gone) {
            let name = &engine.engine.name;
            if let Some(lost) = &engine.lost_rank {
                reasons.add(NodeHealthLevel::Critical, || {
                    format!("engine {name} cannot go on: {lost}")
                });
            } else if engine.is_stuck {
                let why = &engine.reason;
                reasons.add(NodeHealthLevel::Warning, || format!("engine {name} is stuck: {why}"));
            }
        }
        let given_up = self.restarts.iter().filter(|held| held.state == RestartState::GivenUp);
        for held in given_up {
            reasons.add(NodeHealthLevel::Warning, || {
                format!("{} is not started again: {}", held.seen.target, held.reason)
            });
        }
    }
}

/// Whether a rule is unknown for these reasons alone: this machine does not have what it reads.
pub(super) fn is_of_machine(reasons: &[String]) -> bool {
    reasons.iter().all(|why| why.ends_with(NOT_AVAILABLE))
}

/// Rules that cannot be evaluated since a source fails.
fn failed(rules: &[RuleStatus]) -> impl Iterator<Item = &RuleStatus> {
    let unknown = rules.iter().filter(|rule| rule.state == RuleState::Unknown);
    unknown.filter(|rule| !is_of_machine(&rule.unknown))
}

/// Whether the machine lacks what a rule is unknown for. A verdict that is not made yet is no such.
fn is_lacked(reasons: &[String]) -> bool {
    is_of_machine(reasons) && !reasons.iter().all(|why| why.starts_with(VERDICT))
}

/// Rules that read what this machine does not have are no trouble of it: a note.
pub(super) fn notes(rules: &[RuleStatus]) -> Vec<String> {
    let unknown = rules.iter().filter(|rule| rule.state == RuleState::Unknown);
    let missing: Vec<&RuleStatus> = unknown.filter(|rule| is_lacked(&rule.unknown)).collect();
    if missing.is_empty() {
        return Vec::new();
    }
    let read = if missing.len() == 1 { "reads" } else { "read" };
    let rules = counted(missing.len() as u64, "rule");
    let names = names(missing.into_iter());
    vec![format!("no fault: {rules} {read} what this machine lacks ({names})")]
}

fn names<'r>(rules: impl Iterator<Item = &'r RuleStatus>) -> String {
    rules.map(|rule| &*rule.rule.alert).collect::<Vec<_>>().join(", ")
}

fn level_of(alert: &AlertStatus) -> NodeHealthLevel {
    let is_critical =
        |(name, value): &(Arc<str>, Arc<str>)| (&**name, &**value) == ("severity", "critical");
    match alert.labels.iter().any(is_critical) {
        true => NodeHealthLevel::Critical,
        false => NodeHealthLevel::Warning,
    }
}

/// What an alert says.
pub(super) fn alert_text(alert: &AlertStatus) -> String {
    let name = alert.labels.iter().find(|(name, _)| **name == *"alertname");
    let name = name.map(|(_, value)| &**value).unwrap_or_default();
    match alert.annotations.iter().find(|(name, _)| **name == *"summary") {
        Some((_, summary)) => format!("{name}: {summary}"),
        None => format!("{name} fires"),
    }
}

impl Policy {
    /// Publishes whether the node is well: the level of its picture, for other nodes too.
    pub(super) fn publish_level(&mut self) {
        let (guard, reboot) = (self.guard.status(), self.reboots.status());
        let (engines, restarts) = (self.engines.statuses(), self.restarts.statuses());
        let facts = NodeHealthInputs {
            guard: &guard,
            reboot: &reboot,
            rules: &self.rule_statuses,
            assessment: self.assessment.current(),
            engines: &engines,
            restarts: &restarts,
        };
        let mut reasons = Reasons::without_texts();
        facts.of_guard(&mut reasons);
        facts.of_rest(self.sources.statuses(), &mut reasons);
        let reloaded = self.store.latest_of(RELOADED, &[]);
        if matches!(reloaded, Reading::Value(is_done) if is_done == 0.0) {
            reasons.add(NodeHealthLevel::Warning, String::new);
        }
        self.counters.set_level(reasons.level);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_lacks_readings_and_no_verdict_that_is_not_made_yet() {
        let verdict = format!("uma_memory_verdict{{verdict=\"leaked\"}}: {NOT_AVAILABLE}");
        let pressure = format!("uma_pressure_ratio{{resource=\"memory\"}}: {NOT_AVAILABLE}");
        assert!(!is_lacked(std::slice::from_ref(&verdict)));
        assert!(is_lacked(std::slice::from_ref(&pressure)));
        assert!(is_lacked(&[verdict, pressure.clone()]));
        assert!(!is_lacked(&[pressure, "uma_engines: reading failed".to_owned()]));
    }
}
