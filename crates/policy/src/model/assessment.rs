//! The assessment of memory without an apparent owner.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::gate::with_text;
use super::names::named;
use super::time_text::{duration_text, rounded_seconds_text};
use super::wording::{bytes_text, measured_bytes_text};
use super::{Baseline, EnginePhase, Holder, LingeringMemory, Orphan};

named! {
    /// The state of memory that no counter of the kernel names.
    pub enum MemoryState {
        /// No process uses the GPU, and memory is at its baseline.
        Clean = "clean",
        /// An engine lives, or a process uses the GPU or holds memory in pipes.
        InUse = "in_use",
        /// Only orphans of an engine use it.
        Orphan = "orphan",
        /// Memory is being returned.
        Lingering = "lingering",
        /// There is shared memory that no engine uses.
        HeldShmem = "held_shmem",
        /// Memory is above its baseline, and reclaim was not tried yet.
        Reclaimable = "reclaimable",
        /// Memory is above its baseline without an owner, and only a reboot returns it.
        Leaked = "leaked",
        /// The driver is stuck: only a reboot helps.
        Wedged = "wedged",
        /// A required fact is unknown.
        Unknown = "unknown",
    }
}

impl MemoryState {
    /// What it means, and what to do.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Clean => "no process uses the GPU, and no more memory than usual is held",
            Self::InUse => {
                "an engine lives, or a process has the driver open or much memory in pipes"
            }
            Self::Orphan => "an engine has left processes behind that hold memory: end them",
            Self::Lingering => "memory is being given back: wait",
            Self::HeldShmem => {
                "shared memory is held that no engine uses: see /dev/shm and ipcs -m"
            }
            Self::Reclaimable => {
                "memory has no owner; sync, drop caches (3) and compact memory before \
                 anything else"
            }
            Self::Leaked => "memory has no owner, and only a reboot returns it",
            Self::Wedged => "the driver is stuck, and nothing helps but a reboot",
            Self::Unknown => "something that must be known for an assessment is not",
        }
    }
}

/// The kind of machine, as far as assessments differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryPlatform {
    /// CPU and GPU share one pool (GB10, Jetson). The default.
    #[default]
    Unified,
    /// The GPU's memory is a NUMA node of its own (GH200, GB200). Pages of processes that have
    /// ended may stay counted there until memory is short: documented as normal.
    Coherent,
    /// The GPU has its own memory, which the kernel does not count.
    Discrete,
}

/// A sign that the driver is stuck. Each kind has a source of its own, so two kinds are
/// independent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "sign", rename_all = "snake_case")]
pub enum WedgeSign {
    /// The driver does not answer.
    DriverSilent {
        /// Time without a response.
        seconds: u64,
    },
    /// A process that has the driver open waits in the kernel, by `/proc` or the kernel's hung task
    /// detector.
    Waiting {
        /// Pid of the process.
        pid: u32,
        /// Name of the process.
        comm: Arc<str>,
        /// Time in that state.
        seconds: u64,
    },
    /// The driver has reported it in the kernel log.
    Said {
        /// The `kind` of the event.
        event: &'static str,
        /// Age of the event.
        seconds: u64,
    },
}

/// The evidence of an assessment.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum AssessmentEvidence {
    /// A fact is unknown.
    NotKnown {
        /// The fact.
        what: &'static str,
    },
    /// Memory above the baseline that no counter of the kernel names.
    Held {
        /// Memory above the baseline.
        bytes: u64,
        /// The baseline that the memory is compared with.
        baseline: Baseline,
    },
    /// The part of that memory that is in one pool, where the node has several.
    InPool {
        /// Name of the pool: `gpu0`.
        pool: Arc<str>,
        /// Memory above the pool's baseline.
        bytes: u64,
    },
    /// An engine runs.
    Engine {
        /// Name of the engine.
        name: Arc<str>,
        /// Phase of the engine.
        phase: EnginePhase,
    },
    /// A process may keep memory allocated.
    Holder(Holder),
    /// More such processes.
    MoreHolders {
        /// Number of further processes.
        count: u64,
    },
    /// An orphan of an engine.
    Orphan(Orphan),
    /// Memory is being returned.
    Falling {
        /// The lingering memory.
        what: LingeringMemory,
        /// Pace of the return.
        bytes_per_second: f64,
        /// Time until all is returned, at that pace.
        seconds: Option<f64>,
    },
    /// Shared memory.
    Shmem {
        /// Size of shared memory.
        bytes: u64,
    },
    /// The driver counts memory for a process that does not exist, or has not opened it.
    Ghost {
        /// Pid of the missing process.
        pid: u32,
    },
    /// No visible process holds it.
    NoHolders,
    /// The driver responds.
    DriverAnswers,
    /// Used memory of a GPU's own that the driver attributes to no process. It shows nothing about
    /// the CPUs' memory.
    OnGpu {
        /// Index of the GPU.
        gpu: u32,
        /// Unattributed memory.
        bytes: u64,
    },
    /// On this kind of machine memory may stay counted after its process ends, until it is short.
    CountedAfterExit,
    /// Reclaim was not tried since.
    NotTried,
    /// Reclaim was tried.
    Tried {
        /// Time since then.
        seconds: u64,
    },
    /// Memory has not changed.
    Still {
        /// Time without a change.
        seconds: u64,
        /// Time after which it counts as leaked.
        leaked_after_seconds: u64,
    },
    /// A sign that the driver is stuck.
    Wedge(WedgeSign),
}

/// An assessment with its evidence.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryAssessment {
    /// The state. It is the label `verdict` of its series.
    #[serde(rename = "verdict")]
    pub state: MemoryState,
    /// Start of this assessment.
    pub since: Timestamp,
    /// Memory above the baseline that no counter of the kernel names, where it is known.
    pub held_bytes: Option<u64>,
    /// Time until all is returned, at the present pace.
    pub estimated_seconds: Option<f64>,
    /// The facts that led to the state.
    #[serde(serialize_with = "with_text")]
    pub evidence: Vec<AssessmentEvidence>,
    /// Whether no NVIDIA driver is loaded. That it is unknown is `false`.
    #[serde(skip)]
    pub is_driver_absent: bool,
}

impl MemoryAssessment {
    /// The assessment before the first sample.
    pub fn unknown(at: Timestamp) -> Self {
        Self {
            state: MemoryState::Unknown,
            since: at,
            held_bytes: None,
            estimated_seconds: None,
            evidence: Vec::new(),
            is_driver_absent: false,
        }
    }

    /// What the state means by its evidence, and what to do. An engine may live without a GPU, and
    /// what it has open may be hidden from this user.
    pub fn meaning(&self) -> &'static str {
        let has = |is_it: fn(&AssessmentEvidence) -> bool| self.evidence.iter().any(is_it);
        let uses_gpu =
            || has(|one| matches!(one, AssessmentEvidence::Holder(of) if of.uses_driver()));
        let is_engine = || has(|one| matches!(one, AssessmentEvidence::Engine { .. }));
        match self.state {
            MemoryState::InUse if uses_gpu() => "a process uses the GPU",
            MemoryState::InUse if is_engine() => "an engine lives",
            state => state.meaning(),
        }
    }

    /// The evidence in words.
    pub fn reasons(&self) -> Vec<String> {
        self.evidence.iter().map(ToString::to_string).collect()
    }
}

fn whole(seconds: u64) -> String {
    duration_text(Duration::from_secs(seconds))
}

impl fmt::Display for WedgeSign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DriverSilent { seconds } => {
                write!(f, "the driver has not answered for {}", whole(*seconds))
            }
            Self::Waiting { pid, comm, seconds } => {
                write!(f, "{comm} (pid {pid}) has waited in the kernel for {}", whole(*seconds))
            }
            Self::Said { event, seconds } => {
                let ago = whole(*seconds);
                write!(f, "the driver said so in the kernel log ({event}), {ago} ago")
            }
        }
    }
}

impl fmt::Display for AssessmentEvidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = bytes_text;
        match self {
            Self::NotKnown { what } => write!(f, "it is not known {what}"),
            Self::Held { bytes, baseline } => write!(
                f,
                "{} above the {} of {} are in no counter of the kernel",
                of(*bytes),
                if baseline.is_learned { "usual amount" } else { "allowance" },
                of(baseline.bytes)
            ),
            Self::InPool { pool, bytes } => write!(f, "{} of them are in {pool}", of(*bytes)),
            Self::Engine { name, phase } => write!(f, "engine {name} is {phase}"),
            Self::Holder(holder) => holder.fmt(f),
            Self::MoreHolders { count } => write!(f, "and {count} more have it open"),
            Self::Orphan(orphan) => orphan.fmt(f),
            Self::Falling { what, bytes_per_second, seconds } => {
                let what = match what {
                    LingeringMemory::Unaccounted => "memory in no counter",
                    LingeringMemory::Shmem => "shared memory",
                };
                let pace = measured_bytes_text(bytes_per_second.abs());
                write!(f, "{what} falls by {pace}/s")?;
                match seconds {
                    Some(seconds) => write!(f, ": about {} more", rounded_seconds_text(*seconds)),
                    None => Ok(()),
                }
            }
            Self::Shmem { bytes } => write!(f, "{} are held as shared memory", of(*bytes)),
            Self::Ghost { pid } => {
                write!(f, "the driver counts memory for pid {pid}, which does not have it open")
            }
            Self::NoHolders => f.write_str("no process has the driver open"),
            Self::DriverAnswers => f.write_str("the driver answers"),
            Self::OnGpu { gpu, bytes } => write!(
                f,
                "{} of GPU {gpu}'s own memory are in use, and the driver names no process that has \
                 them",
                of(*bytes)
            ),
            Self::CountedAfterExit => f.write_str(
                "on this machine memory may stay counted after its process until it is short",
            ),
            Self::NotTried => f.write_str(
                "sync, drop_caches 3 and compact_memory have not been tried since by umawarden",
            ),
            Self::Tried { seconds } => {
                write!(f, "caches were dropped and memory compacted {} ago", whole(*seconds))
            }
            Self::Still { seconds, leaked_after_seconds } => write!(
                f,
                "it has not changed for {} since; after {} it counts as leaked",
                whole(*seconds),
                whole(*leaked_after_seconds)
            ),
            Self::Wedge(sign) => sign.fmt(f),
        }
    }
}

/// When memory counts as leaked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssessmentLimits {
    /// More than this above what is usual.
    pub leaked_bytes: u64,
    /// For so long after all that may bring it back was tried.
    pub leaked_after: Duration,
}

impl Default for AssessmentLimits {
    /// A leak is reported to be 33 GB for a failed container; what a desktop or another driver
    /// takes is far below 4 GiB.
    fn default() -> Self {
        Self { leaked_bytes: 4 << 30, leaked_after: Duration::from_secs(300) }
    }
}
