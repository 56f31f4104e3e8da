//! A rate limit: a burst, then one request in each interval.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::web_config::RateLimit;

/// Counts requests by uptime.
#[derive(Debug, Default)]
pub(super) struct Limiter(Mutex<RateBucket>);

#[derive(Debug, Default)]
struct RateBucket {
    limit: Option<RateLimit>,
    /// When the bucket is full again.
    full_at: Duration,
}

impl Limiter {
    /// Sets the limit. A changed limit begins with a full burst.
    pub(super) fn set(&self, limit: Option<RateLimit>) {
        let mut bucket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if bucket.limit != limit {
            *bucket = RateBucket { limit, full_at: Duration::ZERO };
        }
    }

    /// Takes one request.
    ///
    /// # Errors
    /// The time until the next request is allowed.
    pub(super) fn take(&self, now: Duration) -> Result<(), Duration> {
        let mut bucket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(RateLimit { interval, burst }) = bucket.limit else { return Ok(()) };
        let full_at = bucket.full_at.max(now);
        let taken_at_most = interval.saturating_mul(burst - 1);
        let too_early = full_at.saturating_sub(now).saturating_sub(taken_at_most);
        if !too_early.is_zero() {
            return Err(too_early);
        }
        bucket.full_at = full_at.saturating_add(interval);
        Ok(())
    }
}
