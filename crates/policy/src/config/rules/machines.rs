//! Machines as they may be: a condition that holds on each of them, or on a large one whatever it
//! does, holds always.
//!
//! Sizes are those of a DGX Spark, a GH200, two Jetsons and a PC. While a machine is busy, 40,000
//! pages a second are scanned, and all tasks wait a quarter of the time, as in reports of backups
//! and bad loads.

use std::collections::BTreeSet;
use std::sync::Arc;

use promql_rules::store::SeriesStore;
use promql_rules::{EvalTime, Reading, SeriesKey};

use crate::model::{EnginePhase, METRICS, MemoryState, Metric, MetricKind, Source};

const GIB: f64 = 1_073_741_824.0;

/// When samples are taken, in milliseconds before the end: far enough for ranges of an hour, and
/// close enough together for ranges of a second.
const SAMPLES_MS: [i32; 25] = [
    3_600_000, 1_800_000, 900_000, 600_000, 300_000, 120_000, 60_000, 30_000, 20_000, 10_000,
    5_000, 4_000, 3_000, 2_000, 1_000, 900, 800, 700, 600, 500, 400, 300, 200, 100, 0,
];

/// Between two machines' times: they cover all hours, days and months.
const APART_MS: i64 = ((17 * 24 + 5) * 60 + 7) * 60_000;

/// A time in 2026, after every sample.
const FIRST_UTC_MS: i64 = 1_767_225_600_000;

/// What differs between machines. Sizes are in GiB.
#[derive(Clone, Copy, Debug)]
struct MachineKind {
    total: f64,
    reserve: f64,
    /// Memory of processes and of the kernel.
    others: f64,
    has_driver: bool,
}

const KINDS: [MachineKind; 5] = [
    MachineKind { total: 121.0, reserve: 1.0, others: 6.0, has_driver: true },
    MachineKind { total: 480.0, reserve: 2.0, others: 20.0, has_driver: true },
    MachineKind { total: 61.0, reserve: 0.3, others: 4.0, has_driver: true },
    MachineKind { total: 7.4, reserve: 0.07, others: 1.5, has_driver: true },
    MachineKind { total: 24.0, reserve: 0.07, others: 0.5, has_driver: false },
];

/// What a machine does.
#[derive(Clone, Copy, Debug)]
struct MachineState {
    phase: Option<EnginePhase>,
    /// Of what others leave, the share of the engine.
    engine: f64,
    /// Of what the engine leaves, the share of clean page cache.
    clean: f64,
    /// The engine takes a hundredth of the machine each second, and everything counts.
    is_busy: bool,
    /// The driver is stuck, and sources fail.
    is_broken: bool,
}

const IDLE: MachineState =
    MachineState { phase: None, engine: 0.0, clean: 1.0, is_busy: false, is_broken: false };

const MOMENTS: [MachineState; 6] = [
    MachineState { clean: 0.02, ..IDLE },
    IDLE,
    MachineState { phase: Some(EnginePhase::Serving), engine: 0.6, clean: 0.9, ..IDLE },
    MachineState { phase: Some(EnginePhase::Serving), engine: 0.97, clean: 0.3, ..IDLE },
    MachineState {
        phase: Some(EnginePhase::Loading),
        engine: 0.5,
        clean: 0.8,
        is_busy: true,
        ..IDLE
    },
    MachineState { is_broken: true, is_busy: true, clean: 0.5, ..IDLE },
];

/// One machine at one time.
#[derive(Debug)]
pub(super) struct MachineSample {
    pub(super) store: SeriesStore,
    pub(super) at: EvalTime,
    /// Its memory, in GiB; machines of one kind follow one another.
    pub(super) gib: f64,
}

/// Takes a series' name, its labels and its value.
type Add<'a> = dyn FnMut(&str, &[(&str, &str)], f64) + 'a;

/// All machines, with the series of these metrics.
pub(super) fn machines(read: &BTreeSet<Arc<str>>) -> Vec<MachineSample> {
    let moments = KINDS.iter().flat_map(|kind| MOMENTS.iter().map(move |moment| (*kind, *moment)));
    (0..).zip(moments).map(|(number, at)| machine(number, at, read)).collect()
}

/// The metrics that machines have.
pub(super) fn metrics() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    // With a driver and an engine.
    each_series(KINDS[0], MOMENTS[2], 0.0, &mut |name, _, _| {
        names.insert(name.to_owned());
    });
    names
}

fn machine(
    number: i64,
    (kind, moment): (MachineKind, MachineState),
    read: &BTreeSet<Arc<str>>,
) -> MachineSample {
    let mut store = SeriesStore::default();
    read.iter().for_each(|name| store.retain(name, SAMPLES_MS[0].into()));
    for before_ms in SAMPLES_MS {
        let before = f64::from(before_ms) / 1_000.0;
        let at_ms = i64::from(SAMPLES_MS[0] - before_ms);
        each_series(kind, moment, before, &mut |name, labels, value| {
            if read.contains(name) {
                let id = store.intern(&SeriesKey::new(name, labels));
                store.append(id, at_ms, Reading::Value(value));
            }
        });
    }
    let utc_ms = FIRST_UTC_MS + number * APART_MS;
    let at = EvalTime { timeline_ms: i64::from(SAMPLES_MS[0]), utc_ms };
    MachineSample { store, at, gib: kind.total }
}

/// All series of a machine, so many seconds before the end.
fn each_series(kind: MachineKind, moment: MachineState, before: f64, add: &mut Add<'_>) {
    memory(kind, moment, before, &mut |name, labels, gib| add(name, labels, gib * GIB));
    flags(kind, moment, add);
    let share = if moment.is_busy { 0.25 } else { 0.0 };
    let ratio = METRICS.iter().find(|metric| metric.name == "uma_pressure_ratio");
    for labels in ratio.map(closed_labels).unwrap_or_default() {
        add("uma_pressure_ratio", &labels, share);
    }
    for metric in METRICS.iter().filter(|metric| metric.kind == MetricKind::Counter) {
        let a_second = match metric.name {
            "uma_memory_reclaim_scanned_pages_total" => 40_000.0,
            "uma_pressure_stalled_seconds_total" => share,
            _ => 1.0,
        };
        let counted = if moment.is_busy { (3_600.0 - before) * a_second } else { 3.0 };
        closed_labels(metric).iter().for_each(|labels| add(metric.name, labels, counted));
    }
}

/// Every combination of values; none where a label has open ones.
fn closed_labels(metric: &'static Metric) -> Vec<Vec<(&'static str, &'static str)>> {
    let mut combined = vec![Vec::new()];
    for label in metric.labels {
        let values = metric.values(label).unwrap_or_default();
        let with = |labels: &Vec<_>, value| [labels.as_slice(), &[(*label, value)]].concat();
        combined = combined
            .iter()
            .flat_map(|labels| values.iter().map(move |value| with(labels, *value)))
            .collect();
    }
    combined
}

/// Memory of the CPUs, in GiB.
fn memory(kind: MachineKind, moment: MachineState, before: f64, add: &mut Add<'_>) {
    let MachineKind { total, reserve, others, .. } = kind;
    let low = 1.2 * reserve;
    // A full page cache leaves what the kernel keeps free.
    let rest = total - 1.5 * reserve - others;
    // For the last twenty seconds.
    let still_to_take = if moment.is_busy { before.min(20.0) * total / 100.0 } else { 0.0 };
    let taken = (rest * moment.engine - still_to_take).max(0.0);
    let dirty = if moment.is_busy { total / 20.0 } else { 0.01 };
    let clean = (rest - taken - dirty) * moment.clean;
    let free = (total - others - taken - dirty - clean).max(0.1);
    let available = (free + clean - low).max(0.0);
    let headroom = free - low;
    let swap_used = if moment.engine > 0.9 { 8.0 } else { 0.0 };
    let host = ("pool", "host");
    for (own, of_pool, value) in [
        ("uma_memory_total_bytes", "uma_pool_total_bytes", total),
        ("uma_memory_free_bytes", "uma_pool_free_bytes", free),
        ("uma_memory_available_bytes", "uma_pool_available_bytes", available),
        ("uma_memory_unaccounted_bytes", "uma_pool_unaccounted_bytes", taken + 1.1),
        ("uma_memory_reserve_bytes", "uma_pool_reserve_bytes", reserve),
        ("uma_memory_headroom_bytes", "uma_pool_headroom_bytes", headroom),
    ] {
        add(own, &[], value);
        add(of_pool, &[host], value);
    }
    for (state, value) in [("clean", clean), ("dirty", dirty), ("mapped", others / 4.0)] {
        add("uma_memory_page_cache_bytes", &[("state", state)], value);
        add("uma_pool_page_cache_bytes", &[host, ("state", state)], value);
    }
    let large = if moment.clean < 0.1 { 0.7 * free } else { 0.1 * free };
    for (block, value) in [("2MiB", large), ("32MiB", 0.8 * large)] {
        add("uma_memory_contiguous_bytes", &[("block", block)], value);
        add("uma_pool_contiguous_bytes", &[("block", block), host], value);
    }
    for (mark, value) in [("min", reserve), ("low", low), ("high", 1.4 * reserve)] {
        add("uma_memory_watermark_bytes", &[("watermark", mark)], value);
    }
    add("uma_pool_watermark_bytes", &[host, ("watermark", "low")], low);
    add("uma_pool_obtainable_bytes", &[host], headroom.max(0.0) + clean);
    for (name, value) in [
        ("uma_memory_cached_bytes", clean + dirty + others / 8.0),
        ("uma_memory_dirty_bytes", dirty),
        ("uma_memory_anonymous_bytes", others / 2.0),
        ("uma_memory_mapped_bytes", others / 4.0),
        ("uma_memory_shmem_bytes", others / 8.0),
        ("uma_swap_total_bytes", 16.0),
        ("uma_swap_free_bytes", 16.0 - swap_used),
    ] {
        add(name, &[], value);
    }
}

/// What is either so or not.
fn flags(kind: MachineKind, moment: MachineState, add: &mut Add<'_>) {
    let is_so = |is_so: bool| f64::from(u8::from(is_so));
    let is_well = is_so(!moment.is_broken);
    if kind.has_driver {
        add("uma_gpu_driver_responsive", &[], is_well);
    }
    let state = match (moment.is_broken, moment.phase) {
        (true, _) => MemoryState::Wedged,
        (false, Some(_)) => MemoryState::InUse,
        (false, None) => MemoryState::Clean,
    };
    for verdict in MemoryState::NAMES {
        add("uma_memory_verdict", &[("verdict", verdict)], is_so(verdict == state.name()));
    }
    for source in Source::NAMES {
        add("uma_scrape_collector_success", &[("collector", source)], is_well);
    }
    add("uma_journal_up", &[], is_well);
    add("uma_guard_rails_restored", &[], is_well);
    add("uma_paused", &[], is_so(moment.is_broken));
    add("uma_pool_holds_engines", &[("pool", "host")], 1.0);
    if let Some(phase) = moment.phase {
        for name in EnginePhase::NAMES {
            let labels = [("engine", "engine"), ("phase", name)];
            add("uma_engine_phase", &labels, is_so(name == phase.name()));
        }
    }
}
