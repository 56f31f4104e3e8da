//! The journal, and its losses.

use std::sync::Arc;
use std::time::Duration;

use umawarden::journal::{BootDuration, JournalEntry, RebootRow};
use umawarden::model::DecisionRecord;

/// The disk: written entries survive, pending ones may not.
#[derive(Default)]
pub struct Disk {
    pub rows: Vec<RebootRow>,
    pub boots: Vec<BootDuration>,
    pub on_its_way: Vec<RebootRow>,
    pub is_broken: bool,
}

impl Disk {
    pub fn note_alive(&mut self, boot_id: &Arc<str>, uptime: Duration) {
        let uptime_ms = i64::try_from(uptime.as_millis()).unwrap();
        match self.boots.iter_mut().find(|boot| boot.boot_id == *boot_id) {
            Some(boot) => boot.uptime_ms = boot.uptime_ms.max(uptime_ms),
            None => self.boots.push(BootDuration { boot_id: Arc::clone(boot_id), uptime_ms }),
        }
    }

    pub fn record(&mut self, entry: &JournalEntry) {
        self.on_its_way.extend(RebootRow::of(entry));
    }

    pub fn flush(&mut self) {
        let rows = std::mem::take(&mut self.on_its_way);
        self.rows.extend(rows);
    }

    pub fn intent(&mut self, decision: &DecisionRecord) -> Result<(), String> {
        if self.is_broken {
            return Err("the disk is broken".to_owned());
        }
        self.flush();
        let row = RebootRow::Decision(decision.clone());
        if !self.rows.contains(&row) {
            self.rows.push(row);
        }
        Ok(())
    }

    /// The journal is replaced while the writer runs, which detects that.
    pub fn replace(&mut self) {
        self.forget();
        self.rows.push(RebootRow::Lost { at: None });
    }

    /// The journal is replaced while no process runs.
    pub fn forget(&mut self) {
        self.rows.clear();
        self.boots.clear();
    }
}
