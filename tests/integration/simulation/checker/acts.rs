//! What must hold whenever something is done.

use std::sync::Arc;
use std::time::Duration;

use umawarden::model::{Action, Decision, DecisionId, Mode, Moment, RuleId, Target};
use umawarden::policy::rule::{Query, Remedy};

use super::shapes::Shape;
use super::{Checker, Clock, Course, Flight, Kind, LOST_AFTER, Violation, Watched, broken, reads};

/// The policy counts in whole milliseconds, and samples need not fall on them: an act at 11.0638 s
/// is out of a window of 50 s at 61.0632 s.
const COUNTED: Duration = Duration::from_millis(1);

/// Something that was done.
pub struct Acted {
    pub id: DecisionId,
    pub rule: RuleId,
    pub mode: Mode,
    pub step: usize,
    pub is_notice: bool,
    /// The engine that it worked on.
    pub engine: Option<Arc<str>>,
    /// Only what that engine can spare was taken.
    pub is_spared: bool,
    pub aim_met: Option<bool>,
    /// A person has let the remedy try again since.
    pub is_forgiven: bool,
    now: Duration,
    boot: u32,
    at: Moment,
    /// How long ago it was, and when on the uptime clock that was found.
    dated: Option<(Duration, Duration)>,
}

impl Acted {
    pub fn new(clock: &Clock, decision: &Decision) -> Self {
        Self {
            id: decision.id,
            rule: decision.rule.clone(),
            mode: decision.mode,
            step: decision.step,
            is_notice: decision.action.is_notice(),
            engine: engine_of(decision),
            is_spared: takes_from_engine(&decision.action),
            aim_met: None,
            is_forgiven: false,
            now: clock.now,
            boot: clock.boot,
            at: clock.at,
            dated: None,
        }
    }

    /// How long ago: exactly within a boot, and as it was dated over a reboot.
    pub fn ago(&self, clock: &Clock) -> Duration {
        if self.boot == clock.boot {
            return clock.at.uptime.saturating_sub(self.at.uptime);
        }
        let (ago, since) = self.dated.unwrap_or_default();
        ago + clock.at.uptime.saturating_sub(since)
    }

    /// A process looks back over a reboot. Nobody can know better than the wall clock says then, so
    /// whatever it says is as good as the truth.
    pub fn date(&mut self, clock: &Clock) {
        let told = clock.at.utc.duration_since(self.at.utc);
        let told = Duration::try_from(told).unwrap_or_default();
        self.dated = Some((told.max(clock.now - self.now), clock.at.uptime));
    }
}

impl Checker {
    pub(super) fn act(&mut self, clock: &Clock, decision: &Decision) -> Result<(), Violation> {
        self.known_enough(&decision.rule, clock, false)?;
        let Some(watched) = self.rules.get(&decision.rule) else { return Ok(()) };
        let Some(remedy) = &watched.rule.remedy else {
            return broken("only a remedy acts", format!("{decision:?}"));
        };
        // What is not there has no value that could be named.
        let has_evidence =
            !decision.because.is_empty() || matches!(watched.shape, Shape::Absent(_));
        if !has_evidence || !watched.is_firing_here() {
            return broken("nothing is done without evidence", format!("{decision:?}"));
        }
        if decision.mode != watched.rule.mode.unwrap_or(self.mode) {
            return broken("the mode is obeyed", format!("{decision:?}"));
        }
        if !is_step(remedy, decision) {
            return broken("a decision is a step of its remedy", format!("{decision:?}"));
        }
        if let Some(aim) = &remedy.aim {
            if is_met(aim, decision) {
                return broken("what has met its aim is left alone", format!("{decision:?}"));
            }
            if !reads::may_end(&aim.text, &self.failed) {
                let what = format!("{:?} cannot be read: {decision:?}", self.failed);
                return broken("nothing is done in the dark", what);
            }
        }
        self.within_limits(clock, decision, remedy)?;
        self.course_allows(clock, decision, watched)?;
        self.rested(clock, decision, watched)?;
        self.rails_allow(clock, decision, watched, remedy)?;
        let needs_approval = remedy.rails.approval.is_some();
        self.people.allow(clock, decision, needs_approval)?;
        self.brake(clock, decision)?;
        self.fly(clock, decision)?;
        self.settings.act(clock, decision)?;
        self.remember(clock, decision);
        Ok(())
    }

    fn within_limits(
        &self,
        clock: &Clock,
        decision: &Decision,
        remedy: &Remedy,
    ) -> Result<(), Violation> {
        if let Some(at_most) = remedy.rails.at_most {
            let lately = self
                .counted_with(decision, remedy, takes_from_engine)
                .filter(|act| act.ago(clock) + COUNTED < at_most.per);
            let ids: Vec<_> = lately.map(|act| (act.id.0, act.ago(clock))).collect();
            if ids.len() >= at_most.times as usize {
                let what = format!("{at_most:?} after {ids:?}: {decision:?}");
                return broken("never more than at_most in any window", what);
            }
        }
        self.within_budget(clock, decision)
    }

    pub(super) fn within_budget(
        &self,
        clock: &Clock,
        decision: &Decision,
    ) -> Result<(), Violation> {
        let is_free = decision.action.is_notice() || takes_from_engine(&decision.action);
        let Some(budget) = self.rails.budget.filter(|_| !is_free) else { return Ok(()) };
        let counts = |act: &&Acted| act.mode == decision.mode && !act.is_notice && !act.is_spared;
        let all = self.acts.iter().filter(counts);
        let ids: Vec<_> =
            all.filter(|act| act.ago(clock) + COUNTED < budget.per).map(|act| act.id.0).collect();
        if ids.len() >= budget.times as usize {
            let what = format!("{budget:?} after {ids:?}: {decision:?}");
            return broken("never more than the budget of all in any window", what);
        }
        Ok(())
    }

    fn rested(
        &self,
        clock: &Clock,
        decision: &Decision,
        watched: &Watched,
    ) -> Result<(), Violation> {
        if decision.step > 0 {
            return Ok(());
        }
        let remedy = watched.rule.remedy.as_ref();
        let since_act = remedy.and_then(|remedy| {
            let its = self.counted_with(decision, remedy, takes_from_engine);
            its.map(|act| act.ago(clock)).min()
        });
        let is_by_engine = remedy.is_some_and(|remedy| counts_by(remedy, takes_from_engine));
        let since_round = match watched.course(decision.mode) {
            Course::Judged { at, .. } | Course::Skipped { at } => {
                Some(clock.at.uptime.saturating_sub(at))
            }
            _ => None,
        };
        let since_round = since_round.filter(|_| !is_by_engine);
        for ago in [since_act, since_round].into_iter().flatten() {
            if ago + COUNTED < watched.cooldown {
                let what = format!("{ago:?} < {:?}: {decision:?}", watched.cooldown);
                return broken("a remedy rests between rounds", what);
            }
        }
        Ok(())
    }

    /// One action at a time, but for stops, and beside starts.
    pub(super) fn fly(&mut self, clock: &Clock, decision: &Decision) -> Result<(), Violation> {
        if decision.action.is_notice() {
            return Ok(());
        }
        let now = clock.at.uptime;
        let kind = Kind::of(&decision.action);
        self.flights.retain(|flight| now.saturating_sub(flight.since) < LOST_AFTER);
        let mut same = self.flights.iter().filter(|flight| flight.mode == decision.mode);
        if let Some(Flight { id, since, .. }) = same.find(|flight| kind.waits_for(flight.kind)) {
            let what = format!("{id} is under way since {since:?}: {decision:?}");
            return broken("never two actions at once", what);
        }
        let (id, mode) = (decision.id, decision.mode);
        self.flights.push(Flight { id, mode, kind, since: now });
        Ok(())
    }

    fn remember(&mut self, clock: &Clock, decision: &Decision) {
        self.acts.push(Acted::new(clock, decision));
        if let Some(watched) = self.rules.get_mut(&decision.rule) {
            let (id, step, since) = (decision.id, decision.step, clock.at.uptime);
            watched.set_course(decision.mode, Course::Acting { id, step, since });
            watched.cooldown = super::cooldown(&watched.rule);
        }
    }

    /// After each act its outcome is awaited, and a next step follows only what has missed its aim,
    /// or what stays as it is while the others are tried again.
    fn course_allows(
        &self,
        clock: &Clock,
        decision: &Decision,
        watched: &Watched,
    ) -> Result<(), Violation> {
        let now = clock.at.uptime;
        let course = watched.course(decision.mode);
        let (mut last_passed, has_aim) = (None, aims(watched));
        let is_held = |step: usize| self.settings.holds_step(&decision.rule, decision.mode, step);
        match course {
            Course::Acting { since, .. } if now.saturating_sub(since) < LOST_AFTER => {
                return broken("each outcome is awaited", format!("{decision:?}"));
            }
            // What stays as it is has no end by which it could be judged.
            Course::Ended { id, .. } if has_aim || !self.settings.is_temporary(id) => {
                return broken("each act is judged", format!("{decision:?}"));
            }
            // It stays, and is passed.
            Course::Ended { step, .. } if is_held(step) => last_passed = Some(step),
            Course::Judged { step, aim_met: Some(false), .. } => last_passed = Some(step),
            _ => {}
        }
        let mut from = decision.step;
        while from > 0 && last_passed != Some(from - 1) && is_held(from - 1) {
            from -= 1;
        }
        if from > 0 && last_passed != Some(from - 1) {
            let what = format!("{course:?}: {decision:?}");
            return broken("a next step follows a missed aim", what);
        }
        Ok(())
    }

    /// What the same rule did in the same mode.
    pub(super) fn acts_of(&self, decision: &Decision) -> impl Iterator<Item = &Acted> {
        let same = |act: &&Acted| act.rule == decision.rule && act.mode == decision.mode;
        self.acts.iter().filter(same)
    }

    /// The acts that count together with a decision: those on the same engine, where all that the
    /// remedy does is such an act.
    pub(super) fn counted_with(
        &self,
        decision: &Decision,
        remedy: &Remedy,
        is_such: fn(&Action) -> bool,
    ) -> impl Iterator<Item = &Acted> {
        let is_by_engine = counts_by(remedy, is_such) && !decision.action.is_notice();
        let engine = engine_of(decision).filter(|_| is_by_engine);
        self.acts_of(decision).filter(move |act| !is_by_engine || act.engine == engine)
    }
}

/// The engine that a decision works on.
pub fn engine_of(decision: &Decision) -> Option<Arc<str>> {
    match (&decision.target, &decision.action) {
        (Target::Engine(engine), _) if !engine.name.is_empty() => Some(Arc::clone(&engine.name)),
        (_, Action::Reclaim { engine: Some(engine), .. }) => Some(engine.as_str().into()),
        _ => None,
    }
}

pub(super) fn takes_from_engine(action: &Action) -> bool {
    let reclaims = matches!(action, Action::Reclaim { engine: Some(_), .. });
    reclaims || matches!(action, Action::EvictCheckpoint { .. } | Action::EmptyCache { .. })
}

pub(super) fn works_on_engine(action: &Action) -> bool {
    takes_from_engine(action) || matches!(action, Action::StopEngine { .. })
}

/// Whether everything that a remedy does is such an act.
pub(super) fn counts_by(remedy: &Remedy, is_such: fn(&Action) -> bool) -> bool {
    let steps = remedy.steps.iter().map(|step| step.action(None));
    let acts: Vec<Action> = steps.filter(|action| !action.is_notice()).collect();
    !acts.is_empty() && acts.iter().all(is_such)
}

pub(super) fn aims(watched: &Watched) -> bool {
    watched.rule.remedy.as_ref().is_some_and(|remedy| remedy.aim.is_some())
}

fn is_step(remedy: &Remedy, decision: &Decision) -> bool {
    let step = remedy.steps.get(decision.step).map(|step| step.action(None));
    match (step, &decision.action) {
        (Some(Action::Notify { .. }), Action::Notify { .. }) => true,
        // The engine may be a template, and what the executor looks at comes with the decision.
        (Some(Action::EvictCheckpoint { .. }), Action::EvictCheckpoint { .. })
        | (Some(Action::StopEngine { .. }), Action::StopEngine { .. }) => true,
        (Some(Action::EmptyCache { allow, .. }), Action::EmptyCache { allow: allowed, .. }) => {
            allow == *allowed
        }
        (Some(step), action) => step == *action,
        (None, _) => false,
    }
}

/// Whether an aim of the form `series > number` is met by the evidence itself.
fn is_met(aim: &Query, decision: &Decision) -> bool {
    let Some((series, number)) = aim.text.split_once(" > ") else { return false };
    let Ok(number) = number.parse::<f64>() else { return false };
    let evidence = decision.because.iter().find(|evidence| evidence.series == series);
    evidence.and_then(|evidence| evidence.value.value()).is_some_and(|value| value > number)
}
