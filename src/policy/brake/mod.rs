//! Which engine's growth eats the memory.
//!
//! Not the process with the largest size: what the driver takes is in nobody's size, so that a
//! large process may be anybody, and the engine that takes the machine down may look small. What
//! counts is growth over the last seconds: what an engine's processes show, and what no process
//! shows, which is laid to the engine that loads. Doubt means that nobody is chosen.

mod declared;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::store::SeriesStore;
use crate::model::{
    EnginePhase, EngineProcess, EngineSeen, EngineTarget, Evidence, HoldReason, ProcessId, Reading,
    SeriesKey,
};

pub(super) use declared::Declared;

/// How far back growth is looked for. Collapses took 1.5 to 9 s, and an engine that waits for
/// memory which is not there has stopped growing a few seconds ago.
const WINDOW: Duration = Duration::from_secs(10);

/// Looks that are nearer to each other say nothing new; so many fit into the window.
const APART: Duration = Duration::from_millis(100);

/// What was seen longer ago than this is not what happens now.
const FRESH: Duration = Duration::from_secs(3);

/// Less growth than this share of the machine, in the whole window, eats no machine.
const LEAST_SHARE: u64 = 256;

/// An engine that is up and used less than this share of one core is idle: it takes nothing.
const IDLE_CORES: u64 = 20;

/// Of two engines one must have grown so many times as much as the other, or neither is chosen.
const CLEARLY: u64 = 2;

/// Engines whose growth a decision names.
const MOST_NAMED: usize = 8;

/// Clock ticks a second in `/proc`, on every architecture.
const TICKS: u64 = 100;

/// What the whole node has taken and cannot give back by itself, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Taken {
    /// In no counter of the kernel, and in huge page pools: what drivers take.
    outside: u64,
    /// Shared memory.
    shmem: u64,
    /// Anonymous memory.
    anonymous: u64,
}

/// What one engine's processes show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Own {
    server: ProcessId,
    anonymous: u64,
    shmem: u64,
    hugetlb: u64,
    /// Mapped files, and what was read: not taken for good, but a sign of who loads.
    reads: u64,
    cpu_ms: u64,
}

/// What was seen of node and engines in the last seconds.
#[derive(Debug, Default)]
pub(super) struct Brake {
    total: u64,
    node: VecDeque<(Duration, Taken)>,
    engines: VecDeque<(Duration, Vec<Own>)>,
    latest: Vec<(EngineSeen, EnginePhase)>,
    is_cut: bool,
}

/// How much an engine has grown.
#[derive(Clone, Copy, Debug)]
struct Grown<'a> {
    seen: &'a EngineSeen,
    phase: EnginePhase,
    /// As its processes show it.
    own: u64,
    hugetlb: u64,
    reads: u64,
    /// Used less than a little processor time since it was first seen in the window.
    is_idle: bool,
    /// With what no process shows and is laid to it.
    all: u64,
}

/// The present value of a series without labels, in bytes.
pub(super) fn present(name: &str, store: &SeriesStore) -> Option<u64> {
    let (ids, _) = store.named(name);
    let value = ids.first().and_then(|id| store.latest(*id).value())?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes, from 0 on")]
    value.is_finite().then(|| value.max(0.0) as u64)
}

impl Taken {
    /// As last measured; `None` where that cannot be told.
    fn of(store: &SeriesStore) -> Option<Self> {
        let unaccounted = present("uma_memory_unaccounted_bytes", store)?;
        // A kernel without huge page pools has none in them.
        let hugetlb = present("uma_memory_hugetlb_bytes", store).unwrap_or(0);
        Some(Self {
            outside: unaccounted.saturating_add(hugetlb),
            shmem: present("uma_memory_shmem_bytes", store)?,
            anonymous: present("uma_memory_anonymous_bytes", store)?,
        })
    }
}

impl Brake {
    /// Takes what is known of memory.
    pub(super) fn measure(&mut self, at: Duration, store: &SeriesStore) {
        let total = present("uma_memory_total_bytes", store);
        if let (Some(total), Some(taken)) = (total, Taken::of(store)) {
            self.measured(at, total, taken);
        }
    }

    fn measured(&mut self, at: Duration, total: u64, taken: Taken) {
        self.total = total;
        push(&mut self.node, at, taken);
    }

    /// Somebody has looked at the engines; each with its phase.
    pub(super) fn looked(
        &mut self,
        at: Duration,
        engines: impl Iterator<Item = (EngineSeen, EnginePhase)>,
        is_cut: bool,
    ) {
        self.latest = engines.collect();
        self.is_cut = is_cut;
        push(&mut self.engines, at, self.latest.iter().map(|(seen, _)| Own::of(seen)).collect());
    }

    /// An engine that a rule test declares by its series, as a target while it is up.
    pub(super) fn declared_up(&self, name: &str) -> Option<EngineTarget> {
        let (seen, _) = self.latest.iter().find(|(seen, phase)| {
            let is_declared = *seen.found_by == *declared::FOUND_BY;
            *seen.name == *name && phase.is_up() && is_declared
        })?;
        seen.kind.can_empty_cache().then(|| EngineTarget::from(seen))
    }

    /// The engine whose growth eats the memory, or why none is chosen.
    pub(super) fn choose(&self, now: Duration) -> Result<EngineTarget, HoldReason> {
        let is_fresh = |at: Option<Duration>| at.is_some_and(|at| now.saturating_sub(at) <= FRESH);
        let looked = self.engines.back().map(|(at, _)| *at);
        if looked.is_none() || self.latest.is_empty() {
            return Err(HoldReason::NoTarget);
        }
        if self.is_cut || !is_fresh(looked) || !is_fresh(self.node.back().map(|(at, _)| *at)) {
            return Err(HoldReason::UnclearTarget);
        }
        let taken = self.taken(now);
        let engines = self.grown(now, taken);
        let total = taken.outside.saturating_add(taken.shmem).saturating_add(taken.anonymous);
        let chosen = clear_eater(&engines, total, self.least());
        chosen.map(|eater| EngineTarget::from(eater.seen)).ok_or(HoldReason::UnclearTarget)
    }

    /// How much each engine has grown, by name.
    pub(super) fn growth(&self, now: Duration) -> BTreeMap<Arc<str>, u64> {
        let grown = self.grown(now, self.taken(now)).into_iter();
        grown.map(|engine| (Arc::clone(&engine.seen.name), engine.all)).collect()
    }

    /// How much each engine has grown, of which the choice follows.
    pub(super) fn evidence(&self, now: Duration) -> impl Iterator<Item = Evidence> {
        let grown = self.grown(now, self.taken(now));
        grown.into_iter().take(MOST_NAMED).map(|engine| engine.evidence())
    }

    fn least(&self) -> u64 {
        (self.total / LEAST_SHARE).max(1)
    }

    /// What the node has taken since it had least, within the window.
    fn taken(&self, now: Duration) -> Taken {
        let grown = |of: fn(&Taken) -> u64| {
            let seen = within(&self.node, now).map(|(_, taken)| of(taken));
            let last = self.node.back().map_or(0, |(_, taken)| of(taken));
            last.saturating_sub(seen.min().unwrap_or(last))
        };
        Taken {
            outside: grown(|taken| taken.outside),
            shmem: grown(|taken| taken.shmem),
            anonymous: grown(|taken| taken.anonymous),
        }
    }

    /// How much each engine has grown, with what no process shows.
    fn grown(&self, now: Duration, taken: Taken) -> Vec<Grown<'_>> {
        let grown = self.latest.iter().map(|(seen, phase)| self.grown_engine(now, seen, *phase));
        let mut engines: Vec<Grown<'_>> = grown.collect();
        let shown = engines.iter().map(|engine| engine.hugetlb).fold(0, u64::saturating_add);
        let in_nobody = taken.outside.saturating_sub(shown);
        if in_nobody >= self.least()
            && let Some(eater) = holder_of_what_nobody_shows(&engines, self.least())
        {
            engines[eater].all = engines[eater].all.saturating_add(in_nobody);
        }
        engines
    }

    fn grown_engine<'s>(
        &self,
        now: Duration,
        seen: &'s EngineSeen,
        phase: EnginePhase,
    ) -> Grown<'s> {
        let past: Vec<(Duration, Own)> = within(&self.engines, now)
            .filter_map(|(at, engines)| {
                let own = engines.iter().find(|own| own.server == seen.server);
                own.map(|own| (*at, *own))
            })
            .collect();
        let last = Own::of(seen);
        let started = Duration::from_secs(seen.server.start_ticks / TICKS);
        // What was not there when the window began had nothing then. At boot nobody starts.
        let is_new = seen.server.start_ticks > 0 && now.saturating_sub(started) < WINDOW;
        let since = |of: fn(&Own) -> u64| {
            let least = past.iter().map(|(_, own)| of(own)).min().unwrap_or(of(&last));
            of(&last).saturating_sub(if is_new { 0 } else { least })
        };
        let hugetlb = since(|own| own.hugetlb);
        let own = since(|own| own.anonymous)
            .saturating_add(since(|own| own.shmem))
            .saturating_add(hugetlb);
        let is_idle = past.first().is_none_or(|(first, before)| {
            let elapsed_ms = milliseconds(now.saturating_sub(*first));
            let used_ms = last.cpu_ms.saturating_sub(before.cpu_ms);
            used_ms.saturating_mul(IDLE_CORES) < elapsed_ms.max(1)
        });
        Grown { seen, phase, own, hugetlb, reads: since(|own| own.reads), is_idle, all: own }
    }
}

impl Own {
    fn of(seen: &EngineSeen) -> Self {
        let sum = |of: fn(&EngineProcess) -> Reading<u64>| {
            let known = seen.processes.iter().filter_map(|process| of(process).value());
            known.fold(0, u64::saturating_add)
        };
        Self {
            server: seen.server,
            anonymous: sum(|process| process.anon_bytes),
            // Each of them shows all of what they share.
            shmem: seen
                .processes
                .iter()
                .filter_map(|process| process.shmem_bytes.value())
                .max()
                .unwrap_or(0),
            hugetlb: sum(|process| process.hugetlb_bytes),
            reads: sum(|process| process.file_bytes)
                .saturating_add(sum(|process| process.read_bytes)),
            cpu_ms: seen.processes.iter().map(|process| process.cpu_ms).sum(),
        }
    }
}

impl Grown<'_> {
    fn loads(&self) -> bool {
        matches!(self.phase, EnginePhase::Starting | EnginePhase::Loading)
    }

    fn evidence(&self) -> Evidence {
        let series = SeriesKey::new("uma_engine_growth_bytes", &[("engine", &self.seen.name)]);
        #[expect(clippy::cast_precision_loss, reason = "a series' value is an f64 everywhere")]
        let value = Reading::Value(self.all as f64);
        Evidence { series: series.to_string(), value }
    }
}

/// Who has taken what is in no process: the engine that loads; of several the one that clearly
/// reads and grows most; where none loads, the only engine that is up, unless it is idle.
fn holder_of_what_nobody_shows(engines: &[Grown<'_>], least: u64) -> Option<usize> {
    let all = || engines.iter().enumerate();
    let loading: Vec<(usize, u64)> = all()
        .filter(|(_, engine)| engine.loads())
        .map(|(place, engine)| (place, engine.own.saturating_add(engine.reads)))
        .collect();
    match loading.as_slice() {
        [] => {}
        [(only, _)] => return Some(*only),
        several => return clearly_most(several.iter().copied(), least),
    }
    let mut up = all().filter(|(_, engine)| engine.phase.is_up());
    let (place, only) = up.next()?;
    if up.next().is_none() {
        return (!only.is_idle).then_some(place);
    }
    let up = all().filter(|(_, engine)| engine.phase.is_up());
    clearly_most(up.map(|(place, engine)| (place, engine.own)), least)
}

/// The engine that has eaten what was eaten: loading before up, and clearly more than any other.
fn clear_eater<'e>(engines: &'e [Grown<'_>], total: u64, least: u64) -> Option<&'e Grown<'e>> {
    let theirs = engines.iter().map(|engine| engine.all).fold(0, u64::saturating_add);
    if total < least || theirs < total / 2 {
        return None;
    }
    let eats = |engine: &Grown<'_>| engine.all >= least && engine.all >= total / 4;
    let of = |is_wanted: &dyn Fn(&Grown<'_>) -> bool| {
        let wanted = engines.iter().enumerate().filter(|(_, own)| is_wanted(own) && eats(own));
        wanted.map(|(place, own)| (place, own.all)).collect::<Vec<_>>()
    };
    let loading = of(&|engine| engine.loads());
    let eaters = if loading.is_empty() { of(&|engine| engine.phase.is_up()) } else { loading };
    clearly_most(eaters.into_iter(), least).map(|place| &engines[place])
}

/// The place of the one that has most, if nobody comes near it.
fn clearly_most(have: impl Iterator<Item = (usize, u64)>, least: u64) -> Option<usize> {
    let mut have: Vec<(usize, u64)> = have.collect();
    have.sort_by_key(|(place, amount)| (std::cmp::Reverse(*amount), *place));
    let (place, most) = *have.first()?;
    let second = have.get(1).map_or(0, |(_, amount)| *amount);
    (most >= least && most / CLEARLY >= second).then_some(place)
}

fn within<T>(
    seen: &VecDeque<(Duration, T)>,
    now: Duration,
) -> impl Iterator<Item = &(Duration, T)> {
    seen.iter().filter(move |(at, _)| now.saturating_sub(*at) <= WINDOW)
}

/// Keeps what the window needs, and the newest.
fn push<T>(seen: &mut VecDeque<(Duration, T)>, at: Duration, what: T) {
    while seen.front().is_some_and(|(first, _)| at.saturating_sub(*first) > WINDOW) {
        seen.pop_front();
    }
    // The one before stays the first of its time.
    let before = seen.len().checked_sub(2).and_then(|place| seen.get(place));
    if before.is_some_and(|(before, _)| at.saturating_sub(*before) < APART) {
        seen.pop_back();
    }
    seen.push_back((at, what));
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
