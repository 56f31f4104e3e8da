//! Series of the assessment of memory.

use super::super::{MemoryState, Owner, Source};
use super::Metric;

/// This area's metrics.
pub(super) const METRICS: &[Metric] = &[
    Metric::gauge(
        Source::Daemon,
        "uma_memory_verdict",
        &["verdict"],
        "1 for the assessment of memory in no counter of the kernel, above the usual amount. \
         Values: clean (none), in_use (an engine lives, or a process has the driver open), orphan \
         (left by an engine), lingering (being released), held_shmem, unknown. Also reclaimable \
         (reclaim was not tried yet), leaked (only a reboot frees it), wedged (the driver is \
         stuck).",
    )
    .closed(&[("verdict", &MemoryState::NAMES)])
    .flag(),
    Metric::gauge(
        Source::Holders,
        "uma_driver_holders",
        &[],
        "Processes that have the NVIDIA driver open (/dev/nvidia*, dma-buf), in all PID namespaces \
         that /proc shows. Processes that only monitor the driver are left out.",
    ),
    Metric::gauge(
        Source::Holders,
        "uma_driver_holders_unseen_processes",
        &[],
        "Processes whose open files cannot be read; this needs root or CAP_SYS_PTRACE.",
    ),
    Metric::gauge(
        Source::Holders,
        "uma_other_processes_memory_bytes",
        &["type"],
        "Memory of processes that belong to no engine: RssAnon, RssShmem and HugetlbPages of \
         /proc/PID/status, and pipes and sockets of a process that has many. Processes with less \
         than 64 MiB resident may be left out. Scanned every 10 s, and at once when memory falls.",
    )
    .closed(&[("type", &["anon", "hugetlb", "pipes", "shmem", "sockets"])]),
    Metric::gauge(
        Source::Holders,
        "uma_memory_socket_bytes",
        &[],
        "Memory of TCP and UDP sockets in all network namespaces (mem of /proc/net/sockstat).",
    ),
    Metric::gauge(
        Source::Holders,
        "uma_memory_growth_bytes",
        &["owner"],
        "Memory taken within the last 10 s, by owner: engines, other processes, processes that \
         only the driver names, sockets, shared memory, the kernel. smaller_processes are those \
         not listed one by one; unattributed is memory that nothing accounts for.",
    )
    .closed(&[("owner", &Owner::LABELS)]),
    Metric::gauge(
        Source::Holders,
        "uma_memory_growth_evidence_age_seconds",
        &["source"],
        "Age of the evidence for uma_memory_growth_bytes: the driver's last figures for each \
         process, and the last scan of all processes. The driver's are absent without any of the \
         last 15 s.",
    )
    .closed(&[("source", &["driver", "processes"])]),
];
