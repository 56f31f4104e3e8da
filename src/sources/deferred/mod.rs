//! Deferred restarts: containers with the label or configured ones, and configured systemd units;
//! and the ends of other containers and services of engines.
//!
//! Each supervisor is queried on a thread of its own, since it may hang. The loop only takes
//! results. A result is always complete: an event only causes a query, so that a lost one does not
//! matter.

mod adopted;
mod docker;
mod ends;
mod matching;
mod pods;
mod services;
mod systemd;
#[cfg(test)]
mod tests;
mod user_units;
mod users;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use tokio::sync::watch;

pub use adopted::{AdoptedContainer, AdoptedContainers, AdoptedFile};
pub use pods::TrackedPod;

use crate::model::{
    DeclaredRestart, DeferredRestart, EndedWorkload, EngineSeen, Moment, Observation, Proof,
    RestartReadings, Supervisor,
};
use crate::supervisors::systemd::Bus;
use docker::DockerWatch;
use pods::PodEnds;
use systemd::SystemdWatch;
use user_units::UserUnits;
use users::UserEnds;

/// Results in the queue. Further ones are dropped, and sent again.
const NEWS: usize = 16;

/// The ids of the containers of engines.
type TrackedContainers = Arc<BTreeSet<Arc<str>>>;

/// The services of engines, each with the control group of its engine.
type TrackedServices = Arc<BTreeMap<Arc<str>, Arc<str>>>;

/// The containers of engines in users' own runtimes, by user and socket: ids and names.
pub type TrackedOfUsers = Arc<BTreeMap<(u32, Arc<str>), BTreeMap<Arc<str>, Arc<str>>>>;

/// The containers of engines in pods, by the socket of their runtime and by id.
pub type TrackedPods = Arc<BTreeMap<Arc<str>, BTreeMap<Arc<str>, TrackedPod>>>;

/// What the threads need.
#[derive(Clone, Debug)]
pub struct DeferredSetup {
    /// The socket of Docker or a compatible API.
    pub docker: PathBuf,
    /// The bus of systemd.
    pub systemd: Bus,
    /// Where users have their folders for the time of their sessions.
    pub user_folders: PathBuf,
    /// The file of adopted containers.
    pub adopted: PathBuf,
    /// The entries of the configuration.
    pub declared: Vec<DeclaredRestart>,
    /// Both clocks.
    pub clock: fn() -> Moment,
}

/// The loop's handle of the threads.
#[derive(Debug)]
pub struct DeferredWatch {
    news: Receiver<Observation>,
    declared: watch::Sender<Arc<[DeclaredRestart]>>,
    tracked: watch::Sender<TrackedContainers>,
    services: watch::Sender<TrackedServices>,
    of_users: watch::Sender<TrackedOfUsers>,
    pods: watch::Sender<TrackedPods>,
}

/// Sends results to the loop.
#[derive(Clone, Debug)]
struct Reporter {
    to: SyncSender<Observation>,
    clock: fn() -> Moment,
}

impl Reporter {
    /// A dropped result is sent again.
    fn send(&self, readings: RestartReadings) {
        let _ = self.to.try_send(Observation::Restarts(Box::new(readings)));
    }

    /// Everything that the supervisor has, and what has ended since the last report.
    fn report(
        &self,
        supervisor: Supervisor,
        read_at: Duration,
        (deferred, ended): (Vec<DeferredRestart>, Vec<EndedWorkload>),
    ) {
        self.send(RestartReadings { supervisor, read_at, deferred, ended, error: None });
    }

    fn doubt(&self, supervisor: Supervisor, error: &str) {
        let read_at = (self.clock)().uptime;
        let error = Some(Arc::from(error));
        let (deferred, ended) = (Vec::new(), Vec::new());
        self.send(RestartReadings { supervisor, read_at, deferred, ended, error });
    }
}

impl DeferredWatch {
    /// Starts the threads.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(setup: DeferredSetup) -> io::Result<Self> {
        let DeferredSetup { docker, systemd, user_folders, adopted, declared, clock } = setup;
        let (to, news) = sync_channel(NEWS);
        let (declare, declared) = watch::channel(Arc::from(declared));
        let reporter = Reporter { to, clock };
        let (send_services, services) = watch::channel(Arc::default());
        let mut units = SystemdWatch::new(systemd, (declared.clone(), services), reporter.clone());
        Builder::new().name("restart-systemd".to_owned()).spawn(move || units.run())?;
        let mut user_units = UserUnits::new(user_folders, declared.clone(), reporter.clone());
        Builder::new().name("restart-users".to_owned()).spawn(move || user_units.run())?;
        let (send_containers, tracked) = watch::channel(Arc::default());
        let (send_of_users, tracked_of_users) = watch::channel(Arc::default());
        let mut users = UserEnds::new(tracked_of_users, reporter.clone());
        Builder::new().name("user-ends".to_owned()).spawn(move || users.run())?;
        let (pods, tracked_pods) = watch::channel(Arc::default());
        let mut ends = PodEnds::new(tracked_pods, declared.clone(), reporter.clone());
        Builder::new().name("pod-ends".to_owned()).spawn(move || ends.run())?;
        let mut watch = DockerWatch::new(&docker, &adopted, (declared, tracked), reporter);
        Builder::new().name("restart-docker".to_owned()).spawn(move || watch.run())?;
        let (tracked, services, of_users) = (send_containers, send_services, send_of_users);
        Ok(Self { news, declared: declare, tracked, services, of_users, pods })
    }

    /// Takes new results. Never blocks.
    pub fn take(&self, out: &mut Vec<Observation>) {
        out.extend(self.news.try_iter());
    }

    /// Tracks the containers of engines: reports the ends of those without a deferred restart.
    pub fn track(&self, containers: BTreeSet<Arc<str>>) {
        replace(&self.tracked, containers);
    }

    /// Tracks the services of engines, each with the control group of its engine.
    pub fn track_services(&self, services: BTreeMap<Arc<str>, Arc<str>>) {
        replace(&self.services, services);
    }

    /// Tracks the containers and services of these engines.
    pub fn track_engines<'e>(&self, engines: impl Iterator<Item = &'e EngineSeen> + Clone) {
        let is_of_docker = |engine: &&EngineSeen| engine.proof != Proof::PodContainer;
        let of_docker = engines.clone().filter(is_of_docker);
        self.track(of_docker.filter_map(EngineSeen::system_container).cloned().collect());
        let mut pods: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
        for (socket, id, its) in engines.clone().filter_map(TrackedPod::of) {
            pods.entry(Arc::clone(socket)).or_default().insert(Arc::clone(id), its);
        }
        replace(&self.pods, pods);
        let services = engines.clone().filter_map(EngineSeen::service);
        let services = services.map(|(unit, cgroup)| (Arc::clone(unit), Arc::clone(cgroup)));
        self.track_services(services.collect());
        let mut of_users: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
        for engine in engines {
            let Some((runtime, id)) = engine.runtime.as_ref().zip(engine.container.as_ref()) else {
                continue;
            };
            let Some(user) = runtime.user else { continue };
            let name = engine.container_name.as_ref().unwrap_or(id);
            let place = (user, Arc::clone(&runtime.socket));
            of_users.entry(place).or_default().insert(Arc::clone(id), Arc::clone(name));
        }
        replace(&self.of_users, of_users);
    }

    /// Replaces the entries of the configuration.
    pub fn declare(&self, declared: Vec<DeclaredRestart>) {
        self.declared.send_replace(Arc::from(declared));
    }
}

/// Sends a value only if it differs.
fn replace<T: PartialEq>(to: &watch::Sender<Arc<T>>, new: T) {
    to.send_if_modified(|current| {
        let has_changed = **current != new;
        if has_changed {
            *current = Arc::new(new);
        }
        has_changed
    });
}

/// Runs a watch on this thread until it ends. `effect`: the consequence if that is not possible.
fn block_on(watch: impl Future<Output = ()>, effect: &str) {
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(watch),
        Err(error) => tracing::warn!(%error, effect, "cannot start a runtime"),
    }
}
