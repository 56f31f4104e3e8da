//! What is started again when there is memory for it.

use super::super::{RestartState, Source};
use super::Metric;

/// This area's metrics.
pub(super) const METRICS: &[Metric] = &[
    Metric::gauge(
        Source::Daemon,
        "uma_restart_state",
        &["engine", "state"],
        "1 for the state of the container or unit: starting, running, waiting (for memory, \
         back-off or its turn), stopped (on request, or never started). Also given_up (too many \
         deaths), not_ours (its supervisor restarts it, or its settings are invalid), unknown (no \
         usable report of its supervisor). It is restarted when there is memory for it.",
    )
    .closed(&[("state", &RestartState::NAMES)])
    .flag(),
    Metric::counter(
        Source::Daemon,
        "uma_restarts_total",
        &["engine", "outcome"],
        "Starts of the container or unit after a death, by outcome: ready, died (before it was \
         ready), failed (it could not be started).",
    )
    .closed(&[("outcome", &["ready", "died", "failed"])]),
    Metric::gauge(
        Source::Daemon,
        "uma_restart_deaths_in_a_row",
        &["engine"],
        "Deaths in a row of the container or unit in the same phase after starts by umawarden; 0 \
         once ready for its healthy_after.",
    ),
    Metric::gauge(
        Source::Daemon,
        "uma_restart_waiting_seconds",
        &["engine"],
        "Time for which the container or unit has been down and has waited for its start; 0 while \
         it does not wait.",
    ),
];
