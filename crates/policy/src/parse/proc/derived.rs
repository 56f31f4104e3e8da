//! What follows from several fields of `/proc/meminfo` or of a node's, and from watermarks.

use super::meminfo::{Meminfo, MeminfoField as Field};
use super::node::{NodeField, NodeMeminfo};
use crate::model::Reading;

/// The page cache without shmem and swap cache, in bytes. The three parts add up to `Cached +
/// Buffers - Shmem`: what dropping caches could take at the very most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageCache {
    /// The rest: dropping caches takes it at once.
    pub clean: u64,
    /// Must be written first: `Dirty + Writeback`.
    pub dirty: u64,
    /// Stays while a process maps it. `Mapped` includes mapped shmem, whose share no counter
    /// gives. All of `Mapped` counts as page cache, as in the kernel's node reclaim, so `clean` is
    /// rather too small than too large.
    pub mapped: u64,
}

/// Splits the page cache. A page that is both dirty and mapped counts as dirty.
pub fn page_cache(meminfo: &Meminfo) -> Reading<PageCache> {
    let get = |field| meminfo.get(field);
    let cached = get(Field::Cached).zip(get(Field::Buffers)).zip(get(Field::Shmem));
    let busy = get(Field::Dirty).zip(get(Field::Writeback)).zip(get(Field::Mapped));
    cached.zip(busy).map(|(((cached, buffers), shmem), ((dirty, writeback), mapped))| {
        let all = cached.saturating_add(buffers).saturating_sub(shmem);
        split(all, dirty.saturating_add(writeback), mapped)
    })
}

fn split(all: u64, dirty: u64, mapped: u64) -> PageCache {
    let dirty = dirty.min(all);
    let mapped = mapped.min(all - dirty);
    PageCache { clean: all - dirty - mapped, dirty, mapped }
}

/// Memory that no counter names, in bytes: drivers' allocations, pipe buffers. The counters are not
/// read at one instant, so the difference may be slightly negative.
///
/// Free memory on the CPUs' own lists is neither in `MemFree` nor unaccounted: it comes and goes by
/// hundreds of MiB. Subsets are counted once: `Slab` holds all of `KReclaimable` but what drivers
/// add to the latter; `VmallocUsed` holds the kernel stacks where these are mapped
/// (`CONFIG_VMAP_STACK`), so the larger of the two counts; `Cached` leaves the swap cache out.
/// `NvMapMemUsed` and allocated CMA memory are the driver's and stay in. What a kernel does not
/// count among the lesser counters is unaccounted there.
pub fn unaccounted(meminfo: &Meminfo, per_cpu_lists: Reading<u64>) -> Reading<i64> {
    let get = |field| meminfo.get(field);
    let core = [Field::MemFree, Field::Buffers, Field::Cached, Field::AnonPages, Field::Slab]
        .map(get)
        .into_iter()
        .fold(Reading::Value(0), add);
    let optional = [
        per_cpu_lists,
        get(Field::SwapCached),
        get(Field::PageTables),
        get(Field::SecPageTables),
        get(Field::Percpu),
        get(Field::Zswap),
        larger(get(Field::VmallocUsed), get(Field::KernelStack)),
        beyond(get(Field::KReclaimable), get(Field::SReclaimable)),
        huge_pages(meminfo),
    ];
    let named = optional.into_iter().map(or_nothing).fold(core, add);
    match get(Field::MemTotal).map(i128::from).zip(named) {
        Reading::Value((total, named)) => {
            i64::try_from(total - named).map_or(Reading::Failed, Reading::Value)
        }
        Reading::Unsupported => Reading::Unsupported,
        Reading::Failed => Reading::Failed,
    }
}

/// Splits the page cache of a NUMA node, as [`page_cache`] does that of the machine.
pub fn node_page_cache(node: &NodeMeminfo) -> Reading<PageCache> {
    let get = |field| node.get(field);
    let swap_cached = or_nothing(get(NodeField::SwapCached));
    let files = get(NodeField::FilePages).zip(get(NodeField::Shmem)).zip(swap_cached);
    let dirty = get(NodeField::Dirty).zip(or_nothing(get(NodeField::Writeback)));
    files.zip(dirty.zip(get(NodeField::Mapped))).map(
        |(((files, shmem), swap_cached), ((dirty, writeback), mapped))| {
            let all = files.saturating_sub(shmem).saturating_sub(swap_cached);
            split(all, dirty.saturating_add(writeback), mapped)
        },
    )
}

/// Memory of a NUMA node that no counter of the node names, in bytes, at least 0. On a superchip in
/// NUMA mode this is what the driver has allocated there. Memory of vmalloc, per-CPU areas and
/// lists is counted for the whole machine only; nodes of GPUs have none of it but short lists.
pub fn node_unaccounted(node: &NodeMeminfo, huge_page_bytes: u64) -> Reading<u64> {
    let get = |field| node.get(field);
    let named = [NodeField::MemFree, NodeField::FilePages, NodeField::AnonPages].map(get);
    let slab = [NodeField::SReclaimable, NodeField::SUnreclaim].map(get);
    let lesser = [NodeField::KernelStack, NodeField::PageTables, NodeField::SecPageTables];
    let lesser = lesser.map(|field| or_nothing(get(field)));
    let huge = or_nothing(get(NodeField::HugePagesTotal));
    let others = [
        beyond(or_nothing(get(NodeField::KReclaimable)), get(NodeField::SReclaimable)),
        huge.map(|pages| pages.saturating_mul(huge_page_bytes)),
    ];
    let all = named.into_iter().chain(slab).chain(lesser).chain(others);
    let named = all.fold(Reading::Value(0_u64), |sum, value| {
        sum.zip(value).map(|(sum, value)| sum.saturating_add(value))
    });
    get(NodeField::MemTotal).zip(named).map(|(total, named)| total.saturating_sub(named))
}

/// Free memory above the low watermark, in bytes; negative below it.
pub fn headroom(free_bytes: Reading<u64>, low_bytes: Reading<u64>) -> Reading<i64> {
    let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    free_bytes.zip(low_bytes).map(|(free, low)| signed(free) - signed(low))
}

/// All huge page pools; before Linux 4.16 only that of the default size is known.
fn huge_pages(meminfo: &Meminfo) -> Reading<u64> {
    let pool = || {
        let pages = meminfo.get(Field::HugePagesTotal).zip(meminfo.get(Field::Hugepagesize));
        pages.map(|(pages, size)| pages.saturating_mul(size))
    };
    match meminfo.get(Field::Hugetlb) {
        Reading::Unsupported => pool(),
        reading => reading,
    }
}

fn add(sum: Reading<i128>, value: Reading<u64>) -> Reading<i128> {
    sum.zip(value).map(|(sum, value)| sum + i128::from(value))
}

fn or_nothing(reading: Reading<u64>) -> Reading<u64> {
    if reading == Reading::Unsupported { Reading::Value(0) } else { reading }
}

fn larger(left: Reading<u64>, right: Reading<u64>) -> Reading<u64> {
    or_nothing(left).zip(or_nothing(right)).map(|(left, right)| left.max(right))
}

fn beyond(all: Reading<u64>, part: Reading<u64>) -> Reading<u64> {
    all.zip(part).map(|(all, part)| all.saturating_sub(part))
}
