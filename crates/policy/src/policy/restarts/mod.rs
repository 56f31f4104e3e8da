//! Starts again what has died, when there is memory for it: one engine at a time, later after each
//! death in a row, so many times in a while, and after so many deaths in the same phase only when
//! a person says so.
//!
//! Each of them is to the guard rails what a remedy is, of the rule `restarts/NAME`: a pause, a
//! silence, a maintenance window and the budget of all actions hold it, and its breaker is reset as
//! any other. So what was done comes back from the journal as for remedies.

mod death;
mod life;
mod memory;
mod restart;
mod series;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use promql_rules::store::SeriesStore;

use super::Context;
use super::counters::Counters;
use super::guard::Guard;
use crate::model::{
    EarlierRuns, EngineSeen, Event, Mode, Moment, Outcome, PastAct, PastRanks, RestartReadings,
    RestartState, RestartStatus, RuleId, Supervisor, seconds_text,
};
use restart::Restart;

/// The group of the rules that represent deferred restarts.
pub const GROUP: &str = "restarts";

/// A report of a supervisor is current for this time.
const OBSERVED_WITHIN: Duration = Duration::from_secs(15);

/// At most so many are tracked.
const MOST_HELD: usize = 128;

/// The last poll of a supervisor.
#[derive(Clone, Debug)]
struct SupervisorReading {
    read_at: Duration,
    error: Option<Arc<str>>,
}

/// The deferred restarts.
#[derive(Debug, Default)]
pub(super) struct Restarts {
    restarts: BTreeMap<Arc<str>, Restart>,
    readings: BTreeMap<Supervisor, SupervisorReading>,
    /// Acts of earlier runs, until their workloads are seen.
    acts: BTreeMap<Arc<str>, PastAct>,
    /// The last states from earlier runs.
    earlier_states: BTreeMap<Arc<str>, RestartState>,
    /// The ranks that earlier runs knew.
    earlier_ranks: BTreeMap<Arc<str>, PastRanks>,
    statuses: Arc<[RestartStatus]>,
    has_changed: bool,
}

impl Restarts {
    /// Takes the report of a supervisor.
    pub(super) fn observe(
        &mut self,
        (at, started): (Moment, Moment),
        readings: &RestartReadings,
        (counters, store): (&mut Counters, &mut SeriesStore),
    ) {
        let supervisor = readings.supervisor;
        let known = self.readings.get(&supervisor);
        if known.is_some_and(|known| known.read_at > readings.read_at) {
            return;
        }
        let reading =
            SupervisorReading { read_at: readings.read_at, error: readings.error.clone() };
        self.readings.insert(supervisor, reading);
        self.has_changed = true;
        if readings.error.is_some() {
            return;
        }
        let is_reported =
            |name: &Arc<str>| readings.deferred.iter().any(|seen| seen.target.name == *name);
        self.restarts.retain(|name, restart| {
            let is_kept = restart.supervisor() != supervisor || is_reported(name);
            if !is_kept {
                restart.retire(counters);
            }
            is_kept
        });
        for seen in &readings.deferred {
            let name = &seen.target.name;
            let is_full = self.restarts.len() >= MOST_HELD;
            match self.restarts.get_mut(name) {
                // Names are unique: the first one counts.
                Some(restart) if restart.supervisor() != supervisor => {}
                Some(restart) => restart.observe(at, readings.read_at, seen),
                None if is_full => {}
                None => {
                    let mut restart =
                        Restart::new((at, started), readings.read_at, seen, counters, store);
                    // Once: a workload that returns after it was removed is another one.
                    restart.remember(
                        self.acts.remove(name).as_ref(),
                        self.earlier_states.remove(name),
                        self.earlier_ranks.remove(name),
                    );
                    self.restarts.insert(Arc::clone(name), restart);
                }
            }
        }
    }

    /// Restores the acts of earlier runs.
    pub(super) fn restore(&mut self, past: &EarlierRuns) {
        for act in past.acts.iter().filter(|act| is_ours(&act.rule)) {
            self.acts.insert(Arc::clone(&act.rule.alert), act.clone());
        }
        self.earlier_states.clone_from(&past.restart_states);
        self.earlier_ranks.clone_from(&past.restart_ranks);
        for (name, restart) in &mut self.restarts {
            let (act, state) = (self.acts.remove(name), self.earlier_states.remove(name));
            restart.remember(act.as_ref(), state, self.earlier_ranks.remove(name));
        }
        self.has_changed = true;
    }

    /// Takes the outcome of a start.
    pub(super) fn observe_outcome(&mut self, outcome: &Outcome) {
        for restart in self.restarts.values_mut() {
            self.has_changed |= restart.observe_outcome(outcome);
        }
    }

    /// Tracks their states, and decides which to start.
    pub(super) fn step(&mut self, context: &mut Context<'_>, events: &mut Vec<Event>) {
        let mut order: Vec<(Duration, Arc<str>)> = Vec::with_capacity(self.restarts.len());
        for (name, restart) in &mut self.restarts {
            let doubt = doubt(self.readings.get(&restart.supervisor()), context.at);
            self.has_changed |= restart.track(doubt, context, events);
            restart.report_deaths(context, events);
            order.push((restart.ended_since(), Arc::clone(name)));
        }
        // The longest wait comes first.
        order.sort();
        for (_, name) in order {
            let occupant = self.occupant(&name, context);
            let Some(restart) = self.restarts.get_mut(&name) else { continue };
            self.has_changed |= restart.decide(occupant, context, events);
        }
        for restart in self.restarts.values() {
            restart.publish(context);
        }
    }

    /// The workload that is starting and excludes others.
    fn occupant(&self, name: &str, context: &Context<'_>) -> Option<Arc<str>> {
        let own = self.restarts.get(name)?;
        let is_other = |restart: &Restart| !restart.is_rank_with(own);
        let others = self.restarts.iter().filter(|(other, _)| ***other != *name);
        let others = others.filter(|(_, restart)| is_other(restart));
        let mut starting = others.filter(|(_, restart)| restart.is_starting(context.at));
        if let Some((other, _)) = starting.next() {
            return Some(Arc::clone(other));
        }
        context.engines.other_loading(own.target(), own.ranks())
    }

    /// Whether that engine runs in a deferred restart, so that its death is reported here.
    pub(super) fn hold(&self, engine: &EngineSeen) -> bool {
        self.of(engine).is_some()
    }

    /// The mode in which that engine is started again, if it is; `None` also where its supervisor
    /// does not report.
    pub(super) fn mode_of(
        &self,
        engine: &EngineSeen,
        (mode, guard): (Mode, &Guard),
        at: Moment,
    ) -> Option<Mode> {
        let restart = self.of(engine)?;
        self.is_observed(restart.supervisor(), at).then(|| restart.mode(mode, guard))
    }

    fn of(&self, engine: &EngineSeen) -> Option<&Restart> {
        let mut its = self.restarts.values().filter(|restart| restart.target().runs(engine));
        its.find(|restart| !restart.is_left_to_others())
    }

    /// Whether that supervisor reports at present.
    pub(super) fn is_observed(&self, supervisor: Supervisor, at: Moment) -> bool {
        let reading = self.readings.get(&supervisor).filter(|reading| reading.error.is_none());
        reading.is_some_and(|reading| at.uptime.saturating_sub(reading.read_at) <= OBSERVED_WITHIN)
    }

    /// A picture of all, by name; the same `Arc` while nothing changes.
    pub(super) fn statuses(&mut self) -> Arc<[RestartStatus]> {
        if std::mem::take(&mut self.has_changed) {
            self.statuses = self.restarts.values().map(Restart::status).collect();
        }
        Arc::clone(&self.statuses)
    }
}

/// Why it is unknown how those of a supervisor fare.
fn doubt(reading: Option<&SupervisorReading>, at: Moment) -> Option<Arc<str>> {
    let Some(reading) = reading else { return Some("it was not reported yet".into()) };
    if let Some(error) = &reading.error {
        return Some(Arc::clone(error));
    }
    let ago = at.uptime.saturating_sub(reading.read_at);
    (ago > OBSERVED_WITHIN).then(|| format!("it was not reported for {}", seconds_text(ago)).into())
}

/// Whether that rule represents a deferred restart.
pub(super) fn is_ours(rule: &RuleId) -> bool {
    &*rule.group == GROUP
}

/// The rule that represents it.
pub fn rule(name: &Arc<str>) -> RuleId {
    RuleId { group: Arc::from(GROUP), alert: Arc::clone(name) }
}
