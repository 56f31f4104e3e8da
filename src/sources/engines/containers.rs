//! Lists the running containers of the system's runtimes, on its own thread. A process belongs to
//! the container whose id its control group names. No other thread waits for it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Runtime;

use super::claims::{AllClaims, Claims};
use super::listing::RuntimeListing;
use super::pods::PodContainers;
use crate::model::{Observation, Reading, Readings, Schema, SeriesKey, Source};
use crate::parse::container::{Containers, NodeContainers};
use crate::supervisors::docker::{Docker, DockerError};

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

/// The state of the sockets with Docker's API.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

#[derive(Clone, Debug, Default)]
pub(super) struct KnownContainers {
    pub(super) containers: NodeContainers,
    pub(super) docker_state: DockerState,
}

/// The known containers, shared by the threads that query runtimes and the scanner.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedContainers {
    known: Arc<Mutex<KnownContainers>>,
    claimed: Arc<Mutex<AllClaims>>,
}

impl SharedContainers {
    /// The present state.
    pub(super) fn get(&self) -> KnownContainers {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the containers that possible engine processes claim.
    pub(super) fn claim(&self, claimed: AllClaims) {
        *self.claimed.lock().unwrap_or_else(PoisonError::into_inner) = claimed;
    }

    pub(super) fn claimed(&self) -> AllClaims {
        self.claimed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_system(&self, containers: Containers, docker_state: DockerState) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.containers.system = Arc::new(containers);
        known.docker_state = docker_state;
    }

    /// Sets the containers of users' own runtimes, and why runtimes cannot be queried.
    pub(super) fn set_of_users(
        &self,
        containers: BTreeMap<u32, Containers>,
        errors: BTreeMap<u32, Arc<str>>,
    ) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.containers.of_users = Arc::new(containers);
        known.containers.user_errors = Arc::new(errors);
    }
}

/// Waits for the next query. False: the scanner has ended. `news`: a claimed container is unknown.
pub(super) fn rest(
    news: &Receiver<()>,
    pace: DockerPace,
    (clock, began, is_wanted): (fn() -> Duration, Duration, bool),
) -> bool {
    let next = began + if is_wanted { pace.wanted } else { pace.unwanted };
    let rest = next.saturating_sub(clock());
    match news.recv_timeout(rest.max(pace.at_least)) {
        Ok(()) => {
            std::thread::sleep((began + pace.at_least).saturating_sub(clock()));
            while news.try_recv().is_ok() {}
            true
        }
        Err(RecvTimeoutError::Timeout) => true,
        Err(RecvTimeoutError::Disconnected) => false,
    }
}

/// Queries the system's runtimes.
#[derive(Debug)]
pub(super) struct ContainerWatch {
    listings: Vec<RuntimeListing>,
    pace: DockerPace,
    shared: SharedContainers,
    to: SyncSender<Observation>,
    clock: fn() -> Duration,
    /// Whether the configuration matches names or labels.
    is_wanted: Arc<AtomicBool>,
    schema: Arc<Schema>,
    runtime: Runtime,
    has_answered: bool,
    pods: PodContainers,
}

impl ContainerWatch {
    pub(super) fn new(
        (sockets, pods, pace, procfs): (&[PathBuf], Vec<PathBuf>, DockerPace, PathBuf),
        shared: SharedContainers,
        is_wanted: Arc<AtomicBool>,
        to: SyncSender<Observation>,
        clock: fn() -> Duration,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let schema = Arc::new(Schema { series: vec![SeriesKey::new("uma_containers", &[])] });
        let listing = |path: &PathBuf| {
            RuntimeListing::new(Docker::new(path), procfs.clone(), pace.answer_takes)
        };
        let listings = sockets.iter().map(listing).collect();
        let pods = PodContainers::new(pods, procfs.clone(), pace.answer_takes);
        let has_answered = false;
        Ok(Self {
            listings,
            pace,
            shared,
            to,
            clock,
            is_wanted,
            schema,
            runtime,
            has_answered,
            pods,
        })
    }

    /// Runs until the loop ends. `news` signals a claimed container that is unknown.
    pub(super) fn run(&mut self, news: &Receiver<()>) {
        loop {
            let began = (self.clock)();
            self.query(began);
            let is_wanted = self.is_wanted.load(Ordering::Relaxed);
            if !rest(news, self.pace, (self.clock, began, is_wanted)) {
                return;
            }
        }
    }

    fn query(&mut self, began: Duration) {
        let claimed = self.shared.claimed().system;
        let (docker_state, errors) = self.query_docker(&claimed, began);
        let took = (self.clock)().saturating_sub(began);
        self.has_answered |= docker_state == DockerState::Answers;
        let mut containers = Containers::new();
        for listing in &self.listings {
            let known = listing.known().map(|(id, listed)| (Arc::clone(id), listed.clone()));
            containers.extend(known);
        }
        let value = match docker_state {
            DockerState::Absent => Reading::Unsupported,
            DockerState::Silent => Reading::Failed,
            _ => Reading::Value(containers.len() as f64),
        };
        let unknown_here = claimed.iter().filter(|id| !containers.contains_key(*id)).collect();
        self.pods.query(&self.runtime, &unknown_here);
        containers.extend(self.pods.known().clone());
        self.shared.set_system(containers, docker_state);
        // An absent Docker is an error only if it was there before, or the configuration needs it.
        let is_absent = docker_state == DockerState::Absent;
        if is_absent && !self.has_answered && !self.is_wanted.load(Ordering::Relaxed) {
            return;
        }
        // The queue is full. The next query repeats the result.
        let _ = self.to.try_send(Observation::Readings(Readings {
            source: Source::Docker,
            schema: Arc::clone(&self.schema),
            values: vec![value],
            took,
            error: (!errors.is_empty()).then(|| errors.join("; ").into()),
        }));
    }

    /// Queries all sockets. An absent one counts only if all are absent.
    fn query_docker(
        &mut self,
        claimed: &BTreeSet<Arc<str>>,
        now: Duration,
    ) -> (DockerState, Vec<String>) {
        let claims = Claims { ids: claimed.clone(), is_any: false };
        let (mut does_answer, mut errors, mut absent) = (false, Vec::new(), Vec::new());
        for listing in &mut self.listings {
            let socket = listing.socket.display().to_string();
            match listing.query(&self.runtime, &claims, now) {
                Ok(_) => does_answer = true,
                Err(DockerError::Absent) => absent.push(socket),
                Err(error) => errors.push(failure(&socket, error)),
            }
        }
        match (does_answer, errors.is_empty()) {
            (_, false) => (DockerState::Silent, errors),
            (true, true) => (DockerState::Answers, errors),
            (false, true) => {
                let sockets = absent.join(" or ");
                let why = format!("there is no Docker at {sockets}: check path.docker_socket");
                (DockerState::Absent, vec![why])
            }
        }
    }
}

/// Why a socket has not answered, in words.
pub(super) fn failure(socket: &str, error: DockerError) -> String {
    match error {
        DockerError::Absent => format!("there is no socket {socket}"),
        DockerError::Refused => format!("no process listens at {socket}: is Docker running?"),
        DockerError::TimedOut(patience) => {
            format!("{socket} has not answered within {} s", patience.as_secs())
        }
        error => format!("{socket}: {error}"),
    }
}
