//! A read-only picture of the policy, for exports.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::{
    AlertState, ClusterStatus, EngineHealth, EnginePhase, EngineSeen, Grades, Lease, MemoryAccount,
    MemoryAssessment, MemoryPools, Mode, Moment, Pause, PendingApproval, ProcessId, RankStatus,
    Reading, RebootStatus, ReceivedAlertStatus, RecentEvent, ReservedPool, RestartStatus, RuleId,
    RuleSelector, SeriesKey, ShippedRule, Source, named,
};

/// What exports may see.
#[derive(Clone, Debug)]
pub struct Status {
    /// When the picture was taken.
    pub at: Moment,
    /// When this process began to watch.
    pub started: Moment,
    /// The node's mode.
    pub mode: Mode,
    /// All series known so far; the same `Arc` while none is added.
    pub series: Arc<[SeriesKey]>,
    /// The latest reading of each entry of `series`.
    pub values: Vec<Reading<f64>>,
    /// How each source fared last.
    pub sources: Arc<[SourceStatus]>,
    /// Every rule; the same `Arc` while nothing changes.
    pub rules: Arc<[RuleStatus]>,
    /// The grades that are enforced where the mode is that.
    pub enforced: Arc<Grades>,
    /// The rules inside the binary that are not loaded.
    pub shipped_off: Arc<[ShippedRule]>,
    /// What holds remedies back; the same `Arc` while nothing changes.
    pub guard: Arc<GuardStatus>,
    /// The inference engines, by name, those too that have gone lately.
    pub engines: Arc<[EngineStatus]>,
    /// What there is for another one, if memory was measured of late.
    pub gate_memory: Option<MemoryPools>,
    /// Starts that wait for memory, and those for which it is reserved.
    pub leases: Arc<[Lease]>,
    /// The bytes that granted leases reserve in each pool.
    pub reserved: Arc<[ReservedPool]>,
    /// What is started again when there is memory, by name.
    pub restarts: Arc<[RestartStatus]>,
    /// The assessment of memory; the same `Arc` until the next.
    pub assessment: Arc<MemoryAssessment>,
    /// Who took memory within the last ten seconds; the same `Arc` until the next scan.
    pub account: Arc<MemoryAccount>,
    /// The state of reboots; the same `Arc` while nothing changes.
    pub reboot: Arc<RebootStatus>,
    /// Received alerts that fire, by fingerprint; the same `Arc` while nothing changes.
    pub received: Arc<[ReceivedAlertStatus]>,
    /// The other nodes of the cluster; the same `Arc` until there is news.
    /// `None`: there is no cluster.
    pub cluster: Option<Arc<ClusterStatus>>,
    /// What happened since this process started, the newest first; the same `Arc` while nothing
    /// happens.
    pub happened: Arc<[RecentEvent]>,
}

/// What holds remedies back beyond time and budgets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GuardStatus {
    /// On whose word nothing is done.
    pub pause: Option<Pause>,
    /// Whether it is known what earlier runs did; until then nothing is done.
    pub is_restored: bool,
    /// In force.
    pub silences: Vec<SilenceStatus>,
    /// Asked for, and given but not used yet.
    pub approvals: Vec<ApprovalStatus>,
    /// Remedies that have missed their aim since they last met it.
    pub breakers: Vec<BreakerStatus>,
    /// All that are configured.
    pub windows: Vec<WindowStatus>,
}

/// One inference engine.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineStatus {
    /// As it was seen last.
    pub engine: EngineSeen,
    /// Where in its life it is.
    pub phase: EnginePhase,
    /// Time at which this phase began.
    pub since: Moment,
    /// What showed that.
    pub reason: Arc<str>,
    /// Whether it makes no progress, although it is not ready yet.
    pub is_stuck: bool,
    /// The part of it on another node that has ended, and how.
    pub lost_rank: Option<Arc<str>>,
    /// Its ranks on other nodes of the cluster that have processes.
    pub other_ranks: Vec<RankStatus>,
    /// For how long nothing was read and no memory taken, while it is not ready yet.
    pub without_progress: Option<Duration>,
    /// Start of its server, on the uptime clock.
    pub began: Duration,
    /// How long the last load of an engine of this name and model took.
    pub last_load_took: Option<Duration>,
    /// What it read from storage until it was ready.
    pub load_read_bytes: Option<u64>,
    /// All memory of its processes.
    pub memory_bytes: u64,
    /// The result of its last health check.
    pub health: Option<EngineHealth>,
    /// The time of its last scan, on the uptime clock.
    pub scanned_at: Duration,
    /// Its processes that serve while others of it take in a model.
    pub serving: BTreeSet<ProcessId>,
}

/// A silence in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SilenceStatus {
    /// What `umawarden silence end` takes.
    pub id: u64,
    /// Which rules' remedies it holds back.
    pub rules: RuleSelector,
    /// Its end.
    pub until: Timestamp,
    /// When it was made.
    pub since: Timestamp,
    /// The person who made it.
    pub author: String,
    /// Why; may be empty.
    pub comment: String,
}

/// An approval that a remedy has asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalStatus {
    /// What is asked for; its decision's number is what a person approves.
    #[serde(flatten)]
    pub asked: PendingApproval,
    /// When the question lapses, or the approval that was given.
    pub lapses: Timestamp,
    /// The person who has given it, if given: it is used at the next chance.
    pub given_by: Option<String>,
    /// The person who has denied it, if denied: it is not asked for again before it lapses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub denied_by: Option<String>,
}

/// A remedy that has missed its aim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BreakerStatus {
    /// The rule that the remedy belongs to.
    pub rule: RuleId,
    /// The mode of the counted rounds.
    pub mode: Mode,
    /// For which engine, where the breaker counts by engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<Arc<str>>,
    /// Rounds since the aim was last met.
    pub misses: u32,
    /// Whether the remedy is stopped for it.
    pub is_open: bool,
}

/// A maintenance window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WindowStatus {
    /// The name by which guard rails refer to the window.
    pub name: Arc<str>,
    /// Whether it is open.
    pub is_open: bool,
}

/// How a source fared at its last run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SourceStatus {
    /// The source that was read.
    pub source: Source,
    /// Whether it answered.
    pub up: bool,
    /// Why not, or a remark such as which kernel-log reader is in use.
    pub detail: Option<Arc<str>>,
    /// How long it took.
    pub took: Duration,
}

named! {
    /// The state of a rule: the worst of its alerts.
    pub enum RuleState {
        /// The condition does not hold.
        Inactive = "inactive",
        /// It holds, but not for long enough yet.
        Pending = "pending",
        /// It has held for long enough.
        Firing = "firing",
        /// It is unknown, since a source is failing.
        Unknown = "unknown",
    }
}

impl RuleState {
    /// The `state` labels of `uma_rule_state`: hardly any rule is in one of them.
    pub const NOTABLE: [Self; 3] = [Self::Pending, Self::Firing, Self::Unknown];
}

/// One rule, for people.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RuleStatus {
    /// Group and alert.
    #[serde(flatten)]
    pub rule: RuleId,
    /// The file it came from.
    pub file: String,
    /// What the configuration has changed in it, in words.
    pub overridden: Option<Arc<str>>,
    /// Whether it reads the series of a cluster, and there is none: it is not evaluated.
    pub is_idle: bool,
    /// How often its group is evaluated.
    pub interval: Duration,
    /// Its expression, as written.
    pub expr: Arc<str>,
    /// How long the condition must hold before the alert fires.
    pub hold_for: Duration,
    /// How long the alert keeps firing after the condition ended.
    pub keep_firing_for: Duration,
    /// Labels that it adds to its alerts', as written: templates.
    pub labels: Vec<(Arc<str>, Arc<str>)>,
    /// Texts for people, as written: templates.
    pub annotations: Vec<(Arc<str>, Arc<str>)>,
    /// The mode in force for it.
    pub mode: Mode,
    /// State of the rule: inactive, pending, firing or unknown.
    pub state: RuleState,
    /// Which readings are missing, and why, when `state` is unknown.
    pub unknown: Vec<String>,
    /// Its pending and firing alerts.
    pub alerts: Vec<AlertStatus>,
    /// Why it does not act now, or what it did last.
    pub remedy: Option<String>,
}

/// One active alert.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AlertStatus {
    /// Labels after templating, `alertname` included.
    pub labels: Vec<(Arc<str>, Arc<str>)>,
    /// Annotations after templating.
    pub annotations: Vec<(Arc<str>, String)>,
    /// Pending or firing.
    pub state: AlertState,
    /// Since when the condition has held.
    pub active_since: Moment,
    /// The expression's value.
    pub value: f64,
}
