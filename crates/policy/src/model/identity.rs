//! Proofs of an engine's identity. Title, arguments, open files and the path of a control group are
//! claims: any user can make them.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::names::named;

named! {
    /// What proves that the processes of an engine are in the unit or container that they claim.
    #[derive(Default)]
    pub enum Proof {
        /// No proof.
        #[default]
        Claimed = "claimed",
        /// The control group is that of a system service, into which only root puts processes.
        Unit = "unit",
        /// Docker, or a server with its API, reports the container as running.
        Container = "container",
        /// The container runtime of Kubernetes (CRI) reports the pod's container as running.
        PodContainer = "pod_container",
        /// The own runtime of the processes' user (rootless Docker or Podman) reports the
        /// container as running. Any user can have one, so that it proves nothing against its user.
        UserContainer = "user_container",
    }
}

impl Proof {
    /// Whether there is no proof.
    pub fn is_claimed(&self) -> bool {
        *self == Self::Claimed
    }

    /// Whether root, and not only the user of the processes, has started them there.
    pub fn is_of_system(&self) -> bool {
        !matches!(self, Self::Claimed | Self::UserContainer)
    }

    /// Whether a runtime has confirmed the container.
    pub fn is_of_container(&self) -> bool {
        matches!(self, Self::Container | Self::PodContainer | Self::UserContainer)
    }
}

/// The server that runs a container, and where it writes the container's log.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ContainerRuntime {
    /// Path of the socket on which the server listens.
    pub socket: Arc<str>,
    /// The user whose own it is (rootless); `None`: the system's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<u32>,
    /// Whether it is Podman, which restarts after any signal but SIGKILL, however it was sent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_podman: bool,
    /// The file of the container's log, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<Arc<str>>,
}

/// A service of a user's own systemd (`systemctl --user`). The user has chosen its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct UserUnit {
    /// Number of the user whose systemd runs the unit.
    pub user: u32,
    /// The name of the unit.
    pub name: Arc<str>,
}

/// A user in the configuration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineUser {
    /// By user id.
    Id(u32),
    /// By user name.
    Name(Arc<str>),
}

impl fmt::Display for EngineUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => write!(f, "{id}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}
