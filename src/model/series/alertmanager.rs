//! Alerts that others have found, and those that are sent to others.

use super::super::{ALERTS, ReceivedIgnored, ReceivedTurn, Source};
use super::Metric;

const TURNS: [&str; ReceivedTurn::ALL.len()] = names!(ReceivedTurn);
const IGNORED: [&str; ReceivedIgnored::ALL.len()] = names!(ReceivedIgnored);

/// This area's metrics.
pub(super) const METRICS: &[Metric] = &[
    Metric::gauge(
        Source::Alertmanager,
        ALERTS,
        &["alertname", "alertstate"],
        "1 for each alert that an Alertmanager has posted and that fires, with all of its labels. \
         Rules read it; it is not on /metrics, where a Prometheus would take it for its own.",
    )
    .closed(&[("alertstate", &["firing"])])
    .flag()
    .of_others(),
    Metric::gauge(
        Source::Daemon,
        "uma_received_alerts",
        &[],
        "Alerts that an Alertmanager has posted and that fire.",
    ),
    Metric::counter(
        Source::Daemon,
        "uma_received_alert_turns_total",
        &["to"],
        "What has become of received alerts: firing (it began), resolved, forgotten (nobody has \
         repeated it for alertmanager.receive.forget_after, or its endsAt has passed).",
    )
    .closed(&[("to", &TURNS)]),
    Metric::counter(
        Source::Daemon,
        "uma_received_alerts_ignored_total",
        &["reason"],
        "Alerts in posts that changed nothing: repeated (it was known), outdated (something newer \
         is known of it), too_many (as many fire as can be kept: rules that read ALERTS are \
         unknown until fewer do).",
    )
    .closed(&[("reason", &IGNORED)]),
    Metric::counter(
        Source::Daemon,
        "uma_received_posts_total",
        &[],
        "Posts of alerts that were taken in.",
    ),
    Metric::gauge(
        Source::Daemon,
        "uma_received_last_post_timestamp_seconds",
        &[],
        "When alerts were posted last; missing while nobody has.",
    ),
    Metric::counter(
        Source::Daemon,
        "uma_received_labels_left_out_total",
        &[],
        "Labels of received alerts that were left out: names that no rule can write, texts that \
         are too long, too many of them.",
    ),
    Metric::counter(
        Source::Daemon,
        "uma_received_alerts_truncated_total",
        &[],
        "Alerts that the Alertmanager itself has left out of its posts (max_alerts).",
    ),
    Metric::counter(
        Source::Alertmanager,
        "uma_received_posts_refused_total",
        &["reason"],
        "Posts of which nothing was taken: malformed, too_large, busy (503; the Alertmanager posts \
         again).",
    )
    .closed(&[("reason", &["malformed", "too_large", "busy"])]),
    Metric::gauge(
        Source::Alertmanager,
        "uma_alertmanager_alerts",
        &["state"],
        "Alerts of this node that Alertmanagers are told of: firing, or resolved in the last 15 \
         minutes.",
    )
    .closed(&[("state", &["firing", "resolved"])]),
    Metric::gauge(
        Source::Alertmanager,
        "uma_alertmanager_alerts_left_out",
        &[],
        "Alerts of this node that fire and that Alertmanagers are not told of, since there are too \
         many.",
    ),
    Metric::counter(
        Source::Alertmanager,
        "uma_alertmanager_decisions_left_out_total",
        &[],
        "Decisions that Alertmanagers were not told of, since there were too many at once.",
    ),
    Metric::gauge(
        Source::Alertmanager,
        "uma_alertmanager_up",
        &["alertmanager"],
        "1 if the Alertmanager took what it was told last; missing before.",
    )
    .flag(),
    Metric::counter(
        Source::Alertmanager,
        "uma_alertmanager_sent_alerts_total",
        &["alertmanager"],
        "Alerts that the Alertmanager has taken, repetitions included.",
    ),
    Metric::counter(
        Source::Alertmanager,
        "uma_alertmanager_posts_failed_total",
        &["alertmanager"],
        "Posts that the Alertmanager did not take, or not in time.",
    ),
    Metric::gauge(
        Source::Alertmanager,
        "uma_alertmanager_last_success_timestamp_seconds",
        &["alertmanager"],
        "When the Alertmanager last took all that it was told.",
    ),
    Metric::gauge(
        Source::Alertmanager,
        "uma_alertmanager_post_duration_seconds",
        &["alertmanager"],
        "How long the last post to the Alertmanager took, with its answer or without.",
    ),
];
