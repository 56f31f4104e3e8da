//! GPUs, as the NVIDIA driver tells of them.

use super::super::{GpuRecovery, Source};
use super::{Metric, MetricKind};

const RECOVERIES: [&str; GpuRecovery::ALL.len()] = names!(GpuRecovery);

/// This area's metrics.
pub(super) const METRICS: &[Metric] = &[
    Metric::gauge(
        Source::Gpu,
        "uma_gpu_driver_responsive",
        &[],
        "1 if the NVIDIA driver answers (an error is an answer), 0 while it has not answered in \
         time and still does not; missing where there is no driver, and where nobody can tell.",
    )
    .flag(),
    Metric::gauge(
        Source::Gpu,
        "uma_gpu_last_answer_age_seconds",
        &[],
        "How long ago the NVIDIA driver answered last.",
    ),
    Metric::counter(
        Source::Gpu,
        "uma_gpu_child_restarts_total",
        &[],
        "How often the process that asks the NVIDIA driver was started again, since it had ended \
         by itself or was ended because it hung outside of the kernel.",
    ),
    Metric::counter(
        Source::Gpu,
        "uma_gpu_child_abandoned_total",
        &[],
        "Processes that asked the NVIDIA driver and were given up, since they hang in the kernel.",
    ),
    Metric::gauge(
        Source::Gpu,
        "uma_gpu_children_hanging",
        &[],
        "Processes that were given up and still hang in the kernel; beyond 3 none is started.",
    ),
    Metric::new(
        MetricKind::Info,
        Source::Gpu,
        "uma_gpu_info",
        &["compute_mode", "driver_version", "gpu", "name", "nvml_version", "pci_address", "uuid"],
        "Which GPU this is, and which driver runs it; unknown where the driver does not say.",
    )
    .flag(),
    Metric::gauge(
        Source::Gpu,
        "uma_gpu_memory_total_bytes",
        &["gpu"],
        "Memory of the GPU's own; missing where it shares the machine's, as on GB10.",
    ),
    Metric::gauge(
        Source::Gpu,
        "uma_gpu_memory_used_bytes",
        &["gpu"],
        "Memory of the GPU's own that is taken, without what the driver keeps for itself.",
    ),
    Metric::gauge(
        Source::Gpu,
        "uma_gpu_memory_free_bytes",
        &["gpu"],
        "Memory of the GPU's own that is free.",
    ),
    Metric::gauge(
        Source::Gpu,
        "uma_gpu_memory_unheld_bytes",
        &["gpu"],
        "Memory of the GPU's own that is taken and that the driver lays to no process; a context \
         takes some. Missing where it is parted (MIG), and on Grace Hopper and Grace Blackwell, \
         where memory may stay counted after its process. No reboot follows from it.",
    ),
    Metric::gauge(
        Source::Gpu,
        "uma_gpu_engine_memory_bytes",
        &["engine", "gpu"],
        "Memory that the driver has given to the engine's processes on the GPU; on GB10 this is \
         the machine's memory, which is in no process' RSS.",
    ),
    Metric::gauge(
        Source::Gpu,
        "uma_gpu_other_memory_bytes",
        &["gpu"],
        "Memory that the driver has given on the GPU to processes that belong to no engine.",
    ),
    Metric::gauge(
        Source::Gpu,
        "uma_gpu_processes",
        &["gpu"],
        "Processes that have memory of the GPU.",
    ),
    Metric::gauge(
        Source::Gpu,
        "uma_gpu_utilization_ratio",
        &["gpu"],
        "Share of the last moment in which the GPU computed.",
    )
    .share(),
    Metric::gauge(
        Source::Gpu,
        "uma_gpu_memory_utilization_ratio",
        &["gpu"],
        "Share of the last moment in which memory of the GPU's own was read or written.",
    )
    .share(),
    Metric::gauge(Source::Gpu, "uma_gpu_temperature_celsius", &["gpu"], "Temperature of the GPU.")
        .signed(),
    Metric::gauge(Source::Gpu, "uma_gpu_power_watts", &["gpu"], "Power that the GPU takes."),
    Metric::gauge(
        Source::Gpu,
        "uma_gpu_mig_enabled",
        &["gpu"],
        "1 if the GPU is parted into instances (MIG).",
    )
    .flag(),
    Metric::gauge(
        Source::Gpu,
        "uma_gpu_instance_memory_total_bytes",
        &["compute_instance", "gpu", "gpu_instance"],
        "Memory of a part of the GPU (MIG).",
    ),
    Metric::gauge(
        Source::Gpu,
        "uma_gpu_instance_memory_used_bytes",
        &["compute_instance", "gpu", "gpu_instance"],
        "Memory of a part of the GPU (MIG) that is taken.",
    ),
    Metric::gauge(
        Source::Gpu,
        "uma_gpu_instance_memory_free_bytes",
        &["compute_instance", "gpu", "gpu_instance"],
        "Memory of a part of the GPU (MIG) that is free.",
    ),
    Metric::counter(
        Source::Gpu,
        "uma_gpu_uncorrected_errors_total",
        &["gpu"],
        "Memory errors of the GPU that could not be corrected, since the driver was loaded.",
    ),
    Metric::gauge(
        Source::Gpu,
        "uma_gpu_repair_pending",
        &["gpu"],
        "1 if memory of the GPU is put out of use (retired pages, remapped rows) when the GPU is \
         next reset.",
    )
    .flag(),
    Metric::gauge(
        Source::Gpu,
        "uma_gpu_repair_failed",
        &["gpu"],
        "1 if rows of the GPU's memory could not be remapped: the GPU is to be replaced.",
    )
    .flag(),
    Metric::gauge(
        Source::Gpu,
        "uma_gpu_recovery_action",
        &["action", "gpu"],
        "1 for what the driver wants done so that the GPU can go on (Xid 154).",
    )
    .closed(&[("action", &RECOVERIES)])
    .flag(),
];
