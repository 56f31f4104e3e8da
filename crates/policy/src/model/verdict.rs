//! What is the matter with memory that nobody seems to use.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::gate::with_text;
use super::names::named;
use super::wording::{bytes_text, measured_bytes_text};
use super::{Baseline, EnginePhase, Holder, Lingering, Orphan};

named! {
    /// What the node's memory is held by.
    pub enum MemoryVerdict {
        /// Nobody uses the GPU, and no more than usual is held.
        Clean = "clean",
        /// Somebody uses the GPU.
        InUse = "in_use",
        /// Only what an engine has left behind uses it.
        Orphan = "orphan",
        /// What was held is being given back.
        Lingering = "lingering",
        /// Shared memory is held that no engine uses.
        HeldShmem = "held_shmem",
        /// More than usual is held, and what may bring it back was not tried yet.
        Reclaimable = "reclaimable",
        /// More than usual is held by nobody, and nothing brings it back: only a reboot does.
        Leaked = "leaked",
        /// The driver is stuck: only a reboot helps.
        Wedged = "wedged",
        /// Something that must be known for a verdict is not.
        Unknown = "unknown",
    }
}

impl MemoryVerdict {
    /// What it means, and what to do.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Clean => "nobody uses the GPU, and no more memory than usual is held",
            Self::InUse => "somebody uses the GPU",
            Self::Orphan => "an engine has left processes behind that hold memory: end them",
            Self::Lingering => "memory is being given back: wait",
            Self::HeldShmem => {
                "shared memory is held that no engine uses: see /dev/shm and ipcs -m"
            }
            Self::Reclaimable => {
                "memory is held by nobody; sync, drop caches (3) and compact memory before \
                 anything else"
            }
            Self::Leaked => "memory is held by nobody, and nothing brings it back but a reboot",
            Self::Wedged => "the driver is stuck, and nothing helps but a reboot",
            Self::Unknown => "something that must be known for a verdict is not",
        }
    }
}

/// What kind of machine it is, as far as verdicts differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryPlatform {
    /// CPU and GPU share one pool (GB10, Jetson); so it is where nobody tells otherwise.
    #[default]
    Unified,
    /// The GPU's memory is a NUMA node of its own (GH200, GB200). Pages of processes that have
    /// ended may stay counted there until memory is short: documented as normal.
    Coherent,
    /// The GPU has memory of its own, which the kernel does not count.
    Discrete,
}

/// A sign that the driver is stuck. Each kind comes from somewhere else, so that two of them are
/// independent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "sign", rename_all = "snake_case")]
pub enum WedgeSign {
    /// The driver does not answer.
    DriverSilent {
        /// For so long.
        seconds: u64,
    },
    /// A process that has the driver open waits in the kernel, as `/proc` or the kernel's own
    /// watch over hung tasks tells.
    Waiting {
        /// Its number.
        pid: u32,
        /// Its name.
        comm: Arc<str>,
        /// For so long.
        seconds: u64,
    },
    /// The driver itself has said so in the kernel log: the `kind` of an event.
    Said {
        /// Which.
        event: &'static str,
        /// So long ago.
        seconds: u64,
    },
}

/// What a verdict follows from.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum VerdictEvidence {
    /// That is not known.
    NotKnown {
        /// What.
        what: &'static str,
    },
    /// So much above what is usual is in no counter of the kernel.
    Held {
        /// So much.
        bytes: u64,
        /// What is usual.
        baseline: Baseline,
    },
    /// An engine lives.
    Engine {
        /// Its name.
        name: Arc<str>,
        /// Where in its life it is.
        phase: EnginePhase,
    },
    /// A process holds what keeps memory alive.
    Holder(Holder),
    /// And so many more do.
    MoreHolders {
        /// So many.
        count: u64,
    },
    /// An engine has left a process behind.
    Orphan(Orphan),
    /// Memory is being given back.
    Falling {
        /// Which.
        what: Lingering,
        /// How fast.
        bytes_per_second: f64,
        /// How long until it is all back, at that pace.
        seconds: Option<f64>,
    },
    /// So much shared memory is held.
    Shmem {
        /// So much.
        bytes: u64,
    },
    /// The driver counts memory for a process that is not there, or does not have it open.
    Ghost {
        /// Its number.
        pid: u32,
    },
    /// Nobody who can be seen holds it.
    NoHolders,
    /// The driver answers.
    DriverAnswers,
    /// A GPU's own memory is taken, and the driver names nobody who has it. Nothing follows from
    /// that for the machine's.
    OnGpu {
        /// Which GPU.
        gpu: u32,
        /// How much.
        bytes: u64,
    },
    /// On such a machine memory may stay counted after its process until it is short.
    CountedAfterExit,
    /// What may bring it back was not tried since.
    NotTried,
    /// That was tried, so long ago.
    Tried {
        /// Since then.
        seconds: u64,
    },
    /// It has not changed.
    Still {
        /// For so long.
        seconds: u64,
        /// After so long it counts as leaked.
        leaked_after_seconds: u64,
    },
    /// The driver is stuck, as this shows.
    Wedge(WedgeSign),
}

/// One verdict, with what it follows from.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryJudgement {
    /// Which.
    pub verdict: MemoryVerdict,
    /// Since when it stands.
    pub since: Timestamp,
    /// How much more than usual is in no counter of the kernel, where that is known.
    pub held_bytes: Option<u64>,
    /// When what is given back will be, at the present pace.
    pub estimated_seconds: Option<f64>,
    /// What it follows from.
    #[serde(serialize_with = "with_text")]
    pub evidence: Vec<VerdictEvidence>,
}

impl MemoryJudgement {
    /// Nothing was looked at yet.
    pub fn unknown(at: Timestamp) -> Self {
        Self {
            verdict: MemoryVerdict::Unknown,
            since: at,
            held_bytes: None,
            estimated_seconds: None,
            evidence: Vec::new(),
        }
    }

    /// The evidence in words.
    pub fn reasons(&self) -> Vec<String> {
        self.evidence.iter().map(ToString::to_string).collect()
    }
}

impl fmt::Display for WedgeSign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DriverSilent { seconds } => {
                write!(f, "the driver has not answered for {seconds} s")
            }
            Self::Waiting { pid, comm, seconds } => {
                write!(f, "{comm} (pid {pid}) has waited in the kernel for {seconds} s")
            }
            Self::Said { event, seconds } => {
                write!(f, "the driver said so in the kernel log ({event}), {seconds} s ago")
            }
        }
    }
}

impl fmt::Display for VerdictEvidence {
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
            Self::Engine { name, phase } => write!(f, "engine {name} is {phase}"),
            Self::Holder(holder) => holder.fmt(f),
            Self::MoreHolders { count } => write!(f, "and {count} more have it open"),
            Self::Orphan(orphan) => orphan.fmt(f),
            Self::Falling { what, bytes_per_second, seconds } => {
                let what = match what {
                    Lingering::Unaccounted => "memory in no counter",
                    Lingering::Shmem => "shared memory",
                };
                let pace = measured_bytes_text(bytes_per_second.abs());
                write!(f, "{what} falls by {pace}/s")?;
                match seconds {
                    Some(seconds) => write!(f, ": about {seconds:.0} s more"),
                    None => Ok(()),
                }
            }
            Self::Shmem { bytes } => write!(f, "{} are held as shared memory", of(*bytes)),
            Self::Ghost { pid } => {
                write!(f, "the driver counts memory for pid {pid}, which does not have it open")
            }
            Self::NoHolders => f.write_str("nobody has the driver open"),
            Self::DriverAnswers => f.write_str("the driver answers"),
            Self::OnGpu { gpu, bytes } => write!(
                f,
                "{} of GPU {gpu}'s own memory are taken, and the driver names no process that has \
                 them; the machine's memory is another",
                of(*bytes)
            ),
            Self::CountedAfterExit => f.write_str(
                "on this machine memory may stay counted after its process until it is short",
            ),
            Self::NotTried => f.write_str(
                "sync, drop_caches 3 and compact_memory have not been tried since by umawarden",
            ),
            Self::Tried { seconds } => {
                write!(f, "caches were dropped and memory compacted {seconds} s ago")
            }
            Self::Still { seconds, leaked_after_seconds } => write!(
                f,
                "it has not changed for {seconds} s since; after {leaked_after_seconds} s it \
                 counts as leaked"
            ),
            Self::Wedge(sign) => sign.fmt(f),
        }
    }
}

/// When memory counts as leaked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerdictLimits {
    /// More than this above what is usual.
    pub leaked_bytes: u64,
    /// For so long after all that may bring it back was tried.
    pub leaked_after: Duration,
}

impl Default for VerdictLimits {
    /// A leak is reported to be 33 GB for a failed container; what a desktop or another driver
    /// takes is far below 4 GiB.
    fn default() -> Self {
        Self { leaked_bytes: 4 << 30, leaked_after: Duration::from_secs(300) }
    }
}
