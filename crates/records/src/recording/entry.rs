//! The content of a recording.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::{
    AimCheck, AlertChange, AssessmentLimits, ClusterNames, DecisionId, DecisionRecord, EarlierRuns,
    Event, EventKind, FORGET_RECEIVED_AFTER, Mode, Moment, Observation, OperatorCommand,
    OperatorOrder, PastAct, PastReceived, Pause, ProgramEvent, ReceivedTurn, RuleId,
};

/// One entry of a recording.
#[derive(Clone, Debug)]
pub enum RecordingEntry {
    /// The state at the begin; only the first entry of every segment.
    Begin(Box<SegmentBegin>),
    /// One step of the policy.
    Step(RecordedStep),
    /// The rules were replaced.
    Reload {
        /// Time of the step.
        at: Moment,
        /// The mode and the rules from then on.
        rules: RecordedRules,
        /// The alerts that ended with the old rules.
        ended: Vec<AlertChange>,
    },
    /// Steps are missing: a replay is incomplete from here.
    Gap {
        /// Number of steps.
        steps: u64,
    },
}

/// The begin of a segment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SegmentBegin {
    /// The version of the program that recorded.
    pub program: String,
    /// The id of the boot.
    pub boot_id: String,
    /// When the process started.
    pub started: Moment,
    /// The begin of this segment; `started` for the first one of a process.
    pub at: Moment,
    /// The segment's number within its ring.
    pub segment: u64,
    /// The number of the segment that this one continues without a gap. `None` in the first one of
    /// a process and in incidents.
    pub goes_on_from: Option<u64>,
    /// Whether the process starts here, so that a replay from here is complete.
    pub is_start: bool,
    /// The number that the next decision gets.
    pub next_decision: DecisionId,
    /// Kernel-log records whose events an earlier process has counted.
    pub already_counted: BTreeSet<u64>,
    /// The last time of each kind of event in this boot.
    #[serde(default)]
    pub last_events: BTreeMap<String, Timestamp>,
    /// The acts of earlier processes: rule, mode, and time before the start. No release writes
    /// them here, since they are among the observations. Only a recording from before the first
    /// release has them: the incident `restart-in-the-middle` of `tests/incidents`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier_acts: Vec<(RuleId, Mode, Duration)>,
    /// Whether the policy holds until an observation reports the acts of earlier processes.
    #[serde(default)]
    pub awaits_past: bool,
    /// Silences and approvals that were in force here. Where the process starts here they are
    /// among the observations instead.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub orders: Vec<OperatorCommand>,
    /// Received alerts that fired here, in the order in which they began. Where the process starts
    /// here they are among the observations instead.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub received: Vec<PastReceived>,
    /// The author of a pause in force here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<Pause>,
    /// The mode and the rules in force.
    pub rules: RecordedRules,
}

/// The texts of the rules in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedRules {
    /// Mode of the daemon.
    pub mode: Mode,
    /// The interval of groups that name none.
    pub evaluation_interval: Duration,
    /// The loaded rule files, whole.
    pub files: Vec<RuleText>,
    /// The guard rails of the configuration, as the policy writes them.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub guard_rails: serde_json::Value,
    /// What the configuration changed in rules, as its reader writes it.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub overrides: serde_json::Value,
    /// When memory counted as leaked. Most incidents of `tests/incidents` lack it.
    #[serde(default)]
    pub assessment: AssessmentLimits,
    /// Time after which a received alert was forgotten without repetition.
    #[serde(default = "usual_forget_after")]
    pub forget_received_after: Duration,
    /// The name of the node in its cluster, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterNames>,
}

fn usual_forget_after() -> Duration {
    FORGET_RECEIVED_AFTER
}

/// One rule file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleText {
    /// Path of the file.
    pub name: String,
    /// Content of the file.
    pub text: String,
}

/// The observations of one step, and the result.
#[derive(Clone, Debug)]
pub struct RecordedStep {
    /// Time of the step.
    pub at: Moment,
    /// What the policy was given, in this order.
    pub seen: Vec<Observation>,
    /// What it returned.
    pub said: StepResult,
}

/// The result of a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepResult {
    /// Events of the kernel log.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub events: Vec<Event>,
    /// Alerts that changed.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub alerts: Vec<AlertChange>,
    /// Decisions to act and to hold.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub decisions: Vec<DecisionRecord>,
    /// The effects of earlier actions.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub aim_checks: Vec<AimCheck>,
}

impl StepResult {
    /// Whether the result is empty.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
            && self.alerts.is_empty()
            && self.decisions.is_empty()
            && self.aim_checks.is_empty()
    }
}

impl RecordingEntry {
    /// The time; a gap has none.
    pub fn at(&self) -> Option<Moment> {
        match self {
            Self::Begin(begin) => Some(begin.at),
            Self::Step(step) => Some(step.at),
            Self::Reload { at, .. } => Some(*at),
            Self::Gap { .. } => None,
        }
    }
}

impl SegmentBegin {
    /// The begin of a process without earlier state.
    pub fn of_process(
        boot_id: &str,
        started: Moment,
        next_decision: DecisionId,
        rules: RecordedRules,
    ) -> Self {
        Self {
            program: env!("CARGO_PKG_VERSION").to_owned(),
            boot_id: boot_id.to_owned(),
            started,
            at: started,
            segment: 0,
            goes_on_from: None,
            is_start: true,
            next_decision,
            already_counted: BTreeSet::new(),
            last_events: BTreeMap::new(),
            earlier_acts: Vec::new(),
            awaits_past: false,
            orders: Vec::new(),
            received: Vec::new(),
            pause: None,
            rules,
        }
    }

    /// The acts of earlier processes, if they are here and not among the observations.
    pub fn past(&self) -> EarlierRuns {
        let acts = self.earlier_acts.iter().map(|(rule, mode, ago)| {
            let ago_ms = i64::try_from(ago.as_millis()).unwrap_or(i64::MAX);
            PastAct {
                id: DecisionId(0),
                rule: rule.clone(),
                mode: *mode,
                step: 0,
                is_notice: true,
                uptime_ms: self.started.timeline_ms().saturating_sub(ago_ms),
                utc: self.started.utc,
                has_ended: true,
                aim_met: None,
                approved: None,
                started_after: None,
                died_in: None,
                engine: None,
                takes_from_engine: false,
                fleet_action: None,
                is_forgiven: false,
            }
        });
        let (acts, commands) = (acts.collect(), self.orders.clone());
        EarlierRuns { acts, commands, ..EarlierRuns::default() }
    }

    fn pass_order(&mut self, seen: &Observation) {
        match seen {
            Observation::Pause(pause) => self.pause.clone_from(pause),
            Observation::Past(past) => {
                let later = std::mem::replace(&mut self.orders, past.commands.clone());
                self.orders.extend(later);
            }
            Observation::Operator(command) => self.orders.push(command.clone()),
            _ => return,
        }
        let now = self.at.utc;
        let mut ended = BTreeSet::new();
        for command in &self.orders {
            if let OperatorOrder::EndSilence { id } = command.order {
                ended.insert(id);
            }
        }
        self.orders.retain(|command| match &command.order {
            OperatorOrder::Silence { id, until, .. } => *until > now && !ended.contains(id),
            OperatorOrder::Approve { until, .. } | OperatorOrder::Deny { until, .. } => {
                *until > now
            }
            OperatorOrder::EndSilence { .. }
            | OperatorOrder::ResetBreaker { .. }
            | OperatorOrder::Reboot { .. }
            | OperatorOrder::CancelReboot
            | OperatorOrder::ClearReboots => false,
        });
    }

    fn pass_received(&mut self, seen: &[Observation], events: &[Event]) {
        for observation in seen {
            if let Observation::Past(past) = observation {
                past.received.iter().cloned().for_each(|received| self.turn(received));
            }
        }
        for event in events {
            if let EventKind::Program(ProgramEvent::ReceivedAlert { to, alert }) = &event.kind {
                let alert = Arc::clone(alert);
                self.turn(PastReceived { to: *to, alert, utc: event.utc });
            }
        }
    }

    fn turn(&mut self, received: PastReceived) {
        self.received.retain(|known| known.alert.fingerprint != received.alert.fingerprint);
        if received.to == ReceivedTurn::Firing {
            self.received.push(received);
        }
    }

    /// Moves on past an entry, so that a segment can start behind it.
    pub fn pass(&mut self, entry: &RecordingEntry) {
        match entry {
            RecordingEntry::Begin(begin) => self.clone_from(begin),
            RecordingEntry::Step(step) => {
                self.at = step.at;
                step.seen.iter().for_each(|seen| self.pass_order(seen));
                self.pass_received(&step.seen, &step.said.events);
                let believed = step.said.events.iter().filter(|event| !event.is_claimed());
                for event in believed {
                    let utc = event.utc.unwrap_or(step.at.utc);
                    let last = self.last_events.entry(event.kind.kind().to_owned());
                    last.and_modify(|last| *last = utc.max(*last)).or_insert(utc);
                }
                if let Some(last) = step.said.decisions.iter().map(|decision| decision.id).max() {
                    self.next_decision = DecisionId(last.0.saturating_add(1));
                }
            }
            RecordingEntry::Reload { at, rules, .. } => {
                self.at = *at;
                self.rules.clone_from(rules);
            }
            RecordingEntry::Gap { .. } => {}
        }
    }
}
