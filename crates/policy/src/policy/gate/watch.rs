//! How the available memory has changed over the last seconds.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::model::{GateMemory, MemoryPools, MemoryTrends, Trend};
use crate::policy::pools::memory::{ObtainableMemory, had};

/// What has not moved for so long has settled: an engine's memory that comes back by steps shows in
/// steps, a few in a second.
pub const SETTLES: Duration = Duration::from_millis(500);

/// Over how long a pace is taken.
const PACE: Duration = Duration::from_secs(2);

/// The past in which a low counts. Faster swings are no release.
const PAST: Duration = Duration::from_secs(5);

/// Samples closer together add nothing; so many fit into the past.
const APART: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Duration,
    amounts: [Option<u64>; AMOUNTS.len()],
}

/// The tracked amounts, in the order of [`MemoryTrends`].
const AMOUNTS: [fn(&GateMemory) -> Option<u64>; 4] = [
    |memory| had(memory).ok().map(ObtainableMemory::all),
    |memory| memory.contiguous_2mib.value(),
    |memory| memory.unaccounted.value(),
    |memory| memory.shmem.value(),
];

/// Keeps the available memory of the last seconds.
#[derive(Debug, Default)]
pub struct GateWatch {
    samples: VecDeque<Sample>,
}

impl GateWatch {
    /// Takes the available memory at that time and fills in its trends. Times are on one clock; if
    /// that goes back, all is forgotten.
    pub fn take(&mut self, at: Duration, memory: &mut GateMemory) {
        if self.samples.back().is_some_and(|last| last.at > at) {
            self.samples.clear();
        }
        while self.samples.front().is_some_and(|first| at.saturating_sub(first.at) > PAST) {
            self.samples.pop_front();
        }
        let sample = Sample { at, amounts: AMOUNTS.map(|amount| amount(memory)) };
        let before = self.samples.len().checked_sub(2).and_then(|place| self.samples.get(place));
        if before.is_some_and(|before| at.saturating_sub(before.at) < APART) {
            self.samples.pop_back();
        }
        self.samples.push_back(sample);
        let trend = |place| self.trend(at, place);
        memory.motion = MemoryTrends {
            available: trend(0),
            contiguous: trend(1),
            unaccounted: trend(2),
            shmem: trend(3),
        };
    }

    #[expect(clippy::cast_precision_loss, reason = "a pace for people")]
    fn trend(&self, now: Duration, place: usize) -> Option<Trend> {
        let last = self.samples.back()?.amounts.get(place).copied().flatten()?;
        let earlier = self.samples.iter().filter_map(|sample| {
            let ago = now.saturating_sub(sample.at);
            let amount = sample.amounts.get(place).copied().flatten()?;
            (ago >= SETTLES).then_some((ago, amount))
        });
        let least = earlier.clone().map(|(_, amount)| amount).min()?;
        // The oldest within the time over which the pace is taken, or the last one before that.
        let newest = earlier.clone().map(|(ago, _)| ago).min()?;
        let (over, then) = earlier
            .filter(|(ago, _)| *ago <= PACE || *ago == newest)
            .max_by_key(|(ago, _)| *ago)?;
        Some(Trend {
            bytes_per_second: (last as f64 - then as f64) / over.as_secs_f64(),
            sank_bytes: least.saturating_sub(last),
        })
    }
}

/// Keeps the memory of the last seconds of each pool.
#[derive(Debug, Default)]
pub struct PoolWatches {
    of_pools: BTreeMap<Arc<str>, GateWatch>,
}

impl PoolWatches {
    /// Takes the memory at that time and fills in its trends, as [`GateWatch::take`] does.
    pub fn take(&mut self, at: Duration, memory: &mut MemoryPools) {
        for pool in &mut memory.pools {
            let watch = match self.of_pools.get_mut(&pool.pool) {
                Some(watch) => watch,
                None => self.of_pools.entry(Arc::clone(&pool.pool)).or_default(),
            };
            watch.take(at, &mut pool.memory);
        }
    }
}
