//! Engines that a rule test declares by their series.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use promql_rules::store::SeriesStore;

use super::figures::Amounts;
use super::{ProcessScan, TICKS};
use crate::model::{
    EngineKind, EnginePhase, EngineProcess, EngineSeen, ProcessId, ProcessMemory, Reading,
    SeriesKey,
};

/// Marks a declared engine, as opposed to a sampled one.
pub(super) const FOUND_BY: &str = "declared by its series";

const INFO: &str = "uma_engine_info";
const PHASE: &str = "uma_engine_phase";
const MEMORY: &str = "uma_engine_memory_bytes";
const READ: &str = "uma_engine_load_read_bytes";
const OTHER: &str = "uma_other_processes_memory_bytes";
const SOCKETS: &str = "uma_memory_socket_bytes";
const HOLDERS: &str = "uma_driver_holders";
const OF_ENGINE: &str = "uma_gpu_engine_memory_bytes";
const OF_OTHERS: &str = "uma_gpu_other_memory_bytes";

/// All processes of a declared world that belong to no engine.
const OTHERS: ProcessId = ProcessId { pid: u32::MAX, start_ticks: 0 };

/// Which engines are there in a declared world, and since when.
#[derive(Debug, Default)]
pub(in crate::policy) struct Declared {
    /// Engines of the first moment are as old as the world and have had their memory since then.
    has_begun: bool,
    since: BTreeMap<Arc<str>, DeclaredProcess>,
}

#[derive(Clone, Copy, Debug)]
struct DeclaredProcess {
    pid: u32,
    start_ticks: u64,
    /// How long it has been on its way to be ready, or served: then it works, else it is idle.
    busy: Duration,
    last: Duration,
}

impl Declared {
    /// The engines with their phases, from their series at that moment.
    pub(in crate::policy) fn sample(
        &mut self,
        at: Duration,
        store: &SeriesStore,
    ) -> Vec<(EngineSeen, EnginePhase)> {
        let phases: BTreeMap<Arc<str>, EnginePhase> = named(PHASE, store)
            .filter(|(_, value)| *value == 1.0)
            .filter_map(|(key, _)| Some((label(key, "engine")?, phase(&label(key, "phase")?)?)))
            .filter(|(_, phase)| *phase != EnginePhase::Gone)
            .collect();
        self.since.retain(|name, _| phases.contains_key(name));
        let mut engines = Vec::new();
        for (name, phase) in phases {
            let life = self.life(&name, at);
            if !matches!(phase, EnginePhase::Ready | EnginePhase::Stopping | EnginePhase::Gone) {
                life.busy += at.saturating_sub(life.last);
            }
            life.last = at;
            engines.push((seen(&name, *life, store), phase));
        }
        self.has_begun = true;
        engines
    }

    fn life(&mut self, name: &Arc<str>, at: Duration) -> &mut DeclaredProcess {
        let taken = self.since.values().map(|life| life.pid).max().unwrap_or(1);
        let ticks = u64::try_from(at.as_millis()).unwrap_or(u64::MAX) * TICKS / 1_000;
        let start_ticks = if self.has_begun { ticks.max(1) } else { 0 };
        let new = DeclaredProcess { pid: taken + 1, start_ticks, busy: Duration::ZERO, last: at };
        self.since.entry(Arc::clone(name)).or_insert(new)
    }
}

/// The result of a scan of all processes. Without a declared number of driver users only the
/// engines have the driver open, one process each.
pub(in crate::policy) fn scan(
    engines: &[(EngineSeen, EnginePhase)],
    store: &SeriesStore,
) -> ProcessScan {
    let memory_of = |id: ProcessId, comm: &Arc<str>, of: &dyn Fn(&str) -> Option<u64>| {
        let of = |kind| of(kind).unwrap_or(0);
        ProcessMemory {
            id,
            comm: Arc::clone(comm),
            anon_bytes: of("anon"),
            shmem_bytes: of("shmem"),
            hugetlb_bytes: of("hugetlb"),
            pipe_bytes: of("pipes"),
            socket_bytes: of("sockets"),
        }
    };
    let mut memory: Vec<ProcessMemory> = engines
        .iter()
        .map(|(seen, _)| {
            memory_of(seen.server, &seen.name, &|kind| {
                with(MEMORY, &[("engine", &seen.name), ("type", kind)], store)
            })
        })
        .collect();
    memory.push(memory_of(OTHERS, &Arc::from("others"), &|kind| {
        with(OTHER, &[("type", kind)], store)
    }));
    let holders = store.latest_of(HOLDERS, &[]);
    let most = holders.value().map_or(engines.len(), |count| count.max(0.0) as usize);
    let mut users: Vec<ProcessId> =
        engines.iter().take(most).map(|(seen, _)| seen.server).collect();
    if most > users.len() {
        users.push(OTHERS);
    }
    let socket_bytes = with(SOCKETS, &[], store).unwrap_or(0);
    let is_whole = holders != Reading::Failed;
    ProcessScan { memory, socket_bytes, users, hidden: Vec::new(), is_whole }
}

/// What the driver says of each process; `None` where it is not declared to say anything now.
pub(in crate::policy) fn figures(
    engines: &[(EngineSeen, EnginePhase)],
    store: &SeriesStore,
) -> Option<Amounts<u32>> {
    let is_silent = store.latest_of("uma_gpu_driver_responsive", &[]) == Reading::Value(0.0);
    let count = |name: &str| store.named(name).0.len();
    if is_silent || count(OF_ENGINE) + count(OF_OTHERS) == 0 {
        return None;
    }
    let mut amounts = Amounts::new();
    for (key, value) in named(OF_ENGINE, store) {
        let name = label(key, "engine");
        let engine = engines.iter().find(|(seen, _)| Some(&seen.name) == name.as_ref());
        let pid = engine.map_or(OTHERS.pid, |(seen, _)| seen.server.pid);
        *amounts.entry(pid).or_insert(0) += bytes(value).value().unwrap_or(0);
    }
    for (_, value) in named(OF_OTHERS, store) {
        *amounts.entry(OTHERS.pid).or_insert(0) += bytes(value).value().unwrap_or(0);
    }
    (!amounts.is_empty()).then_some(amounts)
}

/// The present value of the series of that name with these labels, in bytes.
fn with(name: &str, labels: &[(&str, &str)], store: &SeriesStore) -> Option<u64> {
    let has_all = |key: &SeriesKey| {
        labels.iter().all(|(name, value)| label(key, name).as_deref() == Some(*value))
    };
    let (_, value) = named(name, store).find(|(key, _)| has_all(key))?;
    bytes(value).value()
}

/// The series of that name that have a value now.
fn named<'s>(name: &str, store: &'s SeriesStore) -> impl Iterator<Item = (&'s SeriesKey, f64)> {
    let (ids, _) = store.named(name);
    ids.iter().filter_map(|id| {
        let value = store.latest(*id).value().filter(|value| value.is_finite())?;
        Some((store.key(*id)?, value))
    })
}

fn label(key: &SeriesKey, name: &str) -> Option<Arc<str>> {
    let found = key.labels.iter().find(|(label, _)| **label == *name);
    found.map(|(_, value)| Arc::clone(value))
}

fn kind(name: &str) -> Option<EngineKind> {
    EngineKind::ALL.into_iter().find(|kind| kind.name() == name)
}

fn phase(name: &str) -> Option<EnginePhase> {
    EnginePhase::ALL.into_iter().find(|phase| phase.name() == name)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes, from 0 on")]
fn bytes(value: f64) -> Reading<u64> {
    Reading::Value(value.max(0.0) as u64)
}

fn seen(name: &Arc<str>, life: DeclaredProcess, store: &SeriesStore) -> EngineSeen {
    let engine = ("engine", &**name);
    let of = |series: &str, kind: Option<&str>| {
        let found = match kind {
            Some(kind) => with(series, &[engine, ("type", kind)], store),
            None => with(series, &[engine], store),
        };
        found.map_or(Reading::Unsupported, Reading::Value)
    };
    let id = ProcessId { pid: life.pid, start_ticks: life.start_ticks };
    let process = EngineProcess {
        id,
        parent: 1,
        comm: Arc::clone(name),
        state: 'S',
        is_exiting: false,
        cpu_ms: u64::try_from(life.busy.as_millis()).unwrap_or(u64::MAX),
        anon_bytes: of(MEMORY, Some("anon")),
        file_bytes: of(MEMORY, Some("file")),
        shmem_bytes: of(MEMORY, Some("shmem")),
        hugetlb_bytes: of(MEMORY, Some("hugetlb")),
        read_bytes: of(READ, None),
        read_chars: Reading::Unsupported,
        mapped_files: Reading::Unsupported,
        mapped_bytes: Reading::Unsupported,
        open_files: Reading::Unsupported,
        open_devices: Reading::Unsupported,
    };
    let kinds = named(INFO, store).filter(|(key, _)| label(key, "engine").as_ref() == Some(name));
    let kind = kinds.filter_map(|(key, _)| kind(&label(key, "kind")?)).next();
    let kind = kind.unwrap_or(EngineKind::Declared);
    EngineSeen::new(Arc::clone(name), kind, id, vec![process], Arc::from(FOUND_BY))
}
