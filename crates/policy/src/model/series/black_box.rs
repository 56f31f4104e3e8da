//! The black box, and what it knows of the boot before.

use super::super::Source;
use super::Metric;

/// This area's metrics.
pub(super) const METRICS: &[Metric] = &[
    Metric::counter(
        Source::BlackBox,
        "uma_black_box_records_total",
        &[],
        "Records written to the black box, one a second.",
    ),
    Metric::counter(
        Source::BlackBox,
        "uma_black_box_missed_records_total",
        &[],
        "Seconds without a record, because the disk or the machine was too slow.",
    ),
    Metric::counter(
        Source::BlackBox,
        "uma_black_box_write_errors_total",
        &[],
        "Failed attempts to open the black box or to write a record.",
    ),
    Metric::gauge(
        Source::BlackBox,
        "uma_black_box_write_duration_seconds",
        &[],
        "Duration of the last write, until the record was on disk.",
    ),
    Metric::gauge(
        Source::BlackBox,
        "uma_black_box_locked_in_memory",
        &[],
        "1 if the memory of umawarden is locked, so that umawarden keeps running when memory is \
         short.",
    )
    .flag(),
    Metric::counter(
        Source::BlackBox,
        "uma_unclean_boots_total",
        &[],
        "Boots of this node that did not end in order, as far as the black box knows. The count \
         continues over restarts and reboots.",
    ),
    Metric::gauge(
        Source::BlackBox,
        "uma_last_boot_clean",
        &[],
        "1 if the boot before this one ended in order, 0 if its records end abruptly; missing \
         where this is unknown.",
    )
    .flag(),
    Metric::gauge(
        Source::BlackBox,
        "uma_last_boot_last_record_timestamp_seconds",
        &[],
        "Time of the last black-box record of the boot before, in seconds since 1970.",
    ),
    Metric::gauge(
        Source::BlackBox,
        "uma_last_boot_memory_bytes",
        &["kind"],
        "Memory in the last black-box record of the boot before.",
    )
    .closed(&[("kind", &["total", "free", "available", "page_cache", "unaccounted"])])
    .signed(),
    Metric::gauge(
        Source::BlackBox,
        "uma_last_boot_pressure_ratio",
        &["resource", "share"],
        "Share of the 10 s before the last record of the boot before in which some or all tasks \
         waited for a resource.",
    )
    .closed(&[("resource", &["io", "memory"]), ("share", &["some", "full"])])
    .share(),
];
