//! What the matter is with memory that nobody seems to use.

use super::super::{MemoryVerdict, Source};
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
];
