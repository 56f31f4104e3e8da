//! One file per action, and one executor per lane of the worker.
//!
//! To add an action: a variant of [`crate::model::Action`], a file here that performs it, an arm in
//! the executor of its lane (most often [`MemoryExecutor`]), and a test against a real or a fixture
//! directory. A temporary change goes through [`TemporarySettings`], which undoes it.

mod cgroup;
mod compact_memory;
mod drop_caches;
mod empty;
mod evict;
mod memory;
#[cfg(feature = "kubernetes")]
mod node;
mod notify;
mod prepare;
mod reboot;
mod reclaim;
mod start;
mod stop;
mod sysctl;
mod temporary;
#[cfg(test)]
mod tests;
mod worker;

pub use empty::{CacheEmptier, EmptyingTally};
pub use evict::{EvictTally, Evictor, Mounts};
pub use memory::{MemoryExecutor, MemorySetup};
#[cfg(feature = "kubernetes")]
pub use node::NodeExecutor;
pub use notify::notify;
pub use prepare::MemoryPreparer;
pub use reboot::RebootExecutor;
pub use start::StartExecutor;
pub use stop::StopExecutor;
pub use temporary::{SettingsTally, TemporarySettings, TemporarySetup};
pub use worker::{ActionWorker, Busy, DEFAULT_TIME_LIMIT, Intent, LaneSetup, WorkerSetup};

use std::ops::Deref;

use crate::model::{DecisionRecord, Mode, OutcomeResult};

/// A decision to act, in enforce mode. Executors take nothing else, so that the mode is checked
/// here only.
#[derive(Clone, Debug)]
pub struct Act(DecisionRecord);

impl Act {
    /// The decision as an act.
    ///
    /// # Errors
    /// Returns the decision if it is of observe mode, or a hold.
    pub fn of(decision: DecisionRecord) -> Result<Self, Box<DecisionRecord>> {
        if decision.mode == Mode::Enforce && decision.is_act() {
            Ok(Self(decision))
        } else {
            Err(Box::new(decision))
        }
    }
}

impl Deref for Act {
    type Target = DecisionRecord;

    fn deref(&self) -> &DecisionRecord {
        &self.0
    }
}

/// The result of an act, and its measured effect in words, if it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Performed {
    /// How the act ended: done, not begun, failed or timed out.
    pub result: OutcomeResult,
    /// Its effect, for the journal.
    pub effect: Option<String>,
}

impl From<OutcomeResult> for Performed {
    fn from(result: OutcomeResult) -> Self {
        Self { result, effect: None }
    }
}

impl<E: ToString> From<Result<(), E>> for Performed {
    fn from(done: Result<(), E>) -> Self {
        match done {
            Ok(()) => OutcomeResult::Done.into(),
            Err(error) => OutcomeResult::Failed(error.to_string()).into(),
        }
    }
}

impl Performed {
    /// An action of another lane: a bug of the caller.
    fn of_another_lane(act: &Act) -> Self {
        let action = act.action.name();
        OutcomeResult::NotDone(format!("{action} belongs to another lane: please report this"))
            .into()
    }
}

/// Performs the acts of one lane, and decides nothing.
pub trait Executor {
    /// Performs one act. May block as long as the kernel does.
    fn execute(&mut self, act: &Act) -> Performed;

    /// Called before the first act: undoes the changes of an earlier process.
    fn begin(&mut self) {}

    /// Whether unfinished work cannot wait for the next act.
    fn is_unfinished(&self) -> bool {
        false
    }

    /// Retries unfinished work.
    fn tend(&mut self) {}

    /// Called after the last act: undoes temporary changes.
    fn end(&mut self) {}
}
