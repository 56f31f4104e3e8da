//! The executor that acts, with the files open that are wanted when memory is short.

#[cfg(test)]
mod tests;

use super::sysctl::{Sysctl, SysctlError};
use super::{Executor, Live, compact_memory, drop_caches};
use crate::model::{Action, Decision, Mode, OutcomeResult, Verdict};

/// Does what [`Live`] does; opening a file may need memory that is not there.
#[derive(Debug)]
pub struct Ready {
    live: Live,
    drop_caches: Sysctl,
    compact_memory: Sysctl,
}

impl Ready {
    /// Nothing is opened before it is needed, or [`Ready::open`] is called.
    pub fn new(live: Live) -> Self {
        Self {
            drop_caches: drop_caches::file(&live.procfs),
            compact_memory: compact_memory::file(&live.procfs),
            live,
        }
    }

    /// Opens what can be opened. What cannot is told when it is needed.
    pub fn open(&mut self) {
        self.drop_caches.open();
        self.compact_memory.open();
    }
}

impl Executor for Ready {
    /// Anything but an Act in enforce mode is skipped, whoever asks.
    fn execute(&mut self, decision: &Decision) -> OutcomeResult {
        if decision.mode != Mode::Enforce || decision.verdict != Verdict::Act {
            return OutcomeResult::Skipped;
        }
        let done = match &decision.action {
            Action::DropCaches { what, sync } => {
                self.drop_caches.open();
                drop_caches::perform(&mut self.drop_caches, *what, *sync)
            }
            Action::CompactMemory => {
                self.compact_memory.open();
                compact_memory::perform(&mut self.compact_memory)
            }
            _ => return self.live.execute(decision),
        };
        let told = |error: SysctlError| OutcomeResult::Failed(error.to_string());
        done.map_or_else(told, |()| OutcomeResult::Done)
    }
}
