//! State shared by the loop and the thread of the black box. Neither waits for the other.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};

use super::flag;
use crate::journal::black_box::{EndOfBoot, LastBoot, Signal};
use crate::model::{Event, Reading, Readings, Schema, SeriesKey, Source};
use crate::policy::status::Status;

/// A disk that accepts no record for this long hangs.
const STALLED_AFTER: Duration = Duration::from_secs(5);

pub(super) struct BlackBoxShared {
    /// The loop's latest status.
    pub(super) status: Arc<ArcSwap<Status>>,
    pub(super) last_event: ArcSwapOption<Event>,
    /// The end of the previous boot; inner `None`: there is none. Empty before the folder is read.
    pub(super) last_boot: OnceLock<Option<LastBoot>>,
    reported: AtomicBool,
    ending: AtomicBool,
    records: AtomicU64,
    missed: AtomicU64,
    errors: AtomicU64,
    write_took_us: AtomicU64,
    is_locked: bool,
    /// The time of the last written record, on the monotonic clock.
    progress_ms: AtomicU64,
    failing: ArcSwapOption<String>,
    schema: Arc<Schema>,
}

/// The recorded kinds of memory.
const MEMORY: [(&str, Signal); 5] = [
    ("total", Signal::Total),
    ("free", Signal::Free),
    ("available", Signal::Available),
    ("page_cache", Signal::PageCache),
    ("unaccounted", Signal::Unaccounted),
];

const PRESSURE: [(&str, &str, Signal); 3] = [
    ("memory", "some", Signal::MemorySome),
    ("memory", "full", Signal::MemoryFull),
    ("io", "full", Signal::IoFull),
];

fn series() -> Vec<SeriesKey> {
    let plain = [
        "uma_black_box_records_total",
        "uma_black_box_missed_records_total",
        "uma_black_box_write_errors_total",
        "uma_black_box_write_duration_seconds",
        "uma_black_box_locked_in_memory",
        "uma_unclean_boots_total",
        "uma_last_boot_clean",
        "uma_last_boot_last_record_timestamp_seconds",
    ];
    let mut series: Vec<SeriesKey> = plain.iter().map(|name| SeriesKey::new(name, &[])).collect();
    series.extend(
        MEMORY
            .iter()
            .map(|(kind, _)| SeriesKey::new("uma_last_boot_memory_bytes", &[("kind", kind)])),
    );
    series.extend(PRESSURE.iter().map(|(resource, share, _)| {
        let labels = [("resource", *resource), ("share", *share)];
        SeriesKey::new("uma_last_boot_pressure_ratio", &labels)
    }));
    series
}

impl BlackBoxShared {
    /// `is_locked`: this process's memory is locked.
    pub(super) fn new(status: Arc<ArcSwap<Status>>, now: Duration, is_locked: bool) -> Self {
        Self {
            status,
            last_event: ArcSwapOption::empty(),
            last_boot: OnceLock::new(),
            reported: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            records: AtomicU64::new(0),
            missed: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            write_took_us: AtomicU64::new(0),
            is_locked,
            progress_ms: AtomicU64::new(ms(now)),
            failing: ArcSwapOption::empty(),
            schema: Arc::new(Schema { series: series() }),
        }
    }

    pub(super) fn set_reported(&self) {
        self.reported.store(true, Ordering::Release);
    }

    pub(super) fn is_reported(&self) -> bool {
        self.reported.load(Ordering::Acquire)
    }

    pub(super) fn end(&self) {
        self.ending.store(true, Ordering::Release);
    }

    pub(super) fn ending(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }

    pub(super) fn count_missed(&self, seconds: u32) {
        self.missed.fetch_add(u64::from(seconds), Ordering::Relaxed);
    }

    pub(super) fn written(&self, now: Duration, took: Duration) {
        self.records.fetch_add(1, Ordering::Relaxed);
        self.write_took_us.store(us(took), Ordering::Relaxed);
        self.progress_ms.store(ms(now), Ordering::Relaxed);
        if self.failing.load().is_some() {
            self.failing.store(None);
        }
    }

    /// Returns whether this is news.
    pub(super) fn fail(&self, why: String) -> bool {
        self.errors.fetch_add(1, Ordering::Relaxed);
        let known = self.failing.load().as_ref().is_some_and(|known| **known == why);
        if !known {
            self.failing.store(Some(Arc::new(why)));
        }
        !known
    }

    /// Whether the last attempt failed.
    pub(super) fn is_failing(&self) -> bool {
        self.failing.load().is_some()
    }

    /// Whether its disk fails or is slow.
    pub(super) fn has_trouble(&self, now: Duration) -> bool {
        self.error(now).is_some()
    }

    fn error(&self, now: Duration) -> Option<Arc<str>> {
        if let Some(why) = &*self.failing.load() {
            return Some(Arc::from(why.as_str()));
        }
        let progress = Duration::from_millis(self.progress_ms.load(Ordering::Relaxed));
        let stalled = now.saturating_sub(progress);
        (stalled > STALLED_AFTER).then(|| {
            Arc::from(format!("the disk has not taken a record for {} s", stalled.as_secs()))
        })
    }

    /// The metrics. `found` is the previous boot with the counter's value; `None` before it is
    /// known.
    pub(super) fn readings(
        &self,
        now: Duration,
        found: Option<(Option<&LastBoot>, u32)>,
    ) -> Readings {
        let took = Duration::from_micros(self.write_took_us.load(Ordering::Relaxed));
        let mut values = vec![
            count(&self.records),
            count(&self.missed),
            count(&self.errors),
            Reading::Value(took.as_secs_f64()),
            flag(self.is_locked),
        ];
        let last_boot = found.and_then(|(last_boot, _)| last_boot);
        let last = last_boot.and_then(|last_boot| last_boot.last.as_ref());
        values.push(found.map(|(_, unclean_boots)| f64::from(unclean_boots)).into());
        values.push(match last_boot.map(|last_boot| last_boot.previous.end) {
            Some(EndOfBoot::Clean) => flag(true),
            Some(EndOfBoot::Unclean) => flag(false),
            Some(EndOfBoot::Unknown) | None => Reading::Unsupported,
        });
        values.push(last.map(|record| super::seconds(record.at.utc_ms())).into());
        let value = |signal: Signal| last.map_or(Reading::Unsupported, |record| record.get(signal));
        values.extend(MEMORY.iter().map(|(_, signal)| value(*signal)));
        values.extend(PRESSURE.iter().map(|(_, _, signal)| value(*signal)));
        Readings {
            source: Source::BlackBox,
            schema: Arc::clone(&self.schema),
            values,
            took,
            error: self.error(now),
        }
    }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn us(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53")]
fn count(counter: &AtomicU64) -> Reading<f64> {
    Reading::Value(counter.load(Ordering::Relaxed) as f64)
}
