//! One file per thing done, and who does it.
//!
//! To add an action: a variant of [`crate::model::Action`], a file here that performs it, an arm in
//! [`Live`], and a test against a real or a fixture directory.

mod cgroup;
mod compact_memory;
mod drop_caches;
mod dry_run;
mod live;
mod notify;
mod reclaim;
mod stop;
mod sysctl;
mod worker;

pub use dry_run::DryRun;
pub use live::Live;
pub use worker::{ActionWorker, Busy, DEFAULT_TIME_LIMIT, Intent, WorkerSetup};

use crate::model::{Decision, OutcomeResult};

/// Performs what has been decided, and chooses nothing.
pub trait Executor {
    /// Performs one decision. May block for as long as the kernel likes.
    fn execute(&mut self, decision: &Decision) -> OutcomeResult;
}
