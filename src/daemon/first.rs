//! The first lines of the log: what was found, what is done about it, and where it is shown.
//!
//! Engines and the driver are known only some time after the start, and the loop does not wait for
//! them: a thread of its own does, and ends.

use std::sync::Arc;
use std::thread::{Builder, sleep};
use std::time::Duration;

use anyhow::Context;
use arc_swap::ArcSwap;

use super::clock;
use super::service::summary;
use crate::config::reader::LoadedConfig;
use crate::config::settings::GpuInterval;
use crate::journal::{Journal, JournalEntry, Note};
use crate::model::{Mode, Moment, SeriesKey, Source, bytes_text};
use crate::policy::status::{EngineStatus, Status};
use crate::sources::machine;

/// How long the first scan and the driver may take.
const KNOWN_AFTER: Duration = Duration::from_secs(3);

/// Between two checks whether all is known.
const CHECKED_EVERY: Duration = Duration::from_millis(100);

/// Engines that are named.
const MOST_ENGINES: usize = 4;

/// Records the start in the journal.
fn record(loaded: &LoadedConfig, journal: &Journal, started: Moment) {
    let text = format!("started: {}", summary(loaded));
    let storage = loaded.settings.storage.path.display();
    let (version, revision) = (env!("CARGO_PKG_VERSION"), env!("UMAWARDEN_REVISION"));
    tracing::debug!(version, revision, %storage, "{text}");
    journal.record(&JournalEntry::Note(Note { at: started, text }));
}

/// Records the start, and logs the three lines once all is known, or after [`KNOWN_AFTER`].
///
/// # Errors
/// The thread cannot be started.
pub(super) fn report(
    loaded: &LoadedConfig,
    addresses: &[String],
    status: &Arc<ArcSwap<Status>>,
    (journal, started): (&Journal, Moment),
) -> anyhow::Result<()> {
    record(loaded, journal, started);
    let settings = &loaded.settings;
    let model = machine::model(&settings.path.sysfs);
    let does = does(settings.mode, &summary(loaded));
    let shown = shown(addresses);
    let has_driver = settings.gpu.interval != GpuInterval::Off;
    let status = Arc::clone(status);
    let wait = move || {
        let due = clock::uptime() + KNOWN_AFTER;
        while !is_known(&status.load(), has_driver) && clock::uptime() < due {
            sleep(CHECKED_EVERY);
        }
        tracing::info!("{}", found(model.as_deref(), &status.load()));
        tracing::info!("{does}");
        tracing::info!("{shown}");
    };
    let started = Builder::new().name("first-lines".to_owned()).spawn(wait);
    started.context("cannot start the thread of the first log lines").map(drop)
}

/// Whether memory was sampled, and the engines and the driver have answered.
fn is_known(status: &Status, has_driver: bool) -> bool {
    let has = |source| status.sources.iter().any(|known| known.source == source);
    memory(status).is_some() && has(Source::Engines) && (!has_driver || has(Source::Gpu))
}

fn memory(status: &Status) -> Option<f64> {
    series(status, "uma_memory_total_bytes").map(|(_, bytes)| bytes)
}

/// The first series of that name that has a value.
fn series<'s>(status: &'s Status, name: &str) -> Option<(&'s SeriesKey, f64)> {
    let series = status.series.iter().zip(&status.values);
    let mut series = series.filter(|(key, _)| *key.name == *name);
    series.find_map(|(key, reading)| Some((key, reading.sample()?)))
}

fn found(model: Option<&str>, status: &Status) -> String {
    let model = model.unwrap_or("a machine without a name");
    let memory = match memory(status) {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a size")]
        Some(bytes) => format!("{} of memory", bytes_text(bytes.max(0.0) as u64)),
        None => "memory unknown".to_owned(),
    };
    let gpu = series(status, "uma_gpu_info");
    let gpu = gpu.and_then(|(key, _)| key.labels.iter().find(|(label, _)| **label == *"name"));
    let gpu = gpu.map_or("no NVIDIA GPU".to_owned(), |(_, name)| format!("GPU {name}"));
    format!("found: {model}, {memory}, {gpu}, {}", engines(&status.engines))
}

fn engines(engines: &[EngineStatus]) -> String {
    let alive: Vec<&EngineStatus> =
        engines.iter().filter(|engine| !engine.phase.is_ending()).collect();
    if alive.is_empty() {
        return "no inference engine".to_owned();
    }
    let named = alive.iter().take(MOST_ENGINES);
    let named = named.map(|one| {
        format!("{} ({}, {})", one.engine.name, one.engine.kind.name(), one.phase.name())
    });
    let more = alive.len().saturating_sub(MOST_ENGINES);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("engines {}{more}", named.collect::<Vec<_>>().join(", "))
}

fn does(mode: Mode, summary: &str) -> String {
    match mode {
        Mode::Observe => format!(
            "does: {summary}: nothing is changed, lines with \"would act\" say what would be done"
        ),
        Mode::Enforce => format!("does: {summary}: remedies act"),
    }
}

fn shown(addresses: &[String]) -> String {
    let pages = if addresses.is_empty() { String::new() } else { addresses.join(", ") + ", " };
    format!("shown: {pages}umawarden top, umawarden history; log.level debug has more of the start")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_say_what_is_done_and_where_it_is_shown() {
        let does = does(Mode::Observe, "62 rules in 11 groups, mode observe");
        assert!(does.starts_with("does: 62 rules in 11 groups, mode observe: nothing is changed"));
        let shown = shown(&["http://127.0.0.1:9942/".to_owned()]);
        assert!(shown.starts_with("shown: http://127.0.0.1:9942/, umawarden top"), "{shown}");
    }
}
