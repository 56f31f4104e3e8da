//! How far a reboot of last resort has come.

use super::names::named;

named! {
    /// How far a reboot has come.
    #[derive(Default)]
    pub enum RebootStage {
        /// None is scheduled.
        #[default]
        None = "none",
        /// It is being written down and told.
        Announcing = "announcing",
        /// It is not due yet.
        Scheduled = "scheduled",
        /// It is due, and something holds it back.
        Waiting = "waiting",
        /// Those who are logged in were warned, and have some time.
        Warning = "warning",
        /// The cluster's slot was asked for.
        TakingSlot = "taking_slot",
        /// Engines are being stopped.
        Draining = "draining",
        /// The machine is about to be rebooted.
        Performing = "performing",
        /// Whoever does it has agreed, and the machine is still up.
        HandedOver = "handed_over",
    }
}

impl RebootStage {
    /// What it says, for people.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::None => "no reboot is scheduled",
            Self::Announcing => "a reboot is being announced",
            Self::Scheduled => "a reboot is scheduled",
            Self::Waiting => "a reboot is due, and waits",
            Self::Warning => "a reboot is due, and those who are logged in have been warned",
            Self::TakingSlot => "a reboot is due, and the cluster's slot was asked for",
            Self::Draining => "a reboot is due, and engines are being stopped",
            Self::Performing => "the machine is about to be rebooted",
            Self::HandedOver => "the reboot is under way",
        }
    }
}
