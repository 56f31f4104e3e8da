//! One action at a time: what is measured after an action must be its own effect. The brake waits
//! for nothing but itself: while an action hangs, the machine would be lost. Nobody waits for a
//! start but other starts: what a supervisor is asked to start takes memory only once it runs, and
//! a supervisor that does not answer is no reason to let memory run out.

use std::time::Duration;

use crate::model::{Action, Decision, DecisionId, Lane, Mode};

/// After this an action whose outcome has not come is taken for lost. Executors bound their actions
/// far below it; it only keeps a lost message from holding a remedy for ever.
const OUTCOME_LOST_AFTER: Duration = Duration::from_secs(900);

/// Whether the outcome of an action decided at `since` will not come any more.
pub(in crate::policy) fn outcome_is_lost(since: Duration, now: Duration) -> bool {
    now.saturating_sub(since) >= OUTCOME_LOST_AFTER
}

/// The actions under way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct UnderWay(Vec<Flight>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Flight {
    id: DecisionId,
    mode: Mode,
    lane: Lane,
    since: Duration,
}

impl UnderWay {
    pub(super) fn begin(&mut self, decision: &Decision) {
        self.0.push(Flight {
            id: decision.id,
            mode: decision.mode,
            lane: decision.action.lane(),
            since: decision.at.uptime,
        });
    }

    pub(super) fn end(&mut self, decision: DecisionId) {
        self.0.retain(|flight| flight.id != decision);
    }

    pub(super) fn give_up(&mut self, now: Duration) {
        self.0.retain(|flight| !outcome_is_lost(flight.since, now));
    }

    /// What an action of that mode must wait for, and since when that is under way. Every target is
    /// a part of the node, and two actions on one node move the same signals, so that any action
    /// excludes any other; what is beside them has a lane of its own.
    pub(super) fn excluder(&self, mode: Mode, action: &Action) -> Option<(DecisionId, Duration)> {
        let lane = action.lane();
        let excludes = |flight: &&Flight| flight.mode == mode && lane.waits_for(flight.lane);
        self.0.iter().find(excludes).map(|flight| (flight.id, flight.since))
    }
}
