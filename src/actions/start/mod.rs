//! Starts again what has ended: a container or a unit, if it is still as it was when that was
//! decided.

mod container;

use std::path::Path;

use crate::model::{HeldTarget, OutcomeResult};

/// It was not started.
#[derive(Clone, Debug, PartialEq, Eq)]
enum NotStarted {
    /// It is not as it was any more, and was left alone.
    Stale(String),
    /// It could not be started.
    Failed(String),
}

fn outcome(done: Result<(), NotStarted>) -> OutcomeResult {
    match done {
        Ok(()) => OutcomeResult::Done,
        Err(NotStarted::Stale(why)) => OutcomeResult::NotDone(why),
        Err(NotStarted::Failed(why)) => OutcomeResult::Failed(why),
    }
}

/// Starts a container that has ended, if that end is still the last thing that it did.
pub(super) fn container(socket: &Path, held: &HeldTarget, ended: &str) -> OutcomeResult {
    outcome(container::start(socket, held, ended))
}
