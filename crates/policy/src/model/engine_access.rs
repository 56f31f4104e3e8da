//! The load that an engine reports, and the keys that it requires.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{EngineUser, Reading};

/// The location of a secret. The secret is read when it is needed, and never stored.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SecretSource {
    /// A file of one line, by its path from the root.
    File(Arc<str>),
    /// A variable of this program's environment.
    Environment(Arc<str>),
}

impl fmt::Display for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => f.write_str(path),
            Self::Environment(name) => write!(f, "the variable {name}"),
        }
    }
}

/// The locations of the keys that an engine requires.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EngineKeys {
    /// The key for inference requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api: Option<SecretSource>,
    /// The key for control requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin: Option<SecretSource>,
    /// The user whose processes are sent the keys; by default the owner of the key's file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<EngineUser>,
}

impl EngineKeys {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.api.is_none() && self.admin.is_none()
    }
}

/// The load that an engine reports.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EngineLoad {
    /// Running requests.
    pub running: Reading<u64>,
    /// Waiting requests.
    pub waiting: Reading<u64>,
    /// The share of its KV cache that is in use, from 0 to 1; of several ranks the fullest.
    pub kv_cache_usage: Reading<f64>,
    /// Free tokens of its KV cache, over all ranks.
    pub kv_cache_available_tokens: Reading<u64>,
    /// Whether it sleeps on request, without its weights or its KV cache.
    pub is_sleeping: Reading<bool>,
    /// A count that rises while any request makes progress: tokens, or decoding steps.
    #[serde(default = "unsupported")]
    pub work: Reading<u64>,
    /// Whether the part that computes has answered, where it reports the load itself; `Failed`: it
    /// has not.
    #[serde(default = "unsupported", skip_serializing_if = "is_unsupported")]
    pub core_answers: Reading<bool>,
}

fn unsupported<T>() -> Reading<T> {
    Reading::Unsupported
}

fn is_unsupported(reading: &Reading<bool>) -> bool {
    *reading == Reading::Unsupported
}

impl Default for EngineLoad {
    fn default() -> Self {
        Self::NONE
    }
}

impl EngineLoad {
    /// The engine reports nothing.
    pub const NONE: Self = Self {
        running: Reading::Unsupported,
        waiting: Reading::Unsupported,
        kv_cache_usage: Reading::Unsupported,
        kv_cache_available_tokens: Reading::Unsupported,
        is_sleeping: Reading::Unsupported,
        work: Reading::Unsupported,
        core_answers: Reading::Unsupported,
    };

    /// Its requests could not be read.
    pub const UNREAD: Self =
        Self { running: Reading::Failed, waiting: Reading::Failed, ..Self::NONE };

    /// Whether the engine reports nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::NONE
    }

    /// Running and waiting requests together.
    pub fn requests(&self) -> Reading<u64> {
        match (self.running, self.waiting) {
            (Reading::Value(running), Reading::Value(waiting)) => {
                Reading::Value(running.saturating_add(waiting))
            }
            (running, Reading::Unsupported) => running,
            (running, _) => running.zip(self.waiting).map(|(running, _)| running),
        }
    }
}
