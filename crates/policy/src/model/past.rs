//! What earlier runs of this program did and were told, as far as guard rails need it.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    Action, DecisionId, EnginePhase, Mode, OperatorCommand, PastReboots, PastReceived,
    RestartState, RuleId, Target,
};

/// What the journal knows of earlier runs. Until the policy has it, nothing is done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Past {
    /// What was done, or would have been in observe mode; oldest first.
    pub acts: Vec<PastAct>,
    /// Approvals that were asked for and may still be given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub asked: Vec<Asked>,
    /// Silences and approvals that were in force; oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<OperatorCommand>,
    /// How much memory was in no counter of the kernel while no engine ran in this boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unaccounted_baseline: Option<u64>,
    /// Where what is started again stood when it was last told of, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub stood: BTreeMap<Arc<str>, RestartState>,
    /// Reboots of this boot and those before.
    #[serde(default)]
    pub reboots: PastReboots,
    /// What was last told of received alerts, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub received: Vec<PastReceived>,
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
    /// Which rule made it.
    pub rule: RuleId,
    /// In which mode.
    pub mode: Mode,
    /// Position in the remedy's steps, from 0.
    pub step: usize,
    /// Whether it was only a notice.
    pub is_notice: bool,
    /// When, on the uptime clock of this boot, in milliseconds; negative: before this boot. Where
    /// that cannot be told, as late as it can have been.
    pub uptime_ms: i64,
    /// When, on the wall clock of then.
    pub utc: Timestamp,
    /// Whether its end was reported; an act without one was cut off.
    pub has_ended: bool,
    /// Whether its aim was met; `None` where that was not measured.
    pub aim_met: Option<bool>,
    /// The decision whose approval it used up; what was not done has used none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approved: Option<DecisionId>,
    /// The mark of the end after which it started something again, if it did that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_after: Option<Arc<str>>,
    /// In which phase what it started has died, if it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub died_in: Option<EnginePhase>,
    /// The engine that it worked on, if it was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<Arc<str>>,
    /// Whether it only took from that engine what it can spare, so that the budget of all actions
    /// was for others.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub takes_from_engine: bool,
    /// Whether a person has reset its rule's breaker since.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_forgiven: bool,
}

/// An approval that a remedy has asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// The decision that was held; its number is what a person approves.
    pub decision: DecisionId,
    /// Whose remedy.
    pub rule: RuleId,
    /// In which mode.
    pub mode: Mode,
    /// Position in the remedy's steps, from 0.
    pub step: usize,
    /// The step itself.
    pub action: Action,
    /// What it works on.
    pub target: Target,
    /// Since when, on the wall clock.
    pub since: Timestamp,
}
