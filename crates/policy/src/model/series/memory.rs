//! Series of `/proc/meminfo`, and derived ones.

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
        "Kernel estimate of the memory that can be allocated without swapping; more than a driver \
         can allocate (/proc/meminfo MemAvailable).",
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
        "Page cache of files, with shmem, without swap cache and buffers (/proc/meminfo Cached).",
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
        "Memory that is excluded from reclaim (/proc/meminfo Unevictable).",
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
        "Reclaimable kernel memory, reclaimable slab included (/proc/meminfo KReclaimable).",
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
        "uma_memory_hardware_corrupted_bytes",
        &[],
        "Pages taken out of use as faulty (/proc/meminfo HardwareCorrupted).",
    ),
    Metric::gauge(
        Source::Meminfo,
        "uma_memory_zswap_bytes",
        &[],
        "Memory that compressed swap uses (/proc/meminfo Zswap).",
    ),
    Metric::gauge(
        Source::Meminfo,
        "uma_memory_zswapped_bytes",
        &[],
        "Uncompressed size of compressed swap (/proc/meminfo Zswapped).",
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
        "Free memory set aside for contiguous allocations. MemFree includes it, but unmovable \
         allocations cannot use it (/proc/meminfo CmaFree).",
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
        "Memory that the Jetson's NvMap driver has allocated (/proc/meminfo NvMapMemUsed).",
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
        "Page cache without shmem: dirty (Dirty + Writeback), mapped (Mapped, shmem included), \
         clean (the rest). drop_caches can reclaim at least the clean part. The three add up to \
         Cached + Buffers - Shmem.",
    )
    .closed(&[("state", &["clean", "dirty", "mapped"])]),
    Metric::gauge(
        Source::Meminfo,
        "uma_memory_unaccounted_bytes",
        &[],
        "Memory in no counter of the kernel, such as a driver's. It is MemTotal minus free memory \
         (per-CPU lists included), Cached, Buffers, swap cache, anonymous, slab, kernel stacks, \
         page tables, per-CPU, vmalloc, huge pages and zswap.",
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
