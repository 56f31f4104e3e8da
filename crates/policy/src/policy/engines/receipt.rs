//! Measures what the start of an engine takes, until a minute after it is ready.
//!
//! Like a release, a load is measured by the growth of the node's memory since before the engine.
//! It is unknown if another engine came or went, or loads as well.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use promql_rules::store::SeriesStore;

use super::life::{Life, ticks};
use super::release::{Levels, before};
use crate::model::{
    EnginePhase, EngineSeen, Event, LoadConfiguration, LoadEnd, LoadReading, LoadReceipt, Moment,
    PastLoad, Prefetch, ProcessId, ProgramEvent, ReadOrder, Reading, TrackedReading, WhyUnknown,
};
use crate::policy::pools::memory::whole;

/// Growth after ready is measured for so long: 12 GiB came within seconds, and requests that come
/// later are no part of a start.
const GROWS_FOR: Duration = Duration::from_secs(60);

/// Earlier loads of an engine that are kept, and engines that are measured or remembered.
const MOST_OF_ENGINE: usize = 8;
const MOST_ENGINES: usize = 64;

/// Lowest available memory is compared with that of loads that differ in this.
pub(super) const FLOOR_CAUSES: [&str; 3] = ["kernel", "driver", "image"];

/// The node at one measurement.
#[derive(Clone, Copy)]
pub(in crate::policy) struct NodeView<'a> {
    pub(in crate::policy) levels: Levels,
    /// All memory of all pools.
    pub(in crate::policy) total: Option<u64>,
    pub(in crate::policy) store: &'a SeriesStore,
}

impl NodeView<'_> {
    /// The sum of a counter over its labels; `None` if no value is known.
    fn counted(&self, name: &str) -> Option<u64> {
        let (ids, _) = self.store.named(name);
        let values = ids.iter().filter_map(|id| self.store.latest(*id).value());
        let sum = values.reduce(|sum, value| sum + value)?;
        whole(Reading::Value(sum)).value()
    }

    /// The label of an info series, but for "unknown".
    fn label(&self, series: &str, label: &str) -> Option<Arc<str>> {
        let (ids, _) = self.store.named(series);
        ids.iter().filter(|id| self.store.latest(**id).value() == Some(1.0)).find_map(|id| {
            let labels = &self.store.key(*id)?.labels;
            let value = labels.iter().find(|(name, _)| **name == *label).map(|(_, value)| value)?;
            (**value != *"unknown" && !value.is_empty()).then(|| Arc::from(&**value))
        })
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct NodeCounters {
    stalls: Option<u64>,
    evicted: Option<u64>,
    prefetched: Option<u64>,
    unused: Option<u64>,
}

impl NodeCounters {
    fn of(node: &NodeView<'_>) -> Self {
        Self {
            stalls: node.counted("uma_memory_allocation_stalls_total"),
            evicted: node.counted("uma_evicted_bytes_total"),
            prefetched: node.counted("uma_prefetched_bytes_total"),
            unused: node.counted("uma_prefetch_unused_bytes_total"),
        }
    }

    fn since(self, before: Self) -> Self {
        let since = |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before?));
        Self {
            stalls: since(self.stalls, before.stalls),
            evicted: since(self.evicted, before.evicted),
            prefetched: since(self.prefetched, before.prefetched),
            unused: since(self.unused, before.unused),
        }
    }
}

/// Memory of the engine's processes that no other figure has: anonymous memory and huge pages.
fn own(seen: &EngineSeen) -> u64 {
    let living = seen.processes.iter().filter(|process| !super::life::has_ended(process));
    let kinds = living.flat_map(|process| [process.anon_bytes, process.hugetlb_bytes]);
    kinds.filter_map(Reading::value).fold(0, u64::saturating_add)
}

/// The engine when it was ready.
#[derive(Clone, Copy, Debug)]
struct AtReady {
    at: Duration,
    /// What it had.
    bytes: Option<u64>,
    /// What the node had of what it may hold, its own memory included.
    level: Option<u64>,
    growth: Option<u64>,
    /// The most by which earlier ones grew.
    usual_growth: Option<u64>,
}

/// One load under way.
#[derive(Debug)]
pub(super) struct Loading {
    server: ProcessId,
    engine: Arc<str>,
    configuration: LoadConfiguration,
    began: Duration,
    started: Timestamp,
    before: Levels,
    is_begin_seen: bool,
    has_loaded: bool,
    why_unknown: Option<WhyUnknown>,
    counted: NodeCounters,
    lowest_free: Option<u64>,
    lowest_available: Option<u64>,
    peak: Option<u64>,
    read: Option<u64>,
    /// How it read its model files, once that is no longer tracked.
    reading: Option<LoadReading>,
    ready: Option<AtReady>,
}

impl Loading {
    /// A life that has just begun. `is_alone`: no other engine lives; `is_any_loading`: another one
    /// is measured as well.
    pub(super) fn begin(
        at: Moment,
        life: &Life,
        (is_alone, is_any_loading): (bool, bool),
        baseline: Option<u64>,
        node: &NodeView<'_>,
    ) -> Self {
        let is_begin_seen = life.levels_before().is_some();
        let began = ticks(life.server().start_ticks);
        let age = at.uptime.saturating_sub(began);
        let mut loading = Self {
            server: life.server(),
            engine: Arc::clone(life.name()),
            configuration: LoadConfiguration::default(),
            began,
            started: at.utc.checked_sub(age).unwrap_or(at.utc),
            before: before(life, is_alone, baseline),
            is_begin_seen,
            has_loaded: is_begin_seen,
            why_unknown: is_any_loading.then_some(WhyUnknown::OtherEngines),
            counted: if is_begin_seen { NodeCounters::of(node) } else { NodeCounters::default() },
            lowest_free: None,
            lowest_available: None,
            peak: None,
            read: None,
            reading: None,
            ready: None,
        };
        loading.configure(life.seen());
        loading
    }

    fn configure(&mut self, seen: &EngineSeen) {
        self.engine = Arc::clone(&seen.name);
        let configuration = &mut self.configuration;
        configuration.engine_kind = seen.kind;
        let keep = |known: &mut Option<Arc<str>>, now: &Option<Arc<str>>| {
            if now.is_some() {
                known.clone_from(now);
            }
        };
        keep(&mut configuration.image, &seen.image);
        keep(&mut configuration.model, &seen.model);
        keep(&mut configuration.arguments, &seen.arguments);
    }

    /// Takes the node's present memory. Returns how the load has ended, if it has; an engine that
    /// was found serving has none.
    fn measure(
        &mut self,
        at: Moment,
        life: Option<&Life>,
        node: &NodeView<'_>,
        past: &PastLoads,
    ) -> Option<LoadEnd> {
        let Some(life) = life.filter(|life| !life.has_ended()) else { return Some(LoadEnd::Died) };
        self.configure(life.seen());
        self.has_loaded |= life.phase() == EnginePhase::Loading;
        if self.is_begin_seen {
            let lowest = |now: Option<u64>, known| now.into_iter().chain(known).min();
            self.lowest_free = lowest(node.levels.free, self.lowest_free);
            self.lowest_available = lowest(node.levels.available, self.lowest_available);
            self.read = life.load_read();
        }
        let own = own(life.seen());
        let bytes = self.bytes(own, node);
        let levels = &node.levels;
        let sum = |(one, other): (u64, u64)| one.saturating_add(other).saturating_add(own);
        let level = levels.unaccounted.zip(levels.shmem).map(sum);
        let is_disturbed = self.is_disturbed();
        match &mut self.ready {
            Some(ready) => {
                if life.phase() == EnginePhase::Loading || is_disturbed {
                    return Some(LoadEnd::Interrupted);
                }
                let cap = |bytes: u64| bytes.min(node.total.unwrap_or(u64::MAX));
                let grown = level.zip(ready.level).map(|(now, then)| now.saturating_sub(then));
                ready.growth = grown.map(cap).into_iter().chain(ready.growth).max();
                let lasted = at.uptime.saturating_sub(ready.at);
                (lasted >= GROWS_FOR).then_some(LoadEnd::Ready)
            }
            None => {
                self.peak = bytes.into_iter().chain(self.peak).max();
                if !life.phase().is_up() {
                    return None;
                }
                self.complete(node);
                let (at, growth) = (life.turned().uptime, level.map(|_| 0));
                let usual_growth = past.usual_growth(&self.engine, &self.configuration);
                self.ready = Some(AtReady { at, bytes, level, growth, usual_growth });
                is_disturbed.then_some(LoadEnd::Interrupted)
            }
        }
    }

    /// Takes from the node what the engine was started with.
    fn complete(&mut self, node: &NodeView<'_>) {
        self.configuration.kernel = node.label("uma_kernel_info", "release");
        self.configuration.driver = node.label("uma_gpu_info", "driver_version");
    }

    /// How much it will still grow, if that is known from earlier loads.
    fn expected_growth(&self) -> Option<u64> {
        let ready = self.ready.filter(|_| !self.is_disturbed())?;
        Some(ready.usual_growth?.saturating_sub(ready.growth?))
    }

    fn is_disturbed(&self) -> bool {
        self.why_unknown == Some(WhyUnknown::OtherEngines)
    }

    /// What the engine has now, never more than there is.
    fn bytes(&self, own: u64, node: &NodeView<'_>) -> Option<u64> {
        if self.why_unknown.is_some() {
            return None;
        }
        let bytes = node.levels.above(&self.before, own).to_return()?;
        Some(bytes.min(node.total.unwrap_or(u64::MAX)))
    }

    /// Whether anything is known of its load.
    fn is_load(&self) -> bool {
        self.has_loaded || self.is_begin_seen
    }

    fn receipt(mut self, end: LoadEnd, node: &NodeView<'_>) -> LoadReceipt {
        self.complete(node);
        let counted = NodeCounters::of(node).since(self.counted);
        let ready_bytes = self.ready.and_then(|ready| ready.bytes);
        // Of a growth that was not measured to its end the rest is unknown.
        let growth = self.ready.and_then(|ready| ready.growth).filter(|_| end == LoadEnd::Ready);
        // A peak of the time before it became unknown is not that of the load.
        let peak = self.peak.filter(|_| self.why_unknown.is_none() || ready_bytes.is_some());
        let has_bytes = ready_bytes.is_some() || self.ready.is_none() && peak.is_some();
        let why_unknown = match (has_bytes, self.why_unknown, self.is_begin_seen) {
            (true, _, _) => None,
            (false, Some(why), _) => Some(why),
            (false, None, false) => Some(WhyUnknown::BeginUnseen),
            (false, None, true) => Some(WhyUnknown::Unmeasured),
        };
        let ready_after = self.ready.map(|ready| ready.at.saturating_sub(self.began));
        LoadReceipt {
            end,
            started: self.started,
            fingerprint: self.configuration.fingerprint(&self.engine),
            configuration: self.configuration,
            ready_after_seconds: ready_after.map(|after| after.as_secs_f64()),
            ready_bytes,
            peak_bytes: peak,
            growth_bytes: growth,
            lowest_free_bytes: self.lowest_free,
            lowest_available_bytes: self.lowest_available,
            stalls: counted.stalls,
            read_bytes: self.read,
            evicted_bytes: counted.evicted,
            prefetched_bytes: counted.prefetched,
            prefetch_unused_bytes: counted.unused,
            reading: self.reading,
            why_unknown,
        }
    }
}

/// Loads under way, and earlier ones to compare with.
#[derive(Debug, Default)]
pub(super) struct Loads {
    under_way: Vec<Loading>,
    past: PastLoads,
}

/// A load that has ended.
pub(super) struct EndedLoad {
    pub(super) server: ProcessId,
    pub(super) event: Event,
    /// By how much its lowest available memory differs from the median of the earlier loads with
    /// another of [`FLOOR_CAUSES`].
    pub(super) floor_change: [Option<f64>; FLOOR_CAUSES.len()],
}

impl Loads {
    pub(super) fn is_any_under_way(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// Whether any of those servers is measured.
    pub(super) fn is_any_of(&self, mut servers: impl Iterator<Item = ProcessId>) -> bool {
        servers.any(|server| self.under_way.iter().any(|loading| loading.server == server))
    }

    pub(super) fn begin(&mut self, loading: Loading) {
        self.under_way.push(loading);
        if self.under_way.len() > MOST_ENGINES {
            self.under_way.remove(0);
        }
    }

    /// The living engines were `before` and are `alive` now: what a load takes can no longer be
    /// distinguished if another engine came or went. `is_returning`: the node still gets memory
    /// back from an engine that ended, in an unknown amount.
    pub(super) fn disturb(
        &mut self,
        before: &BTreeSet<ProcessId>,
        alive: &BTreeSet<ProcessId>,
        is_returning: bool,
    ) {
        for loading in &mut self.under_way {
            let is_other = |server: &ProcessId| *server != loading.server;
            let is_disturbed = match before.contains(&loading.server) {
                true => before.symmetric_difference(alive).any(is_other),
                false => is_returning || alive.difference(before).any(is_other),
            };
            if is_disturbed {
                loading.why_unknown = Some(WhyUnknown::OtherEngines);
            }
        }
    }

    /// Takes the node's present memory. Returns the loads that have ended.
    pub(super) fn measure<'a>(
        &mut self,
        at: Moment,
        node: &NodeView<'_>,
        life_of: impl Fn(ProcessId) -> Option<&'a Life>,
    ) -> Vec<EndedLoad> {
        let mut ended = Vec::new();
        for mut loading in std::mem::take(&mut self.under_way) {
            let server = loading.server;
            let end = match loading.measure(at, life_of(server), node, &self.past) {
                // It was found when it served already.
                _ if loading.ready.is_some() && !loading.is_load() => continue,
                None => {
                    self.under_way.push(loading);
                    continue;
                }
                Some(LoadEnd::Died) if !loading.is_load() => continue,
                Some(end) => end,
            };
            let engine = loading.engine.to_string();
            let receipt = loading.receipt(end, node);
            let mut floor_change = [None; FLOOR_CAUSES.len()];
            if let Some(load) = receipt.known(&engine) {
                if end == LoadEnd::Ready {
                    floor_change = self.past.floor_change(&load);
                }
                self.past.add(load);
            }
            let kind =
                ProgramEvent::EngineLoad { engine, pid: server.pid, receipt: Box::new(receipt) };
            let event = Event { kind: kind.into(), utc: Some(at.utc), seq: None };
            ended.push(EndedLoad { server, event, floor_change });
        }
        ended
    }

    /// How much each engine that is ready will still grow, if that is known.
    pub(super) fn expected_growth(&self) -> impl Iterator<Item = (ProcessId, Option<u64>)> {
        self.under_way.iter().map(|loading| (loading.server, loading.expected_growth()))
    }

    /// How long the last load of an engine of that name and model took until it was ready.
    pub(super) fn last_took(&self, seen: &EngineSeen) -> Option<Duration> {
        let mut same = self.past.of(&seen.name).rev().filter(|load| load.model == seen.model);
        same.find_map(|load| load.ready_after_ms).map(Duration::from_millis)
    }

    /// Whether too much was read for nothing when that engine was last read ahead of.
    pub(super) fn is_prefetch_vain(&self, engine: &str) -> bool {
        let newest = self.past.of(engine).filter_map(|load| load.prefetch_unused_bytes).next_back();
        newest.is_some_and(|bytes| bytes >= Prefetch::MOST_UNUSED_BYTES)
    }

    /// The order in which that engine has last read its files, where their names do not show it.
    pub(super) fn read_order(&self, engine: &str) -> Vec<ReadOrder> {
        let newest = |is_only_reading: bool| {
            let mut loads = self.past.of(engine).rev();
            loads.find_map(|load| {
                load.read_order.clone().filter(|_| load.is_only_reading == is_only_reading)
            })
        };
        newest(false).or_else(|| newest(true)).unwrap_or_default()
    }

    /// Takes how an engine read, for its receipt.
    fn take_reading(&mut self, tracked: &TrackedReading) {
        let mut under_way = self.under_way.iter_mut();
        if let Some(loading) = under_way.find(|loading| loading.server == tracked.server) {
            loading.reading = Some(tracked.reading.clone());
        }
    }

    /// Restores loads of earlier runs, oldest first. What this run has measured is newer.
    pub(super) fn restore(&mut self, past: &[PastLoad]) {
        let newer = std::mem::take(&mut self.past);
        for load in past.iter().chain(newer.0.values().flatten()) {
            self.past.add(load.clone());
        }
    }
}

impl super::Engines {
    /// Takes the loads of earlier runs, oldest first.
    pub(in crate::policy) fn restore_loads(&mut self, past: &[PastLoad]) {
        self.loads.restore(past);
    }

    /// Takes how an engine has read its model files.
    pub(in crate::policy) fn take_reading(&mut self, tracked: &TrackedReading) {
        self.loads.take_reading(tracked);
    }
}

/// Earlier loads by engine, the newest last.
#[derive(Debug, Default)]
struct PastLoads(BTreeMap<Arc<str>, VecDeque<PastLoad>>);

impl PastLoads {
    fn add(&mut self, load: PastLoad) {
        if self.0.len() >= MOST_ENGINES && !self.0.contains_key(&load.engine) {
            return;
        }
        let of_engine = self.0.entry(Arc::clone(&load.engine)).or_default();
        // Engines that die again and again push out no complete load.
        of_engine.retain(|known| !known.is_only_reading);
        of_engine.push_back(load);
        if of_engine.len() > MOST_OF_ENGINE {
            of_engine.pop_front();
        }
    }

    fn of(&self, engine: &str) -> impl DoubleEndedIterator<Item = &PastLoad> {
        self.0.get(engine).into_iter().flatten()
    }

    /// The most by which the engine grew after it was ready, when it was started like this; else
    /// with any configuration.
    fn usual_growth(&self, engine: &str, configuration: &LoadConfiguration) -> Option<u64> {
        let fingerprint = configuration.fingerprint(engine);
        let same = self.of(engine).filter(|load| load.fingerprint == fingerprint);
        let most = same.filter_map(|load| load.growth_bytes).max();
        most.or_else(|| self.of(engine).filter_map(|load| load.growth_bytes).max())
    }

    fn floor_change(&self, load: &PastLoad) -> [Option<f64>; FLOOR_CAUSES.len()] {
        let of = |load: &PastLoad| [&load.kernel, &load.driver, &load.image].map(Option::clone);
        let causes = of(load);
        std::array::from_fn(|place| {
            let cause = causes.get(place)?.as_ref()?;
            let differs = |other: &&PastLoad| {
                of(other)
                    .get(place)
                    .is_some_and(|known| known.as_ref().is_some_and(|one| one != cause))
            };
            let others = self.of(&load.engine).filter(differs);
            let mut floors: Vec<u64> =
                others.filter_map(|load| load.lowest_available_bytes).collect();
            floors.sort_unstable();
            let median = floors.get(floors.len() / 2)?;
            Some(load.lowest_available_bytes? as f64 - *median as f64)
        })
    }
}
