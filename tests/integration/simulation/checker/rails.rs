//! Guard rails that depend neither on the time since the last act nor on orders.

use std::sync::Arc;

use jiff::tz::TimeZone;
use umawarden::model::{DecisionRecord, OperatorCommand, OperatorOrder, Target};
use umawarden::policy::guard::{MaintenanceWindow, WrittenWindow};
use umawarden::policy::rule::Remedy;

use super::acts::{Acted, counts_by, engine_of, works_on_engine};
use super::{Checker, Clock, Violation, Watched, broken};

impl Checker {
    pub(super) fn rails_allow(
        &self,
        clock: &Clock,
        decision: &DecisionRecord,
        watched: &Watched,
        remedy: &Remedy,
    ) -> Result<(), Violation> {
        if !self.knows_past {
            return broken("nothing is done before the past is known", format!("{decision:?}"));
        }
        if let Target::Cgroup { path } = &decision.target
            && self.protects(path)
        {
            return broken("nothing protected is touched", format!("{decision:?}"));
        }
        if let Some(window) = self.forbidden_by(clock, remedy) {
            return broken("maintenance windows are respected", format!("{window}: {decision:?}"));
        }
        if let Some(alert) = self.inhibited_by(watched, remedy) {
            return broken(
                "nothing is done while an inhibitor fires",
                format!("{alert}: {decision:?}"),
            );
        }
        self.breaker_is_closed(clock, decision, remedy)
    }

    /// Whether the window of that name is open.
    pub(super) fn is_open(&self, name: &str, clock: &Clock) -> bool {
        let mut windows = self.rails.maintenance_windows.iter();
        windows.any(|window| **window.name() == *name && is_open(window, clock))
    }

    /// As a person would read it: the name of a unit or container in the path.
    fn protects(&self, path: &str) -> bool {
        let protected = &self.rails.protect;
        let names = || path.split('/').filter(|part| !part.is_empty());
        let by_unit = protected.units.iter().any(|glob| names().any(|name| glob.matches(name)));
        by_unit || !protected.processes.is_empty()
    }

    fn forbidden_by(&self, clock: &Clock, remedy: &Remedy) -> Option<Arc<str>> {
        let windows = &self.rails.maintenance_windows;
        let is_open = |name: &&Arc<str>| {
            windows.iter().any(|window| window.name() == *name && is_open(window, clock))
        };
        let never = self.rails.never_in.iter().chain(&remedy.rails.never_in);
        let only = &remedy.rails.only_in;
        let closed = || only.first().filter(|_| !only.iter().any(|name| is_open(&name)));
        never.clone().find(is_open).or_else(closed).cloned()
    }

    fn inhibited_by(&self, watched: &Watched, remedy: &Remedy) -> Option<Arc<str>> {
        let all = &self.rails.inhibited_by;
        let all = if all.contains(&watched.rule.id.alert) { &[] } else { all.as_slice() };
        let inhibits = |alert: &&Arc<str>| {
            self.rules.values().any(|other| {
                other.rule.id.alert == **alert && (other.is_firing() || other.is_unknown)
            })
        };
        remedy.rails.inhibited_by.iter().chain(all).find(inhibits).cloned()
    }

    /// A remedy that has missed its aim in so many rounds in a row pauses for long, or for good.
    fn breaker_is_closed(
        &self,
        clock: &Clock,
        decision: &DecisionRecord,
        remedy: &Remedy,
    ) -> Result<(), Violation> {
        let limit = remedy.rails.breaker.or(self.rails.breaker);
        let Some(limit) = limit.filter(|limit| limit.misses > 0) else { return Ok(()) };
        let acts: Vec<&Acted> = self.acts_of(decision).filter(|act| !act.is_forgiven).collect();
        // A step that is in force already is skipped.
        let goes_on =
            |one: &&Acted, next: &&Acted| one.aim_met != Some(true) && next.step > one.step;
        let mut rounds: Vec<&[&Acted]> = acts.chunk_by(goes_on).collect();
        if decision.step > 0 {
            rounds.pop();
        }
        if counts_by(remedy, works_on_engine) && !decision.action.is_notice() {
            let engine = engine_of(decision);
            rounds.retain(|round| round.iter().any(|act| act.engine == engine));
        }
        let mut missed = 0;
        for round in rounds.iter().rev() {
            match round.last().and_then(|act| act.aim_met) {
                Some(true) => break,
                Some(false) if round.iter().any(|act| !act.is_notice) => missed += 1,
                _ => {}
            }
        }
        let last_missed = rounds.iter().rev().find(|round| {
            round.last().is_some_and(|act| act.aim_met == Some(false))
                && round.iter().any(|act| !act.is_notice)
        });
        let ago = last_missed.and_then(|round| round.last()).map(|act| act.ago(clock));
        let rested = ago.is_none_or(|ago| limit.reset_after.is_some_and(|after| ago >= after));
        if missed >= limit.misses && !rested {
            let what = format!("{limit:?}, {missed} missed, {ago:?} ago: {decision:?}");
            return broken("a remedy that does not help is stopped", what);
        }
        Ok(())
    }

    pub(super) fn reset_breakers(&mut self, command: &OperatorCommand, _clock: &Clock) {
        let OperatorOrder::ResetBreaker { rules } = &command.order else { return };
        for act in self.acts.iter_mut().filter(|act| rules.selects(&act.rule)) {
            act.is_forgiven = true;
        }
    }
}

/// Decided by the minute of the day and the day of the week; the zones in use shift their clocks at
/// night, so that this is enough.
fn is_open(window: &MaintenanceWindow, clock: &Clock) -> bool {
    let written = WrittenWindow::from(window.clone());
    let zone = TimeZone::get(&written.time_zone).unwrap();
    let here = clock.at.utc.to_zoned(zone);
    let minute = u16::try_from(i32::from(here.hour()) * 60 + i32::from(here.minute())).unwrap();
    let today = here.weekday().to_monday_one_offset();
    let yesterday = if today == 1 { 7 } else { today - 1 };
    let begins_on = |day: i8| written.days.is_empty() || written.days.contains(&day);
    let WrittenWindow { from, to, .. } = written;
    if to > from {
        begins_on(today) && (from..to).contains(&minute)
    } else {
        begins_on(today) && minute >= from || begins_on(yesterday) && minute < to
    }
}
