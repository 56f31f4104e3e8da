//! The stages of a reboot of last resort.

use super::names::named;

named! {
    /// The stage of a reboot.
    #[derive(Default)]
    pub enum RebootStage {
        /// None is scheduled.
        #[default]
        None = "none",
        /// It is being recorded and announced.
        Announcing = "announcing",
        /// It is not due yet.
        Scheduled = "scheduled",
        /// It is due, and blocked.
        Waiting = "waiting",
        /// Logged-in users were warned, and have some time.
        Warning = "warning",
        /// The cluster's slot was requested.
        TakingSlot = "taking_slot",
        /// Engines are being stopped.
        Draining = "draining",
        /// The machine is about to be rebooted.
        Performing = "performing",
        /// The request was accepted, and the machine is still up.
        HandedOver = "handed_over",
    }
}

impl RebootStage {
    /// The text for people.
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
