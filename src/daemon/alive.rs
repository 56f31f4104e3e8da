//! Records the uptime of this boot in the journal. Reboots are counted by it, since it does not
//! depend on the wall clock.

use std::sync::Arc;
use std::time::Duration;

use crate::journal::{Journal, JournalEntry};

/// Uptime that may be lost if the boot ends abruptly.
const EVERY: Duration = Duration::from_secs(600);

/// When it is recorded next.
#[derive(Debug)]
pub(super) struct AliveRecorder {
    boot: Option<Arc<str>>,
    due: Duration,
}

impl AliveRecorder {
    // A boot without an id proves nothing.
    pub(super) fn new(boot: Option<Arc<str>>) -> Self {
        Self { boot, due: Duration::ZERO }
    }

    /// Records the uptime if it is due.
    pub(super) fn note(&mut self, uptime: Duration, journal: &Journal) {
        if uptime >= self.due {
            self.due = uptime.saturating_add(EVERY);
            self.note_end(uptime, journal);
        }
    }

    /// Records the uptime.
    pub(super) fn note_end(&self, uptime: Duration, journal: &Journal) {
        if let Some(boot_id) = self.boot.clone() {
            journal.record(&JournalEntry::Alive { boot_id, uptime });
        }
    }
}
