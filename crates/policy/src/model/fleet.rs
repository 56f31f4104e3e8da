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
    /// Which one an action is. A reboot's own stops are bounded by the lock of reboots.
    pub fn of(action: &Action) -> Option<Self> {
        match action {
            Action::StopEngine { for_reboot: None, .. } => Some(Self::StopEngine),
            Action::DropCaches { .. } => Some(Self::DropCaches),
            _ => None,
        }
    }
}
