//! The memory of the last hour, for a plot.
//!
//! A point is the sample of its step with the least free memory, so that a collapse of a second is
//! seen. Points have a fixed size, and their number is bounded.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::Duration;

use super::memory_parts::{MemoryLevels, PARTS, PartsReader};
use super::status::Status;
use crate::model::{MemoryHistory, Moment, PartHistory, PartKind};

/// Time between two points, in seconds.
pub const STEP_SECONDS: u64 = 5;

/// Points that are kept: an hour.
pub const POINTS: usize = 720;

/// Engines that have a line of their own; others are one line together.
pub const NAMED: usize = 8;

const OTHER_ENGINES: &str = "other engines";

/// The memory at one sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPoint {
    /// Time of the sample, in seconds of uptime.
    at: u64,
    levels: MemoryLevels,
    engines: [u64; NAMED],
    other_engines: u64,
}

/// Names of the engines of a point.
pub type EngineNames = [Option<Arc<str>>; NAMED];

/// Makes points of samples. It allocates nothing while the series stay the same.
#[derive(Debug, Default)]
pub struct MemorySampler {
    reader: PartsReader,
    names: EngineNames,
    /// When each engine had memory last, in seconds of uptime.
    seen: [u64; NAMED],
    least: Option<MemoryPoint>,
}

impl MemorySampler {
    /// Takes a sample. Returns the point of the step before it, once that has ended.
    pub fn take(&mut self, status: &Status) -> Option<MemoryPoint> {
        let at = status.at.uptime.as_secs();
        let (mut engines, mut other_engines) = ([0; NAMED], 0);
        let (names, seen) = (&mut self.names, &mut self.seen);
        let levels = self.reader.read(status, |name, bytes| {
            match slot(names, seen, name, at) {
                Some(place) => {
                    engines[place] = bytes;
                    seen[place] = at;
                }
                None => other_engines += bytes,
            };
        })?;
        let point = MemoryPoint { at, levels, engines, other_engines };
        let step = |point: &MemoryPoint| point.at / STEP_SECONDS;
        match &mut self.least {
            Some(least) if step(least) == step(&point) => {
                if point.levels.free < least.levels.free {
                    *least = point;
                }
                None
            }
            least => least.replace(point),
        }
    }

    /// The names of the engines in points.
    pub fn names(&self) -> &EngineNames {
        &self.names
    }
}

/// The place of an engine; `None` if all are taken by engines of the last hour.
fn slot(names: &mut EngineNames, seen: &[u64; NAMED], name: &Arc<str>, at: u64) -> Option<usize> {
    if let Some(place) = names.iter().position(|known| known.as_ref() == Some(name)) {
        return Some(place);
    }
    // What was seen earlier is in no point any more.
    let kept = STEP_SECONDS * (POINTS as u64 + 2);
    let is_usable = |(known, seen): (&Option<Arc<str>>, &u64)| {
        known.is_none() || at.saturating_sub(*seen) > kept
    };
    let place = names.iter().zip(seen).position(is_usable)?;
    names[place] = Some(Arc::clone(name));
    Some(place)
}

/// The points of the last hour.
#[derive(Debug)]
pub struct MemoryRing {
    points: VecDeque<MemoryPoint>,
    names: EngineNames,
    /// Those of before this run.
    earlier: Option<(Vec<MemoryPoint>, EngineNames)>,
}

impl Default for MemoryRing {
    /// All of its memory is taken at once.
    fn default() -> Self {
        let (names, earlier) = (EngineNames::default(), None);
        Self { points: VecDeque::with_capacity(POINTS), names, earlier }
    }
}

/// A row of the history: its time, and its point with the names of its engines.
type HistoryRow<'a> = (i64, Option<(&'a MemoryPoint, &'a EngineNames)>);

impl MemoryRing {
    /// Most bytes of all points, those of an earlier run included.
    pub const BYTES: usize = 2 * POINTS * size_of::<MemoryPoint>();

    /// Adds a point, the newest. With the most points, the oldest goes.
    pub fn push(&mut self, point: MemoryPoint, names: &EngineNames) {
        if self.points.len() >= POINTS {
            self.points.pop_front();
            self.earlier = None;
        }
        self.points.push_back(point);
        if self.names != *names {
            self.names.clone_from(names);
        }
    }

    /// Sets the points of an earlier run in the same boot, oldest first.
    pub fn set_earlier(&mut self, mut points: Vec<MemoryPoint>, names: EngineNames) {
        let first = self.points.front().map_or(u64::MAX, |point| point.at);
        points.retain(|point| point.at < first);
        points.drain(..points.len().saturating_sub(POINTS));
        self.earlier = Some((points, names));
    }

    /// The points since then. Missing steps have one point without values.
    pub fn history(&self, now: Moment, since: Duration) -> MemoryHistory {
        let rows = self.rows(now, since);
        let column = |of: &dyn Fn(&MemoryPoint, &EngineNames) -> Option<u64>| {
            let value = |row: &HistoryRow<'_>| row.1.and_then(|(point, names)| of(point, names));
            rows.iter().map(value).collect::<Vec<_>>()
        };
        let part = |name: &str, kind, state: Option<&str>, bytes| PartHistory {
            name: name.to_owned(),
            kind,
            state: state.map(str::to_owned),
            bytes,
        };
        let has_any = |bytes: &[Option<u64>]| bytes.iter().flatten().any(|bytes| *bytes > 0);
        let earlier = self.earlier.iter().flat_map(|(_, names)| names).flatten();
        let all: BTreeSet<&Arc<str>> = self.names.iter().flatten().chain(earlier).collect();
        let named = all.into_iter().filter_map(|name| {
            let bytes = column(&|point, names| {
                let place = names.iter().position(|known| known.as_ref() == Some(name));
                Some(place.and_then(|place| point.engines.get(place).copied()).unwrap_or(0))
            });
            has_any(&bytes).then(|| part(name, PartKind::Engine, None, bytes))
        });
        let mut parts: Vec<PartHistory> = named.collect();
        let others = column(&|point, _| Some(point.other_engines));
        if has_any(&others) {
            parts.push(part(OTHER_ENGINES, PartKind::Engine, None, others));
        }
        parts.extend(PARTS.iter().enumerate().map(|(place, (kind, name, state))| {
            part(name, *kind, *state, column(&|point, _| point.levels.parts.get(place).copied()))
        }));
        MemoryHistory {
            step_seconds: STEP_SECONDS,
            at: rows.iter().map(|(at, _)| *at).collect(),
            parts,
            reserve_bytes: column(&|point, _| point.levels.reserve),
            happened: Vec::new(),
        }
    }

    fn rows(&self, now: Moment, since: Duration) -> Vec<HistoryRow<'_>> {
        let now_seconds = now.uptime.as_secs();
        let first = now_seconds.saturating_sub(since.as_secs());
        // The wall clock may have jumped since; the time between points has not.
        let boot = now.utc.as_second() - i64::try_from(now_seconds).unwrap_or(0);
        let at = |uptime: u64| boot + i64::try_from(uptime).unwrap_or(0);
        let (mut rows, mut before): (Vec<HistoryRow<'_>>, Option<u64>) = (Vec::new(), None);
        let earlier = self.earlier.iter();
        let earlier =
            earlier.flat_map(|(points, names)| points.iter().map(move |one| (one, names)));
        let own = self.points.iter().map(|point| (point, &self.names));
        for (point, names) in earlier.chain(own).filter(|(point, _)| point.at >= first) {
            let is_gap = |before: u64| point.at.saturating_sub(before) > 3 * STEP_SECONDS;
            if let Some(before) = before.filter(|before| is_gap(*before)) {
                rows.push((at(before + STEP_SECONDS), None));
            }
            rows.push((at(point.at), Some((point, names))));
            before = Some(point.at);
        }
        rows
    }
}

/// Points that wait while readers have the ring.
const MOST_WAITING: usize = 16;

/// Adds the points of samples to a ring that other threads read, without waiting for them.
#[derive(Debug)]
pub struct MemoryFeed {
    sampler: MemorySampler,
    ring: Arc<Mutex<MemoryRing>>,
    waiting: VecDeque<MemoryPoint>,
}

impl MemoryFeed {
    /// Feeds that ring.
    pub fn new(ring: Arc<Mutex<MemoryRing>>) -> Self {
        let waiting = VecDeque::with_capacity(MOST_WAITING);
        Self { sampler: MemorySampler::default(), ring, waiting }
    }

    /// Takes a sample. While a reader has the ring, the newest points wait for a later sample.
    pub fn take(&mut self, status: &Status) {
        if let Some(point) = self.sampler.take(status) {
            if self.waiting.len() >= MOST_WAITING {
                self.waiting.pop_front();
            }
            self.waiting.push_back(point);
        }
        if self.waiting.is_empty() {
            return;
        }
        let mut ring = match self.ring.try_lock() {
            Ok(ring) => ring,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        for point in self.waiting.drain(..) {
            ring.push(point, self.sampler.names());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{DecisionId, Mode, Reading, SeriesKey};
    use crate::policy::Policy;
    use crate::policy::rule::RuleSet;

    const GIB: u64 = 1 << 30;

    fn at(second: u64, millisecond: u64) -> Moment {
        let uptime = Duration::from_millis(second * 1000 + millisecond);
        let utc = jiff::Timestamp::from_second(1_800_000_000).unwrap();
        Moment { uptime, utc: utc.checked_add(uptime).unwrap() }
    }

    /// A node of 100 GiB with so much free; the rest is in no counter.
    fn status(at: Moment, free: u64) -> Status {
        let mut policy = Policy::new(at, Mode::Observe, &RuleSet::default(), DecisionId(1));
        let values = [
            ("uma_memory_total_bytes", 100 * GIB),
            ("uma_memory_free_bytes", free * GIB),
            ("uma_memory_unaccounted_bytes", (100 - free) * GIB),
            ("uma_memory_reserve_bytes", GIB),
        ];
        let series = values.iter().map(|(name, _)| SeriesKey::new(name, &[])).collect();
        let values = values.iter().map(|(_, value)| Reading::Value(*value as f64)).collect();
        Status { series, values, ..policy.status(at) }
    }

    fn free(history: &MemoryHistory) -> Vec<Option<u64>> {
        let part = history.parts.iter().find(|part| part.kind == PartKind::Free).unwrap();
        part.bytes.iter().map(|bytes| bytes.map(|bytes| bytes / GIB)).collect()
    }

    #[test]
    fn a_point_is_the_sample_with_the_least_free_memory_of_its_step() {
        let ring = Arc::new(Mutex::new(MemoryRing::default()));
        let mut feed = MemoryFeed::new(Arc::clone(&ring));
        for (second, millisecond, free) in [
            (1000, 0, 50),
            (1001, 0, 40),
            (1001, 20, 3),
            (1004, 0, 60),
            (1005, 0, 55),
            (1010, 0, 7),
        ] {
            feed.take(&status(at(second, millisecond), free));
        }
        let history = ring.lock().unwrap().history(at(1011, 0), Duration::from_secs(3600));
        assert_eq!(free(&history), [Some(3), Some(55)]);
        assert_eq!(history.at, [1_800_001_001, 1_800_001_005]);
        assert_eq!(history.reserve_bytes, [Some(GIB); 2]);
        let sum = |point: usize| -> u64 {
            history.parts.iter().filter_map(|part| part.bytes[point]).sum()
        };
        assert_eq!([sum(0), sum(1)], [100 * GIB; 2], "the parts add up to all of it");
    }

    #[test]
    fn points_are_bounded_and_missing_steps_are_gaps() {
        let mut ring = MemoryRing::default();
        let mut sampler = MemorySampler::default();
        let steps = (0..2 * POINTS as u64).map(|step| step * STEP_SECONDS);
        for second in steps.chain([20_000, 20_005]) {
            if let Some(point) = sampler.take(&status(at(second, 0), 50)) {
                ring.push(point, sampler.names());
            }
        }
        let history = ring.history(at(20_010, 0), Duration::from_secs(1_000_000));
        assert_eq!(ring.points.len(), POINTS);
        let gaps = free(&history).iter().filter(|free| free.is_none()).count();
        assert_eq!((history.at.len(), gaps), (POINTS + 1, 1));
        assert!(history.at.is_sorted());
        let late = ring.history(at(20_010, 0), Duration::from_secs(60));
        assert_eq!(late.at.len(), 1);
        const { assert!(MemoryRing::BYTES <= 288 << 10) };
    }

    #[test]
    fn points_of_an_earlier_run_come_before_and_leave_when_the_hour_is_full() {
        let point = |second: u64, free: u64| {
            let mut sampler = MemorySampler::default();
            sampler.take(&status(at(second, 0), free));
            sampler.take(&status(at(second + STEP_SECONDS, 0), free)).unwrap()
        };
        let names = EngineNames::default();
        let mut ring = MemoryRing::default();
        ring.push(point(110, 2), &names);
        ring.set_earlier(vec![point(95, 1), point(100, 3), point(110, 9)], names.clone());
        let history = ring.history(at(120, 0), Duration::from_secs(3600));
        assert_eq!(free(&history), [Some(1), Some(3), Some(2)]);
        for step in 1..=POINTS as u64 {
            ring.push(point(110 + step * STEP_SECONDS, 2), &names);
        }
        assert!(ring.earlier.is_none());
    }

    #[test]
    fn points_wait_while_a_reader_has_the_ring() {
        let ring = Arc::new(Mutex::new(MemoryRing::default()));
        let mut feed = MemoryFeed::new(Arc::clone(&ring));
        let held = ring.lock().unwrap();
        for step in 0..4 {
            feed.take(&status(at(1000 + step * STEP_SECONDS, 0), 50));
        }
        assert!(held.points.is_empty());
        drop(held);
        feed.take(&status(at(1021, 0), 50));
        assert_eq!(ring.lock().unwrap().points.len(), 4);
    }
}
