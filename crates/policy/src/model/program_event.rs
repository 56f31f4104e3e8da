//! Events that this program finds itself: phases of engines, assessments, reboots, received alerts.

mod text;

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    DeathReport, EnginePhase, LeaseChange, LoadReceipt, MemoryState, PastRanks, Pod, RebootResult,
    ReceivedAlert, ReceivedTurn, Release, RestartState,
};

/// An event that this program finds, or is sent.
#[derive(
    Clone, Debug, PartialEq, Serialize, Deserialize, strum::IntoStaticStr, strum::VariantNames,
)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum ProgramEvent {
    /// The boot before this one did not end in order. The black box reports it at the first start
    /// after that. The other fields are of that boot's last record.
    UncleanBoot {
        /// Id of that boot.
        ended_boot_id: String,
        /// Time of its last record.
        last_record: Option<Timestamp>,
        /// Time from then to the start of this boot, by the wall clock.
        gap_seconds: Option<f64>,
        /// `MemFree`.
        memory_free_bytes: Option<f64>,
        /// `MemAvailable`.
        memory_available_bytes: Option<f64>,
        /// Memory that no counter of the kernel names.
        memory_unaccounted_bytes: Option<f64>,
        /// Share of the last 10 s in which all tasks waited for memory.
        memory_pressure_full: Option<f64>,
        /// Age of the loop's last snapshot: the loop was blocked if it is more than a second.
        loop_age_seconds: Option<f64>,
        /// The last kernel event.
        last_event: Option<String>,
        /// The rules that fired.
        firing: Vec<String>,
    },
    /// An inference engine went from one phase of its life to another.
    EnginePhase {
        /// Name of the engine.
        engine: String,
        /// The phase before; `None`: it was not known.
        from: Option<EnginePhase>,
        /// The phase now.
        to: EnginePhase,
        /// What showed the phase, for people.
        reason: String,
        /// Pid of its server.
        pid: u32,
        /// Its pod, confirmed by the container's runtime.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pod: Option<Arc<Pod>>,
    },
    /// An inference engine that is not ready yet makes no progress, or makes some again.
    EngineStuck {
        /// Name of the engine.
        engine: String,
        /// Whether it is stuck now.
        stuck: bool,
        /// What showed that it is stuck, or no longer is, for people.
        reason: String,
        /// Pid of its server.
        pid: u32,
        /// Its pod, confirmed by the container's runtime.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pod: Option<Arc<Pod>>,
    },
    /// A rank on another node of an engine that spans nodes has ended; the engine cannot go on.
    EngineRankLost {
        /// Name of the engine on this node.
        engine: String,
        /// What its ranks have in common.
        gang: String,
        /// The other node.
        node: String,
        /// The rank, and how it has ended.
        reason: String,
        /// Memory of the engine's processes on this node, in bytes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        memory_bytes: Option<u64>,
    },
    /// The state of a deferred restart has changed.
    EngineRestart {
        /// Name of the engine.
        engine: String,
        /// The state now.
        to: RestartState,
        /// Why the state has changed, for people.
        reason: String,
        /// The container's id, where it is one.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        container: Option<String>,
        /// Its ranks, if it is one of an engine that spans nodes.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        ranks: Option<Box<PastRanks>>,
    },
    /// An inference engine, or a command that was launched, has died.
    EngineDied {
        /// The cause, its proofs, and advice.
        report: Box<DeathReport>,
    },
    /// How the memory of a dead inference engine was returned.
    EngineRelease {
        /// Name of the engine.
        engine: String,
        /// Pid of its server.
        pid: u32,
        /// Time and amount of what was returned.
        #[serde(flatten)]
        release: Box<Release>,
    },
    /// What the start of an inference engine took.
    EngineLoad {
        /// Name of the engine.
        engine: String,
        /// Pid of its server.
        pid: u32,
        /// Memory and time that the start took.
        #[serde(flatten)]
        receipt: Box<LoadReceipt>,
    },
    /// A new baseline: the least steady amount of memory that no counter of the kernel names while
    /// no engine runs.
    UnaccountedBaseline {
        /// The memory pool.
        pool: Arc<str>,
        /// The baseline.
        bytes: u64,
    },
    /// Memory was reserved for a start, or is no longer.
    Lease {
        /// Who starts, for people.
        who: Arc<str>,
        /// Id of the lease.
        id: Arc<str>,
        /// The requested memory, in bytes.
        need_bytes: u64,
        /// Who called for that over the API, if somebody did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<Arc<str>>,
        /// The grant, or the end of a granted lease.
        #[serde(flatten)]
        change: LeaseChange,
    },
    /// The assessment of memory without an apparent owner has changed.
    #[serde(rename = "memory_verdict")]
    #[strum(serialize = "memory_verdict")]
    MemoryAssessed {
        /// The state now.
        #[serde(rename = "verdict")]
        state: MemoryState,
        /// The state before.
        before: MemoryState,
        /// Memory above the baseline that no counter of the kernel names, where it is known.
        held_bytes: Option<u64>,
        /// The facts that led to the state, one text each.
        evidence: Vec<String>,
    },
    /// The result of a reboot of this program was checked.
    RebootChecked {
        /// The number of the decision that has made it.
        decision: u64,
        /// The boot that it was to end.
        ended_boot_id: String,
        /// Whether the reboot took place, and whether it helped.
        result: RebootResult,
        /// What showed the result, for people.
        reason: String,
    },
    /// A new journal was begun, since the previous one was deleted, replaced or damaged: its data
    /// on reboots is lost.
    JournalLost {
        /// Id of the boot in which that was noticed; empty where it is unknown.
        boot_id: String,
        /// Uptime of that boot, in milliseconds.
        uptime_ms: i64,
    },
    /// An alert received from an Alertmanager began or ceased to fire.
    ReceivedAlert {
        /// The change of the alert.
        to: ReceivedTurn,
        /// The alert as received.
        #[serde(flatten)]
        alert: Arc<ReceivedAlert>,
    },
}

impl ProgramEvent {
    /// The `event` label values, and JSON kinds, of these events.
    pub const KINDS: [&'static str; <Self as strum::VariantNames>::VARIANTS.len()] =
        *<Self as strum::VariantNames>::VARIANTS.first_chunk().expect("their own length");

    /// The kind, one of [`Self::KINDS`].
    pub fn kind(&self) -> &'static str {
        self.into()
    }
}
