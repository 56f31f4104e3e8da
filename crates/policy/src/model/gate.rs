//! The admission gate of a node: request, available memory, response.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize, Serializer};

use super::time_text::rounded_seconds_text;
use super::wording::{bytes_text, measured_bytes_text};
use super::{GateRequest, MemoryPool, ProcessId, Reading};

/// Memory that no counter of the kernel names while no engine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Baseline {
    /// Size of that memory.
    pub bytes: u64,
    /// Whether it was measured in this boot; if not, it is an allowance.
    pub is_learned: bool,
}

/// A process that outlives its engine and holds memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orphan {
    /// Its pid and start time.
    #[serde(flatten)]
    pub id: ProcessId,
    /// 15 bytes of its own choosing.
    pub comm: Arc<str>,
    /// Name of its engine.
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

/// The recent change of an amount of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trend {
    /// Change in a second, over the last seconds; negative where it falls.
    pub bytes_per_second: f64,
    /// By how much it is below its minimum of the last seconds. An amount that swings reaches a new
    /// minimum sometimes; memory that is being returned does continuously.
    pub sank_bytes: u64,
}

/// Recent changes of the amounts that the gate reads; `None` where there are too few samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryTrends {
    /// `MemAvailable`.
    pub available: Option<Trend>,
    /// Free memory in blocks of at least 2 MiB.
    pub contiguous: Option<Trend>,
    /// Memory that no counter names.
    pub unaccounted: Option<Trend>,
    /// Shared memory.
    pub shmem: Option<Trend>,
}

/// Memory of the node, in bytes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GateMemory {
    /// `MemTotal`.
    #[serde(rename = "total_bytes", serialize_with = "known")]
    pub total: Reading<u64>,
    /// `MemFree`.
    #[serde(rename = "free_bytes", serialize_with = "known")]
    pub free: Reading<u64>,
    /// Part of it that is reserved for contiguous allocations (CMA). Drivers that allocate
    /// unmovable pages cannot use it.
    #[serde(rename = "free_cma_bytes", serialize_with = "known")]
    pub free_cma: Reading<u64>,
    /// Page cache that can be reclaimed at once: clean and not mapped.
    #[serde(rename = "clean_cache_bytes", serialize_with = "known")]
    pub clean_cache: Reading<u64>,
    /// Page cache that must be written first. It does not count.
    #[serde(rename = "dirty_cache_bytes", serialize_with = "known")]
    pub dirty_cache: Reading<u64>,
    /// Page cache that stays while a process maps it. It does not count.
    #[serde(rename = "mapped_cache_bytes", serialize_with = "known")]
    pub mapped_cache: Reading<u64>,
    /// Kernel caches that count as reclaimable. Half of it counts: one used object keeps a whole
    /// slab.
    #[serde(rename = "reclaimable_slab_bytes", serialize_with = "known")]
    pub reclaimable_slab: Reading<u64>,
    /// Memory that must stay free: below it, allocations wait for reclaim.
    #[serde(rename = "reserve_bytes", serialize_with = "known")]
    pub reserve: Reading<u64>,
    /// Free memory in blocks of at least 2 MiB.
    #[serde(rename = "contiguous_2mib_bytes", serialize_with = "known")]
    pub contiguous_2mib: Reading<u64>,
    /// Free memory in blocks of at least 32 MiB, where the allocator has such blocks.
    #[serde(rename = "contiguous_32mib_bytes", serialize_with = "known")]
    pub contiguous_32mib: Reading<u64>,
    /// Memory that no counter of the kernel names: what drivers hold.
    #[serde(rename = "unaccounted_bytes", serialize_with = "known")]
    pub unaccounted: Reading<u64>,
    /// The baseline of that.
    #[serde(rename = "unaccounted_baseline")]
    pub baseline: Baseline,
    /// Shared memory: segments, tmpfs.
    #[serde(rename = "shmem_bytes", serialize_with = "known")]
    pub shmem: Reading<u64>,
    /// Orphans of engines. `Unsupported` where engines are not scanned.
    #[serde(serialize_with = "known")]
    pub orphans: Reading<Arc<[Orphan]>>,
    /// Recent changes.
    pub motion: MemoryTrends,
}

impl GateMemory {
    /// Memory of which nothing is known.
    pub const UNKNOWN: Self = Self {
        total: Reading::Unsupported,
        free: Reading::Unsupported,
        free_cma: Reading::Unsupported,
        clean_cache: Reading::Unsupported,
        dirty_cache: Reading::Unsupported,
        mapped_cache: Reading::Unsupported,
        reclaimable_slab: Reading::Unsupported,
        reserve: Reading::Unsupported,
        contiguous_2mib: Reading::Unsupported,
        contiguous_32mib: Reading::Unsupported,
        unaccounted: Reading::Unsupported,
        baseline: Baseline { bytes: 0, is_learned: false },
        shmem: Reading::Unsupported,
        orphans: Reading::Unsupported,
        motion: MemoryTrends { available: None, contiguous: None, unaccounted: None, shmem: None },
    };
}

/// Why the gate is closed.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum GateReason {
    /// A value could not be read, which closes the gate.
    Unknown {
        /// The value.
        what: &'static str,
    },
    /// There are too few samples to see whether memory changes.
    TooShort,
    /// No node of this size can ever take it.
    TooLarge {
        /// Requested memory.
        need_bytes: u64,
        /// All memory, without the reserve.
        most_bytes: u64,
    },
    /// Too little memory is available.
    TooLittle {
        /// Requested memory.
        need_bytes: u64,
        /// Memory that is available.
        available_bytes: u64,
        /// Part of it that is free above the reserve.
        spare_bytes: u64,
        /// Part of it that can be reclaimed.
        reclaimable_bytes: u64,
    },
    /// Too little memory is contiguous.
    Fragmented {
        /// Requested memory.
        need_bytes: u64,
        /// Memory in free blocks of at least 2 MiB.
        contiguous_bytes: u64,
    },
    /// Memory of an engine is still being returned.
    Releasing {
        /// `unaccounted` or `shmem`.
        what: LingeringMemory,
        /// Remaining memory above the baseline.
        held_bytes: u64,
        /// Pace of the return.
        bytes_per_second: f64,
    },
    /// Processes take memory so fast that there will soon be too little.
    Taking {
        /// Pace of the decrease.
        bytes_per_second: f64,
        /// Time until there is too little.
        gone_in_seconds: f64,
    },
    /// Where engines put their memory is unknown, which closes the gate.
    PoolUnknown {
        /// Why it is unknown.
        why: Arc<str>,
        /// The pools that can be named instead.
        pools: Vec<Arc<str>>,
    },
    /// The node has no such pool.
    NoPool {
        /// The name in the request.
        name: Arc<str>,
        /// The pools that it has.
        pools: Vec<Arc<str>>,
    },
    /// A reason in one of several pools.
    InPool {
        /// Name of the pool.
        pool: Arc<str>,
        /// The reason that holds in that pool.
        reason: Box<GateReason>,
    },
    /// Other starts have reserved memory.
    Reserved {
        /// How much, in bytes.
        bytes: u64,
        /// Names of the starts that have reserved it.
        by: Vec<Arc<str>>,
    },
    /// As many others as may are starting.
    StartsAtOnce {
        /// Names of the starts that are under way.
        who: Vec<Arc<str>>,
    },
    /// Another start, which itself waits, comes first.
    Behind {
        /// Name of the start that comes first.
        who: Arc<str>,
    },
    /// Other starts come first, as the ledger of leases says.
    Turn {
        /// Which, for people.
        why: Arc<str>,
    },
    /// An orphan of the last engine.
    Orphan(Orphan),
    /// Another node cannot take its part.
    Peer {
        /// Name of the node.
        node: Arc<str>,
        /// The reason, as it reports it.
        why: Arc<str>,
    },
    /// Another node is unknown, which closes the gate.
    PeerUnknown {
        /// Name of the node.
        node: Arc<str>,
        /// Why it is unknown.
        why: Arc<str>,
    },
}

/// The response of another node to the same request.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "says", rename_all = "snake_case")]
pub enum PeerGate {
    /// It can take its part.
    Open,
    /// It cannot take its part now.
    Closed {
        /// The reasons, as it reports them.
        reasons: Vec<Arc<str>>,
        /// Time until it can; `None` where it gives none.
        #[serde(rename = "estimated_seconds", serialize_with = "seconds")]
        wait: Option<Duration>,
        /// Whether it reports that it never can.
        #[serde(rename = "hopeless")]
        is_hopeless: bool,
    },
    /// There was no usable response.
    Unknown {
        /// The error.
        why: Arc<str>,
    },
}

/// Another node and its response.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PeerGateResponse {
    /// Its name, as configured.
    pub node: Arc<str>,
    /// Its response.
    #[serde(flatten)]
    pub gate: PeerGate,
}

/// Memory that may stay for a while after its engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LingeringMemory {
    /// Memory that no counter names.
    Unaccounted,
    /// Shared memory.
    Shmem,
}

/// Further facts that do not close the gate.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum GateNote {
    /// Free memory does not suffice: part of the need must be reclaimed from caches.
    Reclaim {
        /// Memory to reclaim.
        bytes: u64,
    },
    /// Memory that no counter names is above its baseline and does not fall.
    Unaccounted {
        /// Memory above the baseline.
        above_bytes: u64,
        /// The baseline that the memory is compared with.
        baseline: Baseline,
    },
    /// There is much shared memory.
    Shmem {
        /// Size of shared memory.
        bytes: u64,
    },
    /// A fact of one of several pools.
    InPool {
        /// Name of the pool.
        pool: Arc<str>,
        /// The fact.
        note: Box<GateNote>,
    },
    /// Page cache that does not count, since it must be written first.
    Dirty {
        /// Size of dirty page cache.
        bytes: u64,
    },
    /// Page cache that does not count, since processes map it.
    Mapped {
        /// Size of mapped page cache.
        bytes: u64,
    },
}

/// The response of the gate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GateResponse {
    /// Whether the node can take the engine now.
    #[serde(rename = "open")]
    pub is_open: bool,
    /// Whether the node never can.
    #[serde(rename = "hopeless")]
    pub is_hopeless: bool,
    /// The request that was answered.
    #[serde(flatten)]
    pub request: GateRequest,
    /// Available memory, if known.
    pub available_bytes: Option<u64>,
    /// Part of it that is free already.
    pub spare_bytes: Option<u64>,
    /// Time until it can, at the present pace; `None` where it is unknown.
    #[serde(rename = "estimated_seconds", serialize_with = "seconds")]
    pub wait: Option<Duration>,
    /// Why the gate is closed; empty if it is open.
    #[serde(serialize_with = "with_text")]
    pub reasons: Vec<GateReason>,
    /// Further facts.
    #[serde(serialize_with = "with_text")]
    pub notes: Vec<GateNote>,
    /// The pool with the least available memory of those that the engine uses; `host` where they
    /// are not known.
    pub pool: Arc<str>,
    /// Memory of the pool that `pool` names.
    pub memory: GateMemory,
    /// All pools, where there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<MemoryPool>,
    /// Responses of the other nodes of the engine.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<PeerGateResponse>,
}

pub(super) fn known<T: Serialize, S: Serializer>(
    reading: &Reading<T>,
    to: S,
) -> Result<S::Ok, S::Error> {
    match reading {
        Reading::Value(value) => value.serialize(to),
        Reading::Unsupported | Reading::Failed => to.serialize_none(),
    }
}

pub(super) fn seconds<S: Serializer>(wait: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
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

impl GateResponse {
    /// The pools that the amounts are of, for people.
    pub fn place(&self) -> String {
        match self.request.pools.as_slice() {
            [] => self.pool.to_string(),
            pools => pools.join(", "),
        }
    }
}

impl GateReason {
    /// The reason without the pool that it is of.
    pub fn in_any_pool(&self) -> &Self {
        match self {
            Self::InPool { reason, .. } => reason.in_any_pool(),
            reason => reason,
        }
    }
}

impl LingeringMemory {
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
                "there is never {}: without the reserve there are {} in all",
                bytes_text(*need_bytes),
                bytes_text(*most_bytes)
            ),
            Self::TooLittle { need_bytes, available_bytes, spare_bytes, reclaimable_bytes } => {
                write!(
                    f,
                    "{} available, {} needed: {} free above the reserve, {} in caches that can be \
                     dropped; {} are missing",
                    bytes_text(*available_bytes),
                    bytes_text(*need_bytes),
                    bytes_text(*spare_bytes),
                    bytes_text(*reclaimable_bytes),
                    bytes_text(need_bytes.saturating_sub(*available_bytes))
                )
            }
            Self::Fragmented { need_bytes, contiguous_bytes } => write!(
                f,
                "{} of {} are in free blocks of 2 MiB and more",
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
                "free memory falls by {}/s: in {} there is too little",
                measured_bytes_text(bytes_per_second.abs()),
                rounded_seconds_text(*gone_in_seconds)
            ),
            Self::PoolUnknown { why, pools } => write!(
                f,
                "where engines put their memory is not known here: {why}; name it with --pool \
                 ({})",
                pools.join(", ")
            ),
            Self::NoPool { name, pools } => {
                write!(f, "there is no pool {name:?}; this node has {}", pools.join(", "))
            }
            Self::InPool { pool, reason } => write!(f, "{pool}: {reason}"),
            Self::Reserved { bytes, by } => {
                write!(f, "{} are reserved for {}", bytes_text(*bytes), by.join(", "))
            }
            Self::StartsAtOnce { who } => {
                write!(f, "it waits its turn: {} is starting", who.join(", "))
            }
            Self::Behind { who } => write!(f, "it waits its turn: {who} waits before it"),
            Self::Turn { why } => f.write_str(why),
            Self::Orphan(orphan) => orphan.fmt(f),
            Self::Peer { node, why } => write!(f, "{node}: {why}"),
            Self::PeerUnknown { node, why } => write!(f, "{node} is unknown: {why}"),
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
            Self::InPool { pool, note } => write!(f, "{pool}: {note}"),
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
