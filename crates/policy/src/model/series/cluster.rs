//! Series about other nodes.

use super::super::{FleetAction, Rejection, Source};
use super::{Metric, MetricKind};

/// This area's metrics.
pub(super) const METRICS: &[Metric] = &[
    Metric::new(
        MetricKind::Info,
        Source::Daemon,
        "uma_kernel_info",
        &["machine", "release"],
        "Release and machine of the running kernel (uname -r and -m).",
    )
    .flag(),
    Metric::gauge(
        Source::Daemon,
        "uma_cluster_peer_up",
        &["peer"],
        "1 while the last answer of the peer counts as known, 0 once it is older than three polls, \
         and at least 5 s. At 0, the series of the peer are unknown, not absent.",
    )
    .flag(),
    Metric::gauge(
        Source::Daemon,
        "uma_cluster_peer_last_answer_age_seconds",
        &["peer"],
        "Age of the last answer of the peer; missing if the peer has never answered.",
    ),
    Metric::gauge(
        Source::Daemon,
        "uma_cluster_peer_duration_seconds",
        &["peer"],
        "Duration of the last poll of the peer.",
    ),
    Metric::gauge(
        Source::Daemon,
        "uma_cluster_peer_series",
        &["peer"],
        "Series of the peer that are kept: those that rules with scope cluster read.",
    ),
    Metric::counter(
        Source::Daemon,
        "uma_cluster_peer_failures_total",
        &["peer"],
        "Polls that the peer did not answer, or not as expected.",
    ),
    Metric::gauge(
        Source::Daemon,
        "uma_fleet_claim_timestamp_seconds",
        &["action"],
        "Since when this node waits for its turn to do the action, in seconds since 1970; 0 if it \
         does not. Other nodes read it for guard_rails.fleet. Missing outside of a cluster.",
    )
    .closed(&[("action", &FleetAction::NAMES)]),
    Metric::gauge(
        Source::Daemon,
        "uma_fleet_act_age_seconds",
        &["action"],
        "Time since a remedy of this node last did the action; missing after a day, and outside of \
         a cluster. Other nodes read it for guard_rails.fleet.",
    )
    .closed(&[("action", &FleetAction::NAMES)]),
    Metric::counter(
        Source::Daemon,
        "uma_cluster_refused_series_total",
        &["reason"],
        "Series of peers that were rejected: impossible (the series cannot have the value), twice \
         (in one answer), too_many, too_long. At most 150 series of a node are kept; labels have \
         at most 256 bytes.",
    )
    .closed(&[("reason", &Rejection::NAMES)]),
];
