//! Series of GPUs, as the NVIDIA driver reports them.

use super::super::{GpuRecovery, Source};
use super::{Metric, MetricKind};

/// This area's metrics.
pub(super) const METRICS: &[Metric] = &[
    Metric::gauge(
        Source::Gpu,
        "uma_gpu_driver_responsive",
        &[],
        "1 if the NVIDIA driver responds (an error is a response), 0 while a response is overdue. \
         Missing where there is no driver, and where its state is unknown.",
    )
    .flag(),
    Metric::gauge(
        Source::Gpu,
        "uma_gpu_last_answer_age_seconds",
        &[],
        "Time since the last response of the NVIDIA driver.",
    ),
    Metric::counter(
        Source::Gpu,
        "uma_gpu_child_restarts_total",
        &[],
        "Restarts of the process that queries the NVIDIA driver. It had ended by itself, or was \
         killed because it hung outside of the kernel.",
    ),
    Metric::counter(
        Source::Gpu,
        "uma_gpu_child_abandoned_total",
        &[],
        "Processes that queried the NVIDIA driver and were abandoned, because they hang in the \
         kernel.",
    ),
    Metric::gauge(
        Source::Gpu,
        "uma_gpu_children_hanging",
        &[],
        "Abandoned processes that still hang in the kernel; beyond 3, no further process is \
         started.",
    ),
    Metric::new(
        MetricKind::Info,
        Source::Gpu,
        "uma_gpu_info",
        &["compute_mode", "driver_version", "gpu", "name", "nvml_version", "pci_address", "uuid"],
        "Identity of the GPU, and the versions of its driver; a label is unknown where the driver \
         does not report it.",
    )
    .flag(),
    Metric::gauge(
        Source::Gpu,
        "uma_gpu_memory_total_bytes",
        &["gpu"],
        "Memory of the GPU itself; missing where the GPU shares the machine's memory, as on GB10.",
    ),
    Metric::gauge(
        Source::Gpu,
        "uma_gpu_memory_used_bytes",
        &["gpu"],
        "Used memory of the GPU itself, without the driver's own reserve.",
    ),
    Metric::gauge(
        Source::Gpu,
        "uma_gpu_memory_free_bytes",
        &["gpu"],
        "Free memory of the GPU itself.",
    ),
    Metric::gauge(
        Source::Gpu,
        "uma_gpu_memory_unowned_bytes",
        &["gpu"],
        "Used memory of the GPU itself that the driver attributes to no process; a context uses \
         some. Missing with MIG, and on Grace Hopper and Grace Blackwell, where memory may stay \
         counted after its process. It causes no reboot.",
    ),
    Metric::gauge(
        Source::Gpu,
        "uma_gpu_engine_memory_bytes",
        &["engine", "gpu"],
        "Memory that the driver has allocated on the GPU for the engine's processes. On GB10 this \
         is the machine's memory, and is in no process' RSS.",
    ),
    Metric::gauge(
        Source::Gpu,
        "uma_gpu_other_memory_bytes",
        &["gpu"],
        "Memory that the driver has allocated on the GPU for processes of no engine.",
    ),
    Metric::gauge(
        Source::Gpu,
        "uma_gpu_orphan_memory_bytes",
        &["gpu"],
        "Part of uma_gpu_engine_memory_bytes that processes have which outlive their engine's \
         server (uma_engine_orphans).",
    )
    .hides_zero(),
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
        "Share of the driver's last sample period in which the GPU computed.",
    )
    .share(),
    Metric::gauge(
        Source::Gpu,
        "uma_gpu_memory_utilization_ratio",
        &["gpu"],
        "Share of the driver's last sample period in which memory of the GPU itself was read or \
         written.",
    )
    .share(),
    Metric::gauge(Source::Gpu, "uma_gpu_temperature_celsius", &["gpu"], "Temperature of the GPU.")
        .signed(),
    Metric::gauge(Source::Gpu, "uma_gpu_power_watts", &["gpu"], "Power that the GPU takes."),
    Metric::gauge(
        Source::Gpu,
        "uma_gpu_mig_enabled",
        &["gpu"],
        "1 if the GPU is partitioned into instances (MIG).",
    )
    .flag(),
    Metric::gauge(
        Source::Gpu,
        "uma_gpu_instance_memory_total_bytes",
        &["compute_instance", "gpu", "gpu_instance"],
        "Memory of an instance of the GPU (MIG).",
    ),
    Metric::gauge(
        Source::Gpu,
        "uma_gpu_instance_memory_used_bytes",
        &["compute_instance", "gpu", "gpu_instance"],
        "Used memory of an instance of the GPU (MIG).",
    ),
    Metric::gauge(
        Source::Gpu,
        "uma_gpu_instance_memory_free_bytes",
        &["compute_instance", "gpu", "gpu_instance"],
        "Free memory of an instance of the GPU (MIG).",
    ),
    Metric::counter(
        Source::Gpu,
        "uma_gpu_uncorrected_errors_total",
        &["gpu"],
        "Uncorrected memory errors of the GPU since the driver was loaded.",
    ),
    Metric::gauge(
        Source::Gpu,
        "uma_gpu_repair_pending",
        &["gpu"],
        "1 if the next reset of the GPU takes some of its memory out of use (retired pages, \
         remapped rows).",
    )
    .flag(),
    Metric::gauge(
        Source::Gpu,
        "uma_gpu_repair_failed",
        &["gpu"],
        "1 if rows of the GPU's memory could not be remapped: replace the GPU.",
    )
    .flag(),
    Metric::gauge(
        Source::Gpu,
        "uma_gpu_recovery_action",
        &["action", "gpu"],
        "1 for the action that the driver requires before the GPU can continue (Xid 154).",
    )
    .closed(&[("action", &GpuRecovery::NAMES)])
    .flag()
    .hides_zero(),
];
