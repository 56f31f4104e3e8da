//! Which engine's growth eats the memory.
//!
//! Not the process with the largest size: what the driver takes is in nobody's size, so that a
//! large process may be anybody, and the engine that takes the machine down may look small. What
//! counts is growth over the last seconds: what an engine's processes show, and what no process
//! shows, which is laid to the engine that loads. Doubt means that nobody is chosen: of what no
//! process shows only that counts which was taken before somebody looked through all processes,
//! and after those had gone that were there before. The rest may be anybody's.

mod declared;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::Policy;
use super::store::SeriesStore;
use crate::model::{
    EnginePhase, EngineProcess, EngineReadings, EngineSeen, EngineTarget, Evidence, HoldReason,
    ProcessId, Reading, SeriesKey,
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

/// Somebody looks through all processes when so large a share of what is available has been taken
/// since that was last done.
const UNSEEN_SHARE: u64 = 4;

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
    loads: bool,
    anonymous: u64,
    shmem: u64,
    hugetlb: u64,
    /// Mapped files, and what was read: not taken for good, but a sign of who loads.
    reads: u64,
    cpu_ms: u64,
}

/// Whom a look at engines has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// All that there are.
    All,
    /// Those that were known before.
    Known,
    /// Not all of them: there are too many.
    Cut,
}

/// What was seen of node and engines in the last seconds.
#[derive(Debug, Default)]
pub(super) struct Brake {
    total: u64,
    available: Option<u64>,
    node: VecDeque<(Duration, Taken)>,
    engines: VecDeque<(Duration, Vec<Own>)>,
    latest: Vec<(EngineSeen, EnginePhase)>,
    /// When all processes were last looked through, and what was taken by then.
    all_seen: Option<(Duration, Taken)>,
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
    /// It loads, or has until a moment ago: who is ready may have taken what is missing before.
    has_loaded: bool,
    /// Used less than a little processor time since it was first seen in the window.
    is_idle: bool,
    /// Used any processor time in the window, or had processes that have gone since.
    has_worked: bool,
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

impl Scope {
    /// Of those that were told.
    pub(super) fn of(readings: &EngineReadings) -> Self {
        match (readings.is_cut, readings.is_partial) {
            (true, _) => Self::Cut,
            (false, true) => Self::Known,
            (false, false) => Self::All,
        }
    }
}

impl Taken {
    /// All of it.
    fn sum(self) -> u64 {
        self.outside.saturating_add(self.shmem).saturating_add(self.anonymous)
    }

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
        self.available = present("uma_memory_available_bytes", store);
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
        scope: Scope,
    ) {
        self.latest = engines.collect();
        self.is_cut = scope == Scope::Cut;
        if scope == Scope::All {
            // What was measured later may have been taken by somebody who began after the look.
            let before = self.node.iter().rev().find(|(measured, _)| *measured <= at);
            self.all_seen = before.map(|(_, taken)| (at, *taken));
        }
        push(
            &mut self.engines,
            at,
            self.latest.iter().map(|(seen, phase)| Own::of(seen, *phase)).collect(),
        );
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
        let total = self.taken(now).sum();
        let engines = self.grown(now);
        let chosen = clear_eater(&engines, total, self.least());
        chosen.map(|eater| EngineTarget::from(eater.seen)).ok_or(HoldReason::UnclearTarget)
    }

    /// How much each engine has grown, by name.
    pub(super) fn growth(&self, now: Duration) -> BTreeMap<Arc<str>, u64> {
        let grown = self.grown(now).into_iter();
        grown.map(|engine| (Arc::clone(&engine.seen.name), engine.all)).collect()
    }

    /// How much each engine has grown, of which the choice follows.
    pub(super) fn evidence(&self, now: Duration) -> impl Iterator<Item = Evidence> {
        let grown = self.grown(now);
        grown.into_iter().take(MOST_NAMED).map(|engine| engine.evidence())
    }

    /// Whether so much has been taken since all processes were last looked through that somebody
    /// should do so now.
    fn needs_a_look(&self, now: Duration) -> bool {
        let Some((_, last)) = self.node.back() else { return false };
        let (Some((at, seen)), Some(available)) = (self.all_seen, self.available) else {
            return false;
        };
        let unseen = last.sum().saturating_sub(seen.sum());
        !self.latest.is_empty()
            && now.saturating_sub(at) >= APART
            && unseen >= self.least().max(available / UNSEEN_SHARE)
    }

    fn least(&self) -> u64 {
        (self.total / LEAST_SHARE).max(1)
    }

    /// Since when growth is laid to engines: from the first look at them on, after those had gone
    /// that are there no longer. What was taken earlier may be anybody's.
    fn since(&self, now: Duration) -> Duration {
        let begin = now.saturating_sub(WINDOW);
        let is_there = |own: &Own| self.latest.iter().any(|(seen, _)| seen.server == own.server);
        let looks = self.engines.iter().rev().take_while(|(at, _)| *at >= begin);
        let looks = looks.take_while(|(_, all)| all.iter().all(is_there));
        looks.last().map_or(now, |(at, _)| *at)
    }

    /// What the node has taken since it had least.
    fn taken(&self, now: Duration) -> Taken {
        let since = self.since(now);
        let grown = |of: fn(&Taken) -> u64| {
            let seen = from(&self.node, since).map(|(_, taken)| of(taken));
            let last = self.node.back().map_or(0, |(_, taken)| of(taken));
            last.saturating_sub(seen.min().unwrap_or(last))
        };
        Taken {
            outside: grown(|taken| taken.outside),
            shmem: grown(|taken| taken.shmem),
            anonymous: grown(|taken| taken.anonymous),
        }
    }

    /// What has been taken outside of processes by those that were seen.
    fn outside(&self, since: Duration) -> u64 {
        let Some((at, seen)) = self.all_seen.filter(|(at, _)| *at >= since) else { return 0 };
        let outside = |(_, taken): &(Duration, Taken)| taken.outside;
        let least = from(&self.node, since).map(outside).min().unwrap_or(seen.outside);
        // What has been given back meanwhile may have been taken by somebody else.
        let kept = from(&self.node, at).map(outside).fold(seen.outside, u64::min);
        kept.saturating_sub(least)
    }

    /// How much each engine has grown, with what no process shows.
    fn grown(&self, now: Duration) -> Vec<Grown<'_>> {
        let since = self.since(now);
        let grown =
            self.latest.iter().map(|(seen, phase)| self.grown_engine((since, now), seen, *phase));
        let mut engines: Vec<Grown<'_>> = grown.collect();
        let shown = engines.iter().map(|engine| engine.hugetlb).fold(0, u64::saturating_add);
        let in_nobody = self.outside(since).saturating_sub(shown);
        if in_nobody >= self.least()
            && let Some(eater) = holder_of_what_nobody_shows(&engines, self.least())
        {
            engines[eater].all = engines[eater].all.saturating_add(in_nobody);
        }
        engines
    }

    fn grown_engine<'s>(
        &self,
        (since, now): (Duration, Duration),
        seen: &'s EngineSeen,
        phase: EnginePhase,
    ) -> Grown<'s> {
        let past: Vec<(Duration, Own)> = from(&self.engines, since)
            .filter_map(|(at, engines)| {
                let own = engines.iter().find(|own| own.server == seen.server);
                own.map(|own| (*at, *own))
            })
            .collect();
        let last = Own::of(seen, phase);
        let started = Duration::from_secs(seen.server.start_ticks / TICKS);
        // What was not there when the window began had nothing then. At boot nobody starts.
        let is_new = seen.server.start_ticks > 0 && now.saturating_sub(started) < WINDOW;
        let grown = |of: fn(&Own) -> u64| {
            let least = past.iter().map(|(_, own)| of(own)).min().unwrap_or(of(&last));
            of(&last).saturating_sub(if is_new { 0 } else { least })
        };
        let hugetlb = grown(|own| own.hugetlb);
        let own = grown(|own| own.anonymous)
            .saturating_add(grown(|own| own.shmem))
            .saturating_add(hugetlb);
        let is_idle = past.first().is_none_or(|(first, before)| {
            let elapsed_ms = milliseconds(now.saturating_sub(*first));
            let used_ms = last.cpu_ms.saturating_sub(before.cpu_ms);
            used_ms.saturating_mul(IDLE_CORES) < elapsed_ms.max(1)
        });
        let has_worked = past.iter().any(|(_, own)| own.cpu_ms != last.cpu_ms);
        let has_loaded = last.loads || past.iter().any(|(_, own)| own.loads);
        let reads = grown(|own| own.reads);
        Grown { seen, phase, own, hugetlb, reads, has_loaded, is_idle, has_worked, all: own }
    }
}

impl Own {
    fn of(seen: &EngineSeen, phase: EnginePhase) -> Self {
        let sum = |of: fn(&EngineProcess) -> Reading<u64>| {
            let known = seen.processes.iter().filter_map(|process| of(process).value());
            known.fold(0, u64::saturating_add)
        };
        Self {
            server: seen.server,
            loads: matches!(phase, EnginePhase::Starting | EnginePhase::Loading),
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

impl Policy {
    /// Whether all processes should be looked through now, for so much memory has been taken since
    /// that was last done that it must be known who was there.
    pub fn needs_a_look_at_engines(&self, now: Duration) -> bool {
        self.brake.needs_a_look(now)
    }
}

impl Grown<'_> {
    /// Whether what no process shows may be its. One that ends may have taken it until a moment
    /// ago, or a worker that it has left behind still does; but for one that hangs, and no longer
    /// works at all, nobody else is spared.
    fn may_have_taken(&self) -> bool {
        self.phase.is_up() || self.is_ending() && self.has_worked
    }

    fn is_ending(&self) -> bool {
        matches!(self.phase, EnginePhase::Stopping | EnginePhase::Gone)
    }

    fn evidence(&self) -> Evidence {
        let series = SeriesKey::new("uma_engine_growth_bytes", &[("engine", &self.seen.name)]);
        #[expect(clippy::cast_precision_loss, reason = "a series' value is an f64 everywhere")]
        let value = Reading::Value(self.all as f64);
        Evidence { series: series.to_string(), value }
    }
}

/// Who has taken what is in no process: the engine that loads, unless it shows nothing of that and
/// another one grows; of several the one that clearly reads and grows most; where none loads, the
/// only engine that is up, unless it is idle.
fn holder_of_what_nobody_shows(engines: &[Grown<'_>], least: u64) -> Option<usize> {
    let all = || engines.iter().enumerate();
    let loading: Vec<(usize, u64)> = all()
        .filter(|(_, engine)| engine.has_loaded)
        .map(|(place, engine)| (place, engine.own.saturating_add(engine.reads)))
        .collect();
    match loading.as_slice() {
        [] => {}
        [(only, shown)] => {
            let grows = |engine: &Grown<'_>| engine.may_have_taken() && engine.own >= least;
            let mut others = all().filter(|(_, engine)| !engine.has_loaded);
            let is_another = *shown < least && others.any(|(_, engine)| grows(engine));
            return (!is_another).then_some(*only);
        }
        several => return clearly_most(several.iter().copied(), least),
    }
    let mut others = all().filter(|(_, engine)| engine.may_have_taken());
    let (place, only) = others.next()?;
    if others.next().is_none() {
        return (!only.is_idle).then_some(place);
    }
    let others = all().filter(|(_, engine)| engine.may_have_taken());
    clearly_most(others.map(|(place, engine)| (place, engine.own)), least)
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
    let loading = of(&|engine| engine.has_loaded && !engine.is_ending());
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

fn from<T>(
    seen: &VecDeque<(Duration, T)>,
    since: Duration,
) -> impl Iterator<Item = &(Duration, T)> {
    seen.iter().filter(move |(at, _)| *at >= since)
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
