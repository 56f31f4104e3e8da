//! Counters of sent and dropped telemetry.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crate::model::{ExportResult, Signal};

/// No success yet.
const NEVER: i64 = i64::MIN;

/// Counters that both threads use.
#[derive(Debug)]
pub struct OtlpTally {
    exports: [[AtomicU64; ExportResult::ALL.len()]; Signal::ALL.len()],
    dropped: [AtomicU64; Signal::ALL.len()],
    last_success_ms: [AtomicI64; Signal::ALL.len()],
    waiting_spans: AtomicU64,
}

impl Default for OtlpTally {
    fn default() -> Self {
        Self {
            exports: Default::default(),
            dropped: Default::default(),
            last_success_ms: [const { AtomicI64::new(NEVER) }; Signal::ALL.len()],
            waiting_spans: AtomicU64::new(0),
        }
    }
}

impl OtlpTally {
    /// Counts a request with this result.
    pub(super) fn exported(&self, signal: Signal, result: ExportResult, utc_ms: i64) {
        if let Some(counter) = self.exports[signal as usize].get(result as usize) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        if matches!(result, ExportResult::Success | ExportResult::Partial) {
            self.last_success_ms[signal as usize].store(utc_ms, Ordering::Relaxed);
        }
    }

    /// Counts dropped spans or points.
    pub(super) fn dropped(&self, signal: Signal, count: u64) {
        self.dropped[signal as usize].fetch_add(count, Ordering::Relaxed);
    }

    /// Sets the number of waiting spans.
    pub(super) fn waiting(&self, spans: usize) {
        self.waiting_spans.store(spans as u64, Ordering::Relaxed);
    }

    /// Requests with this result.
    pub fn exports(&self, signal: Signal, result: ExportResult) -> u64 {
        self.exports[signal as usize][result as usize].load(Ordering::Relaxed)
    }

    /// Dropped spans or points.
    pub fn all_dropped(&self, signal: Signal) -> u64 {
        self.dropped[signal as usize].load(Ordering::Relaxed)
    }

    /// The time of the last success, in milliseconds since 1970. `None` before the first.
    pub fn last_success_ms(&self, signal: Signal) -> Option<i64> {
        let ms = self.last_success_ms[signal as usize].load(Ordering::Relaxed);
        (ms != NEVER).then_some(ms)
    }

    /// Spans that wait to be sent.
    pub fn waiting_spans(&self) -> u64 {
        self.waiting_spans.load(Ordering::Relaxed)
    }
}
