//! The memory of the watched node, over time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::PoolWatches;
use super::baseline::{BaselineWatch, EnginePresence};
use crate::model::{GpuReadings, HOST_POOL, MemoryPools, Orphan, Reading};
use crate::policy::pools::{Pools, SeriesView};

/// Tracks the memory of the watched node.
#[derive(Debug, Default)]
pub(in crate::policy) struct NodeGate {
    watches: PoolWatches,
    baselines: BTreeMap<Arc<str>, BaselineWatch>,
    pools: Pools,
    /// Whether the pools are current.
    is_current: bool,
}

impl NodeGate {
    /// Takes the driver's report of the GPUs.
    pub(in crate::policy) fn take_gpus(&mut self, readings: &GpuReadings) {
        self.pools.take_gpus(readings);
    }

    /// Takes the present readings. Returns each pool whose baseline of memory in no counter was
    /// just learned, with its size in bytes.
    pub(in crate::policy) fn measure(
        &mut self,
        at: Duration,
        view: &impl SeriesView,
        presence: EnginePresence,
        orphans: Reading<Arc<[Orphan]>>,
    ) -> Vec<(Arc<str>, u64)> {
        let memory = self.pools.sample(view);
        let mut learned = Vec::new();
        for pool in &mut memory.pools {
            let baseline = match self.baselines.get_mut(&pool.pool) {
                Some(baseline) => baseline,
                None => self.baselines.entry(Arc::clone(&pool.pool)).or_default(),
            };
            if let Some(known) = baseline.learned() {
                pool.memory.baseline = known;
            }
            if *pool.pool == *HOST_POOL {
                pool.memory.orphans = orphans.clone();
            }
            if let Some(bytes) = baseline.take(at, &pool.memory, presence) {
                learned.push((Arc::clone(&pool.pool), bytes));
            }
        }
        self.watches.take(at, memory);
        self.is_current = true;
        learned
    }

    /// Forgets the readings, which are out of date.
    pub(in crate::policy) fn forget(&mut self) {
        self.is_current = false;
    }

    /// Takes over the baseline of a pool that an earlier run learned in this boot.
    pub(in crate::policy) fn resume(&mut self, pool: &Arc<str>, baseline_bytes: u64) {
        self.baselines.entry(Arc::clone(pool)).or_default().resume(baseline_bytes);
    }

    /// Memory in no counter while no engine runs, over all pools; `None` unless it is learned of
    /// each.
    pub(in crate::policy) fn baseline(&self) -> Option<u64> {
        let learned = |name: &str| Some(self.baselines.get(name)?.learned()?.bytes);
        match self.pools.memory().pools.as_slice() {
            [] => learned(HOST_POOL),
            pools => pools
                .iter()
                .try_fold(0_u64, |sum, pool| Some(sum.saturating_add(learned(&pool.pool)?))),
        }
    }

    /// The memory as last measured, if current.
    pub(in crate::policy) fn memory(&self) -> Option<&MemoryPools> {
        self.is_current.then(|| self.pools.memory())
    }
}
