//! Tracks the life of each inference engine: starting → loading → ready → serving → stopping →
//! gone, each step with what shows it.
//!
//! An engine's health endpoint counts most. Without it, an open port counts; without that, the end
//! of its reads and growth. On GB10 the GPU's own counters prove nothing, so that a loading engine
//! counts by its progress alone.

mod deaths;
mod ends;
mod footprint;
mod info;
mod life;
pub(super) mod ranks;
mod receipt;
mod recent;
mod release;
mod series;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use promql_rules::store::SeriesStore;

use super::counters::Counters;
use super::gate::{EnginePresence, orphans};
use super::status::EngineStatus;
use crate::engines::facts;
use crate::model::{
    EngineHealth, EnginePhase, EngineProcess, EngineReadings, EngineSeen, EngineTarget, Event,
    Moment, Orphan, PastRanks, ProcessId, ProgramEvent, Reading, Release, Workload,
};
pub(super) use deaths::{Dead, Deaths};
use ends::ProcessEnds;
use life::{Life, LifeChange};
use ranks::Ranks;
pub(super) use receipt::NodeView;
use receipt::{Loading, Loads};
use recent::RecentLevels;
pub(super) use release::Levels;
use release::Releasing;
use series::{EngineCells, NodeCells};

/// Gone engines stay in the status for so long: rules and people may need them.
const KEPT: Duration = Duration::from_secs(600);

/// Older samples are not current.
const CURRENT_WITHIN: Duration = Duration::from_secs(15);

/// Engines of which lives are kept, those that are gone included.
const MAX_LIVES: usize = 64;

/// Releases that are tracked at once.
const MAX_RELEASES: usize = 16;

/// The node's memory, and the baseline.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NodeLevels {
    /// Of what an engine may hold, and when that was measured.
    pub(super) levels: Levels,
    pub(super) measured: Option<Duration>,
    /// What is in no counter while no engine runs, if that was learned.
    pub(super) baseline: Option<u64>,
}

/// All engines of the node.
#[derive(Debug)]
pub(super) struct Engines {
    lives: BTreeMap<Arc<str>, (Life, EngineCells)>,
    /// When processes were last sampled, on the uptime clock.
    sampled: Option<Duration>,
    node: NodeCells,
    statuses: Arc<[EngineStatus]>,
    has_changed: bool,
    /// What they have left behind.
    orphans: Arc<[Orphan]>,
    /// What the node had in the last seconds.
    recent: RecentLevels,
    /// Of those that have died.
    releases: Vec<Releasing>,
    /// What those that start take, and what earlier ones took.
    loads: Loads,
    /// Those that live, with where in their lives they are; what is left behind is none.
    living: Vec<(Arc<str>, EnginePhase)>,
    /// Deaths since [`Self::take_dead`].
    dead: Vec<Dead>,
    ranks: Ranks,
    /// How their processes ended.
    pub(super) ends: ProcessEnds,
}

impl Engines {
    pub(super) fn new(counters: &mut Counters, store: &mut SeriesStore) -> Self {
        Self {
            lives: BTreeMap::new(),
            sampled: None,
            node: NodeCells::new(counters, store),
            statuses: Arc::new([]),
            has_changed: false,
            orphans: Arc::new([]),
            recent: RecentLevels::new(),
            releases: Vec::new(),
            loads: Loads::default(),
            living: Vec::new(),
            dead: Vec::new(),
            ranks: Ranks::default(),
            ends: ProcessEnds::default(),
        }
    }

    /// Takes a sample of the processes.
    pub(super) fn take_sample(
        &mut self,
        at: Moment,
        readings: &EngineReadings,
        node: &NodeLevels,
        world: (&mut Counters, &mut SeriesStore),
        events: &mut Vec<Event>,
    ) {
        self.ends.take(readings);
        if self.sampled.is_some_and(|sampled| sampled > readings.read_at) {
            return;
        }
        self.sampled = Some(readings.read_at);
        self.has_changed = true;
        if let Some(measured) = node.measured {
            self.recent.take(measured, node.levels);
        }
        let (counters, store) = world;
        self.rename(readings, counters, store, events);
        let alive = self.alive();
        let mut died = Vec::new();
        for (name, (life, _)) in &mut self.lives {
            if !readings.engines.iter().any(|seen| seen.name == *name) {
                let had_ended = life.has_ended();
                if !had_ended {
                    self.dead.extend(Dead::of(life, at.uptime, readings));
                }
                report(life.vanish(at), life, events);
                if !had_ended {
                    died.extend(begin_release(life, alive.len() <= 1, node));
                }
            }
        }
        for seen in &readings.engines {
            let world = (&mut *counters, &mut *store);
            let node = (node, alive.len() <= 1);
            died.extend(self.take(at, readings, seen, node, world, events));
        }
        self.follow(at, (died, node.baseline), &alive, counters, events);
        self.forget(at, counters);
        let left: Vec<Orphan> = readings.engines.iter().flat_map(orphans).collect();
        if *self.orphans != *left {
            self.orphans = left.into();
        }
        let lives = self.lives.iter().map(|(name, (life, _))| (name, life));
        let living = lives.filter(|(_, life)| !life.has_ended() && !life.seen().is_left_behind);
        self.living = living.map(|(name, life)| (Arc::clone(name), life.phase())).collect();
    }

    /// Processes that engines left behind; `Failed` without a current sample: the first may hang.
    pub(super) fn orphans(&self, at: Duration) -> Reading<Arc<[Orphan]>> {
        match self.is_known(at) {
            false => Reading::Failed,
            true => Reading::Value(Arc::clone(&self.orphans)),
        }
    }

    /// Whether engines are there.
    pub(super) fn presence(&self, at: Duration) -> EnginePresence {
        if !self.is_known(at) {
            return EnginePresence::Unknown;
        }
        let is_alive = |life: &Life| !life.has_ended();
        if !self.orphans.is_empty() || self.lives.values().any(|(life, _)| is_alive(life)) {
            return EnginePresence::Some;
        }
        if self.lives.is_empty() { EnginePresence::None } else { EnginePresence::JustGone }
    }

    /// Whether one lives, or has left something behind, by the last sample.
    pub(super) fn is_any_alive(&self) -> bool {
        !self.orphans.is_empty() || self.lives.values().any(|(life, _)| !life.has_ended())
    }

    /// Living engines; `Failed` without a current sample.
    pub(super) fn living(&self, at: Duration) -> Reading<&[(Arc<str>, EnginePhase)]> {
        match self.is_known(at) {
            false => Reading::Failed,
            true => Reading::Value(&self.living),
        }
    }

    /// Whether processes were sampled after that.
    pub(super) fn has_sampled_since(&self, then: Duration) -> bool {
        self.sampled.is_some_and(|sampled| sampled > then)
    }

    /// Whether the last sample is current.
    fn is_known(&self, at: Duration) -> bool {
        self.sampled.is_some_and(|sampled| at.saturating_sub(sampled) <= CURRENT_WITHIN)
    }

    /// Some are known by another name from now on: by what shows only while they start, by what
    /// Docker reports late, or by another configuration.
    fn rename(
        &mut self,
        readings: &EngineReadings,
        counters: &mut Counters,
        store: &mut SeriesStore,
        events: &mut Vec<Event>,
    ) {
        for seen in &readings.engines {
            let is_same = |name: &Arc<str>, life: &Life| *name != seen.name && life.is_of(seen);
            let before = self.lives.iter().find(|(name, (life, _))| is_same(name, life));
            let Some(before) = before.map(|(name, _)| Arc::clone(name)) else { continue };
            if self.lives.get(&seen.name).is_some_and(|(life, _)| !life.is_gone()) {
                continue;
            }
            let Some((mut life, cells)) = self.lives.remove(&before) else { continue };
            cells.retire(&mut self.node, counters);
            if let Some((_, cells)) = self.lives.remove(&seen.name) {
                cells.retire(&mut self.node, counters);
            }
            let cells = EngineCells::new(seen, &mut self.node, counters, store);
            cells.count_start(counters);
            report(Some(life.rename(&seen.name)), &life, events);
            for release in &mut self.releases {
                if release.server == life.server() {
                    release.engine = Arc::clone(&seen.name);
                }
            }
            self.lives.insert(Arc::clone(&seen.name), (life, cells));
        }
    }

    fn take(
        &mut self,
        at: Moment,
        readings: &EngineReadings,
        seen: &EngineSeen,
        (node, is_alone): (&NodeLevels, bool),
        (counters, store): (&mut Counters, &mut SeriesStore),
        events: &mut Vec<Event>,
    ) -> Option<Releasing> {
        let read_at = readings.read_at;
        let levels = self.recent.at(read_at).unwrap_or(node.levels);
        let mut died = None;
        let is_full = self.lives.len() >= MAX_LIVES;
        let from = match self.lives.get_mut(&seen.name) {
            Some((life, cells)) if life.is_of(seen) => {
                cells.describe(seen, &mut self.node, counters, store);
                let had_ended = life.has_ended();
                if life.ends_with(seen) {
                    self.dead.extend(Dead::of(life, at.uptime, readings));
                }
                for turn in life.take_sample(at, read_at, seen, levels) {
                    report(Some(turn), life, events);
                }
                let has_died = !had_ended && life.has_ended();
                return has_died.then(|| begin_release(life, is_alone, node)).flatten();
            }
            Some((life, cells)) => {
                if !life.has_ended() {
                    self.dead.extend(Dead::of(life, at.uptime, readings));
                    died = begin_release(life, is_alone, node);
                }
                report(life.vanish(at), life, events);
                cells.retire(&mut self.node, counters);
                Some(EnginePhase::Gone)
            }
            None if is_full => return None,
            None => None,
        };
        let cells = EngineCells::new(seen, &mut self.node, counters, store);
        cells.count_start(counters);
        let mut life = Life::new(at, read_at, seen, &self.recent, levels);
        let reason = format!("found by {}", seen.found_by);
        report(Some(LifeChange::Phase { from, to: EnginePhase::Starting, reason }), &life, events);
        for turn in life.take_sample(at, read_at, seen, levels) {
            report(Some(turn), &life, events);
        }
        if !seen.is_left_behind {
            let view = NodeView { levels, total: None, store };
            let alive = self.alive();
            let others = (alive.is_empty(), self.loads.is_any_of(alive.into_iter()));
            self.loads.begin(Loading::begin(at, &life, others, node.baseline, &view));
        }
        self.lives.insert(Arc::clone(&seen.name), (life, cells));
        died
    }

    /// The servers of those that live.
    fn alive(&self) -> BTreeSet<ProcessId> {
        let alive = self.lives.values().filter(|(life, _)| !life.has_ended());
        alive.map(|(life, _)| life.server()).collect()
    }

    /// Takes in who has died and who has begun since `before`.
    fn follow(
        &mut self,
        at: Moment,
        (died, baseline): (Vec<Releasing>, Option<u64>),
        before: &BTreeSet<ProcessId>,
        counters: &mut Counters,
        events: &mut Vec<Event>,
    ) {
        let alive = self.alive();
        if alive != *before {
            for (life, _) in self.lives.values_mut() {
                // A new engine overlaps all others from its begin on.
                if before.contains(&life.server()) {
                    life.disturb();
                }
            }
        }
        self.releases.extend(died);
        let is_returning = self.releases.iter().any(|one| one.is_unaccountable(baseline));
        self.loads.disturb(before, &alive, is_returning);
        if alive.iter().any(|server| !before.contains(server)) {
            for mut release in std::mem::take(&mut self.releases) {
                let outcome = release.overtaken(at);
                self.report_release(at, &release, outcome, counters, events);
            }
        }
        let excess = self.releases.len().saturating_sub(MAX_RELEASES);
        self.releases.drain(..excess);
        for release in &mut self.releases {
            let life = self.lives.values().find(|(life, _)| life.server() == release.server);
            let left = life.map(|(life, _)| orphans(life.seen()).collect());
            release.left(left.unwrap_or_default());
        }
    }

    /// Memory was measured: what has come back of what the dead owned?
    pub(super) fn measure(
        &mut self,
        at: Moment,
        node: &NodeView<'_>,
        counters: &mut Counters,
        events: &mut Vec<Event>,
    ) {
        let levels = node.levels;
        self.recent.take(at.uptime, levels);
        if self.loads.is_any_under_way() {
            self.measure_loads(at, node, counters, events);
        }
        if self.releases.is_empty() {
            return;
        }
        for mut release in std::mem::take(&mut self.releases) {
            let outcome = release.measure(at.uptime, &levels);
            self.report_release(at, &release, outcome, counters, events);
            if !release.is_over(at.uptime) {
                self.releases.push(release);
            } else if let Some((_, cells)) = self.life_of(release.server) {
                // A complete release stays in the status; one no longer tracked is unknown.
                if !release.is_back() {
                    cells.end_release(counters);
                }
            }
        }
    }

    /// What do those that start take?
    fn measure_loads(
        &mut self,
        at: Moment,
        node: &NodeView<'_>,
        counters: &mut Counters,
        events: &mut Vec<Event>,
    ) {
        let lives = &self.lives;
        let life_of = |server| lives.values().find(|(life, _)| life.server() == server);
        let ended = self.loads.measure(at, node, |server| life_of(server).map(|(life, _)| life));
        for (server, growth) in self.loads.expected_growth() {
            if let Some((_, cells)) = life_of(server) {
                cells.set_expected_growth(growth, counters);
            }
        }
        for load in ended {
            if let Some((_, cells)) = life_of(load.server) {
                cells.set_expected_growth(None, counters);
                cells.set_floor_change(load.floor_change, counters);
            }
            events.push(load.event);
        }
    }

    fn life_of(&self, server: ProcessId) -> Option<&(Life, EngineCells)> {
        self.lives.values().find(|(life, _)| life.server() == server)
    }

    fn report_release(
        &self,
        at: Moment,
        of: &Releasing,
        outcome: Option<Release>,
        counters: &mut Counters,
        events: &mut Vec<Event>,
    ) {
        if let Some((_, cells)) = self.life_of(of.server) {
            cells.set_release(&of.owned, &of.outstanding, counters);
        }
        let Some(release) = outcome else { return };
        self.node.count_release(&release, counters);
        let (engine, pid) = (of.engine.to_string(), of.server.pid);
        let kind = ProgramEvent::EngineRelease { engine, pid, release: Box::new(release) };
        events.push(Event { kind: kind.into(), utc: Some(at.utc), seq: None });
    }

    /// Drops engines that have been gone for long.
    fn forget(&mut self, at: Moment, counters: &mut Counters) {
        let node = &mut self.node;
        self.lives.retain(|_, (life, cells)| {
            let is_kept = !life.is_gone_since(at, KEPT);
            if !is_kept {
                cells.retire(node, counters);
            }
            is_kept
        });
    }

    /// Takes an answer of a health endpoint.
    pub(super) fn take_health(
        &mut self,
        at: Moment,
        health: &EngineHealth,
        events: &mut Vec<Event>,
    ) {
        let Some((life, _)) = self.lives.get_mut(&health.engine) else { return };
        self.has_changed = true;
        for turn in life.take_health(at, health) {
            report(Some(turn), life, events);
        }
    }

    /// Brings the series up to date.
    pub(super) fn publish(&self, at: Moment, counters: &mut Counters) {
        let is_known = self.is_known(at.uptime);
        let there = self.lives.values().filter(|(life, _)| !life.is_gone()).count();
        self.node.publish(there, self.sampled.is_some(), is_known, counters);
        for (life, cells) in self.lives.values() {
            cells.publish(at, life, is_known, counters);
        }
    }

    /// A picture of all, by name; the same `Arc` while nothing changes.
    pub(super) fn statuses(&mut self) -> Arc<[EngineStatus]> {
        if std::mem::take(&mut self.has_changed) {
            let status = |life: &Life| life.status(self.loads.last_took(life.seen()));
            self.statuses = self.lives.values().map(|(life, _)| status(life)).collect();
        }
        Arc::clone(&self.statuses)
    }

    /// One as a target, while it loads.
    pub(super) fn loading(&self, name: &str) -> Option<EngineTarget> {
        let (life, _) = self.lives.get(name)?;
        (life.phase() == EnginePhase::Loading).then(|| EngineTarget {
            is_prefetch_vain: self.loads.is_prefetch_vain(name),
            read_order: self.loads.read_order(name),
            ..EngineTarget::loading(life.seen(), &life.serving())
        })
    }

    /// An engine as a target, in any phase.
    pub(super) fn target_of(&self, name: &str) -> Option<EngineTarget> {
        self.lives.get(name).map(|(life, _)| EngineTarget::from(life.seen()))
    }

    /// One as a target, while it is up and can be asked to give memory back.
    pub(super) fn askable(&self, name: &str) -> Option<EngineTarget> {
        let (life, _) = self.lives.get(name)?;
        let seen = life.seen();
        let can_be_asked = life.phase().is_up() && seen.health_url.is_some();
        (can_be_asked && facts(seen.kind).can_empty_cache()).then(|| EngineTarget::from(seen))
    }

    /// Where the engine of that name is in its life.
    pub(super) fn phase(&self, name: &str) -> Option<EnginePhase> {
        self.lives.get(name).map(|(life, _)| life.phase())
    }

    /// The engine that a container or a unit holds, while any of its processes is there: its name,
    /// its phase, and what shows that.
    pub(super) fn of_held(&self, held: &Workload) -> Option<(&Arc<str>, EnginePhase, &str)> {
        let (name, life) = self.life_of_held(held)?;
        Some((name, life.phase(), life.reason()))
    }

    /// The same as it was seen last. Where none is confirmed, one that claims to be in that
    /// container: nothing but a deferred start follows from it.
    pub(super) fn seen_of_held(&self, held: &Workload) -> Option<&EngineSeen> {
        let claims = |life: &&Life| life.seen().unproven_container() == Some(&held.id);
        let claimed = || self.lives.values().map(|(life, _)| life).find(claims);
        self.life_of_held(held).map(|(_, life)| life).or_else(claimed).map(Life::seen)
    }

    fn life_of_held(&self, held: &Workload) -> Option<(&Arc<str>, &Life)> {
        let lives = self.lives.iter().map(|(name, (life, _))| (name, life));
        lives.filter(|(_, life)| !life.is_gone()).find(|(_, life)| held.runs(life.seen()))
    }

    /// Another engine than that takes a model in. Ranks of one engine load together.
    pub(super) fn other_loading(
        &self,
        held: &Workload,
        ranks: Option<&PastRanks>,
    ) -> Option<Arc<str>> {
        let own = self.life_of_held(held).map(|(name, _)| name);
        let is_own = |name| Some(name) == own || ranks.is_some_and(|own| self.is_of(name, own));
        let mut others = self.lives.iter().filter(|(name, _)| !is_own(*name));
        let loads = |life: &Life| life.phase() == EnginePhase::Loading && !life.is_stuck();
        others.find(|(_, (life, _))| loads(life)).map(|(name, _)| Arc::clone(name))
    }

    /// Those who have died since this was last asked.
    pub(super) fn take_dead(&mut self) -> Vec<Dead> {
        std::mem::take(&mut self.dead)
    }

    /// What a dead engine has left behind: what still runs in its container or unit, and what was
    /// of its `family` and runs elsewhere now. `None` without a current sample.
    pub(super) fn left_of(
        &self,
        held: Option<&Workload>,
        family: &BTreeSet<ProcessId>,
        now: Duration,
    ) -> Option<Vec<Orphan>> {
        let sampled = self.sampled?;
        if now.saturating_sub(sampled) > CURRENT_WITHIN {
            return None;
        }
        let own = held.and_then(|held| self.life_of_held(held)).map(|(name, _)| name);
        let held = |process: &EngineProcess| {
            let kinds = [process.anon_bytes, process.shmem_bytes, process.hugetlb_bytes];
            kinds.into_iter().filter_map(Reading::value).fold(0, u64::saturating_add)
        };
        let of = |name: &Arc<str>, process: &EngineProcess| Orphan {
            id: process.id,
            comm: Arc::clone(&process.comm),
            engine: Arc::clone(name),
            bytes: held(process),
            open_devices: 0,
        };
        // What has ended and waits for its parent holds nothing.
        let is_there = |process: &EngineProcess| !life::has_ended(process);
        let mut left = Vec::new();
        for (name, (life, _)) in &self.lives {
            let is_own = Some(name) == own;
            let its =
                life.seen().processes.iter().filter(|process| {
                    is_there(process) && (is_own || family.contains(&process.id))
                });
            left.extend(its.map(|process| of(name, process)));
        }
        Some(left)
    }

    /// How much each has grown lately; one that is not named has not.
    pub(super) fn set_growth(&self, grown: &BTreeMap<Arc<str>, u64>, counters: &mut Counters) {
        for (name, (_, cells)) in &self.lives {
            cells.set_growth(grown.get(name).copied().unwrap_or(0), counters);
        }
    }

    /// Whether any is on its way to be ready.
    pub(super) fn is_any_on_its_way(&self) -> bool {
        self.lives.values().any(|(life, _)| life.is_on_its_way())
    }

    /// Whether any takes a model in.
    pub(super) fn is_any_loading(&self) -> bool {
        let loads = |life: &Life| life.phase() == EnginePhase::Loading && !life.is_stuck();
        self.lives.values().any(|(life, _)| loads(life))
    }
}

/// The server of an engine that was alive has ended.
fn begin_release(life: &Life, is_alone: bool, node: &NodeLevels) -> Option<Releasing> {
    let before = release::before(life, is_alone, node.baseline);
    Releasing::begin(life, before, orphans(life.seen()).collect())
}

fn report(turn: Option<LifeChange>, life: &Life, events: &mut Vec<Event>) {
    let Some(turn) = turn else { return };
    let (engine, pid, pod) = (life.name().to_string(), life.server().pid, life.seen().pod.clone());
    let kind = match turn {
        LifeChange::Phase { from, to, reason } => {
            ProgramEvent::EnginePhase { engine, from, to, reason, pid, pod }
        }
        LifeChange::Stuck { stuck, reason } => {
            ProgramEvent::EngineStuck { engine, stuck, reason, pid, pod }
        }
    };
    events.push(Event { kind: kind.into(), utc: Some(life.turned().utc), seq: None });
}
