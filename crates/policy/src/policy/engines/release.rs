//! Tracks the memory of a dead engine until it is back.
//!
//! No counter shows an engine's memory. It is the growth since before the engine of memory in no
//! counter and of shared memory, and the memory of processes that outlive its server. It is unknown
//! if another engine came or went meanwhile, or if no sample was taken when it began.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use promql_rules::store::SeriesStore;

use super::life::Life;
use crate::model::{
    EngineProcess, EngineSeen, MemoryPool, MemoryPools, Moment, Orphan, ProcessId, Reading,
    Release, ReleaseEnd, ReleaseMemory, ReleasePoint, WhyUnknown,
};
use crate::policy::pools::memory::whole;

/// So much is never all back to the byte,
const LEAST: u64 = 256 << 20;
/// nor more than this share of what was owned.
const SHARE: u64 = 50;

/// A fall by less is noise.
const FALLS: u64 = 64 << 20;

/// Without a fall for so long it has stopped: a driver gives back in steps, a few in a second.
const STILL: Duration = Duration::from_secs(10);

/// Tracking ends after so long; what stayed was reported.
const LONGEST: Duration = Duration::from_secs(600);

/// Points of a curve; with more, every other one goes.
const MOST_POINTS: usize = 64;

/// Orphans that are named.
const MOST_ORPHANS: usize = 16;

/// What the node has of what an engine may hold, at one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::policy) struct Levels {
    pub(super) unaccounted: Option<u64>,
    pub(super) shmem: Option<u64>,
    pub(super) page_cache: Option<u64>,
    /// Free memory where engines put theirs; of several pools the least.
    pub(super) free: Option<u64>,
    /// The same of memory that can be allocated without swapping.
    pub(super) available: Option<u64>,
}

impl Levels {
    /// As last measured, over all pools.
    pub(in crate::policy) fn of(store: &SeriesStore, pools: Option<&MemoryPools>) -> Self {
        let bytes = |name: &str, labels: &[(&str, &str)]| whole(store.latest_of(name, labels));
        let cache = |state| bytes("uma_memory_page_cache_bytes", &[("state", state)]);
        let cache = cache("clean").zip(cache("dirty")).zip(cache("mapped"));
        let least = |of: &dyn Fn(&MemoryPool) -> Reading<u64>, of_node: &str| {
            let pools = pools.into_iter().flat_map(MemoryPools::of_engines);
            let least =
                pools.map(|pool| of(pool).value()).reduce(|one, other| Some(one?.min(other?)));
            least.unwrap_or_else(|| bytes(of_node, &[]).value())
        };
        Self {
            unaccounted: bytes("uma_memory_unaccounted_bytes", &[])
                .zip(pools.map_or(Reading::Value(0), MemoryPools::used_on_gpus))
                .map(|(of_kernel, on_gpus)| of_kernel.saturating_add(on_gpus))
                .value(),
            shmem: bytes("uma_memory_shmem_bytes", &[]).value(),
            page_cache: cache
                .map(|((clean, dirty), mapped)| clean.saturating_add(dirty).saturating_add(mapped))
                .value(),
            free: least(&|pool| pool.memory.free, "uma_memory_free_bytes"),
            available: least(&|pool| pool.figures.available, "uma_memory_available_bytes"),
        }
    }

    /// What there is more than `before`.
    pub(super) fn above(&self, before: &Self, orphans: u64) -> ReleaseMemory {
        let above = |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before?));
        ReleaseMemory {
            unaccounted: above(self.unaccounted, before.unaccounted),
            shmem: above(self.shmem, before.shmem),
            page_cache: above(self.page_cache, before.page_cache),
            orphans,
        }
    }
}

/// What an engine's processes show of what stays after them. Each shows all of what they share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ResidualMemory {
    pub(super) shmem: u64,
    pub(super) file: u64,
}

impl ResidualMemory {
    pub(super) fn of(seen: &EngineSeen) -> Self {
        let most = |of: fn(&EngineProcess) -> Reading<u64>| {
            seen.processes.iter().filter_map(|process| of(process).value()).max().unwrap_or(0)
        };
        Self {
            shmem: most(|process| process.shmem_bytes),
            file: most(|process| process.file_bytes),
        }
    }
}

/// The node's memory before an engine, where known.
pub(super) fn before(life: &Life, alone: bool, baseline: Option<u64>) -> Levels {
    if let Some(begun) = life.levels_before() {
        // It may have begun into what another has left.
        let usual = baseline.filter(|_| alone);
        let unaccounted = begun.unaccounted.map(|level| level.min(usual.unwrap_or(level)));
        return Levels { unaccounted, ..begun };
    }
    // Its begin was not sampled; what its processes showed is known.
    let at_death = life.levels();
    let own = life.own();
    let without = |level: Option<u64>, own: u64| level.map(|level| level.saturating_sub(own));
    Levels {
        available: None,
        unaccounted: baseline.filter(|_| alone),
        shmem: without(at_death.shmem, own.shmem),
        page_cache: without(at_death.page_cache, own.file),
        free: None,
    }
}

/// A release under way.
#[derive(Debug)]
pub(super) struct Releasing {
    pub(super) engine: Arc<str>,
    pub(super) server: ProcessId,
    /// When the engine was last seen alive.
    began: Duration,
    before: Levels,
    pub(super) owned: ReleaseMemory,
    pub(super) outstanding: ReleaseMemory,
    orphans: Vec<Orphan>,
    /// The least that was outstanding, and when that fell last.
    low: u64,
    fell: Duration,
    curve: Curve,
    has_stayed: bool,
    /// Why its memory is unknown, if it is.
    why_unknown: WhyUnknown,
}

impl Releasing {
    /// A server has ended; `None` where it owned nothing that could come back.
    pub(super) fn begin(life: &Life, before: Levels, orphans: Vec<Orphan>) -> Option<Self> {
        let at_death = life.levels();
        // Without measured memory there is nothing to track.
        at_death.unaccounted.or(at_death.shmem)?;
        let owned = at_death.above(&before, sum(&orphans));
        if owned.to_return().is_some_and(|bytes| bytes < LEAST) {
            return None;
        }
        let began = life.last_alive();
        let mut releasing = Self {
            engine: Arc::clone(life.name()),
            server: life.server(),
            began,
            before,
            owned,
            outstanding: owned,
            orphans,
            low: u64::MAX,
            fell: began,
            curve: Curve::default(),
            has_stayed: false,
            why_unknown: life.why_unknown(),
        };
        releasing.low = releasing.amount(&at_death);
        let free = at_death.free;
        releasing.curve.add(ReleasePoint { seconds: 0.0, outstanding: owned, free });
        Some(releasing)
    }

    /// What is outstanding, or, where that is not known, what the node has of it.
    fn amount(&self, levels: &Levels) -> u64 {
        let of_node = |level: Option<u64>| level.unwrap_or(0);
        self.outstanding.to_return().unwrap_or_else(|| {
            of_node(levels.unaccounted)
                .saturating_add(of_node(levels.shmem))
                .saturating_add(self.outstanding.orphans)
        })
    }

    /// The processes that outlive it are these now.
    pub(super) fn left(&mut self, orphans: Vec<Orphan>) {
        self.orphans = orphans;
        self.outstanding.orphans = sum(&self.orphans);
    }

    /// Takes the node's present memory. Returns a release to report.
    pub(super) fn measure(&mut self, at: Duration, levels: &Levels) -> Option<Release> {
        self.outstanding = levels.above(&self.before, sum(&self.orphans));
        let seconds = at.saturating_sub(self.began).as_secs_f64();
        let point = ReleasePoint { seconds, outstanding: self.outstanding, free: levels.free };
        self.curve.add(point);
        let amount = self.amount(levels);
        if amount.saturating_add(FALLS) <= self.low {
            (self.low, self.fell) = (amount, at);
            self.has_stayed = false;
        }
        if self.is_back() {
            return Some(self.report(ReleaseEnd::Returned, seconds));
        }
        let is_still = at.saturating_sub(self.fell) >= STILL;
        if is_still && !self.has_stayed {
            self.has_stayed = true;
            let is_known = self.outstanding.to_return().is_some();
            let end = if is_known { ReleaseEnd::Stayed } else { ReleaseEnd::Unknown };
            return Some(self.report(end, self.fell.saturating_sub(self.began).as_secs_f64()));
        }
        None
    }

    /// Another engine begins: memory given back and memory taken can no longer be separated.
    pub(super) fn overtaken(&mut self, at: Moment) -> Option<Release> {
        let seconds = at.uptime.saturating_sub(self.began).as_secs_f64();
        let is_known = self.owned.to_return().is_some();
        (is_known && !self.has_stayed).then(|| self.report(ReleaseEnd::Overtaken, seconds))
    }

    /// Whether it returns memory in an amount that a new engine's growth cannot be corrected by:
    /// only for memory in no counter there is a baseline.
    pub(super) fn is_unaccountable(&self, baseline: Option<u64>) -> bool {
        let of_shmem = self.outstanding.shmem.is_none_or(|bytes| bytes >= LEAST);
        of_shmem || baseline.is_none() && !self.is_back()
    }

    /// Whether its last report was made.
    pub(super) fn is_over(&self, at: Duration) -> bool {
        let is_unknown = self.outstanding.to_return().is_none() && self.has_stayed;
        self.is_back() || is_unknown || at.saturating_sub(self.began) >= LONGEST
    }

    /// Whether all came back.
    pub(super) fn is_back(&self) -> bool {
        let most = LEAST.max(self.owned.to_return().unwrap_or(0) / SHARE);
        self.orphans.is_empty() && self.outstanding.to_return().is_some_and(|bytes| bytes < most)
    }

    fn report(&self, end: ReleaseEnd, seconds: f64) -> Release {
        Release {
            end,
            seconds,
            owned: self.owned,
            outstanding: self.outstanding,
            orphans: self.orphans.iter().take(MOST_ORPHANS).cloned().collect(),
            curve: self.curve.points.iter().copied().collect(),
            why_unknown: (end == ReleaseEnd::Unknown).then_some(self.why_unknown),
        }
    }
}

fn sum(orphans: &[Orphan]) -> u64 {
    orphans.iter().map(|orphan| orphan.bytes).fold(0, u64::saturating_add)
}

/// How memory came back: dense at first, and never more than some points.
#[derive(Debug, Default)]
struct Curve {
    points: VecDeque<ReleasePoint>,
    /// The least time between two points.
    apart: f64,
}

impl Curve {
    fn add(&mut self, point: ReleasePoint) {
        // The last one always is the newest.
        let before = self.points.len().checked_sub(2).and_then(|place| self.points.get(place));
        if before.is_some_and(|before| point.seconds - before.seconds < self.apart) {
            self.points.pop_back();
        }
        self.points.push_back(point);
        if self.points.len() >= MOST_POINTS {
            let mut place = 0;
            self.points.retain(|_| {
                place += 1;
                place % 2 == 1
            });
            self.points.push_back(point);
            self.apart = (self.apart * 2.0).max(point.seconds / MOST_POINTS as f64 * 2.0);
        }
    }
}
