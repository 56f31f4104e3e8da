//! The common part of all readers of the memory source: intervals and reports.

use std::sync::Arc;
use std::time::Duration;

use super::file::FileFault;
use crate::model::{Observation, Reading, Readings, Schema, SeriesKey, Source};

/// Monotonic time, from the owner of the clock.
pub type Clock<'a> = &'a dyn Fn() -> Duration;

/// The pause between two reads as a multiple of the cost of one, for files whose cost grows with
/// the number of CPUs.
const PAUSE_PER_COST: u32 = 1000;

/// Interval between two checks for a file that has never existed.
const ABSENT_PAUSE: Duration = Duration::from_secs(5);

/// One file, or several of a kind, reported together.
pub(super) trait MemoryReader {
    /// The source in the report.
    const SOURCE: Source;
    /// The shortest interval between two reads.
    const PAUSE: Duration = Duration::ZERO;
    /// The longest interval between two reads of a costly file. Other files are read on time at any
    /// cost: a machine in trouble is slow.
    const PAUSE_MAX: Duration = Self::PAUSE;
    /// Whether the series are known beforehand. If so, a series that had a value and lost it is
    /// `Failed`, not `Unsupported`.
    const FIXED: bool = true;

    /// The series, in the order of the values.
    fn series(&self) -> Vec<SeriesKey>;
    fn read(&mut self, report: &mut ReadReport);

    /// The shortest interval until the next read.
    fn pause(&self) -> Duration {
        Self::PAUSE
    }
}

/// The result of one read of a [`MemoryReader`].
#[derive(Debug, Default)]
pub(super) struct ReadReport {
    values: Vec<Reading<f64>>,
    error: Option<String>,
    absent: bool,
    series_changed: bool,
}

impl ReadReport {
    /// Adds the value of the next series.
    pub(super) fn push(&mut self, value: Reading<f64>) {
        self.values.push(value);
    }

    /// Adds the value of the next series, from a whole number.
    pub(super) fn push_whole(&mut self, value: Reading<u64>) {
        self.values.push(value.map(|value| value as f64));
    }

    /// Marks the next `count` values as missing because of `fault`.
    pub(super) fn miss(&mut self, count: usize, fault: &FileFault) {
        self.values.extend(std::iter::repeat_n(fault.reading(), count));
        if let FileFault::Failed(why) = fault {
            self.fail(why.clone());
        }
    }

    /// Marks all values of the source as missing.
    pub(super) fn miss_all(&mut self, count: usize, fault: &FileFault) {
        self.miss(count, fault);
        if let FileFault::Absent(why) = fault {
            self.absent(why.clone());
        }
    }

    /// Reports that the file does not exist: the source is down and checked rarely.
    pub(super) fn absent(&mut self, why: String) {
        self.absent = true;
        self.fail(why);
    }

    /// Reports that this kernel does not have the files: the source is not down, but checked
    /// rarely.
    pub(super) fn lacking(&mut self) {
        self.absent = true;
    }

    /// Sets the reason why the source is down; the first one stays.
    pub(super) fn fail(&mut self, why: String) {
        self.error.get_or_insert(why);
    }

    /// Records that the series differ from the last read.
    pub(super) fn series_changed(&mut self) {
        self.series_changed = true;
    }
}

/// Buffers of earlier readings for later ones, so that reading allocates nothing.
#[derive(Debug, Default)]
pub(super) struct SpareBuffers {
    buffers: Vec<Vec<Reading<f64>>>,
}

/// The most readings in flight: those of a quarter of a second at the shortest interval.
const MAX_BUFFERS: usize = 128;

impl SpareBuffers {
    /// The smallest buffer that fits `count` values.
    fn take(&mut self, count: usize) -> Vec<Reading<f64>> {
        let fits = |(_, buffer): &(usize, &Vec<Reading<f64>>)| buffer.capacity() >= count;
        let buffers = self.buffers.iter().enumerate().filter(fits);
        match buffers.min_by_key(|(_, buffer)| buffer.capacity()).map(|(index, _)| index) {
            Some(index) => self.buffers.swap_remove(index),
            None => Vec::with_capacity(count),
        }
    }

    /// Takes back the buffer of consumed readings.
    pub(super) fn give_back(&mut self, mut buffer: Vec<Reading<f64>>) {
        if self.buffers.len() < MAX_BUFFERS {
            buffer.clear();
            self.buffers.push(buffer);
        }
    }
}

/// A reader with its schema and interval.
#[derive(Debug)]
pub(super) struct ReaderFeed<R> {
    pub(super) reader: R,
    schema: Arc<Schema>,
    /// Whether a series has had a value.
    seen: Vec<bool>,
    due: Duration,
    /// The cost of an undisturbed read: the least of the recent ones.
    cost: Duration,
}

impl<R: MemoryReader> ReaderFeed<R> {
    pub(super) fn new(reader: R) -> Self {
        let schema = Arc::new(Schema { series: reader.series() });
        let seen = vec![false; schema.series.len()];
        Self { reader, schema, seen, due: Duration::ZERO, cost: Duration::ZERO }
    }

    /// Reads if due.
    pub(super) fn run(
        &mut self,
        clock: Clock,
        always: bool,
        spare: &mut SpareBuffers,
        out: &mut Vec<Observation>,
    ) {
        let begun = clock();
        if begun < self.due && !always {
            return;
        }
        let values = spare.take(self.schema.series.len());
        let mut report = ReadReport { values, ..ReadReport::default() };
        self.reader.read(&mut report);
        if report.series_changed {
            self.schema = Arc::new(Schema { series: self.reader.series() });
        }
        self.settle(&mut report);
        let took = clock().saturating_sub(begun);
        self.pace(begun, took, report.absent);
        out.push(Observation::Readings(Readings {
            source: R::SOURCE,
            schema: Arc::clone(&self.schema),
            values: report.values,
            took,
            error: report.error.map(Arc::from),
        }));
    }

    /// Turns missing values that should exist into failures, and adds a reason to each failure.
    fn settle(&mut self, report: &mut ReadReport) {
        debug_assert_eq!(report.values.len(), self.schema.series.len());
        if R::FIXED {
            for (value, seen) in report.values.iter_mut().zip(&mut self.seen) {
                *seen |= matches!(value, Reading::Value(_));
                if *seen && *value == Reading::Unsupported {
                    *value = Reading::Failed;
                }
            }
        }
        if report.error.is_none()
            && let Some(at) = report.values.iter().position(|value| *value == Reading::Failed)
            && let Some(series) = self.schema.series.get(at)
        {
            let source = R::SOURCE.name();
            report.fail(format!("{series}: missing from {source}, or no number"));
        }
    }

    fn pace(&mut self, begun: Duration, took: Duration, absent: bool) {
        self.cost = took.min(self.cost + self.cost / 8 + Duration::from_micros(1));
        let pause = match absent {
            true => ABSENT_PAUSE,
            false => {
                let pause = self.cost.saturating_mul(PAUSE_PER_COST).min(R::PAUSE_MAX);
                pause.max(self.reader.pause())
            }
        };
        // A caller with a period of 100 ms sometimes comes a little early.
        self.due = begun.saturating_add(pause - pause / 20);
    }
}
