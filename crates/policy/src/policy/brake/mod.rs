//! Chooses the engine whose growth exhausts memory.
//!
//! Size does not choose: no process size includes memory of the driver, so the engine that takes
//! the machine down may look small. The account of growth over the last seconds counts, or over the
//! last minutes if memory falls slowly. In doubt no engine is chosen.

mod account;
mod declared;
mod figures;
mod history;
mod series;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use promql_rules::store::SeriesStore;

use super::Policy;
use crate::engines::facts;
use crate::model::{
    EnginePhase, EngineProcess, EngineReadings, EngineSeen, EngineTarget, Evidence, GateMemory,
    GpuReadings, HOST_POOL, HiddenProcess, HoldReason, Holder, HolderReadings, MemoryAccount,
    MemoryPools, Mode, Owner, ProcessId, ProcessMemory, Reading, SeriesKey,
};
use account::{Account, EngineGrowth};
pub(super) use declared::Declared;
use figures::Figures;
use history::{APART, CLOSE, History, LONG};
pub(super) use series::publish;

/// How far back growth is searched for: the shortest of these in which memory has really gone.
const WINDOWS: [Duration; 3] = [CLOSE, Duration::from_secs(60), LONG];

/// What was seen longer ago than this is not what happens now.
const FRESH: Duration = Duration::from_secs(3);

/// Less growth than this share of the machine, in the whole window, eats no machine.
const LEAST_SHARE: u64 = 256;

/// Of two owners one must have grown so many times as much as the other, or neither is chosen.
const CLEARLY: u64 = 2;

/// Engines whose growth a decision names.
const MOST_NAMED: usize = 8;

/// All processes are scanned when so large a share of what is available has been taken since that
/// was last done.
const UNSEEN_SHARE: u64 = 4;

/// Clock ticks a second in `/proc`, on every architecture.
const TICKS: u64 = 100;

/// Memory of the host's pool that cannot be reclaimed, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Unreclaimable {
    /// In no counter of the kernel, and huge pages in use: what drivers and processes take.
    outside: u64,
    /// Shared memory.
    shmem: u64,
    /// Anonymous memory.
    anonymous: u64,
    /// Unreclaimable slab, page tables, vmalloc and unused huge pages.
    kernel: u64,
    /// In swap, which is no memory of this node, but may be in compressed memory.
    swapped: u64,
}

/// What one engine's processes show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OwnMemory {
    server: ProcessId,
    loads: bool,
    anonymous: u64,
    shmem: u64,
    hugetlb: u64,
    cpu_ms: u64,
}

/// What a scan of all processes has found.
#[derive(Debug, Default)]
struct ProcessScan {
    memory: Vec<ProcessMemory>,
    /// The memory of sockets, as the kernel counts it.
    socket_bytes: u64,
    /// Processes that have the driver open.
    users: Vec<ProcessId>,
    /// Processes that may have it open as well, since this program may not read them, with their
    /// CPU time.
    hidden: Vec<HiddenProcess>,
    /// Whether no process was left out.
    is_whole: bool,
}

/// The coverage of a sample of engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// All that there are.
    All,
    /// Those known before.
    Known,
    /// Not all of them: there are too many.
    Cut,
}

/// Samples of node, engines and other processes of the last minutes.
#[derive(Debug, Default)]
pub(super) struct Brake {
    total: u64,
    available: Option<u64>,
    node: History<Unreclaimable>,
    engines: History<Vec<OwnMemory>>,
    scans: History<ProcessScan>,
    figures: Figures,
    latest: Vec<(EngineSeen, EnginePhase)>,
    /// When engines were last searched for among all processes, and what was taken by then.
    all_seen: Option<(Duration, Unreclaimable)>,
    /// The same of the last scan of all processes for what they have.
    scanned: Option<(Duration, Unreclaimable)>,
    is_cut: bool,
    account: Arc<MemoryAccount>,
    /// Engines that this program starts again when they have ended, and the mode in which it does.
    restarted: BTreeMap<Arc<str>, Mode>,
}

/// The present value of a series without labels, in bytes.
pub(super) fn present(name: &str, store: &SeriesStore) -> Option<u64> {
    let (ids, _) = store.named(name);
    bytes(ids.first().and_then(|id| store.latest(*id).value())?)
}

fn bytes(value: f64) -> Option<u64> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes, from 0 on")]
    value.is_finite().then(|| value.max(0.0) as u64)
}

impl Scope {
    /// How much of the processes these readings cover.
    pub(super) fn of(readings: &EngineReadings) -> Self {
        match (readings.is_cut, readings.is_partial) {
            (true, _) => Self::Cut,
            (false, true) => Self::Known,
            (false, false) => Self::All,
        }
    }
}

impl Unreclaimable {
    /// All that is this node's memory.
    fn sum(self) -> u64 {
        [self.shmem, self.anonymous, self.kernel]
            .into_iter()
            .fold(self.outside, u64::saturating_add)
    }

    /// As last measured; `None` where unknown. Counters that exist for the whole machine only are
    /// taken to be the CPUs' memory.
    fn of(host: &GateMemory, store: &SeriesStore) -> Option<Self> {
        let unaccounted = host.unaccounted.value()?;
        // A kernel without these has none of it.
        let or_none = |name: &str| present(name, store).unwrap_or(0);
        let slab = store.latest_of("uma_memory_slab_bytes", &[("state", "unreclaimable")]);
        let slab = slab.value().and_then(bytes).unwrap_or(0);
        let free_huge = store.latest_of("uma_huge_pages", &[("state", "free")]).value();
        let free_huge = free_huge.and_then(bytes).unwrap_or(0);
        let free_huge = free_huge.saturating_mul(or_none("uma_memory_huge_page_size_bytes"));
        let huge = or_none("uma_memory_hugetlb_bytes");
        let swap = or_none("uma_swap_total_bytes").saturating_sub(or_none("uma_swap_free_bytes"));
        Some(Self {
            outside: unaccounted.saturating_add(huge.saturating_sub(free_huge)),
            shmem: host.shmem.value()?,
            anonymous: present("uma_memory_anonymous_bytes", store)?,
            kernel: [
                or_none("uma_memory_page_tables_bytes"),
                or_none("uma_memory_vmalloc_used_bytes"),
                free_huge.min(huge),
            ]
            .into_iter()
            .fold(slab, u64::saturating_add),
            swapped: swap,
        })
    }
}

impl ProcessScan {
    fn of(readings: &HolderReadings) -> Self {
        let users = readings.holders.iter().filter(|holder| holder.uses_driver());
        Self {
            memory: readings.memory.clone(),
            socket_bytes: readings.socket_bytes.value().unwrap_or(0),
            users: users.map(|holder: &Holder| holder.id).collect(),
            hidden: readings.hidden.clone(),
            is_whole: readings.unseen as usize == readings.hidden.len(),
        }
    }
}

impl Brake {
    /// Takes a sample of the CPUs' memory.
    pub(super) fn measure(
        &mut self,
        at: Duration,
        store: &SeriesStore,
        pools: Option<&MemoryPools>,
    ) {
        let host = pools.and_then(|pools| pools.pool(HOST_POOL));
        self.available = host.and_then(|host| host.figures.available.value());
        let total = host.and_then(|host| host.memory.total.value());
        let taken = host.and_then(|host| Unreclaimable::of(&host.memory, store));
        if let (Some(total), Some(taken)) = (total, taken) {
            self.measured(at, total, taken);
        }
    }

    fn measured(&mut self, at: Duration, total: u64, taken: Unreclaimable) {
        self.total = total;
        self.node.push(at, taken);
    }

    /// Takes a sample of the engines, each with its phase.
    pub(super) fn take_engines(
        &mut self,
        at: Duration,
        engines: impl Iterator<Item = (EngineSeen, EnginePhase)>,
        scope: Scope,
    ) {
        self.latest = engines.collect();
        self.is_cut = scope == Scope::Cut;
        if scope == Scope::All {
            self.all_seen = self.taken_by(at);
        }
        let own = self.latest.iter().map(|(seen, phase)| OwnMemory::of(seen, *phase));
        self.engines.push(at, own.collect());
    }

    /// Takes a scan of all processes.
    pub(super) fn scan(&mut self, readings: &HolderReadings) {
        if readings.error.is_none() {
            self.scanned(readings.read_at, ProcessScan::of(readings));
        }
    }

    fn scanned(&mut self, at: Duration, scan: ProcessScan) {
        self.scanned = self.taken_by(at);
        self.scans.push(at, scan);
    }

    /// Takes the response of the driver, or its failure.
    pub(super) fn take_figures(&mut self, readings: &GpuReadings) {
        self.figures.take(readings);
    }

    /// The last sample before then: later growth may be of a process that started afterwards.
    fn taken_by(&self, at: Duration) -> Option<(Duration, Unreclaimable)> {
        self.node.up_to(at).map(|(_, taken)| (at, *taken))
    }

    /// Samples a declared world: its engines, its other processes and the figures of its driver.
    pub(super) fn rehearse(&mut self, at: Duration, declared: &mut Declared, store: &SeriesStore) {
        let engines = declared.sample(at, store);
        self.scanned(at, declared::scan(&engines, store));
        if let Some(amounts) = declared::figures(&engines, store) {
            self.figures.answered(at, amounts);
        }
        self.take_engines(at, engines.into_iter(), Scope::All);
    }

    /// An engine that a rule test declares by its series, as a target while it is up.
    pub(super) fn declared_up(&self, name: &str) -> Option<EngineTarget> {
        let (seen, _) = self.latest.iter().find(|(seen, phase)| {
            let is_declared = *seen.found_by == *declared::FOUND_BY;
            *seen.name == *name && phase.is_up() && is_declared
        })?;
        facts(seen.kind).can_empty_cache().then(|| EngineTarget::from(seen))
    }

    /// Takes which engines this program starts again when they have ended.
    pub(super) fn take_restarted(&mut self, mode: impl Fn(&EngineSeen) -> Option<Mode>) {
        let modes = self.latest.iter();
        let modes = modes.filter_map(|(seen, _)| Some((Arc::clone(&seen.name), mode(seen)?)));
        self.restarted = modes.collect();
    }

    /// An engine that is up and is started again after it was stopped, or why it is not stopped.
    pub(super) fn stoppable(&self, name: &str, mode: Mode) -> Result<EngineTarget, HoldReason> {
        let is_it =
            |(seen, phase): &&(EngineSeen, EnginePhase)| *seen.name == *name && phase.is_up();
        let (seen, _) = self.latest.iter().find(is_it).ok_or(HoldReason::NoTarget)?;
        match self.restarted.get(name) {
            Some(restarts) if mode == Mode::Observe || *restarts == Mode::Enforce => {
                Ok(EngineTarget::from(seen))
            }
            _ => Err(HoldReason::NotStartedAgain),
        }
    }

    /// The engine whose growth eats the memory, or why none is chosen.
    pub(super) fn choose(&self, now: Duration) -> Result<EngineTarget, HoldReason> {
        let is_fresh = |at: Option<Duration>| at.is_some_and(|at| now.saturating_sub(at) <= FRESH);
        let take_engines = self.engines.last().map(|(at, _)| *at);
        if take_engines.is_none() || self.latest.is_empty() {
            return Err(HoldReason::NoTarget);
        }
        if self.is_cut || !is_fresh(take_engines) || !is_fresh(self.node.last().map(|(at, _)| *at))
        {
            return Err(HoldReason::UnclearTarget);
        }
        let account = self.decisive(now).ok_or(HoldReason::UnclearTarget)?;
        let eater = clear_eater(&account, self.least()).ok_or(HoldReason::UnclearTarget)?;
        // If a process has just ended, growth is attributed only since then. An engine with more
        // growth before that is a candidate all the same.
        let whole = account.of_all(self, now).most_without(eater.seen);
        if whole > account.most_without(eater.seen).max(eater.all()) {
            return Err(HoldReason::UnclearTarget);
        }
        Ok(EngineTarget::from(eater.seen))
    }

    /// The account of the shortest window in which so much has gone that it matters.
    fn decisive(&self, now: Duration) -> Option<Account<'_>> {
        WINDOWS.into_iter().find_map(|window| {
            let is_enough = self.taken(self.since(now, window)).sum() >= self.least();
            is_enough.then(|| Account::of(self, now, window))
        })
    }

    /// Draws up the account of the last ten seconds; how much each engine has grown, by name.
    pub(super) fn report(&mut self, now: Duration) -> BTreeMap<Arc<str>, u64> {
        let account = Account::of(self, now, CLOSE);
        let engines = account.engines.iter();
        let grown = engines.map(|engine| (Arc::clone(&engine.seen.name), engine.all())).collect();
        self.account = Arc::new(account.report(now));
        grown
    }

    /// The last reported account of the last ten seconds.
    pub(super) fn account(&self) -> &Arc<MemoryAccount> {
        &self.account
    }

    /// What processes of no engine have at the last scan, by kind.
    pub(super) fn others(&self) -> Option<(ProcessMemory, u64)> {
        let (_, scan) = self.scans.last()?;
        let is_engines = |id: ProcessId| {
            let mut processes = self.latest.iter().flat_map(|(seen, _)| &seen.processes);
            processes.any(|process| process.id == id)
        };
        let mut sum = ProcessMemory::default();
        for memory in scan.memory.iter().filter(|memory| !is_engines(memory.id)) {
            sum.add(memory);
        }
        Some((sum, scan.socket_bytes))
    }

    /// What the choice rests on: how much each engine and everybody else has taken, and how old
    /// that is.
    pub(super) fn evidence(&self, now: Duration) -> Vec<Evidence> {
        let account = self.decisive(now).unwrap_or_else(|| Account::of(self, now, CLOSE));
        let report = account.report(now);
        let engines = account.engines.iter().take(MOST_NAMED);
        let mut evidence: Vec<Evidence> = engines
            .map(|engine| {
                let labels = [("engine", &*engine.seen.name)];
                shown("uma_engine_growth_bytes", &labels, engine.all() as f64)
            })
            .collect();
        let others = Owner::LABELS.into_iter().filter(|label| *label != "engines");
        evidence.extend(others.filter_map(|label| {
            let bytes = Some(report.of_label(label)).filter(|bytes| *bytes > 0)?;
            Some(shown("uma_memory_growth_bytes", &[("owner", label)], bytes as f64))
        }));
        let ages = [("driver", report.driver_figures_age), ("processes", report.scan_age)];
        evidence.extend(ages.into_iter().filter_map(|(source, age)| {
            let labels = [("source", source)];
            Some(shown("uma_memory_growth_evidence_age_seconds", &labels, age?.as_secs_f64()))
        }));
        evidence
    }

    /// Whether so much has been taken since all processes were last scanned that it should be done
    /// now.
    fn needs_sample(&self, now: Duration) -> bool {
        let Some((_, last)) = self.node.last() else { return false };
        let (Some(all_seen), Some(available)) = (self.all_seen, self.available) else {
            return false;
        };
        let (at, seen) = match self.scanned {
            Some(scanned) if scanned.0 < all_seen.0 => scanned,
            _ => all_seen,
        };
        let unseen = last.sum().saturating_sub(seen.sum());
        !self.latest.is_empty()
            && now.saturating_sub(at) >= APART
            && unseen >= self.least().max(available / UNSEEN_SHARE)
    }

    fn least(&self) -> u64 {
        (self.total / LEAST_SHARE).max(1)
    }

    /// Start of attribution: the first sample of engines after the last end of an engine, and not
    /// before the first full scan. Earlier growth may be of any process.
    fn since(&self, now: Duration, window: Duration) -> Duration {
        let begin = now.saturating_sub(window);
        let is_there =
            |own: &OwnMemory| self.latest.iter().any(|(seen, _)| seen.server == own.server);
        let samples = self.engines.iter().rev().take_while(|(at, _)| *at >= begin);
        let samples = samples.take_while(|(_, all)| all.iter().all(is_there));
        // Between distant samples an engine may have come and gone.
        let mut next = now;
        let samples = samples
            .map(|(at, _)| *at)
            .take_while(|at| std::mem::replace(&mut next, *at).saturating_sub(*at) <= CLOSE);
        let take_engines = samples.last().unwrap_or(now);
        let scanned = self.scans.iter().next().map_or(take_engines, |(at, _)| *at);
        take_engines.max(scanned)
    }

    /// What the node has taken since it had least.
    fn taken(&self, since: Duration) -> Unreclaimable {
        let grown = |of: fn(&Unreclaimable) -> u64| {
            let seen = self.node.since(since).map(|(_, taken)| of(taken));
            let last = self.node.last().map_or(0, |(_, taken)| of(taken));
            last.saturating_sub(seen.min().unwrap_or(last))
        };
        Unreclaimable {
            outside: grown(|taken| taken.outside),
            shmem: grown(|taken| taken.shmem),
            anonymous: grown(|taken| taken.anonymous),
            kernel: grown(|taken| taken.kernel),
            swapped: grown(|taken| taken.swapped),
        }
    }

    /// What has been taken outside of all counters until everybody was scanned.
    fn outside(&self, since: Duration) -> u64 {
        let (Some(seen), Some(scanned)) = (self.all_seen, self.scanned) else { return 0 };
        let (at, taken) = if seen.0 <= scanned.0 { seen } else { scanned };
        if at < since {
            return 0;
        }
        let outside = |(_, taken): &(Duration, Unreclaimable)| taken.outside;
        let least = self.node.since(since).map(outside).min().unwrap_or(taken.outside);
        // Memory returned since then may have been taken by another process.
        let kept = self.node.since(at).map(outside).fold(taken.outside, u64::min);
        kept.saturating_sub(least)
    }

    /// What has been taken outside of all counters until then.
    fn outside_until(&self, since: Duration, until: Duration) -> u64 {
        let outside = |(_, taken): &(Duration, Unreclaimable)| taken.outside;
        let least = self.node.since(since).map(outside).min().unwrap_or(0);
        let then = self.node.up_to(until).filter(|(at, _)| *at >= since).map_or(0, outside);
        then.saturating_sub(least)
    }
}

impl OwnMemory {
    fn of(seen: &EngineSeen, phase: EnginePhase) -> Self {
        let sum = |of: fn(&EngineProcess) -> Reading<u64>| {
            let known = seen.processes.iter().filter_map(|process| of(process).value());
            known.fold(0, u64::saturating_add)
        };
        // Each of them shows all of what they share.
        let shmem = seen.processes.iter().filter_map(|process| process.shmem_bytes.value()).max();
        Self {
            server: seen.server,
            loads: matches!(phase, EnginePhase::Starting | EnginePhase::Loading),
            anonymous: sum(|process| process.anon_bytes),
            shmem: shmem.unwrap_or(0),
            hugetlb: sum(|process| process.hugetlb_bytes),
            cpu_ms: seen.processes.iter().map(|process| process.cpu_ms).sum(),
        }
    }
}

impl Policy {
    /// Whether all processes should be scanned now, for so much memory has been taken since that
    /// was last done that it must be known who was there.
    pub fn needs_engine_sample(&self, now: Duration) -> bool {
        self.brake.needs_sample(now)
    }
}

fn shown(name: &str, labels: &[(&str, &str)], value: f64) -> Evidence {
    Evidence { series: SeriesKey::new(name, labels).to_string(), value: Reading::Value(value) }
}

/// The engine with most of the growth: loading before ready, and clearly more than every other
/// engine and process.
fn clear_eater<'e>(account: &'e Account<'_>, least: u64) -> Option<&'e EngineGrowth<'e>> {
    let (engines, total) = (&account.engines, account.taken.sum());
    let theirs = engines.iter().map(EngineGrowth::all).fold(0, u64::saturating_add);
    if total < least || theirs < total / 2 {
        return None;
    }
    let least = least.max(account.most_of_others().saturating_mul(CLEARLY));
    let eats = |engine: &EngineGrowth<'_>| engine.all() >= least && engine.all() >= total / 4;
    let of = |is_wanted: &dyn Fn(&EngineGrowth<'_>) -> bool| {
        let wanted = engines.iter().enumerate().filter(|(_, own)| is_wanted(own) && eats(own));
        wanted.map(|(place, own)| (place, own.all())).collect::<Vec<_>>()
    };
    let loading = of(&|engine| engine.has_loaded && !engine.is_ending());
    let eaters = if loading.is_empty() { of(&|engine| engine.phase.is_up()) } else { loading };
    clearly_most(eaters, least).map(|place| &engines[place])
}

/// The index of the largest, if no other comes near it.
fn clearly_most(mut have: Vec<(usize, u64)>, least: u64) -> Option<usize> {
    have.sort_by_key(|(place, amount)| (std::cmp::Reverse(*amount), *place));
    let (place, most) = *have.first()?;
    let second = have.get(1).map_or(0, |(_, amount)| *amount);
    (most >= least && most / CLEARLY >= second).then_some(place)
}
