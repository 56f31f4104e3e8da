//! Services of the system that run a container in the foreground: their `docker run` is in the
//! service, and the container is in a control group of Docker's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::details::Details;
use crate::model::{EngineSeen, ProcessId, Proof};
use crate::parse::docker_client::attached_container;
use crate::parse::process::{
    arguments, is_in_inner_namespace, is_of_users, system_unit, user_id, variable,
};

/// The name of the process of Docker's client.
pub(super) const DOCKER: &str = "docker";

/// Variables that choose another daemon than the system's.
const ELSEWHERE: [&str; 2] = ["DOCKER_HOST", "DOCKER_CONTEXT"];

const ROOT: u32 = 0;

/// A client that waits for the end of a container.
#[derive(Debug)]
struct EndWaiter {
    /// The container's name.
    container: String,
    /// The service that the client is in.
    unit: Arc<str>,
}

/// The clients of Docker. `None`: one that waits for no container of a service.
#[derive(Debug, Default)]
pub(super) struct DockerClients(BTreeMap<ProcessId, Option<EndWaiter>>);

impl DockerClients {
    /// Examines new clients among these processes, which have the name of one. The scan bounds
    /// their number. A lower bound here would let processes of that name keep out root's clients.
    pub(super) fn find(&mut self, named: impl Iterator<Item = ProcessId>, details: &Details) {
        let named: BTreeSet<ProcessId> = named.collect();
        self.0.retain(|id, _| named.contains(id));
        for id in named {
            self.0.entry(id).or_insert_with(|| client(id, details));
        }
    }

    /// The service whose client runs the container of that engine, if it is the only one. Names of
    /// containers are unique in a daemon.
    pub(super) fn unit_of(&self, engine: &EngineSeen) -> Option<Arc<str>> {
        let is_of_system = engine.proof == Proof::Container && engine.runtime_user().is_none();
        let name = engine.container_name.as_ref().filter(|_| is_of_system)?;
        let clients = self.0.values().flatten().filter(|client| client.container == **name);
        let units: BTreeSet<&Arc<str>> = clients.map(|client| &client.unit).collect();
        let only = units.first().filter(|_| units.len() == 1)?;
        Some(Arc::clone(only))
    }
}

/// A process chooses its name and arguments, so only root's are believed: others could name a
/// container that they do not run. Root of a container in a service, such as that of
/// systemd-nspawn, has other containers.
fn client(id: ProcessId, details: &Details) -> Option<EndWaiter> {
    let status = details.read(id.pid, "status")?;
    if user_id(&status) != Some(ROOT) || is_in_inner_namespace(&status) {
        return None;
    }
    let groups = details.read(id.pid, "cgroup")?;
    let groups = String::from_utf8_lossy(&groups);
    let group = details.root.cgroup(&groups)?;
    let unit = system_unit(&group)?;
    if !unit.ends_with(".service") || is_of_users(unit) {
        return None;
    }
    let environment = details.environment(id)?;
    if ELSEWHERE.iter().any(|name| variable(&environment, name).is_some()) {
        return None;
    }
    let arguments = arguments(&details.command_line(id)?);
    let container = attached_container(&arguments)?.to_owned();
    Some(EndWaiter { container, unit: unit.into() })
}
