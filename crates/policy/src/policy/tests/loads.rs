//! What engines take when they start, through the whole policy.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use proptest::prelude::*;

use crate::model::{
    DecisionId, EarlierRuns, EngineHealth, EngineKind, EngineLoad, EngineProcess, EngineReadings,
    EngineSeen, Event, EventKind, HealthResponse, LoadEnd, LoadReading, LoadReceipt, Mode, Moment,
    Observation, PastLoad, ProcessId, ProgramEvent, ReadOrder, Reading, Readings, Schema,
    SeriesKey, Source, TrackedReading, WhyUnknown,
};
use crate::policy::Policy;
use crate::policy::rule::RuleSet;

const GIB: u64 = 1 << 30;
const TICK: Duration = Duration::from_millis(250);
const TOTAL: u64 = 120 * GIB;

/// A node of 120 GiB that is sampled four times a second, and its processes once a second.
struct LoadWorld {
    policy: Policy,
    now: Duration,
    schema: Arc<Schema>,
    unaccounted: u64,
    shmem: u64,
    stalls: u64,
    cache: u64,
    kernel: &'static str,
    engines: Vec<EngineSeen>,
    ready: Vec<Arc<str>>,
    receipts: Vec<(String, LoadReceipt)>,
}

fn moment(at: Duration) -> Moment {
    let utc = Timestamp::from_second(1_795_219_200).unwrap() + at;
    Moment { uptime: Duration::from_secs(1_000) + at, utc }
}

fn process(pid: u32, started: Duration, comm: &str, anonymous: u64) -> EngineProcess {
    let start_ticks = u64::try_from(moment(started).uptime.as_millis() / 10).unwrap();
    EngineProcess::holding(ProcessId { pid, start_ticks }, comm, anonymous)
}

/// A server with one worker of 5 GiB, which reads its model.
fn engine(name: &str, pid: u32, started: Duration) -> EngineSeen {
    let server = process(pid, started, "vllm", GIB);
    let worker = process(pid + 1, started, "VLLM::EngineCor", 5 * GIB);
    let (id, found_by) = (server.id, Arc::from("its command line"));
    EngineSeen {
        health_url: Some("http://127.0.0.1:8000/health".into()),
        port: Some(8000),
        model: Some("qwen".into()),
        image: Some("vllm:1@0123456789ab".into()),
        ..EngineSeen::new(Arc::from(name), EngineKind::Vllm, id, vec![server, worker], found_by)
    }
}

impl LoadWorld {
    fn new() -> Self {
        let key = |name, label| SeriesKey::new(name, label);
        let series = vec![
            key("uma_memory_total_bytes", &[]),
            key("uma_memory_free_bytes", &[]),
            key("uma_memory_available_bytes", &[]),
            key("uma_memory_unaccounted_bytes", &[]),
            key("uma_memory_shmem_bytes", &[]),
            key("uma_memory_allocation_stalls_total", &[("zone", "normal")]),
        ];
        let policy =
            Policy::new(moment(Duration::ZERO), Mode::Observe, &RuleSet::default(), DecisionId(1));
        Self {
            policy,
            now: Duration::ZERO,
            schema: Arc::new(Schema { series }),
            unaccounted: GIB,
            shmem: 0,
            stalls: 100,
            cache: 0,
            kernel: "6.17",
            engines: Vec::new(),
            ready: Vec::new(),
            receipts: Vec::new(),
        }
    }

    fn run(&mut self, time: Duration, mut change: impl FnMut(&mut Self)) {
        let until = self.now + time;
        while self.now < until {
            self.now += TICK;
            change(self);
            self.step();
        }
    }

    fn wait(&mut self, seconds: u64) {
        self.run(Duration::from_secs(seconds), |_| {});
    }

    fn own(&self) -> u64 {
        let processes = self.engines.iter().flat_map(|engine| &engine.processes);
        processes.filter_map(|process| process.anon_bytes.value()).sum()
    }

    fn step(&mut self) {
        let at = moment(self.now);
        let used = self.unaccounted + self.shmem + self.own() + 2 * GIB;
        // A full page cache leaves little free, and does not count.
        let available = TOTAL.saturating_sub(used);
        let free = available.saturating_sub(self.cache);
        let values = [TOTAL, free, available, self.unaccounted, self.shmem, self.stalls];
        #[expect(clippy::cast_precision_loss, reason = "a series' value is an f64 everywhere")]
        let values = values.iter().map(|value| Reading::Value(*value as f64)).collect();
        let readings = |source, schema, values| {
            let (took, error) = (Duration::ZERO, None);
            Observation::Readings(Readings { source, schema, values, took, error })
        };
        let labels = [("machine", "aarch64"), ("release", self.kernel)];
        let kernel = Schema { series: vec![SeriesKey::new("uma_kernel_info", &labels)] };
        let mut seen = vec![
            readings(Source::Meminfo, Arc::clone(&self.schema), values),
            readings(Source::Daemon, Arc::new(kernel), vec![Reading::Value(1.0)]),
        ];
        if self.now.subsec_millis() == 0 {
            let engines = self.engines.clone();
            let observed =
                EngineReadings { read_at: at.uptime, engines, ..EngineReadings::default() };
            seen.push(Observation::Engines(Box::new(observed)));
            seen.extend(self.engines.iter().map(|engine| self.health(engine, at.uptime)));
        }
        for Event { kind, .. } in self.policy.step(at, &seen).events {
            if let EventKind::Program(ProgramEvent::EngineLoad { engine, receipt, .. }) = kind {
                self.receipts.push((engine, *receipt));
            }
        }
    }

    fn health(&self, engine: &EngineSeen, asked_at: Duration) -> Observation {
        let is_ready = self.ready.contains(&engine.name);
        let answer =
            if is_ready { HealthResponse::Ready } else { HealthResponse::NotReady { status: 503 } };
        Observation::EngineHealth(Box::new(EngineHealth {
            key_withheld: None,
            engine: Arc::clone(&engine.name),
            server: engine.server,
            asked_at,
            answer,
            requests: Reading::Unsupported,
            load: EngineLoad::default(),
        }))
    }

    /// An engine begins, takes 80 GiB and 2 GiB of shared memory within ten seconds, gives 4 GiB
    /// back, and is ready.
    fn start(&mut self, name: &str, pid: u32) {
        self.engines.push(engine(name, pid, self.now));
        self.wait(1);
        self.run(Duration::from_secs(10), |node| {
            node.unaccounted += 2 * GIB;
            node.shmem += GIB / 20;
            node.stalls += 1;
        });
        self.unaccounted -= 4 * GIB;
        self.ready.push(name.into());
        self.wait(1);
    }

    fn grow(&mut self, gibibytes: u64) {
        self.run(Duration::from_secs(2), |node| node.unaccounted += gibibytes * GIB / 8);
    }

    fn receipt(&mut self) -> LoadReceipt {
        let receipts = std::mem::take(&mut self.receipts);
        let [(_, receipt)] = receipts.as_slice() else { panic!("{receipts:?}") };
        receipt.clone()
    }

    fn value(&mut self, name: &str) -> Option<f64> {
        let status = self.policy.status(moment(self.now));
        let place = status.series.iter().position(|key| key.to_string() == name)?;
        status.values[place].sample()
    }
}

const EXPECTED: &str = "uma_engine_expected_growth_bytes{engine=\"qwen\"}";

fn near(bytes: Option<u64>, gibibytes: f64) -> bool {
    bytes.is_some_and(|bytes| (bytes as f64 / GIB as f64 - gibibytes).abs() < 0.6)
}

#[test]
fn a_receipt_has_what_was_taken_until_ready_and_what_came_after() {
    let mut node = LoadWorld::new();
    node.wait(20);
    node.start("qwen", 10);
    node.grow(12);
    node.unaccounted -= 3 * GIB;
    node.wait(55);
    assert!(node.receipts.is_empty(), "a minute is not over");
    node.wait(5);
    let receipt = node.receipt();
    assert_eq!((receipt.end, receipt.why_unknown), (LoadEnd::Ready, None), "{receipt}");
    assert!(near(receipt.ready_bytes, 84.0), "{receipt}");
    assert!(near(receipt.peak_bytes, 88.0), "{receipt:?}");
    assert!(near(receipt.growth_bytes, 12.0), "{receipt}");
    assert!(near(receipt.need_bytes(), 96.0), "{receipt}");
    assert_eq!(receipt.stalls, Some(40));
    assert_eq!(receipt.read_bytes, Some(0));
    assert!((10.0..13.0).contains(&receipt.ready_after_seconds.unwrap()), "{receipt}");
    assert!(near(receipt.lowest_free_bytes, 21.0), "{receipt}");
    assert_eq!(receipt.started, moment(Duration::from_secs(20)).utc);
    assert_eq!(receipt.configuration.kernel.as_deref(), Some("6.17"));
    assert_eq!(receipt.configuration.image.as_deref(), Some("vllm:1@0123456789ab"));
    node.wait(600);
    assert!(node.receipts.is_empty(), "one start has one receipt");
}

#[test]
fn a_death_before_ready_leaves_what_is_known() {
    let mut node = LoadWorld::new();
    node.wait(20);
    node.engines.push(engine("qwen", 10, node.now));
    node.wait(1);
    node.run(Duration::from_secs(5), |node| node.unaccounted += 2 * GIB);
    node.engines.clear();
    node.run(Duration::from_secs(2), |node| node.unaccounted -= 5 * GIB);
    let receipt = node.receipt();
    assert_eq!(receipt.end, LoadEnd::Died);
    assert_eq!((receipt.ready_bytes, receipt.growth_bytes), (None, None));
    assert_eq!((receipt.ready_after_seconds, receipt.need_bytes()), (None, None));
    assert!(near(receipt.peak_bytes, 46.0), "{receipt}");
    assert!(receipt.to_string().starts_with("died before it was ready, with at most 4"));
    let unknown = LoadReceipt { peak_bytes: None, ..receipt };
    assert!(unknown.to_string().starts_with("died before it was ready; "), "{unknown}");
}

#[test]
fn a_death_soon_after_ready_leaves_the_growth_unknown() {
    let mut node = LoadWorld::new();
    node.wait(20);
    node.start("qwen", 10);
    node.grow(12);
    node.engines.clear();
    node.wait(2);
    let receipt = node.receipt();
    assert_eq!((receipt.end, receipt.growth_bytes), (LoadEnd::Died, None));
    assert!(near(receipt.ready_bytes, 84.0) && receipt.need_bytes().is_none(), "{receipt}");
}

#[test]
fn two_engines_that_start_together_are_not_told_apart() {
    let mut node = LoadWorld::new();
    node.wait(20);
    node.engines.push(engine("other", 50, node.now));
    node.wait(2);
    node.start("qwen", 10);
    node.ready.push("other".into());
    node.wait(70);
    let receipts = std::mem::take(&mut node.receipts);
    assert_eq!(receipts.len(), 2, "{receipts:?}");
    for (name, receipt) in receipts {
        assert_eq!(receipt.why_unknown, Some(WhyUnknown::OtherEngines), "{name}");
        assert_eq!((receipt.ready_bytes, receipt.peak_bytes), (None, None), "{name}");
        assert_eq!((receipt.growth_bytes, receipt.end), (None, LoadEnd::Interrupted), "{name}");
        assert!(receipt.ready_after_seconds.is_some() && receipt.stalls.is_some(), "{name}");
    }
    // One that begins when the first has settled is known.
    node.start("third", 90);
    node.wait(70);
    assert!(near(node.receipt().ready_bytes, 84.0));
}

#[test]
fn an_engine_that_follows_another_is_measured_from_the_baseline() {
    for baseline in [None, Some(GIB)] {
        let mut node = LoadWorld::new();
        let baselines = baseline.map(|bytes| ("host".into(), bytes)).into_iter().collect();
        let past = EarlierRuns { unaccounted_baselines: baselines, ..EarlierRuns::default() };
        node.policy.resume(moment(Duration::ZERO), &past);
        node.engines.push(engine("qwen", 10, Duration::ZERO));
        node.wait(1);
        node.unaccounted = 40 * GIB;
        node.ready.push("qwen".into());
        node.wait(30);
        node.receipts.clear();
        // It is started again at once, while the driver returns memory.
        node.ready.clear();
        node.engines = vec![engine("qwen", 30, node.now)];
        node.wait(1);
        node.run(Duration::from_secs(4), |node| node.unaccounted -= 39 * GIB / 16);
        node.run(Duration::from_secs(10), |node| node.unaccounted += GIB);
        node.ready.push("qwen".into());
        node.wait(70);
        let (_, receipt) = node.receipts.pop().unwrap();
        assert_eq!(node.receipts.len(), 1, "the first has died");
        assert_eq!(receipt.ready_bytes.is_some(), baseline.is_some(), "{receipt}");
        assert!(baseline.is_none() || near(receipt.ready_bytes, 46.0), "{receipt}");
    }
}

#[test]
fn after_a_restart_of_the_daemon_only_what_is_known_is_reported() {
    let mut serving = LoadWorld::new();
    serving.now = Duration::from_secs(500);
    serving.engines.push(engine("qwen", 10, Duration::ZERO));
    serving.ready.push("qwen".into());
    serving.unaccounted = 60 * GIB;
    serving.wait(200);
    assert!(serving.receipts.is_empty(), "its load was not seen");
    serving.engines.clear();
    serving.wait(10);
    assert!(serving.receipts.is_empty());

    let mut node = LoadWorld::new();
    node.now = Duration::from_secs(500);
    node.engines.push(engine("qwen", 10, Duration::from_secs(490)));
    node.unaccounted = 60 * GIB;
    node.wait(5);
    node.ready.push("qwen".into());
    node.wait(1);
    node.grow(7);
    node.wait(70);
    let receipt = node.receipt();
    assert_eq!((receipt.end, receipt.ready_bytes), (LoadEnd::Ready, None), "{receipt}");
    assert_eq!(receipt.why_unknown, Some(WhyUnknown::BeginUnseen));
    assert_eq!((receipt.lowest_free_bytes, receipt.stalls, receipt.read_bytes), (None, None, None));
    assert!(near(receipt.growth_bytes, 7.0), "the growth was seen: {receipt}");
    assert!((14.0..18.0).contains(&receipt.ready_after_seconds.unwrap()), "{receipt}");
}

#[test]
fn growth_is_expected_as_earlier_loads_had_it() {
    let mut node = LoadWorld::new();
    node.wait(20);
    node.start("qwen", 10);
    assert_eq!(node.value(EXPECTED), None, "nothing is known");
    node.grow(12);
    node.wait(70);
    assert_eq!(node.value(EXPECTED), None);
    let past = node.receipt().past("qwen");
    let mut again = LoadWorld::new();
    let older = PastLoad { fingerprint: "x".into(), growth_bytes: Some(50 * GIB), ..past.clone() };
    let past = EarlierRuns { loads: vec![older, past], ..EarlierRuns::default() };
    again.policy.resume(moment(Duration::ZERO), &past);
    again.wait(20);
    again.start("qwen", 10);
    let expected = |node: &mut LoadWorld| node.value(EXPECTED).map(|bytes| bytes as u64);
    assert!(near(expected(&mut again), 12.0), "of the same configuration");
    again.grow(8);
    assert!(near(expected(&mut again), 4.0));
    again.grow(8);
    assert_eq!(expected(&mut again), Some(0), "it never is negative");
    again.wait(60);
    assert_eq!(again.value(EXPECTED), None, "a minute later nothing more is expected");
}

#[test]
fn an_engine_read_ahead_of_in_vain_is_remembered_and_one_that_was_not_read_ahead_of_is_no_proof() {
    let mut node = LoadWorld::new();
    node.wait(20);
    node.start("qwen", 10);
    node.wait(70);
    let mut receipt = node.receipt();
    let mut past = |prefetched: u64, unused: u64| {
        (receipt.prefetched_bytes, receipt.prefetch_unused_bytes) =
            (Some(prefetched), Some(unused));
        receipt.past("qwen")
    };
    let (vain, useful, without) = (past(GIB, GIB / 4), past(9 * GIB, 1), past(0, 0));
    for (loads, is_vain) in [
        (vec![], false),
        (vec![useful.clone(), vain.clone()], true),
        (vec![vain.clone(), without], true),
        (vec![vain, useful], false),
    ] {
        let mut node = LoadWorld::new();
        node.policy
            .resume(moment(Duration::ZERO), &EarlierRuns { loads, ..EarlierRuns::default() });
        node.wait(20);
        node.engines.push(engine("qwen", 10, node.now));
        node.wait(2);
        let target = node.policy.engines.loading("qwen").unwrap();
        assert_eq!(target.is_prefetch_vain, is_vain);
    }
}

#[test]
fn how_an_engine_read_is_in_its_receipt_and_outlives_a_restart_even_if_it_died() {
    let order = vec![ReadOrder { folder: "/m".into(), files: ["b", "a"].map(Arc::from).into() }];
    for (dies, unused_bytes) in [(false, 0), (true, GIB)] {
        let mut node = LoadWorld::new();
        node.wait(20);
        node.engines.push(engine("qwen", 10, node.now));
        node.wait(2);
        let reading =
            LoadReading { order: Some(order.clone()), prefetched_bytes: 2 * GIB, unused_bytes };
        let server = node.engines[0].server;
        let tracked = TrackedReading { engine: "qwen".into(), server, reading: reading.clone() };
        let other = ProcessId { pid: 99, ..server };
        let nobody =
            TrackedReading { server: other, reading: LoadReading::default(), ..tracked.clone() };
        let readings = [tracked, nobody].map(|one| Observation::LoadReading(Box::new(one)));
        node.policy.step(moment(node.now), &readings);
        if dies {
            node.engines.clear();
        } else {
            node.ready.push("qwen".into());
        }
        node.wait(90);
        let receipt = node.receipt();
        assert_eq!(receipt.reading, Some(reading), "{dies}");
        let load = receipt.known("qwen").unwrap();
        assert_eq!((load.is_only_reading, load.growth_bytes.is_none()), (dies, dies));
        let mut again = LoadWorld::new();
        let past = EarlierRuns { loads: vec![load], ..EarlierRuns::default() };
        again.policy.resume(moment(Duration::ZERO), &past);
        again.wait(20);
        again.engines.push(engine("qwen", 10, again.now));
        again.wait(2);
        let target = again.policy.engines.loading("qwen").unwrap();
        assert_eq!((target.read_order, target.is_prefetch_vain), (order.clone(), dies));
    }
}

#[test]
fn a_new_kernel_that_moves_the_floor_is_shown() {
    let series = "uma_engine_load_floor_change_bytes{engine=\"qwen\",what=\"kernel\"}";
    let mut node = LoadWorld::new();
    node.wait(20);
    node.start("qwen", 10);
    node.wait(70);
    let past = node.receipt().past("qwen");
    assert_eq!(node.value(series), None);
    for (kernel, change) in [("6.17", None), ("6.18", Some(-10.0))] {
        let mut node = LoadWorld::new();
        node.kernel = kernel;
        (node.unaccounted, node.cache) = (11 * GIB, 30 * GIB);
        let past = EarlierRuns { loads: vec![past.clone()], ..EarlierRuns::default() };
        node.policy.resume(moment(Duration::ZERO), &past);
        node.wait(20);
        node.start("qwen", 10);
        node.wait(70);
        assert_eq!(node.receipts.len(), 1);
        let moved = node.value(series).map(|bytes| (bytes / GIB as f64).round());
        assert_eq!(moved, change, "{kernel}");
    }
}

proptest! {
    #[test]
    fn amounts_never_exceed_the_pool(
        steps in prop::collection::vec((0..6_u8, 0..64_u64, 0..2_usize), 1..60),
    ) {
        let mut node = LoadWorld::new();
        node.wait(2);
        for (what, gibibytes, place) in steps {
            let name = ["qwen", "other"][place];
            let pid = u32::try_from(node.now.as_secs()).unwrap() * 4 + 10;
            match what {
                0 if node.engines.iter().all(|engine| &*engine.name != name) => {
                    node.engines.push(engine(name, pid, node.now));
                }
                1 => node.engines.retain(|engine| &*engine.name != name),
                2 => node.ready.push(name.into()),
                3 => node.ready.clear(),
                4 => node.unaccounted = gibibytes * 3 * GIB,
                _ => node.shmem = gibibytes * GIB,
            }
            node.wait(gibibytes % 21 + 1);
        }
        node.engines.clear();
        node.wait(2);
        for (_, receipt) in &node.receipts {
            let amounts = [
                receipt.ready_bytes,
                receipt.peak_bytes,
                receipt.growth_bytes,
                receipt.lowest_free_bytes,
                receipt.lowest_available_bytes,
            ];
            for bytes in amounts.into_iter().flatten() {
                prop_assert!(bytes <= TOTAL, "{:?}", receipt);
            }
            let is_unknown = receipt.why_unknown.is_some();
            prop_assert!(!is_unknown || receipt.need_bytes().is_none(), "{:?}", receipt);
        }
    }
}
