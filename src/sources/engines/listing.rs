//! The running containers of one runtime with Docker's API.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;

use super::claims::Claims;
use crate::model::ProcessId;
use crate::parse::container::{Container, Containers, InspectedContainer, containers, inspected};
use crate::parse::process::stat;
use crate::supervisors::docker::{Docker, DockerError};

/// The most containers whose first process is queried in one pass.
pub(super) const MAX_INSPECTED: usize = 64;

/// A container that is no longer listed may still have processes that end.
const KEPT: Duration = Duration::from_secs(60);
/// Above this number no unlisted container is kept.
const MAX_KNOWN: usize = 4096;

/// What one runtime has listed.
#[derive(Debug)]
pub(super) struct RuntimeListing {
    docker: Docker,
    pub(super) socket: PathBuf,
    procfs: PathBuf,
    patience: Duration,
    /// Each with the time of its last listing.
    listed: BTreeMap<Arc<str>, (Container, Duration)>,
    /// Containers whose last inspection got no response.
    silent: BTreeSet<Arc<str>>,
}

impl RuntimeListing {
    pub(super) fn new(docker: Docker, procfs: PathBuf, patience: Duration) -> Self {
        let (listed, silent) = (BTreeMap::new(), BTreeSet::new());
        let socket = docker.socket().to_owned();
        Self { docker, socket, procfs, patience, listed, silent }
    }

    /// The known containers: known ones stay while the runtime hangs or restarts, since a
    /// container keeps its labels for its whole life.
    pub(super) fn known(&self) -> impl Iterator<Item = (&Arc<str>, &Container)> {
        self.listed.iter().map(|(id, (container, _))| (id, container))
    }

    /// Lists the running containers, and queries the first process of the claimed ones. Returns the
    /// number of listed ones.
    pub(super) fn query(
        &mut self,
        runtime: &Runtime,
        claims: &Claims,
        now: Duration,
    ) -> Result<usize, DockerError> {
        let containers = runtime.block_on(self.list(claims))?;
        let count = containers.len();
        self.take(containers, now);
        Ok(count)
    }

    fn take(&mut self, mut containers: Containers, now: Duration) {
        for (id, container) in &mut containers {
            container.socket = self.socket.to_str().map(Arc::from);
            // Only an inspection returns the first process.
            if let Some((before, _)) = self.listed.get(id).filter(|_| container.init.is_none()) {
                (container.init, container.log) = (before.init, before.log.clone());
                container.is_podman = before.is_podman;
            }
        }
        let is_full = self.listed.len() >= MAX_KNOWN;
        let is_kept = |listed: Duration| !is_full && now.saturating_sub(listed) < KEPT;
        self.listed.retain(|id, (_, listed)| containers.contains_key(id) || is_kept(*listed));
        self.listed.extend(containers.into_iter().map(|(id, listed)| (id, (listed, now))));
    }

    async fn list(&mut self, claims: &Claims) -> Result<Containers, DockerError> {
        let text = self.docker.list(false, self.patience).await?;
        let mut listed = containers(&text).map_err(DockerError::Failed)?;
        self.silent.retain(|id| claims.has(id));
        let lives = |init: ProcessId| process(&self.procfs, init.pid) == Some(init);
        let is_known = |id: &Arc<str>| {
            self.listed.get(id).and_then(|(listed, _)| listed.init).is_some_and(lives)
        };
        let unknown = listed.iter_mut().filter(|(id, _)| claims.has(id) && !is_known(id));
        let mut unknown: Vec<_> = unknown.collect();
        // Containers without a response come last, so that they delay no others.
        unknown.sort_by_key(|(id, _)| self.silent.contains(*id));
        let mut silent = None;
        for (id, container) in unknown.into_iter().take(MAX_INSPECTED) {
            let Ok(found) = self.inspect(id).await else {
                silent = Some(Arc::clone(id));
                break;
            };
            let Some((found, is_podman)) = found else { continue };
            container.init = found.pid.and_then(|pid| process(&self.procfs, pid));
            (container.log, container.is_podman) = (found.log, is_podman);
        }
        self.silent.extend(silent);
        Ok(listed)
    }

    /// A container, and whether its runtime is Podman.
    async fn inspect(&self, id: &str) -> Result<Option<(InspectedContainer, bool)>, DockerError> {
        match self.docker.inspect(id, self.patience).await {
            Ok(found) => {
                let its = inspected(&found.text).ok().filter(|its| *its.id == *id);
                Ok(its.map(|its| (its, found.is_podman)))
            }
            Err(DockerError::Status { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The process with this number now.
pub(super) fn process(procfs: &Path, pid: u32) -> Option<ProcessId> {
    let text = std::fs::read(procfs.join(pid.to_string()).join("stat")).ok()?;
    Some(ProcessId { pid, start_ticks: stat(&text)?.start_ticks })
}
