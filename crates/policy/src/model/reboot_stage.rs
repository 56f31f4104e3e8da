//! How far a reboot of last resort has come.

use serde::{Deserialize, Serialize};

/// How far a reboot has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RebootStage {
    /// None is scheduled.
    #[default]
    None,
    /// It is being written down and told.
    Announcing,
    /// It is not due yet.
    Scheduled,
    /// It is due, and something holds it back.
    Waiting,
    /// Those who are logged in were warned, and have some time.
    Warning,
    /// The cluster's slot was asked for.
    TakingSlot,
    /// Engines are being stopped.
    Draining,
    /// The machine is about to be rebooted.
    Performing,
    /// Whoever does it has agreed, and the machine is still up.
    HandedOver,
}

impl RebootStage {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::None,
        Self::Announcing,
        Self::Scheduled,
        Self::Waiting,
        Self::Warning,
        Self::TakingSlot,
        Self::Draining,
        Self::Performing,
        Self::HandedOver,
    ];

    /// The name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Announcing => "announcing",
            Self::Scheduled => "scheduled",
            Self::Waiting => "waiting",
            Self::Warning => "warning",
            Self::TakingSlot => "taking_slot",
            Self::Draining => "draining",
            Self::Performing => "performing",
            Self::HandedOver => "handed_over",
        }
    }

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
