//! Follows the life of each inference engine: starting → loading → ready → serving → stopping →
//! gone, each step with what shows it.
//!
//! What an engine says of itself counts most: its health endpoint. Where it cannot be asked, that
//! it listens; where that cannot be seen either, that it has stopped to read and to grow. On GB10
//! the GPU's own counters prove nothing, so that a loading engine is judged by its progress alone.

mod footprint;
mod life;
mod series;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::counters::Counters;
use super::status::EngineStatus;
use super::store::SeriesStore;
use crate::model::{
    EngineHealth, EnginePhase, EngineReadings, EngineSeen, EngineTarget, Event, KernelEvent, Moment,
};
use life::{Life, Turn};
use series::{EngineCells, NodeCells};

/// What is gone stays in sight for so long: rules and people may look for it.
const KEPT: Duration = Duration::from_secs(600);

/// Nobody has looked for so long: what was seen is no longer known to be so.
const LOOKED_WITHIN: Duration = Duration::from_secs(15);

/// Engines of which lives are kept, those that are gone included.
const MAX_LIVES: usize = 64;

/// All engines of the node.
#[derive(Debug)]
pub(super) struct Engines {
    lives: BTreeMap<Arc<str>, (Life, EngineCells)>,
    /// When somebody last looked, on the uptime clock.
    looked: Option<Duration>,
    node: NodeCells,
    statuses: Arc<[EngineStatus]>,
    has_changed: bool,
}

impl Engines {
    pub(super) fn new(counters: &mut Counters, store: &mut SeriesStore) -> Self {
        Self {
            lives: BTreeMap::new(),
            looked: None,
            node: NodeCells::new(counters, store),
            statuses: Arc::new([]),
            has_changed: false,
        }
    }

    /// Somebody has looked at the processes. `unaccounted` is the memory that no counter names.
    pub(super) fn look(
        &mut self,
        at: Moment,
        readings: &EngineReadings,
        unaccounted: Option<u64>,
        world: (&mut Counters, &mut SeriesStore),
        events: &mut Vec<Event>,
    ) {
        if self.looked.is_some_and(|looked| looked > readings.read_at) {
            return;
        }
        self.looked = Some(readings.read_at);
        self.has_changed = true;
        let (counters, store) = world;
        self.rename(readings, counters, store, events);
        for (name, (life, _)) in &mut self.lives {
            if !readings.engines.iter().any(|seen| seen.name == *name) {
                let turn = life.vanish(at);
                tell(turn, life, events);
            }
        }
        for seen in &readings.engines {
            self.take(at, readings.read_at, seen, unaccounted, (&mut *counters, store), events);
        }
        self.forget(at, counters);
    }

    /// Some are known by another name from now on: by what shows only while they start, by what
    /// Docker tells late, or by another configuration.
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
            cells.retire(counters);
            if let Some((_, cells)) = self.lives.remove(&seen.name) {
                cells.retire(counters);
            }
            let cells = EngineCells::new(seen, counters, store);
            cells.count_start(counters);
            tell(Some(life.rename(&seen.name)), &life, events);
            self.lives.insert(Arc::clone(&seen.name), (life, cells));
        }
    }

    fn take(
        &mut self,
        at: Moment,
        read_at: Duration,
        seen: &EngineSeen,
        unaccounted: Option<u64>,
        (counters, store): (&mut Counters, &mut SeriesStore),
        events: &mut Vec<Event>,
    ) {
        let is_full = self.lives.len() >= MAX_LIVES;
        let before = self.lives.get_mut(&seen.name);
        let from = match before {
            Some((life, _)) if life.is_of(seen) => {
                for turn in life.look(at, read_at, seen, unaccounted) {
                    tell(Some(turn), life, events);
                }
                return;
            }
            Some((life, cells)) => {
                let turn = life.vanish(at);
                tell(turn, life, events);
                cells.retire(counters);
                Some(EnginePhase::Gone)
            }
            None if is_full => return,
            None => None,
        };
        let cells = EngineCells::new(seen, counters, store);
        cells.count_start(counters);
        let mut life = Life::new(at, read_at, seen, unaccounted);
        let reason = format!("found by {}", seen.found_by);
        tell(Some(Turn::Phase { from, to: EnginePhase::Starting, reason }), &life, events);
        for turn in life.look(at, read_at, seen, unaccounted) {
            tell(Some(turn), &life, events);
        }
        self.lives.insert(Arc::clone(&seen.name), (life, cells));
    }

    /// Those that have been gone for long.
    fn forget(&mut self, at: Moment, counters: &mut Counters) {
        self.lives.retain(|_, (life, cells)| {
            let is_kept = !life.is_gone_since(at, KEPT);
            if !is_kept {
                cells.retire(counters);
            }
            is_kept
        });
    }

    /// One was asked for its health.
    pub(super) fn hear(&mut self, at: Moment, health: &EngineHealth, events: &mut Vec<Event>) {
        let Some((life, _)) = self.lives.get_mut(&health.engine) else { return };
        self.has_changed = true;
        for turn in life.hear(at, health) {
            tell(Some(turn), life, events);
        }
    }

    /// Brings the series up to date.
    pub(super) fn publish(&self, at: Moment, counters: &mut Counters) {
        let is_known =
            self.looked.is_some_and(|looked| at.uptime.saturating_sub(looked) <= LOOKED_WITHIN);
        let there = self.lives.values().filter(|(life, _)| !life.is_gone()).count();
        self.node.publish(there, self.looked.is_some(), is_known, counters);
        for (life, cells) in self.lives.values() {
            cells.publish(at, life, is_known, counters);
        }
    }

    /// A picture of all, by name; the same `Arc` while nothing changes.
    pub(super) fn statuses(&mut self) -> Arc<[EngineStatus]> {
        if std::mem::take(&mut self.has_changed) {
            self.statuses = self.lives.values().map(|(life, _)| life.status()).collect();
        }
        Arc::clone(&self.statuses)
    }

    /// One as a target, while it loads.
    pub(super) fn loading(&self, name: &str) -> Option<EngineTarget> {
        let (life, _) = self.lives.get(name)?;
        (life.phase() == EnginePhase::Loading).then(|| EngineTarget::from(life.seen()))
    }

    /// One as a target, while it is up and can be asked to give memory back.
    pub(super) fn askable(&self, name: &str) -> Option<EngineTarget> {
        let (life, _) = self.lives.get(name)?;
        let seen = life.seen();
        let can_be_asked = life.phase().is_up() && seen.health_url.is_some();
        (can_be_asked && seen.kind.can_empty_cache()).then(|| EngineTarget::from(seen))
    }

    /// Where the engine of that name is in its life.
    pub(super) fn phase(&self, name: &str) -> Option<EnginePhase> {
        self.lives.get(name).map(|(life, _)| life.phase())
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

fn tell(turn: Option<Turn>, life: &Life, events: &mut Vec<Event>) {
    let Some(turn) = turn else { return };
    let (engine, pid) = (life.name().to_string(), life.server().pid);
    let kind = match turn {
        Turn::Phase { from, to, reason } => {
            KernelEvent::EnginePhase { engine, from, to, reason, pid }
        }
        Turn::Stuck { stuck, reason } => KernelEvent::EngineStuck { engine, stuck, reason, pid },
    };
    events.push(Event { kind, utc: Some(life.turned().utc), seq: None });
}
