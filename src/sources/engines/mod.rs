//! Inference engines: their processes, and what they answer.
//!
//! A thread looks through `/proc` once a second, more often while memory goes and it must be known
//! to whom, and twice a second at those that load; it may hang there, for to read a process'
//! command line or its mappings takes a lock that the process may hold while the driver waits for
//! memory. A second one asks for health, and a third asks Docker which containers run. Neither
//! waits for another, and the loop only takes what they have found.

mod containers;
mod details;
mod ends;
mod groups;
mod health;
mod http;
mod identity;
mod inspect;
mod matching;
mod places;
mod pods;
mod scan;
mod selection;
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
    DeclaredEngine, LaunchedEngine, Observation, Reading, Readings, Schema, SeriesKey, Source,
};
pub use containers::DockerPace;
use containers::{ContainerWatch, Shared, Standing};
use ends::Ends;
use health::{Asker, Targets};
pub use inspect::{NotInspected, inspect_containers};
pub use scan::Scanner;

/// Between two looks at everything, and between two at what is known while something loads.
const CALM: Duration = Duration::from_secs(1);
const LOADING: Duration = Duration::from_millis(500);

/// One that takes all of its time to look leaves some to others.
const LEAST_REST: Duration = Duration::from_millis(50);

/// What may wait for the loop; more is dropped, and seen again at the next look.
const NEWS: usize = 256;

/// A look that takes longer hangs.
const LOOK_TAKES: Duration = Duration::from_secs(10);

/// A container that nothing is known of is asked for so often: Docker may know it a moment later
/// than the kernel, or never, where somebody else has started it.
const ASKED_FOR: u8 = 5;

/// What the looker is told.
#[derive(Debug)]
enum Told {
    /// Other engines are declared from now on.
    Declared(Vec<DeclaredEngine>),
    /// One was launched.
    Launched(LaunchedEngine),
    /// It must be known who is there.
    Look,
}

/// Where to look.
#[derive(Clone, Debug)]
pub struct EngineSetup {
    /// Where procfs is mounted.
    pub procfs: PathBuf,
    /// The socket of Docker, or of what speaks its language.
    pub docker: PathBuf,
    /// Sockets at which a container runtime of Kubernetes may serve the CRI.
    pub cri: Vec<PathBuf>,
    /// What the configuration declares.
    pub declared: Vec<DeclaredEngine>,
    /// How Docker is asked.
    pub pace: DockerPace,
    /// The uptime.
    pub clock: fn() -> Duration,
}

/// The loop's end of the threads.
#[derive(Debug)]
pub struct EngineWatch {
    news: Receiver<Observation>,
    told: Sender<Told>,
    is_loading: Arc<AtomicBool>,
    /// A look at everything is asked for, and has not ended yet.
    is_awaited: Arc<AtomicBool>,
    schema: Arc<Schema>,
    /// When the last look ended, on the uptime clock.
    looked: Duration,
    complained: Duration,
}

impl EngineWatch {
    /// Starts the threads.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(setup: EngineSetup) -> io::Result<Self> {
        let EngineSetup { procfs, docker, cri, declared, pace, clock } = setup;
        let (to, news) = sync_channel(NEWS);
        let (tell, told) = channel();
        let (ask_docker, asked) = sync_channel(1);
        let is_loading = Arc::new(AtomicBool::new(false));
        let is_awaited = Arc::new(AtomicBool::new(false));
        let schema = schema();
        let targets = Targets::default();
        let mut asker = Asker::new(targets.clone(), to.clone(), clock)?;
        Builder::new().name("engine-health".to_owned()).spawn(move || asker.run())?;
        let scanner = Scanner::new(procfs.clone(), declared);
        let needs_docker = Arc::new(AtomicBool::new(scanner.needs_docker()));
        let containers = Shared::default();
        let needs = Arc::clone(&needs_docker);
        let known = containers.clone();
        let sockets = (docker, cri, pace, procfs.clone());
        let mut watch = ContainerWatch::new(sockets, known, needs, to.clone(), clock)?;
        Builder::new().name("containers".to_owned()).spawn(move || watch.run(&asked))?;
        let mut looker = Looker {
            scanner,
            ends: Ends::new(procfs.clone()),
            procfs,
            to,
            targets,
            containers,
            needs_docker,
            ask_docker,
            asked_for: BTreeMap::new(),
            schema: Arc::clone(&schema),
            is_loading: Arc::clone(&is_loading),
            is_awaited: Arc::clone(&is_awaited),
            clock,
        };
        Builder::new().name("engines".to_owned()).spawn(move || looker.run(&told))?;
        let looked = clock();
        let complained = looked;
        Ok(Self { news, told: tell, is_loading, is_awaited, schema, looked, complained })
    }

    /// What is new. Never waits.
    pub fn take(&mut self, now: Duration, out: &mut Vec<Observation>) {
        for observation in self.news.try_iter() {
            if let Observation::Readings(readings) = &observation
                && readings.source == Source::Engines
            {
                self.looked = now;
            }
            out.push(observation);
        }
        let hangs = now.saturating_sub(self.looked) >= LOOK_TAKES;
        if hangs && now.saturating_sub(self.complained) >= CALM {
            self.complained = now;
            let seconds = now.saturating_sub(self.looked).as_secs();
            out.push(Observation::Readings(Readings {
                source: Source::Engines,
                schema: Arc::clone(&self.schema),
                values: vec![Reading::Failed; 2],
                took: now.saturating_sub(self.looked),
                error: Some(
                    format!(
                        "looking at /proc/PID has not ended for {seconds} s: a process hangs in \
                         the kernel"
                    )
                    .into(),
                ),
            }));
        }
    }

    /// Other engines are declared from now on.
    pub fn declare(&self, declared: Vec<DeclaredEngine>) {
        // The thread has ended only if the program does.
        let _ended = self.told.send(Told::Declared(declared));
    }

    /// These processes are an engine, whatever they are called.
    pub fn launched(&self, engine: LaunchedEngine) {
        let _ended = self.told.send(Told::Launched(engine));
    }

    /// All processes are looked through at once. Never waits; while such a look has not ended there
    /// is no second one.
    pub fn look_now(&self) {
        if !self.is_awaited.swap(true, Ordering::Relaxed) {
            let _ended = self.told.send(Told::Look);
        }
    }

    /// Whether any engine is on its way to be ready: then they are looked at more often.
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

struct Looker {
    scanner: Scanner,
    ends: Ends,
    procfs: PathBuf,
    to: SyncSender<Observation>,
    targets: Targets,
    containers: Shared,
    needs_docker: Arc<AtomicBool>,
    ask_docker: SyncSender<()>,
    /// How often Docker was asked for a container that it has not told of.
    asked_for: BTreeMap<Arc<str>, u8>,
    schema: Arc<Schema>,
    is_loading: Arc<AtomicBool>,
    is_awaited: Arc<AtomicBool>,
    clock: fn() -> Duration,
}

impl Looker {
    fn run(&mut self, told: &Receiver<Told>) {
        let mut next_full = Duration::ZERO;
        loop {
            let began = (self.clock)();
            let is_full = began >= next_full;
            if is_full {
                next_full = began + CALM;
            }
            self.look(began, is_full);
            if is_full {
                self.is_awaited.store(false, Ordering::Relaxed);
            }
            let loads = self.is_loading.load(Ordering::Relaxed);
            let rest = if loads { LOADING } else { next_full.saturating_sub((self.clock)()) };
            match told.recv_timeout(rest.max(LEAST_REST)) {
                Ok(Told::Launched(engine)) => {
                    if self.scanner.launched(engine) {
                        // It is told as loading at once.
                        next_full = Duration::ZERO;
                    }
                }
                Ok(Told::Look) => next_full = Duration::ZERO,
                Ok(Told::Declared(declared)) => {
                    self.scanner.declare(declared);
                    self.needs_docker.store(self.scanner.needs_docker(), Ordering::Relaxed);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn look(&mut self, began: Duration, is_full: bool) {
        let is_loading = self.is_loading.load(Ordering::Relaxed);
        let found = match is_full {
            true => {
                let known = self.containers.get();
                let may_tell = known.standing != Standing::Absent;
                self.scanner.know(known.containers, may_tell);
                self.scanner.look(began, is_loading)
            }
            false => Ok(self.scanner.look_again(began)),
        };
        let took = (self.clock)().saturating_sub(began);
        let (values, error) = match found {
            Ok(mut readings) => {
                self.ends.look(began, &readings.engines);
                readings.ended = self.ends.untold().to_vec();
                // The loop must know an engine before it hears of its health.
                if self.send(Observation::Engines(Box::new(readings.clone()))) {
                    self.ends.told();
                }
                self.targets.set(&readings.engines, &self.procfs);
                let counts = [self.scanner.processes(), self.scanner.silent()];
                (counts.map(|count| Reading::Value(count as f64)), None)
            }
            Err(error) => ([Reading::Failed; 2], Some(error.into())),
        };
        if is_full {
            self.ask_for_containers();
            self.send(Observation::Readings(Readings {
                source: Source::Engines,
                schema: Arc::clone(&self.schema),
                values: values.to_vec(),
                took,
                error,
            }));
        }
    }

    /// Has Docker asked for containers that have begun since.
    fn ask_for_containers(&mut self) {
        let (claimed, unknown) = self.scanner.claimed_containers();
        self.containers.claim(claimed);
        self.asked_for.retain(|id, _| unknown.contains(id));
        let mut is_new = false;
        for id in unknown {
            let times = self.asked_for.entry(id).or_default();
            is_new |= *times < ASKED_FOR;
            *times = times.saturating_add(1);
        }
        if is_new {
            // It is about to ask, or has ended with the program.
            let _asks_already = self.ask_docker.try_send(());
        }
    }

    /// What the loop does not take in time is seen again.
    fn send(&self, observation: Observation) -> bool {
        self.to.try_send(observation).is_ok()
    }
}
