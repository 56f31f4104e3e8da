//! The executor that acts.

use std::path::PathBuf;

use super::{Executor, compact_memory, drop_caches, notify};
use crate::model::{Action, Decision, Mode, OutcomeResult, Verdict};

/// Acts on this machine.
#[derive(Clone, Debug)]
pub struct Live {
    /// Where procfs is mounted; `/proc` but for tests and containers.
    pub procfs: PathBuf,
}

impl Executor for Live {
    /// Anything but an Act in enforce mode is skipped, whoever asks.
    fn execute(&mut self, decision: &Decision) -> OutcomeResult {
        if decision.mode != Mode::Enforce || decision.verdict != Verdict::Act {
            return OutcomeResult::Skipped;
        }
        let done = match &decision.action {
            Action::DropCaches { what, sync } => drop_caches::perform(&self.procfs, *what, *sync),
            Action::CompactMemory => compact_memory::perform(&self.procfs),
            Action::Notify { message } => {
                notify::perform(decision, message);
                Ok(())
            }
        };
        match done {
            Ok(()) => OutcomeResult::Done,
            Err(error) => OutcomeResult::Failed(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests;
