//! Engines that a rule test declares by their series.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::TICKS;
use crate::model::{
    EngineKind, EnginePhase, EngineProcess, EngineSeen, ProcessId, Reading, SeriesKey,
};
use crate::policy::store::SeriesStore;

/// What tells such an engine from one that was seen.
pub(super) const FOUND_BY: &str = "declared by its series";

const INFO: &str = "uma_engine_info";
const PHASE: &str = "uma_engine_phase";
const MEMORY: &str = "uma_engine_memory_bytes";
const READ: &str = "uma_engine_load_read_bytes";

/// Which engines are there in a declared world, and since when.
#[derive(Debug, Default)]
pub(in crate::policy) struct Declared {
    /// Those of the first moment are as old as the world, and hold what they hold for long.
    has_begun: bool,
    since: BTreeMap<Arc<str>, Life>,
}

#[derive(Clone, Copy, Debug)]
struct Life {
    pid: u32,
    start_ticks: u64,
    /// How long it has served: whoever serves works, and whoever does not is idle.
    served: Duration,
    last: Duration,
}

impl Declared {
    /// The engines with their phases, as their series tell at that moment.
    pub(in crate::policy) fn look(
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
            if phase == EnginePhase::Serving {
                life.served += at.saturating_sub(life.last);
            }
            life.last = at;
            engines.push((seen(&name, *life, store), phase));
        }
        self.has_begun = true;
        engines
    }

    fn life(&mut self, name: &Arc<str>, at: Duration) -> &mut Life {
        let taken = self.since.values().map(|life| life.pid).max().unwrap_or(1);
        let ticks = u64::try_from(at.as_millis()).unwrap_or(u64::MAX) * TICKS / 1_000;
        let start_ticks = if self.has_begun { ticks.max(1) } else { 0 };
        let new = Life { pid: taken + 1, start_ticks, served: Duration::ZERO, last: at };
        self.since.entry(Arc::clone(name)).or_insert(new)
    }
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

fn seen(name: &Arc<str>, life: Life, store: &SeriesStore) -> EngineSeen {
    let of = |series: &str, kind: Option<&str>| {
        let mut own = named(series, store).filter(|(key, _)| {
            label(key, "engine").as_ref() == Some(name)
                && kind.is_none_or(|kind| label(key, "type").as_deref() == Some(kind))
        });
        own.next().map_or(Reading::Unsupported, |(_, value)| bytes(value))
    };
    let id = ProcessId { pid: life.pid, start_ticks: life.start_ticks };
    let process = EngineProcess {
        id,
        parent: 1,
        comm: Arc::clone(name),
        state: 'S',
        is_exiting: false,
        cpu_ms: u64::try_from(life.served.as_millis()).unwrap_or(u64::MAX),
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
