//! Keeps in the journal how long this boot has lasted: that much time has certainly passed,
//! whatever wall clocks say, and reboots are counted by that.

use std::sync::Arc;
use std::time::Duration;

use crate::journal::{Entry, Journal};

/// How often: so much time may be forgotten with a boot that ends by itself.
const EVERY: Duration = Duration::from_secs(600);

/// When it is kept next.
#[derive(Debug)]
pub(super) struct Alive {
    boot: Option<Arc<str>>,
    due: Duration,
}

impl Alive {
    /// A boot without a name proves nothing.
    pub(super) fn new(boot: Option<Arc<str>>) -> Self {
        Self { boot, due: Duration::ZERO }
    }

    /// Keeps it, when it is time to.
    pub(super) fn note(&mut self, uptime: Duration, journal: &Journal) {
        if uptime >= self.due {
            self.due = uptime.saturating_add(EVERY);
            self.note_end(uptime, journal);
        }
    }

    /// Keeps it.
    pub(super) fn note_end(&self, uptime: Duration, journal: &Journal) {
        if let Some(boot_id) = self.boot.clone() {
            journal.record(&Entry::Alive { boot_id, uptime });
        }
    }
}
