//! What all files of the memory source have in common: when to read them, and how the result is
//! told.

use std::sync::Arc;
use std::time::Duration;

use super::file::Fault;
use crate::model::{Observation, Reading, Readings, Schema, SeriesKey, Source};

/// Monotonic time, read by whoever owns the clock.
pub type Clock<'a> = &'a dyn Fn() -> Duration;

/// The pause between two readings, as a multiple of what one costs, where that cost grows with the
/// number of CPUs.
const PAUSE_PER_COST: u32 = 1000;

/// How often to look for a file that has never been there.
const ABSENT_PAUSE: Duration = Duration::from_secs(5);

/// One file, or several of a kind, whose values are told together.
pub(super) trait Reader {
    /// Who tells.
    const SOURCE: Source;
    /// The least time between two readings.
    const PAUSE: Duration = Duration::ZERO;
    /// Up to what time between two readings a costly file may be read less often. Others are read
    /// on time whatever they cost: a machine in trouble is slow.
    const PAUSE_MAX: Duration = Self::PAUSE;
    /// Whether the series are known beforehand. If so, one that had a value and has none now is
    /// taken as failed rather than unsupported.
    const FIXED: bool = true;

    /// The series, in the order of the values.
    fn series(&self) -> Vec<SeriesKey>;
    /// Adds one value for each series.
    fn read(&mut self, report: &mut Report);
}

/// What one reading of a [`Reader`] gave.
#[derive(Debug, Default)]
pub(super) struct Report {
    values: Vec<Reading<f64>>,
    error: Option<String>,
    absent: bool,
    series_changed: bool,
}

impl Report {
    /// The next series' value.
    pub(super) fn push(&mut self, value: Reading<f64>) {
        self.values.push(value);
    }

    /// The next series' value, from a whole number.
    pub(super) fn push_whole(&mut self, value: Reading<u64>) {
        self.values.push(value.map(|value| value as f64));
    }

    /// The next `count` values, which `fault` is the reason to miss.
    pub(super) fn miss(&mut self, count: usize, fault: &Fault) {
        self.values.extend(std::iter::repeat_n(fault.reading(), count));
        if let Fault::Failed(why) = fault {
            self.fail(why.clone());
        }
    }

    /// The same for all values of the source.
    pub(super) fn miss_all(&mut self, count: usize, fault: &Fault) {
        self.miss(count, fault);
        if let Fault::Absent(why) = fault {
            self.absent(why.clone());
        }
    }

    /// Says that nothing is there to read: the source is down, and is looked for rarely.
    pub(super) fn absent(&mut self, why: String) {
        self.absent = true;
        self.fail(why);
    }

    /// Says why the source is down; the first reason stays.
    pub(super) fn fail(&mut self, why: String) {
        self.error.get_or_insert(why);
    }

    /// The series are not the same as at the last reading.
    pub(super) fn series_changed(&mut self) {
        self.series_changed = true;
    }
}

/// Room of earlier readings for later ones, so that reading needs no new memory.
#[derive(Debug, Default)]
pub(super) struct Spare {
    rooms: Vec<Vec<Reading<f64>>>,
}

/// Readings that may be under way: what a quarter of a second brings where it is looked most often.
const MOST_ROOMS: usize = 128;

impl Spare {
    /// Room for so many values: the smallest there is.
    fn take(&mut self, count: usize) -> Vec<Reading<f64>> {
        let fits = |(_, room): &(usize, &Vec<Reading<f64>>)| room.capacity() >= count;
        let rooms = self.rooms.iter().enumerate().filter(fits);
        match rooms.min_by_key(|(_, room)| room.capacity()).map(|(place, _)| place) {
            Some(place) => self.rooms.swap_remove(place),
            None => Vec::with_capacity(count),
        }
    }

    /// Takes the room of readings that nobody needs any more.
    pub(super) fn give_back(&mut self, mut room: Vec<Reading<f64>>) {
        if self.rooms.len() < MOST_ROOMS {
            room.clear();
            self.rooms.push(room);
        }
    }
}

/// A reader with its schema and pace.
#[derive(Debug)]
pub(super) struct Feed<R> {
    pub(super) reader: R,
    schema: Arc<Schema>,
    /// Which series have had a value.
    seen: Vec<bool>,
    due: Duration,
    /// What reading costs where nothing else holds it up: the least of late.
    cost: Duration,
}

impl<R: Reader> Feed<R> {
    pub(super) fn new(reader: R) -> Self {
        let schema = Arc::new(Schema { series: reader.series() });
        let seen = vec![false; schema.series.len()];
        Self { reader, schema, seen, due: Duration::ZERO, cost: Duration::ZERO }
    }

    /// Reads if it is time to.
    pub(super) fn run(
        &mut self,
        clock: Clock,
        always: bool,
        spare: &mut Spare,
        out: &mut Vec<Observation>,
    ) {
        let begun = clock();
        if begun < self.due && !always {
            return;
        }
        let values = spare.take(self.schema.series.len());
        let mut report = Report { values, ..Report::default() };
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

    /// Turns values that ought to be there into failures, and sees that a failure has a reason.
    fn settle(&mut self, report: &mut Report) {
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
            false => self.cost.saturating_mul(PAUSE_PER_COST).min(R::PAUSE_MAX).max(R::PAUSE),
        };
        // A caller that comes every 100 ms comes a little early at times.
        self.due = begun.saturating_add(pause - pause / 20);
    }
}
