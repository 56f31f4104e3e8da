//! Lists running containers from Docker, on its own thread. A process belongs to the container
//! whose id its control group names.
//!
//! No other thread waits for it. Known containers stay known while Docker hangs or restarts: a
//! container keeps its labels for its whole life.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Runtime;

use super::pods::PodContainers;
use crate::model::{Observation, ProcessId, Reading, Readings, Schema, SeriesKey, Source};
use crate::parse::container::{Container, Containers, containers, inspected};
use crate::parse::process::stat;
use crate::supervisors::docker::{Docker, DockerError};

/// The most containers whose first process is queried in one pass.
pub(super) const MAX_INSPECTED: usize = 64;

/// Intervals and time limits of the Docker queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DockerPace {
    /// The time limit of a response.
    pub answer_takes: Duration,
    /// The interval while the configuration matches names or labels.
    pub wanted: Duration,
    /// The interval otherwise.
    pub unwanted: Duration,
    /// The shortest interval, however many containers are new.
    pub at_least: Duration,
}

impl Default for DockerPace {
    fn default() -> Self {
        Self {
            answer_takes: Duration::from_secs(5),
            wanted: Duration::from_secs(5),
            unwanted: Duration::from_secs(30),
            at_least: Duration::from_secs(1),
        }
    }
}

/// A container that is no longer listed may still have processes that end.
const KEPT: Duration = Duration::from_secs(60);
/// Above this number no unlisted container is kept.
const MAX_KNOWN: usize = 4096;

/// The state of the Docker socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum DockerState {
    /// Not queried yet.
    #[default]
    Unasked,
    /// The last query succeeded.
    Answers,
    /// There is no socket.
    Absent,
    /// The last query failed.
    Silent,
}

/// The known containers.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    pub(super) containers: Arc<Containers>,
    pub(super) docker_state: DockerState,
}

/// The known containers, shared by the thread that queries Docker and the scanner.
#[derive(Clone, Debug, Default)]
pub(super) struct Shared {
    known: Arc<Mutex<Known>>,
    claimed: Arc<Mutex<BTreeSet<Arc<str>>>>,
}

impl Shared {
    /// The present state.
    pub(super) fn get(&self) -> Known {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the containers that possible engine processes claim.
    pub(super) fn claim(&self, claimed: BTreeSet<Arc<str>>) {
        *self.claimed.lock().unwrap_or_else(PoisonError::into_inner) = claimed;
    }

    fn claimed(&self) -> BTreeSet<Arc<str>> {
        self.claimed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, known: Known) {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = known;
    }
}

/// Queries Docker.
#[derive(Debug)]
pub(super) struct ContainerWatch {
    socket: PathBuf,
    pace: DockerPace,
    procfs: PathBuf,
    shared: Shared,
    to: SyncSender<Observation>,
    clock: fn() -> Duration,
    /// Whether the configuration matches names or labels.
    is_wanted: Arc<AtomicBool>,
    schema: Arc<Schema>,
    runtime: Runtime,
    has_answered: bool,
    /// Each with the time of its last listing.
    listed: BTreeMap<Arc<str>, (Container, Duration)>,
    /// Containers whose last inspection got no response.
    silent: BTreeSet<Arc<str>>,
    pods: PodContainers,
}

impl ContainerWatch {
    pub(super) fn new(
        (socket, pods, pace, procfs): (PathBuf, Vec<PathBuf>, DockerPace, PathBuf),
        shared: Shared,
        is_wanted: Arc<AtomicBool>,
        to: SyncSender<Observation>,
        clock: fn() -> Duration,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let schema = Arc::new(Schema { series: vec![SeriesKey::new("uma_containers", &[])] });
        let (listed, has_answered) = (BTreeMap::new(), false);
        let pods = PodContainers::new(pods, procfs.clone(), pace.answer_takes);
        Ok(Self {
            socket,
            pace,
            procfs,
            shared,
            to,
            clock,
            is_wanted,
            schema,
            runtime,
            has_answered,
            listed,
            silent: BTreeSet::new(),
            pods,
        })
    }

    /// Runs until the loop ends. `news` signals a claimed container that is unknown.
    pub(super) fn run(&mut self, news: &Receiver<()>) {
        loop {
            let began = (self.clock)();
            self.query(began);
            let wanted = self.is_wanted.load(Ordering::Relaxed);
            let pace = self.pace;
            let next = began + if wanted { pace.wanted } else { pace.unwanted };
            let rest = next.saturating_sub((self.clock)());
            match news.recv_timeout(rest.max(pace.at_least)) {
                Ok(()) => {
                    let soon = (began + pace.at_least).saturating_sub((self.clock)());
                    std::thread::sleep(soon);
                    while news.try_recv().is_ok() {}
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn query(&mut self, began: Duration) {
        let answer = self.list();
        let took = (self.clock)().saturating_sub(began);
        let socket = self.socket.display();
        let (docker_state, value, error) = match answer {
            Ok(containers) => {
                let count = containers.len();
                self.take(containers, began);
                (DockerState::Answers, Reading::Value(count as f64), None)
            }
            Err(DockerError::Absent) => {
                let why = format!("there is no Docker at {socket}: check path.docker_socket");
                (DockerState::Absent, Reading::Unsupported, Some(why))
            }
            Err(error) => {
                let why = match error {
                    DockerError::Refused => {
                        format!("no process listens at {socket}: is Docker running?")
                    }
                    DockerError::TimedOut(patience) => {
                        format!("{socket} has not answered within {} s", patience.as_secs())
                    }
                    error => format!("{socket}: {error}"),
                };
                (DockerState::Silent, Reading::Failed, Some(why))
            }
        };
        let is_absent = docker_state == DockerState::Absent;
        let claimed = self.shared.claimed();
        let unknown_here = claimed.iter().filter(|id| !self.listed.contains_key(*id)).collect();
        self.pods.query(&self.runtime, &unknown_here);
        let containers =
            self.listed.iter().map(|(id, (listed, _))| (Arc::clone(id), listed.clone()));
        let mut containers: Containers = containers.collect();
        containers.extend(self.pods.known().clone());
        self.shared.set(Known { containers: Arc::new(containers), docker_state });
        // An absent Docker is an error only if it was there before, or the configuration needs it.
        if is_absent && !self.has_answered && !self.is_wanted.load(Ordering::Relaxed) {
            return;
        }
        // The queue is full. The next query repeats the result.
        let _ = self.to.try_send(Observation::Readings(Readings {
            source: Source::Docker,
            schema: Arc::clone(&self.schema),
            values: vec![value],
            took,
            error: error.map(Arc::from),
        }));
    }

    fn take(&mut self, mut containers: Containers, now: Duration) {
        self.has_answered = true;
        for (id, container) in &mut containers {
            // Only an inspection returns the first process.
            let before = self.listed.get(id).and_then(|(listed, _)| listed.init);
            container.init = container.init.or(before);
        }
        let is_full = self.listed.len() >= MAX_KNOWN;
        let is_kept = |listed: Duration| !is_full && now.saturating_sub(listed) < KEPT;
        self.listed.retain(|id, (_, listed)| containers.contains_key(id) || is_kept(*listed));
        self.listed.extend(containers.into_iter().map(|(id, listed)| (id, (listed, now))));
    }

    fn list(&mut self) -> Result<Containers, DockerError> {
        let docker = Docker::new(&self.socket);
        let text = self.runtime.block_on(docker.list(false, self.pace.answer_takes))?;
        let mut listed = containers(&text).map_err(DockerError::Failed)?;
        let claimed = self.shared.claimed();
        self.silent.retain(|id| claimed.contains(id));
        let lives = |init: ProcessId| process(&self.procfs, init.pid) == Some(init);
        let is_known = |id: &Arc<str>| {
            self.listed.get(id).and_then(|(listed, _)| listed.init).is_some_and(lives)
        };
        let unknown = listed.iter_mut().filter(|(id, _)| claimed.contains(*id) && !is_known(id));
        let mut unknown: Vec<_> = unknown.collect();
        // Containers without a response come last, so that they delay no others.
        unknown.sort_by_key(|(id, _)| self.silent.contains(*id));
        let mut silent = None;
        for (id, container) in unknown.into_iter().take(MAX_INSPECTED) {
            let Ok(init) = self.runtime.block_on(self.init(&docker, id)) else {
                silent = Some(Arc::clone(id));
                break;
            };
            container.init = init;
        }
        self.silent.extend(silent);
        Ok(listed)
    }

    /// The first process of a container.
    async fn init(&self, docker: &Docker, id: &str) -> Result<Option<ProcessId>, DockerError> {
        let found = match docker.inspect(id, self.pace.answer_takes).await {
            Ok(found) => inspected(&found.text).ok().filter(|found| *found.id == *id),
            Err(DockerError::Status { .. }) => None,
            Err(error) => return Err(error),
        };
        let pid = found.and_then(|found| found.pid);
        Ok(pid.and_then(|pid| process(&self.procfs, pid)))
    }
}

/// The process with this number now.
pub(super) fn process(procfs: &Path, pid: u32) -> Option<ProcessId> {
    let text = std::fs::read(procfs.join(pid.to_string()).join("stat")).ok()?;
    Some(ProcessId { pid, start_ticks: stat(&text)?.start_ticks })
}
