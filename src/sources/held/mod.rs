//! What is started again when there is memory: containers with the label, or that the
//! configuration names, and units of systemd that it names; and how other containers end that hold
//! engines.
//!
//! Each supervisor is asked on a thread of its own, for it may hang; the loop only takes what was
//! found. What they tell is always everything: an event of theirs only says that it is time to ask
//! again, so that none that is lost matters.

mod adopted;
mod docker;
mod ends;
mod matching;
mod services;
mod systemd;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::Builder;

use tokio::sync::watch;

pub use adopted::{Adopted, AdoptedContainer, AdoptedFile};

use crate::model::{DeclaredRestart, HeldReadings, Moment, Observation, Supervisor};
use crate::supervisors::systemd::Bus;
use docker::DockerWatch;
use systemd::SystemdWatch;

/// What may wait for the loop; more is dropped, and told again.
const NEWS: usize = 16;

/// The ids of the containers in which engines run.
type Followed = Arc<BTreeSet<Arc<str>>>;

/// The services in which engines run, and the control group of each engine.
type FollowedServices = Arc<BTreeMap<Arc<str>, Arc<str>>>;

/// Where to look.
#[derive(Clone, Debug)]
pub struct HeldSetup {
    /// The socket of Docker, or of what speaks its language.
    pub docker: PathBuf,
    /// Where systemd is reached.
    pub systemd: Bus,
    /// The file that says which containers were adopted.
    pub adopted: PathBuf,
    /// What the configuration declares.
    pub declared: Vec<DeclaredRestart>,
    /// Both clocks.
    pub clock: fn() -> Moment,
}

/// The loop's end of the threads.
#[derive(Debug)]
pub struct HeldWatch {
    news: Receiver<Observation>,
    declared: watch::Sender<Arc<[DeclaredRestart]>>,
    followed: watch::Sender<Followed>,
    services: watch::Sender<FollowedServices>,
}

/// How a thread tells the loop.
#[derive(Clone, Debug)]
struct Teller {
    to: SyncSender<Observation>,
    clock: fn() -> Moment,
}

impl Teller {
    /// What the loop does not take in time is told again.
    fn tell(&self, readings: HeldReadings) {
        let _full = self.to.try_send(Observation::Held(Box::new(readings)));
    }

    fn doubt(&self, supervisor: Supervisor, error: &str) {
        let read_at = (self.clock)().uptime;
        let error = Some(Arc::from(error));
        let (held, ended) = (Vec::new(), Vec::new());
        self.tell(HeldReadings { supervisor, read_at, held, ended, error });
    }
}

impl HeldWatch {
    /// Starts the threads.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(setup: HeldSetup) -> io::Result<Self> {
        let HeldSetup { docker, systemd, adopted, declared, clock } = setup;
        let (to, news) = sync_channel(NEWS);
        let (declare, declared) = watch::channel(Arc::from(declared));
        let teller = Teller { to, clock };
        let (follow_services, services) = watch::channel(Arc::default());
        let mut units = SystemdWatch::new(systemd, (declared.clone(), services), teller.clone());
        Builder::new().name("held-systemd".to_owned()).spawn(move || units.run())?;
        let (follow, followed) = watch::channel(Arc::default());
        let mut watch = DockerWatch::new(&docker, &adopted, (declared, followed), teller);
        Builder::new().name("held-docker".to_owned()).spawn(move || watch.run())?;
        Ok(Self { news, declared: declare, followed: follow, services: follow_services })
    }

    /// What is new. Never waits.
    pub fn take(&self, out: &mut Vec<Observation>) {
        out.extend(self.news.try_iter());
    }

    /// These containers hold engines: of those among them that nobody here starts again it is told
    /// how they end.
    pub fn follow(&self, containers: BTreeSet<Arc<str>>) {
        replace(&self.followed, containers);
    }

    /// The same of services, each with the control group of its engine.
    pub fn follow_services(&self, services: BTreeMap<Arc<str>, Arc<str>>) {
        replace(&self.services, services);
    }

    /// The configuration declares others from now on.
    pub fn declare(&self, declared: Vec<DeclaredRestart>) {
        self.declared.send_replace(Arc::from(declared));
    }
}

/// Tells only what is another.
fn replace<T: PartialEq>(told: &watch::Sender<Arc<T>>, new: T) {
    told.send_if_modified(|told| {
        let has_changed = **told != new;
        if has_changed {
            *told = Arc::new(new);
        }
        has_changed
    });
}
