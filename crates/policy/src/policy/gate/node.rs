//! The room of the node that is watched.

use std::sync::Arc;
use std::time::Duration;

use promql_rules::store::SeriesStore;

use super::baseline::BaselineWatch;
use super::{GateWatch, headroom};
use crate::model::{GateMemory, Orphan, Reading};
use crate::policy::engines::Engines;

/// Follows the room of the node that the policy watches.
#[derive(Debug, Default)]
pub(in crate::policy) struct NodeGate {
    watch: GateWatch,
    baseline: BaselineWatch,
    room: Option<GateMemory>,
}

impl NodeGate {
    /// Takes what is known of memory now. Returns how much of it no counter names while no engine
    /// runs, where that was just learned.
    pub(in crate::policy) fn measure(
        &mut self,
        at: Duration,
        store: &SeriesStore,
        engines: &Engines,
        orphans: Reading<Arc<[Orphan]>>,
    ) -> Option<u64> {
        let latest = |name: &str, labels: &[(&str, &str)]| store.latest_of(name, labels);
        let mut room = headroom(latest, self.baseline.learned(), orphans);
        self.watch.take(at, &mut room);
        let learned = self.baseline.take(at, &room, engines.presence(at));
        self.room = Some(room);
        learned
    }

    /// What is known is not of now any more.
    pub(in crate::policy) fn forget(&mut self) {
        self.room = None;
    }

    /// An earlier run in this boot has learned how much no counter names while no engine runs.
    pub(in crate::policy) fn resume(&mut self, baseline_bytes: u64) {
        self.baseline.resume(baseline_bytes);
    }

    /// How much no counter names while no engine runs, if that was learned.
    pub(in crate::policy) fn baseline(&self) -> Option<u64> {
        self.baseline.learned().map(|baseline| baseline.bytes)
    }

    /// The room as it was last measured, if that is of now.
    pub(in crate::policy) fn room(&self) -> Option<&GateMemory> {
        self.room.as_ref()
    }
}
