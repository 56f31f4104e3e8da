//! A healthy machine through a week, as the series that rules read.
//!
//! Figures: a Spark has 121 GiB and starts engines of 70 GiB beside a full page cache; of a pair, a
//! node keeps 6 of 119 GiB; a capture of CUDA graphs dips to 4 to 6 GiB for seconds; 40 lines of
//! the driver within 5 s at a start, and about one a minute otherwise. A drop of caches frees them.

use std::time::Duration;

use umawarden::model::{Observation, Reading, SeriesKey};

pub const GIB: f64 = 1_073_741_824.0;

/// Start of a day's backup, in seconds after midnight, and how long it runs: 200 GB.
const BACKUP: f64 = 3.0 * 3_600.0;
const BACKUP_SECONDS: f64 = 400.0;

/// Parts of a start, in seconds after it.
const LOADS_AFTER: f64 = 10.0;
const LINES_AFTER: f64 = 60.0;
const LOADED_AFTER: f64 = 110.0;
const READY_AFTER: f64 = 120.0;
/// The engine before it ends so long before a start, and its memory returns within 4 s.
const ENDS_BEFORE: f64 = 6.0;

const DAY: f64 = 86_400.0;

/// When an NFS server is away, and when a program's work is stopped by an Xid, in days.
const ACCIDENTS: [f64; 2] = [2.2, 4.4];

/// What differs between machines. Sizes are in GiB.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// The CPUs' memory.
    pub total: f64,
    pub reserve: f64,
    /// Memory of processes and of the kernel.
    pub others: f64,
    /// What the engine takes of this memory.
    pub engine: f64,
    /// Available at the worst moment of a start.
    pub dip: f64,
    /// Starts of the engine, in hours after midnight.
    pub starts: &'static [f64],
    /// Whether GPUs have memory of their own.
    pub is_superchip: bool,
    /// What is evicted behind the readers of a load, in GiB a second; 0: it stays in the cache.
    pub evicts: f64,
    /// The share of time in which all tasks wait for memory during a backup.
    pub backup_pressure: f64,
}

/// The state that depends on what came before.
#[derive(Debug)]
pub struct Machine {
    pub kind: Kind,
    clean: f64,
    stalls: f64,
    scans: f64,
    lines: f64,
    /// Seconds in which all tasks waited for memory.
    waited: f64,
    at: f64,
}

/// A moment of the day's plan.
#[derive(Clone, Copy, Debug)]
struct Plan {
    phase: &'static str,
    /// Of the engine, in GiB.
    taken: f64,
    /// How fast page cache grows, in GiB a second.
    reads: f64,
    is_backup: bool,
    is_in_burst: bool,
}

impl Machine {
    pub fn new(kind: Kind) -> Self {
        let clean = kind.total;
        Self { kind, clean, stalls: 0.0, scans: 0.0, lines: 0.0, waited: 0.0, at: 0.0 }
    }

    /// Whether seconds count at that time.
    pub fn is_busy(&self, at: f64) -> bool {
        let of_day = at % DAY;
        let is_in = |from: f64, to: f64| (from..to).contains(&of_day);
        let of_start = |hour: &f64| {
            is_in(hour * 3_600.0 - ENDS_BEFORE - 2.0, hour * 3_600.0 + READY_AFTER + 20.0)
        };
        let is_accident = |accident: f64| (accident - 5.0..accident + 35.0).contains(&at);
        self.kind.starts.iter().any(of_start)
            || is_in(0.5 * DAY - 5.0, 0.5 * DAY + 35.0)
            || ACCIDENTS.iter().any(|day| is_accident(day * DAY))
    }

    /// Whether a backup runs, or has just ended.
    pub fn is_backed_up(&self, at: f64) -> bool {
        (BACKUP - 5.0..BACKUP + BACKUP_SECONDS + 30.0).contains(&(at % DAY))
    }

    /// Whether memory falls within a second.
    pub fn is_dipping(&self, at: f64) -> bool {
        let since = self.kind.starts.iter().map(|hour| at % DAY - hour * 3_600.0);
        since.into_iter().any(|since| (LOADED_AFTER..READY_AFTER).contains(&since))
    }

    pub fn is_loading(&self) -> bool {
        matches!(self.plan(self.at).phase, "starting" | "loading")
    }

    /// All caches are dropped; returns how much of the machine that was.
    pub fn drop_caches(&mut self) -> f64 {
        std::mem::take(&mut self.clean) / self.kind.total
    }

    fn plan(&self, at: f64) -> Plan {
        let of_day = at % DAY;
        let is_backup = (BACKUP..BACKUP + BACKUP_SECONDS).contains(&of_day);
        let serves = Plan {
            phase: "serving",
            taken: self.kind.engine,
            reads: if is_backup { 0.5 } else { 0.001 },
            is_backup,
            is_in_burst: false,
        };
        let since = |hour: &f64| of_day - hour * 3_600.0;
        let mut starts = self.kind.starts.iter().map(since);
        let is_about = |since: &f64| (-ENDS_BEFORE..READY_AFTER).contains(since);
        let Some(since) = starts.find(is_about) else { return serves };
        let engine = self.kind.engine;
        let weights = 0.75 * engine;
        match since {
            _ if since < 0.0 => {
                let left = (1.0 - (since + ENDS_BEFORE) / 4.0).max(0.0);
                Plan { phase: "stopping", taken: engine * left, ..serves }
            }
            _ if since < LOADS_AFTER => Plan { phase: "starting", taken: 0.0, ..serves },
            _ if since < LOADED_AFTER => Plan {
                phase: "loading",
                taken: weights * (since - LOADS_AFTER) / (LOADED_AFTER - LOADS_AFTER),
                reads: match self.kind.evicts {
                    0.0 => weights / (LOADED_AFTER - LOADS_AFTER),
                    evicts => -evicts,
                },
                is_in_burst: (LINES_AFTER..LINES_AFTER + 5.0).contains(&since),
                ..serves
            },
            _ => {
                // The KV cache, then the capture of CUDA graphs, which gives back what it takes.
                let rest = since - LOADED_AFTER;
                let grown = weights + (engine - weights) * (rest / 2.0).min(1.0);
                let most = self.kind.total - self.kind.others - self.kind.dip - engine;
                // 20 GiB a second, for three seconds, and back.
                let depth = (rest - 3.0).min(7.5 - rest).clamp(0.0, 1.5) / 1.5;
                let dip = most.max(0.0) * depth;
                Plan { phase: "loading", taken: grown + dip, ..serves }
            }
        }
    }

    /// Lets time pass until then.
    pub fn run_until(&mut self, at: f64) {
        let (plan, passed) = (self.plan(at), at - self.at);
        let kind = self.kind;
        let taken = if kind.is_superchip { 0.0 } else { plan.taken };
        let rest = kind.total - kind.others - taken;
        let floor = kind.reserve + kind.total / 200.0;
        let dirty = self.dirty(plan);
        self.clean = (self.clean + plan.reads * passed).clamp(0.1, (rest - floor - dirty).max(0.1));
        let is_reclaiming = plan.is_backup && self.clean + dirty + floor >= rest - 0.01;
        self.stalls += if is_reclaiming { 20.0 * passed } else { 0.01 * passed };
        self.scans += if is_reclaiming { 40_000.0 * passed } else { 0.0 };
        self.waited += self.pressure(plan) * passed;
        self.lines += if plan.is_in_burst { 8.0 * passed } else { passed / 60.0 };
        self.at = at;
    }

    fn pressure(&self, plan: Plan) -> f64 {
        if plan.is_backup { self.kind.backup_pressure } else { 0.0 }
    }

    fn dirty(&self, plan: Plan) -> f64 {
        let most = (self.kind.total - self.kind.others - plan.taken).max(0.0) / 5.0;
        if plan.is_backup { most.min(self.kind.total / 7.0) } else { 0.01 }
    }

    /// The pool `host`, in GiB: free, available, dirty and unaccounted memory.
    fn memory(&self, plan: Plan) -> [f64; 4] {
        let taken = if self.kind.is_superchip { 0.0 } else { plan.taken };
        let dirty = self.dirty(plan);
        let free = (self.kind.total - self.kind.others - taken - self.clean - dirty).max(0.1);
        let available = free + self.clean + dirty - 1.2 * self.kind.reserve;
        [free, available.max(0.0), dirty, taken + 1.1]
    }

    /// The series of memory and of the engine; `labels` distinguish nodes.
    pub fn observe(&self, labels: &[(&str, &str)], seen: &mut Vec<Observation>) {
        let plan = self.plan(self.at);
        let [free, available, dirty, unaccounted] = self.memory(plan);
        let kind = self.kind;
        let low = 1.2 * kind.reserve;
        let large = if free > kind.total / 8.0 { 0.7 } else { 0.1 };
        let holds = f64::from(!kind.is_superchip);
        let mut add = |name: &str, own: &[(&str, &str)], value: f64| {
            let mut all: Vec<(&str, &str)> = labels.iter().chain(own).copied().collect();
            all.sort_unstable();
            let series = SeriesKey::new(name, &all);
            seen.push(Observation::Sample { series, value: Reading::Value(value) });
        };
        let host = ("pool", "host");
        for (name, own, value) in [
            ("total", None, kind.total),
            ("free", None, free),
            ("available", None, available),
            ("obtainable", None, (free - low).max(0.0) + self.clean),
            ("reserve", None, kind.reserve),
            ("headroom", None, free - low),
            ("watermark", Some(("watermark", "low")), low),
            ("page_cache", Some(("state", "clean")), self.clean),
            ("page_cache", Some(("state", "dirty")), dirty),
            ("unaccounted", None, unaccounted),
            ("contiguous", Some(("block", "2MiB")), free * large),
            ("contiguous", Some(("block", "32MiB")), free * large * 0.8),
        ] {
            let own: Vec<_> = own.into_iter().chain([host]).collect();
            add(&format!("uma_pool_{name}_bytes"), &own, value * GIB);
        }
        add("uma_pool_holds_engines", &[host], holds);
        if kind.is_superchip {
            for (name, value) in [("total", 96.0), ("available", 96.0 - plan.taken)] {
                add(&format!("uma_pool_{name}_bytes"), &[("pool", "gpu0")], value * GIB);
            }
            add("uma_pool_unaccounted_bytes", &[("pool", "gpu0")], plan.taken * GIB);
            add("uma_pool_holds_engines", &[("pool", "gpu0")], 1.0);
        }
        for phase in ["starting", "loading", "serving", "stopping"] {
            let is_it = f64::from(plan.phase == phase);
            add("uma_engine_phase", &[("engine", "vllm"), ("phase", phase)], is_it);
        }
    }

    /// The series of the kernel, the driver and the program.
    pub fn observe_node(&self, seen: &mut Vec<Observation>) {
        let plan = self.plan(self.at);
        let [free, ..] = self.memory(plan);
        let mut add = |name: &str, own: &[(&str, &str)], value: f64| {
            let series = SeriesKey::new(name, own);
            seen.push(Observation::Sample { series, value: Reading::Value(value) });
        };
        add("uma_zone_free_bytes", &[("node", "0"), ("zone", "Normal")], free * GIB);
        add("uma_memory_shmem_bytes", &[], 2.0 * GIB);
        add("uma_memory_allocation_stalls_total", &[("zone", "normal")], self.stalls.floor());
        let direct = [("reclaimer", "direct")];
        add("uma_memory_reclaim_scanned_pages_total", &direct, self.scans.floor());
        let full = [("resource", "memory"), ("share", "full")];
        add("uma_pressure_stalled_seconds_total", &full, self.waited);
        let window = [full[0], full[1], ("window", "10s")];
        add("uma_pressure_ratio", &window, self.pressure(plan));
        // Idle pages go to swap and stay; a page that a backup displaced comes back now and then.
        add("uma_memory_refaulted_pages_total", &[("kind", "file")], (self.at * 5.0).floor());
        add("uma_swap_in_pages_total", &[], 1_000.0);
        add("uma_swap_out_pages_total", &[], (self.at / 3.0).floor());
        add("uma_swap_total_bytes", &[], 16.0 * GIB);
        add("uma_swap_free_bytes", &[], (14.0 - 0.1 * (self.at / DAY).floor()) * GIB);
        add("uma_kernel_events_total", &[("event", "nv_no_memory")], self.lines.floor());
        self.observe_accidents(&mut add);
        self.observe_numa(free, &mut add);
        add("uma_gpu_driver_responsive", &[], 1.0);
        add("uma_gpu_other_memory_bytes", &[("gpu", "0")], 0.6 * GIB);
        add("uma_gpu_orphan_memory_bytes", &[("gpu", "0")], 0.0);
        let of_engine = [("engine", "vllm"), ("gpu", "0")];
        add("uma_gpu_engine_memory_bytes", &of_engine, plan.taken * GIB);
        add("uma_engine_info", &[("engine", "vllm"), ("kind", "vllm")], 1.0);
        for name in ["uma_engine_stuck", "uma_engine_rank_lost"] {
            add(name, &[("engine", "vllm")], 0.0);
        }
        if plan.phase == "starting" {
            let held = [("engine", "vllm"), ("type", "shmem")];
            add("uma_engine_owned_bytes", &held, 0.4 * GIB);
            let orphans = [("engine", "vllm"), ("type", "orphans")];
            add("uma_engine_outstanding_bytes", &orphans, 0.0);
        }
        add("uma_engine_releases_total", &[("end", "returned")], 0.0);
        add("uma_huge_pages", &[("state", "free")], 0.0);
        add("uma_memory_huge_page_size_bytes", &[], 2_097_152.0);
        add("uma_event_last_timestamp_seconds", &[("event", "engine_died")], 0.0);
        add("uma_engine_load_floor_change_bytes", &[("engine", "vllm")], -0.2 * GIB);
        add("uma_restart_state", &[("restart", "vllm"), ("state", "running")], 1.0);
        add("uma_engine_evicting", &[("engine", "vllm")], f64::from(plan.phase == "loading"));
        add("uma_memory_verdict", &[("verdict", "in_use")], 1.0);
        add("uma_scrape_collector_success", &[("collector", "meminfo")], 1.0);
        add("uma_guard_rails_restored", &[], 1.0);
        add("uma_journal_up", &[], 1.0);
        add("uma_unclean_boots_total", &[], 0.0);
    }

    /// The CPUs' node, and that of a superchip's GPU.
    fn observe_numa(&self, free: f64, add: &mut impl FnMut(&str, &[(&str, &str)], f64)) {
        let gpu = self.kind.is_superchip.then_some(("1", 0.0, 96.0, 8.0, 0.0));
        let cpus = ("0", 72.0, self.kind.total, free, self.clean);
        for (node, count, total, free, clean) in [cpus].into_iter().chain(gpu) {
            add("uma_numa_cpus", &[("node", node)], count);
            for (kind, value) in [("total", total), ("free", free), ("clean_cache", clean)] {
                add("uma_numa_memory_bytes", &[("kind", kind), ("node", node)], value * GIB);
            }
            let low = [("node", node), ("watermark", "low")];
            add("uma_numa_watermark_bytes", &low, 1.2 * self.kind.reserve * GIB);
        }
    }

    /// What happens to healthy nodes, too: each noon a container at its own limit, and once in the
    /// week a program's Xid and an NFS server that is away.
    fn observe_accidents(&self, add: &mut impl FnMut(&str, &[(&str, &str)], f64)) {
        let noons = (self.at / DAY + 0.5).floor();
        let is_past = |day: f64| f64::from(self.at > day * DAY);
        add("uma_kernel_log_reader", &[("reader", "kmsg")], 1.0);
        add("uma_kernel_log_lost_records_total", &[], 0.0);
        add("uma_memory_oom_kills_total", &[], noons);
        add("uma_kernel_oom_kills_total", &[("bound", "cgroup")], noons);
        add("uma_kernel_oom_kills_total", &[("bound", "machine")], 0.0);
        add("uma_kernel_events_total", &[("event", "hung_task")], is_past(ACCIDENTS[0]));
        add("uma_kernel_xids_total", &[("class", "program")], is_past(ACCIDENTS[1]));
        add("uma_kernel_xids_total", &[("class", "device_lost")], 0.0);
        let dead = [("killer", "itself"), ("when", "in_service")];
        add("uma_engine_failures_total", &dead, 0.0);
    }
}

/// A time of the week.
pub fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}
