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
    }
}

impl Proof {
    /// Whether there is no proof.
    pub fn is_claimed(&self) -> bool {
        *self == Self::Claimed
    }
}

/// The user whose processes may be sent the keys of an engine.
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
