//! What NVSentinel is to know: the checks whose state it does not have yet, and faults.
//!
//! A check is a critical rule: unhealthy while an alert of it fires, healthy when none does. Only
//! the present state is sent, however long the connector was away. Faults of the kernel log are
//! single events.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::clients::nvsentinel::{
    ACTION_NONE, ACTION_RESTART_BM, BehaviourOverrides, Entity, HealthEvent,
    STRATEGY_EXECUTE_REMEDIATION, STRATEGY_STORE_ONLY,
};
use crate::model::{AlertState, Event, EventKind, KernelEvent, Moment, OomConstraint};
use crate::policy::status::{RuleState, RuleStatus};

const AGENT: &str = "umawarden";

/// Checks that only a reboot ends: the driver, or its memory, is beyond repair.
const REBOOT_ENDS: [&str; 3] = ["DriverWedged", "MemoryLeaked", "UvmFatal"];

/// Events in one call.
const MOST_EVENTS: usize = 64;

/// Faults that wait; of more the oldest go.
const MOST_FAULTS: usize = 256;

/// Longer texts are cut.
const MOST_TEXT_CHARS: usize = 1_024;

/// After a start, rules need time until they show what they are; then what an earlier run may have
/// left unhealthy is reported healthy, once.
const SETTLES_AFTER: Duration = Duration::from_secs(120);

/// The state of one check.
#[derive(Clone, Debug)]
struct Check {
    is_firing: bool,
    message: String,
    since: Timestamp,
    /// The state that NVSentinel has taken last, and whether it might repair; `None`: none.
    known: Option<(bool, bool)>,
}

/// A check with the state in which it is sent.
type SentCheck = (Arc<str>, (bool, bool));

/// All that is to be reported.
#[derive(Debug)]
pub(super) struct Reports {
    node: String,
    /// Whether NVSentinel may repair the node now: not while a reboot of our own is to come.
    may_repair: bool,
    /// When this run began, on the uptime clock.
    began: Duration,
    checks: BTreeMap<Arc<str>, Check>,
    faults: VecDeque<HealthEvent>,
    dropped: u64,
    /// What is being sent: checks with their states, and the number of faults.
    sending: (Vec<SentCheck>, usize),
}

/// Whether an event is a fault that is reported: what users could forge is not.
pub(super) fn is_reported(event: &Event) -> bool {
    !event.is_claimed()
        && matches!(&event.kind, EventKind::Kernel(kind) if fault_of(kind).is_some())
}

/// The check, the class, the codes and the GPU of a fault; `None`: it is none for NVSentinel.
fn fault_of(kind: &KernelEvent) -> Option<(&'static str, &'static str, Vec<String>, Option<&str>)> {
    Some(match kind {
        KernelEvent::Xid { xid, pci, .. } => {
            ("KernelXid", "GPU", vec![format!("XID_{xid}")], Some(&**pci))
        }
        KernelEvent::GpuLost { .. } => ("KernelGpuLost", "GPU", Vec::new(), None),
        KernelEvent::UvmFatal => ("KernelUvmFatal", "GPU", Vec::new(), None),
        KernelEvent::OomKill { constraint, .. } if is_of_host(*constraint) => {
            ("KernelOomKill", "Memory", Vec::new(), None)
        }
        KernelEvent::OomNoVictim => ("KernelOomNoVictim", "Memory", Vec::new(), None),
        _ => return None,
    })
}

/// Whether the whole machine ran out of memory. A container at its limit is its own affair.
fn is_of_host(constraint: Option<OomConstraint>) -> bool {
    constraint == Some(OomConstraint::None)
}

fn cut(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MOST_TEXT_CHARS).collect()
}

fn is_critical(labels: &[(Arc<str>, Arc<str>)]) -> bool {
    labels.iter().any(|(name, value)| **name == *"severity" && **value == *"critical")
}

/// The texts of a rule's critical alerts that fire.
fn firing(rule: &RuleStatus) -> Vec<String> {
    let alerts = rule.alerts.iter().filter(|alert| alert.state == AlertState::Firing);
    let summary = |annotations: &[(Arc<str>, String)]| {
        annotations.iter().find(|(name, _)| **name == *"summary").map(|(_, text)| text.clone())
    };
    let text = |annotations| summary(annotations).unwrap_or_else(|| rule.rule.alert.to_string());
    let critical = alerts.filter(|alert| is_critical(&alert.labels));
    critical.map(|alert| text(&alert.annotations)).collect()
}

impl Reports {
    pub(super) fn new(node: String, began: Duration) -> Self {
        Self {
            node,
            may_repair: false,
            began,
            checks: BTreeMap::new(),
            faults: VecDeque::new(),
            dropped: 0,
            sending: (Vec::new(), 0),
        }
    }

    /// Takes the present states of rules. A rule that is unknown is as it was.
    pub(super) fn update(&mut self, at: Moment, rules: &[RuleStatus], may_repair: bool) {
        self.may_repair = may_repair;
        let has_settled = at.uptime.saturating_sub(self.began) >= SETTLES_AFTER;
        let mut gone: Vec<Arc<str>> = self.checks.keys().cloned().collect();
        for rule in rules {
            gone.retain(|name| *name != rule.rule.alert);
            let texts = firing(rule);
            let is_known = rule.state != RuleState::Unknown || !texts.is_empty();
            if !texts.is_empty() {
                self.set(&rule.rule.alert, true, texts.join("; "), at.utc);
            } else if is_known && (has_settled && is_critical(&rule.labels) || self.has(rule)) {
                let text = format!("{} does not fire", rule.rule.alert);
                self.set(&rule.rule.alert, false, text, at.utc);
            }
        }
        for name in gone {
            self.set(&name, false, format!("rule {name} is no longer loaded"), at.utc);
        }
    }

    fn has(&self, rule: &RuleStatus) -> bool {
        self.checks.contains_key(&rule.rule.alert)
    }

    fn set(&mut self, name: &Arc<str>, is_firing: bool, message: String, at: Timestamp) {
        let new = || Check { is_firing, message: String::new(), since: at, known: None };
        let check = self.checks.entry(Arc::clone(name)).or_insert_with(new);
        if check.is_firing != is_firing {
            (check.is_firing, check.since) = (is_firing, at);
        }
        check.message = message;
    }

    /// Takes a fault.
    pub(super) fn fault(&mut self, event: &Event) {
        let EventKind::Kernel(kind) = &event.kind else { return };
        let Some((check, class, error_code, pci)) = fault_of(kind) else { return };
        let entity = |pci: &str| Entity { entity_type: "PCI".to_owned(), entity_value: cut(pci) };
        let at = event.utc.unwrap_or(Timestamp::UNIX_EPOCH);
        let event = HealthEvent {
            component_class: class.to_owned(),
            error_code,
            entities_impacted: pci.map(entity).into_iter().collect(),
            ..self.event(check, &kind.to_string(), at)
        };
        self.faults.push_back(event);
        // What is being sent stays.
        if self.faults.len() > MOST_FAULTS + self.sending.1 {
            self.faults.remove(self.sending.1);
            self.dropped += 1;
        }
    }

    /// An unhealthy event for which nothing is done.
    fn event(&self, check: &str, message: &str, at: Timestamp) -> HealthEvent {
        HealthEvent {
            agent: AGENT.to_owned(),
            component_class: "Memory".to_owned(),
            check_name: check.to_owned(),
            message: cut(message),
            recommended_action: ACTION_NONE,
            generated_timestamp: Some(at.into()),
            node_name: self.node.clone(),
            quarantine_overrides: Some(BehaviourOverrides { force: false, skip: true }),
            drain_overrides: Some(BehaviourOverrides { force: false, skip: true }),
            processing_strategy: STRATEGY_STORE_ONLY,
            ..HealthEvent::default()
        }
    }

    fn of_check(&self, name: &str, check: &Check, repairs: bool) -> HealthEvent {
        let event = HealthEvent {
            is_healthy: !check.is_firing,
            ..self.event(name, &check.message, check.since)
        };
        if !repairs {
            return event;
        }
        HealthEvent {
            is_fatal: check.is_firing,
            recommended_action: if check.is_firing { ACTION_RESTART_BM } else { ACTION_NONE },
            quarantine_overrides: None,
            drain_overrides: None,
            processing_strategy: STRATEGY_EXECUTE_REMEDIATION,
            ..event
        }
    }

    /// What is to be sent now. Call [`Self::taken`] once it was.
    pub(super) fn due(&mut self) -> Vec<HealthEvent> {
        self.sending = (Vec::new(), 0);
        let (mut events, mut sending) = (Vec::new(), Vec::new());
        for (name, check) in &self.checks {
            // What NVSentinel acts on by now is also ended so that it takes note.
            let acts = check.known == Some((true, true));
            let may = self.may_repair && REBOOT_ENDS.contains(&&**name);
            let repairs = acts || check.is_firing && may;
            let state = (check.is_firing, repairs);
            if check.known != Some(state) && events.len() < MOST_EVENTS {
                events.push(self.of_check(name, check, repairs));
                sending.push((Arc::clone(name), state));
            }
        }
        let faults = self.faults.iter().take(MOST_EVENTS - events.len());
        let faults: Vec<HealthEvent> = faults.cloned().collect();
        self.sending = (sending, faults.len());
        events.extend(faults);
        events
    }

    /// What was due has been taken.
    pub(super) fn taken(&mut self) {
        let (checks, faults) = std::mem::take(&mut self.sending);
        for (name, state) in checks {
            if let Some(check) = self.checks.get_mut(&name) {
                check.known = Some(state);
            }
        }
        self.faults.drain(..faults);
    }

    /// Faults that were dropped since the last call.
    pub(super) fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }
}

#[cfg(test)]
#[path = "reports_tests.rs"]
mod tests;
