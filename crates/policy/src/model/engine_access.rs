//! What an engine tells of its work, and the keys that it asks for.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{EngineUser, Reading};

/// Where a secret is kept. The secret itself is read when it is needed, and kept nowhere.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SecretPlace {
    /// A file of one line, by its path from the root.
    File(Arc<str>),
    /// A variable of this program's environment.
    Environment(Arc<str>),
}

impl fmt::Display for SecretPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => f.write_str(path),
            Self::Environment(name) => write!(f, "the variable {name}"),
        }
    }
}

/// Where the keys are that an engine asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EngineKeys {
    /// Of those who send requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api: Option<SecretPlace>,
    /// Of those who control it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin: Option<SecretPlace>,
    /// Whose processes get them; by default those of the owner of the key's file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<EngineUser>,
}

impl EngineKeys {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.api.is_none() && self.admin.is_none()
    }
}

/// What an engine tells of its work.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EngineLoad {
    /// Requests that it works on.
    pub running: Reading<u64>,
    /// Requests that it keeps waiting.
    pub waiting: Reading<u64>,
    /// The share of its KV cache that is in use, from 0 to 1; of several ranks the fullest.
    pub kv_cache_usage: Reading<f64>,
    /// Tokens for which its KV cache has room, of all ranks.
    pub kv_cache_available_tokens: Reading<u64>,
    /// Whether it sleeps: it was told to, and has given up its weights or its KV cache.
    pub is_sleeping: Reading<bool>,
}

impl Default for EngineLoad {
    fn default() -> Self {
        Self::NONE
    }
}

impl EngineLoad {
    /// It tells nothing.
    pub const NONE: Self = Self {
        running: Reading::Unsupported,
        waiting: Reading::Unsupported,
        kv_cache_usage: Reading::Unsupported,
        kv_cache_available_tokens: Reading::Unsupported,
        is_sleeping: Reading::Unsupported,
    };

    /// Its requests could not be read.
    pub const UNREAD: Self =
        Self { running: Reading::Failed, waiting: Reading::Failed, ..Self::NONE };

    /// Whether it tells nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::NONE
    }

    /// Requests that it has, running and waiting.
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
