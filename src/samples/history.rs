//! Frames of all series in bounded memory.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use promql_rules::store::{SeriesId, SeriesStore};

use super::MAX_SAMPLES;
use crate::model::{Reading, SeriesKey};
use crate::recording::Frames;

/// Frames in one chunk, and its part of all memory. The oldest chunk is dropped as a whole.
const CHUNK_FRAMES: usize = 120;
const CHUNK_PART: usize = 8;

/// A clock that was set back by less only delays the next frame.
const SET_BACK_MS: i64 = 60_000;

/// Of one label of a series, beside its texts: two pointers with lengths, and two counters.
const LABEL_BYTES: usize = 64;

/// Labels of this node as a target, which all its series get.
#[derive(Clone, Debug, Default)]
pub struct TargetLabels(Vec<(Arc<str>, Arc<str>)>);

/// More samples than one query may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManySamples;

/// Frames of the series of a node, the newest ones as far back as the bounds allow.
#[derive(Debug)]
pub struct History {
    chunks: VecDeque<HistoryChunk>,
    interval_ms: i64,
    kept_ms: i64,
    kept_bytes: usize,
}

#[derive(Debug)]
struct HistoryChunk {
    series: Arc<[SeriesKey]>,
    /// Of each frame, in milliseconds since 1970.
    at_ms: Vec<i64>,
    frames: Frames,
    /// The memory of `series`, in bytes; 0 where another chunk has the same.
    series_bytes: usize,
}

impl TargetLabels {
    /// Labels as pairs of name and value.
    pub fn new(labels: &[(&str, &str)]) -> Self {
        Self(labels.iter().map(|(name, value)| (Arc::from(*name), Arc::from(*value))).collect())
    }

    /// The series with these labels. As in a scrape, labels of its own that have the same names
    /// become `exported_…`.
    pub fn apply(&self, key: &SeriesKey) -> SeriesKey {
        if self.0.is_empty() {
            return key.clone();
        }
        let own = key.labels.iter().map(|(name, value)| {
            let is_taken = self.0.iter().any(|(target, _)| target == name);
            let name = if is_taken { format!("exported_{name}").into() } else { Arc::clone(name) };
            (name, Arc::clone(value))
        });
        let mut labels: Vec<_> = own.chain(self.0.iter().cloned()).collect();
        labels.sort();
        SeriesKey { name: Arc::clone(&key.name), labels: labels.into() }
    }
}

impl History {
    /// Keeps frames that are about `interval` apart, for that long and in that many bytes.
    pub fn new(interval: Duration, kept: Duration, kept_bytes: usize) -> Self {
        let ms = |duration: Duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
        let (interval_ms, kept_ms) = (ms(interval), ms(kept));
        Self { chunks: VecDeque::new(), interval_ms, kept_ms, kept_bytes }
    }

    /// Adds the readings of all series at an instant. One that is not after the last one is left
    /// out; if the clock was set back far, all earlier frames are dropped.
    pub fn push(&mut self, at_ms: i64, series: &Arc<[SeriesKey]>, readings: &[Reading<f64>]) {
        if let Some(newest) = self.newest_ms().filter(|newest| at_ms <= *newest) {
            if newest.saturating_sub(at_ms) < SET_BACK_MS {
                return;
            }
            self.chunks.clear();
        }
        let last = self.chunks.back();
        let is_same = last.is_some_and(|chunk| Arc::ptr_eq(&chunk.series, series));
        let is_full = |chunk: &HistoryChunk| {
            let bytes = chunk.frames.size();
            chunk.at_ms.len() >= CHUNK_FRAMES || bytes >= self.kept_bytes / CHUNK_PART
        };
        if !is_same || last.is_some_and(is_full) {
            let series_bytes = if is_same { 0 } else { bytes_of(series) };
            if let Some(last) = self.chunks.back_mut() {
                last.seal();
            }
            self.chunks.push_back(HistoryChunk {
                series: Arc::clone(series),
                at_ms: Vec::new(),
                frames: Frames::new(series.len()),
                series_bytes,
            });
        }
        if let Some(chunk) = self.chunks.back_mut()
            && chunk.frames.push(readings)
        {
            chunk.at_ms.push(at_ms);
        }
        self.trim();
    }

    /// Adds older frames before its own. Those that are not older are dropped.
    pub fn put_before(&mut self, older: Self) {
        let oldest_ms = self.oldest_ms().unwrap_or(i64::MAX);
        for mut chunk in older.chunks.into_iter().rev() {
            if chunk.at_ms.last().is_some_and(|newest| *newest < oldest_ms) {
                chunk.seal();
                self.chunks.push_front(chunk);
            }
        }
        self.trim();
    }

    fn trim(&mut self) {
        let reach = self.newest_ms().unwrap_or(0).saturating_sub(self.kept_ms);
        let mut size = self.size();
        while self.chunks.len() > 1
            && let Some(oldest) = self.chunks.front()
            && (size > self.kept_bytes || oldest.at_ms.last().is_none_or(|last| *last < reach))
        {
            let Some(mut oldest) = self.chunks.pop_front() else { return };
            size = size.saturating_sub(oldest.size());
            if let Some(next) = self.chunks.front_mut()
                && Arc::ptr_eq(&next.series, &oldest.series)
            {
                next.series_bytes = std::mem::take(&mut oldest.series_bytes);
                size = size.saturating_add(next.series_bytes);
            }
        }
    }

    /// The estimated memory of all frames, in bytes.
    pub fn size(&self) -> usize {
        self.chunks.iter().map(HistoryChunk::size).sum()
    }

    /// The time of the oldest frame, in milliseconds since 1970.
    pub fn oldest_ms(&self) -> Option<i64> {
        self.chunks.front()?.at_ms.first().copied()
    }

    /// The time of the newest frame, in milliseconds since 1970.
    pub fn newest_ms(&self) -> Option<i64> {
        self.chunks.back()?.at_ms.last().copied()
    }

    /// The series that have a value within these times.
    pub fn series(&self, from_ms: i64, to_ms: i64) -> BTreeSet<SeriesKey> {
        let mut found = BTreeSet::new();
        for chunk in self.chunks.iter().filter(|chunk| chunk.overlaps(from_ms, to_ms)) {
            let mut has_value = vec![false; chunk.series.len()];
            chunk.frames.each(|index, readings| {
                let at_ms = chunk.at_ms.get(index).copied().unwrap_or(i64::MAX);
                if at_ms >= from_ms && at_ms <= to_ms {
                    for (has_value, reading) in has_value.iter_mut().zip(readings) {
                        *has_value |= reading.sample().is_some();
                    }
                }
                at_ms <= to_ms
            });
            let with_value = chunk.series.iter().zip(has_value).filter(|(_, has_value)| *has_value);
            found.extend(with_value.map(|(key, _)| key.clone()));
        }
        found
    }

    /// Copies samples into a store.
    ///
    /// # Errors
    /// There are more than one query may read.
    pub fn fill(&self, filler: &mut StoreFiller<'_>) -> Result<(), TooManySamples> {
        let (from_ms, to_ms) = (filler.earliest_ms(), filler.to_ms);
        for chunk in self.chunks.iter().filter(|chunk| chunk.overlaps(from_ms, to_ms)) {
            let begin_ms = chunk.at_ms.first().copied().unwrap_or(0);
            filler.choose(&chunk.series, begin_ms);
            let mut filled = Ok(());
            chunk.frames.each(|index, readings| {
                let at_ms = chunk.at_ms.get(index).copied().unwrap_or(i64::MAX);
                filler.end_before_gap(at_ms, self.interval_ms);
                filled = filler.frame(at_ms, readings);
                at_ms <= to_ms && filled.is_ok()
            });
            filled?;
        }
        Ok(())
    }
}

impl HistoryChunk {
    fn size(&self) -> usize {
        self.frames.size() + self.at_ms.capacity() * size_of::<i64>() + self.series_bytes
    }

    fn seal(&mut self) {
        self.frames.seal();
        self.at_ms.shrink_to_fit();
    }

    fn overlaps(&self, from_ms: i64, to_ms: i64) -> bool {
        let is_before = self.at_ms.last().is_none_or(|last| *last < from_ms);
        let is_after = self.at_ms.first().is_none_or(|first| *first > to_ms);
        !is_before && !is_after
    }
}

/// The memory of the names and labels of series, in bytes, as if nothing else had them.
fn bytes_of(series: &[SeriesKey]) -> usize {
    let of_labels = |key: &SeriesKey| {
        let labels = key.labels.iter();
        labels.map(|(name, value)| name.len() + value.len() + LABEL_BYTES).sum::<usize>()
    };
    series.iter().map(|key| size_of::<SeriesKey>() + of_labels(key)).sum()
}

/// Copies the samples of chosen metrics into a store, as Prometheus would have scraped them: a
/// series without a reading has ended.
pub struct StoreFiller<'f> {
    store: SeriesStore,
    target: &'f TargetLabels,
    /// Names, each with the first instant that is wanted.
    wanted: &'f [(Arc<str>, i64)],
    to_ms: i64,
    /// The wanted ones among the series of the present chunk.
    chosen: Vec<ChosenSeries>,
    ids: HashMap<SeriesKey, SeriesId>,
    /// Whether the series has a value, by its id.
    alive: Vec<bool>,
    last_ms: Option<i64>,
    samples: usize,
}

struct ChosenSeries {
    position: usize,
    key: SeriesKey,
    /// Known from its first value on: a series without any does not exist.
    id: Option<SeriesId>,
    from_ms: i64,
}

impl<'f> StoreFiller<'f> {
    /// For these metrics, each from an instant on, and up to another.
    pub fn new(wanted: &'f [(Arc<str>, i64)], to_ms: i64, target: &'f TargetLabels) -> Self {
        let mut store = SeriesStore::default();
        wanted.iter().for_each(|(name, _)| store.retain(name, i64::MAX));
        Self {
            store,
            target,
            wanted,
            to_ms,
            chosen: Vec::new(),
            ids: HashMap::new(),
            alive: Vec::new(),
            last_ms: None,
            samples: 0,
        }
    }

    /// The filled store.
    pub fn into_store(self) -> SeriesStore {
        self.store
    }

    /// The time of the last frame.
    pub fn last_ms(&self) -> Option<i64> {
        self.last_ms
    }

    fn earliest_ms(&self) -> i64 {
        self.wanted.iter().map(|(_, from_ms)| *from_ms).min().unwrap_or(i64::MAX)
    }

    /// Chooses among other series. Those that are not among them have ended at that instant.
    pub fn choose(&mut self, series: &[SeriesKey], at_ms: i64) {
        self.chosen.clear();
        let mut is_left = self.alive.clone();
        for (position, key) in series.iter().enumerate() {
            let wanted = self.wanted.iter().find(|(name, _)| *name == key.name);
            let Some((_, from_ms)) = wanted else { continue };
            let key = self.target.apply(key);
            let id = self.ids.get(&key).copied();
            if let Some(is_left) = id.and_then(|id| is_left.get_mut(id.0 as usize)) {
                *is_left = false;
            }
            self.chosen.push(ChosenSeries { position, key, id, from_ms: *from_ms });
        }
        self.end(&is_left, at_ms);
    }

    /// Ends all series where frames are missing before an instant.
    fn end_before_gap(&mut self, at_ms: i64, interval_ms: i64) {
        let Some(last_ms) = self.last_ms else { return };
        if at_ms.saturating_sub(last_ms) > interval_ms.saturating_mul(4) {
            let alive = self.alive.clone();
            self.end(&alive, last_ms.saturating_add(interval_ms));
        }
    }

    fn end(&mut self, ended: &[bool], at_ms: i64) {
        for (index, _) in ended.iter().enumerate().filter(|(_, ended)| **ended) {
            let id = SeriesId(u32::try_from(index).unwrap_or(u32::MAX));
            self.store.end(id, at_ms);
            if let Some(alive) = self.alive.get_mut(index) {
                *alive = false;
            }
        }
    }

    /// Adds a frame of the series chosen last.
    ///
    /// # Errors
    /// There are more samples than one query may read.
    pub fn frame(&mut self, at_ms: i64, readings: &[Reading<f64>]) -> Result<(), TooManySamples> {
        if at_ms > self.to_ms {
            return Ok(());
        }
        self.last_ms = Some(at_ms);
        for chosen in &mut self.chosen {
            let value = readings.get(chosen.position).and_then(|reading| reading.sample());
            let value = value.filter(|_| at_ms >= chosen.from_ms);
            let id = match (chosen.id, value) {
                (Some(id), _) => id,
                (None, None) => continue,
                (None, Some(_)) => {
                    let id = self.store.intern(&chosen.key);
                    chosen.id = Some(id);
                    self.ids.insert(chosen.key.clone(), id);
                    self.alive.resize(self.store.keys().len(), false);
                    id
                }
            };
            // One beyond the bounds on series has no place: the evaluation reports it.
            let Some(alive) = self.alive.get_mut(id.0 as usize) else { continue };
            let Some(value) = value else {
                if std::mem::take(alive) {
                    self.store.end(id, at_ms);
                }
                continue;
            };
            self.samples += 1;
            if self.samples > MAX_SAMPLES {
                return Err(TooManySamples);
            }
            *alive = true;
            self.store.append(id, at_ms, Reading::Value(value));
        }
        Ok(())
    }
}
