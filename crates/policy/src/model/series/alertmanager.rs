//! Alerts that others have found, and those that are sent to others.

use super::super::{ALERTS, ReceivedIgnored, ReceivedTurn, Source};
use super::Metric;

/// This area's metrics.
pub(super) const METRICS: &[Metric] = &[
    Metric::gauge(
        Source::Alertmanager,
        ALERTS,
        &["alertname", "alertstate"],
        "1 for each firing alert that an Alertmanager has posted, with all labels of the alert. \
         Rules read it. It is not on /metrics, where a Prometheus would take it for its own \
         series.",
    )
    .closed(&[("alertstate", &["firing"])])
    .flag()
    .of_others(),
    Metric::gauge(
        Source::Daemon,
        "uma_received_alerts",
        &[],
        "Firing alerts that an Alertmanager has posted.",
    ),
    Metric::counter(
        Source::Daemon,
        "uma_received_alert_turns_total",
        &["to"],
        "State changes of received alerts: firing (it began), resolved, forgotten (it was not \
         repeated within alertmanager.receive.forget_after, or its endsAt has passed).",
    )
    .closed(&[("to", &ReceivedTurn::NAMES)])
    .hides_zero(),
    Metric::counter(
        Source::Daemon,
        "uma_received_alerts_ignored_total",
        &["reason"],
        "Posted alerts that changed nothing: repeated (known already), outdated (a newer state is \
         known), too_many (no more firing alerts can be kept). Beyond that limit, rules that read \
         ALERTS are unknown until fewer alerts fire.",
    )
    .closed(&[("reason", &ReceivedIgnored::NAMES)])
    .hides_zero(),
    Metric::counter(
        Source::Daemon,
        "uma_received_posts_total",
        &[],
        "Posts of alerts that were accepted.",
    )
    .hides_zero(),
    Metric::gauge(
        Source::Daemon,
        "uma_received_last_post_timestamp_seconds",
        &[],
        "Time of the last accepted post of alerts, in seconds since 1970; missing before the \
         first.",
    ),
    Metric::counter(
        Source::Daemon,
        "uma_received_labels_left_out_total",
        &[],
        "Labels of received alerts that were dropped: a name that no rule can write, a text that \
         is too long, or too many labels.",
    )
    .hides_zero(),
    Metric::counter(
        Source::Daemon,
        "uma_received_alerts_truncated_total",
        &[],
        "Alerts that the Alertmanager itself has left out of its posts (max_alerts).",
    )
    .hides_zero(),
    Metric::counter(
        Source::Alertmanager,
        "uma_received_posts_refused_total",
        &["reason"],
        "Posts that were rejected as a whole: malformed, too_large, busy (503; the Alertmanager \
         posts again).",
    )
    .closed(&[("reason", &["malformed", "too_large", "busy"])])
    .hides_zero(),
    Metric::gauge(
        Source::Alertmanager,
        "uma_alertmanager_alerts",
        &["state"],
        "Alerts of this node that are sent to Alertmanagers: firing, or resolved in the last 15 \
         minutes.",
    )
    .closed(&[("state", &["firing", "resolved"])]),
    Metric::gauge(
        Source::Alertmanager,
        "uma_alertmanager_alerts_left_out",
        &[],
        "Firing alerts of this node that are not sent to Alertmanagers, because there are too \
         many.",
    ),
    Metric::counter(
        Source::Alertmanager,
        "uma_alertmanager_decisions_left_out_total",
        &[],
        "Decisions that were not sent to Alertmanagers, because there were too many at once.",
    ),
    Metric::gauge(
        Source::Alertmanager,
        "uma_alertmanager_up",
        &["alertmanager"],
        "1 if the Alertmanager accepted the last post; missing before the first.",
    )
    .flag(),
    Metric::counter(
        Source::Alertmanager,
        "uma_alertmanager_sent_alerts_total",
        &["alertmanager"],
        "Alerts that the Alertmanager has accepted, repetitions included.",
    ),
    Metric::counter(
        Source::Alertmanager,
        "uma_alertmanager_posts_failed_total",
        &["alertmanager"],
        "Posts that the Alertmanager did not accept, or not in time.",
    ),
    Metric::gauge(
        Source::Alertmanager,
        "uma_alertmanager_last_success_timestamp_seconds",
        &["alertmanager"],
        "Time of the last post that the Alertmanager accepted, in seconds since 1970; missing \
         before the first.",
    ),
    Metric::gauge(
        Source::Alertmanager,
        "uma_alertmanager_post_duration_seconds",
        &["alertmanager"],
        "Duration of the last post to the Alertmanager, with or without a response.",
    ),
];
