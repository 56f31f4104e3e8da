//! What an action works on.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// PATH_MAX.
const LONGEST_PATH: usize = 4096;

/// What an action works on, as exactly as the executor needs it: it verifies, and never chooses.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Target {
    /// The whole machine.
    #[default]
    Node,
    /// One control group and what is below it.
    Cgroup {
        /// Below the root of the hierarchy: `/system.slice/vllm.service`.
        path: Arc<str>,
    },
    /// Settings of the kernel; two remedies never hold one of them together.
    Settings {
        /// `vm.swappiness`, `read_ahead_kb of nvme0n1`, `read_ahead_kb of /models`; sorted.
        names: Vec<Arc<str>>,
    },
}

impl Target {
    /// These settings, in order.
    pub fn settings(names: impl IntoIterator<Item = String>) -> Self {
        let mut names: Vec<Arc<str>> = names.into_iter().map(Arc::from).collect();
        names.sort();
        names.dedup();
        Self::Settings { names }
    }

    /// A setting that both are, if there is one.
    pub fn shared_setting<'t>(&'t self, other: &Self) -> Option<&'t str> {
        let (Self::Settings { names }, Self::Settings { names: theirs }) = (self, other) else {
            return None;
        };
        names.iter().find(|name| theirs.contains(name)).map(|name| &**name)
    }

    /// Whether a text can be a control group's path: from the root of its hierarchy, and never out
    /// of it.
    pub fn is_cgroup_path(path: &str) -> bool {
        let Some(below) = path.strip_prefix('/') else { return false };
        let is_name = |part: &str| !matches!(part, "" | "." | "..");
        path.len() <= LONGEST_PATH
            && !path.chars().any(char::is_control)
            && (below.is_empty() || below.split('/').all(is_name))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node => f.write_str("node"),
            Self::Cgroup { path } => write!(f, "cgroup {path}"),
            Self::Settings { names } => write!(f, "settings {}", names.join(", ")),
        }
    }
}
