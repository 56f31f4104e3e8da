//! What the kernel's allocator, its zones, nodes and settings tell.

use super::super::Source;
use super::Metric;

/// This area's metrics.
pub(super) const METRICS: &[Metric] = &[
    Metric::counter(
        Source::Vmstat,
        "uma_memory_reclaim_scanned_pages_total",
        &["reclaimer"],
        "Pages looked at to be taken back (/proc/vmstat pgscan_direct, pgscan_kswapd, \
         pgscan_khugepaged); direct means that an allocation waited.",
    ),
    Metric::counter(
        Source::Vmstat,
        "uma_memory_reclaim_stolen_pages_total",
        &["reclaimer"],
        "Pages taken back (/proc/vmstat pgsteal_direct, pgsteal_kswapd, pgsteal_khugepaged).",
    ),
    Metric::counter(
        Source::Vmstat,
        "uma_memory_reclaim_throttled_total",
        &[],
        "Times that an allocation was made to wait for kswapd (/proc/vmstat \
         pgscan_direct_throttle).",
    ),
    Metric::counter(
        Source::Vmstat,
        "uma_memory_allocation_stalls_total",
        &["zone"],
        "Allocations that had to reclaim memory themselves (/proc/vmstat allocstall_*).",
    ),
    Metric::counter(
        Source::Vmstat,
        "uma_memory_kswapd_runs_total",
        &[],
        "Times that kswapd balanced a node (/proc/vmstat pageoutrun).",
    ),
    Metric::counter(
        Source::Vmstat,
        "uma_memory_kswapd_watermark_hit_quickly_total",
        &["watermark"],
        "Times that free memory fell below the watermark again right after kswapd had reached it \
         (/proc/vmstat kswapd_low_wmark_hit_quickly, kswapd_high_wmark_hit_quickly).",
    ),
    Metric::counter(
        Source::Vmstat,
        "uma_memory_compaction_stalls_total",
        &[],
        "Allocations that had to compact memory themselves (/proc/vmstat compact_stall).",
    ),
    Metric::counter(
        Source::Vmstat,
        "uma_memory_compaction_failures_total",
        &[],
        "Those for which it did not help (/proc/vmstat compact_fail).",
    ),
    Metric::counter(
        Source::Vmstat,
        "uma_memory_compaction_successes_total",
        &[],
        "Those for which it did (/proc/vmstat compact_success).",
    ),
    Metric::counter(
        Source::Vmstat,
        "uma_memory_compaction_daemon_wakes_total",
        &[],
        "Times that kcompactd was woken (/proc/vmstat compact_daemon_wake).",
    ),
    Metric::counter(
        Source::Vmstat,
        "uma_memory_refaulted_pages_total",
        &["kind"],
        "Pages read back soon after they were taken (/proc/vmstat workingset_refault_anon, \
         workingset_refault_file).",
    ),
    Metric::counter(
        Source::Vmstat,
        "uma_memory_page_faults_total",
        &[],
        "Page faults, major ones included (/proc/vmstat pgfault).",
    ),
    Metric::counter(
        Source::Vmstat,
        "uma_memory_major_page_faults_total",
        &[],
        "Page faults that had to read from storage (/proc/vmstat pgmajfault).",
    ),
    Metric::counter(
        Source::Vmstat,
        "uma_memory_oom_kills_total",
        &[],
        "Processes that the kernel killed for memory (/proc/vmstat oom_kill).",
    ),
    Metric::counter(
        Source::Vmstat,
        "uma_memory_cache_drops_total",
        &["what"],
        "Writes to drop_caches by anybody (/proc/vmstat drop_pagecache, drop_slab).",
    ),
    Metric::counter(
        Source::Vmstat,
        "uma_memory_pinned_pages_total",
        &[],
        "Pages pinned for long-term use by devices (/proc/vmstat nr_foll_pin_acquired).",
    ),
    Metric::counter(
        Source::Vmstat,
        "uma_memory_unpinned_pages_total",
        &[],
        "Pages released from such pins (/proc/vmstat nr_foll_pin_released).",
    ),
    Metric::counter(
        Source::Vmstat,
        "uma_memory_huge_page_faults_total",
        &["outcome"],
        "Huge pages wanted at a page fault (/proc/vmstat thp_fault_alloc, thp_fault_fallback).",
    ),
    Metric::counter(
        Source::Vmstat,
        "uma_swap_in_pages_total",
        &[],
        "Pages read from swap (/proc/vmstat pswpin).",
    ),
    Metric::counter(
        Source::Vmstat,
        "uma_swap_out_pages_total",
        &[],
        "Pages written to swap (/proc/vmstat pswpout).",
    ),
    Metric::gauge(
        Source::Zoneinfo,
        "uma_memory_watermark_bytes",
        &["watermark"],
        "Sum of the zones' watermarks, a boost in force included (/proc/zoneinfo min, low, high).",
    ),
    Metric::gauge(
        Source::Zoneinfo,
        "uma_memory_watermark_boost_bytes",
        &[],
        "How far the watermarks are raised for now (/proc/zoneinfo boost).",
    ),
    Metric::gauge(
        Source::Zoneinfo,
        "uma_memory_per_cpu_lists_bytes",
        &[],
        "Free memory on the CPUs' own lists, which MemFree leaves out (/proc/zoneinfo pagesets \
         count).",
    ),
    Metric::gauge(
        Source::Zoneinfo,
        "uma_zone_free_bytes",
        &["node", "zone"],
        "Free memory of a zone (/proc/zoneinfo pages free).",
    ),
    Metric::gauge(
        Source::Zoneinfo,
        "uma_zone_watermark_bytes",
        &["node", "watermark", "zone"],
        "Watermarks of a zone, a boost in force included (/proc/zoneinfo min, low, high, promo).",
    ),
    Metric::gauge(
        Source::Zoneinfo,
        "uma_zone_managed_bytes",
        &["node", "zone"],
        "Memory of a zone that the allocator manages (/proc/zoneinfo managed).",
    ),
    Metric::gauge(
        Source::Zoneinfo,
        "uma_zone_present_bytes",
        &["node", "zone"],
        "Physical memory in a zone (/proc/zoneinfo present).",
    ),
    Metric::gauge(
        Source::Zoneinfo,
        "uma_zone_cma_free_bytes",
        &["node", "zone"],
        "Free memory of a zone set aside for contiguous allocations (/proc/zoneinfo nr_free_cma).",
    ),
    Metric::gauge(
        Source::Buddyinfo,
        "uma_memory_contiguous_bytes",
        &["block"],
        "Free memory in blocks of at least that size (/proc/buddyinfo); absent where the \
         allocator keeps no blocks so large.",
    ),
    Metric::counter(
        Source::Pressure,
        "uma_pressure_stalled_seconds_total",
        &["resource", "share"],
        "Time in which some or all tasks waited for a resource (/proc/pressure/* total).",
    ),
    Metric::gauge(
        Source::Pressure,
        "uma_pressure_ratio",
        &["resource", "share", "window"],
        "Share of the window in which some or all tasks waited (/proc/pressure/* avg10, avg60, \
         avg300).",
    ),
    Metric::gauge(
        Source::Numa,
        "uma_numa_memory_bytes",
        &["kind", "node"],
        "Memory of a NUMA node; a Grace Hopper GPU is one (/sys/devices/system/node/node*/meminfo \
         MemTotal, MemFree, MemUsed, FilePages, AnonPages, Shmem, Mapped, Dirty, Unevictable, \
         SReclaimable, SUnreclaim).",
    ),
    Metric::gauge(
        Source::Sysctl,
        "uma_memory_reserve_bytes",
        &[],
        "What the kernel keeps free for itself (vm.min_free_kbytes).",
    ),
    Metric::gauge(
        Source::Sysctl,
        "uma_sysctl",
        &["name"],
        "A setting, in its own unit (/proc/sys/vm/*).",
    ),
];
