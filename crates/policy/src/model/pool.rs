//! Pools of memory: which places a node's memory has, and which of them engines fill.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{GateMemory, Orphan, Reading, Trend};

/// Name of the pool of the CPUs' memory. Where CPU and GPU share one pool, it is the only one.
pub const HOST_POOL: &str = "host";

/// What a pool is, and who reports its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PoolKind {
    /// The CPUs' memory, reported by the kernel.
    Host,
    /// A GPU's memory that is a NUMA node, reported by the kernel (GH200 and GB200 in NUMA mode).
    NumaNode,
    /// A GPU's memory that only the driver reports (CDMM mode, PCIe cards).
    Driver,
}

impl PoolKind {
    /// The `kind` label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::NumaNode => "numa_node",
            Self::Driver => "driver",
        }
    }
}

/// Figures of a pool that the gate does not need, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PoolFigures {
    /// Memory that can be allocated without swapping: the kernel's estimate, for NUMA nodes by the
    /// kernel's formula, for a GPU's memory what is free.
    pub available: Reading<u64>,
    /// The low watermark.
    pub low: Reading<u64>,
    /// Free memory above the low watermark; negative below it.
    pub headroom: Reading<i64>,
    /// What the kernel keeps free (`vm.min_free_kbytes`, for NUMA nodes their part).
    pub reserve: Reading<u64>,
}

impl PoolFigures {
    /// Nothing is known.
    pub const UNSUPPORTED: Self = Self {
        available: Reading::Unsupported,
        low: Reading::Unsupported,
        headroom: Reading::Unsupported,
        reserve: Reading::Unsupported,
    };
}

/// One pool and its memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryPool {
    /// `host`, or `gpu` with the GPU's index in the driver's order: `gpu0`.
    pub pool: Arc<str>,
    /// What it is.
    pub kind: PoolKind,
    /// Its NUMA nodes; empty where the kernel has none, or does not know the memory.
    #[serde(skip_serializing_if = "<[u32]>::is_empty")]
    pub numa_nodes: Arc<[u32]>,
    /// When the driver reported it, on the uptime clock, where only the driver does.
    #[serde(skip)]
    pub read_at: Option<Duration>,
    /// What an engine can get of it, in bytes.
    #[serde(rename = "obtainable_bytes", serialize_with = "super::gate::known")]
    pub obtainable: Reading<u64>,
    /// Its figures for rules.
    #[serde(skip)]
    pub figures: PoolFigures,
    /// Memory of the pool, as the gate's response has it.
    #[serde(flatten)]
    pub memory: GateMemory,
}

impl MemoryPool {
    /// Memory that is neither free nor page cache, in bytes: what a start takes for good. Files
    /// that a loader maps come and go.
    pub fn held(&self) -> Reading<u64> {
        let memory = &self.memory;
        let cache = memory.clean_cache.zip(memory.dirty_cache).zip(memory.mapped_cache);
        memory.total.zip(memory.free).zip(cache).map(|((total, free), ((clean, dirty), mapped))| {
            [free, clean, dirty, mapped].into_iter().fold(total, u64::saturating_sub)
        })
    }
}

/// Where engines put weights and KV cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(tag = "engines_use", rename_all = "snake_case")]
pub enum EnginePools {
    /// The CPUs' memory, which the GPU shares, or which there is alone.
    #[default]
    Host,
    /// The GPUs' own memory.
    Gpus,
    /// It is not known.
    Unknown {
        /// Why, for people.
        why: Arc<str>,
    },
}

/// The memory of a node, by pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MemoryPools {
    /// Where engines put weights and KV cache.
    #[serde(flatten)]
    pub engines: EnginePools,
    /// All pools, the host's first.
    pub pools: Vec<MemoryPool>,
}

impl MemoryPools {
    /// A node with one pool.
    pub fn single(memory: GateMemory) -> Self {
        let host = MemoryPool {
            pool: HOST_POOL.into(),
            kind: PoolKind::Host,
            numa_nodes: Arc::new([]),
            read_at: None,
            obtainable: Reading::Unsupported,
            figures: PoolFigures::UNSUPPORTED,
            memory,
        };
        Self { engines: EnginePools::Host, pools: vec![host] }
    }

    /// The pool of that name.
    pub fn pool(&self, name: &str) -> Option<&MemoryPool> {
        self.pools.iter().find(|pool| *pool.pool == *name)
    }

    /// The CPUs' memory.
    pub fn host(&self) -> Option<&GateMemory> {
        self.pool(HOST_POOL).map(|pool| &pool.memory)
    }

    /// The same with so many bytes less in a pool: free memory first, then caches.
    pub fn reserve(&mut self, pool: &str, bytes: u64) {
        let Some(pool) = self.pools.iter_mut().find(|own| *own.pool == *pool) else { return };
        let memory = &mut pool.memory;
        let free = memory.free.value().unwrap_or(0);
        memory.free = memory.free.map(|free| free.saturating_sub(bytes));
        let rest = bytes.saturating_sub(free);
        memory.clean_cache = memory.clean_cache.map(|cache| cache.saturating_sub(rest));
    }

    /// Whether the GPUs have memory of their own.
    pub fn has_gpu_pools(&self) -> bool {
        self.pools.len() > 1
    }

    /// The pools that engines fill; none where that is not known.
    pub fn of_engines(&self) -> impl Iterator<Item = &MemoryPool> {
        self.pools.iter().filter(|pool| match self.engines {
            EnginePools::Host => pool.kind == PoolKind::Host,
            EnginePools::Gpus => pool.kind != PoolKind::Host,
            EnginePools::Unknown { .. } => false,
        })
    }

    /// Memory that no counter of the kernel names, over the pools that the kernel manages.
    pub fn of_kernel(&self) -> GateMemory {
        let of_kernel = self.pools.iter().filter(|pool| pool.kind != PoolKind::Driver);
        let mut memories = of_kernel.map(|pool| &pool.memory);
        let Some(mut sum) = memories.next().cloned() else { return GateMemory::UNKNOWN };
        let add = |one: Reading<u64>, other: Reading<u64>| {
            one.zip(other).map(|(one, other)| one.saturating_add(other))
        };
        for memory in memories {
            sum.total = add(sum.total, memory.total);
            sum.unaccounted = add(sum.unaccounted, memory.unaccounted);
            sum.shmem = add(sum.shmem, memory.shmem);
            sum.baseline.bytes = sum.baseline.bytes.saturating_add(memory.baseline.bytes);
            sum.baseline.is_learned &= memory.baseline.is_learned;
            sum.motion.unaccounted = plus(sum.motion.unaccounted, memory.motion.unaccounted);
            sum.motion.shmem = plus(sum.motion.shmem, memory.motion.shmem);
        }
        sum
    }

    /// What each pool has above its baseline in no counter of the kernel, in bytes; empty where the
    /// kernel manages one pool only.
    pub fn unaccounted_by_pool(&self) -> Vec<(Arc<str>, u64)> {
        if !self.pools.iter().any(|pool| pool.kind == PoolKind::NumaNode) {
            return Vec::new();
        }
        let of_kernel = self.pools.iter().filter(|pool| pool.kind != PoolKind::Driver);
        let above = of_kernel.filter_map(|pool| {
            let bytes = pool.memory.unaccounted.value()?;
            Some((Arc::clone(&pool.pool), bytes.saturating_sub(pool.memory.baseline.bytes)))
        });
        above.collect()
    }

    /// Used memory of GPUs that only the driver reports, in bytes.
    pub fn used_on_gpus(&self) -> Reading<u64> {
        let on_gpus = self.pools.iter().filter(|pool| pool.kind == PoolKind::Driver);
        on_gpus.fold(Reading::Value(0_u64), |sum, pool| {
            sum.zip(pool.memory.unaccounted).map(|(sum, used)| sum.saturating_add(used))
        })
    }

    /// Orphans of engines, where they are known.
    pub fn orphans(&self) -> &[Orphan] {
        match self.host().map(|host| &host.orphans) {
            Some(Reading::Value(orphans)) => orphans,
            _ => &[],
        }
    }
}

fn plus(one: Option<Trend>, other: Option<Trend>) -> Option<Trend> {
    one.zip(other).map(|(one, other)| Trend {
        bytes_per_second: one.bytes_per_second + other.bytes_per_second,
        sank_bytes: one.sank_bytes.saturating_add(other.sank_bytes),
    })
}

impl fmt::Display for MemoryPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            PoolKind::Host => f.write_str("the CPUs' memory (host)"),
            PoolKind::NumaNode => {
                let nodes: Vec<String> = self.numa_nodes.iter().map(u32::to_string).collect();
                write!(f, "{} (NUMA node {})", self.pool, nodes.join(", "))
            }
            PoolKind::Driver => write!(f, "{} (by the driver)", self.pool),
        }
    }
}
