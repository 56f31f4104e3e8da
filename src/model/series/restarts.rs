//! What is started again when there is memory for it.

use super::super::{RestartState, Source};
use super::Metric;

const STATES: [&str; RestartState::ALL.len()] = names!(RestartState);

/// This area's metrics.
pub(super) const METRICS: &[Metric] = &[
    Metric::gauge(
        Source::Daemon,
        "uma_restart_state",
        &["engine", "state"],
        "1 for where the container or unit stands that is started again when there is memory for \
         it: starting, running, waiting (for memory, its back-off or its turn), stopped (somebody \
         wanted that), given_up (it died too often), not_ours (its supervisor starts it itself), \
         unknown (its supervisor does not tell).",
    )
    .closed(&[("state", &STATES)])
    .flag(),
    Metric::counter(
        Source::Daemon,
        "uma_restarts_total",
        &["engine", "outcome"],
        "Starts of the container or unit after a death, by what came of them: it became ready, \
         died before, or could not be started.",
    )
    .closed(&[("outcome", &["ready", "died", "failed"])]),
    Metric::gauge(
        Source::Daemon,
        "uma_restart_deaths_in_a_row",
        &["engine"],
        "Deaths of the container or unit in a row in the same phase after such starts; 0 once it \
         has been ready for its healthy_after.",
    ),
    Metric::gauge(
        Source::Daemon,
        "uma_restart_waiting_seconds",
        &["engine"],
        "How long the container or unit has been down and waits to be started; 0 while it does \
         not wait.",
    ),
];
