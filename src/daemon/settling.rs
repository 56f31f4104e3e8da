//! Keeps the process small: what a start has taken is given back, and so is what a storm in the
//! kernel log has.

use std::thread;
use std::time::Duration;

use rustix::mm::munlockall;

use super::standing;
use crate::sys::{forget_files, give_freed_memory_back};

/// A start is over by then: the kernel log has been read, and what is seldom done was done once.
const AFTER_START: Duration = Duration::from_secs(60);

/// From then on: what a load or a flood has taken is not kept for long.
const EVERY: Duration = Duration::from_secs(900);

/// Gives back memory that nothing needs: freed blocks, and pages of the program that are not in
/// use now, which come back from its file.
pub(super) fn settle() {
    // Where it does not work, only memory is wasted.
    drop(forget_files());
    // Last, since the former takes some for itself.
    give_freed_memory_back();
}

/// When that is due again.
#[derive(Debug)]
pub(super) struct Settling {
    next: Duration,
    is_locked: bool,
}

impl Settling {
    /// The process began at `started` on the uptime clock, and settled then.
    pub(super) fn new(started: Duration, is_locked: bool) -> Self {
        Self { next: started + AFTER_START, is_locked }
    }

    /// Settles, beside the loop, if that is due and `is_calm`: what is used afterwards is read in
    /// again, which must not be when memory is short.
    pub(super) fn consider(&mut self, uptime: Duration, is_calm: bool) {
        if uptime < self.next || !is_calm {
            return;
        }
        self.next = uptime + EVERY;
        let is_locked = self.is_locked;
        let thread = thread::Builder::new().name("settle".to_owned());
        if let Err(error) = thread.spawn(move || settle_unlocked(is_locked)) {
            tracing::warn!("freed memory is not given back now: {error}");
        }
    }
}

/// Locked pages do not leave, so for some milliseconds none is.
fn settle_unlocked(is_locked: bool) {
    let unlocked = if is_locked { munlockall().map_err(|error| error.to_string()) } else { Ok(()) };
    settle();
    let locked = if is_locked { standing::lock_memory() } else { Ok(()) };
    if let Err(error) = unlocked.and(locked) {
        tracing::warn!("the process is no longer locked in memory: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_settles_once_a_start_is_over_then_each_quarter_of_an_hour_and_only_in_calm() {
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
