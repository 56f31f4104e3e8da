//! Priorities of this process when memory is short: locked pages, CPU weight, OOM score.
//!
//! Each is optional. A refused one is logged once.

use std::fs;
use std::io;

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, getpriority_process, getrlimit, setpriority_process};
use rustix::thread::{CapabilitySet, capabilities};

/// For threads that sample and act: nine times the usual weight, enough to be next if all CPUs are
/// busy. Not real-time: a spinning bug, or dropping caches for seconds, would take a CPU from the
/// machine.
const NICE: i32 = -10;

/// Killed last, unless this program itself takes nine tenths of the memory. With -1000, a leak here
/// would kill all others and then panic the kernel.
const OOM_SCORE: i32 = -900;

/// This process's own procfs, whatever `--path.procfs` names.
const OOM_SCORE_FILE: &str = "/proc/self/oom_score_adj";

/// The granted priorities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Priority {
    pub(super) is_locked: bool,
}

/// Requests all priorities. The calling thread is raised, and the threads that it starts later.
pub(super) fn take() -> Priority {
    let locked = lock_memory();
    let mut got = Vec::new();
    let mut refused = Vec::new();
    match &locked {
        Ok(()) => got.push("locked in memory".to_owned()),
        Err(error) => refused.push(format!(
            "not locked in memory: {error} (CAP_IPC_LOCK, or systemd: LimitMEMLOCK=infinity)"
        )),
    }
    match raise_priority() {
        Ok(nice) => got.push(format!("nice {nice}")),
        Err(error) => refused
            .push(format!("priority not raised: {error} (CAP_SYS_NICE, or systemd: Nice={NICE})")),
    }
    match lower_oom_score() {
        Ok(score) => got.push(format!("oom_score_adj {score}")),
        Err(error) => refused.push(format!(
            "oom_score_adj not lowered: {error} (CAP_SYS_RESOURCE, or systemd: \
             OOMScoreAdjust={OOM_SCORE})"
        )),
    }
    if !got.is_empty() {
        tracing::debug!(granted = got.join(", "), "oom_protection granted");
    }
    if !refused.is_empty() {
        tracing::debug!(refused = refused.join("; "), "oom_protection refused");
    }
    Priority { is_locked: locked.is_ok() }
}

/// Locks current and future pages, so that sampling and acting do not need memory when it is short.
/// Nothing is read in for it, so that it costs no memory now.
pub(super) fn lock_memory() -> Result<(), String> {
    if let Some(bytes) = limit_on_locked_memory() {
        return Err(format!("RLIMIT_MEMLOCK is {bytes} bytes"));
    }
    let flags = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    mlockall(flags).map_err(|error| error.to_string())
}

/// The limit of locked memory of this process. It counts whole mappings, most of which are unused.
/// Beyond it allocations fail, and a stack that cannot grow ends the process.
fn limit_on_locked_memory() -> Option<u64> {
    let capable = capabilities(None)
        .is_ok_and(|capabilities| capabilities.effective.contains(CapabilitySet::IPC_LOCK));
    if capable { None } else { getrlimit(Resource::Memlock).current }
}

/// Raises the calling thread, unless it is higher already.
fn raise_priority() -> io::Result<i32> {
    let nice = getpriority_process(None)?;
    if nice <= NICE {
        return Ok(nice);
    }
    setpriority_process(None, NICE)?;
    Ok(NICE)
}

/// A lower score is kept.
fn lower_oom_score() -> io::Result<i32> {
    let score = fs::read_to_string(OOM_SCORE_FILE)?;
    match score.trim().parse() {
        Ok(score) if score <= OOM_SCORE => Ok(score),
        _ => {
            fs::write(OOM_SCORE_FILE, OOM_SCORE.to_string())?;
            Ok(OOM_SCORE)
        }
    }
}
