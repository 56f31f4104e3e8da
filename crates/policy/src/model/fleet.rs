//! Actions of which only so many nodes of a cluster may do one at the same time.

use super::Action;
use super::names::named;

named! {
    /// An action that the fleet's limit may bound.
    pub enum FleetAction {
        /// An engine is stopped by a remedy.
        StopEngine = "stop_engine",
        /// Caches of the whole node are dropped.
        DropCaches = "drop_caches",
    }
}

impl FleetAction {
    /// Which one an action is. The brake waits for nobody: its node would be lost meanwhile. A
    /// reboot's own stops are bounded by the lock of reboots.
    pub fn of(action: &Action) -> Option<Self> {
        match action {
            Action::StopEngine { engine: Some(_), for_reboot: None, .. } => Some(Self::StopEngine),
            Action::DropCaches { .. } => Some(Self::DropCaches),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::DecisionId;

    #[test]
    fn only_the_stop_of_a_named_engine_waits_for_other_nodes() {
        let stop = |engine: Option<&str>, for_reboot| Action::StopEngine {
            engine: engine.map(str::to_owned),
            grace_ms: 0,
            unless_free_bytes: None,
            for_reboot,
        };
        assert_eq!(FleetAction::of(&stop(Some("llm"), None)), Some(FleetAction::StopEngine));
        assert_eq!(FleetAction::of(&stop(None, None)), None, "the brake");
        assert_eq!(FleetAction::of(&stop(None, Some(DecisionId(1)))), None);
    }
}
