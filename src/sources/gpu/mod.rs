//! GPUs, as the NVIDIA driver tells of them.
//!
//! The driver is asked by a process of its own (`umawarden nvml-child`), for whoever asks it while
//! it waits for memory hangs with it, for hours and beyond the reach of SIGKILL. A thread asks that
//! process; it waits neither for its answers nor for its end, and that it is silent is told as well
//! as what it answers. Nothing of the driver is ever loaded into this process.

mod asker;
mod child;
mod course;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::Builder;
use std::time::Duration;

pub use course::Patience;

use crate::model::{GpuDriver, Observation, Reading, Readings, Schema, SeriesKey, Source};
use asker::Asker;

/// Between two questions while engines live or memory is short, and otherwise.
const BUSY: Duration = Duration::from_secs(1);
const CALM: Duration = Duration::from_secs(10);

/// How it stands is told so often.
const TICK: Duration = Duration::from_secs(1);

/// What may wait for the loop; more is dropped, and told again.
const NEWS: usize = 16;

/// The thread has told something by then, unless it hangs itself, as in starting a process.
const NEWS_TAKE: Duration = Duration::from_secs(10);

const SOURCE: Source = Source::Gpu;

/// What the source tells of itself, in the order of its values.
const SERIES: [&str; 5] = [
    "uma_gpu_driver_responsive",
    "uma_gpu_last_answer_age_seconds",
    "uma_gpu_child_restarts_total",
    "uma_gpu_child_abandoned_total",
    "uma_gpu_children_hanging",
];

/// How the driver is asked.
#[derive(Clone, Debug)]
pub struct GpuSetup {
    /// This program: `program nvml-child` asks.
    pub program: PathBuf,
    /// The library, where it is not where the loader finds it.
    pub library: Option<PathBuf>,
    /// Between two questions; `None`: by what happens.
    pub interval: Option<Duration>,
    /// How long what may take.
    pub patience: Patience,
    /// Where procfs is mounted.
    pub procfs: PathBuf,
    /// The uptime.
    pub clock: fn() -> Duration,
}

/// What is counted.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    restarts: u64,
    abandoned: u64,
}

/// The loop's end of the thread.
#[derive(Debug)]
pub struct GpuWatch {
    news: Receiver<Observation>,
    is_busy: Arc<AtomicBool>,
    schema: Arc<Schema>,
    /// When the thread has told something last, while it has something to tell once a second.
    heard: Option<Duration>,
    complained: Duration,
    /// The thread ends with it.
    _lives: SyncSender<()>,
}

impl GpuWatch {
    /// Starts the thread.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(setup: GpuSetup) -> io::Result<Self> {
        let (to, news) = sync_channel(NEWS);
        let (lives, ended) = sync_channel(0);
        let is_busy = Arc::new(AtomicBool::new(false));
        let series = SERIES.iter().map(|name| SeriesKey::new(name, &[])).collect();
        let schema = Arc::new(Schema { series });
        let mut asker = Asker::new(setup, to, Arc::clone(&is_busy), Arc::clone(&schema));
        Builder::new().name("gpu".to_owned()).spawn(move || asker.run(&ended))?;
        Ok(Self { news, is_busy, schema, heard: None, complained: Duration::ZERO, _lives: lives })
    }

    /// What is new. Never waits.
    pub fn take(&mut self, now: Duration, out: &mut Vec<Observation>) {
        for observation in self.news.try_iter() {
            let is_absent = matches!(
                &observation,
                Observation::Gpu(told) if matches!(told.driver, GpuDriver::Absent { .. })
            );
            self.heard = Some(now).filter(|_| !is_absent);
            out.push(observation);
        }
        let Some(heard) = self.heard else { return };
        let is_due = now.saturating_sub(self.complained) >= TICK;
        if now.saturating_sub(heard) >= NEWS_TAKE && is_due {
            self.complained = now;
            out.push(Observation::Readings(Readings {
                source: SOURCE,
                schema: Arc::clone(&self.schema),
                values: vec![Reading::Failed; SERIES.len()],
                took: now.saturating_sub(heard),
                error: Some("nobody tells whether the NVIDIA driver answers".into()),
            }));
        }
    }

    /// Whether engines live or memory is short: then the driver is asked more often.
    pub fn set_busy(&self, is_busy: bool) {
        self.is_busy.store(is_busy, Ordering::Relaxed);
    }
}
