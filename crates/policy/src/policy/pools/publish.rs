//! The series of pools.

use std::collections::BTreeMap;
use std::sync::Arc;

use promql_rules::store::{SeriesId, SeriesStore};

use crate::model::{EnginePools, MemoryPool, MemoryPools, PoolKind, Reading, SeriesKey};
use crate::policy::counters::{Cell, Counters};

/// A series of each pool: name, labels beside `pool`, value.
type Series = (&'static str, Option<(&'static str, &'static str)>, fn(&MemoryPool) -> Reading<f64>);

const SERIES: &[Series] = &[
    ("uma_pool_total_bytes", None, |pool| number(pool.memory.total)),
    ("uma_pool_free_bytes", None, |pool| number(pool.memory.free)),
    ("uma_pool_available_bytes", None, |pool| number(pool.figures.available)),
    ("uma_pool_obtainable_bytes", None, |pool| number(pool.obtainable)),
    ("uma_pool_reserve_bytes", None, |pool| number(pool.figures.reserve)),
    ("uma_pool_watermark_bytes", Some(("watermark", "low")), |pool| number(pool.figures.low)),
    ("uma_pool_headroom_bytes", None, |pool| pool.figures.headroom.map(|bytes| bytes as f64)),
    ("uma_pool_page_cache_bytes", Some(("state", "clean")), |pool| number(pool.memory.clean_cache)),
    ("uma_pool_page_cache_bytes", Some(("state", "dirty")), |pool| number(pool.memory.dirty_cache)),
    ("uma_pool_page_cache_bytes", Some(("state", "mapped")), |pool| {
        number(pool.memory.mapped_cache)
    }),
    ("uma_pool_unaccounted_bytes", None, |pool| number(pool.memory.unaccounted)),
    ("uma_pool_contiguous_bytes", Some(("block", "2MiB")), |pool| {
        number(pool.memory.contiguous_2mib)
    }),
    ("uma_pool_contiguous_bytes", Some(("block", "32MiB")), |pool| {
        number(pool.memory.contiguous_32mib)
    }),
];

/// Whether engines use a pool, beside the series above.
const HOLDS_ENGINES: &str = "uma_pool_holds_engines";

#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53")]
fn number(reading: Reading<u64>) -> Reading<f64> {
    reading.map(|bytes| bytes as f64)
}

/// The series of all pools that have been there.
#[derive(Debug, Default)]
pub(in crate::policy) struct PoolSeries {
    of_pools: BTreeMap<Arc<str>, PoolCells>,
    /// Series that a declared world has from here.
    declared: BTreeMap<SeriesKey, SeriesId>,
}

#[derive(Debug)]
struct PoolCells {
    kind: PoolKind,
    info: Cell,
    holds_engines: Cell,
    cells: Vec<Cell>,
}

impl PoolSeries {
    /// Publishes the present values.
    pub(in crate::policy) fn publish(
        &mut self,
        memory: &MemoryPools,
        counters: &mut Counters,
        store: &mut SeriesStore,
    ) {
        for pool in &memory.pools {
            let is_known = self.of_pools.get(&pool.pool).is_some_and(|it| it.kind == pool.kind);
            if !is_known {
                self.retire(&pool.pool, counters);
                let of_pool = PoolCells::new(pool, counters, store);
                self.of_pools.insert(Arc::clone(&pool.pool), of_pool);
            }
            let Some(of_pool) = self.of_pools.get(&pool.pool) else { continue };
            counters.set(of_pool.info, 1.0);
            counters.set_reading(of_pool.holds_engines, holds_engines(memory, pool));
            for (cell, (_, _, value)) in of_pool.cells.iter().zip(SERIES) {
                counters.set_reading(*cell, value(pool));
            }
        }
        if self.of_pools.len() > memory.pools.len() {
            let is_gone = |name: &&Arc<str>| memory.pool(name).is_none();
            let gone: Vec<Arc<str>> = self.of_pools.keys().filter(is_gone).cloned().collect();
            gone.iter().for_each(|name| self.retire(name, counters));
        }
    }

    fn retire(&mut self, name: &Arc<str>, counters: &mut Counters) {
        if let Some(of_pool) = self.of_pools.remove(name) {
            let all = [of_pool.info, of_pool.holds_engines].into_iter().chain(of_pool.cells);
            all.for_each(|cell| counters.retire(cell));
        }
    }

    /// Publishes them in a declared world: what follows from its series, unless it declares the
    /// pool's series itself.
    pub(in crate::policy) fn declare(
        &mut self,
        memory: &MemoryPools,
        at_ms: i64,
        store: &mut SeriesStore,
    ) {
        for pool in &memory.pools {
            let holds = (HOLDS_ENGINES, None, holds_engines(memory, pool));
            let all = SERIES.iter().map(|(name, label, value)| (*name, *label, value(pool)));
            for (name, label, reading) in all.chain([holds]) {
                let key = key(name, label, &pool.pool);
                let known = self.declared.get(&key).copied();
                let id = match known {
                    Some(id) => id,
                    None if reading == Reading::Unsupported || store.knows(&key) => continue,
                    None => store.declare(&key),
                };
                self.declared.insert(key, id);
                store.append(id, at_ms, reading);
            }
        }
    }
}

impl PoolCells {
    fn new(pool: &MemoryPool, counters: &mut Counters, store: &mut SeriesStore) -> Self {
        let name = &*pool.pool;
        let labels = [("kind", pool.kind.name()), ("pool", name)];
        let info = counters.cell(store, &SeriesKey::new("uma_pool_info", &labels));
        let holds_engines = counters.cell(store, &key(HOLDS_ENGINES, None, name));
        let cells = SERIES.iter().map(|(series, label, _)| {
            let cell = counters.cell(store, &key(series, *label, name));
            counters.retire(cell);
            cell
        });
        let cells = cells.collect();
        Self { kind: pool.kind, info, holds_engines, cells }
    }
}

fn key(name: &str, label: Option<(&str, &str)>, pool: &str) -> SeriesKey {
    let mut labels: Vec<(&str, &str)> = label.into_iter().chain([("pool", pool)]).collect();
    labels.sort_unstable();
    SeriesKey::new(name, &labels)
}

fn holds_engines(memory: &MemoryPools, pool: &MemoryPool) -> Reading<f64> {
    match memory.engines {
        EnginePools::Unknown { .. } => Reading::Failed,
        _ => {
            let is_one = memory.of_engines().any(|own| own.pool == pool.pool);
            Reading::Value(f64::from(is_one))
        }
    }
}
