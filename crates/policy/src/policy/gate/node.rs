//! The headroom of the watched node.

use std::sync::Arc;
use std::time::Duration;

use promql_rules::store::SeriesStore;

use super::baseline::BaselineWatch;
use super::{GateWatch, memory};
use crate::model::{GateMemory, Orphan, Reading};
use crate::policy::engines::Engines;

/// Tracks the headroom of the watched node.
#[derive(Debug, Default)]
pub(in crate::policy) struct NodeGate {
    watch: GateWatch,
    baseline: BaselineWatch,
    room: Option<GateMemory>,
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
        let mut room = memory(latest, self.baseline.learned(), orphans);
        self.watch.take(at, &mut room);
        let learned = self.baseline.take(at, &room, engines.presence(at));
        self.room = Some(room);
        learned
    }

    /// Forgets the readings, which are out of date.
    pub(in crate::policy) fn forget(&mut self) {
        self.room = None;
    }

    /// Takes over the baseline that an earlier run learned in this boot.
    pub(in crate::policy) fn resume(&mut self, baseline_bytes: u64) {
        self.baseline.resume(baseline_bytes);
    }

    /// Memory in no counter while no engine runs, if learned.
    pub(in crate::policy) fn baseline(&self) -> Option<u64> {
        self.baseline.learned().map(|baseline| baseline.bytes)
    }

    /// The headroom as last measured, if current.
    pub(in crate::policy) fn room(&self) -> Option<&GateMemory> {
        self.room.as_ref()
    }
}
