//! Returns unused memory to the kernel after the start and after storms.

use std::thread;
use std::time::Duration;

use rustix::mm::munlockall;

use super::priority;
use crate::sys::{forget_files, give_freed_memory_back, reserve};

/// The start is over by then: the kernel log is read, and rare work was done once.
const AFTER_START: Duration = Duration::from_secs(60);

/// From then on, so that memory of a load or a flood is not kept long.
const EVERY: Duration = Duration::from_secs(900);

/// Returns freed blocks, and unused pages of the program, which return from its file.
pub(super) fn settle() {
    // A failure only wastes memory.
    drop(forget_files());
    // After it, since it allocates.
    give_freed_memory_back();
    reserve();
}

/// When it is due again.
#[derive(Debug)]
pub(super) struct Settling {
    next: Duration,
    is_locked: bool,
}

impl Settling {
    /// The process began at `started` by uptime, and settled then.
    pub(super) fn new(started: Duration, is_locked: bool) -> Self {
        Self { next: started + AFTER_START, is_locked }
    }

    /// Settles on another thread, if it is due and `is_calm`: used pages are read again, which must
    /// not happen when memory is short.
    pub(super) fn consider(&mut self, uptime: Duration, is_calm: bool) {
        if uptime < self.next || !is_calm {
            return;
        }
        self.next = uptime + EVERY;
        let is_locked = self.is_locked;
        let thread = thread::Builder::new().name("settle".to_owned());
        if let Err(error) = thread.spawn(move || settle_unlocked(is_locked)) {
            tracing::warn!(%error, "cannot return freed memory");
        }
    }
}

/// Locked pages cannot be dropped, so that none is locked for some milliseconds.
fn settle_unlocked(is_locked: bool) {
    let unlocked = if is_locked { munlockall().map_err(|error| error.to_string()) } else { Ok(()) };
    settle();
    let locked = if is_locked { priority::lock_memory() } else { Ok(()) };
    if let Err(error) = unlocked.and(locked) {
        tracing::warn!(%error, "cannot lock memory again");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_trimmed_after_the_start_and_then_every_quarter_hour_only_in_calm() {
        let second = Duration::from_secs;
        let mut settling = Settling::new(second(100), false);
        settling.consider(second(159), true);
        assert_eq!(settling.next, second(160));
        settling.consider(second(200), false);
        assert_eq!(settling.next, second(160), "not now");
        settling.consider(second(300), true);
        assert_eq!(settling.next, second(300 + 900));
    }
}
