//! Whether the node can take an engine: what is asked, what there is, what is answered.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize, Serializer};

use super::wording::{bytes_text, measured_bytes_text};
use super::{ProcessId, Reading};

/// How much memory an engine will take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateQuestion {
    /// All of it.
    pub need_bytes: u64,
    /// So much of it in free blocks of at least 2 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contiguous_bytes: Option<u64>,
}

/// How much memory is in no counter of the kernel while no engine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Baseline {
    /// So much.
    pub bytes: u64,
    /// Whether it was seen in this boot; if not, it is an allowance.
    pub is_learned: bool,
}

/// A process that its engine has left behind, and that holds memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orphan {
    /// Which.
    #[serde(flatten)]
    pub id: ProcessId,
    /// 15 bytes of its own choosing.
    pub comm: Arc<str>,
    /// Whose it was.
    pub engine: Arc<str>,
    /// Its anonymous, shared and huge pages. What a driver holds for it is in no process.
    pub bytes: u64,
    /// How many files of the NVIDIA driver it has open.
    #[serde(default)]
    pub open_devices: u32,
}

impl fmt::Display for Orphan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, comm, engine, bytes, open_devices } = self;
        let held = bytes_text(*bytes);
        write!(f, "{comm} (pid {id}), left behind by {engine}, holds {held}")?;
        if *open_devices > 0 {
            f.write_str(" and has the GPU open")?;
        }
        Ok(())
    }
}

/// How an amount of memory has changed of late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trend {
    /// In a second, over the last seconds; negative where it falls.
    pub bytes_per_second: f64,
    /// By how much it is now less than it ever was in the last seconds. What swings up and down
    /// sinks below its own past once in a while; what is being given back does all the time.
    pub sank_bytes: u64,
}

/// How what the gate looks at has changed of late; nothing is known where it was looked at too
/// shortly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Motion {
    /// What can be had.
    pub room: Option<Trend>,
    /// Free memory in blocks of at least 2 MiB.
    pub contiguous: Option<Trend>,
    /// Memory that no counter names.
    pub unaccounted: Option<Trend>,
    /// Shared memory.
    pub shmem: Option<Trend>,
}

/// What the node has, in bytes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Room {
    /// `MemTotal`.
    #[serde(rename = "total_bytes", serialize_with = "known")]
    pub total: Reading<u64>,
    /// `MemFree`.
    #[serde(rename = "free_bytes", serialize_with = "known")]
    pub free: Reading<u64>,
    /// As much of it as is set aside for contiguous allocations (CMA): no driver that allocates
    /// pages that cannot be moved gets them.
    #[serde(rename = "free_cma_bytes", serialize_with = "known")]
    pub free_cma: Reading<u64>,
    /// Page cache that goes at once when memory is wanted: clean, and mapped by nobody.
    #[serde(rename = "clean_cache_bytes", serialize_with = "known")]
    pub clean_cache: Reading<u64>,
    /// Page cache that must be written first. It does not count.
    #[serde(rename = "dirty_cache_bytes", serialize_with = "known")]
    pub dirty_cache: Reading<u64>,
    /// Page cache that stays while a process maps it. It does not count.
    #[serde(rename = "mapped_cache_bytes", serialize_with = "known")]
    pub mapped_cache: Reading<u64>,
    /// Caches of the kernel that it calls reclaimable. Half of it counts: how much of a slab goes
    /// depends on who sits in it.
    #[serde(rename = "reclaimable_slab_bytes", serialize_with = "known")]
    pub reclaimable_slab: Reading<u64>,
    /// What must stay free: below it allocations wait for others to give something back.
    #[serde(rename = "reserve_bytes", serialize_with = "known")]
    pub reserve: Reading<u64>,
    /// Free memory in blocks of at least 2 MiB.
    #[serde(rename = "contiguous_2mib_bytes", serialize_with = "known")]
    pub contiguous_2mib: Reading<u64>,
    /// The same of 32 MiB, where the allocator knows such blocks.
    #[serde(rename = "contiguous_32mib_bytes", serialize_with = "known")]
    pub contiguous_32mib: Reading<u64>,
    /// Memory that no counter of the kernel names: what drivers hold.
    #[serde(rename = "unaccounted_bytes", serialize_with = "known")]
    pub unaccounted: Reading<u64>,
    /// How much of that is there while no engine runs.
    #[serde(rename = "unaccounted_baseline")]
    pub baseline: Baseline,
    /// Shared memory: segments, tmpfs.
    #[serde(rename = "shmem_bytes", serialize_with = "known")]
    pub shmem: Reading<u64>,
    /// What engines have left behind. `Unsupported` where nobody looks for engines.
    #[serde(serialize_with = "known")]
    pub orphans: Reading<Arc<[Orphan]>>,
    /// How that has changed of late.
    pub motion: Motion,
}

/// Why the node cannot take it now.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum GateReason {
    /// Something could not be read: doubt means to wait.
    Unknown {
        /// What.
        what: &'static str,
    },
    /// It was looked at too shortly to tell whether memory comes and goes.
    TooShort,
    /// No node of this size can ever take it.
    TooLarge {
        /// What is asked for.
        need_bytes: u64,
        /// All that there is, without the reserve.
        most_bytes: u64,
    },
    /// There is not enough.
    TooLittle {
        /// What is asked for.
        need_bytes: u64,
        /// What can be had.
        room_bytes: u64,
        /// That is free above the reserve, so much,
        spare_bytes: u64,
        /// and that goes when it is wanted, so much.
        reclaimable_bytes: u64,
    },
    /// Too little of it lies together.
    Fragmented {
        /// What is asked for.
        need_bytes: u64,
        /// What there is in free blocks of at least 2 MiB.
        contiguous_bytes: u64,
    },
    /// What an engine held is still being given back.
    Releasing {
        /// `unaccounted` or `shmem`.
        what: Lingering,
        /// How much is left above what is usual.
        held_bytes: u64,
        /// How fast it goes.
        bytes_per_second: f64,
    },
    /// Somebody takes memory, so fast that there will soon not be enough.
    Taking {
        /// How fast.
        bytes_per_second: f64,
        /// When there is less than needed.
        gone_in_seconds: f64,
    },
    /// The last engine has left something behind.
    Orphan(Orphan),
    /// Another node cannot take its part.
    Peer {
        /// Which.
        node: Arc<str>,
        /// Why, in its words.
        why: Arc<str>,
    },
    /// Another node does not tell: doubt means to wait.
    PeerUnknown {
        /// Which.
        node: Arc<str>,
        /// Why nobody knows.
        why: Arc<str>,
    },
}

/// What another node says to the same question.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "says", rename_all = "snake_case")]
pub enum PeerGate {
    /// It can take its part.
    Open,
    /// It cannot, now.
    Closed {
        /// Why, in its words.
        reasons: Vec<Arc<str>>,
        /// How long until it can; `None` where it does not tell.
        #[serde(rename = "estimated_seconds", serialize_with = "seconds")]
        wait: Option<Duration>,
        /// Whether it says that it never can.
        #[serde(rename = "hopeless")]
        is_hopeless: bool,
    },
    /// Nobody who can tell has answered.
    Unknown {
        /// Why not.
        why: Arc<str>,
    },
}

/// Another node, and what it says.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PeerAnswer {
    /// Which, as it was named.
    pub node: Arc<str>,
    /// What it says.
    #[serde(flatten)]
    pub gate: PeerGate,
}

/// What may stay for a while after the engine that held it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lingering {
    /// Memory that no counter names.
    Unaccounted,
    /// Shared memory.
    Shmem,
}

/// What else one should know; it keeps nothing closed.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum GateNote {
    /// What is free does not suffice: so much must be taken from caches.
    Reclaim {
        /// So much.
        bytes: u64,
    },
    /// There is more than usual that no counter names, and it does not fall.
    Unaccounted {
        /// By so much.
        above_bytes: u64,
        /// What is usual.
        baseline: Baseline,
    },
    /// Much is held as shared memory.
    Shmem {
        /// So much.
        bytes: u64,
    },
    /// Page cache that does not count, since it must be written first.
    Dirty {
        /// So much.
        bytes: u64,
    },
    /// Page cache that does not count, since processes map it.
    Mapped {
        /// So much.
        bytes: u64,
    },
}

/// Whether the node can take it now.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GateAnswer {
    /// Whether it can.
    #[serde(rename = "open")]
    pub is_open: bool,
    /// Whether it never can.
    #[serde(rename = "hopeless")]
    pub is_hopeless: bool,
    /// What was asked.
    #[serde(flatten)]
    pub question: GateQuestion,
    /// What can be had, if that is known.
    pub room_bytes: Option<u64>,
    /// As much of it as is free already.
    pub spare_bytes: Option<u64>,
    /// How long until it can, at the present pace; `None` where nothing shows that.
    #[serde(rename = "estimated_seconds", serialize_with = "seconds")]
    pub wait: Option<Duration>,
    /// Why it cannot; empty if it can.
    #[serde(serialize_with = "with_text")]
    pub reasons: Vec<GateReason>,
    /// What else one should know.
    #[serde(serialize_with = "with_text")]
    pub notes: Vec<GateNote>,
    /// What it follows from.
    pub room: Room,
    /// What other nodes say that must be able to take it, too.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<PeerAnswer>,
}

fn known<T: Serialize, S: Serializer>(reading: &Reading<T>, to: S) -> Result<S::Ok, S::Error> {
    match reading {
        Reading::Value(value) => value.serialize(to),
        Reading::Unsupported | Reading::Failed => to.serialize_none(),
    }
}

fn seconds<S: Serializer>(wait: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
    wait.map(|wait| wait.as_secs_f64()).serialize(to)
}

pub(super) fn with_text<T, S>(all: &[T], to: S) -> Result<S::Ok, S::Error>
where
    T: Serialize + fmt::Display,
    S: Serializer,
{
    #[derive(Serialize)]
    struct WithText<'a, T> {
        #[serde(flatten)]
        what: &'a T,
        text: String,
    }
    to.collect_seq(all.iter().map(|what| WithText { what, text: what.to_string() }))
}

impl Lingering {
    fn is_where(self) -> &'static str {
        match self {
            Self::Unaccounted => "in no counter of the kernel (a driver holds it)",
            Self::Shmem => "shared memory",
        }
    }
}

impl fmt::Display for GateReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { what } => write!(f, "{what} cannot be read"),
            Self::TooShort => f.write_str("it is not known yet whether memory comes or goes"),
            Self::TooLarge { need_bytes, most_bytes } => write!(
                f,
                "this node never has {}: without its reserve it has {} in all",
                bytes_text(*need_bytes),
                bytes_text(*most_bytes)
            ),
            Self::TooLittle { need_bytes, room_bytes, spare_bytes, reclaimable_bytes } => write!(
                f,
                "{} of {} can be had: {} free above the reserve, {} in caches that can be dropped; \
                 {} are missing",
                bytes_text(*room_bytes),
                bytes_text(*need_bytes),
                bytes_text(*spare_bytes),
                bytes_text(*reclaimable_bytes),
                bytes_text(need_bytes.saturating_sub(*room_bytes))
            ),
            Self::Fragmented { need_bytes, contiguous_bytes } => write!(
                f,
                "{} of {} lie in free blocks of 2 MiB and more",
                bytes_text(*contiguous_bytes),
                bytes_text(*need_bytes)
            ),
            Self::Releasing { what, held_bytes, bytes_per_second } => write!(
                f,
                "memory is still being given back: {} more than usual are {}, and {}/s go",
                bytes_text(*held_bytes),
                what.is_where(),
                measured_bytes_text(bytes_per_second.abs())
            ),
            Self::Taking { bytes_per_second, gone_in_seconds } => write!(
                f,
                "somebody takes memory, {}/s: in {gone_in_seconds:.0} s there is too little",
                measured_bytes_text(bytes_per_second.abs())
            ),
            Self::Orphan(orphan) => orphan.fmt(f),
            Self::Peer { node, why } => write!(f, "{node}: {why}"),
            Self::PeerUnknown { node, why } => write!(f, "{node} does not tell: {why}"),
        }
    }
}

impl fmt::Display for GateNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reclaim { bytes } => write!(
                f,
                "{} of it must be taken from caches: an engine that counts MemFree may refuse to \
                 start (--prepare drops them before)",
                bytes_text(*bytes)
            ),
            Self::Unaccounted { above_bytes, baseline } => write!(
                f,
                "{} above the {} of {} are in no counter of the kernel, and stay: a driver, or an \
                 engine that runs, holds them",
                bytes_text(*above_bytes),
                if baseline.is_learned { "usual amount" } else { "allowance" },
                bytes_text(baseline.bytes)
            ),
            Self::Shmem { bytes } => write!(f, "{} are held as shared memory", bytes_text(*bytes)),
            Self::Dirty { bytes } => write!(
                f,
                "{} of page cache do not count, since they must be written first (sync)",
                bytes_text(*bytes)
            ),
            Self::Mapped { bytes } => {
                write!(
                    f,
                    "{} of page cache do not count, since processes map them",
                    bytes_text(*bytes)
                )
            }
        }
    }
}
