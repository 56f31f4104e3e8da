//! What this process asks of the kernel for itself, so that it goes on when memory is short: pages
//! that stay, a CPU before others, and not to be the one that is killed.
//!
//! Each is taken where it is given; what is not is told once, and nothing depends on it.

use std::fs;
use std::io;

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, getpriority_process, getrlimit, setpriority_process};
use rustix::thread::{CapabilitySet, capabilities};

/// Of the threads that watch and act. Nine times the weight of others: enough to be next where all
/// CPUs are busy. Not a real-time policy, under which a bug that spins, or dropping caches for
/// seconds, would take a CPU from the machine that is to be saved.
const NICE: i32 = -10;

/// After everything else, and yet killed if it is this program itself that has eaten nine tenths of
/// the memory. With -1000 a leak here would kill all others first, and then the kernel panics.
const OOM_SCORE: i32 = -900;

/// This process's own, whatever `--path.procfs` names.
const OOM_SCORE_FILE: &str = "/proc/self/oom_score_adj";

/// What the kernel gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    pub(super) is_locked: bool,
}

/// Takes all of it, and says what it got. Of threads the calling one is raised, and so are those
/// that it starts from then on.
pub(super) fn take() -> Standing {
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
        tracing::info!("for when memory is short: {}", got.join(", "));
    }
    if !refused.is_empty() {
        tracing::info!("may stand still or be killed when memory is short: {}", refused.join("; "));
    }
    Standing { is_locked: locked.is_ok() }
}

/// Pages that are in use now, and those that will be, stay: what watching and acting need is not
/// taken away when memory is short. Nothing is read in for it, so it costs no memory now.
pub(super) fn lock_memory() -> Result<(), String> {
    if let Some(bytes) = limit_on_locked_memory() {
        return Err(format!("RLIMIT_MEMLOCK is {bytes} bytes"));
    }
    let flags = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    mlockall(flags).map_err(|error| error.to_string())
}

/// The limit that holds for this process. It counts whole mappings, most of which are never used;
/// beyond it no more memory can be had, and a stack that may not grow any more ends the process.
fn limit_on_locked_memory() -> Option<u64> {
    let capable = capabilities(None)
        .is_ok_and(|capabilities| capabilities.effective.contains(CapabilitySet::IPC_LOCK));
    if capable { None } else { getrlimit(Resource::Memlock).current }
}

/// Raises the calling thread. One that is higher already stays there.
fn raise_priority() -> io::Result<i32> {
    let nice = getpriority_process(None)?;
    if nice <= NICE {
        return Ok(nice);
    }
    setpriority_process(None, NICE)?;
    Ok(NICE)
}

/// One that is lower already stays there.
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
