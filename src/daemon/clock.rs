//! The only module that reads the clock.

use std::time::Duration;

use jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};

use crate::model::Moment;

/// Now, on both clocks.
pub fn now() -> Moment {
    Moment { uptime: uptime(), utc: utc() }
}

/// Time since boot, suspend included (`CLOCK_BOOTTIME`).
pub fn uptime() -> Duration {
    read(ClockId::Boottime)
}

/// Time since boot without suspend (`CLOCK_MONOTONIC`), as the kernel log counts.
pub fn monotonic() -> Duration {
    read(ClockId::Monotonic)
}

fn utc() -> Timestamp {
    Timestamp::now()
}

fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(seconds, nanoseconds)
}
