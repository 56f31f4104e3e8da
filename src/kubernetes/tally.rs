//! Counters of requests to the API server.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// No success yet.
const NEVER: i64 = i64::MIN;

/// Counters that both threads use.
#[derive(Debug)]
pub struct KubernetesTally {
    succeeded: AtomicU64,
    failed: AtomicU64,
    dropped_events: AtomicU64,
    last_success_ms: AtomicI64,
}

impl Default for KubernetesTally {
    fn default() -> Self {
        Self {
            succeeded: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            dropped_events: AtomicU64::new(0),
            last_success_ms: AtomicI64::new(NEVER),
        }
    }
}

impl KubernetesTally {
    /// Counts a request.
    pub fn asked(&self, is_success: bool, utc_ms: i64) {
        if is_success {
            self.succeeded.fetch_add(1, Ordering::Relaxed);
            self.last_success_ms.store(utc_ms, Ordering::Relaxed);
        } else {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts Events that are not written.
    pub(super) fn dropped(&self, events: u64) {
        self.dropped_events.fetch_add(events, Ordering::Relaxed);
    }

    /// Requests that the server has carried out.
    pub fn succeeded(&self) -> u64 {
        self.succeeded.load(Ordering::Relaxed)
    }

    /// Requests that were refused, or had no response.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Events that were not written, since there were too many.
    pub fn dropped_events(&self) -> u64 {
        self.dropped_events.load(Ordering::Relaxed)
    }

    /// The time of the last success in milliseconds; `None`: none yet.
    pub fn last_success_ms(&self) -> Option<i64> {
        Some(self.last_success_ms.load(Ordering::Relaxed)).filter(|ms| *ms != NEVER)
    }
}
