//! Running containers, as Docker or a server with its API reports them. The content may be hostile:
//! the author of an image chooses its labels.

mod cri;
mod log;
mod pod;
mod state;
#[cfg(test)]
mod tests;

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;

use super::process::printable;
use crate::model::{Pod, ProcessId};
pub use cri::{CriExit, CriStatus, cri_end, pod_container};
pub use log::{log_end, may_hold_secret, output_end, pod_log_end};
pub use pod::{Sandbox, is_of_pods, named_pod, pod_uid};
pub use state::{ContainerEvent, InspectedContainer, end_after, event, inspected, requested, time};

/// Containers of a node that are read; the rest are ignored.
const MAX_CONTAINERS: usize = 1024;
/// Labels of a container that are read. A longer key or value is left out: a part of it might match
/// where the whole does not.
const MAX_LABELS: usize = 256;
const MAX_LABEL_BYTES: usize = 4096;
/// A longer name is cut.
const MAX_NAME_BYTES: usize = 128;
/// Ports and addresses of a container that are read.
const MAX_ENDPOINTS: usize = 256;

/// The API that reports a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Runtime {
    /// Docker, or what speaks its API.
    #[default]
    Docker,
    /// The container runtime of Kubernetes.
    Cri,
}

/// A running container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Container {
    /// The API that reports it.
    pub runtime: Runtime,
    /// Its name, printable.
    pub name: Arc<str>,
    /// Its labels, as they are: to be compared, and not to be shown.
    pub labels: BTreeMap<String, String>,
    /// Whether it lives in the network of its host.
    pub is_in_host_network: bool,
    /// Its image, as it was named at the start, with the beginning of the image's id.
    pub image: Option<Arc<str>>,
    /// Its own addresses.
    pub addresses: Vec<IpAddr>,
    /// TCP ports of its own, and where its host offers each.
    pub published: Vec<(u16, SocketAddr)>,
    /// The pod that it belongs to, where there is one.
    pub pod: Option<Arc<Pod>>,
    /// Its first process. A list of containers lacks it.
    pub init: Option<ProcessId>,
    /// The file of its log. A list of containers lacks it, and some drivers write none.
    pub log: Option<PathBuf>,
    /// Whether the runtime is Podman. A list of containers lacks it.
    pub is_podman: bool,
    /// The socket of the runtime that lists it. A list of containers lacks it.
    pub socket: Option<Arc<str>>,
}

impl Container {
    /// Where a port of the container is offered on its host.
    pub fn published_at(&self, port: u16) -> Option<SocketAddr> {
        let mut offered = self.published.iter().filter(|(inside, _)| *inside == port);
        offered.next().map(|(_, at)| *at)
    }
}

/// Running containers by their ids.
pub type Containers = BTreeMap<Arc<str>, Container>;

/// The running containers of a node. A user's runtime may report any id and any name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeContainers {
    /// Those of the system's runtimes.
    pub system: Arc<Containers>,
    /// Those of users' own runtimes (rootless), by user id.
    pub of_users: Arc<BTreeMap<u32, Containers>>,
    /// Why users' own runtimes cannot be queried, by user id. Users choose parts of these texts.
    pub user_errors: Arc<BTreeMap<u32, Arc<str>>>,
}

impl From<Containers> for NodeContainers {
    fn from(system: Containers) -> Self {
        Self { system: Arc::new(system), ..Self::default() }
    }
}

impl NodeContainers {
    /// The container with that id, of a user's own runtime or of the system's.
    pub fn get(&self, user: Option<u32>, id: &str) -> Option<&Container> {
        match user {
            Some(user) => self.of_users.get(&user)?.get(id),
            None => self.system.get(id),
        }
    }
}

/// Reads the answer to `GET /containers/json`. What is unknown or miswritten in an entry is left
/// out, for Docker and Podman do not agree on all of it.
///
/// # Errors
/// It is no list of containers.
pub fn containers(text: &[u8]) -> Result<Containers, String> {
    let document: Value =
        serde_json::from_slice(text).map_err(|error| format!("no JSON was answered: {error}"))?;
    let entries = document.as_array().ok_or("no list of containers was answered")?;
    Ok(entries.iter().filter_map(container).take(MAX_CONTAINERS).collect())
}

fn container(entry: &Value) -> Option<(Arc<str>, Container)> {
    let id = entry.get("Id")?.as_str().filter(|id| is_id(id))?;
    let network = entry.get("HostConfig").and_then(|config| config.get("NetworkMode"));
    let container = Container {
        runtime: Runtime::Docker,
        name: name(entry).into(),
        labels: label_map(entry.get("Labels")),
        image: image(entry),
        is_in_host_network: network.and_then(Value::as_str) == Some("host"),
        addresses: addresses(entry),
        published: published(entry),
        pod: None,
        init: None,
        log: None,
        is_podman: false,
        socket: None,
    };
    Some((id.into(), container))
}

/// `NAME@ID`, the id without `sha256:` and cut to 12 digits: a tag may name another image later.
fn image(entry: &Value) -> Option<Arc<str>> {
    let text = |key: &str| entry.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    let id = text("ImageID").map(|id| id.strip_prefix("sha256:").unwrap_or(id));
    let id = id.filter(|id| id.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let id = id.and_then(|id| id.get(..12));
    let name = text("Image").map(cut_name).filter(|name| !name.starts_with("sha256:"));
    Some(match (name, id) {
        (Some(name), Some(id)) => format!("{name}@{id}").into(),
        (Some(name), None) => name.into(),
        (None, id) => id?.into(),
    })
}

pub(super) fn is_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Its own name. A container may have others, such as `/other/alias`.
fn name(entry: &Value) -> String {
    let names = entry.get("Names").and_then(Value::as_array);
    let mut names = names.into_iter().flatten().filter_map(Value::as_str);
    let own = names.find_map(|name| {
        let name = name.strip_prefix('/').unwrap_or(name);
        (!name.contains('/')).then_some(name)
    });
    cut_name(own.unwrap_or_default())
}

fn cut_name(name: &str) -> String {
    printable(&name.as_bytes()[..name.len().min(MAX_NAME_BYTES)])
}

fn label_map(labels: Option<&Value>) -> BTreeMap<String, String> {
    let labels = labels.and_then(Value::as_object);
    let labels = labels.into_iter().flatten();
    bounded_labels(labels.filter_map(|(key, value)| Some((key.as_str(), value.as_str()?))))
}

fn bounded_labels<'a>(
    labels: impl Iterator<Item = (&'a str, &'a str)>,
) -> BTreeMap<String, String> {
    let is_short = |(key, value): &(&str, &str)| {
        key.len() <= MAX_LABEL_BYTES && value.len() <= MAX_LABEL_BYTES
    };
    let short = labels.filter(is_short).take(MAX_LABELS);
    short.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn addresses(entry: &Value) -> Vec<IpAddr> {
    let networks = entry.get("NetworkSettings").and_then(|settings| settings.get("Networks"));
    let networks = networks.and_then(Value::as_object).into_iter().flatten();
    let address = |(_, network): (&String, &Value)| {
        let text = network.get("IPAddress")?.as_str()?;
        text.parse().ok().filter(|address: &IpAddr| !address.is_unspecified())
    };
    networks.filter_map(address).take(MAX_ENDPOINTS).collect()
}

fn published(entry: &Value) -> Vec<(u16, SocketAddr)> {
    let ports = entry.get("Ports").and_then(Value::as_array).into_iter().flatten();
    let port = |entry: &Value, name: &str| {
        let port = u16::try_from(entry.get(name)?.as_u64()?).ok()?;
        Some(port).filter(|port| *port != 0)
    };
    let offered = |entry: &Value| {
        if entry.get("Type").and_then(Value::as_str).is_some_and(|kind| kind != "tcp") {
            return None;
        }
        // On all addresses of the host is on its loopback, too.
        let address = match entry.get("IP").and_then(Value::as_str).unwrap_or_default() {
            "" | "0.0.0.0" => IpAddr::V4(Ipv4Addr::LOCALHOST),
            "::" => IpAddr::V6(Ipv6Addr::LOCALHOST),
            other => other.parse().ok()?,
        };
        let at = SocketAddr::new(address, port(entry, "PublicPort")?);
        Some((port(entry, "PrivatePort")?, at))
    };
    ports.filter_map(offered).take(MAX_ENDPOINTS).collect()
}
