//! The executor that acts.

use std::path::PathBuf;
use std::time::Duration;

use super::evict::NotEvicted;
use super::start;
use super::stop::{self, Stop};
use super::{
    CacheEmptier, Evictor, Executor, Mounts, Ready, TemporarySettings, compact_memory, drop_caches,
    notify, reclaim,
};
use crate::model::{Action, Decision, Mode, OutcomeResult, Target, Verdict};
use crate::supervisors::systemd::Bus;

/// Acts on this machine.
#[derive(Clone, Debug)]
pub struct Live {
    /// Where procfs is mounted; `/proc` but for tests and containers.
    pub procfs: PathBuf,
    /// Where sysfs is mounted; `/sys` but for tests and containers.
    pub sysfs: PathBuf,
    /// Who follows loads.
    pub evictor: Evictor,
    /// The socket of Docker, or of whatever speaks its language.
    pub docker: PathBuf,
    /// Where systemd is reached.
    pub systemd: Bus,
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
                drop_caches::perform(&mut drop_caches::file(&self.procfs), *what, *sync)
                    .map_err(|error| told(&error))
            }
            Action::CompactMemory => {
                compact_memory::perform(&mut compact_memory::file(&self.procfs))
                    .map_err(|error| told(&error))
            }
            Action::Reclaim { cgroup, bytes, .. } => {
                reclaim::perform(&self.sysfs, cgroup, *bytes).map_err(|error| told(&error))
            }
            Action::EvictCheckpoint { .. } => {
                let (procfs, sysfs) = (self.procfs.clone(), self.sysfs.clone());
                match self.evictor.perform(Mounts { procfs, sysfs }, decision) {
                    Err(NotEvicted::Untouched(why)) => return OutcomeResult::NotDone(why),
                    done => done.map_err(|error| error.to_string()),
                }
            }
            Action::Notify { message } => {
                notify::perform(decision, message);
                Ok(())
            }
            Action::StopEngine { grace_ms, unless_free_bytes, .. } => match &decision.target {
                Target::Engine(engine) => match stop::perform(&Stop {
                    procfs: &self.procfs,
                    sysfs: &self.sysfs,
                    docker: &self.docker,
                    engine,
                    grace: Duration::from_millis(*grace_ms),
                    unless_free_bytes: *unless_free_bytes,
                }) {
                    Err(error) if error.is_untouched() => {
                        return OutcomeResult::NotDone(error.to_string());
                    }
                    done => done.map_err(|error| told(&error)),
                },
                other => Err(format!("stop_engine works on an engine, and not on {other}")),
            },
            Action::StartContainer { ended } => match &decision.target {
                Target::Held(held) => return start::container(&self.docker, held, ended),
                other => Err(format!("start_container works on a container, and not on {other}")),
            },
            Action::StartUnit { ended } => match &decision.target {
                Target::Held(held) => return start::unit(&self.systemd, held, ended),
                other => Err(format!("start_unit works on a unit, and not on {other}")),
            },
            // Nothing is touched that could not be put back.
            Action::SetSysctl { .. }
            | Action::ThrottleReadahead { .. }
            | Action::EmptyCache { .. }
            | Action::Undo { .. } => Err("this executor has no undo log".to_owned()),
            Action::Reboot(_) => Err("only the rebooter reboots".to_owned()),
        };
        match done {
            Ok(()) => OutcomeResult::Done,
            Err(error) => OutcomeResult::Failed(error),
        }
    }
}

/// Acts on this machine, and puts back what was changed for a while.
#[derive(Debug)]
pub struct Acting {
    live: Ready,
    temporary: TemporarySettings,
    emptier: CacheEmptier,
    /// What is to be told of the last decision.
    effect: Option<String>,
}

impl Acting {
    /// `live` does what needs no undoing.
    pub fn new(live: Ready, temporary: TemporarySettings, emptier: CacheEmptier) -> Self {
        Self { live, temporary, emptier, effect: None }
    }
}

impl Executor for Acting {
    fn begin(&mut self) {
        self.temporary.begin();
    }

    fn execute(&mut self, decision: &Decision) -> OutcomeResult {
        if decision.mode != Mode::Enforce || decision.verdict != Verdict::Act {
            return OutcomeResult::Skipped;
        }
        self.effect = None;
        if let Some((result, effect)) = self.emptier.execute(decision, &mut self.temporary) {
            self.effect = effect;
            return result;
        }
        match self.temporary.execute(decision) {
            Some(result) => result,
            None => self.live.execute(decision),
        }
    }

    fn effect(&mut self) -> Option<String> {
        self.effect.take()
    }

    fn is_unfinished(&self) -> bool {
        self.temporary.is_any_engine_paused()
    }

    fn tend(&mut self) {
        self.temporary.tend();
    }

    fn end(&mut self) {
        self.temporary.end();
    }
}

#[cfg(test)]
mod tests;
