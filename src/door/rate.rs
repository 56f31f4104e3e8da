//! So many requests at once, and after them one in each interval.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::web_config::RateLimit;

/// Counts requests, in the time since boot.
#[derive(Debug, Default)]
pub(super) struct Limiter(Mutex<Bucket>);

#[derive(Debug, Default)]
struct Bucket {
    limit: Option<RateLimit>,
    /// When all that was taken is earned again.
    full_at: Duration,
}

impl Limiter {
    /// Another limit begins with its whole burst.
    pub(super) fn set(&self, limit: Option<RateLimit>) {
        let mut bucket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if bucket.limit != limit {
            *bucket = Bucket { limit, full_at: Duration::ZERO };
        }
    }

    /// Takes one request.
    ///
    /// # Errors
    /// There is none to be had before so long.
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
