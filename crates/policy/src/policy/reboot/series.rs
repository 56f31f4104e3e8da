//! What is exported of reboots, and read by rules.

use promql_rules::store::SeriesStore;

use super::Reboots;
use super::pending::PendingReboot;
use crate::model::{RebootResult, RebootStage, SeriesKey};
use crate::policy::counters::{Cell, Counters};

/// The series of reboots.
#[derive(Debug)]
pub(super) struct RebootCells {
    scheduled: Cell,
    stages: [Cell; RebootStage::ALL.len()],
    results: [Cell; RebootResult::ALL.len()],
    did_not_help: Cell,
    left: Cell,
}

impl RebootCells {
    pub(super) fn new(counters: &mut Counters, store: &mut SeriesStore) -> Self {
        let mut cell = |name: &str, labels: &[(&str, &str)]| {
            counters.cell(store, &SeriesKey::new(name, labels))
        };
        let cells = Self {
            scheduled: cell("uma_reboot_scheduled_timestamp_seconds", &[]),
            stages: RebootStage::ALL
                .map(|stage| cell("uma_reboot_stage", &[("stage", stage.name())])),
            results: RebootResult::ALL
                .map(|result| cell("uma_reboots_total", &[("result", result.name())])),
            did_not_help: cell("uma_reboots_not_helped_in_a_row", &[]),
            left: cell("uma_reboot_budget_left", &[]),
        };
        counters.retire(cells.scheduled);
        counters.retire(cells.left);
        cells
    }

    pub(super) fn count(&self, result: RebootResult, counters: &mut Counters) {
        let place = RebootResult::ALL.iter().position(|known| *known == result);
        if let Some(cell) = place.and_then(|place| self.results.get(place)) {
            counters.add(*cell, 1.0);
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "seconds since 1970, and small counts")]
    pub(super) fn publish(&self, known: &Reboots, left: Option<u32>, counters: &mut Counters) {
        let pending = known.pending.as_ref();
        let due = pending.and_then(|pending| pending.scheduled.plan.due);
        let due = due.map(|due| due.utc_ms() as f64 / 1_000.0);
        counters.set_or_retire(self.scheduled, due.into());
        let present = pending.map(PendingReboot::public_stage).unwrap_or_default();
        for (cell, stage) in self.stages.iter().zip(RebootStage::ALL) {
            counters.set(*cell, f64::from(stage == present));
        }
        counters.set(self.did_not_help, known.did_not_help() as f64);
        counters.set_or_retire(self.left, left.map(f64::from).into());
    }
}
