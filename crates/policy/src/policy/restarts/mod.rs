//! Starts again what has died, when there is memory for it: one engine at a time, later after each
//! death in a row, so many times in a while, and after so many deaths in the same phase only when
//! a person says so.
//!
//! Each of them is to the guard rails what a remedy is, of the rule `restarts/NAME`: a pause, a
//! silence, a maintenance window and the budget of all actions hold it, and its breaker is reset as
//! any other. So what was done comes back from the journal as for remedies.

mod course;
mod death;
mod life;
mod room;
mod series;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use promql_rules::store::SeriesStore;

use super::Surroundings;
use super::counters::Counters;
use crate::model::{
    EngineSeen, Event, HeldReadings, HeldTarget, Moment, Outcome, Past, PastAct, RestartState,
    RestartStatus, RuleId, Supervisor,
};
use course::Course;

/// The group of the rules that stand for what is started again.
pub const GROUP: &str = "restarts";

/// What a supervisor has told is no longer known to be so after that.
const LOOKED_WITHIN: Duration = Duration::from_secs(15);

/// More of them are not followed.
const MOST_HELD: usize = 128;

/// When a supervisor was asked last.
#[derive(Clone, Debug)]
struct Look {
    read_at: Duration,
    error: Option<Arc<str>>,
}

/// All that is started again.
#[derive(Debug, Default)]
pub(super) struct Restarts {
    courses: BTreeMap<Arc<str>, Course>,
    looks: BTreeMap<Supervisor, Look>,
    /// What earlier runs did, until those that it is about show up.
    acts: BTreeMap<Arc<str>, PastAct>,
    /// Where each stood, as earlier runs saw it.
    stood: BTreeMap<Arc<str>, RestartState>,
    statuses: Arc<[RestartStatus]>,
    has_changed: bool,
}

impl Restarts {
    /// A supervisor has told.
    pub(super) fn look(
        &mut self,
        (at, started): (Moment, Moment),
        readings: &HeldReadings,
        (counters, store): (&mut Counters, &mut SeriesStore),
    ) {
        let supervisor = readings.supervisor;
        let known = self.looks.get(&supervisor);
        if known.is_some_and(|known| known.read_at > readings.read_at) {
            return;
        }
        let look = Look { read_at: readings.read_at, error: readings.error.clone() };
        self.looks.insert(supervisor, look);
        self.has_changed = true;
        if readings.error.is_some() {
            return;
        }
        let is_told = |name: &Arc<str>| readings.held.iter().any(|seen| seen.target.name == *name);
        self.courses.retain(|name, course| {
            let is_kept = course.supervisor() != supervisor || is_told(name);
            if !is_kept {
                course.retire(counters);
            }
            is_kept
        });
        for seen in &readings.held {
            let name = &seen.target.name;
            let is_full = self.courses.len() >= MOST_HELD;
            match self.courses.get_mut(name) {
                // Of one name there is one: whoever was first.
                Some(course) if course.supervisor() != supervisor => {}
                Some(course) => course.look(at, readings.read_at, seen),
                None if is_full => {}
                None => {
                    let mut course =
                        Course::new((at, started), readings.read_at, seen, counters, store);
                    // Once: what comes back after it was gone is another one.
                    course.remember(self.acts.remove(name).as_ref(), self.stood.remove(name));
                    self.courses.insert(Arc::clone(name), course);
                }
            }
        }
    }

    /// What earlier runs did is known.
    pub(super) fn restore(&mut self, past: &Past) {
        for act in past.acts.iter().filter(|act| is_ours(&act.rule)) {
            self.acts.insert(Arc::clone(&act.rule.alert), act.clone());
        }
        self.stood.clone_from(&past.stood);
        for (name, course) in &mut self.courses {
            course.remember(self.acts.remove(name).as_ref(), self.stood.remove(name));
        }
        self.has_changed = true;
    }

    /// A start has ended.
    pub(super) fn observe_outcome(&mut self, outcome: &Outcome) {
        for course in self.courses.values_mut() {
            self.has_changed |= course.observe_outcome(outcome);
        }
    }

    /// Follows what became of them, and decides whom to start.
    pub(super) fn step(&mut self, around: &mut Surroundings<'_>, events: &mut Vec<Event>) {
        let mut order: Vec<(Duration, Arc<str>)> = Vec::with_capacity(self.courses.len());
        for (name, course) in &mut self.courses {
            let doubt = doubt(self.looks.get(&course.supervisor()), around.at);
            self.has_changed |= course.follow(doubt, around, events);
            course.tell_deaths(around, events);
            order.push((course.ended_since(), Arc::clone(name)));
        }
        // Who has waited for longest comes first.
        order.sort();
        for (_, name) in order {
            let occupant = self.occupant(&name, around);
            let Some(course) = self.courses.get_mut(&name) else { continue };
            self.has_changed |= course.decide(occupant, around, events);
        }
        for course in self.courses.values() {
            course.publish(around);
        }
    }

    /// Who is starting, so that nobody else may.
    fn occupant(&self, name: &str, around: &Surroundings<'_>) -> Option<Arc<str>> {
        let others = self.courses.iter().filter(|(other, _)| ***other != *name);
        let mut starting = others.filter(|(_, course)| course.is_starting(around.at));
        if let Some((other, _)) = starting.next() {
            return Some(Arc::clone(other));
        }
        let own = self.courses.get(name).map(Course::target)?;
        around.engines.loading_beside(own)
    }

    /// Whether that engine runs in what is started again, so that its death is told here.
    pub(super) fn hold(&self, engine: &EngineSeen) -> bool {
        let is_its = |target: &HeldTarget| match target.supervisor {
            Supervisor::Docker => engine.container.as_ref() == Some(&target.id),
            Supervisor::Systemd => engine.unit.as_ref() == Some(&target.id),
        };
        let mut its = self.courses.values().filter(|course| is_its(course.target()));
        its.any(|course| !course.is_left_to_others())
    }

    /// Whether that supervisor tells what happens.
    pub(super) fn hears_of(&self, supervisor: Supervisor, at: Moment) -> bool {
        let look = self.looks.get(&supervisor).filter(|look| look.error.is_none());
        look.is_some_and(|look| at.uptime.saturating_sub(look.read_at) <= LOOKED_WITHIN)
    }

    /// A picture of all, by name; the same `Arc` while nothing changes.
    pub(super) fn statuses(&mut self) -> Arc<[RestartStatus]> {
        if std::mem::take(&mut self.has_changed) {
            self.statuses = self.courses.values().map(Course::status).collect();
        }
        Arc::clone(&self.statuses)
    }
}

/// Why it cannot be told how those of a supervisor fare.
fn doubt(look: Option<&Look>, at: Moment) -> Option<Arc<str>> {
    let Some(look) = look else { return Some("nobody has told of it yet".into()) };
    if let Some(error) = &look.error {
        return Some(Arc::clone(error));
    }
    let ago = at.uptime.saturating_sub(look.read_at);
    (ago > LOOKED_WITHIN).then(|| format!("nobody has told of it for {} s", ago.as_secs()).into())
}

/// Whether that rule stands for something that is started again.
pub(super) fn is_ours(rule: &RuleId) -> bool {
    &*rule.group == GROUP
}

/// The rule that stands for it.
pub fn rule(name: &Arc<str>) -> RuleId {
    RuleId { group: Arc::from(GROUP), alert: Arc::clone(name) }
}
