//! Memory as `/proc/meminfo` tells it, and what is derived from it.

use super::super::Source;
use super::Metric;

/// This area's metrics.
pub(super) const METRICS: &[Metric] = &[
    Metric::gauge(
        Source::Meminfo,
        "uma_memory_total_bytes",
        &[],
        "Memory that the kernel can use (/proc/meminfo MemTotal).",
    ),
    Metric::gauge(
        Source::Meminfo,
        "uma_memory_free_bytes",
        &[],
        "Free memory (/proc/meminfo MemFree).",
    ),
    Metric::gauge(
        Source::Meminfo,
        "uma_memory_available_bytes",
        &[],
        "The kernel's estimate of what can be had without swapping; over-reports what a driver \
         can take (/proc/meminfo MemAvailable).",
    ),
    Metric::gauge(
        Source::Meminfo,
        "uma_memory_buffers_bytes",
        &[],
        "Page cache of block devices (/proc/meminfo Buffers).",
    ),
    Metric::gauge(
        Source::Meminfo,
        "uma_memory_cached_bytes",
        &[],
        "Page cache of files, shmem included, swap cache and buffers not (/proc/meminfo Cached).",
    ),
    Metric::gauge(
        Source::Meminfo,
        "uma_memory_lru_bytes",
        &["list"],
        "Memory on each reclaim list (/proc/meminfo Active(anon), Inactive(anon), Active(file), \
         Inactive(file)).",
    )
    .closed(&[(
        "list",
        &["active_anonymous", "inactive_anonymous", "active_file", "inactive_file"],
    )]),
    Metric::gauge(
        Source::Meminfo,
        "uma_memory_unevictable_bytes",
        &[],
        "Memory that reclaim leaves alone (/proc/meminfo Unevictable).",
    ),
    Metric::gauge(
        Source::Meminfo,
        "uma_memory_mlocked_bytes",
        &[],
        "Memory locked by mlock (/proc/meminfo Mlocked).",
    ),
    Metric::gauge(
        Source::Meminfo,
        "uma_memory_dirty_bytes",
        &[],
        "Page cache waiting to be written (/proc/meminfo Dirty).",
    ),
    Metric::gauge(
        Source::Meminfo,
        "uma_memory_writeback_bytes",
        &[],
        "Page cache being written (/proc/meminfo Writeback).",
    ),
    Metric::gauge(
        Source::Meminfo,
        "uma_memory_anonymous_bytes",
        &[],
        "Mapped anonymous memory (/proc/meminfo AnonPages).",
    ),
    Metric::gauge(
        Source::Meminfo,
        "uma_memory_mapped_bytes",
        &[],
        "Page cache and shmem that processes map (/proc/meminfo Mapped).",
    ),
    Metric::gauge(
        Source::Meminfo,
        "uma_memory_shmem_bytes",
        &[],
        "Shared memory and tmpfs (/proc/meminfo Shmem).",
    ),
    Metric::gauge(
        Source::Meminfo,
        "uma_memory_kernel_reclaimable_bytes",
        &[],
        "Kernel memory that can be taken back, reclaimable slab included (/proc/meminfo \
         KReclaimable).",
    ),
    Metric::gauge(
        Source::Meminfo,
        "uma_memory_slab_bytes",
        &["state"],
        "Kernel objects (/proc/meminfo SReclaimable, SUnreclaim).",
    )
    .closed(&[("state", &["reclaimable", "unreclaimable"])]),
    Metric::gauge(
        Source::Meminfo,
        "uma_memory_kernel_stack_bytes",
        &[],
        "Kernel stacks (/proc/meminfo KernelStack).",
    ),
    Metric::gauge(
        Source::Meminfo,
        "uma_memory_page_tables_bytes",
        &[],
        "Page tables of processes (/proc/meminfo PageTables).",
    ),
    Metric::gauge(
        Source::Meminfo,
        "uma_memory_secondary_page_tables_bytes",
        &[],
        "Page tables of IOMMUs and virtual machines (/proc/meminfo SecPageTables).",
    ),
    Metric::gauge(
        Source::Meminfo,
        "uma_memory_percpu_bytes",
        &[],
        "Per-CPU allocations of the kernel (/proc/meminfo Percpu).",
    ),
    Metric::gauge(
        Source::Meminfo,
        "uma_memory_vmalloc_used_bytes",
        &[],
        "Pages behind vmalloc areas; includes kernel stacks where these are virtually mapped \
         (/proc/meminfo VmallocUsed).",
    ),
    Metric::gauge(
        Source::Meminfo,
        "uma_memory_commit_limit_bytes",
        &[],
        "What may be committed when overcommit is off (/proc/meminfo CommitLimit).",
    ),
    Metric::gauge(
        Source::Meminfo,
        "uma_memory_committed_bytes",
        &[],
        "Memory promised to processes (/proc/meminfo Committed_AS).",
    ),
    Metric::gauge(
        Source::Meminfo,
        "uma_memory_hardware_corrupted_bytes",
        &[],
        "Pages taken out of use as faulty (/proc/meminfo HardwareCorrupted).",
    ),
    Metric::gauge(
        Source::Meminfo,
        "uma_memory_zswap_bytes",
        &[],
        "Memory that holds compressed swap (/proc/meminfo Zswap).",
    ),
    Metric::gauge(
        Source::Meminfo,
        "uma_memory_zswapped_bytes",
        &[],
        "What that memory would take uncompressed (/proc/meminfo Zswapped).",
    ),
    Metric::gauge(
        Source::Meminfo,
        "uma_memory_transparent_huge_bytes",
        &["kind"],
        "Transparent huge pages (/proc/meminfo AnonHugePages, ShmemHugePages, FileHugePages).",
    )
    .closed(&[("kind", &["anonymous", "shmem", "file"])]),
    Metric::gauge(
        Source::Meminfo,
        "uma_memory_cma_total_bytes",
        &[],
        "Memory set aside for contiguous allocations (/proc/meminfo CmaTotal).",
    ),
    Metric::gauge(
        Source::Meminfo,
        "uma_memory_cma_free_bytes",
        &[],
        "Free part of it; counted in MemFree, of no use to unmovable allocations (/proc/meminfo \
         CmaFree).",
    ),
    Metric::gauge(
        Source::Meminfo,
        "uma_memory_hugetlb_bytes",
        &[],
        "Memory in huge page pools of all sizes, used or not (/proc/meminfo Hugetlb).",
    ),
    Metric::gauge(
        Source::Meminfo,
        "uma_memory_nvmap_bytes",
        &[],
        "Memory that the Jetson's NvMap driver has handed out (/proc/meminfo NvMapMemUsed).",
    ),
    Metric::gauge(
        Source::Meminfo,
        "uma_huge_pages",
        &["state"],
        "Huge pages of the default size (/proc/meminfo HugePages_Total, _Free, _Rsvd, _Surp).",
    )
    .closed(&[("state", &["total", "free", "reserved", "surplus"])]),
    Metric::gauge(
        Source::Meminfo,
        "uma_memory_huge_page_size_bytes",
        &[],
        "Default size of a huge page (/proc/meminfo Hugepagesize).",
    ),
    Metric::gauge(
        Source::Meminfo,
        "uma_swap_total_bytes",
        &[],
        "Swap space (/proc/meminfo SwapTotal).",
    ),
    Metric::gauge(
        Source::Meminfo,
        "uma_swap_free_bytes",
        &[],
        "Free swap space (/proc/meminfo SwapFree).",
    ),
    Metric::gauge(
        Source::Meminfo,
        "uma_swap_cached_bytes",
        &[],
        "Swapped memory that is also in memory (/proc/meminfo SwapCached).",
    ),
    Metric::gauge(
        Source::Meminfo,
        "uma_memory_page_cache_bytes",
        &["state"],
        "Page cache without shmem, split: dirty = Dirty + Writeback, mapped = Mapped (shmem \
         included), clean = the rest, the least that drop_caches can take; the three add up to \
         Cached + Buffers - Shmem.",
    )
    .closed(&[("state", &["clean", "dirty", "mapped"])]),
    Metric::gauge(
        Source::Meminfo,
        "uma_memory_unaccounted_bytes",
        &[],
        "Memory that no counter of the kernel names, such as a driver's: MemTotal less free (lists \
         of the CPUs included), cached, anonymous, slab, stacks, page tables, per-CPU, vmalloc, \
         huge pages and zswap.",
    )
    .signed(),
    Metric::gauge(
        Source::Meminfo,
        "uma_memory_headroom_bytes",
        &[],
        "Free memory above the sum of the zones' low watermarks; below 0 the kernel is reclaiming \
         (MemFree, /proc/zoneinfo low).",
    )
    .signed(),
];
