//! Whether an engine is what it claims to be. Title, arguments, open files and the path of a
//! control group are claims: any user can make them.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::names::named;

named! {
    /// Who vouches that the processes of an engine are in the unit or container that they claim.
    #[derive(Default)]
    pub enum Proof {
        /// Nobody.
        #[default]
        Claimed = "claimed",
        /// The service manager of the system: the control group is that of a system service, into
        /// which only root puts processes.
        Unit = "unit",
        /// Docker, or what speaks its API: the processes are in a container that it reports as
        /// running.
        Container = "container",
        /// The container runtime of Kubernetes (CRI) reports the same of a pod's container.
        PodContainer = "pod_container",
    }
}

impl Proof {
    /// Whether nobody vouches.
    pub fn is_claimed(&self) -> bool {
        *self == Self::Claimed
    }
}

/// The user whose processes may be sent the keys of an engine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineUser {
    /// By number.
    Id(u32),
    /// By name.
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
