//! Who took memory: what each owner shows, and to whom the rest is attributed.
//!
//! In order of trust: the driver's figures for each process; what every process shows of itself,
//! engines or not; what the kernel counts outside processes; who has the driver open. The rest is
//! attributed to an engine only if that engine alone has the driver open and none of the former
//! contradicts it. Only growth before the last full scan counts: later growth may be of any
//! process.

use std::time::Duration;

use super::figures::DriverGrowth;
use super::{Brake, CLEARLY, OwnMemory, TICKS, Unreclaimable};
use crate::model::{
    AccountEntry, Basis, EnginePhase, EngineSeen, HiddenProcess, MemoryAccount, Owner, ProcessId,
    ProcessMemory,
};

/// A process that used less than this share of one core is idle: it takes nothing.
const IDLE_CORES: u64 = 20;

/// Processes that an account names one by one.
const MOST_NAMED: usize = 8;

/// Owners of less growth are not named.
const LEAST_NAMED: u64 = 16 << 20;

/// How much an engine has grown, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct EngineGrowth<'a> {
    pub(super) seen: &'a EngineSeen,
    pub(super) phase: EnginePhase,
    anonymous: u64,
    shmem: u64,
    /// In huge pages, pipes and sockets that its processes show.
    outside: u64,
    /// It loads, or did within the window: a ready engine may have taken the missing memory before.
    pub(super) has_loaded: bool,
    /// It used less than a little processor time since it was first seen in the window.
    is_idle: bool,
    /// It used any processor time in the window, or had processes that have gone since.
    has_worked: bool,
    /// Up to the driver's last answer, by its figures.
    driver: u64,
    /// Growth that no process shows and that is attributed to it.
    attributed: u64,
    basis: Basis,
}

/// The growth of each owner within a window.
#[derive(Debug)]
pub(super) struct Account<'a> {
    window: Duration,
    /// What the node has taken.
    pub(super) taken: Unreclaimable,
    pub(super) engines: Vec<EngineGrowth<'a>>,
    /// Processes of no engine, each with what it has taken.
    others: Vec<ProcessMemory>,
    /// In sockets that no process was seen to have open.
    sockets: u64,
    /// By the driver's figures, processes of no engine.
    driver_other: u64,
    figures_age: Option<Duration>,
    scan_age: Option<Duration>,
}

impl EngineGrowth<'_> {
    /// What its processes show.
    fn own(&self) -> u64 {
        self.anonymous.saturating_add(self.shmem).saturating_add(self.outside)
    }

    /// With what no process shows and is attributed to it.
    pub(super) fn all(&self) -> u64 {
        self.own().saturating_add(self.attributed)
    }

    pub(super) fn is_ending(&self) -> bool {
        matches!(self.phase, EnginePhase::Stopping | EnginePhase::Gone)
    }

    /// Whether it ran while memory went, and was in a phase in which engines take memory.
    fn may_have_taken(&self) -> bool {
        let is_active = self.has_loaded || self.phase.is_up() && !self.is_idle;
        self.has_worked && is_active && !self.is_ending()
    }
}

impl<'a> Account<'a> {
    /// Of the last `window`, as far back as growth can be attributed.
    pub(super) fn of(brake: &'a Brake, now: Duration, window: Duration) -> Self {
        Self::since(brake, now, window, brake.since(now, window))
    }

    /// The account of the whole window, even if others were there.
    pub(super) fn of_all(&self, brake: &'a Brake, now: Duration) -> Self {
        let begin = now.saturating_sub(self.window);
        let scanned = brake.scans.iter().next().map_or(begin, |(at, _)| *at);
        Self::since(brake, now, self.window, begin.max(scanned))
    }

    fn since(brake: &'a Brake, now: Duration, window: Duration, since: Duration) -> Self {
        let mut account = Self {
            window,
            taken: brake.taken(since),
            engines: engines(brake, (since, now), window),
            others: Vec::new(),
            sockets: 0,
            driver_other: 0,
            figures_age: brake.figures.age(now),
            scan_age: brake.scans.last().map(|(at, _)| now.saturating_sub(*at)),
        };
        account.add_scan(brake, since);
        let rest = account.rest(brake, since);
        if rest >= brake.least() {
            account.attribute(brake, (since, now), rest);
        }
        account
    }

    /// What processes have taken by the scans of all of them, of which the first was before the
    /// window.
    fn add_scan(&mut self, brake: &Brake, since: Duration) {
        let Some((_, last)) = brake.scans.last() else { return };
        let Some((_, first)) = brake.scans.up_to(since) else { return };
        let mut in_sockets = 0_u64;
        for memory in &last.memory {
            let before = first.memory.iter().find(|before| before.id == memory.id);
            let grown = match before {
                Some(before) => memory.growth_since(before),
                None => memory.clone(),
            };
            in_sockets = in_sockets.saturating_add(grown.socket_bytes);
            match self.engine_of(|id| id == memory.id) {
                Some(place) => {
                    let engine = &mut self.engines[place];
                    let queued = grown.pipe_bytes.saturating_add(grown.socket_bytes);
                    engine.outside = engine.outside.saturating_add(queued);
                }
                None if grown.sum_bytes() > 0 => self.others.push(grown),
                None => {}
            }
        }
        let counted = last.socket_bytes.saturating_sub(first.socket_bytes);
        self.sockets = counted.saturating_sub(in_sockets);
    }

    /// The engine that has a process of which that holds.
    fn engine_of(&self, is_it: impl Fn(ProcessId) -> bool) -> Option<usize> {
        self.engines
            .iter()
            .position(|engine| engine.seen.processes.iter().any(|process| is_it(process.id)))
    }

    /// Memory taken outside all counters before the scan, still unattributed.
    fn rest(&self, brake: &Brake, since: Duration) -> u64 {
        let of_engines = self.engines.iter().map(|engine| engine.outside);
        let of_others = self.others.iter().map(ProcessMemory::outside_bytes);
        let shown = of_engines.chain(of_others).fold(self.sockets, u64::saturating_add);
        // What is swapped out may be in compressed memory (zram), which no counter names.
        brake.outside(since).saturating_sub(shown).saturating_sub(self.taken.swapped)
    }

    fn attribute(&mut self, brake: &Brake, (since, now): (Duration, Duration), rest: u64) {
        let figures = brake.figures.grown(since, now);
        let least = brake.least();
        if let Some(figures) = &figures {
            self.add_figures(figures, brake);
        }
        let by_engines = self.engines.iter().map(|engine| engine.driver);
        let by_engines = by_engines.fold(0, u64::saturating_add);
        let in_all = by_engines.saturating_add(self.driver_other);
        let Some(figures) = figures.filter(|_| in_all >= least) else {
            // Figures that show nothing of what was gone when they were given contradict.
            let contradicted = brake
                .figures
                .grown(since, now)
                .map_or(0, |figures| brake.outside_until(since, figures.answered));
            if contradicted < least.max(rest / CLEARLY) {
                self.attribute_to_only_user(brake, since, rest);
            }
            return;
        };
        if self.driver_other < least && self.attribute_to_only_user(brake, since, rest) {
            return;
        }
        for engine in &mut self.engines {
            // What goes beyond the pace of the figures is not in them.
            let most = figures.by_now(engine.driver).saturating_mul(CLEARLY);
            engine.attributed = share(rest, engine.driver, in_all).min(most);
            engine.basis = Basis::DriverFigures;
        }
        let most = figures.by_now(self.driver_other).saturating_mul(CLEARLY);
        self.driver_other = share(rest, self.driver_other, in_all).min(most);
    }

    fn add_figures(&mut self, figures: &DriverGrowth, brake: &Brake) {
        for (pid, grown) in &figures.by_process {
            let sum = match self.engine_of(|id| id.pid == *pid) {
                Some(place) => &mut self.engines[place].driver,
                None if brake.figures.askers.contains(pid) => continue,
                None => &mut self.driver_other,
            };
            *sum = sum.saturating_add(*grown);
        }
    }

    /// Attributes it to the engine that alone has the driver open, if there is one that ran.
    fn attribute_to_only_user(&mut self, brake: &Brake, since: Duration, rest: u64) -> bool {
        let Some((_, scan)) = brake.scans.last().filter(|(_, scan)| scan.is_whole) else {
            return false;
        };
        if !scan.hidden.iter().all(|hidden| is_idle(brake, since, hidden)) {
            return false;
        }
        let askers = &brake.figures.askers;
        let users = || scan.users.iter().filter(|user| !askers.contains(&user.pid));
        let Some(first) = users().next() else { return false };
        let Some(place) = self.engine_of(|id| id == *first) else { return false };
        let processes = &self.engines[place].seen.processes;
        let is_alone = users().all(|user| processes.iter().any(|own| own.id == *user));
        let engine = &mut self.engines[place];
        if !is_alone || !engine.may_have_taken() {
            return false;
        }
        let is_figured = engine.driver > rest / CLEARLY;
        engine.basis = if is_figured { Basis::DriverFigures } else { Basis::OnlyDriverUser };
        engine.attributed = rest;
        true
    }

    /// The growth of the largest owner except that engine.
    pub(super) fn most_without(&self, engine: &EngineSeen) -> u64 {
        let engines = self.engines.iter().filter(|own| own.seen.server != engine.server);
        engines.map(EngineGrowth::all).chain([self.most_of_others()]).max().unwrap_or(0)
    }

    /// What the largest owner that is no engine has taken.
    pub(super) fn most_of_others(&self) -> u64 {
        let others = self.others.iter().map(ProcessMemory::sum_bytes);
        others.chain([self.driver_other, self.sockets]).max().unwrap_or(0)
    }

    /// The account for the status and for decisions, without owners of little growth.
    pub(super) fn report(&self, now: Duration) -> MemoryAccount {
        let mut entries = Vec::new();
        let mut add = |owner: Owner, bytes: u64, basis: Basis| {
            if bytes >= LEAST_NAMED {
                entries.push(AccountEntry { owner, bytes, basis });
            }
        };
        for engine in &self.engines {
            let is_shown = engine.own() >= engine.attributed;
            let basis = if is_shown { Basis::Processes } else { engine.basis };
            add(Owner::Engine { name: engine.seen.name.clone() }, engine.all(), basis);
        }
        let is_listed = |memory: &&ProcessMemory| memory.id.pid != 0;
        let mut others: Vec<&ProcessMemory> = self.others.iter().filter(is_listed).collect();
        others.sort_by_key(|memory| (std::cmp::Reverse(memory.sum_bytes()), memory.id));
        for memory in others.into_iter().take(MOST_NAMED) {
            let owner = Owner::Process { id: memory.id, comm: memory.comm.clone() };
            add(owner, memory.sum_bytes(), Basis::Processes);
        }
        let sum = |of_engine: fn(&EngineGrowth<'_>) -> u64, of_other: fn(&ProcessMemory) -> u64| {
            let engines = self.engines.iter().map(of_engine);
            engines.chain(self.others.iter().map(of_other)).fold(0, u64::saturating_add)
        };
        let smaller = self.others.iter().find(|memory| memory.id.pid == 0);
        let smaller_outside = smaller.map_or(0, ProcessMemory::outside_bytes);
        let smaller_anonymous = smaller.map_or(0, |memory| memory.anon_bytes);
        let anonymous = sum(|engine| engine.anonymous, |other| other.anon_bytes);
        let anonymous = self.taken.anonymous.saturating_sub(anonymous - smaller_anonymous);
        let shmem = sum(|engine| engine.shmem, |other| other.shmem_bytes);
        let outside = sum(
            |engine| engine.outside.saturating_add(engine.attributed),
            ProcessMemory::outside_bytes,
        );
        let outside = outside.saturating_add(self.driver_other).saturating_add(self.sockets);
        let counted = Basis::KernelCounter;
        add(Owner::DriverOther, self.driver_other, Basis::DriverFigures);
        add(Owner::Sockets, self.sockets, counted);
        add(Owner::SmallerProcesses, anonymous.saturating_add(smaller_outside), counted);
        add(Owner::SharedMemory, self.taken.shmem.saturating_sub(shmem), counted);
        add(Owner::Kernel, self.taken.kernel, counted);
        add(Owner::Unattributed, self.taken.outside.saturating_sub(outside), Basis::Nothing);
        entries.sort_by(|one, other| {
            other.bytes.cmp(&one.bytes).then_with(|| one.owner.cmp(&other.owner))
        });
        MemoryAccount {
            at: now,
            window: self.window,
            grown_bytes: self.taken.sum(),
            entries,
            driver_figures_age: self.figures_age,
            scan_age: self.scan_age,
        }
    }
}

fn engines(
    brake: &Brake,
    (since, now): (Duration, Duration),
    window: Duration,
) -> Vec<EngineGrowth<'_>> {
    let latest = brake.latest.iter();
    let grown = latest.map(|(seen, phase)| {
        let started = Duration::from_secs(seen.server.start_ticks / TICKS);
        // A process that began within the window had nothing before. At boot no engine starts.
        let is_new = seen.server.start_ticks > 0 && now.saturating_sub(started) < window;
        grown(brake, (since, now), (seen, *phase), is_new)
    });
    grown.collect()
}

fn grown<'s>(
    brake: &Brake,
    (since, now): (Duration, Duration),
    (seen, phase): (&'s EngineSeen, EnginePhase),
    is_new: bool,
) -> EngineGrowth<'s> {
    let past: Vec<(Duration, OwnMemory)> = brake
        .engines
        .since(since)
        .filter_map(|(at, engines)| {
            let own = engines.iter().find(|own| own.server == seen.server);
            own.map(|own| (*at, *own))
        })
        .collect();
    let last = OwnMemory::of(seen, phase);
    let grown = |of: fn(&OwnMemory) -> u64| {
        let least = past.iter().map(|(_, own)| of(own)).min().unwrap_or(of(&last));
        of(&last).saturating_sub(if is_new { 0 } else { least })
    };
    let is_idle = past.first().is_none_or(|(first, before)| {
        rests(last.cpu_ms.saturating_sub(before.cpu_ms), now.saturating_sub(*first))
    });
    let has_worked =
        is_new && last.cpu_ms > 0 || past.iter().any(|(_, own)| own.cpu_ms != last.cpu_ms);
    EngineGrowth {
        seen,
        phase,
        anonymous: grown(|own| own.anonymous),
        shmem: grown(|own| own.shmem),
        outside: grown(|own| own.hugetlb),
        has_loaded: last.loads || past.iter().any(|(_, own)| own.loads),
        is_idle,
        has_worked,
        driver: 0,
        attributed: 0,
        basis: Basis::Processes,
    }
}

/// Whether a process used too little CPU time in the window to have taken memory. One that is new
/// had used none before.
fn is_idle(brake: &Brake, since: Duration, hidden: &HiddenProcess) -> bool {
    let (Some((from, first)), Some((until, _))) = (brake.scans.up_to(since), brake.scans.last())
    else {
        return false;
    };
    let before = first.hidden.iter().find(|before| before.id == hidden.id);
    let used_ms = hidden.cpu_ms.saturating_sub(before.map_or(0, |before| before.cpu_ms));
    rests(used_ms, until.saturating_sub(*from))
}

/// Whether so much CPU time is less than a little share of one core.
fn rests(used_ms: u64, elapsed: Duration) -> bool {
    u128::from(used_ms.saturating_mul(IDLE_CORES)) < elapsed.as_millis().max(1)
}

/// That part of `all` which `part` is of `whole`.
fn share(all: u64, part: u64, whole: u64) -> u64 {
    let share = u128::from(all) * u128::from(part) / u128::from(whole.max(1));
    u64::try_from(share).unwrap_or(u64::MAX)
}
