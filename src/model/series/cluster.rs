//! What is known of other nodes.

use super::super::{Refusal, Source};
use super::{Metric, MetricKind};

const REFUSALS: [&str; Refusal::ALL.len()] = names!(Refusal);

/// This area's metrics.
pub(super) const METRICS: &[Metric] = &[
    Metric::new(
        MetricKind::Info,
        Source::Daemon,
        "uma_kernel_info",
        &["machine", "release"],
        "Which kernel runs here, and for which machine (uname -r and -m).",
    )
    .flag(),
    Metric::gauge(
        Source::Daemon,
        "uma_cluster_peer_up",
        &["peer"],
        "1 while what the other node of the cluster said last is known, 0 once it has not answered \
         for three questions: then what it would say is unknown, and not absent.",
    )
    .flag(),
    Metric::gauge(
        Source::Daemon,
        "uma_cluster_peer_last_answer_age_seconds",
        &["peer"],
        "How long ago the other node has answered; missing where it never has.",
    ),
    Metric::gauge(
        Source::Daemon,
        "uma_cluster_peer_duration_seconds",
        &["peer"],
        "How long asking the other node took last.",
    ),
    Metric::gauge(
        Source::Daemon,
        "uma_cluster_peer_series",
        &["peer"],
        "Series of the other node that are kept, those that rules with scope cluster read.",
    ),
    Metric::counter(
        Source::Daemon,
        "uma_cluster_peer_failures_total",
        &["peer"],
        "Questions that the other node has not answered as it should.",
    ),
    Metric::counter(
        Source::Daemon,
        "uma_cluster_refused_series_total",
        &["reason"],
        "Series that other nodes told and that were not believed or not kept: impossible (a value \
         that the series cannot have), twice (in one answer), too_many (150 are kept of a node), \
         too_long (labels of more than 256 bytes).",
    )
    .closed(&[("reason", &REFUSALS)]),
];
