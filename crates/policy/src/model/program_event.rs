//! Events that this program finds itself: lives of engines, verdicts, reboots, received alerts.

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    DeathReport, EnginePhase, MemoryVerdict, RebootResult, ReceivedAlert, ReceivedTurn, Release,
    RestartState,
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
        /// Which boot.
        ended_boot_id: String,
        /// When its last record was written.
        last_record: Option<Timestamp>,
        /// From then until this boot began, as the wall clock says.
        gap_seconds: Option<f64>,
        /// `MemFree`.
        memory_free_bytes: Option<f64>,
        /// `MemAvailable`.
        memory_available_bytes: Option<f64>,
        /// What no counter of the kernel names.
        memory_unaccounted_bytes: Option<f64>,
        /// Share of the last 10 s in which all tasks waited for memory.
        memory_pressure_full: Option<f64>,
        /// How old the loop's last picture was: the loop stood still if it is more than a second.
        loop_age_seconds: Option<f64>,
        /// The last kernel event.
        last_event: Option<String>,
        /// The rules that fired.
        firing: Vec<String>,
    },
    /// An inference engine went from one phase of its life to another.
    EnginePhase {
        /// Its name.
        engine: String,
        /// The phase before; `None`: it was not known.
        from: Option<EnginePhase>,
        /// The phase now.
        to: EnginePhase,
        /// What shows it.
        reason: String,
        /// The number of its server.
        pid: u32,
    },
    /// An inference engine that is not ready yet makes no progress, or makes some again.
    EngineStuck {
        /// Its name.
        engine: String,
        /// Whether it is stuck now.
        stuck: bool,
        /// What shows it.
        reason: String,
        /// The number of its server.
        pid: u32,
    },
    /// The state of a deferred restart has changed.
    EngineRestart {
        /// Its name.
        engine: String,
        /// The state now.
        to: RestartState,
        /// Why.
        reason: String,
        /// The container's id, where it is one.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        container: Option<String>,
    },
    /// An inference engine, or a command that was launched, has died.
    EngineDied {
        /// Of what, what proves it, and what to do.
        report: Box<DeathReport>,
    },
    /// How an inference engine that has died gave its memory back.
    EngineRelease {
        /// Its name.
        engine: String,
        /// The number of its server.
        pid: u32,
        /// How it went.
        #[serde(flatten)]
        release: Box<Release>,
    },
    /// No engine runs, and so much memory is in no counter of the kernel: the least that was steady
    /// in this boot.
    UnaccountedBaseline {
        /// So much.
        bytes: u64,
    },
    /// What the matter is with memory that nobody seems to use has changed.
    MemoryVerdict {
        /// What it is now.
        verdict: MemoryVerdict,
        /// What it was.
        before: MemoryVerdict,
        /// How much more than usual is in no counter of the kernel, where that is known.
        held_bytes: Option<u64>,
        /// What it follows from.
        evidence: Vec<String>,
    },
    /// What came of a reboot that this program has made was judged.
    RebootChecked {
        /// The number of the decision that has made it.
        decision: u64,
        /// The boot that it was to end.
        ended_boot_id: String,
        /// What came of it.
        result: RebootResult,
        /// What shows it.
        reason: String,
    },
    /// The journal was begun anew, since it was deleted, replaced or damaged: what it held of
    /// reboots is lost.
    JournalLost {
        /// The boot in which that was noticed; empty where its name is not known.
        boot_id: String,
        /// How long that had lasted, in milliseconds.
        uptime_ms: i64,
    },
    /// An alert received from an Alertmanager began or ceased to fire.
    ReceivedAlert {
        /// What has become of it.
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
