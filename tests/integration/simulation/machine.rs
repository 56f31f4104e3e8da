//! A machine that reacts: engines load, serve, leak and die, files fill the page cache, the kernel
//! reclaims, swaps and kills, and drops, compactions and stops change it. It runs in beats, so that
//! a run with slow sampling has as many events per sample as a fast one.

use std::time::Duration;

use umawarden::model::{Action, EngineKind, EngineTarget};

use super::chance::Chance;
use super::engine::{Engine, HealthResponses, Phase, Supervised};
use super::kernel_ring::KernelRing;
use super::takers::{Taker, Way};

const PAGE: f64 = 4096.0;

/// Constant properties of the machine.
#[derive(Clone, Copy)]
pub struct Build {
    pub total: f64,
    pub swap: f64,
    pub beat: Duration,
    /// Few engines are started by hand, so that memory is left for deferred ones.
    pub is_calm: bool,
}

/// An engine's server has ended.
pub struct Death {
    /// Its container or unit.
    pub supervised: usize,
    pub cause: Cause,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cause {
    /// It has exited.
    Itself,
    /// The kernel has killed it.
    OutOfMemory,
    /// The brake has.
    Brake,
    /// A person wanted it to end.
    Wanted,
}

/// The counters of `/proc/vmstat`.
#[derive(Default)]
pub struct Counters {
    pub stalls: f64,
    pub scanned: f64,
    pub oom_kills: f64,
    pub swapped_out: f64,
}

pub struct Machine {
    pub build: Build,
    pub engines: Vec<Engine>,
    /// Takers of memory that are no engines.
    pub takers: Vec<Taker>,
    /// Deaths of engines in containers and units since the last call.
    pub deaths: Vec<Death>,
    others: f64,
    pub clean: f64,
    pub dirty: f64,
    pub swapped: f64,
    /// Share of the free memory that is in small pieces.
    pub pieces: f64,
    pub pressure: f64,
    pub counters: Counters,
    pub log: KernelRing,
    chance: Chance,
    next_pid: u32,
}

impl Machine {
    pub fn new(build: Build, chance: Chance) -> Self {
        let mut machine = Self {
            build,
            engines: Vec::new(),
            takers: Vec::new(),
            deaths: Vec::new(),
            others: 0.0,
            clean: 0.0,
            dirty: 0.0,
            swapped: 0.0,
            pieces: 0.0,
            pressure: 0.0,
            counters: Counters::default(),
            log: KernelRing::default(),
            chance,
            next_pid: 1000,
        };
        machine.boot();
        machine
    }

    /// Resets everything that does not survive a boot.
    pub fn boot(&mut self) {
        self.engines.clear();
        self.takers.clear();
        self.deaths.clear();
        self.others = self.build.total * 0.03;
        self.clean = self.build.total * 0.02;
        self.dirty = 0.0;
        self.swapped = 0.0;
        self.pieces = 0.05;
        self.pressure = 0.0;
        self.counters = Counters::default();
        self.log = KernelRing::default();
        self.log.write(Duration::ZERO, "Linux version 6.17.0-1008-nvidia".to_owned());
    }

    pub fn free(&self) -> f64 {
        (self.build.total - self.used()).max(0.0)
    }

    pub fn available(&self) -> f64 {
        self.free() + self.clean * 0.9
    }

    pub fn reserve(&self) -> f64 {
        self.build.total / 121.0
    }

    pub fn unaccounted(&self) -> f64 {
        let engines: f64 = self.engines.iter().map(|engine| engine.taken).sum();
        engines + self.taken(&[Way::Driver, Way::Pipes, Way::Sockets])
    }

    pub fn huge_pages(&self) -> f64 {
        self.taken(&[Way::HugePages])
    }

    fn taken(&self, ways: &[Way]) -> f64 {
        let takers = self.takers.iter().filter(|taker| ways.contains(&taker.way));
        takers.map(|taker| taker.taken).sum()
    }

    pub fn anonymous(&self) -> f64 {
        let of_engines: f64 = self.engines.iter().map(|engine| engine.anonymous).sum();
        self.others + of_engines + self.taken(&[Way::Anonymous])
    }

    fn used(&self) -> f64 {
        let taken = self.anonymous() + self.unaccounted() + self.huge_pages();
        taken + self.clean + self.dirty - self.swapped
    }

    /// Lets time pass.
    pub fn pass(&mut self, time: Duration, uptime: Duration) {
        let beats = time.as_secs_f64() / self.build.beat.as_secs_f64();
        if beats <= 0.0 {
            return;
        }
        self.come_and_go(beats, uptime);
        self.files(beats);
        self.engines(beats, uptime);
        self.jobs(beats, time, uptime);
        self.balance(uptime);
        self.engines.iter_mut().for_each(|engine| engine.remember(uptime, time));
        self.takers.iter_mut().for_each(|taker| taker.ledger.note(uptime, taker.taken));
        self.pieces = (self.pieces + self.chance.between(-0.02, 0.025) * beats).clamp(0.0, 1.0);
        self.chatter(beats, uptime);
    }

    fn come_and_go(&mut self, beats: f64, uptime: Duration) {
        let (by_hand, dies) = if self.build.is_calm { (0.001, 0.02) } else { (0.03, 0.008) };
        if self.engines.len() < 3 && self.chance.happens(by_hand, beats) {
            let goal = self.build.total * self.chance.between(0.1, 0.9);
            let number = self.chance.whole(0..=2);
            let name = format!("by-hand-{number}");
            if !self.engines.iter().any(|engine| *engine.name == *name) {
                self.begin(&name, None, goal, uptime);
            }
        }
        for engine in &mut self.engines {
            engine.phase = match engine.phase {
                Phase::Serving if self.chance.happens(0.01, beats) => Phase::Leaking,
                phase @ (Phase::Serving | Phase::Leaking) => {
                    if self.chance.happens(0.1, beats) {
                        engine.requests = self.chance.whole(0..=2);
                    }
                    phase
                }
                Phase::Orphaned if self.chance.happens(0.05, beats) => {
                    engine.anonymous = 0.0;
                    Phase::Dying
                }
                phase => phase,
            };
        }
        for number in (0..self.engines.len()).rev() {
            if self.engines[number].is_alive() && self.chance.happens(dies, beats) {
                let cause = if self.chance.once_in(4) { Cause::Wanted } else { Cause::Itself };
                self.end(number, cause);
            }
        }
        if self.chance.happens(0.002, beats) {
            let pid = self.next_pid;
            self.log.write(
                uptime,
                format!("INFO: task VLLM::EngineCor:{pid} blocked for more than 122 seconds."),
            );
        }
        if self.chance.happens(0.003, beats) {
            let xid = *self.chance.one_of(&[31, 43, 79, 119]);
            let text = format!("NVRM: Xid (PCI:000f:01:00): {xid}, pid=5, name=x, Ch 00000008");
            self.log.write(uptime, text);
        }
    }

    /// An engine starts.
    pub fn begin(
        &mut self,
        name: &str,
        supervised: Option<Supervised>,
        goal: f64,
        uptime: Duration,
    ) {
        let kind = *self.chance.one_of(&[EngineKind::Sglang, EngineKind::Vllm]);
        let pid = self.next_pid;
        self.next_pid += 2;
        let mut engine = Engine::new(name.into(), kind, pid, uptime, goal);
        engine.supervised = supervised;
        engine.anonymous = self.build.total * 0.01;
        engine.ledger.note(uptime, engine.holds());
        engine.answers = match self.chance.whole(0..=9) {
            0 => HealthResponses::Hangs,
            1 | 2 => HealthResponses::Nowhere,
            _ => HealthResponses::Yes,
        };
        self.engines.push(engine);
    }

    /// An engine's server ends; a worker may be left.
    fn end(&mut self, number: usize, cause: Cause) {
        let is_left = cause != Cause::Brake && self.chance.once_in(4);
        let engine = &mut self.engines[number];
        if engine.is_alive()
            && let Some(supervised) = &engine.supervised
        {
            self.deaths.push(Death { supervised: supervised.number, cause });
        }
        engine.phase = if is_left { Phase::Orphaned } else { Phase::Dying };
        engine.is_paused = false;
        if !is_left {
            engine.anonymous = 0.0;
        }
    }

    /// A person ends the engine in that container or unit.
    pub fn end_in(&mut self, number: usize) {
        let lives = |engine: &Engine| {
            engine.is_alive() && engine.supervised.as_ref().is_some_and(|own| own.number == number)
        };
        if let Some(number) = self.engines.iter().position(lives) {
            self.end(number, Cause::Wanted);
        }
    }

    /// Ends all processes of an engine, if they are still the same; returns whether it did.
    pub fn stop(&mut self, target: &EngineTarget, unless_free: Option<u64>) -> bool {
        if unless_free.is_some_and(|enough| self.free() >= enough as f64) {
            return false;
        }
        let is_its =
            |engine: &Engine| engine.is_there() && target.processes.contains(&engine.worker);
        let Some(number) = self.engines.iter().position(is_its) else { return false };
        self.end(number, Cause::Brake);
        true
    }

    /// The engine of that server.
    pub fn engine_of(&mut self, target: &EngineTarget) -> Option<&mut Engine> {
        let server = *target.processes.first()?;
        self.engines.iter_mut().find(|engine| engine.is_alive() && engine.server == server)
    }

    fn files(&mut self, beats: f64) {
        if self.chance.happens(0.02, beats) {
            self.clean += self.build.total * self.chance.between(0.05, 0.6);
        }
        if self.chance.happens(0.01, beats) {
            self.dirty += self.build.total * self.chance.between(0.02, 0.3);
        }
        let written = self.dirty * (0.1 * beats).min(1.0);
        self.dirty -= written;
        self.clean += written;
    }

    fn engines(&mut self, beats: f64, uptime: Duration) {
        let total = self.build.total;
        let is_short = self.free() < self.reserve() + total / 16.0;
        let mut failed = 0;
        for engine in &mut self.engines {
            match engine.phase {
                Phase::Loading => {
                    let step = total * self.chance.between(0.005, 0.08) * beats;
                    engine.taken = (engine.taken + step).min(engine.goal);
                    engine.read += step;
                    self.clean += step;
                    failed += if is_short { self.chance.whole(0..=12) } else { 0 };
                    if engine.taken >= engine.goal {
                        engine.phase = Phase::Serving;
                    }
                }
                Phase::Leaking => {
                    engine.taken += total * self.chance.between(0.0, 0.01) * beats;
                    engine.anonymous += total * 0.002 * beats;
                }
                Phase::Dying => engine.taken -= total * 0.2 * beats,
                Phase::Serving | Phase::Orphaned => {}
            }
        }
        self.engines.retain(|engine| engine.phase != Phase::Dying || engine.taken > 0.0);
        for _ in 0..failed {
            self.log.write(uptime, NO_MEMORY.to_owned());
        }
    }

    /// Takers that are no engines come, take memory and go.
    fn jobs(&mut self, beats: f64, time: Duration, uptime: Duration) {
        let total = self.build.total;
        if self.takers.len() < 4 && self.chance.happens(0.01, beats) {
            let pid = self.next_pid;
            self.next_pid += 2;
            self.takers.push(Taker::new(&mut self.chance, pid, uptime, total));
        }
        for taker in &mut self.takers {
            taker.take(total, beats, time);
        }
        if !self.takers.is_empty() && self.chance.happens(0.015, beats) {
            let gone = self.chance.whole(0..=self.takers.len() as u64 - 1) as usize;
            self.takers.remove(gone);
        }
    }

    /// The kernel reclaims: cache first, then swap, then it kills.
    fn balance(&mut self, uptime: Duration) {
        self.pressure *= 0.8;
        let low = self.reserve() * 1.25;
        let mut missing = low - (self.build.total - self.used());
        if missing <= 0.0 {
            return;
        }
        let reclaimed = missing.min(self.clean);
        self.clean -= reclaimed;
        missing -= reclaimed;
        self.counters.scanned += (reclaimed / PAGE).floor();
        self.counters.stalls += self.chance.whole(0..=50) as f64;
        self.pressure = (self.pressure + 0.1).min(1.0);
        let swapped = missing.min(self.build.swap - self.swapped).max(0.0);
        self.swapped += swapped;
        self.counters.swapped_out += (swapped / PAGE).floor();
        missing -= swapped;
        while missing > 0.0 && self.used() > self.build.total && !self.engines.is_empty() {
            missing -= self.kill(uptime);
        }
        if self.used() > self.build.total {
            self.pressure = 1.0;
            self.takers.clear();
            let over = (self.used() - self.build.total).max(0.0);
            self.others = (self.others - over).max(0.0);
        }
        self.swapped = self.swapped.min(self.others);
    }

    fn kill(&mut self, uptime: Duration) -> f64 {
        let victim = self.chance.whole(0..=self.engines.len() as u64 - 1) as usize;
        let anonymous = self.engines[victim].anonymous;
        self.end(victim, Cause::OutOfMemory);
        let engine = self.engines.remove(victim);
        self.counters.oom_kills += 1.0;
        self.pressure = 1.0;
        let pid = engine.worker.pid;
        for line in OOM_TRACE {
            self.log.write(uptime, line.replace("PID", &pid.to_string()));
            if self.chance.once_in(20) {
                break;
            }
        }
        if self.chance.once_in(5) {
            let text = format!("oom_reaper: unable to reap pid:{pid} (VLLM::EngineCor)");
            self.log.write(uptime, text);
        }
        engine.taken + anonymous
    }

    /// Usual lines of a log, and lines that only look like the kernel's.
    fn chatter(&mut self, beats: f64, uptime: Duration) {
        if self.chance.happens(0.2, beats) {
            self.log.write(uptime, "usb 1-1: new high-speed USB device number 7".to_owned());
        }
        if self.chance.happens(0.05, beats) {
            self.log.write_from(3, uptime, NO_MEMORY.to_owned());
        }
    }

    /// A driver that logs every attempt of a storm of them.
    pub fn burst(&mut self, uptime: Duration) {
        for _ in 0..self.chance.whole(1..=2500) {
            self.log.write(uptime, NO_MEMORY.to_owned());
        }
    }

    /// Executes it, if it has an effect this time.
    pub fn apply(&mut self, action: &Action) {
        if self.chance.once_in(4) {
            return;
        }
        match action {
            Action::DropCaches { sync, .. } => {
                if *sync {
                    self.clean += std::mem::take(&mut self.dirty);
                }
                self.clean *= self.chance.between(0.05, 0.6);
            }
            Action::Reclaim { bytes, .. } => self.clean = (self.clean - *bytes as f64).max(0.0),
            // Which engine reads which file is not modelled.
            Action::EvictCheckpoint { .. } => {}
            Action::EmptyCache { .. } => {
                for engine in self.engines.iter_mut().filter(|engine| engine.is_alive()) {
                    engine.taken *= 0.97;
                }
            }
            Action::CompactMemory => self.pieces *= self.chance.between(0.05, 0.9),
            // Files, engines and supervisors are simulated elsewhere.
            Action::SetSysctl { .. }
            | Action::ThrottleReadahead { .. }
            | Action::TaintNode { .. }
            | Action::CordonNode { .. }
            | Action::Undo { .. }
            | Action::StopEngine { .. }
            | Action::StartContainer { .. }
            | Action::StartUnit { .. }
            | Action::Reboot(_)
            | Action::Notify { .. } => {}
        }
    }
}

const NO_MEMORY: &str = "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory \
    [NV_ERR_NO_MEMORY] (0x00000051) returned from _memdescAllocInternal(pMemDesc) @ \
    mem_desc.c:1359";

const OOM_TRACE: [&str; 6] = [
    "VLLM::Worker_TP invoked oom-killer: gfp_mask=0x140dca(GFP_HIGHUSER_MOVABLE|__GFP_ZERO), \
     order=0, oom_score_adj=0",
    "Call trace:",
    " uvm_va_range_map_rm_allocation+0x1a0/0x8c0 [nvidia_uvm]",
    "Mem-Info:",
    "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,\
     task_memcg=/system.slice,task=VLLM::EngineCor,pid=PID,uid=0",
    "Out of memory: Killed process PID (VLLM::EngineCor) total-vm:120000000kB, \
     anon-rss:80000000kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:88kB oom_score_adj:0",
];
