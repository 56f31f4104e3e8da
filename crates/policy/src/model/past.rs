//! Data of earlier runs of this program for the guard rails.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    Action, DecisionId, EnginePhase, FleetAction, Mode, Moment, OperatorCommand, PastLoad,
    PastRanks, PastReboots, PastReceived, RestartState, RuleId, Target,
};

/// Data of earlier runs from the journal. The policy holds until it has them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlierRuns {
    /// Acts, and those of observe mode; oldest first.
    pub acts: Vec<PastAct>,
    /// Approval requests that are still open.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub asked: Vec<PendingApproval>,
    /// Silences and approvals that were in force; oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<OperatorCommand>,
    /// Memory that no counter of the kernel named while no engine ran in this boot, in bytes, by
    /// memory pool.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unaccounted_baselines: BTreeMap<Arc<str>, u64>,
    /// Last known states of deferred restarts, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub restart_states: BTreeMap<Arc<str>, RestartState>,
    /// Ranks of deferred restarts, by name, as they were known last.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub restart_ranks: BTreeMap<Arc<str>, PastRanks>,
    /// Reboots of this boot and those before.
    #[serde(default)]
    pub reboots: PastReboots,
    /// Last changes of received alerts, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub received: Vec<PastReceived>,
    /// The last loads of each engine, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub loads: Vec<PastLoad>,
    /// Everything before this time on the uptime clock, in milliseconds, is lost: a journal that
    /// was damaged has been replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_before_ms: Option<i64>,
}

/// One act of an earlier run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastAct {
    /// The decision's number.
    pub id: DecisionId,
    /// The rule that made the decision.
    pub rule: RuleId,
    /// Mode of the decision.
    pub mode: Mode,
    /// Position in the remedy's steps, from 0.
    pub step: usize,
    /// Whether it was only a notice.
    pub is_notice: bool,
    /// Time on the uptime clock of this boot, in milliseconds; negative: before this boot. The
    /// latest possible time where it is unknown.
    pub uptime_ms: i64,
    /// Time on the wall clock.
    pub utc: Timestamp,
    /// Whether its end was reported; an act without one was cut off.
    pub has_ended: bool,
    /// Whether its aim was met; `None` where that was not measured.
    pub aim_met: Option<bool>,
    /// The decision whose approval it used; acts that were not done use none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approved: Option<DecisionId>,
    /// The mark of the end after which it restarted its target, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_after: Option<Arc<str>>,
    /// Phase in which the restarted target has died, if it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub died_in: Option<EnginePhase>,
    /// The action, if the fleet's limit may bound it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fleet_action: Option<FleetAction>,
    /// The engine that it worked on, if it was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<Arc<str>>,
    /// Whether it only reclaimed memory from that engine, so that it did not count in the common
    /// budget.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub takes_from_engine: bool,
    /// Whether a person has reset its rule's breaker since.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_forgiven: bool,
}

/// An approval request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingApproval {
    /// The held decision, whose number a person approves.
    pub decision: DecisionId,
    /// Rule of the remedy.
    pub rule: RuleId,
    /// Mode of the decision.
    pub mode: Mode,
    /// Position in the remedy's steps, from 0.
    pub step: usize,
    /// The step itself.
    pub action: Action,
    /// Target of the action.
    pub target: Target,
    /// Time of the request, on the wall clock.
    pub since: Timestamp,
    /// When the action goes ahead unless a person denies it; `None`: a person must approve it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goes_ahead: Option<Moment>,
}
