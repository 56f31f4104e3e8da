//! What remedies, restarts, reboots and undos have in common.
//!
//! A proposal becomes a decision with a number. An act awaits its outcome until that comes or is
//! lost. A hold is reported when its reason changes, and not at every evaluation.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::model::{
    Action, Decision, DecisionId, DecisionRecord, Mode, Moment, Outcome, PendingApproval, RuleId,
    Target,
};

/// An act without an outcome is lost after this time. Executors bound their actions far below it;
/// it only keeps a lost message from holding a rule for ever.
const LOST_AFTER: Duration = Duration::from_secs(900);

/// The same reason is reported once in this time: a flapping rule would report it at every
/// evaluation.
const HOLD_REPORTED_EVERY: Duration = Duration::from_secs(60);

/// What a rule would do at a step, now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Proposal<'a> {
    pub(super) rule: &'a RuleId,
    pub(super) mode: Mode,
    pub(super) step: usize,
    pub(super) action: &'a Action,
    pub(super) target: &'a Target,
}

impl Proposal<'_> {
    /// Whether people were asked to approve of this.
    pub(super) fn is(&self, asked: &PendingApproval) -> bool {
        asked.rule == *self.rule
            && asked.mode == self.mode
            && asked.step == self.step
            && asked.action == *self.action
            && asked.target == *self.target
    }

    /// The decision on it, without approval and evidence.
    pub(super) fn decide(
        &self,
        decision: Decision,
        numbers: &mut DecisionNumbers,
        at: Moment,
    ) -> DecisionRecord {
        DecisionRecord {
            id: numbers.take(),
            at,
            rule: self.rule.clone(),
            mode: self.mode,
            decision,
            step: self.step,
            action: self.action.clone(),
            target: self.target.clone(),
            approved: None,
            goes_ahead: None,
            because: Vec::new(),
        }
    }
}

/// The number of the next decision; it continues the journal's.
#[derive(Debug)]
pub(super) struct DecisionNumbers(u64);

impl DecisionNumbers {
    pub(super) fn from(next: DecisionId) -> Self {
        Self(next.0)
    }

    fn take(&mut self) -> DecisionId {
        let id = DecisionId(self.0);
        self.0 += 1;
        id
    }
}

/// An act that was decided: its outcome is awaited, or has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Act {
    pub(super) decision: DecisionId,
    /// When it was decided, on the uptime clock.
    pub(super) since: Duration,
    /// When it had ended, on the uptime clock.
    ended: Option<Duration>,
}

impl Act {
    /// One that was decided then.
    pub(super) fn pending(decision: DecisionId, since: Duration) -> Self {
        Self { decision, since, ended: None }
    }

    /// One of an earlier run, which had ended then.
    pub(super) fn ended_at(decision: DecisionId, at: Duration) -> Self {
        Self { decision, since: at, ended: Some(at) }
    }

    /// Whether the outcome is that of this act.
    pub(super) fn is_of(&self, outcome: &Outcome) -> bool {
        self.decision == outcome.decision
    }

    /// Its outcome has come.
    pub(super) fn end(&mut self, outcome: &Outcome) {
        self.ended = Some(outcome.ended.uptime);
    }

    /// When it had ended, on the uptime clock; `None`: its outcome is awaited.
    pub(super) fn ended(&self) -> Option<Duration> {
        self.ended
    }

    /// Whether its outcome will not come any more.
    pub(super) fn is_lost(&self, now: Duration) -> bool {
        self.ended.is_none() && now.saturating_sub(self.since) >= LOST_AFTER
    }
}

/// The reasons for which something is held, and when each was reported.
#[derive(Clone, Debug)]
pub(super) struct HoldReasons<K> {
    /// Why it is held now.
    current: Option<K>,
    /// When each reason was reported last, on the uptime clock.
    reported: BTreeMap<K, Duration>,
}

impl<K> Default for HoldReasons<K> {
    fn default() -> Self {
        Self { current: None, reported: BTreeMap::new() }
    }
}

impl<K: Copy + Ord> HoldReasons<K> {
    /// It is held for that reason; returns whether this is to be reported.
    pub(super) fn hold(&mut self, reason: K, now: Duration) -> bool {
        let goes_on = self.current.replace(reason) == Some(reason);
        let last = self.reported.get(&reason);
        let lately = last.is_some_and(|last| now.saturating_sub(*last) < HOLD_REPORTED_EVERY);
        if goes_on || lately {
            return false;
        }
        self.reported.insert(reason, now);
        true
    }

    /// It is held for that reason, which is reported otherwise.
    pub(super) fn set(&mut self, reason: K) {
        self.current = Some(reason);
    }

    /// Nothing holds it any more. What was reported lately is not reported again.
    pub(super) fn release(&mut self) {
        self.current = None;
    }

    /// Nothing holds it any more, and what will is news.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Why it is held now.
    pub(super) fn current(&self) -> Option<K> {
        self.current
    }

    /// Whether there is nothing to forget.
    pub(super) fn is_empty(&self) -> bool {
        self.current.is_none() && self.reported.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_is_reported_when_its_reason_changes_and_once_a_minute() {
        let seconds = Duration::from_secs;
        let mut holds = HoldReasons::default();
        assert!(holds.is_empty());
        assert!(holds.hold('a', seconds(0)));
        assert!(!holds.hold('a', seconds(100)), "it goes on");
        assert!(holds.hold('b', seconds(101)));
        assert!(holds.hold('a', seconds(102)), "for long not reported");
        assert!(!holds.hold('b', seconds(110)), "reported 9 s ago");
        assert!(holds.current() == Some('b') && !holds.is_empty());
        holds.release();
        assert!(!holds.hold('b', seconds(160)), "59 s ago");
        holds.release();
        assert!(holds.hold('b', seconds(161)));
        holds.set('c');
        assert!(!holds.hold('c', seconds(162)), "reported otherwise");
        holds.forget();
        assert!(holds.hold('b', seconds(163)));
    }

    #[test]
    fn an_act_is_lost_only_while_its_outcome_is_awaited() {
        let at = Duration::from_secs;
        let act = Act::pending(DecisionId(7), at(10));
        assert!(!act.is_lost(at(909)) && act.is_lost(at(910)) && act.ended().is_none());
        let ended = Act::ended_at(DecisionId(7), at(10));
        assert!(!ended.is_lost(at(9_000)) && ended.ended() == Some(at(10)));
    }
}
