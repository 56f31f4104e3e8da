//! Asks Docker which containers run, on a thread of its own: what it tells belongs to processes by
//! the container's id, which their control groups name.
//!
//! Nobody waits for it. What it has told stays known while it hangs or is started anew, for a
//! container keeps its labels for as long as it lives.

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
use crate::supervisors::docker::{Docker, NoAnswer};

/// Running ones only. Without a version in the path whatever version it speaks is spoken.
const LIST: &str = "/containers/json";

/// Of an answer no more is read.
const MAX_BODY_BYTES: usize = 16 << 20;
const MAX_INSPECT_BYTES: usize = 1 << 20;

/// Of so many containers it is asked which process is their first, each time that it is asked.
pub(super) const MAX_INSPECTED: usize = 64;

/// How often Docker is asked, and how long it may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DockerPace {
    /// How long it may take to answer.
    pub answer_takes: Duration,
    /// Between two questions, while the configuration asks for names or labels.
    pub wanted: Duration,
    /// The same otherwise.
    pub unwanted: Duration,
    /// However many new containers there are, it is asked no more often.
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

/// A container that is no longer told may still have processes that end.
const KEPT: Duration = Duration::from_secs(60);
/// Where there are more of those, none of them is kept.
const MAX_KNOWN: usize = 4096;

/// How it fares with Docker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Standing {
    /// It has not been asked yet.
    #[default]
    Unasked,
    /// It has answered.
    Answers,
    /// There is none.
    Absent,
    /// It is there, and does not tell.
    Silent,
}

/// What is known.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    pub(super) containers: Arc<Containers>,
    pub(super) standing: Standing,
}

/// What is known, shared by those who ask and those who look.
#[derive(Clone, Debug, Default)]
pub(super) struct Shared {
    known: Arc<Mutex<Known>>,
    claimed: Arc<Mutex<BTreeSet<Arc<str>>>>,
}

impl Shared {
    /// As it is now.
    pub(super) fn get(&self) -> Known {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Processes that may be engines say that they are in those containers.
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

/// Asks.
#[derive(Debug)]
pub(super) struct ContainerWatch {
    socket: PathBuf,
    pace: DockerPace,
    procfs: PathBuf,
    shared: Shared,
    to: SyncSender<Observation>,
    clock: fn() -> Duration,
    /// Whether the configuration asks for names or labels.
    is_wanted: Arc<AtomicBool>,
    schema: Arc<Schema>,
    runtime: Runtime,
    has_answered: bool,
    /// Each with when it was told last.
    told: BTreeMap<Arc<str>, (Container, Duration)>,
    /// Of which Docker did not answer when it was asked last.
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
        let (told, has_answered) = (BTreeMap::new(), false);
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
            told,
            silent: BTreeSet::new(),
            pods,
        })
    }

    /// Until nobody can want to know any more. `news`: there is a container that nothing is known
    /// of.
    pub(super) fn run(&mut self, news: &Receiver<()>) {
        loop {
            let began = (self.clock)();
            self.ask(began);
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

    fn ask(&mut self, began: Duration) {
        let answer = self.list();
        let took = (self.clock)().saturating_sub(began);
        let socket = self.socket.display();
        let (standing, value, error) = match answer {
            Ok(containers) => {
                let count = containers.len();
                self.take(containers, began);
                (Standing::Answers, Reading::Value(count as f64), None)
            }
            Err(NoAnswer::Absent) => {
                let why = format!("there is no Docker at {socket}: look at path.docker_socket");
                (Standing::Absent, Reading::Unsupported, Some(why))
            }
            Err(error) => {
                let why = match error {
                    NoAnswer::Refused => format!("nobody listens at {socket}: is Docker running?"),
                    NoAnswer::TimedOut(patience) => {
                        format!("{socket} has not answered within {} s", patience.as_secs())
                    }
                    NoAnswer::Failed(error) => format!("{socket}: {error}"),
                    NoAnswer::Absent => format!("{socket} is not there"),
                };
                (Standing::Silent, Reading::Failed, Some(why))
            }
        };
        let is_absent = standing == Standing::Absent;
        let claimed = self.shared.claimed();
        let unknown_here = claimed.iter().filter(|id| !self.told.contains_key(*id)).collect();
        self.pods.query(&self.runtime, &unknown_here);
        let containers = self.told.iter().map(|(id, (told, _))| (Arc::clone(id), told.clone()));
        let mut containers: Containers = containers.collect();
        containers.extend(self.pods.known().clone());
        self.shared.set(Known { containers: Arc::new(containers), standing });
        // Without Docker nothing is lacking, unless it was there or the configuration asks for it.
        if is_absent && !self.has_answered && !self.is_wanted.load(Ordering::Relaxed) {
            return;
        }
        // What the loop does not take in time is told again.
        let _full = self.to.try_send(Observation::Readings(Readings {
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
            // Only who is asked of one says which process is its first.
            let before = self.told.get(id).and_then(|(told, _)| told.init);
            container.init = container.init.or(before);
        }
        let is_full = self.told.len() >= MAX_KNOWN;
        let is_kept = |told: Duration| !is_full && now.saturating_sub(told) < KEPT;
        self.told.retain(|id, (_, told)| containers.contains_key(id) || is_kept(*told));
        self.told.extend(containers.into_iter().map(|(id, told)| (id, (told, now))));
    }

    fn list(&mut self) -> Result<Containers, NoAnswer> {
        let docker = Docker::new(&self.socket);
        let asked = docker.get(LIST, MAX_BODY_BYTES, self.pace.answer_takes);
        // Of the runtime's own time there is none outside of it.
        let answer = self.runtime.block_on(asked)?;
        if answer.status != 200 {
            return Err(NoAnswer::Failed(answer.message()));
        }
        let mut listed = containers(&answer.body).map_err(NoAnswer::Failed)?;
        let claimed = self.shared.claimed();
        self.silent.retain(|id| claimed.contains(id));
        let lives = |init: ProcessId| process(&self.procfs, init.pid) == Some(init);
        let is_known =
            |id: &Arc<str>| self.told.get(id).and_then(|(told, _)| told.init).is_some_and(lives);
        let unknown = listed.iter_mut().filter(|(id, _)| claimed.contains(*id) && !is_known(id));
        let mut unknown: Vec<_> = unknown.collect();
        // One that does not answer keeps none of the others unknown.
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
    async fn init(&self, docker: &Docker, id: &str) -> Result<Option<ProcessId>, NoAnswer> {
        let path = format!("/containers/{id}/json");
        let answer = docker.get(&path, MAX_INSPECT_BYTES, self.pace.answer_takes).await?;
        let found = inspected(&answer.body).ok().filter(|found| *found.id == *id);
        let pid = found.and_then(|found| found.pid);
        Ok(pid.and_then(|pid| process(&self.procfs, pid)))
    }
}

/// The process that has that number now.
pub(super) fn process(procfs: &Path, pid: u32) -> Option<ProcessId> {
    let text = std::fs::read(procfs.join(pid.to_string()).join("stat")).ok()?;
    Some(ProcessId { pid, start_ticks: stat(&text)?.start_ticks })
}
