//! Series of the kernel's allocator, zones, nodes and settings.

use super::super::Source;
use super::{ClosedLabel, Metric, MetricKind};

const RESOURCE: ClosedLabel = ("resource", &["cpu", "io", "memory"]);
const SHARE: ClosedLabel = ("share", &["some", "full"]);

const NUMA_KINDS: &[&str] = &[
    "total",
    "free",
    "used",
    "file",
    "anonymous",
    "shmem",
    "mapped",
    "dirty",
    "writeback",
    "active_file",
    "inactive_file",
    "unevictable",
    "slab_reclaimable",
    "slab_unreclaimable",
    "clean_cache",
    "unaccounted",
];

const SETTINGS: &[&str] = &[
    "vm.min_free_kbytes",
    "vm.compaction_proactiveness",
    "vm.dirty_background_bytes",
    "vm.dirty_background_ratio",
    "vm.dirty_bytes",
    "vm.dirty_ratio",
    "vm.overcommit_memory",
    "vm.swappiness",
    "vm.vfs_cache_pressure",
    "vm.watermark_boost_factor",
    "vm.watermark_scale_factor",
    "vm.zone_reclaim_mode",
];

/// This area's metrics.
pub(super) const METRICS: &[Metric] = &[
    Metric::counter(
        Source::Vmstat,
        "uma_memory_reclaim_scanned_pages_total",
        &["reclaimer"],
        "Pages scanned for reclaim (/proc/vmstat pgscan_direct, pgscan_kswapd, pgscan_khugepaged); \
         direct means that an allocation waited.",
    )
    .closed(&[("reclaimer", &["direct", "kswapd", "khugepaged"])]),
    Metric::counter(
        Source::Vmstat,
        "uma_memory_reclaim_stolen_pages_total",
        &["reclaimer"],
        "Pages reclaimed (/proc/vmstat pgsteal_direct, pgsteal_kswapd, pgsteal_khugepaged).",
    )
    .closed(&[("reclaimer", &["direct", "kswapd", "khugepaged"])]),
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
    )
    .closed(&[("zone", &["dma", "dma32", "normal", "movable", "device"])]),
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
        "Allocations for which compaction failed (/proc/vmstat compact_fail).",
    ),
    Metric::counter(
        Source::Vmstat,
        "uma_memory_compaction_successes_total",
        &[],
        "Allocations for which compaction succeeded (/proc/vmstat compact_success).",
    ),
    Metric::counter(
        Source::Vmstat,
        "uma_memory_refaulted_pages_total",
        &["kind"],
        "Pages read back soon after they were reclaimed (/proc/vmstat workingset_refault_anon, \
         workingset_refault_file).",
    )
    .closed(&[("kind", &["anonymous", "file"])]),
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
        "Writes to drop_caches by any process (/proc/vmstat drop_pagecache, drop_slab).",
    )
    .closed(&[("what", &["pagecache", "slab"])]),
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
        "Pages released from long-term pins by devices (/proc/vmstat nr_foll_pin_released).",
    ),
    Metric::counter(
        Source::Vmstat,
        "uma_memory_huge_page_faults_total",
        &["outcome"],
        "Huge pages requested at a page fault (/proc/vmstat thp_fault_alloc, thp_fault_fallback).",
    )
    .closed(&[("outcome", &["allocated", "fell_back"])]),
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
    )
    .closed(&[("watermark", &["min", "low", "high"])]),
    Metric::gauge(
        Source::Zoneinfo,
        "uma_memory_watermark_boost_bytes",
        &[],
        "Sum of the zones' watermark boosts in force (/proc/zoneinfo boost).",
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
        "Watermarks of a zone, a boost in force included (/proc/zoneinfo min, low, high).",
    )
    .closed(&[("watermark", &["min", "low", "high"])]),
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
    )
    .closed(&[("block", &["2MiB", "32MiB"])]),
    Metric::counter(
        Source::Pressure,
        "uma_pressure_stalled_seconds_total",
        &["resource", "share"],
        "Time in which some or all tasks waited for a resource (/proc/pressure/* total). The rate \
         over any window is the share of the window. All tasks never wait for a CPU.",
    )
    .closed(&[RESOURCE, SHARE]),
    Metric::gauge(
        Source::Pressure,
        "uma_pressure_ratio",
        &["resource", "share", "window"],
        "Share of the window in which some or all tasks waited (/proc/pressure/* avg10).",
    )
    .closed(&[RESOURCE, SHARE, ("window", &["10s"])])
    .share(),
    Metric::gauge(
        Source::Numa,
        "uma_numa_memory_bytes",
        &["kind", "node"],
        "Memory of a NUMA node; a Grace Hopper GPU is one (/sys/devices/system/node/node*/meminfo \
         MemTotal, MemFree, MemUsed, FilePages, AnonPages, Shmem, Mapped, Dirty, Writeback, \
         Active(file), Inactive(file), Unevictable, SReclaimable, SUnreclaim). clean_cache: page \
         cache that drop_caches can reclaim; unaccounted: in no counter of the node. Nodes \
         without memory are left out, and a node that is the whole machine: uma_memory_* is its \
         memory.",
    )
    .closed(&[("kind", NUMA_KINDS)]),
    Metric::gauge(
        Source::Numa,
        "uma_numa_cpus",
        &["node"],
        "CPUs of a NUMA node, where there are several; 0 for memory without CPUs, as of a GPU \
         (node*/cpulist).",
    ),
    Metric::gauge(
        Source::Buddyinfo,
        "uma_numa_contiguous_bytes",
        &["block", "node"],
        "Free memory of a NUMA node in blocks of at least that size, where there are several nodes \
         (/proc/buddyinfo).",
    )
    .closed(&[("block", &["2MiB", "32MiB"])]),
    Metric::gauge(
        Source::Zoneinfo,
        "uma_numa_watermark_bytes",
        &["node", "watermark"],
        "The sum of the low watermarks of a NUMA node's zones, where there are several nodes \
         (/proc/zoneinfo).",
    )
    .closed(&[("watermark", &["low"])]),
    Metric::new(
        MetricKind::Info,
        Source::Pci,
        "uma_pci_gpu_info",
        &["device_id", "pci_address"],
        "A GPU of NVIDIA on the PCI bus, with the number of its kind (/sys/bus/pci/devices).",
    )
    .flag(),
    Metric::gauge(
        Source::Sysctl,
        "uma_memory_reserve_bytes",
        &[],
        "Memory that the kernel keeps free as its reserve (vm.min_free_kbytes).",
    ),
    Metric::gauge(
        Source::Sysctl,
        "uma_sysctl",
        &["name"],
        "Value of a kernel setting, in the setting's own unit (/proc/sys/vm/*).",
    )
    .closed(&[("name", SETTINGS)]),
];
