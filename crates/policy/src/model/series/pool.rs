//! Series of memory pools.

use super::super::Source;
use super::{Metric, MetricKind};

/// This area's metrics. They follow from `/proc` and `/sys`, or from the driver's report.
pub(super) const METRICS: &[Metric] = &[
    Metric::new(
        MetricKind::Info,
        Source::Meminfo,
        "uma_pool_info",
        &["kind", "pool"],
        "A pool of memory: host, the CPUs' memory (on GB10 and Jetson the GPU's, too), or a GPU's \
         own memory, as a NUMA node (numa_node) or by the driver alone (driver).",
    )
    .closed(&[("kind", &["host", "numa_node", "driver"])])
    .flag(),
    Metric::gauge(
        Source::Meminfo,
        "uma_pool_holds_engines",
        &["pool"],
        "1 if engines put weights and KV cache into the pool, 0 if not; unknown where the kind of \
         the GPU is not known.",
    )
    .flag(),
    Metric::gauge(Source::Meminfo, "uma_pool_total_bytes", &["pool"], "Memory of the pool."),
    Metric::gauge(Source::Meminfo, "uma_pool_free_bytes", &["pool"], "Free memory of the pool."),
    Metric::gauge(
        Source::Meminfo,
        "uma_pool_available_bytes",
        &["pool"],
        "Memory of the pool that can be allocated without swapping: MemAvailable, for NUMA nodes \
         by the same formula, for a GPU's own memory what is free.",
    ),
    Metric::gauge(
        Source::Meminfo,
        "uma_pool_obtainable_bytes",
        &["pool"],
        "Memory of the pool that an engine can get: free above the low watermark without CMA, \
         clean unmapped page cache, and half of the reclaimable slab (umawarden gate).",
    ),
    Metric::gauge(
        Source::Meminfo,
        "uma_pool_reserve_bytes",
        &["pool"],
        "Memory of the pool that the kernel keeps free as its reserve; missing for memory that \
         the kernel does not manage.",
    ),
    Metric::gauge(
        Source::Meminfo,
        "uma_pool_watermark_bytes",
        &["pool", "watermark"],
        "The low watermark of the pool: below it the kernel reclaims.",
    )
    .closed(&[("watermark", &["low"])]),
    Metric::gauge(
        Source::Meminfo,
        "uma_pool_headroom_bytes",
        &["pool"],
        "Free memory of the pool above its low watermark; below 0 the kernel is reclaiming.",
    )
    .signed(),
    Metric::gauge(
        Source::Meminfo,
        "uma_pool_page_cache_bytes",
        &["pool", "state"],
        "Page cache in the pool without shmem; drop_caches can reclaim the clean part.",
    )
    .closed(&[("state", &["clean", "dirty", "mapped"])]),
    Metric::gauge(
        Source::Meminfo,
        "uma_pool_unaccounted_bytes",
        &["pool"],
        "Memory of the pool in no counter of the kernel, such as a driver's; of memory that only \
         the driver reports, what is used.",
    ),
    Metric::gauge(
        Source::Meminfo,
        "uma_pool_contiguous_bytes",
        &["block", "pool"],
        "Free memory of the pool in blocks of at least that size (/proc/buddyinfo).",
    )
    .closed(&[("block", &["2MiB", "32MiB"])]),
    Metric::gauge(
        Source::Daemon,
        "uma_leases",
        &["state"],
        "Starts that have reserved memory (granted) or wait for it (umawarden leases).",
    )
    .closed(&[("state", &["granted", "waiting"])]),
    Metric::gauge(
        Source::Daemon,
        "uma_lease_reserved_bytes",
        &["pool"],
        "Memory of the pool that is reserved for starts and not taken yet.",
    ),
    Metric::gauge(
        Source::Daemon,
        "uma_lease_priority",
        &["who"],
        "The priority of a start that waits for memory or its turn; the first 16.",
    ),
    Metric::gauge(
        Source::Daemon,
        "uma_lease_missing_bytes",
        &["pool", "who"],
        "Memory that a start which waits lacks, where it waits for memory and not for its turn.",
    ),
];
