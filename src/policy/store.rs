//! Series and their recent past.

#[cfg(test)]
mod tests;
mod window;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

pub use self::window::Window;
use crate::model::{Reading, SeriesKey, Source, metric};

/// How far back an instant selector looks for a sample, in milliseconds.
pub const LOOKBACK_MS: i64 = 5 * 60 * 1000;
/// The most series of one metric; more are refused.
pub const MAX_SERIES_PER_NAME: usize = 1000;
/// The most series of all metrics together; more are refused.
pub const MAX_SERIES: usize = 10_000;
/// The most samples that one series keeps; 1 h 49 min at ten a second.
pub const MAX_SAMPLES: usize = 65_536;

/// The bits of the NaN by which Prometheus marks the end of a series.
const STALE_BITS: u64 = 0x7ff0_0000_0000_0002;

/// The value that ends a series.
pub fn stale_marker() -> f64 {
    f64::from_bits(STALE_BITS)
}

/// Whether a value is the one that ends a series, unlike any other NaN.
pub fn is_stale(value: f64) -> bool {
    value.to_bits() == STALE_BITS
}

/// A series' place in the store; stays valid for the store's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeriesId(pub u32);

impl SeriesId {
    /// Stands for every series that was refused; nothing is kept of it.
    pub const REFUSED: Self = Self(u32::MAX);
}

/// A value at an instant of the time line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// In milliseconds.
    pub at_ms: i64,
    /// The value; see [`is_stale`].
    pub value: f64,
}

/// Every series of this node, each with as much past as the rules ask for.
#[derive(Debug, Default)]
pub struct SeriesStore {
    keys: Vec<SeriesKey>,
    series: Vec<Series>,
    ids: HashMap<SeriesKey, SeriesId>,
    names: HashMap<Arc<str>, Name>,
    refused: u64,
    /// Why each source that is down is.
    faults: BTreeMap<Source, Arc<str>>,
    /// Whether only [`SeriesStore::declare`] adds series.
    is_closed: bool,
}

/// All series of one metric.
#[derive(Debug, Default)]
struct Name {
    ids: Vec<SeriesId>,
    retain_ms: i64,
    overflowed: bool,
}

#[derive(Debug, Default)]
struct Series {
    latest: Option<Reading<f64>>,
    retain_ms: i64,
    points: VecDeque<Point>,
    /// The instant of the newest point that gave way to the bound on samples.
    cut_at_ms: Option<i64>,
    /// The instant of the newest point that is below the one before it, or ends the series.
    fell_at_ms: Option<i64>,
}

impl SeriesStore {
    /// A store that holds declared series alone: what anybody else writes is refused, and does not
    /// count as refused.
    pub fn closed() -> Self {
        Self { is_closed: true, ..Self::default() }
    }

    /// The id of that series, which is added if it is new. Beyond the bounds on series, and in a
    /// closed store, it is [`SeriesId::REFUSED`].
    pub fn intern(&mut self, key: &SeriesKey) -> SeriesId {
        if self.is_closed { SeriesId::REFUSED } else { self.declare(key) }
    }

    /// The same, in a closed store too.
    pub fn declare(&mut self, key: &SeriesKey) -> SeriesId {
        if let Some(id) = self.ids.get(key) {
            return *id;
        }
        let is_full = self.series.len() >= MAX_SERIES;
        let name = self.names.entry(key.name.clone()).or_default();
        let next = u32::try_from(self.series.len()).ok();
        let Some(next) = next.filter(|_| !is_full && name.ids.len() < MAX_SERIES_PER_NAME) else {
            name.overflowed = true;
            self.refused += 1;
            return SeriesId::REFUSED;
        };
        let id = SeriesId(next);
        name.ids.push(id);
        self.series.push(Series { retain_ms: name.retain_ms, ..Series::default() });
        self.keys.push(key.clone());
        self.ids.insert(key.clone(), id);
        id
    }

    /// Keeps at least the last `range_ms` of each series of that name.
    pub fn retain(&mut self, name: &str, range_ms: i64) {
        let entry = match self.names.get_mut(name) {
            Some(entry) => entry,
            None => self.names.entry(Arc::from(name)).or_default(),
        };
        entry.retain_ms = entry.retain_ms.max(range_ms);
        for id in &entry.ids {
            if let Some(series) = self.series.get_mut(id.0 as usize) {
                series.retain_ms = entry.retain_ms;
            }
        }
    }

    /// Adds a reading. A reading other than a value ends the series with a stale marker. A second
    /// one at the same instant replaces the first; one from before the last is ignored.
    pub fn append(&mut self, id: SeriesId, at_ms: i64, reading: Reading<f64>) {
        if let Some(series) = self.series.get_mut(id.0 as usize) {
            series.append(at_ms, reading);
        }
    }

    /// Replaces the latest reading, for whoever looks at the present, and adds nothing to the past.
    pub(super) fn show(&mut self, id: SeriesId, reading: Reading<f64>) {
        if let Some(series) = self.series.get_mut(id.0 as usize) {
            series.latest = Some(reading);
        }
    }

    /// Counts later what happened earlier: each sample grows by as many of the instants `since_ms`,
    /// which are sorted, as lie at or before it. So what is older than every sample is no increase.
    pub(super) fn raise(&mut self, id: SeriesId, since_ms: &[i64]) {
        if let Some(series) = self.series.get_mut(id.0 as usize) {
            for point in series.points.iter_mut().filter(|point| !is_stale(point.value)) {
                let happened = since_ms.partition_point(|since_ms| *since_ms <= point.at_ms);
                point.value += happened as f64;
            }
        }
    }

    /// All series, in the order of their ids.
    pub fn keys(&self) -> &[SeriesKey] {
        &self.keys
    }

    /// The latest reading of a series; `Failed` before the first one.
    pub fn latest(&self, id: SeriesId) -> Reading<f64> {
        self.latest_read(id).unwrap_or(Reading::Failed)
    }

    /// The latest reading of every series, in the order of their ids.
    pub fn readings(&self) -> impl Iterator<Item = Reading<f64>> {
        self.series.iter().map(|series| series.latest.unwrap_or(Reading::Failed))
    }

    /// How often a series beyond the bounds was asked for.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Keeps why a source is down, or that it is not.
    pub(super) fn set_fault(&mut self, source: Source, fault: Option<&Arc<str>>) {
        match fault {
            None => _ = self.faults.remove(&source),
            Some(fault) if self.faults.get(&source) == Some(fault) => {}
            Some(fault) => _ = self.faults.insert(source, Arc::clone(fault)),
        }
    }

    /// Why the source that feeds a metric is down, if it is.
    pub(super) fn fault(&self, name: &str) -> Option<&str> {
        self.faults.get(&metric(name)?.source).map(|fault| &**fault)
    }

    /// The latest reading, or `None` before the first one.
    pub(super) fn latest_read(&self, id: SeriesId) -> Option<Reading<f64>> {
        self.series.get(id.0 as usize)?.latest
    }

    /// The series of a metric, in the order of their ids, and whether some more were refused.
    pub(super) fn named(&self, name: &str) -> (&[SeriesId], bool) {
        self.names.get(name).map_or((&[], false), |name| (&name.ids, name.overflowed))
    }

    /// A series' key.
    pub(super) fn key(&self, id: SeriesId) -> Option<&SeriesKey> {
        self.keys.get(id.0 as usize)
    }

    /// The newest point of a series at or before an instant, within the lookback and not ended.
    pub(super) fn at(&self, id: SeriesId, at_ms: i64) -> Option<Point> {
        let points = &self.series.get(id.0 as usize)?.points;
        let newest = match points.back() {
            Some(last) if last.at_ms <= at_ms => *last,
            _ => {
                let end = points.partition_point(|point| point.at_ms <= at_ms);
                *points.get(end.checked_sub(1)?)?
            }
        };
        let is_recent = newest.at_ms > at_ms.saturating_sub(LOOKBACK_MS);
        (is_recent && !is_stale(newest.value)).then_some(newest)
    }

    /// The points of a series after `after_ms`, up to and including `to_ms`.
    pub(super) fn window(&self, id: SeriesId, after_ms: i64, to_ms: i64) -> Window<'_> {
        match self.series.get(id.0 as usize) {
            Some(series) => {
                let never_falls = series.fell_at_ms.is_none_or(|fell| fell <= after_ms);
                Window::new(&series.points, after_ms, to_ms, never_falls)
            }
            None => Window::default(),
        }
    }

    /// Whether points after that instant gave way to the bound on samples.
    pub(super) fn is_cut(&self, id: SeriesId, after_ms: i64) -> bool {
        let cut_at_ms = self.series.get(id.0 as usize).and_then(|series| series.cut_at_ms);
        cut_at_ms.is_some_and(|cut_at_ms| cut_at_ms > after_ms)
    }
}

impl Series {
    fn append(&mut self, at_ms: i64, reading: Reading<f64>) {
        let value = match reading {
            Reading::Value(value) => value,
            Reading::Unsupported | Reading::Failed => stale_marker(),
        };
        let has_one = self.points.len() == 1;
        let Some(last) = self.points.back_mut() else {
            self.latest = Some(reading);
            if !is_stale(value) {
                self.points.push_back(Point { at_ms, value });
            }
            return;
        };
        if last.at_ms > at_ms {
            return;
        }
        self.latest = Some(reading);
        let replaces = last.at_ms == at_ms;
        let falls = value < last.value || is_stale(value);
        if falls || replaces && last.value.is_nan() {
            self.fell_at_ms = Some(at_ms);
        }
        if replaces || has_one && self.retain_ms == 0 {
            *last = Point { at_ms, value };
        } else if !(is_stale(last.value) && is_stale(value)) {
            self.points.push_back(Point { at_ms, value });
        }
        self.trim(at_ms);
    }

    /// Drops what no range reaches any more; the newest point stays.
    fn trim(&mut self, now_ms: i64) {
        let reach = now_ms.saturating_sub(self.retain_ms);
        while self.points.len() > 1 && self.points.front().is_some_and(|first| first.at_ms <= reach)
        {
            self.points.pop_front();
        }
        while self.points.len() > MAX_SAMPLES {
            self.cut_at_ms = self.points.pop_front().map(|point| point.at_ms);
        }
    }
}
