//! The thread that keeps samples for queries, and the one that reads older ones from the flight
//! recorder when a query needs them.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::Builder;
use std::time::{Duration, Instant};

use anyhow::Context;
use arc_swap::ArcSwap;
use jiff::Timestamp;
use rustix::process::setpriority_process;

use crate::config::settings::Settings;
use crate::model::Source;
use crate::policy::status::Status;
use crate::recording::segment_files;
use crate::replayer::{Excerpt, replay};
use crate::samples::{History, INTERVAL, KEPT, KEPT_BYTES, LiveSamples, PastState, TargetLabels};

/// How often the thread checks for the first sample.
const FIRST: Duration = Duration::from_millis(100);

/// The lowest weight: the flight recorder is read while others serve.
const NICE: i32 = 19;
/// How long the reader works between two rests, if it cannot have that weight.
const SLICE: Duration = Duration::from_millis(20);

/// The name of the job in the documented scrape configuration.
const JOB: &str = "umawarden";

/// Starts the thread that keeps samples.
pub(super) fn start(
    settings: &Settings,
    status: &Arc<ArcSwap<Status>>,
    listeners: &[TcpListener],
) -> anyhow::Result<Arc<LiveSamples>> {
    let recording = settings.storage.path.join("recording");
    let past = match settings.recording.size_bytes {
        0 => PastState::Unavailable("the flight recorder is off (recording.size)".to_owned()),
        _ => PastState::Unread,
    };
    let live = Arc::new(LiveSamples::new(target_labels(listeners), past));
    let (kept, status) = (Arc::clone(&live), Arc::clone(status));
    Builder::new()
        .name("samples".to_owned())
        .spawn(move || keep(&kept, &status, &recording))
        .context("cannot start the thread that keeps samples for queries")?;
    Ok(live)
}

/// Those that a Prometheus would give to this node.
fn target_labels(listeners: &[TcpListener]) -> TargetLabels {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let port = listeners.iter().find_map(|listener| listener.local_addr().ok());
    let instance = match port.as_ref().map(SocketAddr::port) {
        Some(port) => format!("{host}:{port}"),
        None => host,
    };
    TargetLabels::new(&[("instance", &instance), ("job", JOB)])
}

fn keep(live: &Arc<LiveSamples>, status: &ArcSwap<Status>, recording: &Path) {
    loop {
        let now = status.load_full();
        // Without memory a frame would be a hole.
        if now.sources.iter().any(|source| source.source == Source::Meminfo) {
            live.take(&now);
        }
        drop(now);
        let next = if live.oldest_ms().is_some() { INTERVAL } else { FIRST };
        if live.wait(next) {
            let (live, folder) = (Arc::clone(live), recording.to_owned());
            let other = Arc::clone(&live);
            let read = Builder::new().name("samples-past".to_owned());
            if let Err(error) = read.spawn(move || read_past(&live, &folder)) {
                let why = format!("no thread can be started to read them: {error}");
                other.put_past(empty(), Some(why));
            }
        }
    }
}

fn empty() -> History {
    History::new(INTERVAL, KEPT, KEPT_BYTES)
}

/// Leaves half of a processor to others where the weight of a thread cannot be lowered. The filter
/// of the unit denies setpriority(2), and there the whole daemon has nice -10.
struct Pace {
    rests: bool,
    since: Instant,
}

impl Pace {
    /// Lowers the weight of the calling thread, or else will rest.
    fn begin() -> Self {
        let lowered = setpriority_process(None, NICE);
        if let Err(error) = lowered {
            tracing::debug!(%error, "the reader of past samples rests: its priority stays");
        }
        Self { rests: lowered.is_err(), since: Instant::now() }
    }

    fn keep(&mut self) {
        let rest = self.rest(self.since.elapsed());
        if !rest.is_zero() {
            std::thread::sleep(rest);
            self.since = Instant::now();
        }
    }

    /// It rests for as long as it has worked, once that is a slice.
    fn rest(&self, worked: Duration) -> Duration {
        if self.rests && worked >= SLICE { worked } else { Duration::ZERO }
    }
}

fn read_past(live: &LiveSamples, folder: &Path) {
    let mut pace = Pace::begin();
    let mut history = empty();
    let until = live.oldest_ms().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    let files: Vec<PathBuf> = segment_files(folder);
    let from = until.and_then(|until| until.checked_sub(KEPT).ok());
    let excerpt = Excerpt { from, until, interval: INTERVAL };
    let remarks = replay(&files, &excerpt, &mut |status| {
        history.push(status.at.utc.as_millisecond(), &status.series, &status.values);
        pace.keep();
        true
    });
    for remark in &remarks {
        tracing::info!(%remark, "samples of the past are incomplete");
    }
    let failure = remarks.first().filter(|_| history.oldest_ms().is_none());
    live.put_past(history, failure.cloned());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_cannot_be_lowered_rests_as_long_as_it_has_worked() {
        let mut pace = Pace { rests: true, since: Instant::now() };
        assert_eq!(pace.rest(2 * SLICE), 2 * SLICE);
        assert_eq!(pace.rest(SLICE / 2), Duration::ZERO);
        let begun = Instant::now();
        pace.since = begun.checked_sub(SLICE).unwrap();
        pace.keep();
        assert!(begun.elapsed() >= SLICE && pace.since >= begun + SLICE);
        pace.rests = false;
        assert_eq!(pace.rest(2 * SLICE), Duration::ZERO);
    }
}
