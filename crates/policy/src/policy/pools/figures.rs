//! How much memory each pool has.

use std::sync::Arc;

use super::layout::{PoolLayout, node_label};
use super::memory::{allowance, at_most, memory as memory_of_machine, obtainable, whole};
use super::{GpuReport, SeriesView};
use crate::model::{
    GateMemory, GpuMemory, HOST_POOL, MemoryPool, MemoryPools, MemoryTrends, PoolFigures, PoolKind,
    Reading,
};

/// The pools of a layout, without figures.
pub(super) fn empty(layout: &PoolLayout) -> MemoryPools {
    let pool = |pool, kind, numa_nodes: &[u32]| MemoryPool {
        pool,
        kind,
        numa_nodes: numa_nodes.into(),
        read_at: None,
        obtainable: Reading::Unsupported,
        figures: PoolFigures::UNSUPPORTED,
        memory: GateMemory::UNKNOWN,
    };
    let host = pool(HOST_POOL.into(), PoolKind::Host, &layout.host_nodes);
    let numa = layout.numa.iter().map(|(gpu, node)| (*gpu, PoolKind::NumaNode, Some(*node)));
    let driver = layout.driver.iter().map(|gpu| (*gpu, PoolKind::Driver, None));
    let mut gpus: Vec<_> = numa.chain(driver).collect();
    gpus.sort_unstable_by_key(|(gpu, ..)| *gpu);
    let gpus = gpus.into_iter().map(|(gpu, kind, node)| pool(name(gpu), kind, node.as_slice()));
    MemoryPools { engines: layout.engines.clone(), pools: [host].into_iter().chain(gpus).collect() }
}

/// Fills in the figures of each pool.
pub(super) fn sample(
    view: &impl SeriesView,
    gpus: &GpuReport,
    layout: &PoolLayout,
    memory: &mut MemoryPools,
) {
    for pool in &mut memory.pools {
        let nodes = NodesView { view, nodes: &pool.numa_nodes };
        (pool.memory, pool.figures) = match pool.kind {
            PoolKind::Host if layout.numa.is_empty() => {
                (memory_of_machine(|name, labels| view.latest(name, labels)), of_machine(view))
            }
            PoolKind::Host => {
                let gpus = layout.numa.iter().map(|(_, node)| *node);
                (nodes.memory(unaccounted_of_host(view, gpus)), nodes.figures())
            }
            PoolKind::NumaNode => (nodes.memory(nodes.kind("unaccounted")), nodes.figures()),
            PoolKind::Driver => of_driver(&reported(gpus, &pool.pool)),
        };
        pool.read_at = gpus.answered_at.filter(|_| pool.kind == PoolKind::Driver);
        pool.obtainable = obtainable(&pool.memory);
    }
}

/// What the driver reports of the GPU of that pool.
fn reported(gpus: &GpuReport, pool: &str) -> GpuMemory {
    let index: Option<u32> = pool.strip_prefix("gpu").and_then(|index| index.parse().ok());
    let devices = gpus.picture.as_deref().map_or(&[][..], |picture| &picture.devices);
    let device = devices.iter().find(|device| Some(device.index) == index);
    device.filter(|_| gpus.is_current()).map_or(GpuMemory::FAILED, |device| device.memory)
}

fn name(gpu: u32) -> Arc<str> {
    format!("gpu{gpu}").into()
}

#[expect(clippy::cast_possible_truncation, reason = "bytes")]
fn of_machine(view: &impl SeriesView) -> PoolFigures {
    let latest = |name: &str| view.latest(name, &[]);
    PoolFigures {
        available: whole(latest("uma_memory_available_bytes")),
        low: whole(view.latest("uma_memory_watermark_bytes", &[("watermark", "low")])),
        headroom: latest("uma_memory_headroom_bytes").map(|bytes| bytes as i64),
        reserve: whole(latest("uma_memory_reserve_bytes")),
    }
}

/// Of the CPUs' memory where GPUs' is managed by the kernel, too. Some counters exist for the whole
/// machine only, so the difference is taken.
fn unaccounted_of_host(view: &impl SeriesView, gpus: impl Iterator<Item = u32>) -> Reading<u64> {
    let all = whole(view.latest("uma_memory_unaccounted_bytes", &[]));
    gpus.fold(all, |rest, node| {
        let own = NodesView { view, nodes: &[node] }.kind("unaccounted");
        rest.zip(own).map(|(rest, own)| rest.saturating_sub(own))
    })
}

/// A GPU's memory that only the driver reports. What is used is in no counter of the kernel.
fn of_driver(memory: &GpuMemory) -> (GateMemory, PoolFigures) {
    let none = Reading::Value(0);
    let figures = PoolFigures { available: memory.free_bytes, ..PoolFigures::UNSUPPORTED };
    let memory = GateMemory {
        total: memory.total_bytes,
        free: memory.free_bytes,
        free_cma: none,
        clean_cache: none,
        dirty_cache: none,
        mapped_cache: none,
        reclaimable_slab: none,
        reserve: none,
        contiguous_2mib: Reading::Unsupported,
        contiguous_32mib: Reading::Unsupported,
        unaccounted: memory.used_bytes,
        baseline: allowance(memory.total_bytes),
        shmem: none,
        orphans: Reading::Unsupported,
        motion: MemoryTrends::default(),
    };
    (memory, figures)
}

/// Some NUMA nodes together.
struct NodesView<'v, V> {
    view: &'v V,
    nodes: &'v [u32],
}

impl<V: SeriesView> NodesView<'_, V> {
    /// The sum of one kind over the nodes.
    fn kind(&self, kind: &str) -> Reading<u64> {
        self.sum("uma_numa_memory_bytes", ("kind", kind))
    }

    fn sum(&self, name: &str, (label, value): (&str, &str)) -> Reading<u64> {
        let each = self.nodes.iter().map(|node| {
            let mut digits = [0; 10];
            let mut labels = [(label, value), ("node", decimal(*node, &mut digits))];
            labels.sort_unstable();
            whole(self.view.latest(name, &labels))
        });
        each.reduce(|one, other| one.zip(other).map(|(one, other)| one.saturating_add(other)))
            .unwrap_or(Reading::Unsupported)
    }

    /// The sum over the nodes' zones; zones without that value are left out.
    fn zones(&self, name: &str, watermark: Option<&str>) -> Reading<u64> {
        let mut sum = Reading::Unsupported;
        self.view.each(name, &mut |key, reading| {
            let own = key.labels.iter().find(|(label, _)| &**label == "watermark");
            let is_wanted = own.map(|(_, value)| &**value) == watermark
                && node_label(key).is_some_and(|node| self.nodes.contains(&node));
            sum = match (is_wanted, sum, whole(reading)) {
                (false, sum, _) | (_, sum, Reading::Unsupported) => sum,
                (true, Reading::Unsupported, reading) => reading,
                (true, sum, reading) => {
                    sum.zip(reading).map(|(sum, reading)| sum.saturating_add(reading))
                }
            };
        });
        sum
    }

    fn watermark(&self, watermark: &str) -> Reading<u64> {
        self.zones("uma_zone_watermark_bytes", Some(watermark))
    }

    fn figures(&self) -> PoolFigures {
        let low = self.watermark("low");
        let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        PoolFigures {
            available: self.available(low),
            low,
            headroom: self.kind("free").zip(low).map(|(free, low)| signed(free) - signed(low)),
            reserve: self.watermark("min"),
        }
    }

    /// Memory that can be allocated without swapping: the kernel's formula for `MemAvailable`
    /// (`si_mem_available`), over these nodes.
    fn available(&self, low: Reading<u64>) -> Reading<u64> {
        let high = self.watermark("high");
        let file = self.kind("active_file").zip(self.kind("inactive_file"));
        let amounts = self.kind("free").zip(file).zip(self.kind("slab_reclaimable"));
        amounts.zip(low.zip(high)).map(|(((free, (active, inactive)), slab), (low, high))| {
            let part = |all: u64| all - (all / 2).min(low);
            free.saturating_sub(high)
                .saturating_add(part(active.saturating_add(inactive)))
                .saturating_add(part(slab))
        })
    }

    fn memory(&self, unaccounted: Reading<u64>) -> GateMemory {
        let total = self.kind("total");
        let file = self.kind("active_file").zip(self.kind("inactive_file"));
        let on_lists = file.map(|(active, inactive)| active.saturating_add(inactive));
        let clean = at_most(self.kind("clean_cache"), on_lists);
        let dirty = self.kind("dirty").zip(self.kind("writeback"));
        GateMemory {
            total,
            free: self.kind("free"),
            free_cma: self.zones("uma_zone_cma_free_bytes", None),
            clean_cache: clean,
            dirty_cache: dirty.map(|(dirty, writeback)| dirty.saturating_add(writeback)),
            mapped_cache: self.kind("mapped"),
            reclaimable_slab: self.kind("slab_reclaimable"),
            reserve: self.watermark("low"),
            contiguous_2mib: self.sum("uma_numa_contiguous_bytes", ("block", "2MiB")),
            contiguous_32mib: self.sum("uma_numa_contiguous_bytes", ("block", "32MiB")),
            unaccounted,
            baseline: allowance(total),
            shmem: self.kind("shmem"),
            orphans: Reading::Unsupported,
            motion: MemoryTrends::default(),
        }
    }
}

/// The digits of a number, in that buffer: sampling allocates nothing.
fn decimal(mut number: u32, digits: &mut [u8; 10]) -> &str {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + u8::try_from(number % 10).unwrap_or(0);
        number /= 10;
        if number == 0 || at == 0 {
            break;
        }
    }
    std::str::from_utf8(&digits[at..]).unwrap_or_default()
}
