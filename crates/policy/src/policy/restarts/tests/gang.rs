//! Ranks of an engine that spans nodes are started in order, and with memory on all nodes.

use std::sync::Arc;
use std::time::Duration;

use promql_rules::store::stale_marker;

use super::restarted;
use super::world::{GIB, RestartWorld, engine_in};
use crate::model::{
    ClusterNames, ClusterReadings, EarlierRuns, EnginePhase, EngineRank, EngineSeen, EventKind,
    GangReading, GangStart, GateRequest, HoldReason, Lease, LeaseReadings, LeaseRequest,
    LeaseState, Mode, NodeNews, NodeReadings, Observation, ProgramEvent, Reading, RestartState,
    Schema, SeriesKey, series_of_node,
};

/// A container with that rank on the node `here`, and the other rank on the node `there`.
struct Pair {
    world: RestartWorld,
    other: &'static str,
    /// What the ranks have in common on the other node.
    gang: &'static str,
    /// The phase of the other rank, and the start of its server in seconds after its boot.
    there: Option<(EnginePhase, f64)>,
}

fn names() -> ClusterNames {
    let known_for = Duration::from_secs(5);
    ClusterNames { cluster: "pair".into(), node: "here".into(), known_for }
}

impl Pair {
    fn new(mode: Mode, rank: u32) -> Self {
        let other = if rank == 0 { "1" } else { "0" };
        Self::of(mode, (Some(rank), None), other)
    }

    /// As with Ray, where only one of them serves.
    fn without_numbers(port: Option<u16>) -> Self {
        Self::of(Mode::Enforce, (None, port), "unknown")
    }

    fn of(mode: Mode, (rank, port): (Option<u32>, Option<u16>), other: &'static str) -> Self {
        let mut world = RestartWorld::with(mode, &["vllm"]);
        world.policy.set_cluster(Some(names()));
        let own = EngineRank { gang: "a:29501".into(), rank, ranks: Some(2) };
        let engine = engine_in("vllm", 50, 12 * GIB);
        let engine = EngineSeen { rank: Some(own), uid: Some(0), port, ..engine };
        world.engines = vec![engine];
        let there = Some((EnginePhase::Ready, 50.0));
        let mut pair = Self { world, other, gang: "a:29501", there };
        pair.run(3);
        pair
    }

    /// The other node reports in each step.
    fn tick(&mut self) {
        let keys = EnginePhase::ALL.map(|phase| {
            let labels = [
                ("engine", "worker"),
                ("gang", self.gang),
                ("phase", phase.name()),
                ("rank", self.other),
                ("uid", "0"),
            ];
            let key = SeriesKey::new("uma_engine_rank_start_seconds", &labels);
            series_of_node(&key, &"pair".into(), &"there".into())
        });
        let value = |phase| match self.there {
            Some((own, start)) if own == phase => Reading::Value(start),
            _ => Reading::Value(stale_marker()),
        };
        let values = EnginePhase::ALL.map(value).to_vec();
        let news = NodeNews::Answered { schema: Arc::new(Schema { series: keys.into() }), values };
        let nodes = vec![NodeReadings::new("there".into(), news, Duration::ZERO)];
        self.world.seen.push(Observation::Cluster(Box::new(ClusterReadings { nodes })));
        self.world.tick();
    }

    fn run(&mut self, seconds: u64) {
        for _ in 0..seconds * 4 {
            self.tick();
        }
    }

    fn dies(&mut self) {
        self.world.dies("vllm");
        self.world.engines.clear();
        self.run(6);
    }

    /// What is reserved for it on all nodes.
    fn reserve(&mut self, is_complete: bool, reasons: &[&str]) {
        let after = self.gang().map_or_else(|| "an earlier end".into(), |gang| gang.after);
        let reasons = reasons.iter().map(|reason| Arc::from(*reason)).collect();
        let gang = GangReading { restart: "vllm".into(), after, is_complete, reasons };
        let readings = LeaseReadings { gangs: vec![gang], ..LeaseReadings::default() };
        self.world.seen.push(Observation::Leases(Box::new(readings)));
        self.tick();
    }

    /// What the other node has reserved here.
    fn lease(&mut self, id: &str, who: &str, renew_by: Option<Duration>) {
        let now = self.world.at.uptime;
        let request = LeaseRequest::new(id.into(), who.into(), GateRequest::of(8 * GIB));
        let state = LeaseState::Granted {
            at: now,
            shares: Vec::new(),
            progress: now,
            renew_by: renew_by.map(|after| now + after),
        };
        let leases = [Lease { request, since: now, state }].into();
        let readings = LeaseReadings { leases, ..LeaseReadings::default() };
        self.world.seen.push(Observation::Leases(Box::new(readings)));
        self.run(1);
    }

    /// This program is started anew, and knows from its journal what the last one did.
    fn restart_program(&mut self) {
        let ranks = self.world.events.iter().rev().find_map(|event| match &event.kind {
            EventKind::Program(ProgramEvent::EngineRestart { ranks, .. }) => Some(ranks.clone()),
            _ => None,
        });
        let ranks = *ranks.flatten().unwrap();
        let past = EarlierRuns {
            restart_ranks: [("vllm".into(), ranks)].into(),
            ..EarlierRuns::default()
        };
        let earlier = std::mem::replace(&mut self.world, RestartWorld::new(Mode::Observe));
        self.world = restarted(earlier, past);
        self.world.policy.set_cluster(Some(names()));
    }

    fn gang(&mut self) -> Option<GangStart> {
        self.world.policy.status(self.world.at).restarts[0].gang.clone()
    }

    fn is_started(&self) -> bool {
        self.world.decisions.iter().any(|made| made.is_act())
    }
}

#[test]
fn the_first_rank_waits_for_the_end_of_the_others_and_for_memory_on_their_nodes() {
    let mut pair = Pair::new(Mode::Enforce, 0);
    pair.dies();
    let (state, reason) = pair.world.state("vllm");
    assert_eq!(state, RestartState::Waiting);
    assert!(reason.contains("its rank on there (worker) has ended"), "{reason}");
    assert_eq!((pair.gang(), pair.world.holds()), (None, vec![HoldReason::OtherNodes]));
    pair.there = Some((EnginePhase::Gone, 50.0));
    pair.run(2);
    let gang = pair.gang().unwrap();
    assert_eq!(gang.need, GateRequest::of(8 * GIB));
    assert_eq!(gang.nodes, [("there".into(), "worker".into())]);
    assert!(pair.world.state("vllm").1.contains("it waits for memory on there"));
    pair.reserve(false, &["there: 3.0 GiB are missing"]);
    let reason = pair.world.state("vllm").1;
    assert!(reason.contains("on all its nodes: there: 3.0 GiB are missing"), "{reason}");
    pair.run(5);
    assert!(!pair.is_started());
    pair.reserve(true, &[]);
    assert!(pair.is_started(), "{:?}", pair.world.state("vllm"));
}

#[test]
fn memory_that_was_reserved_for_an_earlier_end_starts_nothing() {
    let mut pair = Pair::new(Mode::Enforce, 0);
    pair.there = Some((EnginePhase::Gone, 50.0));
    pair.reserve(true, &[]);
    pair.dies();
    assert!(!pair.is_started());
    // There is no other way: this node has no memory of its own.
    pair.world.free = GIB;
    pair.run(2);
    assert_eq!(pair.gang(), None, "nothing is reserved elsewhere while this node has no memory");
}

#[test]
fn a_later_rank_waits_for_the_next_run_of_the_one_before_it() {
    let mut pair = Pair::new(Mode::Enforce, 1);
    pair.dies();
    let reason = pair.world.state("vllm").1;
    assert!(reason.contains("it waits until its rank 0 on there starts"), "{reason}");
    pair.there = Some((EnginePhase::Gone, 50.0));
    pair.run(5);
    assert!(!pair.is_started());
    pair.there = Some((EnginePhase::Starting, 90.0));
    pair.run(1);
    assert!(pair.is_started(), "{:?}", pair.world.state("vllm"));
    assert_eq!(pair.gang(), None, "its memory was reserved by the first rank");
}

#[test]
fn observe_mode_reserves_nothing_elsewhere() {
    let mut pair = Pair::new(Mode::Observe, 0);
    pair.there = Some((EnginePhase::Gone, 50.0));
    pair.dies();
    assert_eq!(pair.gang(), None);
    assert!(pair.is_started(), "it is reported: {:?}", pair.world.state("vllm"));
}

/// Ray: each container has a part of the cluster, and they end together.
#[test]
fn of_ranks_without_numbers_the_one_that_serves_reserves_memory_for_the_others() {
    let mut pair = Pair::without_numbers(Some(8000));
    pair.there = Some((EnginePhase::Gone, 50.0));
    pair.dies();
    assert_eq!(pair.gang().unwrap().nodes, [("there".into(), "worker".into())]);
    pair.reserve(true, &[]);
    assert!(pair.is_started(), "{:?}", pair.world.state("vllm"));
    let mut pair = Pair::without_numbers(None);
    pair.there = Some((EnginePhase::Gone, 50.0));
    pair.dies();
    let reason = pair.world.state("vllm").1;
    assert!(reason.contains("its rank that serves reserves memory here"), "{reason}");
    assert!(reason.contains("on there: start this one by hand"), "{reason}");
    let minute = Some(Duration::from_secs(60));
    // Another engine's, a start by hand, and one that other nodes have not granted yet.
    for (id, who, renewed) in [
        ("gang-head@1", "engine-b", minute),
        ("start-1", "engine-vllm", minute),
        ("gang-head@1", "engine-vllm", Some(Duration::from_secs(9))),
    ] {
        pair.lease(id, who, renewed);
        assert_eq!((pair.is_started(), pair.gang()), (false, None), "{id} {who}");
    }
    pair.lease("gang-head@1", "engine-vllm", minute);
    assert!(pair.is_started(), "{:?}", pair.world.state("vllm"));
    assert_eq!(pair.gang(), None, "its memory was reserved by the other one");
}

#[test]
fn a_rank_without_a_number_starts_after_a_new_job_of_the_same_engine() {
    let mut pair = Pair::without_numbers(None);
    pair.there = Some((EnginePhase::Gone, 50.0));
    pair.dies();
    assert!(!pair.is_started());
    (pair.gang, pair.there) = ("session/02000000", Some((EnginePhase::Starting, 90.0)));
    pair.run(1);
    assert!(pair.is_started(), "{:?}", pair.world.state("vllm"));
}

#[test]
fn the_ranks_of_the_last_run_outlive_this_program() {
    let mut pair = Pair::new(Mode::Enforce, 0);
    pair.dies();
    pair.restart_program();
    pair.run(2);
    let reason = pair.world.state("vllm").1;
    assert!(reason.contains("its rank on there (worker) has ended"), "{reason}");
    pair.there = Some((EnginePhase::Gone, 50.0));
    pair.run(2);
    assert_eq!(pair.gang().unwrap().nodes, [("there".into(), "worker".into())]);
    // A later rank, which is down while the other one still runs.
    let mut pair = Pair::new(Mode::Enforce, 1);
    pair.dies();
    pair.restart_program();
    pair.run(5);
    assert!(!pair.is_started(), "{:?}", pair.world.state("vllm"));
    // The first one has been started again.
    pair.there = Some((EnginePhase::Starting, 90.0));
    pair.run(2);
    assert!(pair.is_started(), "{:?}", pair.world.state("vllm"));
}

#[test]
fn the_ranks_on_other_nodes_are_shown_with_their_phases_and_one_that_is_lost_with_the_memory() {
    let mut pair = Pair::new(Mode::Observe, 1);
    let shown = |pair: &mut Pair| {
        pair.run(1);
        let engines = pair.world.policy.engines();
        engines[0].other_ranks.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(shown(&mut pair), ["rank 0 on there is ready"]);
    pair.there = Some((EnginePhase::Serving, 50.0));
    assert_eq!(shown(&mut pair), ["rank 0 on there is serving"]);
    pair.there = Some((EnginePhase::Gone, 50.0));
    assert_eq!(shown(&mut pair), [""; 0]);
    let events = pair.world.events.iter().filter_map(|event| match &event.kind {
        EventKind::Program(lost @ ProgramEvent::EngineRankLost { .. }) => Some(lost.to_string()),
        _ => None,
    });
    let lost: Vec<String> = events.collect();
    let expected = "engine-vllm cannot go on: its rank 0 on there (worker) has ended; its processes \
                    on this node hold 12.0 GiB";
    assert_eq!(lost, [expected]);
}

#[test]
fn another_container_or_an_engine_on_one_node_has_no_ranks() {
    let mut pair = Pair::new(Mode::Enforce, 1);
    pair.dies();
    pair.world.of("vllm").target.id = super::world::id("anew").into();
    pair.run(1);
    assert!(pair.is_started(), "{:?}", pair.world.state("vllm"));
    let mut pair = Pair::new(Mode::Enforce, 1);
    pair.world.starts("vllm");
    pair.world.engines = vec![engine_in("vllm", 70, 12 * GIB)];
    pair.run(65);
    pair.dies();
    assert!(pair.is_started(), "{:?}", pair.world.state("vllm"));
}

/// Its first rank is ready only with the others.
#[test]
fn a_rank_does_not_wait_for_another_one_of_its_node_that_starts() {
    let mut pair = Pair::new(Mode::Enforce, 1);
    pair.world.held.push(super::world::container("first"));
    let rank = EngineRank { gang: "a:29501".into(), rank: Some(0), ranks: Some(2) };
    let first = EngineSeen { rank: Some(rank), uid: Some(0), ..engine_in("first", 70, GIB) };
    pair.world.engines.push(first);
    pair.run(3);
    pair.world.dies("first");
    pair.dies();
    assert!(pair.world.state("vllm").1.contains("its rank 0 on there starts"));
    pair.world.starts("first");
    pair.run(1);
    assert_eq!(pair.world.state("first").0, RestartState::Starting);
    pair.there = Some((EnginePhase::Starting, 90.0));
    pair.run(1);
    assert!(pair.is_started(), "{:?}", pair.world.state("vllm"));
}
