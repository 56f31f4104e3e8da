//! Series about what is sent to Kubernetes.

use super::super::Source;
use super::Metric;

/// This area's metrics.
pub(super) const METRICS: &[Metric] = &[
    Metric::counter(
        Source::Daemon,
        "uma_kubernetes_requests_total",
        &["result"],
        "Requests for conditions, Events and the extended resource to the API server of \
         Kubernetes: success, error (refused, or no response).",
    )
    .closed(&[("result", &["error", "success"])]),
    Metric::counter(
        Source::Daemon,
        "uma_kubernetes_events_dropped_total",
        &[],
        "Kubernetes Events that were not written, since there were too many about one object or \
         too many waited.",
    ),
    Metric::gauge(
        Source::Daemon,
        "uma_kubernetes_last_success_timestamp_seconds",
        &[],
        "Time when the API server last carried out a request, in seconds since 1970; 0 before \
         that.",
    ),
];
