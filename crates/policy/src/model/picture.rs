//! The picture of a node for people: what the page and the terminal show.
//!
//! `GET /api/v1/picture` and `GET /api/v1/live` send a [`Picture`], `GET /api/v1/memory` a
//! [`MemoryHistory`]. Unknown values are null; the reason is beside them, where there is one.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::names::named;
use super::{EngineKind, EnginePhase, Mode};

/// Entries of [`Picture::happened`].
pub const MOST_HAPPENED: usize = 20;

/// Entries of [`MemoryHistory::happened`].
pub const MOST_PAST_HAPPENED: usize = 200;

/// All that is shown of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Picture {
    /// Name of the node.
    pub node: String,
    /// Version of the program.
    pub version: String,
    /// The node's mode.
    pub mode: Mode,
    /// The mode in words, with the grades that are enforced where these are not all.
    pub mode_text: String,
    /// Time of the sample.
    pub at: Timestamp,
    /// Time since the daemon started.
    pub uptime_seconds: f64,
    /// Whether the node is well.
    pub well: NodeHealth,
    /// Model, memory and GPU of the node.
    pub machine: MachineInfo,
    /// Where memory is.
    pub memory: MemoryPicture,
    /// The inference engines, by name.
    pub engines: Vec<EnginePicture>,
    /// What happened and what was decided, the newest first.
    pub happened: Vec<RecentEvent>,
    /// Who waits for memory.
    pub waiting: Vec<WaitingStart>,
    /// The nodes of the cluster: those that are unknown, then the worst, then the weakest; empty
    /// without a cluster.
    pub nodes: Vec<NodePicture>,
    /// Decisions that a person may approve or deny.
    pub approvals: Vec<ApprovalPicture>,
    /// Rules whose remedies a person has silenced.
    #[serde(default)]
    pub silences: Vec<SilencePicture>,
}

named! {
    /// Whether a node is well.
    pub enum NodeHealthLevel {
        /// Nothing needs attention.
        Well = "well",
        /// Whether it is well is unknown.
        Unknown = "unknown",
        /// Something needs attention.
        Warning = "warning",
        /// Something needs attention at once.
        Critical = "critical",
    }

    /// What a part of memory is.
    pub enum PartKind {
        /// Memory of an inference engine.
        Engine = "engine",
        /// Memory of other processes, with shared memory.
        Processes = "processes",
        /// Page cache.
        Cache = "cache",
        /// Memory that no counter of the kernel names: the driver's, as far as no engine has it.
        Driver = "driver",
        /// The kernel's own memory, and what is left.
        Other = "other",
        /// Free memory.
        Free = "free",
    }

    /// What an entry of the past is.
    pub enum RecentEventKind {
        /// An event of the kernel log or of the program.
        Event = "event",
        /// An alert began or ceased to fire.
        Alert = "alert",
        /// A remedy was decided on.
        Decision = "decision",
    }

    /// The weight of an entry of the past.
    pub enum RecentEventLevel {
        /// For the record.
        Info = "info",
        /// It may need attention.
        Warning = "warning",
        /// It needs attention.
        Critical = "critical",
    }

    /// What waits for memory.
    pub enum WaitKind {
        /// A start that has requested a lease.
        Start = "start",
        /// A deferred restart.
        Restart = "restart",
    }

    /// The state of a node of the cluster.
    pub enum NodeState {
        /// It is this node.
        Own = "self",
        /// It answers.
        Answers = "answers",
        /// It is unknown.
        Unknown = "unknown",
    }
}

/// Whether the node is well, and why not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeHealth {
    /// The worst of the reasons.
    pub level: NodeHealthLevel,
    /// What is the matter, the worst first, and what a person can do about it.
    pub reasons: Vec<String>,
    /// What is no trouble and explains the rest, as rules that this machine cannot evaluate.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// Model, memory and GPU of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineInfo {
    /// Its model, as the firmware names it.
    #[serde(default)]
    pub model: Option<String>,
    /// `MemTotal`.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// The GPU, as the driver names it.
    #[serde(default)]
    pub gpu: Option<String>,
}

/// Where memory is. The parts add up to the total.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryPicture {
    /// `MemTotal`.
    #[serde(default)]
    pub total_bytes: Option<u64>,
    /// All parts; empty where memory is unknown.
    pub parts: Vec<MemoryPart>,
    /// What the kernel keeps free for itself.
    #[serde(default)]
    pub reserve_bytes: Option<u64>,
    /// Memory that can be allocated without swapping, by the kernel's estimate.
    #[serde(default)]
    pub available_bytes: Option<u64>,
    /// What is not known, and why.
    #[serde(default)]
    pub remarks: Vec<String>,
}

/// A part of memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryPart {
    /// Name for people: of an engine its own.
    pub name: String,
    /// What it is.
    pub kind: PartKind,
    /// Of page cache: `clean`, `dirty` or `mapped`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Its size.
    pub bytes: u64,
}

/// An inference engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EnginePicture {
    /// Its name, unique on the node.
    pub name: String,
    /// The kind of engine, such as vLLM.
    pub kind: EngineKind,
    /// Its model, as its command line names it.
    #[serde(default)]
    pub model: Option<String>,
    /// Its pod, `NAMESPACE/NAME`.
    #[serde(default)]
    pub pod: Option<String>,
    /// Where in its life it is.
    pub phase: EnginePhase,
    /// Time at which this phase began.
    pub since: Timestamp,
    /// How much of its load is done, from 0 to 1, by the last load of the same configuration.
    #[serde(default)]
    pub progress: Option<f64>,
    /// Time until it is ready, by the same.
    #[serde(default)]
    pub seconds_left: Option<f64>,
    /// Memory of its processes and what the driver holds for them.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// Its requests.
    #[serde(default)]
    pub queue: Option<Queue>,
    /// The share of its KV cache that is in use, from 0 to 1.
    #[serde(default)]
    pub kv_cache_used: Option<f64>,
    /// Why it is in that phase, and what is the matter with it.
    #[serde(default)]
    pub note: Option<String>,
}

/// Requests of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    /// Waiting requests.
    #[serde(default)]
    pub waiting: Option<u64>,
    /// Running requests.
    #[serde(default)]
    pub running: Option<u64>,
}

/// An entry of the past.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecentEvent {
    /// When it happened last.
    pub at: Timestamp,
    /// What it is.
    pub kind: RecentEventKind,
    /// Its weight.
    pub level: RecentEventLevel,
    /// One line. In observe mode, a decision says what would have been done.
    pub text: String,
    /// Of a decision: its number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// Of a decision or an alert: the rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// The engine that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,
    /// How often it happened in a row.
    #[serde(default = "once")]
    pub times: u64,
}

fn once() -> u64 {
    1
}

/// A start or a restart that waits for memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WaitingStart {
    /// Name of the start or of the restart.
    pub who: String,
    /// What it needs, where that is known.
    #[serde(default)]
    pub needs_bytes: Option<u64>,
    /// Who comes before it.
    #[serde(default)]
    pub behind: Vec<String>,
    /// Time at which it began to wait.
    pub since: Timestamp,
    /// Whether a start or a deferred restart waits.
    pub kind: WaitKind,
    /// Why it waits.
    #[serde(default)]
    pub reason: String,
    /// How long it still waits, where that shows.
    #[serde(default)]
    pub seconds_left: Option<f64>,
}

/// A node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodePicture {
    /// Name of the node.
    pub name: String,
    /// Whether it is this node, or answers.
    pub state: NodeState,
    /// Whether it is well; `None`: it does not answer, or its version does not report that.
    #[serde(default)]
    pub level: Option<NodeHealthLevel>,
    /// Whether it has the least available memory.
    pub weakest: bool,
    /// Its available memory.
    #[serde(default)]
    pub available_bytes: Option<u64>,
    /// Its memory.
    #[serde(default)]
    pub total_bytes: Option<u64>,
    /// Why it is unknown.
    #[serde(default)]
    pub note: Option<String>,
    /// The URL of another node's page, as this node reaches it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

/// A decision that a person may approve or deny.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalPicture {
    /// Number of the decision, which `umawarden approve` and `deny` take.
    pub decision: u64,
    /// The rule that decided it, `GROUP/ALERT`.
    pub rule: String,
    /// What is to be done.
    pub what: String,
    /// Text of the rule's first alert; without an alert, the alert's name.
    pub why: String,
    /// When the question lapses, or the approval that was given.
    pub lapses: Timestamp,
    /// When it goes ahead unless a person denies it; null: a person must approve it.
    #[serde(default)]
    pub goes_ahead: Option<Timestamp>,
    /// Who has approved or denied it.
    #[serde(default)]
    pub answer: Option<String>,
}

/// A silence: remedies of these rules are held until it ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SilencePicture {
    /// What `umawarden silence end` takes.
    pub id: u64,
    /// Its rules: `all`, the name of an alert, or `group/alert`.
    pub rules: String,
    /// Its end.
    pub until: Timestamp,
    /// The person who made it.
    pub by: String,
    /// Why; may be empty.
    pub why: String,
}

/// Where memory was.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryHistory {
    /// Time between two points.
    pub step_seconds: u64,
    /// Time of each point, in seconds since 1970. A point is the sample of its step with the least
    /// free memory.
    pub at: Vec<i64>,
    /// The parts, each with a value for each point; null where it is unknown.
    pub parts: Vec<PartHistory>,
    /// What the kernel kept free for itself.
    pub reserve_bytes: Vec<Option<u64>>,
    /// What happened in that time, the newest first.
    #[serde(default)]
    pub happened: Vec<RecentEvent>,
}

/// A part of memory over time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartHistory {
    /// Name for people: of an engine its own.
    pub name: String,
    /// What it is.
    pub kind: PartKind,
    /// Of page cache: `clean`, `dirty` or `mapped`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Its size at each point.
    pub bytes: Vec<Option<u64>>,
}
