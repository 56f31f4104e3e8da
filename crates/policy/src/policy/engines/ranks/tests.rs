//! Ranks of other nodes, as their series show them.

use super::*;

/// Rank 1 on this node, and the series of the other nodes.
pub(super) struct World {
    pub(super) own: OwnRank,
    store: SeriesStore,
    engine: &'static str,
    gang: &'static str,
    pub(super) now: u64,
}

impl World {
    pub(super) fn new(rank: Option<u32>) -> Self {
        let mut store = SeriesStore::default();
        let mut counters = Counters::new(&mut store);
        let rank = EngineRank { gang: "a:29501".into(), rank, ranks: Some(2) };
        let server = ProcessId { pid: 7, start_ticks: 700 };
        let own = OwnRank::new("vllm", server, (rank, 0), &mut counters, &mut store);
        Self { own, store: SeriesStore::default(), engine: "vllm-8000", gang: "a:29501", now: 1000 }
    }

    pub(super) fn set(
        &mut self,
        node: &str,
        rank: &str,
        phase: EnginePhase,
        reading: Reading<f64>,
    ) {
        self.set_of("0", node, rank, (phase, reading));
    }

    fn set_of(
        &mut self,
        uid: &str,
        node: &str,
        rank: &str,
        (phase, reading): (EnginePhase, Reading<f64>),
    ) {
        for other in EnginePhase::ALL {
            let labels = [
                ("engine", self.engine),
                ("gang", self.gang),
                ("node", node),
                ("phase", other.name()),
                ("rank", rank),
                ("uid", uid),
            ];
            let id = self.store.intern(&SeriesKey::new(START, &labels));
            let ended = Reading::Value(promql_rules::store::stale_marker());
            let reading = if other == phase { reading } else { ended };
            self.store.append(id, self.now as i64 * 1000, reading);
        }
    }

    pub(super) fn end(&mut self, node: &str, rank: &str, killer: &str, age: Reading<f64>) {
        let labels = [
            ("engine", self.engine),
            ("gang", self.gang),
            ("killer", killer),
            ("node", node),
            ("rank", rank),
            ("uid", "0"),
        ];
        let id = self.store.intern(&SeriesKey::new(ended::ENDED, &labels));
        self.store.append(id, self.now as i64 * 1000, age);
    }

    pub(super) fn others(&self) -> OtherRanks {
        OtherRanks::read(&self.store, |node| node != "own")
    }

    /// Compares after so many seconds.
    pub(super) fn after(&mut self, seconds: u64) -> Option<(String, String)> {
        self.now += seconds;
        self.own.compare(Duration::from_secs(self.now), &self.others())
    }

    fn first_is_up(&self) -> Option<bool> {
        self.own.first_is_up(&self.others())
    }
}

const A: Reading<f64> = Reading::Value(50.0);

#[test]
fn a_rank_is_lost_once_another_one_that_it_has_seen_alive_has_ended() {
    let mut world = World::new(Some(1));
    world.set("spark-1", "0", EnginePhase::Serving, A);
    assert_eq!(world.after(0), None);
    world.set("spark-1", "0", EnginePhase::Gone, A);
    let (node, reason) = world.after(1).unwrap();
    assert_eq!((&*node, &*reason), ("spark-1", "its rank 0 on spark-1 (vllm-8000) has ended"));
    assert!(world.own.has_lost);
    assert_eq!(world.after(1), None, "it is reported once");
}

#[test]
fn two_ranks_of_a_node_with_the_same_start_are_two() {
    let mut world = World::new(Some(2));
    for rank in ["0", "1"] {
        world.set("spark-1", rank, EnginePhase::Serving, A);
    }
    assert_eq!(world.after(0), None);
    world.set("spark-1", "1", EnginePhase::Gone, A);
    assert_eq!(world.after(1).unwrap().1, "its rank 1 on spark-1 (vllm-8000) has ended");
}

#[test]
fn a_rank_that_only_stops_for_a_moment_is_not_lost() {
    let mut world = World::new(Some(1));
    world.set("spark-1", "0", EnginePhase::Ready, A);
    world.after(0);
    world.set("spark-1", "0", EnginePhase::Stopping, A);
    assert_eq!((world.after(1), world.after(1)), (None, None));
    world.set("spark-1", "0", EnginePhase::Ready, A);
    assert_eq!(world.after(5), None);
    world.set("spark-1", "0", EnginePhase::Stopping, A);
    assert_eq!(world.after(1), None);
    assert!(world.after(2).is_some());
}

#[test]
fn another_run_of_a_rank_has_ended_the_one_before() {
    let mut world = World::new(None);
    world.set("spark-1", "unknown", EnginePhase::Ready, A);
    world.after(0);
    world.set("spark-1", "unknown", EnginePhase::Starting, Reading::Value(90.0));
    let (_, reason) = world.after(1).unwrap();
    assert_eq!(reason, "its rank on spark-1 (vllm-8000) was started anew");
}

/// As by Docker's late answer, or by another configuration.
#[test]
fn a_rank_that_is_renamed_is_not_lost() {
    let mut world = World::new(Some(1));
    world.set("spark-1", "0", EnginePhase::Ready, A);
    world.after(0);
    world.engine = "chat";
    world.set("spark-1", "0", EnginePhase::Ready, A);
    let ended = Reading::Value(promql_rules::store::stale_marker());
    world.engine = "vllm-8000";
    world.set("spark-1", "0", EnginePhase::Ready, ended);
    assert_eq!((world.after(1), world.after(60)), (None, None));
}

#[test]
fn an_earlier_run_that_is_gone_and_a_silent_node_prove_nothing() {
    let mut world = World::new(Some(1));
    world.set("spark-1", "0", EnginePhase::Gone, A);
    assert_eq!((world.after(0), world.after(60)), (None, None));
    world.set("spark-1", "0", EnginePhase::Loading, Reading::Value(90.0));
    assert_eq!(world.after(1), None);
    world.set("spark-1", "0", EnginePhase::Loading, Reading::Failed);
    assert_eq!((world.after(1), world.after(600)), (None, None));
    // It answers again, and does not report the rank: nobody has seen it end.
    world.set("spark-1", "0", EnginePhase::Loading, Reading::Value(f64::NAN));
    assert_eq!((world.after(1), world.after(600)), (None, None));
    assert!(world.own.seen.values().all(|seen| seen.missing.is_some()), "it is not counted");
}

/// A command line with the same address is free to choose.
#[test]
fn the_rank_of_another_user_is_of_another_engine() {
    let mut world = World::new(Some(1));
    world.set_of("1000", "spark-1", "0", (EnginePhase::Serving, A));
    assert_eq!((world.after(0), world.first_is_up()), (None, None));
    world.set_of("1000", "spark-1", "0", (EnginePhase::Gone, A));
    assert_eq!(world.after(1), None);
}

#[test]
fn the_rank_that_serves_is_the_first_where_ranks_have_numbers() {
    let mut world = World::new(Some(1));
    assert_eq!(world.first_is_up(), None);
    world.set("spark-3", "2", EnginePhase::Ready, A);
    assert_eq!(world.first_is_up(), None);
    world.set("spark-1", "0", EnginePhase::Loading, A);
    assert_eq!(world.first_is_up(), Some(false));
    world.set("spark-1", "0", EnginePhase::Serving, A);
    assert_eq!(world.first_is_up(), Some(true));
    world.own.gang.0 = "other:29501".into();
    assert_eq!(world.first_is_up(), None, "it is of another engine");
}

/// As with Ray, whose next job is another gang, within one sample.
#[test]
fn a_rank_that_is_replaced_by_one_of_another_gang_is_lost() {
    let stale = Reading::Value(promql_rules::store::stale_marker());
    let mut world = World::new(None);
    world.set("spark-1", "unknown", EnginePhase::Ready, A);
    world.after(0);
    world.set("spark-1", "unknown", EnginePhase::Ready, stale);
    world.gang = "session/02000000";
    world.set("spark-1", "unknown", EnginePhase::Starting, Reading::Value(90.0));
    let (_, reason) = world.after(1).unwrap();
    assert_eq!(reason, "its rank on spark-1 (vllm-8000) was started anew");
}

#[test]
fn a_rank_that_is_no_longer_reported_is_lost_once_its_end_is() {
    let stale = Reading::Value(promql_rules::store::stale_marker());
    // Its node, and how long ago it has ended: one that was reported afterwards is another one.
    let cases = [
        ("spark-1", 7.0, Some("its rank 0 on spark-1 (vllm-8000) has ended")),
        ("spark-1", 20.0, None),
        ("spark-3", 7.0, None),
    ];
    for (node, age, expected) in cases {
        let mut world = World::new(Some(1));
        world.set("spark-1", "0", EnginePhase::Ready, A);
        world.after(0);
        world.set("spark-1", "0", EnginePhase::Ready, stale);
        assert_eq!(world.after(1), None, "{node} {age}");
        world.end(node, "0", "signal", Reading::Value(age));
        let lost = world.after(5).map(|(_, reason)| reason);
        assert_eq!(lost.as_deref(), expected, "{node} {age}");
    }
}
