//! The executor of the ordinary lane: actions on memory.

use std::path::PathBuf;

use super::evict::NotEvicted;
use super::sysctl::Sysctl;
use super::{
    Act, CacheEmptier, Evictor, Executor, Mounts, Performed, TemporarySettings, compact_memory,
    drop_caches, notify, reclaim,
};
use crate::model::{Action, OutcomeResult};

/// What the executor needs from the daemon.
#[derive(Debug)]
pub struct MemorySetup {
    /// Mount point of procfs: `/proc` except in tests and containers.
    pub procfs: PathBuf,
    /// Mount point of sysfs: `/sys` except in tests and containers.
    pub sysfs: PathBuf,
    /// Evicts the model files of loading engines.
    pub evictor: Evictor,
    /// Temporary settings and the undo log.
    pub temporary: TemporarySettings,
    /// Makes engines return memory.
    pub emptier: CacheEmptier,
}

/// Performs the acts of the ordinary lane on this machine.
#[derive(Debug)]
pub struct MemoryExecutor {
    setup: MemorySetup,
    drop_caches: Sysctl,
    compact_memory: Sysctl,
}

impl MemoryExecutor {
    /// Files are opened by the first act or by [`MemoryExecutor::open`].
    pub fn new(setup: MemorySetup) -> Self {
        Self {
            drop_caches: drop_caches::file(&setup.procfs),
            compact_memory: compact_memory::file(&setup.procfs),
            setup,
        }
    }

    /// Opens the files of the kernel beforehand: opening one may need memory that is not available.
    /// An error is reported by the act that needs the file.
    pub fn open(&mut self) {
        self.drop_caches.open();
        self.compact_memory.open();
    }

    fn evict(&self, act: &Act) -> Performed {
        let MemorySetup { procfs, sysfs, evictor, .. } = &self.setup;
        let mounts = Mounts { procfs: procfs.clone(), sysfs: sysfs.clone() };
        match evictor.perform(mounts, act) {
            Err(NotEvicted::Untouched(why)) => OutcomeResult::NotDone(why).into(),
            done => done.into(),
        }
    }
}

impl Executor for MemoryExecutor {
    fn begin(&mut self) {
        self.setup.temporary.begin();
    }

    fn execute(&mut self, act: &Act) -> Performed {
        let MemorySetup { sysfs, temporary, emptier, .. } = &mut self.setup;
        match &act.action {
            Action::DropCaches { what, sync } => {
                self.drop_caches.open();
                drop_caches::perform(&mut self.drop_caches, *what, *sync).into()
            }
            Action::CompactMemory => {
                self.compact_memory.open();
                compact_memory::perform(&mut self.compact_memory).into()
            }
            Action::Reclaim { cgroup, bytes, .. } => reclaim::perform(sysfs, cgroup, *bytes).into(),
            Action::EvictCheckpoint { .. } => self.evict(act),
            Action::EmptyCache { allow, .. } => emptier.perform(act, allow, temporary),
            Action::SetSysctl { values, for_at_most } => {
                temporary.set_sysctls(act, values, *for_at_most).into()
            }
            Action::ThrottleReadahead { kib, devices, of, for_at_most } => {
                temporary.throttle_readahead(act, *kib, (devices, of), *for_at_most).into()
            }
            Action::Undo { decision, .. } => temporary.undo(*decision).into(),
            Action::Notify { .. } => {
                notify(act);
                OutcomeResult::Done.into()
            }
            Action::TaintNode { .. }
            | Action::CordonNode { .. }
            | Action::StopEngine { .. }
            | Action::StartContainer { .. }
            | Action::StartUnit { .. }
            | Action::Reboot(_) => Performed::of_another_lane(act),
        }
    }

    fn is_unfinished(&self) -> bool {
        self.setup.temporary.is_any_engine_paused()
    }

    fn tend(&mut self) {
        self.setup.temporary.tend();
    }

    fn end(&mut self) {
        self.setup.temporary.end();
    }
}

#[cfg(test)]
mod tests;
