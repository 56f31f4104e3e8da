//! What is set for a while is undone in time, and two remedies never hold one setting.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use umawarden::model::{
    Action, Decision, DecisionId, Mode, Outcome, OutcomeResult, RuleId, Target, UndoReason,
};

use super::{Checker, Clock, LOST_AFTER, Violation, broken};

/// An undo that failed is tried again after that at the latest.
const AGAIN_WITHIN: Duration = Duration::from_secs(600);

/// It looks at least once a minute, unless the machine is asleep.
const ASLEEP: Duration = Duration::from_secs(120);

/// What is set, or was for its time and may not be set again yet.
#[derive(Default)]
pub struct Settings {
    held: Vec<Held>,
    /// All acts that have ever set something.
    temporary: BTreeSet<DecisionId>,
}

struct Held {
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
        self.held.clear();
    }

    /// Whether that step has set something that is set, or was for its time.
    pub fn holds_step(&self, rule: &RuleId, mode: Mode, step: usize) -> bool {
        self.held.iter().any(|held| held.rule == *rule && held.mode == mode && held.step == step)
    }

    /// Whether that act was to set something for a while.
    pub fn is_temporary(&self, id: DecisionId) -> bool {
        self.temporary.contains(&id)
    }

    pub fn act(&mut self, clock: &Clock, decision: &Decision) -> Result<(), Violation> {
        let Some(for_at_most) = decision.action.for_at_most() else { return Ok(()) };
        let Target::Settings { names } = &decision.target else {
            return broken("a setting has a name", format!("{decision:?}"));
        };
        // What was undone since its time was over, only its own rule may not set again yet.
        let shares = |held: &&Held| {
            held.mode == decision.mode
                && (held.state != State::Over || held.rule == decision.rule)
                && held.names.iter().any(|name| names.contains(name))
        };
        if let Some(other) = self.held.iter().find(shares) {
            let what = format!("{} of {} has it: {decision:?}", other.id, other.rule);
            return broken("one remedy at a time holds a setting", what);
        }
        self.temporary.insert(decision.id);
        self.held.push(Held {
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

    pub fn hear(&mut self, outcome: &Outcome) {
        if matches!(outcome.result, OutcomeResult::Failed(_) | OutcomeResult::NotDone(_)) {
            self.held.retain(|held| held.id != outcome.decision);
        }
        let is_undone = matches!(outcome.result, OutcomeResult::Done | OutcomeResult::Skipped);
        self.held.retain_mut(|held| match held.state {
            State::Undoing { undo, .. } if undo == outcome.decision && !is_undone => {
                held.state = State::Failed { since: outcome.ended.uptime };
                true
            }
            State::Undoing { undo, why, .. } if undo == outcome.decision => {
                held.state = State::Over;
                why == UndoReason::TimedOut
            }
            _ => true,
        });
    }
}

impl Checker {
    /// Something is put back.
    pub(super) fn undo(&mut self, clock: &Clock, decision: &Decision) -> Result<(), Violation> {
        const INVARIANT: &str = "what is undone is what was set, and for a reason";
        let Action::Undo { decision: act, why } = decision.action else { return Ok(()) };
        let now = clock.at.uptime;
        let rule = self.rules.get(&decision.rule);
        let is_of_mode = rule.is_some_and(|rule| {
            rule.rule.mode.unwrap_or(self.mode) == decision.mode && rule.rule.remedy.is_some()
        });
        let fires = rule.is_some_and(super::Watched::is_firing_here);
        let Some(held) = self.settings.held.iter_mut().find(|held| held.id == act) else {
            return broken(INVARIANT, format!("nothing of {act} is set: {decision:?}"));
        };
        let is_again = matches!(held.state, State::Failed { .. } | State::Undoing { .. });
        let is_true = match why {
            _ if is_again => true,
            UndoReason::TimedOut => now >= held.until,
            UndoReason::AlertEnded => !fires,
            UndoReason::RuleChanged => !is_of_mode,
        };
        if !is_true || held.state == State::Over || held.rule != decision.rule {
            return broken(INVARIANT, format!("{decision:?}"));
        }
        held.state = State::Undoing { undo: decision.id, why, since: now };
        self.flights.push(super::Flight {
            id: decision.id,
            mode: decision.mode,
            kind: super::Kind::Ordinary,
            since: now,
        });
        Ok(())
    }

    /// What has had its time, or whose alert has ended, is being undone.
    pub(super) fn all_is_undone_in_time(&mut self, clock: &Clock) -> Result<(), Violation> {
        const INVARIANT: &str = "what is set for a while is undone in time";
        let now = clock.at.uptime;
        if self.slowness > ASLEEP {
            // While nobody looked, nothing could be tried again.
            for held in &mut self.settings.held {
                if let State::Failed { since } | State::Undoing { since, .. } = &mut held.state {
                    *since += self.slowness;
                }
            }
        }
        let (rules, mode) = (&self.rules, self.mode);
        let fires = |held: &Held| {
            rules.get(&held.rule).is_some_and(|rule| {
                rule.is_firing_here() && rule.rule.mode.unwrap_or(mode) == held.mode
            })
        };
        for held in &self.settings.held {
            let is_late = match held.state {
                State::Set => now >= held.until || !fires(held),
                State::Failed { since } => now > since + AGAIN_WITHIN + super::LATE,
                State::Undoing { since, .. } => now > since + LOST_AFTER + AGAIN_WITHIN,
                State::Over => false,
            };
            if is_late {
                let what = format!("{} of {} until {:?}", held.id, held.rule, held.until);
                return broken(INVARIANT, what);
            }
        }
        // Whose alert has ended may set it again.
        let ended: Vec<DecisionId> = self
            .settings
            .held
            .iter()
            .filter(|held| held.state == State::Over && !fires(held))
            .map(|held| held.id)
            .collect();
        self.settings.held.retain(|held| !ended.contains(&held.id));
        Ok(())
    }
}
