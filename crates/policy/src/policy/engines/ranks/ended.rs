//! Which rank of an engine over several nodes ended first.
//!
//! Clocks of nodes differ, so that each node publishes how long ago its rank ended. What is read
//! from another node is a second or two old: an end that is read may have been earlier by that, and
//! not later.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use promql_rules::Reading;
use promql_rules::store::SeriesStore;

use super::super::life::ticks;
use super::{GangKey, OtherRanks, OwnRank, number};
use crate::model::{EngineRank, FirstDeath, Killer, RankDeath, RankDeaths, SeriesKey};
use crate::policy::counters::{Cell, Counters};

/// The series of a rank's end.
pub(in crate::policy) const ENDED: &str = "uma_engine_rank_ended_seconds";

/// An end is published, and remembered, for so long.
const KEPT_FOR: Duration = Duration::from_secs(600);

/// Ends that are published, and that are remembered of other nodes.
const MOST: usize = 64;

/// What is read from another node may be so old: a sample and a scrape.
const READ_LATE: Duration = Duration::from_millis(2_500);

/// A rank that has ended is missing within this time: a scan there, and what is read late.
pub(super) const SHOWN_WITHIN: Duration = Duration::from_secs(5);

/// An end of this node whose time the kernel did not report is noticed within this time.
const NOTICED_LATE: Duration = Duration::from_secs(1);

/// A death waits so long for what other nodes report of their ranks. vLLM 0.32 with Ray: a server
/// outlives its killed worker by four seconds, and its peer's worker ends within one.
const WAITS_FOR_ENDS: Duration = Duration::from_secs(10);

/// A rank that still lives so long after another one was killed has not ended before it. If that
/// one ended by itself, only a worker of the living one may be dead.
const OUTLIVES: Duration = Duration::from_secs(3);

#[derive(Debug)]
struct OwnRankEnd {
    id: (GangKey, Arc<str>),
    at: Duration,
    cell: Cell,
}

/// An end as the series of another node shows it.
#[derive(Clone, Debug)]
pub(super) struct ReadEnd {
    pub(super) id: (GangKey, Arc<str>, Arc<str>),
    pub(super) engine: Arc<str>,
    pub(super) killer: Arc<str>,
    pub(super) age: Duration,
}

#[derive(Debug)]
struct OtherRankEnd {
    engine: Arc<str>,
    killer: Arc<str>,
    age: Duration,
    /// At the latest, on this node's uptime clock.
    at: Duration,
}

/// The ends of ranks on this node and on others.
#[derive(Debug, Default)]
pub(super) struct RankEnds {
    own: Vec<OwnRankEnd>,
    /// By gang, node and rank.
    others: BTreeMap<(GangKey, Arc<str>, Arc<str>), OtherRankEnd>,
}

/// The end of a rank on this node.
#[derive(Clone, Copy, Debug)]
pub(super) struct End<'e> {
    /// On the uptime clock.
    pub(super) at: Duration,
    /// Whether the kernel or a supervisor reported that time.
    pub(super) is_exact: bool,
    /// A name of [`Killer`].
    pub(super) killer: &'e str,
}

impl RankEnds {
    /// Publishes the end of a rank on this node from now on.
    pub(super) fn record(
        &mut self,
        now: Duration,
        (engine, gang, rank): (&str, &GangKey, &EngineRank),
        end: End<'_>,
        counters: &mut Counters,
        store: &mut SeriesStore,
    ) {
        if self.own.len() >= MOST {
            counters.retire(self.own.remove(0).cell);
        }
        let (number, (name, user)) = (number(rank), gang);
        let labels = [
            ("engine", engine),
            ("gang", &**name),
            ("killer", end.killer),
            ("rank", &*number),
            ("uid", &**user),
        ];
        let cell = counters.cell(store, &SeriesKey::new(ENDED, &labels));
        let id = (gang.clone(), Arc::clone(&number));
        // Of an earlier run, or of this one before all was known: its killer may be another.
        self.own.retain(|before| {
            let is_same = before.id == id;
            if is_same {
                counters.retire(before.cell);
            }
            !is_same
        });
        // Another node may read it before the next sample here.
        counters.set(cell, now.saturating_sub(end.at).as_secs_f64());
        self.own.push(OwnRankEnd { id, at: end.at, cell });
    }

    /// Writes how long ago each end of this node was, and takes those of other nodes.
    pub(super) fn advance(
        &mut self,
        now: Duration,
        others: Option<&OtherRanks>,
        counters: &mut Counters,
    ) {
        self.own.retain(|end| {
            let age = now.saturating_sub(end.at);
            match age < KEPT_FOR {
                true => counters.set(end.cell, age.as_secs_f64()),
                false => counters.retire(end.cell),
            }
            age < KEPT_FOR
        });
        self.others.retain(|_, end| now.saturating_sub(end.at) < KEPT_FOR + READ_LATE);
        for read in others.iter().flat_map(|others| &others.ends) {
            let at = now.saturating_sub(read.age);
            let is_full = self.others.len() >= MOST;
            match self.others.get_mut(&read.id) {
                // The same end, at a later sample.
                Some(end) if read.age >= end.age && read.killer == end.killer => {
                    (end.age, end.at) = (read.age, end.at.min(at));
                }
                None if is_full => {}
                _ => {
                    let (engine, killer) = (Arc::clone(&read.engine), Arc::clone(&read.killer));
                    let end = OtherRankEnd { engine, killer, age: read.age, at };
                    self.others.insert(read.id.clone(), end);
                }
            }
        }
    }

    /// The end of that rank in the run that this one is of: not before this one began.
    fn of(&self, own: &OwnRank, node: &Arc<str>, rank: &Arc<str>) -> Option<&OtherRankEnd> {
        let end = self.others.get(&(own.gang.clone(), Arc::clone(node), Arc::clone(rank)))?;
        (end.at >= ticks(own.server.start_ticks)).then_some(end)
    }

    /// Whether all is known of the other ranks that can be known so long after the end of this one.
    pub(super) fn are_known(&self, own: &OwnRank, is_from_outside: bool, waited: Duration) -> bool {
        let is_known = |((node, rank, _), seen): (&super::RankId, &super::SeenRank)| {
            let lives_on = is_from_outside && seen.missing.is_none() && waited >= OUTLIVES;
            lives_on || self.of(own, node, rank).is_some()
        };
        waited >= WAITS_FOR_ENDS || own.seen.iter().all(is_known)
    }

    /// The ends of the other ranks that lived while this one did; `None`: there was none.
    pub(super) fn around(&self, own: &OwnRank, end: End<'_>) -> Option<RankDeaths> {
        let mut orders = Vec::new();
        let mut others = Vec::new();
        for ((node, rank, _), seen) in &own.seen {
            let Some(other) = self.of(own, node, rank) else {
                orders.push(if seen.missing.is_none() {
                    EndOrder::After
                } else {
                    EndOrder::Unknown
                });
                continue;
            };
            orders.push(order(other, end));
            others.push(RankDeath {
                node: Arc::clone(node),
                engine: Arc::clone(&other.engine),
                rank: Arc::clone(rank),
                killer: Arc::clone(&other.killer),
                seconds: other.at.as_secs_f64() - end.at.as_secs_f64(),
            });
        }
        let first = if orders.contains(&EndOrder::Before) {
            FirstDeath::Other
        } else if orders.contains(&EndOrder::Unknown) {
            FirstDeath::Unknown
        } else if orders.is_empty() {
            return None;
        } else {
            FirstDeath::This
        };
        // Of two that ended close to each other the one from outside is the cause.
        others.sort_by(|one, other| {
            let is_answer = |death: &RankDeath| !Killer::is_from_outside(&death.killer);
            is_answer(one).cmp(&is_answer(other)).then(one.seconds.total_cmp(&other.seconds))
        });
        Some(RankDeaths { first, others })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndOrder {
    Before,
    After,
    Unknown,
}

/// Whether the other rank ended before this one.
fn order(other: &OtherRankEnd, end: End<'_>) -> EndOrder {
    let earliest = if end.is_exact { end.at } else { end.at.saturating_sub(NOTICED_LATE) };
    if other.at < earliest {
        return EndOrder::Before;
    }
    if other.at.saturating_sub(READ_LATE) > end.at {
        return EndOrder::After;
    }
    match [&*other.killer, end.killer].map(Killer::is_from_outside) {
        [true, false] => EndOrder::Before,
        [false, true] => EndOrder::After,
        _ => EndOrder::Unknown,
    }
}

pub(super) fn label(key: &SeriesKey, name: &str) -> Option<Arc<str>> {
    let (_, value) = key.labels.iter().find(|(label, _)| &**label == name)?;
    Some((&**value).into())
}

/// Reads the ends that other nodes publish.
pub(super) fn read(store: &SeriesStore, is_other: impl Fn(&str) -> bool) -> Vec<ReadEnd> {
    use crate::policy::pools::SeriesView as _;
    let mut ends = Vec::new();
    store.each(ENDED, &mut |key, reading| {
        let label = |name| label(key, name);
        let Some(node) = label("node").filter(|node| is_other(node)) else { return };
        let Reading::Value(age) = reading else { return };
        let age = Duration::try_from_secs_f64(age).ok().filter(|age| *age < KEPT_FOR);
        let killer = label("killer").filter(|name| Killer::NAMES.contains(&&**name));
        let (Some(age), Some(killer), Some(engine), Some(gang), Some(user), Some(rank)) =
            (age, killer, label("engine"), label("gang"), label("uid"), label("rank"))
        else {
            return;
        };
        ends.push(ReadEnd { id: ((gang, user), node, rank), engine, killer, age });
    });
    ends
}

#[cfg(test)]
mod tests {
    use super::super::tests::World;
    use super::*;
    use crate::model::EnginePhase;

    const A: Reading<f64> = Reading::Value(50.0);

    /// Rank 1 here ended at 1010 by that killer; rank 0 on the other node has that end, read at so
    /// many seconds.
    fn deaths(
        own_killer: &str,
        is_exact: bool,
        other: Option<(u64, f64, &str)>,
    ) -> Option<RankDeaths> {
        let mut world = World::new(Some(1));
        world.set("spark-1", "0", EnginePhase::Serving, A);
        world.after(0);
        let mut ends = RankEnds::default();
        let mut counters = Counters::new(&mut SeriesStore::default());
        if let Some((read_at, age, killer)) = other {
            world.now = read_at;
            world.end("spark-1", "0", killer, Reading::Value(age));
            let others = world.others();
            ends.advance(Duration::from_secs(read_at), Some(&others), &mut counters);
            // A node that falls silent moves nothing.
            ends.advance(Duration::from_secs(read_at + 5), Some(&others), &mut counters);
        }
        let end = End { at: Duration::from_secs(1010), is_exact, killer: own_killer };
        ends.around(&world.own, end)
    }

    #[test]
    fn the_first_end_is_named_only_where_times_or_causes_show_it() {
        use FirstDeath::{Other, This, Unknown};
        for (own, is_exact, other, expected) in [
            ("itself", true, Some((1012, 4.0, "kernel_oom")), Other),
            ("kernel_oom", true, Some((1012, 4.0, "itself")), Other),
            ("kernel_oom", true, Some((1016, 1.0, "kernel_oom")), This),
            // Within the time by which samples differ only the cause shows it.
            ("itself", false, Some((1012, 2.5, "itself")), Unknown),
            ("itself", true, Some((1012, 2.5, "itself")), Other),
            ("itself", true, Some((1012, 1.5, "signal")), Other),
            ("signal", true, Some((1012, 1.5, "itself")), This),
            ("signal", true, Some((1012, 1.5, "kernel_oom")), Unknown),
            ("umawarden", true, Some((1012, 2.0, "itself")), Unknown),
            ("itself", true, None, This),
        ] {
            let deaths = deaths(own, is_exact, other).unwrap();
            assert_eq!(deaths.first, expected, "{own} {is_exact} {other:?}: {deaths:?}");
            assert_eq!(deaths.others.len(), usize::from(other.is_some()));
        }
    }

    #[test]
    fn an_end_is_published_with_its_age_from_the_first() {
        let world = World::new(Some(1));
        let mut store = SeriesStore::default();
        let mut counters = Counters::new(&mut store);
        let mut ends = RankEnds::default();
        let end = End { at: Duration::from_secs(1010), is_exact: true, killer: "signal" };
        let (gang, rank) = (&world.own.gang, &world.own.rank);
        let now = Duration::from_secs(1016);
        ends.record(now, ("vllm", gang, rank), end, &mut counters, &mut store);
        counters.show(&mut store);
        let (ids, _) = store.named(ENDED);
        assert_eq!(store.latest(ids[0]), Reading::Value(6.0));
    }

    /// It is published before its report, which waits for the other nodes and may know more.
    #[test]
    fn an_end_that_is_published_again_replaces_the_first() {
        let world = World::new(Some(1));
        let mut store = SeriesStore::default();
        let mut counters = Counters::new(&mut store);
        let mut ends = RankEnds::default();
        let (gang, rank) = (&world.own.gang, &world.own.rank);
        for killer in ["unknown", "signal", "signal"] {
            let end = End { at: Duration::from_secs(1010), is_exact: true, killer };
            let now = Duration::from_secs(1016);
            ends.record(now, ("vllm", gang, rank), end, &mut counters, &mut store);
        }
        counters.show(&mut store);
        let (ids, _) = store.named(ENDED);
        let shown: Vec<_> = ids.iter().map(|id| store.latest(*id)).collect();
        let values = shown.iter().filter(|reading| **reading == Reading::Value(6.0));
        assert_eq!((shown.len(), values.count(), ends.own.len()), (2, 1, 1), "{shown:?}");
    }

    #[test]
    fn a_death_waits_for_the_other_nodes_but_not_for_long() {
        let mut world = World::new(Some(1));
        world.set("spark-1", "0", EnginePhase::Serving, A);
        world.after(0);
        let mut ends = RankEnds::default();
        let known = |ends: &RankEnds, world: &World, waited: u64| {
            ends.are_known(&world.own, true, Duration::from_secs(waited))
        };
        assert_eq!([2, 3].map(|waited| known(&ends, &world, waited)), [false, true]);
        // The other server may live on without its worker, of which this one ended by itself.
        let by_itself = |waited| ends.are_known(&world.own, false, Duration::from_secs(waited));
        assert_eq!([9, 10].map(by_itself), [false, true]);
        world.set("spark-1", "0", EnginePhase::Gone, A);
        world.after(1);
        assert_eq!([9, 10].map(|waited| known(&ends, &world, waited)), [false, true]);
        let end = End { at: Duration::from_secs(1010), is_exact: true, killer: "itself" };
        let unknown = ends.around(&world.own, end).unwrap();
        assert_eq!((unknown.first, unknown.others.len()), (FirstDeath::Unknown, 0));
        world.end("spark-1", "0", "signal", Reading::Value(1.0));
        let mut counters = Counters::new(&mut SeriesStore::default());
        ends.advance(Duration::from_secs(1011), Some(&world.others()), &mut counters);
        assert!(known(&ends, &world, 0));
    }

    /// Both have died before, and were started again.
    #[test]
    fn the_end_of_an_earlier_run_is_none_of_this_one() {
        let mut world = World::new(Some(1));
        world.own.server.start_ticks = 100_500;
        world.set("spark-1", "0", EnginePhase::Serving, A);
        world.after(0);
        let mut ends = RankEnds::default();
        let mut store = SeriesStore::default();
        let mut counters = Counters::new(&mut store);
        world.after(10);
        // It ended at 1003 s, and this rank began at 1005 s.
        world.end("spark-1", "0", "signal", Reading::Value(7.0));
        ends.advance(Duration::from_secs(1010), Some(&world.others()), &mut counters);
        let own = End { at: Duration::from_secs(1010), is_exact: true, killer: "signal" };
        let around = ends.around(&world.own, own).unwrap();
        assert_eq!((around.first, around.others.len()), (FirstDeath::This, 0));
    }

    #[test]
    fn what_other_nodes_make_up_is_no_end() {
        let mut world = World::new(Some(1));
        for (killer, age) in [
            ("nobody", Reading::Value(1.0)),
            ("signal", Reading::Value(f64::NAN)),
            ("signal", Reading::Value(-1.0)),
            ("signal", Reading::Value(1e300)),
            ("signal", Reading::Failed),
        ] {
            world.end("spark-1", "0", killer, age);
            assert!(world.others().ends.is_empty(), "{killer} {age:?}");
        }
        world.end("own", "0", "signal", Reading::Value(1.0));
        assert!(world.others().ends.is_empty(), "this node's own");
    }
}
