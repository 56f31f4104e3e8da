//! The ranks of an engine on other nodes: whether its first one serves, and whether one has ended.
//!
//! vLLM's and SGLang's ranks do not always end with each other: a headless rank outlives its head,
//! and a head answers its health check while generation is dead. Each node publishes its ranks as a
//! series, which the other nodes of the cluster read. A command line proves nothing, so that only
//! ranks of the same user belong together.

pub(in crate::policy) mod ended;
pub(in crate::policy) mod past;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use promql_rules::store::SeriesStore;

use self::ended::{End, RankEnds, ReadEnd, label};
use super::Engines;
use super::life::{Life, has_ended, ticks};
use crate::model::{
    DeathReport, EnginePhase, EngineRank, EngineTarget, Event, Moment, ProcessId, ProgramEvent,
    RankDeaths, RankStatus, Reading, SeriesKey,
};
use crate::policy::counters::{Cell, Counters};
use crate::policy::pools::SeriesView as _;

/// The series of a rank. Its value distinguishes two runs of the same rank.
pub(in crate::policy) const START: &str = "uma_engine_rank_start_seconds";

/// A rank that is stopping for so long does not come back: one that refuses connections may.
const STOPS_FOR: Duration = Duration::from_secs(2);

/// Ranks of one engine on other nodes that are tracked.
const MOST_OTHERS: usize = 256;

/// The ranks on other nodes, by the names of their gangs.
#[derive(Debug, Default)]
pub(in crate::policy) struct OtherRanks {
    gangs: BTreeMap<GangKey, Vec<OtherRank>>,
    ends: Vec<ReadEnd>,
}

/// What ranks have in common: their meeting place, and the number of their user.
type GangKey = (Arc<str>, Arc<str>);

/// The node of a rank, its number, and the start of its server. An engine may be renamed, and two
/// ranks of a node may start within the same hundredth of a second.
type RankId = (Arc<str>, Arc<str>, Duration);

#[derive(Clone, Debug)]
struct OtherRank {
    node: Arc<str>,
    engine: Arc<str>,
    rank: Arc<str>,
    phase: EnginePhase,
    /// After the boot of its node.
    start: Duration,
}

impl OtherRank {
    fn id(&self) -> RankId {
        (Arc::clone(&self.node), Arc::clone(&self.rank), self.start)
    }
}

impl OtherRanks {
    /// Reads the ranks of nodes for which `is_other` holds.
    pub(in crate::policy) fn read(store: &SeriesStore, is_other: impl Fn(&str) -> bool) -> Self {
        let mut all = Self { gangs: BTreeMap::new(), ends: ended::read(store, &is_other) };
        store.each(START, &mut |key, reading| {
            let label = |name| label(key, name);
            let Some(node) = label("node").filter(|node| is_other(node)) else { return };
            // A series that has ended is no number.
            let start = reading.value().and_then(|start| Duration::try_from_secs_f64(start).ok());
            let phase = label("phase")
                .and_then(|name| EnginePhase::ALL.into_iter().find(|phase| *phase.name() == *name));
            let (Some(start), Some(phase), Some(engine), Some(gang), Some(user), Some(rank)) =
                (start, phase, label("engine"), label("gang"), label("uid"), label("rank"))
            else {
                return;
            };
            let gang = all.gangs.entry((gang, user)).or_default();
            gang.push(OtherRank { node, engine, rank, phase, start });
        });
        all
    }
}

impl OtherRanks {
    /// All ranks of that user.
    fn of_user<'o>(&'o self, user: &'o str) -> impl Iterator<Item = &'o OtherRank> {
        let gangs = self.gangs.iter().filter(move |((_, of), _)| **of == *user);
        gangs.flat_map(|(_, ranks)| ranks)
    }

    /// Whether a rank that has been missing for so long has an end, and not of an earlier run.
    fn has_ended(&self, gang: &GangKey, (node, rank, _): &RankId, missing: Duration) -> bool {
        self.ends.iter().any(|end| {
            let (of, on, number) = &end.id;
            let is_it = of == gang && on == node && number == rank;
            is_it && end.age <= missing.saturating_add(ended::SHOWN_WITHIN)
        })
    }
}

/// What an engine's life has to do with its ranks on other nodes.
#[derive(Debug, Default)]
pub(super) struct GangState {
    /// Whether the rank that serves is up; `None`: unknown.
    pub(super) first_is_up: Option<bool>,
    /// The rank that has ended, and how: the engine cannot go on.
    pub(super) lost: Option<Arc<str>>,
    /// Those on other nodes that have processes.
    pub(super) others: Vec<RankStatus>,
}

impl GangState {
    /// Takes the ranks on other nodes; returns whether they have changed.
    fn take(&mut self, others: &[OtherRank]) -> bool {
        let there = || others.iter().filter(|other| other.phase != EnginePhase::Gone);
        let known = self.others.iter().map(|it| (&it.node, &it.engine, &it.rank, it.phase));
        if known.eq(there().map(|it| (&it.node, &it.engine, &it.rank, it.phase))) {
            return false;
        }
        let of = |other: &OtherRank| RankStatus {
            node: Arc::clone(&other.node),
            engine: Arc::clone(&other.engine),
            rank: Arc::clone(&other.rank),
            phase: other.phase,
        };
        self.others = there().map(of).collect();
        true
    }
}

/// An engine's rank on this node, and what is known of the others.
#[derive(Debug)]
struct OwnRank {
    server: ProcessId,
    rank: EngineRank,
    gang: GangKey,
    phases: [Cell; EnginePhase::ALL.len()],
    /// How many ranks there are, and whether one is lost; none without a cluster.
    others: Option<[Cell; 2]>,
    seen: BTreeMap<RankId, SeenRank>,
    has_lost: bool,
    /// Whether it serves requests, as far as its server was seen.
    serves: bool,
}

/// A rank that has lived while this one did.
#[derive(Debug)]
struct SeenRank {
    engine: Arc<str>,
    /// Since when it is ending, or not reported.
    missing: Option<Duration>,
}

impl SeenRank {
    /// How it has ended, by its phase.
    fn ends_at(&mut self, now: Duration, phase: EnginePhase) -> Option<&'static str> {
        if !phase.is_ending() {
            self.missing = None;
            return None;
        }
        let since = *self.missing.get_or_insert(now);
        let has_ended = phase == EnginePhase::Gone || now.saturating_sub(since) >= STOPS_FOR;
        has_ended.then_some("has ended")
    }

    /// Whether that is a later run of the same rank.
    fn is_replaced_by(&self, (node, rank, start): &RankId, other: &OtherRank) -> bool {
        let is_same = other.node == *node && other.engine == self.engine && other.rank == *rank;
        is_same && other.start > *start
    }

    /// Its node, and the reason for people.
    fn lost(&self, (node, rank, _): &RankId, what: &str) -> (String, String) {
        let number = if **rank == *UNKNOWN { String::new() } else { format!(" {rank}") };
        (node.to_string(), format!("its rank{number} on {node} ({}) {what}", self.engine))
    }
}

/// Ranks of this node that are gone, and for how long they are remembered: reports of their deaths
/// take a while.
const MOST_PAST: usize = 16;
const PAST_FOR: Duration = Duration::from_secs(60);

/// The ranks on this node.
#[derive(Debug, Default)]
pub(super) struct Ranks {
    /// The rank of each engine that has one, by the engine's name.
    own: BTreeMap<Arc<str>, OwnRank>,
    /// Those that are gone, and since when.
    past: VecDeque<(Duration, OwnRank)>,
    ends: RankEnds,
}

impl Ranks {
    fn of(&self, server: ProcessId) -> Option<&OwnRank> {
        let past = self.past.iter().map(|(_, own)| own);
        self.own.values().chain(past).find(|own| own.server == server)
    }

    /// Those whose server is still that of the engine go on.
    fn retire(
        &mut self,
        now: Duration,
        is_same: impl Fn(&str, &OwnRank) -> bool,
        to: &mut Counters,
    ) {
        let (same, gone) =
            std::mem::take(&mut self.own).into_iter().partition(|(name, own)| is_same(name, own));
        self.own = same;
        for own in BTreeMap::into_values(gone) {
            own.retire(to);
            self.past.push_back((now, own));
        }
        let is_old = |(since, _): &(Duration, OwnRank)| now.saturating_sub(*since) > PAST_FOR;
        while self.past.len() > MOST_PAST || self.past.front().is_some_and(is_old) {
            self.past.pop_front();
        }
    }
}

impl Engines {
    /// An engine as a target if a rank of it on another node has ended, or its server on this one.
    /// Nothing of it serves any more.
    pub(in crate::policy) fn without_its_gang(&self, name: &str) -> Option<EngineTarget> {
        let (life, _) = self.lives.get(name)?;
        let own = self.ranks.own.get(name).filter(|own| own.is_lost(life));
        own.map(|_| EngineTarget::from(life.seen()))
    }

    /// Whether an engine on this node is a rank of one that spans nodes.
    pub(in crate::policy) fn has_ranks(&self) -> bool {
        let is_rank = |life: &Life| life.seen().rank.is_some();
        !self.ranks.own.is_empty()
            || !self.ranks.past.is_empty()
            || self.lives.values().any(|(life, _)| is_rank(life))
    }

    /// Compares the ranks on this node with those on others; `None`: there is no cluster.
    pub(in crate::policy) fn track_ranks(
        &mut self,
        at: Moment,
        others: Option<&OtherRanks>,
        (counters, store): (&mut Counters, &mut SeriesStore),
        events: &mut Vec<Event>,
    ) {
        let lives = &self.lives;
        // What a server has left behind shows no rank any more.
        let is_same = |name: &str, own: &OwnRank| {
            lives.get(name).is_some_and(|(life, _)| {
                let rank = life.seen().rank.as_ref();
                life.server() == own.server && rank.is_none_or(|rank| *rank == own.rank)
            })
        };
        self.ranks.retire(at.uptime, is_same, counters);
        for (_, own) in &mut self.ranks.past {
            // Only what other nodes report of their ranks is of use.
            others.map(|others| own.compare(at.uptime, others));
        }
        let is_known = self.is_known(at.uptime);
        for (name, (life, _)) in &mut self.lives {
            if let (Some(rank), Some(user)) = (&life.seen().rank, life.seen().uid)
                && !self.ranks.own.contains_key(name)
            {
                let own = (rank.clone(), user);
                let own = OwnRank::new(name, life.server(), own, counters, store);
                self.ranks.own.insert(Arc::clone(name), own);
            }
            let Some(own) = self.ranks.own.get_mut(name) else { continue };
            own.serves |= life.serves_somewhere();
            if let Some(others) = others {
                let lost = own.compare(at.uptime, others);
                life.gang.first_is_up = own.first_is_up(others);
                self.has_changed |= life.gang.take(own.others(others));
                if let (Some((node, reason)), false) = (lost, life.has_ended()) {
                    self.has_changed = true;
                    life.gang.lost = Some(reason.as_str().into());
                    let (engine, gang) = (name.to_string(), own.rank.gang.to_string());
                    let memory_bytes = Some(life.memory()).filter(|bytes| *bytes > 0);
                    let kind =
                        ProgramEvent::EngineRankLost { engine, gang, node, reason, memory_bytes };
                    events.push(Event { kind: kind.into(), utc: Some(at.utc), seq: None });
                }
            }
            own.publish(life, is_known, counters);
            if others.is_some() {
                own.publish_others(life, name, counters, store);
            }
        }
        self.ranks.ends.advance(at.uptime, others, counters);
    }

    /// Publishes these deaths for the other nodes, if they are of ranks.
    pub(in crate::policy) fn record_rank_deaths<'r>(
        &mut self,
        at: Moment,
        reports: impl Iterator<Item = &'r DeathReport>,
        (counters, store): (&mut Counters, &mut SeriesStore),
    ) {
        for report in reports {
            let Some(own) = report.who.server.and_then(|server| self.ranks.of(server)) else {
                continue;
            };
            let (gang, rank) = (own.gang.clone(), own.rank.clone());
            let ago = Duration::try_from(at.utc.duration_since(report.ended)).unwrap_or_default();
            let first = at.uptime.saturating_sub(ago + report.first_worker_before());
            let end = End { at: first, is_exact: true, killer: report.killer.name() };
            let engine = &*report.who.name;
            self.ranks.ends.record(at.uptime, (engine, &gang, &rank), end, counters, store);
        }
    }

    /// Whether all is known of the other ranks that can be known at the death of this one.
    pub(super) fn rank_ends_are_known(
        &self,
        server: ProcessId,
        is_from_outside: bool,
        noticed: Duration,
        now: Duration,
    ) -> bool {
        let are_known =
            |own| self.ranks.ends.are_known(own, is_from_outside, now.saturating_sub(noticed));
        self.ranks.of(server).is_none_or(are_known)
    }

    /// The ends of the other ranks of an engine that has died; `None`: none is known.
    pub(in crate::policy) fn rank_deaths(
        &self,
        report: &DeathReport,
        ended: Duration,
        is_exact: bool,
    ) -> Option<RankDeaths> {
        let own = self.ranks.of(report.who.server?)?;
        let end = End { at: ended, is_exact, killer: report.killer.name() };
        self.ranks.ends.around(own, end)
    }
}

impl OwnRank {
    fn new(
        name: &str,
        server: ProcessId,
        (rank, user): (EngineRank, u32),
        counters: &mut Counters,
        store: &mut SeriesStore,
    ) -> Self {
        let (number, user) = (number(&rank), user.to_string());
        let phases = EnginePhase::ALL.map(|phase| {
            let labels = [
                ("engine", name),
                ("gang", &*rank.gang),
                ("phase", phase.name()),
                ("rank", &*number),
                ("uid", &*user),
            ];
            counters.cell(store, &SeriesKey::new(START, &labels))
        });
        let gang = (Arc::clone(&rank.gang), user.into());
        Self {
            server,
            rank,
            gang,
            phases,
            others: None,
            seen: BTreeMap::new(),
            has_lost: false,
            serves: false,
        }
    }

    /// Whether it lives on without another rank, or without its server. Processes that only wait
    /// for their parent hold nothing.
    fn is_lost(&self, life: &Life) -> bool {
        let is_left = life.seen().processes.iter().any(|process| !has_ended(process));
        is_left && !life.is_gone() && (self.has_lost || life.has_ended())
    }

    fn others<'o>(&self, all: &'o OtherRanks) -> &'o [OtherRank] {
        all.gangs.get(&self.gang).map_or(&[], Vec::as_slice)
    }

    /// Takes what other nodes report. Returns the first part that has ended, and why.
    fn compare(&mut self, now: Duration, all: &OtherRanks) -> Option<(String, String)> {
        let others = self.others(all);
        for other in others.iter().filter(|other| !other.phase.is_ending()) {
            let is_full = self.seen.len() >= MOST_OTHERS;
            if !is_full && !self.seen.contains_key(&other.id()) {
                let engine = Arc::clone(&other.engine);
                self.seen.insert(other.id(), SeenRank { engine, missing: None });
            }
        }
        let mut ended = None;
        for (id, seen) in &mut self.seen {
            let what = match others.iter().find(|other| other.id() == *id) {
                Some(other) => {
                    seen.engine = Arc::clone(&other.engine);
                    seen.ends_at(now, other.phase)
                }
                // Each job of Ray is another gang.
                None if all.of_user(&self.gang.1).any(|it| seen.is_replaced_by(id, it)) => {
                    Some("was started anew")
                }
                // Without an end umawarden may have been restarted there.
                None => {
                    let since = *seen.missing.get_or_insert(now);
                    all.has_ended(&self.gang, id, now.saturating_sub(since)).then_some("has ended")
                }
            };
            ended = ended.or_else(|| Some(seen.lost(id, what?)));
        }
        let ended = ended?;
        (!std::mem::replace(&mut self.has_lost, true)).then_some(ended)
    }

    /// Whether the rank that serves is up; `None` where no other rank is known.
    fn first_is_up(&self, all: &OtherRanks) -> Option<bool> {
        let is_numbered = self.rank.rank.is_some();
        let firsts = self.others(all).iter().filter(|other| !is_numbered || *other.rank == *"0");
        firsts.map(|other| other.phase.is_up()).reduce(|one, other| one || other)
    }

    fn publish(&self, life: &Life, is_known: bool, counters: &mut Counters) {
        let start = ticks(self.server.start_ticks).as_secs_f64();
        for (cell, phase) in self.phases.iter().zip(EnginePhase::ALL) {
            match (phase == life.phase(), is_known) {
                (true, true) => counters.set(*cell, start),
                (true, false) => counters.set_reading(*cell, Reading::Failed),
                (false, _) => counters.retire(*cell),
            }
        }
    }

    fn publish_others(
        &mut self,
        life: &Life,
        name: &str,
        counters: &mut Counters,
        store: &mut SeriesStore,
    ) {
        let mut cell = |metric| counters.cell(store, &SeriesKey::new(metric, &[("engine", name)]));
        let [count, lost] = *self
            .others
            .get_or_insert_with(|| ["uma_engine_ranks", "uma_engine_rank_lost"].map(&mut cell));
        let there = self.seen.values().filter(|seen| seen.missing.is_none()).count();
        let own = usize::from(!life.has_ended());
        counters.set(count, (there + own) as f64);
        counters.set(lost, f64::from(self.is_lost(life)));
    }

    fn retire(&self, counters: &mut Counters) {
        for cell in self.phases.into_iter().chain(self.others.into_iter().flatten()) {
            counters.retire(cell);
        }
    }
}

/// The label of a rank without a number.
const UNKNOWN: &str = "unknown";

fn number(rank: &EngineRank) -> Arc<str> {
    rank.rank.map_or_else(|| UNKNOWN.into(), |rank| rank.to_string().into())
}
