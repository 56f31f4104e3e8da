//! The keys of one engine. A key is sent only to a peer proven to be that engine. The proof is made
//! for each connection, before anything is sent.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::keys::{KeyError, Secret};
use super::owner::{Claim, ConnectionEnds};
use super::session::Endpoint;
use crate::model::{EngineTarget, EngineUser, SecretSource};

/// The keys of an engine, and its identity.
#[derive(Clone, Debug)]
pub struct KeyRing {
    procfs: PathBuf,
    engine: Arc<EngineTarget>,
    endpoint: Endpoint,
}

/// A key of an engine, and the proof that a connection must pass.
#[derive(Clone, Debug)]
pub struct EngineKey {
    secret: Secret,
    ring: KeyRing,
    user: u32,
    refusal: Arc<OnceLock<Arc<str>>>,
}

/// A key exists and is not sent.
#[derive(Debug, thiserror::Error)]
pub enum NoKey {
    /// The key cannot be read.
    #[error(transparent)]
    Unreadable(#[from] KeyError),
    /// The listening process is not proven to be the engine.
    #[error("{0}")]
    Unproven(String),
}

impl KeyRing {
    /// The keys of an engine at an endpoint.
    pub fn new(procfs: &Path, engine: Arc<EngineTarget>, endpoint: Endpoint) -> Self {
        Self { procfs: procfs.to_owned(), engine, endpoint }
    }

    /// The API key, if the engine has one.
    ///
    /// # Errors
    /// The key must not be sent, or cannot be read.
    pub fn api(&self) -> Result<Option<EngineKey>, NoKey> {
        self.engine.keys.api.as_ref().map(|source| self.key(source)).transpose()
    }

    /// The key for control requests, if the engine has one: the admin key, or else the API key.
    ///
    /// # Errors
    /// The key must not be sent, or cannot be read.
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

    /// The engine whose processes get the key.
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
    /// The key, for an established connection.
    ///
    /// # Errors
    /// The peer is not proven to be the engine.
    pub fn reveal(&self, made: &ConnectionEnds) -> Result<&Secret, String> {
        match self.ring.claim().prove_connection(self.user, made) {
            Ok(()) => Ok(&self.secret),
            Err(why) => {
                // The first reason is kept.
                let _ = self.refusal.set(why.as_str().into());
                Err(why)
            }
        }
    }

    /// Why the key was first not revealed to a connection.
    pub fn refusal(&self) -> Option<Arc<str>> {
        self.refusal.get().cloned()
    }
}
