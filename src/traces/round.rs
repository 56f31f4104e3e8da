//! One round of a remedy.

use std::time::Duration;

use super::TracedAlert;
use super::ids::Ids;
use crate::model::{
    Action, AimCheck, DecisionId, DecisionRecord, Event, HoldReason, Moment, Outcome,
};

/// A round with more decisions continues in another trace.
const MOST_DECISIONS: usize = 32;

/// Kinds of events in one trace.
const MOST_EVENTS: usize = 4;

/// An action without an outcome has an unknown end after this time. The policy treats it as lost by
/// then.
const OUTCOME_LOST_AFTER: Duration = Duration::from_secs(900);

/// The longest time from an action to the measurement after it.
const MEASURED_WITHIN: Duration = Duration::from_secs(60);

/// The longest time for a started engine to be ready, or to die.
const STARTED_WITHIN: Duration = Duration::from_secs(1800);

/// A round is finished after this time without a new entry: with a result, and without.
const RESTS: Duration = Duration::from_secs(5);
const RESTS_UNCONCLUDED: Duration = Duration::from_secs(60);

/// Why a round is finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RoundEnd {
    /// No further entries.
    Rest,
    /// The program ends.
    Cut,
}

#[derive(Debug)]
pub(super) struct TraceRound {
    ids: Ids,
    pub(super) began: Moment,
    pub(super) alerts: Vec<TracedAlert>,
    pub(super) events: Vec<Event>,
    pub(super) acts: Vec<TracedAct>,
    /// The previous round of the same alert.
    pub(super) previous: Option<Ids>,
    /// The time of the last entry.
    pub(super) last: Moment,
    alert_ended: bool,
}

#[derive(Debug)]
pub(super) struct TracedAct {
    pub(super) decision: DecisionRecord,
    pub(super) outcome: Option<Outcome>,
    pub(super) aim_check: Option<AimCheck>,
}

impl TracedAct {
    fn is_act(&self) -> bool {
        self.decision.is_act()
    }

    /// Whether an outcome or aim check is still expected.
    fn is_awaited(&self, now: Duration) -> bool {
        let passed = |since: Moment| now.saturating_sub(since.uptime);
        match (&self.outcome, &self.aim_check) {
            _ if !self.is_act() => false,
            (None, _) => passed(self.decision.at) < OUTCOME_LOST_AFTER,
            (Some(outcome), None) => {
                outcome.result.is_begun()
                    && passed(outcome.ended) < measured_within(&self.decision.action)
            }
            (Some(_), Some(_)) => false,
        }
    }

    /// Whether nothing is left to try: it helped, its effect is unknown, or nothing was done.
    fn concludes(&self) -> bool {
        let unbegun = self.outcome.as_ref().is_some_and(|outcome| !outcome.result.is_begun());
        let aim_checked = self.aim_check.as_ref().is_some_and(|seen| seen.aim_met != Some(false));
        let exhausted = self.decision.hold_reason() == Some(HoldReason::StepsExhausted);
        unbegun || aim_checked || exhausted
    }
}

/// Scheduled, undone and temporary actions are not assessed by themselves.
fn measured_within(action: &Action) -> Duration {
    match action {
        Action::Reboot(_) | Action::Undo { .. } => Duration::ZERO,
        action if action.for_at_most().is_some() => Duration::ZERO,
        Action::StartContainer { .. } | Action::StartUnit { .. } => STARTED_WITHIN,
        _ => MEASURED_WITHIN,
    }
}

impl TraceRound {
    /// A round that begins now.
    pub(super) fn new(
        ids: Ids,
        began: Moment,
        alerts: Vec<TracedAlert>,
        previous: Option<Ids>,
    ) -> Self {
        Self {
            ids,
            began,
            alerts,
            events: Vec::new(),
            acts: Vec::new(),
            previous,
            last: began,
            alert_ended: false,
        }
    }

    pub(super) fn ids(&self) -> &Ids {
        &self.ids
    }

    /// Adds an event that the rule reads.
    pub(super) fn made_by(&mut self, event: &Event) {
        let is_known = self.events.iter().any(|known| known.kind.kind() == event.kind.kind());
        if !is_known && self.events.len() < MOST_EVENTS {
            self.events.push(event.clone());
        }
    }

    pub(super) fn decide(&mut self, decision: DecisionRecord) {
        self.last = decision.at;
        self.alert_ended = false;
        self.acts.push(TracedAct { decision, outcome: None, aim_check: None });
    }

    /// The act of a decision, which gets an entry now.
    pub(super) fn act(&mut self, id: DecisionId, now: Moment) -> Option<&mut TracedAct> {
        let act = self.acts.iter_mut().find(|act| act.decision.id == id)?;
        self.last = self.last.max(now);
        Some(act)
    }

    /// No alert of the rule is firing.
    pub(super) fn alert_ended(&mut self, at: Moment) {
        self.last = self.last.max(at);
        self.alert_ended = true;
    }

    pub(super) fn is_full(&self) -> bool {
        self.acts.len() >= MOST_DECISIONS
    }

    /// Whether the last act has a result. A further act begins another round.
    pub(super) fn is_concluded(&self) -> bool {
        let since_act = self.acts.iter().rposition(TracedAct::is_act);
        since_act.is_some_and(|index| self.acts[index..].iter().any(TracedAct::concludes))
    }

    /// Whether the round is finished.
    pub(super) fn is_due(&self, now: Duration, alert_fires: bool) -> bool {
        if self.acts.iter().any(|act| act.is_awaited(now)) {
            return false;
        }
        let rests = now.saturating_sub(self.last.uptime);
        match self.is_concluded() || (self.alert_ended && !alert_fires) {
            true => rests >= RESTS,
            false => rests >= RESTS_UNCONCLUDED,
        }
    }

    /// Acts whose outcome or aim check may still come.
    pub(super) fn unended(&self) -> impl Iterator<Item = DecisionId> + '_ {
        let acts = self.acts.iter().filter(|act| act.is_act());
        let unended = acts.filter(|act| match &act.outcome {
            None => true,
            Some(outcome) => outcome.result.is_begun() && act.aim_check.is_none(),
        });
        unended.map(|act| act.decision.id)
    }
}
