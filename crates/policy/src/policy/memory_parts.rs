//! Where memory is: parts that add up to all of it.
//!
//! The kernel's counters part the memory without a rest. What processes of an engine have, and what
//! the driver holds for them, is taken out of the counters that contain it, so that nothing counts
//! twice. Reading allocates nothing while the series stay the same.

use std::sync::Arc;

use super::status::{EngineStatus, Status};
use crate::model::{EnginePhase, HOST_POOL, MemoryPart, PartKind, PoolKind, Reading, SeriesKey};

type PartSelector = (&'static str, Option<(&'static str, &'static str)>);

const TOTAL: usize = 0;
const FREE: usize = 1;
const CLEAN: usize = 2;
const DIRTY: usize = 3;
const MAPPED: usize = 4;
const UNACCOUNTED: usize = 5;
const ANONYMOUS: usize = 6;
const SHMEM: usize = 7;
const HUGETLB: usize = 8;
const RESERVE: usize = 9;
const AVAILABLE: usize = 10;

const CACHE: &str = "uma_memory_page_cache_bytes";

const WANTED: [PartSelector; 11] = [
    ("uma_memory_total_bytes", None),
    ("uma_memory_free_bytes", None),
    (CACHE, Some(("state", "clean"))),
    (CACHE, Some(("state", "dirty"))),
    (CACHE, Some(("state", "mapped"))),
    ("uma_memory_unaccounted_bytes", None),
    ("uma_memory_anonymous_bytes", None),
    ("uma_memory_shmem_bytes", None),
    ("uma_memory_hugetlb_bytes", None),
    ("uma_memory_reserve_bytes", None),
    ("uma_memory_available_bytes", None),
];

/// What the driver holds for an engine.
const OF_ENGINE: &str = "uma_gpu_engine_memory_bytes";

/// The parts that no engine has: what they are, their names, and the state of page cache. They are
/// stacked in this order, above the engines.
pub const PARTS: [(PartKind, &str, Option<&str>); 7] = [
    (PartKind::Driver, "unaccounted (driver and others)", None),
    (PartKind::Processes, "other processes and shared memory", None),
    (PartKind::Other, "kernel", None),
    (PartKind::Cache, "page cache, mapped", Some("mapped")),
    (PartKind::Cache, "page cache, dirty", Some("dirty")),
    (PartKind::Cache, "page cache, clean", Some("clean")),
    (PartKind::Free, "free", None),
];

/// Memory at one sample, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryLevels {
    /// `MemTotal`.
    pub total: u64,
    /// `MemFree`.
    pub free: u64,
    /// In the order of [`PARTS`].
    pub parts: [u64; PARTS.len()],
    /// What the kernel keeps free for itself.
    pub reserve: Option<u64>,
    /// Memory that can be allocated without swapping, by the kernel's estimate.
    pub available: Option<u64>,
    /// Whether all counters are known. If not, the kernel's part has what they would name.
    pub is_whole: bool,
}

/// Reads the parts of a status.
#[derive(Debug)]
pub struct PartsReader {
    series: Arc<[SeriesKey]>,
    positions: [Option<usize>; WANTED.len()],
    of_engines: Vec<(Arc<str>, usize)>,
}

impl Default for PartsReader {
    fn default() -> Self {
        Self { series: Arc::new([]), positions: [None; WANTED.len()], of_engines: Vec::new() }
    }
}

impl PartsReader {
    /// The memory of a sample, and each living engine's part by its name. `None` where not even the
    /// total and free memory are known.
    pub fn read(
        &mut self,
        status: &Status,
        mut engine: impl FnMut(&Arc<str>, u64),
    ) -> Option<MemoryLevels> {
        if !Arc::ptr_eq(&self.series, &status.series) {
            self.find(&status.series);
        }
        let of = |wanted: usize| value(status, *self.positions.get(wanted)?);
        let total = of(TOTAL)?;
        let free = of(FREE)?.min(total);
        let mut left = total - free;
        let mut is_whole = true;
        let mut take = |wanted: &[usize]| {
            let sum = wanted.iter().fold(0, |sum: u64, one| {
                let known = of(*one);
                // Not every kernel has huge pages.
                is_whole &= known.is_some() || *one == HUGETLB;
                sum.saturating_add(known.unwrap_or(0))
            });
            let taken = sum.min(left);
            left -= taken;
            taken
        };
        let [mapped, dirty, clean] = [MAPPED, DIRTY, CLEAN].map(|state| take(&[state]));
        let mut unaccounted = take(&[UNACCOUNTED]);
        let mut processes = take(&[ANONYMOUS, SHMEM, HUGETLB]);
        let is_driver_on_host = !has_driver_pool(status);
        for living in living(status) {
            let own = own_bytes(living).min(processes);
            processes -= own;
            let held = if is_driver_on_host { self.held(status, &living.engine.name) } else { 0 };
            let held = held.min(unaccounted);
            unaccounted -= held;
            engine(&living.engine.name, own + held);
        }
        Some(MemoryLevels {
            total,
            free,
            parts: [unaccounted, processes, left, mapped, dirty, clean, free],
            reserve: of(RESERVE),
            available: of(AVAILABLE),
            is_whole,
        })
    }

    /// Whether the driver reports what it holds for any engine.
    pub(super) fn knows_driver(&self, status: &Status) -> bool {
        self.of_engines.iter().any(|(_, place)| value(status, Some(*place)).is_some())
    }

    /// What the driver holds for an engine, on all GPUs.
    fn held(&self, status: &Status, name: &Arc<str>) -> u64 {
        let own = self.of_engines.iter().filter(|(engine, _)| engine == name);
        own.filter_map(|(_, place)| value(status, Some(*place))).fold(0, u64::saturating_add)
    }

    fn find(&mut self, series: &Arc<[SeriesKey]>) {
        self.series = Arc::clone(series);
        for ((name, label), place) in WANTED.iter().zip(&mut self.positions) {
            *place = series.iter().position(|key| {
                let labels = key.labels.iter().map(|(name, value)| (&**name, &**value));
                *key.name == **name && labels.eq(label.iter().copied())
            });
        }
        let of_engine = |(place, key): (usize, &SeriesKey)| {
            let mut labels = key.labels.iter().filter(|(name, _)| **name == *"engine");
            (*key.name == *OF_ENGINE).then_some(())?;
            labels.next().map(|(_, engine)| (Arc::clone(engine), place))
        };
        self.of_engines = series.iter().enumerate().filter_map(of_engine).collect();
    }
}

/// The parts as they are shown, engines first.
pub fn shown(levels: &MemoryLevels, engines: Vec<(Arc<str>, u64)>) -> Vec<MemoryPart> {
    let engines = engines.into_iter().map(|(name, bytes)| MemoryPart {
        name: name.to_string(),
        kind: PartKind::Engine,
        state: None,
        bytes,
    });
    let others = PARTS.iter().zip(levels.parts).map(|((kind, name, state), bytes)| MemoryPart {
        name: (*name).to_owned(),
        kind: *kind,
        state: state.map(str::to_owned),
        bytes,
    });
    engines.chain(others).collect()
}

/// Whether a GPU has memory that the kernel does not manage: what the driver holds for engines is
/// there then, and not in the host's.
fn has_driver_pool(status: &Status) -> bool {
    let pools = status.gate_memory.iter().flat_map(|memory| &memory.pools);
    pools.filter(|pool| *pool.pool != *HOST_POOL).any(|pool| pool.kind == PoolKind::Driver)
}

fn living(status: &Status) -> impl Iterator<Item = &EngineStatus> {
    status.engines.iter().filter(|engine| engine.phase != EnginePhase::Gone)
}

/// Anonymous, shared and huge pages of an engine's processes.
fn own_bytes(status: &EngineStatus) -> u64 {
    let processes = status.engine.processes.iter();
    let kinds = processes.flat_map(|one| [one.anon_bytes, one.shmem_bytes, one.hugetlb_bytes]);
    kinds.filter_map(Reading::value).fold(0, u64::saturating_add)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast saturates, and bytes are far below 2^63"
)]
fn value(status: &Status, place: Option<usize>) -> Option<u64> {
    let value = status.values.get(place?)?.value()?;
    value.is_finite().then_some(value.max(0.0) as u64)
}
