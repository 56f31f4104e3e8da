//! Series and their recent past.

mod batch;
mod past;
#[cfg(test)]
mod tests;
mod window;

use std::collections::{BTreeMap, HashMap};
use std::mem::discriminant;
use std::sync::Arc;

pub use self::batch::Batch;
use self::past::SeriesPast;
pub use self::window::Window;
use crate::{NODE_LABEL, Reading, SeriesKey};

/// Age of the oldest sample that an instant selector uses, in milliseconds.
pub const LOOKBACK_MS: i64 = 5 * 60 * 1000;
/// The most series of one metric; more are refused.
pub const MAX_SERIES_PER_NAME: usize = 1000;
/// The most series of all metrics together; more are refused.
pub const MAX_SERIES: usize = 10_000;
/// Most series of one metric, and of all, without those of other nodes.
pub const MAX_SERIES_OF_CLUSTER: [usize; 2] = [20_000, 40_000];
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

/// The name of the source that feeds a metric, if the metric is known.
pub type SourceOf = fn(metric: &str) -> Option<&'static str>;

/// Index of a series in the store; valid as long as the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeriesId(pub u32);

impl SeriesId {
    /// The index of all refused series, which are not kept.
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

/// All series, each with as much past as was requested.
#[derive(Debug, Default)]
pub struct SeriesStore {
    keys: Vec<SeriesKey>,
    /// The present of each series, without its past: written at every step.
    presents: Vec<SeriesState>,
    pasts: Vec<SeriesPast>,
    ids: HashMap<SeriesKey, SeriesId>,
    names: HashMap<Arc<str>, MetricSeries>,
    refused: u64,
    /// The source of each metric, if given.
    source_of: Option<SourceOf>,
    /// The error of each source that is down, by its name.
    faults: BTreeMap<&'static str, Arc<str>>,
    /// Metrics that may have unknown series, with the reason.
    gaps: BTreeMap<Arc<str>, &'static str>,
    /// The reason for each node that is unknown.
    silent: BTreeMap<Arc<str>, Arc<str>>,
    bounds: SeriesLimits,
    /// Whether only [`SeriesStore::declare`] adds series.
    is_closed: bool,
    /// The time until which the series of each keeper stay unchanged.
    stayed_ms: Vec<Option<i64>>,
    revisions: Revisions,
    /// Number of reused indexes.
    replaced: u64,
}

/// Data derived from the store are valid while these numbers are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Revisions {
    /// Grows when series are added or removed, or the past of one is cut.
    pub series: u64,
    /// Grows when a series gets or loses its value, and when the reason changes.
    pub kinds: u64,
    /// Grows when a series loses its keeper, or can no longer have one.
    pub kept: u64,
}

/// Limits of the number of series.
#[derive(Clone, Copy, Debug)]
struct SeriesLimits {
    of_a_name: usize,
    of_all: usize,
}

impl Default for SeriesLimits {
    fn default() -> Self {
        Self { of_a_name: MAX_SERIES_PER_NAME, of_all: MAX_SERIES }
    }
}

/// Number of a keeper, whose series stay unchanged; a series has at most one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Keeper(u8);

/// All series of one metric.
#[derive(Debug, Default)]
struct MetricSeries {
    ids: Vec<SeriesId>,
    retain_ms: i64,
    overflowed: bool,
}

/// A series without its past.
#[derive(Clone, Copy, Debug, Default)]
struct SeriesState {
    latest: Option<Reading<f64>>,
    newest: Option<Point>,
    /// Its keeper, if it has one.
    keeper: Option<Keeper>,
    /// Whether older points than the newest one are kept.
    has_past: bool,
}

impl SeriesStore {
    /// A store of declared series alone: others are refused, without being counted.
    pub fn closed() -> Self {
        Self { is_closed: true, ..Self::default() }
    }

    /// The same store, which reports the error of a source as the reason for its unknown series.
    pub fn fed_by(self, source_of: SourceOf) -> Self {
        Self { source_of: Some(source_of), ..self }
    }

    /// Whether it has declared series only.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// A store for the series of several nodes, which have a label `node`.
    pub fn of_cluster() -> Self {
        let [of_a_name, of_all] = MAX_SERIES_OF_CLUSTER;
        Self { bounds: SeriesLimits { of_a_name, of_all }, ..Self::default() }
    }

    /// An empty store that is distinguishable from this one.
    pub fn successor(&self) -> Self {
        let Revisions { series, kinds, kept } = self.revisions;
        let revisions = Revisions { series: series + 1, kinds: kinds + 1, kept: kept + 1 };
        Self { revisions, ..Self::of_cluster() }
    }

    /// Whether the series exists.
    pub fn knows(&self, key: &SeriesKey) -> bool {
        self.ids.contains_key(key)
    }

    /// The id of a series, which is added if it is new. Beyond the bounds on series, and in a
    /// closed store, it is [`SeriesId::REFUSED`].
    pub fn intern(&mut self, key: &SeriesKey) -> SeriesId {
        if self.is_closed { SeriesId::REFUSED } else { self.declare(key) }
    }

    /// The same, in a closed store too.
    pub fn declare(&mut self, key: &SeriesKey) -> SeriesId {
        if let Some(id) = self.ids.get(key) {
            return *id;
        }
        self.revisions.series += 1;
        let bounds = self.bounds;
        let is_full = self.keys.len() >= bounds.of_all;
        let name = self.names.entry(key.name.clone()).or_default();
        let next = u32::try_from(self.keys.len()).ok();
        let Some(next) = next.filter(|_| !is_full && name.ids.len() < bounds.of_a_name) else {
            name.overflowed = true;
            self.refused += 1;
            return SeriesId::REFUSED;
        };
        let id = SeriesId(next);
        name.ids.push(id);
        self.presents.push(SeriesState { has_past: name.retain_ms > 0, ..SeriesState::default() });
        self.pasts.push(SeriesPast::of(name.retain_ms));
        self.keys.push(key.clone());
        self.ids.insert(key.clone(), id);
        id
    }

    /// Replaces a series by a new one of the same metric. The data of the first are dropped.
    pub fn replace(&mut self, id: SeriesId, key: &SeriesKey) {
        let index = id.0 as usize;
        let (Some(old), Some(present), Some(past)) =
            (self.keys.get_mut(index), self.presents.get_mut(index), self.pasts.get_mut(index))
        else {
            return;
        };
        self.revisions.series += 1;
        self.revisions.kept += 1;
        self.replaced += 1;
        self.ids.remove(old);
        self.ids.insert(key.clone(), id);
        old.clone_from(key);
        *present = SeriesState { has_past: past.retain_ms > 0, ..SeriesState::default() };
        *past = SeriesPast::of(past.retain_ms);
    }

    /// Number of reused indexes.
    pub fn replaced(&self) -> u64 {
        self.replaced
    }

    /// Sets why the metric may have unknown series; `None`: it has none.
    pub fn set_gap(&mut self, name: &str, why: Option<&'static str>) {
        let before = match why {
            Some(why) => self.gaps.insert(Arc::from(name), why),
            None => self.gaps.remove(name),
        };
        self.revisions.kinds += u64::from(before != why);
    }

    /// Why the metric may have unknown series, if it may.
    pub(crate) fn gap(&self, name: &str) -> Option<&'static str> {
        self.gaps.get(name).copied()
    }

    /// Retains at least the last `range_ms` of each series of a metric.
    pub fn retain(&mut self, name: &str, range_ms: i64) {
        let entry = match self.names.get_mut(name) {
            Some(entry) => entry,
            None => self.names.entry(Arc::from(name)).or_default(),
        };
        entry.retain_ms = entry.retain_ms.max(range_ms);
        for id in &entry.ids {
            let index = id.0 as usize;
            let Some(present) = self.presents.get_mut(index) else { continue };
            let Some(past) = self.pasts.get_mut(index) else { continue };
            past.retain_ms = entry.retain_ms;
            if past.retain_ms > 0 && !std::mem::replace(&mut present.has_past, true) {
                self.revisions.kept += 1;
                present.settle(&self.stayed_ms);
                past.begin(present.newest);
            }
        }
    }

    /// Adds a reading. A reading other than a value ends the series with a stale marker. A second
    /// one at the same instant replaces the first; one from before the last is ignored.
    pub fn append(&mut self, id: SeriesId, at_ms: i64, reading: Reading<f64>) {
        let Some(present) = self.presents.get_mut(id.0 as usize) else { return };
        if present.keeper.is_some() {
            present.settle(&self.stayed_ms);
            self.revisions.kept += 1;
        }
        self.add(id, at_ms, reading);
    }

    /// The same, and from then on the series stays unchanged, as if its keeper repeated the
    /// reading. Series with a retained past do not.
    fn append_kept(&mut self, keeper: Keeper, id: SeriesId, at_ms: i64, reading: Reading<f64>) {
        let Some(present) = self.presents.get_mut(id.0 as usize) else { return };
        let is_taken = present.keeper.is_some_and(|other| other != keeper);
        self.revisions.kept += u64::from(is_taken);
        present.settle(&self.stayed_ms);
        // A reading older than the keeper's last one is outdated.
        let is_of_now = keeper.stayed_ms(&self.stayed_ms).is_none_or(|stayed| stayed <= at_ms);
        present.keeper = Some(keeper).filter(|_| is_of_now && !present.has_past);
        self.add(id, at_ms, reading);
    }

    /// The version of the data in the store.
    pub fn revisions(&self) -> Revisions {
        self.revisions
    }

    #[inline]
    fn add(&mut self, id: SeriesId, at_ms: i64, reading: Reading<f64>) {
        let index = id.0 as usize;
        let Some(present) = self.presents.get_mut(index) else { return };
        if present.newest.is_some_and(|newest| newest.at_ms > at_ms) {
            return;
        }
        self.revisions.kinds += u64::from(present.set(reading));
        let value = reading.value().unwrap_or_else(stale_marker);
        if !present.has_past {
            if present.newest.is_some() || !is_stale(value) {
                present.newest = Some(Point { at_ms, value });
            }
        } else if let Some(past) = self.pasts.get_mut(index) {
            let was_cut = past.is_cut();
            present.newest = past.append(Point { at_ms, value });
            self.revisions.series += u64::from(past.is_cut() != was_cut);
        }
    }

    /// Ends a series: to rules it is absent, as if it had never been.
    pub fn end(&mut self, id: SeriesId, at_ms: i64) {
        self.append(id, at_ms, Reading::Value(stale_marker()));
    }

    /// Replaces the latest reading without adding it to the past.
    pub fn show(&mut self, id: SeriesId, reading: Reading<f64>) {
        if let Some(present) = self.presents.get_mut(id.0 as usize) {
            self.revisions.kinds += u64::from(present.set(reading));
        }
    }

    /// Adds late counts: each sample grows by the number of instants in `since_ms`, which are
    /// sorted, at or before it. So counts older than every sample are no increase.
    pub fn raise(&mut self, id: SeriesId, since_ms: &[i64]) {
        let index = id.0 as usize;
        let Some(present) = self.presents.get_mut(index) else { return };
        present.settle(&self.stayed_ms);
        if let Some(newest) = &mut present.newest {
            newest.raise(since_ms);
        }
        if let Some(past) = self.pasts.get_mut(index) {
            past.raise(since_ms);
        }
    }

    /// All series, in the order of their ids.
    pub fn keys(&self) -> &[SeriesKey] {
        &self.keys
    }

    /// The latest reading of a series: `Failed` before the first one, `Unsupported` if it has
    /// ended.
    pub fn latest(&self, id: SeriesId) -> Reading<f64> {
        match self.latest_read(id) {
            Some(reading) if reading.is_end() => Reading::Unsupported,
            reading => reading.unwrap_or(Reading::Failed),
        }
    }

    /// The latest reading of the series of that name with exactly these labels, in their order;
    /// `Unsupported`: there is none.
    pub fn latest_of(&self, name: &str, labels: &[(&str, &str)]) -> Reading<f64> {
        let (ids, _) = self.named(name);
        let is_it = |key: &SeriesKey| {
            key.labels.iter().map(|(name, value)| (&**name, &**value)).eq(labels.iter().copied())
        };
        let id = ids.iter().find(|id| self.key(**id).is_some_and(is_it));
        id.map_or(Reading::Unsupported, |id| self.latest(*id))
    }

    /// The latest reading of every series, in the order of their ids; see [`Reading::is_end`].
    pub fn readings(&self) -> impl Iterator<Item = Reading<f64>> {
        self.presents.iter().map(|present| present.latest.unwrap_or(Reading::Failed))
    }

    /// The number of refused series beyond the bounds.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Sets why a source is down; `None`: it is up.
    pub fn set_fault(&mut self, source: &'static str, fault: Option<&Arc<str>>) {
        match fault {
            None => _ = self.faults.remove(source),
            Some(fault) if self.faults.get(source) == Some(fault) => {}
            Some(fault) => _ = self.faults.insert(source, Arc::clone(fault)),
        }
    }

    /// Sets why a node is unknown; `None`: it is known.
    pub fn set_silent(&mut self, node: &Arc<str>, why: Option<&Arc<str>>) {
        match why {
            None => _ = self.silent.remove(node),
            Some(why) => _ = self.silent.insert(Arc::clone(node), Arc::clone(why)),
        }
    }

    /// Why the source of a series is down, or its node is unknown, if so.
    pub(crate) fn fault(&self, key: &SeriesKey) -> Option<&str> {
        let of_node = || {
            let (_, node) = key.labels.iter().find(|(name, _)| **name == *NODE_LABEL)?;
            self.silent.get(node)
        };
        let source = self.source_of.and_then(|source_of| source_of(&key.name));
        let of_source = source.and_then(|source| self.faults.get(source));
        of_source.or_else(of_node).map(|fault| &**fault)
    }

    /// The latest reading, or `None` before the first one; see [`Reading::is_end`].
    pub fn latest_read(&self, id: SeriesId) -> Option<Reading<f64>> {
        self.presents.get(id.0 as usize)?.latest
    }

    /// The series of a metric, in the order of their ids, and whether some more were refused.
    pub fn named(&self, name: &str) -> (&[SeriesId], bool) {
        self.names.get(name).map_or((&[], false), |name| (&name.ids, name.overflowed))
    }

    /// A series' key.
    pub fn key(&self, id: SeriesId) -> Option<&SeriesKey> {
        self.keys.get(id.0 as usize)
    }

    /// The newest point of a series at or before an instant, within the lookback and not ended.
    pub fn at(&self, id: SeriesId, at_ms: i64) -> Option<Point> {
        let index = id.0 as usize;
        let mut newest = self.presents.get(index)?.newest(&self.stayed_ms)?;
        if newest.at_ms > at_ms {
            newest = self.pasts.get(index)?.at(at_ms)?;
        }
        let is_recent = newest.at_ms > at_ms.saturating_sub(LOOKBACK_MS);
        (is_recent && !is_stale(newest.value)).then_some(newest)
    }

    /// The points of a series after `after_ms`, up to and including `to_ms`.
    pub fn window(&self, id: SeriesId, after_ms: i64, to_ms: i64) -> Window<'_> {
        let index = id.0 as usize;
        match (self.presents.get(index), self.pasts.get(index)) {
            (Some(present), Some(past)) if present.has_past => past.window(after_ms, to_ms),
            (Some(present), _) => Window::of_one(present.newest(&self.stayed_ms), after_ms, to_ms),
            (None, _) => Window::default(),
        }
    }

    /// Whether the window from after `after_ms` to `to_ms` has at least two points, all with the
    /// same finite value. May be false for such windows too.
    pub(crate) fn is_flat(&self, id: SeriesId, after_ms: i64, to_ms: i64) -> bool {
        let past = self.pasts.get(id.0 as usize);
        past.is_some_and(|past| past.is_flat(after_ms, to_ms))
    }

    /// Whether points after an instant were dropped by the bound on samples.
    pub(crate) fn is_cut(&self, id: SeriesId, after_ms: i64) -> bool {
        self.pasts.get(id.0 as usize).is_some_and(|past| past.is_cut_after(after_ms))
    }

    /// Whether any points were dropped by the bound on samples.
    pub(crate) fn was_cut(&self, id: SeriesId) -> bool {
        self.pasts.get(id.0 as usize).is_some_and(SeriesPast::is_cut)
    }
}

impl SeriesState {
    /// The newest point; that of an unchanged series has the time of its keeper.
    #[inline]
    fn newest(&self, stayed_ms: &[Option<i64>]) -> Option<Point> {
        let newest = self.newest?;
        let stayed_ms = self.keeper.and_then(|keeper| keeper.stayed_ms(stayed_ms));
        Some(Point { at_ms: newest.at_ms.max(stayed_ms.unwrap_or(newest.at_ms)), ..newest })
    }

    /// Removes the keeper.
    fn settle(&mut self, stayed_ms: &[Option<i64>]) {
        self.newest = self.newest(stayed_ms);
        self.keeper = None;
    }

    /// Stores the latest reading. Returns whether it is of another kind.
    fn set(&mut self, reading: Reading<f64>) -> bool {
        let kind = |reading: Reading<f64>| (discriminant(&reading), reading.is_end());
        self.latest.replace(reading).map(kind) != Some(kind(reading))
    }
}

impl Point {
    /// Adds counts at these sorted instants, if the point is after them.
    fn raise(&mut self, since_ms: &[i64]) {
        if !is_stale(self.value) {
            let happened = since_ms.partition_point(|since_ms| *since_ms <= self.at_ms);
            self.value += happened as f64;
        }
    }
}
