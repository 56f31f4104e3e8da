//! Temporary settings are undone in time, and two remedies never change one setting.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use umawarden::model::{
    Action, DecisionId, DecisionRecord, Mode, Outcome, OutcomeResult, RuleId, Target, UndoReason,
};

use super::{Checker, Clock, LOST_AFTER, Violation, broken};

/// A failed undo is tried again within this time.
const AGAIN_WITHIN: Duration = Duration::from_secs(600);

/// It is checked at least once a minute, unless the machine sleeps.
const ASLEEP: Duration = Duration::from_secs(120);

/// A setting in force, or one that may not be changed again yet.
#[derive(Default)]
pub struct Settings {
    changes: Vec<Change>,
    /// All acts that have ever changed a setting.
    temporary: BTreeSet<DecisionId>,
}

struct Change {
    id: DecisionId,
    rule: RuleId,
    mode: Mode,
    step: usize,
    names: Vec<Arc<str>>,
    until: Duration,
    state: State,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Set,
    Undoing {
        undo: DecisionId,
        why: UndoReason,
        since: Duration,
    },
    Failed {
        since: Duration,
    },
    /// Undone since its time was over.
    Over,
}

impl Settings {
    pub fn clear(&mut self) {
        self.changes.clear();
    }

    /// Whether that step's setting is in force, or may not be changed again yet.
    pub fn is_in_force(&self, rule: &RuleId, mode: Mode, step: usize) -> bool {
        self.changes
            .iter()
            .any(|change| change.rule == *rule && change.mode == mode && change.step == step)
    }

    /// Whether that act was to change a setting for a while.
    pub fn is_temporary(&self, id: DecisionId) -> bool {
        self.temporary.contains(&id)
    }

    pub fn act(&mut self, clock: &Clock, decision: &DecisionRecord) -> Result<(), Violation> {
        let Some(for_at_most) = decision.action.for_at_most() else { return Ok(()) };
        let Target::Settings { names } = &decision.target else {
            return broken("a setting has a name", format!("{decision:?}"));
        };
        // A setting that was undone after its time is closed only for its own rule.
        let shares = |change: &&Change| {
            change.mode == decision.mode
                && (change.state != State::Over || change.rule == decision.rule)
                && change.names.iter().any(|name| names.contains(name))
        };
        if let Some(other) = self.changes.iter().find(shares) {
            let what = format!("{} of {} has it: {decision:?}", other.id, other.rule);
            return broken("one remedy at a time changes a setting", what);
        }
        self.temporary.insert(decision.id);
        self.changes.push(Change {
            id: decision.id,
            rule: decision.rule.clone(),
            mode: decision.mode,
            step: decision.step,
            names: names.clone(),
            until: clock.at.uptime + for_at_most,
            state: State::Set,
        });
        Ok(())
    }

    pub fn take_outcome(&mut self, outcome: &Outcome) {
        if matches!(outcome.result, OutcomeResult::Failed(_) | OutcomeResult::NotDone(_)) {
            self.changes.retain(|change| change.id != outcome.decision);
        }
        let is_undone = matches!(outcome.result, OutcomeResult::Done | OutcomeResult::Skipped);
        self.changes.retain_mut(|change| match change.state {
            State::Undoing { undo, .. } if undo == outcome.decision && !is_undone => {
                change.state = State::Failed { since: outcome.ended.uptime };
                true
            }
            State::Undoing { undo, why, .. } if undo == outcome.decision => {
                change.state = State::Over;
                why == UndoReason::TimedOut
            }
            _ => true,
        });
    }
}

impl Checker {
    /// A setting is restored.
    pub(super) fn undo(
        &mut self,
        clock: &Clock,
        decision: &DecisionRecord,
    ) -> Result<(), Violation> {
        const INVARIANT: &str = "an undo has its act and a reason";
        let Action::Undo { decision: act, why, .. } = decision.action else { return Ok(()) };
        let now = clock.at.uptime;
        let rule = self.rules.get(&decision.rule);
        let is_of_mode = rule
            .is_some_and(|rule| self.sets(&rule.rule, decision.mode) && rule.rule.remedy.is_some());
        let fires = rule.is_some_and(super::Watched::is_firing_here);
        let Some(change) = self.settings.changes.iter_mut().find(|change| change.id == act) else {
            return broken(INVARIANT, format!("nothing of {act} is set: {decision:?}"));
        };
        let is_again = matches!(change.state, State::Failed { .. } | State::Undoing { .. });
        let is_true = match why {
            _ if is_again => true,
            UndoReason::TimedOut => now >= change.until,
            UndoReason::AlertEnded => !fires,
            UndoReason::RuleChanged => !is_of_mode,
        };
        if !is_true || change.state == State::Over || change.rule != decision.rule {
            return broken(INVARIANT, format!("{decision:?}"));
        }
        change.state = State::Undoing { undo: decision.id, why, since: now };
        self.flights.push(super::Flight {
            id: decision.id,
            mode: decision.mode,
            kind: super::Kind::Ordinary,
            since: now,
        });
        Ok(())
    }

    /// A setting whose time or alert has ended is being undone.
    pub(super) fn all_is_undone_in_time(&mut self, clock: &Clock) -> Result<(), Violation> {
        const INVARIANT: &str = "a temporary setting is undone in time";
        let now = clock.at.uptime;
        if self.slowness > ASLEEP {
            // During a sleep nothing could be retried.
            for change in &mut self.settings.changes {
                if let State::Failed { since } | State::Undoing { since, .. } = &mut change.state {
                    *since += self.slowness;
                }
            }
        }
        let fires = |change: &Change| {
            self.rules
                .get(&change.rule)
                .is_some_and(|rule| rule.is_firing_here() && self.sets(&rule.rule, change.mode))
        };
        for change in &self.settings.changes {
            let is_late = match change.state {
                State::Set => now >= change.until || !fires(change),
                State::Failed { since } => now > since + AGAIN_WITHIN + super::LATE,
                State::Undoing { since, .. } => now > since + LOST_AFTER + AGAIN_WITHIN,
                State::Over => false,
            };
            if is_late {
                let what = format!("{} of {} until {:?}", change.id, change.rule, change.until);
                return broken(INVARIANT, what);
            }
        }
        // A rule whose alert has ended may set it again.
        let ended: Vec<DecisionId> = self
            .settings
            .changes
            .iter()
            .filter(|change| change.state == State::Over && !fires(change))
            .map(|change| change.id)
            .collect();
        self.settings.changes.retain(|change| !ended.contains(&change.id));
        Ok(())
    }
}
