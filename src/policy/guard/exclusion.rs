//! One action at a time: what is measured after an action must be its own effect.

use std::time::Duration;

use crate::model::{DecisionId, Mode, Target};

/// After this an action whose outcome has not come is taken for lost. Executors bound their actions
/// far below it; it only keeps a lost message from holding a remedy for ever.
const OUTCOME_LOST_AFTER: Duration = Duration::from_secs(900);

/// Whether the outcome of an action decided at `since` will not come any more.
pub(in crate::policy) fn outcome_is_lost(since: Duration, now: Duration) -> bool {
    now.saturating_sub(since) >= OUTCOME_LOST_AFTER
}

/// The actions under way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct UnderWay(Vec<(DecisionId, Mode, Target, Duration)>);

impl UnderWay {
    pub(super) fn begin(&mut self, id: DecisionId, mode: Mode, target: Target, now: Duration) {
        self.0.push((id, mode, target, now));
    }

    pub(super) fn end(&mut self, decision: DecisionId) {
        self.0.retain(|(id, ..)| *id != decision);
    }

    pub(super) fn give_up(&mut self, now: Duration) {
        self.0.retain(|(.., since)| !outcome_is_lost(*since, now));
    }

    /// Whether an action of that mode must wait. Every target is a part of the node, and two
    /// actions on one node move the same signals, so that any action excludes any other.
    pub(super) fn exclude(&self, mode: Mode) -> bool {
        self.0.iter().any(|(_, under_way, ..)| *under_way == mode)
    }

    /// The first action of that mode, and since when it is under way.
    pub(super) fn first(&self, mode: Mode) -> Option<(DecisionId, Duration)> {
        let mut own = self.0.iter().filter(|(_, under_way, ..)| *under_way == mode);
        own.next().map(|(id, .., since)| (*id, *since))
    }
}
