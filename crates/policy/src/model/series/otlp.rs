//! Series about the exported telemetry.

use super::super::{ExportResult, Signal, Source};
use super::Metric;

/// This area's metrics.
pub(super) const METRICS: &[Metric] = &[
    Metric::counter(
        Source::Daemon,
        "uma_otlp_exports_total",
        &["result", "signal"],
        "Requests to the collector of otlp.endpoint: success, partial (it accepted only a part), \
         refused, busy (it requested a pause), unreachable (no response).",
    )
    .closed(&[("result", &ExportResult::NAMES), ("signal", &Signal::NAMES)]),
    Metric::counter(
        Source::Daemon,
        "uma_otlp_dropped_total",
        &["signal"],
        "Metric points and trace spans that were dropped: refused, or too many while the collector \
         was unavailable.",
    )
    .closed(&[("signal", &Signal::NAMES)]),
    Metric::gauge(
        Source::Daemon,
        "uma_otlp_last_success_timestamp_seconds",
        &["signal"],
        "Time when the collector last accepted data, in seconds since 1970; missing before that.",
    )
    .closed(&[("signal", &Signal::NAMES)]),
    Metric::gauge(
        Source::Daemon,
        "uma_otlp_waiting_spans",
        &[],
        "Spans of traces that wait to be sent.",
    ),
];
