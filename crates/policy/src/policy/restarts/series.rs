//! What is exported of what is started again, and read by rules.

use std::time::Duration;

use promql_rules::store::SeriesStore;

use crate::model::{RestartState, SeriesKey, Workload};
use crate::policy::counters::{Cell, Counters};

/// What came of a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Came {
    /// It has become ready.
    Ready,
    /// It has died before.
    Died,
    /// It could not be started.
    Failed,
}

const OUTCOMES: [(Came, &str); 3] =
    [(Came::Ready, "ready"), (Came::Died, "died"), (Came::Failed, "failed")];

/// The series of one of them.
#[derive(Debug)]
pub(super) struct RestartCells {
    states: [Cell; RestartState::ALL.len()],
    outcomes: [Cell; OUTCOMES.len()],
    deaths: Cell,
    waiting: Cell,
}

impl RestartCells {
    pub(super) fn new(target: &Workload, counters: &mut Counters, store: &mut SeriesStore) -> Self {
        let mut cell = |name: &str, labels: &[(&str, &str)]| {
            let mut all = vec![("engine", &*target.name)];
            all.extend(labels);
            counters.cell(store, &SeriesKey::new(name, &all))
        };
        Self {
            states: RestartState::ALL
                .map(|state| cell("uma_restart_state", &[("state", state.name())])),
            outcomes: OUTCOMES.map(|(_, name)| cell("uma_restarts_total", &[("outcome", name)])),
            deaths: cell("uma_restart_deaths_in_a_row", &[]),
            waiting: cell("uma_restart_waiting_seconds", &[]),
        }
    }

    pub(super) fn count(&self, came: Came, counters: &mut Counters) {
        let place = OUTCOMES.iter().position(|(known, _)| *known == came);
        if let Some(cell) = place.and_then(|place| self.outcomes.get(place)) {
            counters.add(*cell, 1.0);
        }
    }

    pub(super) fn publish(
        &self,
        current: RestartState,
        deaths: u32,
        waits: Duration,
        counters: &mut Counters,
    ) {
        for (cell, state) in self.states.iter().zip(RestartState::ALL) {
            counters.set(*cell, f64::from(state == current));
        }
        counters.set(self.deaths, f64::from(deaths));
        counters.set(self.waiting, waits.as_secs_f64());
    }

    /// It is no longer there; how often it was started is known on.
    pub(super) fn retire(&self, counters: &mut Counters) {
        let gauges = self.states.iter().chain([&self.deaths, &self.waiting]);
        gauges.for_each(|cell| counters.retire(*cell));
    }
}
