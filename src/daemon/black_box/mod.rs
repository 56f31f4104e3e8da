//! The black box: a thread that writes a record to disk every second, whatever the loop does.
//!
//! It reads the most important values itself, and takes the rest from the loop's last [`Status`],
//! which the loop swaps in without waiting. Its memory is locked, its files stay open, and a record
//! needs no allocation, so that it works when a process that needs a page blocks. A hanging disk
//! blocks only this thread.

mod from_status;
mod shared;
#[cfg(test)]
mod tests;
mod writer;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::Builder;
use std::time::Duration;

use arc_swap::ArcSwap;

use super::clock;
use super::priority::Priority;
use crate::config::settings::Settings;
use crate::journal::black_box::{BlackBoxRecord, BootId, EndOfBoot, LastBoot, Signal};
use crate::model::{Event, Moment, Observation, ProgramEvent, Reading};
use crate::policy::status::Status;
use shared::BlackBoxShared;
use writer::Writer;

/// The loop's handle of the black box.
pub(super) struct BlackBox {
    /// `None`: off.
    shared: Option<Arc<BlackBoxShared>>,
    thread: Option<std::thread::Thread>,
    ended: Receiver<()>,
    reporting: Reporting,
}

/// The progress of reporting how the previous boot ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reporting {
    /// Unknown yet.
    Waiting,
    /// The counter has its previous value.
    Counting,
    /// The event is reported in this second.
    Saying,
    /// Everything is reported.
    Reported,
}

impl BlackBox {
    /// Starts the thread, unless it is off. Does not wait.
    pub(super) fn start(
        settings: &Settings,
        boot_id: Option<&str>,
        status: Arc<ArcSwap<Status>>,
        priority: Priority,
    ) -> Self {
        let (end, ended) = channel();
        let mut black_box =
            Self { shared: None, thread: None, ended, reporting: Reporting::Waiting };
        let seconds = settings.recording.black_box.as_secs();
        let records = u32::try_from(seconds).unwrap_or(u32::MAX);
        if records == 0 {
            return black_box;
        }
        let shared = Arc::new(BlackBoxShared::new(status, clock::monotonic(), priority.is_locked));
        let boot_id = boot_id.map(BootId::new).unwrap_or_default();
        let mut writer = Writer::new(settings, boot_id, records, Arc::clone(&shared));
        let thread = Builder::new().name("black-box".to_owned()).spawn(move || {
            writer.run();
            // The loop may have ended without waiting.
            let _ = end.send(());
        });
        match thread {
            Ok(thread) => black_box.thread = Some(thread.thread().clone()),
            Err(error) => {
                tracing::error!(%error, "black box off: cannot start its thread");
                shared.fail(format!("its thread cannot be started: {error}"));
            }
        }
        black_box.shared = Some(shared);
        black_box
    }

    /// Adds the newest event to the next record.
    pub(super) fn note(&self, events: &[Event]) {
        let is_fault = |event: &&Event| event.is_kernel() && !event.is_claimed();
        if let (Some(shared), Some(event)) = (&self.shared, events.iter().rev().find(is_fault)) {
            shared.last_event.store(Some(Arc::new(event.clone())));
        }
    }

    /// The metrics, and once in a boot the end of the previous boot. Called once a second.
    pub(super) fn observe(&mut self, at: Moment, seen: &mut Vec<Observation>) {
        let Some(shared) = &self.shared else { return };
        let found = shared.last_boot.get().map(Option::as_ref);
        // The first read takes moments: rules need not be unknown until then.
        if found.is_none() && !shared.has_trouble(clock::monotonic()) {
            return;
        }
        let mut unclean_boots = found.flatten().map_or(0, |last| last.unclean_boots);
        let news = found
            .flatten()
            .filter(|last| last.previous.end == EndOfBoot::Unclean && !last.reported);
        self.reporting = match (self.reporting, found, news) {
            (Reporting::Waiting, None, _) => Reporting::Waiting,
            // The counter must be seen before it grows: an increase needs two values.
            (Reporting::Waiting, Some(_), Some(_)) => {
                unclean_boots = unclean_boots.saturating_sub(1);
                Reporting::Counting
            }
            (Reporting::Counting, _, Some(last)) => {
                seen.push(Observation::Event(event(last, at)));
                Reporting::Saying
            }
            // By now the journal has it, or is down.
            _ => {
                shared.set_reported();
                Reporting::Reported
            }
        };
        let found = found.map(|last| (last, unclean_boots));
        seen.push(Observation::Readings(shared.readings(clock::monotonic(), found)));
    }

    /// Writes the record of an orderly end.
    pub(super) fn end(&self) {
        if let Some(shared) = &self.shared {
            shared.end();
        }
        if let Some(thread) = &self.thread {
            thread.unpark();
        }
    }

    /// Waits for that record. A thread that hangs on its disk is abandoned.
    pub(super) fn close(&self, deadline: Duration) {
        if self.thread.is_some() && self.ended.recv_timeout(deadline).is_err() {
            tracing::warn!(
                effect = "the next boot may take this one for one that did not end in order",
                "black box may lack its end: slow disk"
            );
        }
    }
}

fn event(last_boot: &LastBoot, at: Moment) -> Event {
    let last = last_boot.last.as_ref();
    let value = |signal: Signal| last.and_then(|record| record.get(signal).value());
    let firing = |record: &BlackBoxRecord| -> Vec<String> {
        record.firing.as_str().split_whitespace().map(str::to_owned).collect()
    };
    let kind = ProgramEvent::UncleanBoot {
        ended_boot_id: last_boot.previous.boot_id.as_str().to_owned(),
        last_record: last.map(|record| record.at.utc),
        gap_seconds: last_boot.previous.gap_ms.map(seconds),
        memory_free_bytes: value(Signal::Free),
        memory_available_bytes: value(Signal::Available),
        memory_unaccounted_bytes: value(Signal::Unaccounted),
        memory_pressure_full: value(Signal::MemoryFull),
        loop_age_seconds: last.and_then(|record| record.loop_age).map(|age| age.as_secs_f64()),
        last_event: last
            .and_then(|record| record.last_event)
            .map(|event| event.kind.as_str().to_owned()),
        firing: last.map(firing).unwrap_or_default(),
    };
    Event { kind: kind.into(), utc: Some(at.utc), seq: None }
}

#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53 milliseconds")]
fn seconds(ms: i64) -> f64 {
    ms as f64 / 1000.0
}

fn flag(on: bool) -> Reading<f64> {
    Reading::Value(f64::from(on))
}
