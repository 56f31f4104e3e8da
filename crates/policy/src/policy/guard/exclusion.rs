//! One action at a time: what is measured after an action must be its own effect. The brake waits
//! for nothing but itself: while an action hangs, the machine would be lost. Nobody waits for a
//! start but other starts: what a supervisor is asked to start takes memory only once it runs, and
//! a supervisor that does not answer is no reason to let memory run out.

use std::time::Duration;

use crate::model::{Action, DecisionId, DecisionRecord, Lane, Mode, Outcome};
use crate::policy::act::Act;

/// The actions under way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ActionsInFlight(Vec<Flight>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Flight {
    act: Act,
    mode: Mode,
    lane: Lane,
}

impl ActionsInFlight {
    pub(super) fn begin(&mut self, decision: &DecisionRecord) {
        self.0.push(Flight {
            act: Act::pending(decision.id, decision.at.uptime),
            mode: decision.mode,
            lane: decision.action.lane(),
        });
    }

    pub(super) fn end(&mut self, outcome: &Outcome) {
        self.0.retain(|flight| !flight.act.is_of(outcome));
    }

    pub(super) fn give_up(&mut self, now: Duration) {
        self.0.retain(|flight| !flight.act.is_lost(now));
    }

    /// What an action of that mode must wait for, and since when that is under way. Every target is
    /// a part of the node, and two actions on one node move the same signals, so that any action
    /// excludes any other; actions that do not exclude each other have a lane of their own.
    pub(super) fn excluder(&self, mode: Mode, action: &Action) -> Option<(DecisionId, Duration)> {
        let lane = action.lane();
        let excludes = |flight: &&Flight| flight.mode == mode && lane.waits_for(flight.lane);
        self.0.iter().find(excludes).map(|flight| (flight.act.decision, flight.act.since))
    }
}
