//! What must hold whenever something is done.

use std::time::Duration;

use umawarden::model::{Action, Decision, DecisionId, Mode, Moment, RuleId};
use umawarden::policy::rule::{Query, Remedy};

use super::{Checker, Clock, Course, LOST_AFTER, Violation, Watched, broken, reads};

/// Something that was done.
pub struct Acted {
    pub id: DecisionId,
    pub rule: RuleId,
    mode: Mode,
    now: Duration,
    boot: u32,
    at: Moment,
}

impl Acted {
    /// How long ago: exactly within a boot. Over a reboot nobody can know better than the wall
    /// clock says, so whatever that says is as good as the truth.
    fn ago(&self, clock: &Clock) -> Duration {
        if self.boot == clock.boot {
            return clock.at.uptime.saturating_sub(self.at.uptime);
        }
        let told = clock.at.utc.duration_since(self.at.utc);
        let told = Duration::try_from(told).unwrap_or_default();
        told.max(clock.now - self.now)
    }
}

impl Checker {
    pub(super) fn act(&mut self, clock: &Clock, decision: &Decision) -> Result<(), Violation> {
        self.known_enough(&decision.rule, clock)?;
        let Some(watched) = self.rules.get(&decision.rule) else { return Ok(()) };
        let Some(remedy) = &watched.rule.remedy else {
            return broken("only a remedy acts", format!("{decision:?}"));
        };
        if decision.because.is_empty() || !watched.is_firing() {
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
            if let Some(source) = reads::sources(aim).intersection(&self.failed).next() {
                let what = format!("its aim needs {source:?}: {decision:?}");
                return broken("nothing is done in the dark", what);
            }
        }
        self.within_limit(clock, decision, remedy)?;
        course_allows(clock, decision, watched)?;
        self.rested(clock, decision, watched)?;
        self.fly(clock, decision)?;
        self.remember(clock, decision);
        Ok(())
    }

    fn within_limit(
        &self,
        clock: &Clock,
        decision: &Decision,
        remedy: &Remedy,
    ) -> Result<(), Violation> {
        let Some(at_most) = remedy.at_most else { return Ok(()) };
        let lately = self.acts_of(decision).filter(|act| act.ago(clock) < at_most.per);
        let ids: Vec<_> = lately.map(|act| (act.id.0, act.ago(clock))).collect();
        if ids.len() >= at_most.times as usize {
            let what = format!("{at_most:?} after {ids:?}: {decision:?}");
            return broken("never more than at_most in any window", what);
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
        let since_act = self.acts_of(decision).map(|act| act.ago(clock)).min();
        let since_round = match watched.course {
            Course::Judged { at, .. } | Course::Skipped { at } => {
                Some(clock.at.uptime.saturating_sub(at))
            }
            _ => None,
        };
        for ago in [since_act, since_round].into_iter().flatten() {
            if ago < watched.cooldown {
                let what = format!("{ago:?} < {:?}: {decision:?}", watched.cooldown);
                return broken("a remedy rests between rounds", what);
            }
        }
        Ok(())
    }

    fn fly(&mut self, clock: &Clock, decision: &Decision) -> Result<(), Violation> {
        if matches!(decision.action, Action::Notify { .. }) {
            return Ok(());
        }
        let now = clock.at.uptime;
        if let Some((id, since)) = self.flight
            && now.saturating_sub(since) < LOST_AFTER
        {
            let what = format!("{id} is under way since {since:?}: {decision:?}");
            return broken("never two actions at once", what);
        }
        self.flight = Some((decision.id, now));
        Ok(())
    }

    fn remember(&mut self, clock: &Clock, decision: &Decision) {
        self.acts.push(Acted {
            id: decision.id,
            rule: decision.rule.clone(),
            mode: decision.mode,
            now: clock.now,
            boot: clock.boot,
            at: clock.at,
        });
        if let Some(watched) = self.rules.get_mut(&decision.rule) {
            let (id, step, since) = (decision.id, decision.step, clock.at.uptime);
            watched.course = Course::Acting { id, step, since };
            watched.cooldown = super::cooldown(&watched.rule);
        }
    }

    /// What the same rule did in the same mode.
    fn acts_of(&self, decision: &Decision) -> impl Iterator<Item = &Acted> {
        let same = |act: &&Acted| act.rule == decision.rule && act.mode == decision.mode;
        self.acts.iter().filter(same)
    }
}

/// After each act its outcome is awaited, and a next step follows only what has missed its aim.
fn course_allows(clock: &Clock, decision: &Decision, watched: &Watched) -> Result<(), Violation> {
    let now = clock.at.uptime;
    match watched.course {
        Course::Acting { since, .. } if now.saturating_sub(since) < LOST_AFTER => {
            return broken("each outcome is awaited", format!("{decision:?}"));
        }
        Course::Ended { .. } => return broken("each act is judged", format!("{decision:?}")),
        _ => {}
    }
    let missed = match watched.course {
        Course::Judged { step, aim_met: Some(false), .. } => Some(step + 1),
        _ => None,
    };
    if decision.step > 0 && missed != Some(decision.step) {
        let what = format!("{:?}: {decision:?}", watched.course);
        return broken("a next step follows a missed aim", what);
    }
    Ok(())
}

fn is_step(remedy: &Remedy, decision: &Decision) -> bool {
    match (remedy.steps.get(decision.step), &decision.action) {
        (Some(Action::Notify { .. }), Action::Notify { .. }) => true,
        (Some(step), action) => step == action,
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
