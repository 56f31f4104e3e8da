//! Restarts a container or a unit, if it is unchanged since the decision.

mod container;
mod unit;

use std::path::PathBuf;

use super::{Act, Executor, Performed};
use crate::model::{Action, OutcomeResult, Target};
use crate::supervisors::systemd::Bus;

/// The restart failed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum NotStarted {
    /// It has changed since the decision, and was left alone.
    Stale(String),
    /// It could not be started.
    Failed(String),
}

/// The executor of the lane of starts, in which a supervisor may hang.
#[derive(Clone, Debug)]
pub struct StartExecutor {
    /// Docker's socket, or that of a server with the same API.
    pub docker: PathBuf,
    /// The bus of systemd.
    pub systemd: Bus,
    /// Where users have their folders for the time of their sessions.
    pub user_folders: PathBuf,
}

/// Starts a workload, if the end in the decision is still its last change.
impl Executor for StartExecutor {
    fn execute(&mut self, act: &Act) -> Performed {
        let started = match (&act.action, &act.target) {
            (Action::StartContainer { ended }, Target::Workload(workload)) => {
                container::start(&self.docker, workload, ended)
            }
            (Action::StartUnit { ended }, Target::Workload(workload)) => {
                unit::start((&self.systemd, &self.user_folders), workload, ended)
            }
            (Action::StartContainer { .. } | Action::StartUnit { .. }, other) => {
                let what = act.action.name();
                let why = format!("{what} works on what has ended, and not on {other}");
                Err(NotStarted::Failed(why))
            }
            _ => return Performed::of_another_lane(act),
        };
        match started {
            Ok(()) => OutcomeResult::Done,
            Err(NotStarted::Stale(why)) => OutcomeResult::NotDone(why),
            Err(NotStarted::Failed(why)) => OutcomeResult::Failed(why),
        }
        .into()
    }
}
