//! What the matter is with memory that nobody seems to use.

use super::super::{MemoryVerdict, Owner, Source};
use super::Metric;

const VERDICTS: [&str; MemoryVerdict::ALL.len()] = names!(MemoryVerdict);

/// This area's metrics.
pub(super) const METRICS: &[Metric] = &[
    Metric::gauge(
        Source::Daemon,
        "uma_memory_verdict",
        &["verdict"],
        "1 for what holds memory that no counter of the kernel names, above what is usual: clean \
         (nothing), in_use (somebody has the driver open), orphan (what an engine has left), \
         lingering (it is being given back), held_shmem, reclaimable (what may bring it back was \
         not tried), leaked (nothing brings it back but a reboot), wedged (the driver is stuck), \
         unknown.",
    )
    .closed(&[("verdict", &VERDICTS)])
    .flag(),
    Metric::gauge(
        Source::Holders,
        "uma_driver_holders",
        &[],
        "Processes that have the NVIDIA driver open (/dev/nvidia*, dma-buf), in all PID \
         namespaces that /proc shows; those that only watch it are left out.",
    ),
    Metric::gauge(
        Source::Holders,
        "uma_driver_holders_unseen_processes",
        &[],
        "Processes of which it cannot be seen what they have open: that needs root or \
         CAP_SYS_PTRACE.",
    ),
    Metric::gauge(
        Source::Holders,
        "uma_other_processes_memory_bytes",
        &["type"],
        "Memory of processes that belong to no engine, of the 128 that have most: RssAnon, \
         RssShmem and HugetlbPages of /proc/PID/status, and what is in many pipes or sockets of \
         one process. Scanned every 10 s, and at once when memory falls.",
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
        "Memory that was taken within the last 10 s, by who took it: engines, other processes, \
         processes that only the driver names, sockets, shared memory, the kernel; unattributed is \
         what nothing accounts for.",
    )
    .closed(&[("owner", &Owner::LABELS)]),
    Metric::gauge(
        Source::Holders,
        "uma_memory_growth_evidence_age_seconds",
        &["source"],
        "Age of what uma_memory_growth_bytes rests on: the driver's last figures for each process \
         (absent without any of the last 15 s), and the last scan of all processes.",
    )
    .closed(&[("source", &["driver", "processes"])]),
];
