//! No more than so many acts in any window of time.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What is remembered of the past, and so the most that a limit may allow.
pub const MOST_TIMES: u32 = 1_000;

/// No more than `times` acts in any window of length `per`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AtMost {
    /// Largest number of acts in a window.
    pub times: u32,
    /// Length of the sliding window.
    pub per: Duration,
}

/// When acts were decided, on the uptime clock in milliseconds; the newest [`MOST_TIMES`] of them,
/// oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::policy) struct Acts(VecDeque<i64>);

impl Acts {
    /// Remembers one more. Those of earlier runs may come late.
    pub(super) fn add(&mut self, at_ms: i64) {
        let place = self.0.partition_point(|known| *known <= at_ms);
        self.0.insert(place, at_ms);
        if self.0.len() > MOST_TIMES as usize {
            self.0.pop_front();
        }
    }

    /// Whether one more now would be more than `limit` allows in some window.
    pub(super) fn has_spent(&self, limit: AtMost, now_ms: i64) -> bool {
        self.left(limit, now_ms) == 0
    }

    /// How many more are allowed now.
    pub(super) fn left(&self, limit: AtMost, now_ms: i64) -> u32 {
        let per_ms = i64::try_from(limit.per.as_millis()).unwrap_or(i64::MAX);
        let newest = self.0.iter().rev().take(limit.times as usize);
        let spent = newest.take_while(|act| now_ms.saturating_sub(**act) < per_ms).count();
        limit.times.saturating_sub(u32::try_from(spent).unwrap_or(u32::MAX))
    }

    /// How long until one more is allowed, where none is now.
    pub(super) fn free_in_ms(&self, limit: AtMost, now_ms: i64) -> Option<i64> {
        if self.left(limit, now_ms) > 0 {
            return None;
        }
        let per_ms = i64::try_from(limit.per.as_millis()).unwrap_or(i64::MAX);
        let oldest = self.0.iter().rev().nth((limit.times as usize).checked_sub(1)?)?;
        Some(oldest.saturating_add(per_ms).saturating_sub(now_ms))
    }
}
