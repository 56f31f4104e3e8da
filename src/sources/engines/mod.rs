//! Inference engines: their processes, health and load.
//!
//! Three threads watch them. The first scans `/proc` once a second, and more often while memory
//! falls. It samples loading engines twice a second. It may hang: reading a command line or
//! mappings takes a lock that a process may hold while its driver call waits for memory. The second
//! thread probes health, the third lists containers. No thread waits for another, and the loop only
//! takes their results.

mod claims;
mod clients;
mod containers;
mod details;
mod ends;
mod groups;
mod health;
mod health_address;
mod http;
mod identity;
mod inspect;
mod listing;
mod matching;
mod outputs;
mod pods;
mod ray;
mod raylets;
mod scan;
mod selection;
#[cfg(test)]
mod tests;
mod users;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use crate::model::{
    DeclaredEngine, LaunchedEngine, Observation, Reading, Readings, Schema, SeriesKey, Source,
};
pub use crate::supervisors::docker::USER_FOLDERS;
use crate::supervisors::docker::user_of;
pub use claims::AllClaims;
pub use containers::DockerPace;
use containers::{ContainerWatch, DockerState, SharedContainers};
use ends::EngineEnds;
use health::{HealthProber, Targets};
pub use inspect::{NotInspected, inspect_containers};
use outputs::Outputs;
use raylets::Raylets;
pub use scan::Scanner;
use users::UserWatch;

/// Interval between two full scans, and between two samples of known engines while one loads.
const CALM: Duration = Duration::from_secs(1);
const LOADING: Duration = Duration::from_millis(500);

/// The least pause after a scan, for machines on which a scan takes longer than its interval.
const LEAST_REST: Duration = Duration::from_millis(50);

/// Capacity of the queue to the loop. A result that does not fit is dropped; the next scan repeats
/// it.
const NEWS: usize = 256;

/// A scan that takes longer counts as hung.
const SCAN_TAKES: Duration = Duration::from_secs(10);

/// The most queries for an unknown container. Docker may list it a moment after the kernel shows
/// it, or never, if another runtime has started it.
const ASKED_FOR: u8 = 5;

/// A command to the scanner thread.
#[derive(Debug)]
enum ScanCommand {
    /// Replaces the declared engines.
    Declared(Vec<DeclaredEngine>),
    /// Adds a launched engine.
    Launched(LaunchedEngine),
    /// Requests a full scan at once.
    Scan,
}

/// Settings of the watch.
#[derive(Clone, Debug)]
pub struct EngineSetup {
    /// Mount point of procfs.
    pub procfs: PathBuf,
    /// The sockets of Docker and of compatible runtimes.
    pub docker: Vec<PathBuf>,
    /// The folder with the folders of users, in which their own runtimes have sockets.
    pub users: PathBuf,
    /// Possible CRI sockets of Kubernetes.
    pub cri: Vec<PathBuf>,
    /// The declared engines.
    pub declared: Vec<DeclaredEngine>,
    /// Intervals of the Docker queries.
    pub pace: DockerPace,
    /// Reads the uptime clock.
    pub clock: fn() -> Duration,
}

/// The loop's handle of the threads.
#[derive(Debug)]
pub struct EngineWatch {
    news: Receiver<Observation>,
    commands: Sender<ScanCommand>,
    is_loading: Arc<AtomicBool>,
    /// Whether a requested full scan has not ended yet.
    is_awaited: Arc<AtomicBool>,
    schema: Arc<Schema>,
    /// The end of the last scan, on the uptime clock.
    last_scan: Duration,
    complained: Duration,
}

impl EngineWatch {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn start(setup: EngineSetup) -> io::Result<Self> {
        let EngineSetup { procfs, docker, users, cri, declared, pace, clock } = setup;
        let (to, news) = sync_channel(NEWS);
        let (send, commands) = channel();
        let (query_docker, queries) = sync_channel(1);
        let is_loading = Arc::new(AtomicBool::new(false));
        let is_awaited = Arc::new(AtomicBool::new(false));
        let schema = schema();
        let targets = Targets::default();
        let mut prober = HealthProber::new(targets.clone(), to.clone(), clock)?;
        Builder::new().name("engine-health".to_owned()).spawn(move || prober.run())?;
        let scanner = Scanner::new(procfs.clone(), declared);
        let needs_docker = Arc::new(AtomicBool::new(scanner.needs_docker()));
        let containers = SharedContainers::default();
        let needs = Arc::clone(&needs_docker);
        let known = containers.clone();
        // What is in a user's folder is the user's, even if the configuration names it.
        let (named, docker): (Vec<_>, Vec<_>) =
            docker.into_iter().partition(|socket| user_of(socket).is_some());
        let sockets = (&*docker, cri, pace, procfs.clone());
        let mut watch = ContainerWatch::new(sockets, known, needs, to.clone(), clock)?;
        Builder::new().name("containers".to_owned()).spawn(move || watch.run(&queries))?;
        let (query_users, queries) = sync_channel(1);
        let paths = (users, named, procfs.clone());
        let mut watch = UserWatch::new(paths, pace, containers.clone(), clock)?;
        Builder::new().name("user-containers".to_owned()).spawn(move || watch.run(&queries))?;
        let mut scan_thread = EngineScanThread {
            scanner,
            ends: EngineEnds::new(procfs.clone()),
            outputs: Outputs::new(procfs.clone()),
            raylets: Raylets::new(procfs.clone()),
            procfs,
            to,
            targets,
            containers,
            needs_docker,
            query_docker,
            docker_queries: BTreeMap::new(),
            query_users,
            user_queries: BTreeMap::new(),
            schema: Arc::clone(&schema),
            is_loading: Arc::clone(&is_loading),
            is_awaited: Arc::clone(&is_awaited),
            clock,
        };
        Builder::new().name("engines".to_owned()).spawn(move || scan_thread.run(&commands))?;
        let last_scan = clock();
        let complained = last_scan;
        Ok(Self { news, commands: send, is_loading, is_awaited, schema, last_scan, complained })
    }

    /// Takes all new observations without waiting.
    pub fn take(&mut self, now: Duration, out: &mut Vec<Observation>) {
        for observation in self.news.try_iter() {
            if let Observation::Readings(readings) = &observation
                && readings.source == Source::Engines
            {
                self.last_scan = now;
            }
            out.push(observation);
        }
        let hangs = now.saturating_sub(self.last_scan) >= SCAN_TAKES;
        if hangs && now.saturating_sub(self.complained) >= CALM {
            self.complained = now;
            let seconds = now.saturating_sub(self.last_scan).as_secs();
            out.push(Observation::Readings(Readings {
                source: Source::Engines,
                schema: Arc::clone(&self.schema),
                values: vec![Reading::Failed; 2],
                took: now.saturating_sub(self.last_scan),
                error: Some(
                    format!(
                        "the scan of /proc/PID has not ended for {seconds} s: a process hangs in \
                         the kernel"
                    )
                    .into(),
                ),
            }));
        }
    }

    /// Replaces the declared engines.
    pub fn declare(&self, declared: Vec<DeclaredEngine>) {
        // A closed channel means that the program ends.
        let _ = self.commands.send(ScanCommand::Declared(declared));
    }

    /// Declares processes to be an engine, whatever their names.
    pub fn launched(&self, engine: LaunchedEngine) {
        let _ = self.commands.send(ScanCommand::Launched(engine));
    }

    /// Requests a full scan at once, without waiting. While a requested scan runs, no second one is
    /// queued.
    pub fn scan_now(&self) {
        if !self.is_awaited.swap(true, Ordering::Relaxed) {
            let _ = self.commands.send(ScanCommand::Scan);
        }
    }

    /// Sets whether an engine is loading, which shortens the sampling interval.
    pub fn set_loading(&self, is_loading: bool) {
        self.is_loading.store(is_loading, Ordering::Relaxed);
    }
}

fn schema() -> Arc<Schema> {
    Arc::new(Schema {
        series: vec![
            SeriesKey::new("uma_engine_scan_processes", &[]),
            SeriesKey::new("uma_engine_scan_silent_processes", &[]),
        ],
    })
}

struct EngineScanThread {
    scanner: Scanner,
    ends: EngineEnds,
    outputs: Outputs,
    raylets: Raylets,
    procfs: PathBuf,
    to: SyncSender<Observation>,
    targets: Targets,
    containers: SharedContainers,
    needs_docker: Arc<AtomicBool>,
    query_docker: SyncSender<()>,
    /// Queries for each container that Docker has not listed.
    docker_queries: BTreeMap<Arc<str>, u8>,
    query_users: SyncSender<()>,
    /// Queries for each user with a process in an unknown container.
    user_queries: BTreeMap<u32, u8>,
    schema: Arc<Schema>,
    is_loading: Arc<AtomicBool>,
    is_awaited: Arc<AtomicBool>,
    clock: fn() -> Duration,
}

impl EngineScanThread {
    fn run(&mut self, commands: &Receiver<ScanCommand>) {
        let mut next_full = Duration::ZERO;
        loop {
            let began = (self.clock)();
            let is_full = began >= next_full;
            if is_full {
                next_full = began + CALM;
            }
            self.scan(began, is_full);
            if is_full {
                self.is_awaited.store(false, Ordering::Relaxed);
            }
            let loads = self.is_loading.load(Ordering::Relaxed);
            let rest = if loads { LOADING } else { next_full.saturating_sub((self.clock)()) };
            match commands.recv_timeout(rest.max(LEAST_REST)) {
                Ok(ScanCommand::Launched(engine)) => {
                    if self.scanner.launched(engine) {
                        // The engine is reported as loading at once.
                        next_full = Duration::ZERO;
                    }
                }
                Ok(ScanCommand::Scan) => next_full = Duration::ZERO,
                Ok(ScanCommand::Declared(declared)) => {
                    self.scanner.declare(declared);
                    self.needs_docker.store(self.scanner.needs_docker(), Ordering::Relaxed);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn scan(&mut self, began: Duration, is_full: bool) {
        let is_loading = self.is_loading.load(Ordering::Relaxed);
        let found = match is_full {
            true => {
                let known = self.containers.get();
                let may_docker_report = known.docker_state != DockerState::Absent;
                self.scanner.know(known.containers, may_docker_report);
                self.scanner.scan(began, is_loading)
            }
            false => Ok(self.scanner.rescan(began)),
        };
        let took = (self.clock)().saturating_sub(began);
        let (values, error) = match found {
            Ok(mut readings) => {
                self.ends.update(began, &readings.engines);
                readings.ended = self.ends.unreported().to_vec();
                self.outputs.update(began, &readings.engines);
                readings.outputs = self.outputs.unreported().to_vec();
                self.raylets.update(began, &readings.engines);
                readings.ray_kills = self.raylets.unreported().to_vec();
                self.ends.set_raylets(self.raylets.servers());
                // The loop must learn of an engine before its health.
                if self.send(Observation::Engines(Box::new(readings.clone()))) {
                    self.ends.mark_reported();
                    self.outputs.mark_reported();
                    self.raylets.mark_reported();
                }
                self.targets.set(&readings.engines, &self.procfs);
                let counts = [self.scanner.processes(), self.scanner.silent()];
                (counts.map(|count| Reading::Value(count as f64)), None)
            }
            Err(error) => ([Reading::Failed; 2], Some(error.into())),
        };
        if is_full {
            self.query_new_containers();
            self.send(Observation::Readings(Readings {
                source: Source::Engines,
                schema: Arc::clone(&self.schema),
                values: values.to_vec(),
                took,
                error,
            }));
        }
    }

    /// Has runtimes asked for containers that have begun since.
    fn query_new_containers(&mut self) {
        let claims = self.scanner.claimed_containers();
        let is_new = count_queries(&mut self.docker_queries, &claims.unknown);
        let is_new_of_user = count_queries(&mut self.user_queries, &claims.unknown_of);
        self.containers.claim(claims);
        for (is_new, thread) in [(is_new, &self.query_docker), (is_new_of_user, &self.query_users)]
        {
            if is_new {
                // A query is already queued, or the thread has ended with the program.
                let _ = thread.try_send(());
            }
        }
    }

    /// A result that does not fit into the queue is repeated by the next scan.
    fn send(&self, observation: Observation) -> bool {
        self.to.try_send(observation).is_ok()
    }
}

/// Counts a query for each of these. Whether one has not been asked for often enough.
fn count_queries<K: Ord + Clone>(counts: &mut BTreeMap<K, u8>, unknown: &BTreeSet<K>) -> bool {
    counts.retain(|one, _| unknown.contains(one));
    let mut is_new = false;
    for one in unknown {
        let times = counts.entry(one.clone()).or_default();
        is_new |= *times < ASKED_FOR;
        *times = times.saturating_add(1);
    }
    is_new
}
