//! Time for the policy.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// One instant on both clocks: durations use `uptime`, people and calendars use `utc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Moment {
    /// Time since boot (`CLOCK_BOOTTIME`); never runs backwards within a boot.
    pub uptime: Duration,
    /// The wall clock, which may jump.
    pub utc: Timestamp,
}

impl Moment {
    /// The position of this instant on the evaluator's time line, in milliseconds of uptime.
    pub fn timeline_ms(&self) -> i64 {
        i64::try_from(self.uptime.as_millis()).unwrap_or(i64::MAX)
    }

    /// The wall clock in milliseconds since 1970, as PromQL's `time()` counts it.
    pub fn utc_ms(&self) -> i64 {
        self.utc.as_millisecond()
    }
}
