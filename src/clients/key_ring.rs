//! The keys of one engine. One is sent only to what is proven to be that engine: each time it is
//! proven anew, after the connection is made and before anything is sent.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::keys::{KeyError, Secret};
use super::owner::{Claim, Connection};
use super::session::Endpoint;
use crate::model::{EngineTarget, EngineUser, SecretSource};

/// The keys of an engine, and how it is known.
#[derive(Clone, Debug)]
pub struct KeyRing {
    procfs: PathBuf,
    engine: Arc<EngineTarget>,
    endpoint: Endpoint,
}

/// A key for an engine, and what proves that it is that engine's.
#[derive(Clone, Debug)]
pub struct EngineKey {
    secret: Secret,
    ring: KeyRing,
    user: u32,
    refusal: Arc<OnceLock<Arc<str>>>,
}

/// There is a key, and it is not sent.
#[derive(Debug, thiserror::Error)]
pub enum NoKey {
    /// It cannot be read.
    #[error(transparent)]
    Unreadable(#[from] KeyError),
    /// The listening process is not proven to be the engine.
    #[error("{0}")]
    Unproven(String),
}

impl KeyRing {
    /// Of that engine, where it is asked.
    pub fn new(procfs: &Path, engine: Arc<EngineTarget>, endpoint: Endpoint) -> Self {
        Self { procfs: procfs.to_owned(), engine, endpoint }
    }

    /// The key of those who send requests, if it has one.
    ///
    /// # Errors
    /// It must not be sent, or cannot be read.
    pub fn api(&self) -> Result<Option<EngineKey>, NoKey> {
        self.engine.keys.api.as_ref().map(|source| self.key(source)).transpose()
    }

    /// The key of those who control it, if it has one: the admin key, or else that of requests.
    ///
    /// # Errors
    /// It must not be sent, or cannot be read.
    pub fn control(&self) -> Result<Option<EngineKey>, NoKey> {
        let keys = &self.engine.keys;
        keys.admin.as_ref().or(keys.api.as_ref()).map(|source| self.key(source)).transpose()
    }

    fn key(&self, source: &SecretSource) -> Result<EngineKey, NoKey> {
        let secret = Secret::read(source)?;
        let user = self.user(source).map_err(NoKey::Unproven)?;
        self.claim().prove(user).map_err(NoKey::Unproven)?;
        Ok(EngineKey { secret, ring: self.clone(), user, refusal: Arc::default() })
    }

    /// Whose processes get it.
    fn user(&self, source: &SecretSource) -> Result<u32, String> {
        match (&self.engine.keys.user, source) {
            (Some(EngineUser::Id(id)), _) => Ok(*id),
            (Some(EngineUser::Name(name)), _) => {
                let known = uzers::get_user_by_name(&**name).map(|user| user.uid());
                known.ok_or_else(|| format!("there is no user {name} here (user:)"))
            }
            (None, SecretSource::File(path)) => {
                let about = fs::metadata(&**path);
                about.map(|about| about.uid()).map_err(|error| format!("{path}: {error}"))
            }
            (None, SecretSource::Environment(_)) => Ok(rustix::process::geteuid().as_raw()),
        }
    }

    fn claim(&self) -> Claim<'_> {
        Claim { procfs: self.procfs.clone(), engine: &self.engine, endpoint: &self.endpoint }
    }
}

impl EngineKey {
    /// The key, for a connection that is made by now.
    ///
    /// # Errors
    /// What is at the other end is not proven to be the engine.
    pub fn reveal(&self, made: &Connection) -> Result<&Secret, String> {
        match self.ring.claim().prove_connection(self.user, made) {
            Ok(()) => Ok(&self.secret),
            Err(why) => {
                let _only_the_first = self.refusal.set(why.as_str().into());
                Err(why)
            }
        }
    }

    /// Why the key was first not revealed to a connection.
    pub fn refusal(&self) -> Option<Arc<str>> {
        self.refusal.get().cloned()
    }
}
