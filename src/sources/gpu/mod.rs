//! GPUs, from the NVIDIA driver.
//!
//! A child process (`umawarden nvml-child`) queries the driver: a process that calls the driver
//! while it waits for memory can hang for hours, beyond the reach of SIGKILL. A thread polls the
//! child and waits neither for responses nor for its exit. A silent driver is reported like any
//! response. This process never loads the driver's library.

mod child;
mod deadlines;
mod poller;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::Builder;
use std::time::Duration;

pub use child::HELPER;
pub use deadlines::Patience;

use crate::model::{GpuDriver, Observation, Reading, Readings, Schema, SeriesKey, Source};
use poller::DriverPoller;

/// Polling intervals: while engines live or memory is short, and otherwise.
const BUSY: Duration = Duration::from_secs(1);
const CALM: Duration = Duration::from_secs(10);

/// Interval between two reports of the state.
const TICK: Duration = Duration::from_secs(1);

/// Capacity of the queue to the loop. A report that does not fit is dropped and repeated.
const QUEUE: usize = 16;

/// Without a report for this long, the thread itself hangs, as in starting a process.
const SILENT_AFTER: Duration = Duration::from_secs(10);

const SOURCE: Source = Source::Gpu;

/// The series of the source, in the order of its values.
const SERIES: [&str; 5] = [
    "uma_gpu_driver_responsive",
    "uma_gpu_last_answer_age_seconds",
    "uma_gpu_child_restarts_total",
    "uma_gpu_child_abandoned_total",
    "uma_gpu_children_hanging",
];

/// Settings of the source.
#[derive(Clone, Debug)]
pub struct GpuSetup {
    /// This program, which runs as `program nvml-child`.
    pub program: PathBuf,
    /// The path of NVML; `None`: the loader's search path.
    pub library: Option<PathBuf>,
    /// The polling interval; `None`: automatic.
    pub interval: Option<Duration>,
    /// Time limits of the child.
    pub patience: Patience,
    /// Mount point of procfs.
    pub procfs: PathBuf,
    /// Reads the uptime clock.
    pub clock: fn() -> Duration,
}

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default)]
struct GpuTally {
    restarts: u64,
    abandoned: u64,
}

/// The loop's handle of the thread.
#[derive(Debug)]
pub struct GpuWatch {
    news: Receiver<Observation>,
    is_busy: Arc<AtomicBool>,
    schema: Arc<Schema>,
    /// The last report, while the thread reports once a second.
    last_report: Option<Duration>,
    last_error: Duration,
    /// Dropping it ends the thread.
    _lives: SyncSender<()>,
}

impl GpuWatch {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn start(setup: GpuSetup) -> io::Result<Self> {
        let (to, news) = sync_channel(QUEUE);
        let (lives, ended) = sync_channel(0);
        let is_busy = Arc::new(AtomicBool::new(false));
        let series = SERIES.iter().map(|name| SeriesKey::new(name, &[])).collect();
        let schema = Arc::new(Schema { series });
        let mut poller = DriverPoller::new(setup, to, Arc::clone(&is_busy), Arc::clone(&schema));
        Builder::new().name("gpu".to_owned()).spawn(move || poller.run(&ended))?;
        Ok(Self {
            news,
            is_busy,
            schema,
            last_report: None,
            last_error: Duration::ZERO,
            _lives: lives,
        })
    }

    /// Takes all new observations without waiting.
    pub fn take(&mut self, now: Duration, out: &mut Vec<Observation>) {
        for observation in self.news.try_iter() {
            let is_absent = matches!(
                &observation,
                Observation::Gpu(report) if matches!(report.driver, GpuDriver::Absent { .. })
            );
            self.last_report = Some(now).filter(|_| !is_absent);
            out.push(observation);
        }
        let Some(last_report) = self.last_report else { return };
        let is_due = now.saturating_sub(self.last_error) >= TICK;
        if now.saturating_sub(last_report) >= SILENT_AFTER && is_due {
            self.last_error = now;
            out.push(Observation::Readings(Readings {
                source: SOURCE,
                schema: Arc::clone(&self.schema),
                values: vec![Reading::Failed; SERIES.len()],
                took: now.saturating_sub(last_report),
                error: Some("the thread that polls the NVIDIA driver is silent".into()),
            }));
        }
    }

    /// Sets whether engines live or memory is short, which selects the short polling interval.
    pub fn set_busy(&self, is_busy: bool) {
        self.is_busy.store(is_busy, Ordering::Relaxed);
    }
}
