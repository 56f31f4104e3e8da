//! What becomes of the memory of engines that have died, through the whole policy.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use proptest::prelude::*;

use crate::model::{
    DecisionId, EarlierRuns, EngineKind, EngineProcess, EngineReadings, EngineSeen, Event,
    EventKind, GateReason, GateRequest, Mode, Moment, Observation, ProcessId, ProgramEvent,
    Reading, Readings, Release, ReleaseEnd, Schema, SeriesKey, Source,
};
use crate::policy::gate::check_gate;
use crate::policy::rule::RuleSet;
use crate::policy::status::RuleState;
use crate::policy::{Policy, well};

const GIB: u64 = 1 << 30;
const TICK: Duration = Duration::from_millis(250);

/// A node of 120 GiB that is sampled four times a second.
pub(super) struct ReleaseWorld {
    pub(super) policy: Policy,
    now: Duration,
    schema: Arc<Schema>,
    unaccounted: u64,
    shmem: u64,
    pub(super) engines: Vec<EngineSeen>,
    releases: Vec<(f64, Release)>,
    /// How long what was seen of processes is on its way.
    late: Duration,
}

fn moment(at: Duration) -> Moment {
    let utc = Timestamp::from_second(1_795_219_200).unwrap() + at;
    Moment { uptime: Duration::from_secs(1_000) + at, utc }
}

fn process(pid: u32, started: Duration, comm: &str, anonymous: u64, shmem: u64) -> EngineProcess {
    let start_ticks = u64::try_from(moment(started).uptime.as_millis() / 10).unwrap();
    EngineProcess {
        shmem_bytes: Reading::Value(shmem),
        open_devices: Reading::Value(1),
        ..EngineProcess::holding(ProcessId { pid, start_ticks }, comm, anonymous)
    }
}

/// A server with one worker, begun then.
pub(super) fn engine(name: &str, pid: u32, started: Duration) -> EngineSeen {
    let server = process(pid, started, "vllm", GIB, 0);
    let worker = process(pid + 1, started, "VLLM::EngineCor", 5 * GIB, 4 * GIB);
    let (id, found_by) = (server.id, Arc::from("its command line"));
    EngineSeen::new(Arc::from(name), EngineKind::Vllm, id, vec![server, worker], found_by)
}

impl ReleaseWorld {
    pub(super) fn new() -> Self {
        Self::with(&RuleSet::default())
    }

    fn with(rules: &RuleSet) -> Self {
        let label = |name, label| SeriesKey::new(name, label);
        let cache = "uma_memory_page_cache_bytes";
        let series = vec![
            label("uma_memory_total_bytes", &[]),
            label("uma_memory_free_bytes", &[]),
            label("uma_memory_unaccounted_bytes", &[]),
            label("uma_memory_shmem_bytes", &[]),
            label(cache, &[("state", "clean")]),
            label(cache, &[("state", "dirty")]),
            label(cache, &[("state", "mapped")]),
        ];
        Self {
            policy: Policy::new(moment(Duration::ZERO), Mode::Observe, rules, DecisionId(1)),
            now: Duration::ZERO,
            schema: Arc::new(Schema { series }),
            unaccounted: GIB,
            shmem: 0,
            engines: Vec::new(),
            releases: Vec::new(),
            late: Duration::ZERO,
        }
    }

    /// Lets that much time pass while `change` happens.
    fn run(&mut self, time: Duration, mut change: impl FnMut(&mut Self)) {
        let until = self.now + time;
        while self.now < until {
            self.now += TICK;
            change(self);
            self.step();
        }
    }

    pub(super) fn wait(&mut self, seconds: u64) {
        self.run(Duration::from_secs(seconds), |_| {});
    }

    fn step(&mut self) {
        let at = moment(self.now);
        let free = (118 * GIB).saturating_sub(self.unaccounted + self.shmem);
        let values = [120 * GIB, free, self.unaccounted, self.shmem, 0, 0, 0];
        #[expect(clippy::cast_precision_loss, reason = "a series' value is an f64 everywhere")]
        let values = values.iter().map(|value| Reading::Value(*value as f64)).collect();
        let memory = Readings {
            source: Source::Meminfo,
            schema: Arc::clone(&self.schema),
            values,
            took: Duration::ZERO,
            error: None,
        };
        let mut seen = vec![Observation::Readings(memory)];
        if self.now.subsec_millis() == 0 {
            let engines = self.engines.clone();
            let read_at = at.uptime - self.late;
            let readings = EngineReadings { read_at, engines, ..EngineReadings::default() };
            seen.push(Observation::Engines(Box::new(readings)));
        }
        for Event { kind, .. } in self.policy.step(at, &seen).events {
            if let EventKind::Program(ProgramEvent::EngineRelease { release, .. }) = kind {
                self.releases.push((self.now.as_secs_f64(), *release));
            }
        }
    }

    /// An engine begins, and takes 80 GiB and 10 GiB of shared memory within ten seconds.
    fn start(&mut self, name: &str, pid: u32) {
        let begun = self.now;
        self.engines.push(engine(name, pid, begun));
        self.wait(2);
        self.run(Duration::from_secs(10), |node| {
            node.unaccounted += 2 * GIB;
            node.shmem += GIB / 4;
        });
    }

    fn take_releases(&mut self) -> Vec<(f64, Release)> {
        std::mem::take(&mut self.releases)
    }

    /// An engine begun then is found, dies five seconds later, and all comes back: its release.
    fn live_and_die(&mut self, begun: Duration) -> Release {
        self.engines.push(engine("big", 10, begun));
        self.wait(5);
        self.engines.clear();
        self.wait(1);
        self.run(Duration::from_secs(4), give_back);
        self.wait(20);
        let releases = self.take_releases();
        let [(_, release)] = releases.as_slice() else { panic!("{releases:?}") };
        release.clone()
    }

    /// `None`: there is no such series, or it has ended.
    fn reading(&mut self, name: &str) -> Option<Reading<f64>> {
        let status = self.policy.status(moment(self.now));
        let place = status.series.iter().position(|key| key.to_string() == name)?;
        Some(status.values[place]).filter(|reading| !reading.is_end())
    }

    fn value(&mut self, name: &str) -> Reading<f64> {
        self.reading(name).unwrap_or_else(|| panic!("{name}"))
    }

    fn reasons(&mut self) -> Vec<GateReason> {
        let memory = self.policy.status(moment(self.now)).gate_memory.unwrap();
        check_gate(&GateRequest::of(GIB), &memory).reasons
    }
}

/// Gives back a sixteenth of that at each tick, four seconds long.
fn give_back(node: &mut ReleaseWorld) {
    node.unaccounted -= 80 * GIB / 16;
    node.shmem -= 10 * GIB / 16;
}

#[test]
fn a_rule_on_an_engine_that_has_ended_has_nothing_to_read_and_is_known() {
    let mut node = ReleaseWorld::with(&super::rules(
        "groups:
- name: g
  rules:
  - alert: Outstanding
    expr: uma_engine_outstanding_bytes{type=\"unaccounted\"} > 1e9
",
    ));
    let check = |node: &mut ReleaseWorld, state: RuleState, alerts: usize| {
        let status = node.policy.status(moment(node.now));
        let rule = &status.rules[0];
        assert_eq!((rule.state, rule.alerts.len()), (state, alerts), "{:?}", rule.unknown);
        assert_eq!(well::notes(&status.rules), Vec::<String>::new());
        let unsupported = |name: &str| {
            let mut all = status.series.iter().zip(&status.values);
            all.any(|(key, reading)| *key.name == *name && *reading == Reading::Unsupported)
        };
        assert!(!unsupported("uma_engine_outstanding_bytes"));
    };
    node.wait(20);
    check(&mut node, RuleState::Inactive, 0);
    node.start("big", 10);
    check(&mut node, RuleState::Inactive, 0);
    node.engines.clear();
    node.wait(2);
    check(&mut node, RuleState::Firing, 1);
    node.run(Duration::from_secs(4), give_back);
    node.wait(700);
    check(&mut node, RuleState::Inactive, 0);
}

#[test]
fn released_memory_is_tracked_until_it_is_returned() {
    let mut node = ReleaseWorld::new();
    node.wait(20);
    node.start("big", 10);
    assert_eq!(node.reading("uma_engine_owned_bytes{engine=\"big\",type=\"shmem\"}"), None);
    node.engines.clear();
    node.wait(1);
    let outstanding = "uma_engine_outstanding_bytes{engine=\"big\",type=\"unaccounted\"}";
    assert_eq!(node.value(outstanding), Reading::Value(80.0 * GIB as f64));
    node.run(Duration::from_secs(4), give_back);
    node.wait(1);
    let releases = node.take_releases();
    let [(_, release)] = releases.as_slice() else { panic!("{releases:?}") };
    assert_eq!(release.end, ReleaseEnd::Returned);
    assert_eq!(release.owned.unaccounted, Some(80 * GIB));
    assert_eq!(release.owned.shmem, Some(10 * GIB));
    // A second until it was seen, and four until all was back, but for the last sample.
    assert!((4.5..=5.5).contains(&release.seconds), "{}", release.seconds);
    assert!(release.outstanding.to_return().unwrap() < 2 * GIB);
    let left: Vec<u64> =
        release.curve.iter().map(|point| point.outstanding.to_return().unwrap()).collect();
    assert!(left.is_sorted_by(|one, other| one >= other), "{left:?}");
    assert_eq!(left[0], 90 * GIB);
    let text = release.to_string();
    assert!(
        text.starts_with("it gave back 90.0 GiB (80.0 GiB in no counter, 10.0 GiB shared memory)"),
        "{text}"
    );
    assert!(text.contains("; left of it: 90.0 GiB after 0.0s, "), "{text}");
    assert_eq!(node.value("uma_engine_release_seconds_count"), Reading::Value(1.0));
    assert_eq!(node.value("uma_engine_release_seconds_bucket{le=\"2.0\"}"), Reading::Value(0.0));
    assert_eq!(node.value("uma_engine_release_seconds_bucket{le=\"10.0\"}"), Reading::Value(1.0));
    assert_eq!(node.value("uma_engine_releases_total{end=\"returned\"}"), Reading::Value(1.0));
    node.wait(700);
    assert_eq!(node.reading(outstanding), None, "ten minutes later it has ended");
    assert!(node.take_releases().is_empty());
}

#[test]
fn an_orphan_is_named_closes_the_gate_and_ends_the_release_with_its_end() {
    let mut node = ReleaseWorld::new();
    node.wait(20);
    node.start("big", 10);
    node.engines[0].processes.remove(0);
    node.wait(2);
    assert_eq!(node.value("uma_engine_orphans{engine=\"big\"}"), Reading::Value(1.0));
    let is_orphan = |reason: &GateReason| matches!(reason, GateReason::Orphan(orphan) if orphan.id.pid == 11 && orphan.bytes == 9 * GIB);
    assert!(node.reasons().iter().any(is_orphan), "{:?}", node.reasons());
    node.wait(20);
    let releases = node.take_releases();
    let [(_, stayed)] = releases.as_slice() else { panic!("{releases:?}") };
    assert_eq!((stayed.end, stayed.orphans.len()), (ReleaseEnd::Stayed, 1));
    assert_eq!(stayed.outstanding.orphans, 9 * GIB);
    assert!(
        stayed.to_string().contains("VLLM::EngineCor (pid 11), left behind by big"),
        "{stayed}"
    );
    assert_eq!(node.value("uma_engine_release_seconds_count"), Reading::Value(0.0));
    node.engines.clear();
    node.run(Duration::from_secs(4), give_back);
    node.wait(1);
    let releases = node.take_releases();
    let [(_, returned)] = releases.as_slice() else { panic!("{releases:?}") };
    assert_eq!(returned.end, ReleaseEnd::Returned);
    assert!((25.0..28.0).contains(&returned.seconds), "{}", returned.seconds);
    assert_eq!(node.value("uma_engine_release_seconds_count"), Reading::Value(1.0));
    assert!(node.reasons().is_empty(), "{:?}", node.reasons());
}

#[test]
fn the_gate_stays_closed_without_a_process_scan() {
    let mut node = ReleaseWorld::new();
    node.run(Duration::from_millis(750), |_| {});
    let unknown = "what engines have left behind (/proc/PID)";
    assert!(node.reasons().contains(&GateReason::Unknown { what: unknown }));
    node.wait(2);
    assert!(node.reasons().is_empty(), "{:?}", node.reasons());
}

#[test]
fn a_restart_reports_no_release_of_earlier_engines() {
    let mut node = ReleaseWorld::new();
    (node.unaccounted, node.shmem) = (81 * GIB, 10 * GIB);
    let mut left = engine("vllm", 10, Duration::ZERO);
    left.processes.remove(0);
    left.server = left.processes[0].id;
    left.is_left_behind = true;
    node.engines.push(left);
    node.wait(30);
    assert_eq!(node.value("uma_engine_orphans{engine=\"vllm\"}"), Reading::Value(1.0));
    assert!(node.reasons().iter().any(|reason| matches!(reason, GateReason::Orphan(_))));
    node.engines.clear();
    node.run(Duration::from_secs(4), give_back);
    node.wait(60);
    assert_eq!(node.take_releases(), [], "its death was not observed");
    assert_eq!(node.value("uma_engine_release_seconds_count"), Reading::Value(0.0));
}

#[test]
fn the_release_of_an_older_engine_is_known_only_with_a_baseline() {
    for baseline in [None, Some(GIB)] {
        let mut node = ReleaseWorld::new();
        let past = EarlierRuns {
            unaccounted_baselines: baseline
                .map(|bytes| ("host".into(), bytes))
                .into_iter()
                .collect(),
            ..EarlierRuns::default()
        };
        node.policy.resume(moment(Duration::ZERO), &past);
        (node.unaccounted, node.shmem) = (81 * GIB, 10 * GIB);
        node.now = Duration::from_secs(500);
        let release = node.live_and_die(Duration::ZERO);
        match baseline {
            None => {
                assert_eq!(release.end, ReleaseEnd::Unknown);
                assert_eq!(release.owned.unaccounted, None);
                let why = "is unknown, since it was there before the first sample";
                assert!(release.to_string().contains(why), "{release}");
            }
            Some(_) => {
                assert_eq!((release.end, release.why_unknown), (ReleaseEnd::Returned, None));
                assert_eq!(release.owned.unaccounted, Some(80 * GIB));
                assert_eq!(release.owned.shmem, Some(4 * GIB), "as its processes showed it");
            }
        }
        let counted = if baseline.is_some() { 1.0 } else { 0.0 };
        assert_eq!(node.value("uma_engine_release_seconds_count"), Reading::Value(counted));
    }
}

#[test]
fn the_next_engine_overtakes_a_release_and_short_lived_ones_blur_it() {
    let mut node = ReleaseWorld::new();
    node.wait(20);
    node.start("big", 10);
    node.engines.clear();
    node.wait(2);
    node.engines.push(engine("next", 20, node.now));
    node.wait(20);
    let releases = node.take_releases();
    let [(_, release)] = releases.as_slice() else { panic!("{releases:?}") };
    assert_eq!(release.end, ReleaseEnd::Overtaken);
    assert_eq!(release.outstanding.unaccounted, Some(80 * GIB));
    // Beside one that came after it: what it owned is unknown.
    let mut node = ReleaseWorld::new();
    node.wait(20);
    node.start("first", 10);
    node.start("second", 20);
    node.engines.remove(0);
    node.run(Duration::from_secs(4), give_back);
    node.wait(20);
    let ends: Vec<ReleaseEnd> =
        node.take_releases().iter().map(|(_, release)| release.end).collect();
    assert_eq!(ends, [ReleaseEnd::Unknown]);
}

#[test]
fn memory_taken_before_an_engine_was_found_counts() {
    // After a longer time the earlier amount is unknown.
    for (seconds, is_known) in [(4, true), (9, true), (30, false)] {
        let mut node = ReleaseWorld::new();
        node.unaccounted = 3 * GIB;
        node.wait(1);
        let begun = node.now;
        let mut ticks = seconds * 4;
        node.run(Duration::from_secs(seconds), |node| {
            ticks -= 1;
            if ticks < 16 {
                (node.unaccounted, node.shmem) = (83 * GIB - ticks * 5 * GIB, 10 * GIB);
            }
        });
        let release = node.live_and_die(begun);
        let (end, owned) = match is_known {
            true => (ReleaseEnd::Returned, Some(80 * GIB)),
            false => (ReleaseEnd::Unknown, None),
        };
        assert_eq!((release.end, release.owned.unaccounted), (end, owned), "{seconds} s");
    }
}

#[test]
fn memory_returned_before_the_last_sample_counts_as_owned() {
    let mut node = ReleaseWorld::new();
    node.wait(20);
    node.start("big", 10);
    node.wait(2);
    node.late = Duration::from_millis(500);
    // Seen alive half a second before half of it was back, and reported after that.
    node.run(Duration::from_millis(750), |_| {});
    node.run(Duration::from_millis(500), |node| {
        node.unaccounted -= 20 * GIB;
    });
    node.engines.clear();
    node.run(Duration::from_millis(750), |node| node.unaccounted -= 40 * GIB / 3);
    node.run(Duration::from_secs(1), |node| node.shmem = 0);
    node.wait(20);
    let releases = node.take_releases();
    let [(_, release)] = releases.as_slice() else { panic!("{releases:?}") };
    assert_eq!(release.owned.unaccounted, Some(80 * GIB));
}

#[test]
fn memory_returned_by_an_exiting_engine_counts_as_owned() {
    let mut node = ReleaseWorld::new();
    node.wait(20);
    node.start("big", 10);
    node.engines[0].processes[0].is_exiting = true;
    node.run(Duration::from_secs(4), give_back);
    node.engines.clear();
    node.wait(20);
    let releases = node.take_releases();
    let [(_, release)] = releases.as_slice() else { panic!("{releases:?}") };
    assert_eq!(release.owned.unaccounted, Some(80 * GIB));
    assert!((4.0..=6.0).contains(&release.seconds), "{}", release.seconds);
}

#[test]
fn an_engine_without_memory_has_no_release() {
    let mut node = ReleaseWorld::new();
    node.wait(20);
    node.engines.push(engine("small", 10, node.now));
    node.wait(20);
    node.engines.clear();
    node.wait(60);
    assert_eq!(node.take_releases(), []);
}

proptest! {
    #[test]
    fn each_release_is_reported_once_bounded_and_in_order(
        moves in prop::collection::vec((-9_i64..6, -3_i64..3), 1..300),
        orphans_until in 0..300_usize,
    ) {
        let mut node = ReleaseWorld::new();
        node.wait(20);
        node.start("big", 10);
        node.engines[0].processes.remove(0);
        for (place, (unaccounted, shmem)) in moves.into_iter().enumerate() {
            if place == orphans_until {
                node.engines.clear();
            }
            let moved = |level: u64, by: i64| level.saturating_add_signed(by * (GIB / 4) as i64);
            node.unaccounted = moved(node.unaccounted, unaccounted).min(100 * GIB);
            node.shmem = moved(node.shmem, shmem).min(15 * GIB);
            node.now += TICK;
            node.step();
        }
        let releases = node.take_releases();
        let of = |end| releases.iter().filter(|(_, release)| release.end == end).count();
        prop_assert!(of(ReleaseEnd::Returned) <= 1);
        prop_assert_eq!(of(ReleaseEnd::Overtaken) + of(ReleaseEnd::Unknown), 0);
        let count = node.value("uma_engine_release_seconds_count");
        prop_assert_eq!(count, Reading::Value(of(ReleaseEnd::Returned) as f64));
        for (_, release) in &releases {
            prop_assert!(release.curve.len() <= 64);
            prop_assert!(release.curve.is_sorted_by(|one, other| one.seconds < other.seconds));
            prop_assert!(release.seconds >= 0.0);
            let json = serde_json::to_string(&release).unwrap();
            prop_assert!(json.len() < 16 * 1024);
            prop_assert_eq!(&serde_json::from_str::<Release>(&json).unwrap(), release);
        }
    }
}
