//! The machine's memory, from its series, and what of a memory an engine can take.

use crate::model::{Baseline, GateMemory, MemoryTrends, Reading};

/// Memory in no counter on an idle node, where it was not measured: 1.1 GiB with a desktop on a
/// node of 119 GiB. Firmware, drivers and the kernel take more on larger ones.
const ALLOWED: u64 = 1 << 30;
const ALLOWED_SHARE: u64 = 64;

/// The allowance for memory in no counter, where the baseline was not measured: 1 GiB and a 64th
/// of all memory.
pub(in crate::policy) fn allowance(total: Reading<u64>) -> Baseline {
    let bytes = ALLOWED.saturating_add(total.value().unwrap_or(0) / ALLOWED_SHARE);
    Baseline { bytes, is_learned: false }
}

/// The machine's memory from series; `latest` gives the present value of one. The baseline is the
/// allowance; trends and orphans are still unknown.
pub(in crate::policy) fn memory(
    latest: impl Fn(&str, &[(&str, &str)]) -> Reading<f64>,
) -> GateMemory {
    let bytes = |name: &str, labels: &[(&str, &str)]| whole(latest(name, labels));
    let cache = |state| bytes("uma_memory_page_cache_bytes", &[("state", state)]);
    let total = bytes("uma_memory_total_bytes", &[]);
    let evictable = |list| bytes("uma_memory_lru_bytes", &[("list", list)]);
    let evictable = evictable("active_file").zip(evictable("inactive_file"));
    GateMemory {
        total,
        free: bytes("uma_memory_free_bytes", &[]),
        free_cma: bytes("uma_memory_cma_free_bytes", &[]),
        clean_cache: at_most(
            cache("clean"),
            evictable.map(|(one, other)| one.saturating_add(other)),
        ),
        dirty_cache: cache("dirty"),
        mapped_cache: cache("mapped"),
        reclaimable_slab: bytes("uma_memory_slab_bytes", &[("state", "reclaimable")]),
        reserve: at_least(
            bytes("uma_memory_watermark_bytes", &[("watermark", "low")]),
            bytes("uma_memory_reserve_bytes", &[]),
        ),
        contiguous_2mib: bytes("uma_memory_contiguous_bytes", &[("block", "2MiB")]),
        contiguous_32mib: bytes("uma_memory_contiguous_bytes", &[("block", "32MiB")]),
        unaccounted: bytes("uma_memory_unaccounted_bytes", &[]),
        baseline: allowance(total),
        shmem: bytes("uma_memory_shmem_bytes", &[]),
        orphans: Reading::Unsupported,
        motion: MemoryTrends::default(),
    }
}

/// What is a little below 0, since counters are read one after the other, is 0.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes, from 0 on")]
pub(in crate::policy) fn whole(reading: Reading<f64>) -> Reading<u64> {
    match reading {
        Reading::Value(value) if value.is_finite() => Reading::Value(value.max(0.0) as u64),
        Reading::Value(_) | Reading::Failed => Reading::Failed,
        Reading::Unsupported => Reading::Unsupported,
    }
}

/// Page cache that is on none of the lists from which the kernel evicts (ramfs) does not go.
pub(super) fn at_most(cache: Reading<u64>, evictable: Reading<u64>) -> Reading<u64> {
    match evictable {
        Reading::Unsupported => cache,
        evictable => cache.zip(evictable).map(|(cache, evictable)| cache.min(evictable)),
    }
}

/// The larger of what is known.
fn at_least(low: Reading<u64>, reserve: Reading<u64>) -> Reading<u64> {
    match (low, reserve) {
        (Reading::Unsupported, other) | (other, Reading::Unsupported) => other,
        (low, reserve) => low.zip(reserve).map(|(low, reserve)| low.max(reserve)),
    }
}

/// The part of the available memory that an engine can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::policy) struct ObtainableMemory {
    /// Free above the reserve.
    pub(in crate::policy) spare: u64,
    /// Goes when it is wanted.
    pub(in crate::policy) reclaimable: u64,
}

impl ObtainableMemory {
    pub(in crate::policy) fn all(self) -> u64 {
        self.spare.saturating_add(self.reclaimable)
    }
}

/// The available memory that an engine can take; the error names the missing reading.
pub(in crate::policy) fn had(memory: &GateMemory) -> Result<ObtainableMemory, &'static str> {
    let or_none = |reading: Reading<u64>| match reading {
        Reading::Unsupported => Reading::Value(0),
        reading => reading,
    };
    let need = |reading: Reading<u64>, what| reading.value().ok_or(what);
    let free = need(memory.free, "MemFree")?;
    let cma = need(or_none(memory.free_cma), "CmaFree")?;
    let reserve = need(or_none(memory.reserve), "the reserve (watermarks of /proc/zoneinfo)")?;
    let cache = need(memory.clean_cache, "the page cache (Cached, Dirty, Mapped)")?;
    let slab = need(or_none(memory.reclaimable_slab), "SReclaimable")?;
    let (above, below) = (free.saturating_sub(cma), reserve.saturating_sub(free));
    Ok(ObtainableMemory {
        spare: above.saturating_sub(reserve),
        // What the reserve lacks is filled up first.
        reclaimable: cache.saturating_add(slab / 2).saturating_sub(below),
    })
}

/// What an engine can get of a memory, in bytes.
pub(super) fn obtainable(memory: &GateMemory) -> Reading<u64> {
    let is_failed = [memory.free, memory.clean_cache].contains(&Reading::Failed);
    match had(memory) {
        Ok(had) => Reading::Value(had.all()),
        Err(_) if is_failed => Reading::Failed,
        Err(_) => Reading::Unsupported,
    }
}
