//! The available memory of the watched node.

use std::sync::Arc;
use std::time::Duration;

use promql_rules::store::SeriesStore;

use super::baseline::BaselineWatch;
use super::{GateWatch, memory};
use crate::model::{GateMemory, Orphan, Reading};
use crate::policy::engines::Engines;

/// Tracks the available memory of the watched node.
#[derive(Debug, Default)]
pub(in crate::policy) struct NodeGate {
    watch: GateWatch,
    baseline: BaselineWatch,
    memory: Option<GateMemory>,
}

impl NodeGate {
    /// Takes the present readings. Returns the baseline of memory in no counter, if just learned.
    pub(in crate::policy) fn measure(
        &mut self,
        at: Duration,
        store: &SeriesStore,
        engines: &Engines,
        orphans: Reading<Arc<[Orphan]>>,
    ) -> Option<u64> {
        let latest = |name: &str, labels: &[(&str, &str)]| store.latest_of(name, labels);
        let mut memory = memory(latest, self.baseline.learned(), orphans);
        self.watch.take(at, &mut memory);
        let learned = self.baseline.take(at, &memory, engines.presence(at));
        self.memory = Some(memory);
        learned
    }

    /// Forgets the readings, which are out of date.
    pub(in crate::policy) fn forget(&mut self) {
        self.memory = None;
    }

    /// Takes over the baseline that an earlier run learned in this boot.
    pub(in crate::policy) fn resume(&mut self, baseline_bytes: u64) {
        self.baseline.resume(baseline_bytes);
    }

    /// Memory in no counter while no engine runs, if learned.
    pub(in crate::policy) fn baseline(&self) -> Option<u64> {
        self.baseline.learned().map(|baseline| baseline.bytes)
    }

    /// The available memory as last measured, if current.
    pub(in crate::policy) fn memory(&self) -> Option<&GateMemory> {
        self.memory.as_ref()
    }
}
