//! The executor that acts.

use std::path::PathBuf;
use std::time::Duration;

use super::stop::{self, Stop};
use super::{Executor, compact_memory, drop_caches, notify, reclaim};
use crate::model::{Action, Decision, Mode, OutcomeResult, Target, Verdict};

/// Acts on this machine.
#[derive(Clone, Debug)]
pub struct Live {
    /// Where procfs is mounted; `/proc` but for tests and containers.
    pub procfs: PathBuf,
    /// Where sysfs is mounted; `/sys` but for tests and containers.
    pub sysfs: PathBuf,
    /// The socket of Docker, or of whatever speaks its language.
    pub docker: PathBuf,
}

impl Executor for Live {
    /// Anything but an Act in enforce mode is skipped, whoever asks.
    fn execute(&mut self, decision: &Decision) -> OutcomeResult {
        if decision.mode != Mode::Enforce || decision.verdict != Verdict::Act {
            return OutcomeResult::Skipped;
        }
        let told = |error: &dyn std::fmt::Display| error.to_string();
        let done = match &decision.action {
            Action::DropCaches { what, sync } => {
                drop_caches::perform(&self.procfs, *what, *sync).map_err(|error| told(&error))
            }
            Action::CompactMemory => {
                compact_memory::perform(&self.procfs).map_err(|error| told(&error))
            }
            Action::Reclaim { cgroup, bytes } => {
                reclaim::perform(&self.sysfs, cgroup, *bytes).map_err(|error| told(&error))
            }
            Action::Notify { message } => {
                notify::perform(decision, message);
                Ok(())
            }
            Action::StopEngine { grace_ms, unless_free_bytes } => match &decision.target {
                Target::Engine(engine) => stop::perform(&Stop {
                    procfs: &self.procfs,
                    sysfs: &self.sysfs,
                    docker: &self.docker,
                    engine,
                    grace: Duration::from_millis(*grace_ms),
                    unless_free_bytes: *unless_free_bytes,
                })
                .map_err(|error| told(&error)),
                other => Err(format!("stop_engine works on an engine, and not on {other}")),
            },
        };
        match done {
            Ok(()) => OutcomeResult::Done,
            Err(error) => OutcomeResult::Failed(error),
        }
    }
}

#[cfg(test)]
mod tests;
