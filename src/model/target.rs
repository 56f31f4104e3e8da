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
}

impl Target {
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
        }
    }
}
