//! What the loop and the black box' thread know of each other. Neither waits for the other.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};

use super::flag;
use crate::journal::black_box::{EndOfBoot, LastBoot, Signal};
use crate::model::{Event, Reading, Readings, Schema, SeriesKey, Source};
use crate::policy::status::Status;

/// A disk that has not taken a record for so long hangs.
const STALLED_AFTER: Duration = Duration::from_secs(5);

pub(super) struct Shared {
    /// The loop's picture; the newest one counts.
    pub(super) status: Arc<ArcSwap<Status>>,
    pub(super) last_event: ArcSwapOption<Event>,
    /// How the boot before has ended; `None` within: there is none. Not there before the folder has
    /// been read.
    pub(super) last_boot: OnceLock<Option<LastBoot>>,
    told: AtomicBool,
    ending: AtomicBool,
    records: AtomicU64,
    missed: AtomicU64,
    errors: AtomicU64,
    write_took_us: AtomicU64,
    is_locked: bool,
    /// When a record was written last, on the monotonic clock.
    progress_ms: AtomicU64,
    failing: ArcSwapOption<String>,
    schema: Arc<Schema>,
}

/// The kinds of memory of which the last values are told.
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

impl Shared {
    /// `is_locked`: this process's memory stays.
    pub(super) fn new(status: Arc<ArcSwap<Status>>, now: Duration, is_locked: bool) -> Self {
        Self {
            status,
            last_event: ArcSwapOption::empty(),
            last_boot: OnceLock::new(),
            told: AtomicBool::new(false),
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

    pub(super) fn set_told(&self) {
        self.told.store(true, Ordering::Release);
    }

    pub(super) fn told(&self) -> bool {
        self.told.load(Ordering::Acquire)
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

    /// Returns whether that is news.
    pub(super) fn fail(&self, why: String) -> bool {
        self.errors.fetch_add(1, Ordering::Relaxed);
        let known = self.failing.load().as_ref().is_some_and(|known| **known == why);
        if !known {
            self.failing.store(Some(Arc::new(why)));
        }
        !known
    }

    /// Whether the last try has failed.
    pub(super) fn is_failing(&self) -> bool {
        self.failing.load().is_some()
    }

    /// Whether its disk fails, or has kept it waiting for long.
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

    /// How it fares, and what is known of the boot before. `found` is that, with the number to
    /// tell; `None` before anything is known.
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
