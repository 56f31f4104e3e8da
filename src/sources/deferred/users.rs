//! The ends of containers of users' own runtimes (rootless Docker and Podman), of engines. Their
//! restarts are left to them. All are queried on one thread, once a second, so that none waits for
//! another user's.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::ends::ContainerEnds;
use super::{Reporter, TrackedOfUsers, block_on};
use crate::model::{EndedWorkload, Supervisor, Workload};
use crate::parse::container::inspected;
use crate::supervisors::docker::{Docker, DockerError};

/// Between two queries, and after a failed one.
const EVERY: Duration = Duration::from_secs(1);
const AGAIN: Duration = Duration::from_secs(30);

/// Timeout of one response, and of all of one runtime.
const ANSWER_TAKES: Duration = Duration::from_secs(2);
const QUERY_TAKES: Duration = Duration::from_secs(5);

/// A container is tracked for this time after its engine is gone.
const TRACKED_FOR: Duration = Duration::from_secs(60);

/// The most runtimes, and the most containers of one.
const MOST_RUNTIMES: usize = 16;
const MOST_CONTAINERS: usize = 16;

/// The thread that queries the runtimes of users.
#[derive(Debug)]
pub(super) struct UserEnds {
    tracked: watch::Receiver<TrackedOfUsers>,
    reporter: Reporter,
    runtimes: BTreeMap<(u32, Arc<str>), UserRuntime>,
}

/// One runtime, and its containers of engines.
#[derive(Debug)]
struct UserRuntime {
    docker: Docker,
    supervisor: Supervisor,
    ends: ContainerEnds,
    /// Each with its name, and when an engine was in it last.
    containers: BTreeMap<Arc<str>, (Arc<str>, Duration)>,
    retry_at: Duration,
}

impl UserEnds {
    pub(super) fn new(tracked: watch::Receiver<TrackedOfUsers>, reporter: Reporter) -> Self {
        Self { tracked, reporter, runtimes: BTreeMap::new() }
    }

    /// Runs until the loop has ended.
    pub(super) fn run(&mut self) {
        block_on(self.watch(), "cannot query the runtimes of users");
    }

    async fn watch(&mut self) {
        loop {
            let now = (self.reporter.clock)().uptime;
            self.track(now);
            if self.runtimes.is_empty() {
                if self.tracked.changed().await.is_err() {
                    return;
                }
                continue;
            }
            let queries = self.runtimes.values_mut().map(|runtime| runtime.query(now));
            let ended = join_all(queries).await;
            let mut of_users: BTreeMap<Supervisor, Vec<EndedWorkload>> = BTreeMap::new();
            for (supervisor, ended) in ended.into_iter().flatten() {
                of_users.entry(supervisor).or_default().extend(ended);
            }
            for (supervisor, ended) in of_users {
                self.reporter.report(supervisor, now, (Vec::new(), ended));
            }
            tokio::select! {
                changed = self.tracked.changed() => if changed.is_err() {
                    return;
                },
                () = sleep(EVERY) => {}
            }
        }
    }

    /// Takes the containers in which engines are now.
    fn track(&mut self, now: Duration) {
        let tracked = Arc::clone(&self.tracked.borrow_and_update());
        for (place, containers) in tracked.iter() {
            if self.runtimes.len() >= MOST_RUNTIMES && !self.runtimes.contains_key(place) {
                continue;
            }
            let reporter = &self.reporter;
            let make = || UserRuntime::new(place.0, &place.1, reporter.clone());
            let runtime = self.runtimes.entry(place.clone()).or_insert_with(make);
            for (id, name) in containers {
                if runtime.containers.len() < MOST_CONTAINERS || runtime.containers.contains_key(id)
                {
                    runtime.containers.insert(Arc::clone(id), (Arc::clone(name), now));
                }
            }
        }
        for runtime in self.runtimes.values_mut() {
            let is_recent = |at: Duration| now.saturating_sub(at) < TRACKED_FOR;
            runtime.containers.retain(|_, (_, at)| is_recent(*at));
        }
        self.runtimes.retain(|_, runtime| !runtime.containers.is_empty());
    }
}

impl UserRuntime {
    fn new(user: u32, socket: &str, reporter: Reporter) -> Self {
        let docker = Docker::of_user(Path::new(socket), user);
        Self {
            ends: ContainerEnds::new(docker.clone(), reporter),
            docker,
            supervisor: Supervisor::DockerOfUser(user),
            containers: BTreeMap::new(),
            retry_at: Duration::ZERO,
        }
    }

    /// The ends of its containers; `None`: it does not answer.
    async fn query(&mut self, now: Duration) -> Option<(Supervisor, Vec<EndedWorkload>)> {
        if now < self.retry_at {
            return None;
        }
        let queried = timeout(QUERY_TAKES, self.query_all()).await;
        match queried.unwrap_or(Err(DockerError::TimedOut(QUERY_TAKES))) {
            Ok(ended) => Some((self.supervisor, ended)),
            Err(error) => {
                let socket = self.docker.socket().display();
                tracing::info!(%socket, %error, "ends of a user's containers are unknown");
                self.ends.mark_unavailable();
                self.retry_at = now + AGAIN;
                None
            }
        }
    }

    async fn query_all(&mut self) -> Result<Vec<EndedWorkload>, DockerError> {
        self.ends.begin();
        let (mut ended, mut there) = (Vec::new(), BTreeSet::new());
        for (id, (name, _)) in &self.containers {
            let (found, is_podman) = match self.docker.inspect(id, ANSWER_TAKES).await {
                Ok(found) => match inspected(&found.text).ok().filter(|one| one.id == *id) {
                    Some(one) => (Some(one), found.is_podman),
                    // An invalid response has no end.
                    None => continue,
                },
                Err(error) if error.is_not_found() => (None, false),
                Err(error) => return Err(error),
            };
            if found.is_some() {
                there.insert(Arc::clone(id));
            }
            let Some(end) = self.ends.track(id, found.as_ref(), is_podman).await else { continue };
            let (name, id) = (Arc::clone(name), Arc::clone(id));
            let target = Workload { supervisor: self.supervisor, name, id };
            ended.push(EndedWorkload { target, end });
        }
        self.ends.keep(|id| there.contains(id));
        Ok(ended)
    }
}
