//! One file per thing done, and who does it.
//!
//! To add an action: a variant of [`crate::model::Action`], a file here that performs it, an arm in
//! [`Live`], and a test against a real or a fixture directory. What changes the machine for a while
//! goes through [`TemporarySettings`] instead, which puts it back.

mod cgroup;
mod compact_memory;
mod drop_caches;
mod dry_run;
mod empty;
mod evict;
mod live;
mod notify;
mod ready;
mod reboot;
mod reclaim;
mod room;
mod start;
mod stop;
mod sysctl;
mod temporary;
mod worker;

pub use dry_run::DryRun;
pub use empty::{CacheEmptier, EmptyingTally};
pub use evict::{EvictTally, Evictor, Mounts};
pub use live::{Acting, Live};
pub use ready::Ready;
pub use reboot::Rebooter;
pub use room::RoomMaker;
pub use temporary::{SettingsTally, TemporarySettings, TemporarySetup};
pub use worker::{ActionWorker, Busy, DEFAULT_TIME_LIMIT, Intent, WorkerSetup};

use crate::model::{Decision, OutcomeResult};

/// Performs what has been decided, and chooses nothing.
pub trait Executor {
    /// Performs one decision. May block for as long as the kernel likes.
    fn execute(&mut self, decision: &Decision) -> OutcomeResult;

    /// Does what comes before the first decision: puts back what an earlier process has left.
    fn begin(&mut self) {}

    /// What else is to be told of the decision that was just performed; once.
    fn effect(&mut self) -> Option<String> {
        None
    }

    /// Whether something is left that cannot wait for the next decision.
    fn is_unfinished(&self) -> bool {
        false
    }

    /// Tries that once more.
    fn tend(&mut self) {}

    /// Does what comes after the last decision: puts back what was changed for a while.
    fn end(&mut self) {}
}
