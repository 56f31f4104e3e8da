//! Queries Docker about containers with deferred restarts, and about the ends of other containers
//! of engines.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::adopted::AdoptedFile;
use super::ends::ContainerEnds;
use super::matching::{RestartEntries, RestartTerms};
use super::{Reporter, TrackedContainers};
use crate::model::{
    DeclaredRestart, DeferredRestart, EndedWorkload, OnRequest, Supervisor, Workload, WorkloadState,
};
use crate::parse::container::{Container, InspectedContainer, containers, inspected};
use crate::supervisors::docker::{Docker, DockerError, Events};

/// Timeout of one response.
const ANSWER_TAKES: Duration = Duration::from_secs(5);
/// Timeout of a whole query.
const QUERY_TAKES: Duration = Duration::from_secs(10);

/// Between two queries without events.
const EVERY: Duration = Duration::from_secs(5);
/// The same without deferred restarts.
const IDLE: Duration = Duration::from_secs(10);
/// After a failed query.
const AGAIN: Duration = Duration::from_millis(500);
/// The shortest interval of queries, whatever happens.
const AT_LEAST: Duration = Duration::from_millis(50);
/// The same without deferred restarts, when other containers change.
const SELDOM: Duration = Duration::from_secs(1);

/// The most containers with deferred restarts.
const MAX_HELD: usize = 64;

/// Events that cause a query. Health checks are frequent, and excluded. Podman has other names for
/// some events.
const EVENTS: [&str; 12] = [
    "create",
    "destroy",
    "die",
    "died",
    "kill",
    "oom",
    "remove",
    "rename",
    "start",
    "stop",
    "update",
    "health_status",
];

/// The thread that queries Docker.
#[derive(Debug)]
pub(super) struct DockerWatch {
    docker: Docker,
    adopted: AdoptedFile,
    declared: watch::Receiver<Arc<[DeclaredRestart]>>,
    tracked: watch::Receiver<TrackedContainers>,
    reporter: Reporter,
    ends: ContainerEnds,
    has_deferred: bool,
    /// Events are missing or late, so that queries are more frequent.
    is_mute: bool,
}

impl DockerWatch {
    pub(super) fn new(
        socket: &Path,
        adopted: &Path,
        (declared, tracked): (
            watch::Receiver<Arc<[DeclaredRestart]>>,
            watch::Receiver<TrackedContainers>,
        ),
        reporter: Reporter,
    ) -> Self {
        let docker = Docker::new(socket);
        Self {
            adopted: AdoptedFile::new(adopted),
            declared,
            tracked,
            ends: ContainerEnds::new(docker.clone(), reporter.clone()),
            docker,
            reporter,
            has_deferred: false,
            is_mute: false,
        }
    }

    /// Runs until the loop has ended.
    pub(super) fn run(&mut self) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        match runtime {
            Ok(runtime) => runtime.block_on(self.watch()),
            Err(error) => {
                let why = format!("cannot query Docker: starting a runtime failed: {error}");
                self.reporter.doubt(Supervisor::Docker, &why);
            }
        }
    }

    async fn watch(&mut self) {
        loop {
            // From here on changes are in the event stream or in the query.
            let events = if self.is_mute { None } else { self.subscribe().await };
            if let Err(error) = self.query_and_send().await {
                self.is_mute = false;
                if self.is_reported(&error) {
                    self.reporter.doubt(Supervisor::Docker, &error.to_string());
                }
                if self.rest(if self.has_deferred { AGAIN } else { IDLE }).await {
                    return;
                }
                continue;
            }
            let is_over = match events {
                // A stream that ends at once is restarted no more often.
                Some(events) => self.track_events(events).await || self.rest(AGAIN).await,
                None => self.rest(if self.has_deferred { AGAIN } else { IDLE }).await,
            };
            if is_over {
                return;
            }
        }
    }

    /// A missing Docker is reported only if deferred restarts need it.
    fn is_reported(&self, error: &DockerError) -> bool {
        let counts_on_it = |entry: &DeclaredRestart| entry.matches.unit().is_none();
        self.has_deferred
            || self.declared.borrow().iter().any(counts_on_it)
            || !matches!(error, DockerError::Absent | DockerError::Refused)
    }

    /// Waits. Returns whether the loop has ended.
    async fn rest(&mut self, time: Duration) -> bool {
        match timeout(time, self.declared.changed()).await {
            Ok(Ok(())) | Err(_) => false,
            Ok(Err(_)) => true,
        }
    }

    /// Sends the state of all containers, as of the begin of the query.
    async fn query_and_send(&mut self) -> Result<(), DockerError> {
        let read_at = (self.reporter.clock)().uptime;
        let result = timeout(QUERY_TAKES, self.query()).await;
        match result.unwrap_or(Err(DockerError::TimedOut(QUERY_TAKES))) {
            Ok((deferred, ended)) => {
                self.has_deferred = !deferred.is_empty();
                let supervisor = Supervisor::Docker;
                self.reporter.report(supervisor, read_at, (deferred, ended));
                Ok(())
            }
            Err(error) => {
                self.ends.mark_unavailable();
                Err(error)
            }
        }
    }

    async fn subscribe(&mut self) -> Option<Events> {
        let filters = filters([("type", &["container"]), ("event", &EVENTS)]);
        let events = self.docker.events(filters, ANSWER_TAKES).await;
        // Podman begins its response with the first event.
        self.is_mute = matches!(events, Err(DockerError::TimedOut(_)));
        events.ok()
    }

    /// Queries after each event, and after a while. Returns whether the loop has ended, or when the
    /// stream ends.
    async fn track_events(&mut self, mut events: Events) -> bool {
        loop {
            let goes_on = tokio::select! {
                goes_on = events.next() => goes_on,
                changed = self.declared.changed() => {
                    if changed.is_err() {
                        return true;
                    }
                    true
                }
                changed = self.tracked.changed() => {
                    if changed.is_err() {
                        return true;
                    }
                    true
                }
                () = sleep(if self.has_deferred { EVERY } else { IDLE }) => true,
            };
            if !goes_on {
                self.ends.mark_unavailable();
                return false;
            }
            // Simultaneous events cause one query.
            let gathers = sleep(if self.has_deferred { AT_LEAST } else { SELDOM });
            tokio::pin!(gathers);
            loop {
                tokio::select! {
                    goes_on = events.next() => if !goes_on {
                        self.ends.mark_unavailable();
                        return false;
                    },
                    () = &mut gathers => break,
                }
            }
            if let Err(error) = self.query_and_send().await {
                self.reporter.doubt(Supervisor::Docker, &error.to_string());
                return false;
            }
        }
    }

    /// All containers with deferred restarts, and the ends of those that are only tracked.
    async fn query(&mut self) -> Result<(Vec<DeferredRestart>, Vec<EndedWorkload>), DockerError> {
        let listed = self.docker.list(true, ANSWER_TAKES).await?;
        let all = containers(&listed).map_err(DockerError::Failed)?;
        let declared = Arc::clone(&self.declared.borrow_and_update());
        let adopted = match self.adopted.read() {
            Ok(adopted) => adopted.clone(),
            Err(error) => return Err(DockerError::Failed(error.to_string())),
        };
        let wanted = RestartEntries { declared: &declared, adopted: &adopted };
        let tracked = Arc::clone(&self.tracked.borrow_and_update());
        let (mut deferred, mut ended): (Vec<DeferredRestart>, Vec<EndedWorkload>) =
            (Vec::new(), Vec::new());
        self.ends.begin();
        for (id, container) in &all {
            let Some(terms) = wanted.terms(id, &container.name, &container.labels) else {
                continue;
            };
            if deferred.len() >= MAX_HELD {
                break;
            }
            let is_tracked = tracked.contains(id);
            let checked = self.check(id, container, terms, is_tracked).await?;
            let Some((seen, end)) = checked else { continue };
            ended.extend(end);
            // Rules and people identify them by name.
            if deferred.iter().any(|other| other.target.name == seen.target.name) {
                let name = &seen.target.name;
                return Err(DockerError::Failed(format!(
                    "it reports two containers called {name}"
                )));
            }
            deferred.push(seen);
        }
        for id in tracked.iter().take(MAX_HELD) {
            let container = all.get(id);
            if deferred.iter().any(|seen| seen.target.id == *id) {
                continue;
            }
            let (found, is_podman) = match container {
                Some(_) => match self.inspect(id).await? {
                    Some((Ok(found), is_podman)) => (Some(found), is_podman),
                    // An invalid response has no end.
                    Some((Err(_), _)) => continue,
                    None => (None, false),
                },
                None => (None, false),
            };
            let Some(end) = self.ends.track(id, found.as_ref(), is_podman).await else { continue };
            let name = container.map_or(id, |container| &container.name);
            let (supervisor, name) = (Supervisor::Docker, Arc::clone(name));
            let target = Workload { supervisor, name, id: Arc::clone(id) };
            ended.push(EndedWorkload { target, end });
        }
        self.ends.keep(|id| all.contains_key(id));
        Ok((deferred, ended))
    }

    /// Docker's response about one container, or its error, and whether it is Podman. `None`: the
    /// container is gone.
    async fn inspect(
        &self,
        id: &Arc<str>,
    ) -> Result<Option<(Result<InspectedContainer, String>, bool)>, DockerError> {
        let (found, is_podman) = match self.docker.inspect(id, ANSWER_TAKES).await {
            Ok(found) => (inspected(&found.text), found.is_podman),
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error @ (DockerError::Failed(_) | DockerError::Status { .. })) => {
                (Err(error.to_string()), false)
            }
            Err(error) => return Err(error),
        };
        let found = found.and_then(|found| match found.id == *id {
            true => Ok(found),
            false => Err("it reports another container than the requested one".to_owned()),
        });
        Ok(Some((found, is_podman)))
    }

    /// One container, and its end if others restart it; `None`: it is gone. An invalid response
    /// concerns this container alone.
    async fn check(
        &mut self,
        id: &Arc<str>,
        container: &Container,
        terms: RestartTerms,
        is_tracked: bool,
    ) -> Result<Option<(DeferredRestart, Option<EndedWorkload>)>, DockerError> {
        let Some((found, is_podman)) = self.inspect(id).await? else { return Ok(None) };
        let found = match found {
            Ok(found) => found,
            Err(why) => {
                let status = Arc::from(format!("invalid response: {why}"));
                let state = WorkloadState::Between { status };
                InspectedContainer::unknown(Arc::clone(id), Arc::clone(&container.name), state)
            }
        };
        let mut seen = terms.deferred(&found, OnRequest::Unknown);
        if seen.target.name.is_empty() {
            seen.target.name = id.get(..12).unwrap_or(id).into();
        }
        // A container that Docker restarts may already run again.
        if seen.obstacle.is_some() && is_tracked {
            let end = self.ends.track(id, Some(&found), is_podman).await;
            if let (WorkloadState::Ended(known), Some(end)) = (&mut seen.state, &end)
                && known.mark == end.mark
            {
                known.clone_from(end);
            }
            let target = seen.target.clone();
            return Ok(Some((seen, end.map(|end| EndedWorkload { target, end }))));
        }
        self.ends.learn(&found, is_podman, &mut seen.state).await;
        Ok(Some((seen, None)))
    }
}

/// Filters of events, each with its values.
pub(super) fn filters<const N: usize>(all: [(&str, &[&str]); N]) -> HashMap<String, Vec<String>> {
    let owned = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect();
    all.into_iter().map(|(key, values)| (key.to_owned(), owned(values))).collect()
}
