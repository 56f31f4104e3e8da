//! Disturbances that a program in the field must survive.

use std::time::Duration;

use super::chance::Chance;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One source fails for a while.
    Fault,
    /// All sources fail for a while.
    AllFault,
    /// The wall clock is set.
    ClockJump,
    /// The machine sleeps.
    Suspend,
    /// The program is ended and started again.
    Restart,
    /// The program is killed and started again.
    Kill,
    /// The machine is shut down and started again.
    Reboot,
    /// The machine loses power and is started again.
    PowerCut,
    /// The same or other rules, and perhaps another mode.
    Reload,
    /// Thousands of lines in the kernel log.
    Burst,
    /// The journal's disk fails for a while.
    JournalDown,
    /// A person approves, silences, or resets a stopped remedy.
    Order,
    /// A person pauses everything, or resumes it.
    Pause,
    /// A supervisor is down, silent, or answers falsely.
    Supervisor,
    /// A person starts or stops a container or a unit.
    Hand,
    /// No process is scanned for a while.
    LookHangs,
    /// Another program changes a setting.
    Setting,
    /// Alerts are posted.
    Post,
    /// Very many alerts are posted, or resolved.
    Flood,
    /// Another node falls silent, reports falsely, comes or goes.
    Neighbour,
}

pub const KINDS: [Kind; 20] = [
    Kind::Fault,
    Kind::AllFault,
    Kind::ClockJump,
    Kind::Suspend,
    Kind::Restart,
    Kind::Kill,
    Kind::Reboot,
    Kind::PowerCut,
    Kind::Reload,
    Kind::Burst,
    Kind::JournalDown,
    Kind::Order,
    Kind::Pause,
    Kind::Supervisor,
    Kind::Hand,
    Kind::LookHangs,
    Kind::Setting,
    Kind::Post,
    Kind::Flood,
    Kind::Neighbour,
];

impl Kind {
    pub fn name(self) -> String {
        format!("{self:?}")
    }

    /// Beats from one to the next, on average.
    fn every(self) -> u32 {
        match self {
            Self::Order | Self::Post => 20,
            Self::Neighbour => 30,
            Self::Fault => 60,
            Self::Reload | Self::Burst | Self::Supervisor | Self::Hand => 200,
            Self::AllFault | Self::ClockJump | Self::Suspend | Self::Restart | Self::Kill => 300,
            Self::LookHangs | Self::Setting | Self::Flood => 300,
            Self::Reboot | Self::PowerCut | Self::JournalDown | Self::Pause => 800,
        }
    }
}

/// When each kind comes next.
pub struct Calendar {
    entries: Vec<Entry>,
    beat: Duration,
}

struct Entry {
    kind: Kind,
    at: Duration,
    chance: Chance,
}

impl Calendar {
    pub fn new(seed: u64, beat: Duration, is_left_out: impl Fn(&str) -> bool) -> Self {
        let kinds = KINDS.into_iter().filter(|kind| !is_left_out(&kind.name()));
        let entries = kinds.map(|kind| {
            let mut chance = Chance::new(seed, &kind.name());
            // Some runs omit one kind.
            let is_rare = chance.once_in(4);
            let at = chance.until(beat * kind.every());
            let at = if is_rare { Duration::MAX } else { at };
            Entry { kind, at, chance }
        });
        Self { entries: entries.collect(), beat }
    }

    pub fn next(&self) -> Option<Duration> {
        self.entries.iter().map(|entry| entry.at).min()
    }

    /// One that is due, with the randomness that it may use.
    pub fn take(&mut self, now: Duration) -> Option<(Kind, &mut Chance)> {
        let entry = self.entries.iter_mut().find(|entry| entry.at <= now)?;
        entry.at = now + entry.chance.until(self.beat * entry.kind.every());
        Some((entry.kind, &mut entry.chance))
    }
}
