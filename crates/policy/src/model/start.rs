//! What a start needs, and how starts are let in.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::HOST_POOL;

/// Memory that an engine needs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateRequest {
    /// What it takes where engines put weights and KV cache.
    pub need_bytes: u64,
    /// Part of it that must be in free blocks of at least 2 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contiguous_bytes: Option<u64>,
    /// What it takes beside that from the CPUs' memory. Where that is the same, it is added.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub host_need_bytes: u64,
    /// The pools that share the need evenly. Empty: the pool that engines use; of several, as
    /// the engine's is not known, each must have the whole need.
    #[serde(default, rename = "pool_names", skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<Arc<str>>,
}

impl GateRequest {
    /// A need without further conditions.
    pub fn of(need_bytes: u64) -> Self {
        Self { need_bytes, ..Self::default() }
    }
}

/// Memory that a start needs, as a configuration, a label or a person says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartNeed {
    /// What it takes where engines put weights and KV cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub need_bytes: Option<u64>,
    /// Part of it that must be in large blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contiguous_bytes: Option<u64>,
    /// What it takes beside that from the CPUs' memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_need_bytes: Option<u64>,
    /// The pools that share the need; empty: those that engines use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<Arc<str>>,
}

impl StartNeed {
    /// The same, where nothing is said with what `other` says.
    #[must_use]
    pub fn or(self, other: &Self) -> Self {
        Self {
            need_bytes: self.need_bytes.or(other.need_bytes),
            contiguous_bytes: self.contiguous_bytes.or(other.contiguous_bytes),
            host_need_bytes: self.host_need_bytes.or(other.host_need_bytes),
            pools: if self.pools.is_empty() { other.pools.clone() } else { self.pools },
        }
    }

    /// The request; `usual_bytes` is the need where none is given.
    pub fn request(&self, usual_bytes: u64) -> GateRequest {
        GateRequest {
            need_bytes: self.need_bytes.unwrap_or(usual_bytes),
            contiguous_bytes: self.contiguous_bytes,
            host_need_bytes: self.host_need_bytes.unwrap_or(0),
            pools: self.pools.clone(),
        }
    }
}

/// The most pools in a request.
const MOST_POOLS: usize = 64;

/// Reads names of pools, such as `gpu0,gpu1`.
///
/// # Errors
/// A name is neither `host` nor `gpu` with a number, or there are too many.
pub fn pool_names(text: &str) -> Result<Vec<Arc<str>>, String> {
    let is_name = |name: &str| {
        let number = name.strip_prefix("gpu").unwrap_or_default();
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        name == HOST_POOL || (is_number && number.len() <= 3)
    };
    let names: Vec<&str> = text.split(',').map(str::trim).collect();
    match names.iter().find(|name| !is_name(name)) {
        Some(name) => Err(format!("{name:?} is no pool: write host, or gpu0,gpu1")),
        None if names.len() > MOST_POOLS => Err(format!("more than {MOST_POOLS} pools")),
        None => Ok(names.into_iter().map(Arc::from).collect()),
    }
}

/// How starts are let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartSettings {
    /// How many may start at the same time.
    pub at_once: u32,
    /// The folder of the ledger; `None`: [`StartSettings::FOLDER`].
    pub folder: Option<PathBuf>,
}

impl StartSettings {
    /// The usual folder of the ledger, which a reboot empties.
    pub const FOLDER: &'static str = "/run/umawarden";

    /// The folder of the ledger for starts on the machine of that procfs. `None` for files of
    /// another machine, or of the host from a container, unless a folder is given.
    pub fn ledger_folder(&self, procfs: &Path) -> Option<PathBuf> {
        let usual = || (procfs == Path::new("/proc")).then(|| Self::FOLDER.into());
        self.folder.clone().or_else(usual)
    }
}

impl Default for StartSettings {
    fn default() -> Self {
        Self { at_once: 1, folder: None }
    }
}
