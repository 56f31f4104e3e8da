//! What is exported of engines, and read by rules.

use promql_rules::store::SeriesStore;

use super::info::{EngineInfoLabels, InfoCells};
use super::life::Life;
use super::receipt::FLOOR_CAUSES;
use crate::model::{
    EngineLoad, EnginePhase, EngineProcess, EngineSeen, Moment, Reading, Release, ReleaseEnd,
    ReleaseMemory, SeriesKey,
};
use crate::policy::counters::{Cell, Counters};
use crate::policy::gate::orphans;

/// The series of one kind of memory.
type ProcessMemoryKind = (&'static str, fn(&EngineProcess) -> Reading<u64>);

const MEMORY: [ProcessMemoryKind; 4] = [
    ("anon", |process| process.anon_bytes),
    ("file", |process| process.file_bytes),
    ("shmem", |process| process.shmem_bytes),
    ("hugetlb", |process| process.hugetlb_bytes),
];

/// A kind of memory that an engine may leave behind.
type ReleaseMemoryKind = (&'static str, fn(&ReleaseMemory) -> Option<u64>);

const LEFT: [ReleaseMemoryKind; 4] = [
    ("unaccounted", |owned| owned.unaccounted),
    ("shmem", |owned| owned.shmem),
    ("page_cache", |owned| owned.page_cache),
    ("orphans", |owned| Some(owned.orphans)),
];

/// How long releases take: a healthy driver needs seconds, and minutes mean that something is
/// wrong.
const RELEASE_SECONDS: [(f64, &str); 7] = [
    (2.0, "2.0"),
    (5.0, "5.0"),
    (10.0, "10.0"),
    (30.0, "30.0"),
    (60.0, "60.0"),
    (300.0, "300.0"),
    (f64::INFINITY, "+Inf"),
];

/// The series of an engine's load.
type Load = (&'static str, fn(&EngineLoad) -> Reading<f64>);

const LOAD: [Load; 5] = [
    ("uma_engine_requests_running", |load| load.running.map(|requests| requests as f64)),
    ("uma_engine_requests_waiting", |load| load.waiting.map(|requests| requests as f64)),
    ("uma_engine_kv_cache_usage_ratio", |load| load.kv_cache_usage),
    ("uma_engine_kv_cache_available_tokens", |load| {
        load.kv_cache_available_tokens.map(|tokens| tokens as f64)
    }),
    ("uma_engine_sleeping", |load| load.is_sleeping.map(f64::from)),
];

/// The series of the whole node.
#[derive(Debug)]
pub(super) struct NodeCells {
    engines: Cell,
    release_buckets: [Cell; RELEASE_SECONDS.len()],
    release_sum: Cell,
    release_count: Cell,
    releases: [Cell; ReleaseEnd::ALL.len()],
    infos: InfoCells,
}

impl NodeCells {
    pub(super) fn new(counters: &mut Counters, store: &mut SeriesStore) -> Self {
        let engines = counters.cell(store, &SeriesKey::new("uma_engines", &[]));
        counters.set_reading(engines, Reading::Failed);
        let mut cell = |name: &str, labels: &[(&str, &str)]| {
            counters.cell(store, &SeriesKey::new(name, labels))
        };
        Self {
            engines,
            release_buckets: RELEASE_SECONDS
                .map(|(_, bound)| cell("uma_engine_release_seconds_bucket", &[("le", bound)])),
            release_sum: cell("uma_engine_release_seconds_sum", &[]),
            release_count: cell("uma_engine_release_seconds_count", &[]),
            releases: ReleaseEnd::ALL
                .map(|end| cell("uma_engine_releases_total", &[("end", end.name())])),
            infos: InfoCells::default(),
        }
    }

    /// A release has come to an end; only of those that are whole it is known how long they take.
    pub(super) fn count_release(&self, release: &Release, counters: &mut Counters) {
        let place = ReleaseEnd::ALL.iter().position(|end| *end == release.end);
        if let Some(cell) = place.and_then(|place| self.releases.get(place)) {
            counters.add(*cell, 1.0);
        }
        if release.end != ReleaseEnd::Returned {
            return;
        }
        for (cell, (bound, _)) in self.release_buckets.iter().zip(RELEASE_SECONDS) {
            if release.seconds <= bound {
                counters.add(*cell, 1.0);
            }
        }
        counters.add(self.release_sum, release.seconds);
        counters.add(self.release_count, 1.0);
    }

    /// Before the first sample their number is unknown.
    pub(super) fn publish(
        &self,
        engines: usize,
        has_sampled: bool,
        is_known: bool,
        counters: &mut Counters,
    ) {
        match has_sampled && is_known {
            true => counters.set(self.engines, engines as f64),
            false => counters.set_reading(self.engines, Reading::Failed),
        }
    }
}

/// Changes of what an engine is. Its container is known after a while; arguments that a process
/// rewrites all the time shall not make a series each.
const MOST_DESCRIPTIONS: u8 = 8;

/// The series of one engine.
#[derive(Debug)]
pub(super) struct EngineCells {
    about: EngineInfoLabels,
    /// How often that has changed.
    descriptions: u8,
    info: Cell,
    starts: Cell,
    phases: [Cell; EnginePhase::ALL.len()],
    phase_seconds: Cell,
    stuck: Cell,
    without_progress: Cell,
    load_read: Cell,
    memory: [Cell; MEMORY.len()],
    growth: Cell,
    mapped: Cell,
    processes: Cell,
    requests: Cell,
    orphans: Cell,
    owned: [Cell; LEFT.len()],
    outstanding: [Cell; LEFT.len()],
    load: [Cell; LOAD.len()],
    expected_growth: Cell,
    floor_change: [Cell; FLOOR_CAUSES.len()],
}

impl EngineCells {
    pub(super) fn new(
        seen: &EngineSeen,
        node: &mut NodeCells,
        counters: &mut Counters,
        store: &mut SeriesStore,
    ) -> Self {
        let about = EngineInfoLabels::of(seen);
        let info = node.infos.take(&about, counters, store);
        let mut cell = |name: &str, labels: &[(&str, &str)]| {
            let mut all = vec![("engine", &*seen.name)];
            all.extend(labels);
            counters.cell(store, &SeriesKey::new(name, &all))
        };
        let cells = Self {
            about,
            descriptions: 0,
            info,
            starts: cell("uma_engine_starts_total", &[]),
            phases: EnginePhase::ALL
                .map(|phase| cell("uma_engine_phase", &[("phase", phase.name())])),
            phase_seconds: cell("uma_engine_phase_seconds", &[]),
            stuck: cell("uma_engine_stuck", &[]),
            without_progress: cell("uma_engine_without_progress_seconds", &[]),
            load_read: cell("uma_engine_load_read_bytes", &[]),
            memory: MEMORY.map(|(kind, _)| cell("uma_engine_memory_bytes", &[("type", kind)])),
            growth: cell("uma_engine_growth_bytes", &[]),
            mapped: cell("uma_engine_mapped_model_bytes", &[]),
            processes: cell("uma_engine_processes", &[]),
            requests: cell("uma_engine_requests", &[]),
            orphans: cell("uma_engine_orphans", &[]),
            owned: LEFT.map(|(kind, _)| cell("uma_engine_owned_bytes", &[("type", kind)])),
            outstanding: LEFT
                .map(|(kind, _)| cell("uma_engine_outstanding_bytes", &[("type", kind)])),
            load: LOAD.map(|(name, _)| cell(name, &[])),
            expected_growth: cell("uma_engine_expected_growth_bytes", &[]),
            floor_change: FLOOR_CAUSES
                .map(|what| cell("uma_engine_load_floor_change_bytes", &[("what", what)])),
        };
        // A living one has nothing outstanding.
        for cell in cells.owned.iter().chain(&cells.outstanding) {
            counters.retire(*cell);
        }
        cells.end_load(counters);
        cells
    }

    /// What it owned when it died, and what of that is not back.
    pub(super) fn set_release(
        &self,
        owned: &ReleaseMemory,
        outstanding: &ReleaseMemory,
        counters: &mut Counters,
    ) {
        let both = [(&self.owned, owned), (&self.outstanding, outstanding)];
        for (cells, memory) in both {
            for (cell, (_, of)) in cells.iter().zip(LEFT) {
                counters.set_or_retire(*cell, of(memory).map(|bytes| bytes as f64).into());
            }
        }
    }

    /// What it has left is followed no more.
    pub(super) fn end_release(&self, counters: &mut Counters) {
        for cell in self.owned.iter().chain(&self.outstanding) {
            counters.retire(*cell);
        }
    }

    /// How much it will still grow; `None`: unknown.
    pub(super) fn set_expected_growth(&self, bytes: Option<u64>, counters: &mut Counters) {
        counters.set_or_retire(self.expected_growth, bytes.map(|bytes| bytes as f64).into());
    }

    /// How its lowest available memory differs from that of other loads.
    pub(super) fn set_floor_change(
        &self,
        bytes: [Option<f64>; FLOOR_CAUSES.len()],
        counters: &mut Counters,
    ) {
        for (cell, bytes) in self.floor_change.iter().zip(bytes) {
            counters.set_or_retire(*cell, bytes.into());
        }
    }

    fn end_load(&self, counters: &mut Counters) {
        for cell in self.floor_change.iter().chain([&self.expected_growth]) {
            counters.retire(*cell);
        }
    }

    pub(super) fn count_start(&self, counters: &mut Counters) {
        counters.add(self.starts, 1.0);
    }

    fn all(&self) -> impl Iterator<Item = Cell> {
        let gauges = [
            self.info,
            self.phase_seconds,
            self.stuck,
            self.without_progress,
            self.load_read,
            self.growth,
            self.mapped,
            self.processes,
            self.requests,
            self.orphans,
        ];
        gauges.into_iter().chain(self.phases).chain(self.memory).chain(self.load)
    }

    /// How much it has grown lately.
    pub(super) fn set_growth(&self, bytes: u64, counters: &mut Counters) {
        counters.set(self.growth, bytes as f64);
    }

    /// Describes the engine by another series if anything is known anew, such as its container.
    pub(super) fn describe(
        &mut self,
        seen: &EngineSeen,
        node: &mut NodeCells,
        counters: &mut Counters,
        store: &mut SeriesStore,
    ) {
        let about = EngineInfoLabels::of(seen);
        if self.about != about && self.descriptions < MOST_DESCRIPTIONS {
            self.descriptions += 1;
            node.infos.leave(self.info, counters);
            self.info = node.infos.take(&about, counters, store);
            self.about = about;
        }
    }

    /// Ends the series of an engine that has been gone for long; the count of its starts stays.
    pub(super) fn retire(&self, node: &mut NodeCells, counters: &mut Counters) {
        for cell in self.all() {
            counters.retire(cell);
        }
        node.infos.leave(self.info, counters);
        self.end_release(counters);
        self.end_load(counters);
    }

    pub(super) fn publish(&self, at: Moment, life: &Life, is_known: bool, counters: &mut Counters) {
        if !is_known {
            for cell in self.all() {
                counters.set_reading(cell, Reading::Failed);
            }
            return;
        }
        counters.set(self.info, 1.0);
        for (cell, phase) in self.phases.iter().zip(EnginePhase::ALL) {
            counters.set(*cell, f64::from(phase == life.phase()));
        }
        let since = at.uptime.saturating_sub(life.turned().uptime);
        counters.set(self.phase_seconds, since.as_secs_f64());
        counters.set(self.stuck, f64::from(life.is_stuck()));
        let still = life.without_progress().map(|still| still.as_secs_f64());
        counters.set_or_retire(self.without_progress, still.into());
        let load_read = life.load_read().map(|bytes| bytes as f64);
        counters.set_or_retire(self.load_read, load_read.into());
        let processes = &life.seen().processes;
        for (cell, (_, of)) in self.memory.iter().zip(MEMORY) {
            counters.set_reading(*cell, sum(processes, of));
        }
        counters.set_reading(self.mapped, sum(processes, |process| process.mapped_bytes));
        counters.set(self.orphans, orphans(life.seen()).count() as f64);
        counters.set(self.processes, processes.len() as f64);
        // An engine that does not report its load lacks it, and not the machine.
        counters.set_or_retire(self.requests, life.requests().map(|requests| requests as f64));
        let load = life.load();
        for (cell, (_, of)) in self.load.iter().zip(LOAD) {
            counters.set_or_retire(*cell, of(&load));
        }
    }
}

/// Of those that can be read; of none if none can.
fn sum(processes: &[EngineProcess], of: fn(&EngineProcess) -> Reading<u64>) -> Reading<f64> {
    let mut sum = match processes.first() {
        None => Reading::Value(0.0),
        Some(process) => of(process).map(|_| 0.0),
    };
    for process in processes {
        if let Reading::Value(more) = of(process) {
            sum = Reading::Value(sum.value().unwrap_or(0.0) + more as f64);
        }
    }
    sum
}
