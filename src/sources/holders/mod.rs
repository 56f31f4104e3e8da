//! Processes that have the driver open, of all PID namespaces in this `/proc`, including blocked
//! and half-dead ones.
//!
//! A thread of its own scans, since reading the mappings of a process takes a lock that a hanging
//! process may hold. The loop only takes results, and reports their absence.

mod memory;
mod scan;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use crate::model::{
    Event, EventKind, HolderReadings, KernelEvent, Observation, Reading, Readings, Schema,
    SeriesKey, Source,
};
use scan::HolderScan;

/// Between two scans. Assessments from them take minutes.
const EVERY: Duration = Duration::from_secs(10);

/// The largest share of time for scans, on machines with many processes.
const SHARE: u32 = 50;

/// A longer scan hangs.
const SCAN_TAKES: Duration = Duration::from_secs(10);

/// Between two warnings about that.
const COMPLAINS: Duration = Duration::from_secs(5);

/// Results in the queue. Further ones are dropped, and found again by the next scan.
const NEWS: usize = 8;

/// The most tracked tasks: the kernel reports at most ten hung ones
/// (kernel.hung_task_warnings), each with the owner of its lock.
const MAX_TASKS: usize = 32;

/// How long a task is tracked. An older report is no sign any more.
const TRACKED_FOR: Duration = Duration::from_secs(600);

/// What the thread needs.
#[derive(Clone, Debug)]
pub struct HolderSetup {
    /// Where procfs is mounted.
    pub procfs: PathBuf,
    /// Where sysfs is mounted.
    pub sysfs: PathBuf,
    /// The uptime.
    pub clock: fn() -> Duration,
}

/// Requests to the thread.
#[derive(Clone, Copy, Debug)]
enum ScanRequest {
    /// Scan all processes at once.
    Now,
    /// Track this task.
    Task(u32),
}

/// The loop's handle of the thread.
#[derive(Debug)]
pub struct HolderWatch {
    news: Receiver<Observation>,
    /// Requests; the thread ends when this is dropped.
    requests: Sender<ScanRequest>,
    /// A requested scan has not ended yet.
    is_awaited: Arc<AtomicBool>,
    schema: Arc<Schema>,
    /// When the last scan ended, by uptime, and the time until the next.
    last_scan: Duration,
    rests: Duration,
    complained: Duration,
}

impl HolderWatch {
    /// Starts the thread.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(setup: HolderSetup) -> io::Result<Self> {
        let HolderSetup { procfs, sysfs, clock } = setup;
        let (to, news) = sync_channel(NEWS);
        let (requests, received) = channel();
        let schema = schema();
        let is_awaited = Arc::new(AtomicBool::new(false));
        let mut scan_thread = HolderScanThread {
            scan: HolderScan::new(procfs, sysfs, std::process::id()),
            to,
            is_awaited: Arc::clone(&is_awaited),
            schema: Arc::clone(&schema),
            clock,
            tracked: BTreeMap::new(),
        };
        Builder::new().name("holders".to_owned()).spawn(move || scan_thread.run(&received))?;
        let last_scan = clock();
        Ok(Self {
            news,
            requests,
            is_awaited,
            schema,
            last_scan,
            rests: EVERY,
            complained: last_scan,
        })
    }

    /// Requests a scan of all processes, unless one is pending. Never blocks.
    pub fn scan_now(&self) {
        if !self.is_awaited.swap(true, Ordering::Relaxed) {
            // The thread ends only with the program.
            let _ = self.requests.send(ScanRequest::Now);
        }
    }

    /// Tracks tasks that the kernel log reports as hung for ten minutes. Never blocks.
    pub fn track_hung(&self, events: &[Event]) {
        let hung = events.iter().filter(|event| !event.is_claimed());
        let named = hung.filter_map(|event| match &event.kind {
            EventKind::Kernel(KernelEvent::HungTask { pid, owner_pid, .. }) => {
                Some([Some(*pid), *owner_pid])
            }
            _ => None,
        });
        for task in named.flatten().flatten() {
            // Without the thread nothing is tracked, and the source is down.
            let _ = self.requests.send(ScanRequest::Task(task));
        }
    }

    /// Takes new results. Never blocks.
    pub fn take(&mut self, now: Duration, out: &mut Vec<Observation>) {
        for observation in self.news.try_iter() {
            if let Observation::Readings(readings) = &observation {
                self.last_scan = now;
                self.rests = rest(readings.took);
            }
            out.push(observation);
        }
        let silent = now.saturating_sub(self.last_scan);
        let hangs = silent >= self.rests.saturating_add(SCAN_TAKES);
        if hangs && now.saturating_sub(self.complained) >= COMPLAINS {
            self.complained = now;
            let why = format!(
                "the scan of open files has not ended for {} s: one hangs in the \
                 kernel",
                silent.as_secs()
            );
            out.push(observation(
                &self.schema,
                Reading::Failed,
                Reading::Failed,
                silent,
                Some(why),
            ));
        }
    }
}

fn rest(took: Duration) -> Duration {
    EVERY.max(took.saturating_mul(SHARE))
}

fn schema() -> Arc<Schema> {
    Arc::new(Schema {
        series: vec![
            SeriesKey::new("uma_driver_holders", &[]),
            SeriesKey::new("uma_driver_holders_unseen_processes", &[]),
        ],
    })
}

fn observation(
    schema: &Arc<Schema>,
    holders: Reading<f64>,
    unseen: Reading<f64>,
    took: Duration,
    error: Option<String>,
) -> Observation {
    Observation::Readings(Readings {
        source: Source::Holders,
        schema: Arc::clone(schema),
        values: vec![holders, unseen],
        took,
        error: error.map(Arc::from),
    })
}

struct HolderScanThread {
    scan: HolderScan,
    to: SyncSender<Observation>,
    is_awaited: Arc<AtomicBool>,
    schema: Arc<Schema>,
    clock: fn() -> Duration,
    /// Tracked tasks by pid, with the time of the last request.
    tracked: BTreeMap<u32, Duration>,
}

impl HolderScanThread {
    fn run(&mut self, received: &Receiver<ScanRequest>) {
        let mut is_urgent = false;
        loop {
            let began = (self.clock)();
            self.tracked.retain(|_, named| began.saturating_sub(*named) < TRACKED_FOR);
            let numbers: Vec<u32> = self.tracked.keys().copied().collect();
            let tasks = self.scan.tasks(&numbers);
            let readings = HolderReadings { tasks, ..self.scan.run(began, is_urgent) };
            let took = (self.clock)().saturating_sub(began);
            self.send(readings, took);
            if is_urgent {
                self.is_awaited.store(false, Ordering::Relaxed);
            }
            match self.rest(rest(took), received) {
                Ok(is_requested) => is_urgent = is_requested,
                Err(_) => return,
            }
        }
    }

    /// Sleeps, and takes requests. Returns whether a scan was requested; an error: the loop has
    /// ended.
    fn rest(
        &mut self,
        long: Duration,
        received: &Receiver<ScanRequest>,
    ) -> Result<bool, RecvTimeoutError> {
        let until = (self.clock)().saturating_add(long);
        loop {
            let left = until.saturating_sub((self.clock)());
            match received.recv_timeout(left) {
                Ok(ScanRequest::Now) => return Ok(true),
                Ok(ScanRequest::Task(task)) => {
                    let has_space = self.tracked.len() < MAX_TASKS;
                    if has_space || self.tracked.contains_key(&task) {
                        self.tracked.insert(task, (self.clock)());
                    }
                }
                Err(RecvTimeoutError::Timeout) => return Ok(false),
                Err(ended) => return Err(ended),
            }
        }
    }

    fn send(&self, readings: HolderReadings, took: Duration) {
        let users = readings.holders.iter().filter(|holder| holder.uses_driver()).count();
        let (holders, unseen) = match &readings.error {
            Some(_) => (Reading::Failed, Reading::Failed),
            None => (Reading::Value(users as f64), Reading::Value(f64::from(readings.unseen))),
        };
        let error = readings.error.as_deref().map(str::to_owned).or_else(|| blind(&readings));
        // A dropped result is found again.
        let _ = self.to.try_send(Observation::Holders(Box::new(readings)));
        let _ = self.to.try_send(observation(&self.schema, holders, unseen, took, error));
    }
}

/// Why hardly anything is visible, if so.
fn blind(readings: &HolderReadings) -> Option<String> {
    let is_blind = readings.unseen > 0 && readings.unseen.saturating_mul(2) > readings.processes;
    is_blind.then(|| {
        format!(
            "cannot see what {} of {} processes have open: needs root or CAP_SYS_PTRACE; without, \
             memory is never reported as leaked",
            readings.unseen, readings.processes
        )
    })
}
