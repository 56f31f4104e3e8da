//! Services of the system that run a container in the foreground: their `docker run` is in the
//! service, and the container is in a control group of Docker's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::details::Details;
use crate::model::{EngineSeen, ProcessId, Proof};
use crate::parse::docker_client::{AttachedContainer, attached_container, container_id};
use crate::parse::process::{
    arguments, is_in_inner_namespace, is_of_users, system_unit, user_id, variable,
};
use crate::supervisors::docker::{ClientEndpoint, MOST_CLIENT_BYTES};

/// The name of the process of Docker's client.
pub(super) const DOCKER: &str = "docker";

const ROOT: u32 = 0;

/// The container that a client waits for.
#[derive(Debug)]
enum AwaitedContainer {
    Name(String),
    /// A file that gets its id once it is made, by its path as the client sees it.
    IdFile(String),
    Id(String),
}

/// A client that waits for the end of a container.
#[derive(Debug)]
struct EndWaiter {
    container: AwaitedContainer,
    /// The service that the client is in.
    unit: Arc<str>,
    /// The daemon that runs the container.
    endpoint: ClientEndpoint,
}

impl EndWaiter {
    /// Reads the id of the container, once it is written.
    fn read(&mut self, id: ProcessId, details: &Details) {
        let AwaitedContainer::IdFile(path) = &self.container else { return };
        let Ok(text) = details.file_of_root(id, path, MOST_CLIENT_BYTES) else { return };
        if let Some(container) = container_id(&text) {
            self.container = AwaitedContainer::Id(container.to_owned());
        }
    }

    fn awaits(&self, engine: &EngineSeen) -> bool {
        let is_it = match &self.container {
            AwaitedContainer::Name(name) => engine.container_name.as_deref() == Some(name.as_str()),
            AwaitedContainer::Id(id) => engine.container.as_deref() == Some(id.as_str()),
            AwaitedContainer::IdFile(_) => false,
        };
        is_it && self.endpoint.may_be(engine.runtime.as_ref().map(|runtime| &*runtime.socket))
    }
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
            let found = self.0.entry(id).or_insert_with(|| client(id, details));
            if let Some(waiter) = found {
                waiter.read(id, details);
            }
        }
    }

    /// The service whose client runs the container of that engine, if it is the only one. Names of
    /// containers are unique in a daemon.
    pub(super) fn unit_of(&self, engine: &EngineSeen) -> Option<Arc<str>> {
        if engine.proof != Proof::Container || engine.runtime_user().is_some() {
            return None;
        }
        let clients = self.0.values().flatten().filter(|client| client.awaits(engine));
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
    let arguments = arguments(&details.command_line(id)?);
    let container = match attached_container(&arguments)? {
        AttachedContainer::Name(name) => AwaitedContainer::Name(name.to_owned()),
        AttachedContainer::IdFile(path) => AwaitedContainer::IdFile(path.to_owned()),
    };
    let environment = details.environment(id)?;
    let read = |path: &str| details.file_of_root(id, path, MOST_CLIENT_BYTES);
    let endpoint = ClientEndpoint::of(|name| variable(&environment, name), read);
    Some(EndWaiter { container, unit: unit.into(), endpoint })
}
