//! Invariants of acts.

use std::sync::Arc;
use std::time::Duration;

use umawarden::model::{Action, DecisionId, DecisionRecord, Mode, Moment, RuleId, Target};
use umawarden::policy::rule::{Query, Remedy};

use super::shapes::Shape;
use super::{Checker, Clock, Flight, Kind, LOST_AFTER, Phase, Violation, Watched, broken, reads};

/// The policy counts in whole milliseconds, and samples need not coincide with them: an act at
/// 11.0638 s is outside a window of 50 s at 61.0632 s.
const COUNTED: Duration = Duration::from_millis(1);

/// An act.
pub struct Acted {
    pub id: DecisionId,
    pub rule: RuleId,
    pub mode: Mode,
    pub step: usize,
    pub is_notice: bool,
    /// The engine that it worked on.
    pub engine: Option<Arc<str>>,
    /// It took only memory that the engine can spare.
    pub is_spared: bool,
    pub aim_met: Option<bool>,
    /// A person has reset the remedy since.
    pub is_forgiven: bool,
    now: Duration,
    boot: u32,
    at: Moment,
    /// Age of the act, and the uptime at which that was determined.
    dated: Option<(Duration, Duration)>,
}

impl Acted {
    pub fn new(clock: &Clock, decision: &DecisionRecord) -> Self {
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

    /// Age of the act: exact within a boot, and by its date over a reboot.
    pub fn ago(&self, clock: &Clock) -> Duration {
        if self.boot == clock.boot {
            return clock.at.uptime.saturating_sub(self.at.uptime);
        }
        let (ago, since) = self.dated.unwrap_or_default();
        ago + clock.at.uptime.saturating_sub(since)
    }

    /// After a reboot the wall clock is the only source then, so its answer
    /// counts as the truth.
    pub fn date(&mut self, clock: &Clock) {
        let elapsed = clock.at.utc.duration_since(self.at.utc);
        let elapsed = Duration::try_from(elapsed).unwrap_or_default();
        self.dated = Some((elapsed.max(clock.now - self.now), clock.at.uptime));
    }
}

impl Checker {
    pub(super) fn act(
        &mut self,
        clock: &Clock,
        decision: &DecisionRecord,
    ) -> Result<(), Violation> {
        self.known_enough(&decision.rule, clock, false)?;
        let Some(watched) = self.rules.get(&decision.rule) else { return Ok(()) };
        let Some(remedy) = &watched.rule.remedy else {
            return broken("only a remedy acts", format!("{decision:?}"));
        };
        // A missing value cannot be evidence.
        let has_evidence =
            !decision.because.is_empty() || matches!(watched.shape, Shape::Absent(_));
        if !has_evidence || !watched.is_firing_here() {
            return broken("nothing is done without evidence", format!("{decision:?}"));
        }
        if decision.mode != self.mode_of(&watched.rule) {
            return broken("the mode is obeyed", format!("{decision:?}"));
        }
        if decision.mode == Mode::Enforce && !self.enforces(decision.action.name()) {
            return broken("only enforced grades act", format!("{decision:?}"));
        }
        if !is_step(remedy, decision) {
            return broken("a decision is a step of its remedy", format!("{decision:?}"));
        }
        if let Some(aim) = &remedy.aim {
            if is_met(aim, decision) {
                return broken("nothing is done once the aim is met", format!("{decision:?}"));
            }
            if !reads::may_end(&aim.text, &self.failed) {
                let what = format!("{:?} cannot be read: {decision:?}", self.failed);
                return broken("nothing is done without memory readings", what);
            }
        }
        self.within_limits(clock, decision, remedy)?;
        self.phase_allows(clock, decision, watched)?;
        self.rested(clock, decision, watched)?;
        self.rails_allow(clock, decision, watched, remedy)?;
        let unless_denied = remedy.rails.unless_denied;
        let people = remedy.rails.approval.map(|time| (time, unless_denied));
        self.people.allow(clock, decision, people)?;
        self.brake(clock, decision)?;
        self.fly(clock, decision)?;
        self.settings.act(clock, decision)?;
        self.remember(clock, decision);
        Ok(())
    }

    fn within_limits(
        &self,
        clock: &Clock,
        decision: &DecisionRecord,
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
        decision: &DecisionRecord,
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
        decision: &DecisionRecord,
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
        let since_round = match watched.phase(decision.mode) {
            Phase::Checked { at, .. } | Phase::Skipped { at } => {
                Some(clock.at.uptime.saturating_sub(at))
            }
            _ => None,
        };
        let since_round = since_round.filter(|_| !is_by_engine);
        for ago in [since_act, since_round].into_iter().flatten() {
            if ago + COUNTED < watched.cooldown {
                let what = format!("{ago:?} < {:?}: {decision:?}", watched.cooldown);
                return broken("a remedy has its cooldown between rounds", what);
            }
        }
        Ok(())
    }

    /// One action at a time, except stops, and in parallel with starts.
    pub(super) fn fly(
        &mut self,
        clock: &Clock,
        decision: &DecisionRecord,
    ) -> Result<(), Violation> {
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

    fn remember(&mut self, clock: &Clock, decision: &DecisionRecord) {
        self.acts.push(Acted::new(clock, decision));
        if let Some(watched) = self.rules.get_mut(&decision.rule) {
            let (id, step, since) = (decision.id, decision.step, clock.at.uptime);
            watched.set_phase(decision.mode, Phase::Acting { id, step, since });
            watched.cooldown = super::cooldown(&watched.rule);
        }
    }

    /// Each act waits for its outcome. A next step follows only an act that missed its aim, or one
    /// that stays in force while the others are retried.
    fn phase_allows(
        &self,
        clock: &Clock,
        decision: &DecisionRecord,
        watched: &Watched,
    ) -> Result<(), Violation> {
        let now = clock.at.uptime;
        let phase = watched.phase(decision.mode);
        let (mut last_passed, has_aim) = (None, aims(watched));
        let is_in_force =
            |step: usize| self.settings.is_in_force(&decision.rule, decision.mode, step);
        match phase {
            Phase::Acting { since, .. } if now.saturating_sub(since) < LOST_AFTER => {
                return broken("each act waits for the last outcome", format!("{decision:?}"));
            }
            // A setting that stays has no end at which it is assessed.
            Phase::Ended { id, .. } if has_aim || !self.settings.is_temporary(id) => {
                return broken("each act is aim_checked", format!("{decision:?}"));
            }
            // It stays, and is skipped.
            Phase::Ended { step, .. } if is_in_force(step) => last_passed = Some(step),
            Phase::Checked { step, aim_met: Some(false), .. } => last_passed = Some(step),
            _ => {}
        }
        // What is not enforced is passed over where others are.
        let is_passed = |step: usize| {
            let step = watched.rule.remedy.as_ref().and_then(|remedy| remedy.steps.get(step));
            decision.mode == Mode::Enforce && step.is_some_and(|step| !self.enforces(step.name()))
        };
        let mut from = decision.step;
        while from > 0
            && last_passed != Some(from - 1)
            && (is_in_force(from - 1) || is_passed(from - 1))
        {
            from -= 1;
        }
        if from > 0 && last_passed != Some(from - 1) {
            let what = format!("{phase:?}: {decision:?}");
            return broken("a next step follows a missed aim", what);
        }
        Ok(())
    }

    /// Acts of the same rule in the same mode.
    pub(super) fn acts_of(&self, decision: &DecisionRecord) -> impl Iterator<Item = &Acted> {
        let same = |act: &&Acted| act.rule == decision.rule && act.mode == decision.mode;
        self.acts.iter().filter(same)
    }

    /// Acts that share a limit with a decision: those on the same engine, where every step of the
    /// remedy is such an act.
    pub(super) fn counted_with(
        &self,
        decision: &DecisionRecord,
        remedy: &Remedy,
        is_such: fn(&Action) -> bool,
    ) -> impl Iterator<Item = &Acted> {
        let is_by_engine = counts_by(remedy, is_such) && !decision.action.is_notice();
        let engine = engine_of(decision).filter(|_| is_by_engine);
        self.acts_of(decision).filter(move |act| !is_by_engine || act.engine == engine)
    }
}

/// The engine of a decision.
pub fn engine_of(decision: &DecisionRecord) -> Option<Arc<str>> {
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

/// Whether every step of a remedy is such an act.
pub(super) fn counts_by(remedy: &Remedy, is_such: fn(&Action) -> bool) -> bool {
    let steps = remedy.steps.iter().map(|step| step.action(None));
    let acts: Vec<Action> = steps.filter(|action| !action.is_notice()).collect();
    !acts.is_empty() && acts.iter().all(is_such)
}

pub(super) fn aims(watched: &Watched) -> bool {
    watched.rule.remedy.as_ref().is_some_and(|remedy| remedy.aim.is_some())
}

fn is_step(remedy: &Remedy, decision: &DecisionRecord) -> bool {
    let step = remedy.steps.get(decision.step).map(|step| step.action(None));
    match (step, &decision.action) {
        (Some(Action::Notify { .. }), Action::Notify { .. }) => true,
        // The engine may be a template, and its details come with the decision.
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
fn is_met(aim: &Query, decision: &DecisionRecord) -> bool {
    let Some((series, number)) = aim.text.split_once(" > ") else { return false };
    let Ok(number) = number.parse::<f64>() else { return false };
    let evidence = decision.because.iter().find(|evidence| evidence.series == series);
    evidence.and_then(|evidence| evidence.value.value()).is_some_and(|value| value > number)
}
