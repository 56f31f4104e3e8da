//! Thin clients of inference engines: one file each, over [`Session`], which is where whatever they
//! answer is bounded. Others are none: [`fleet_lock`] asks the server that keeps a cluster's
//! reboots apart, [`peer`] the umawarden of another node, [`alertmanager`] tells of alerts, and
//! [`collector`] sends telemetry. What is asked of them is bounded in one place, `wire`; TLS is in
//! `tls`.
//!
//! To add an engine that gives memory back: a file here whose `empty` makes the safest call that
//! the engine has, an [`EngineClient`] and its line in [`empty_cache`], and what the real one
//! answers in `tests/fixtures/engines/answers`. One that does not says why in its facts.
//!
//! Some calls are made by none of them, whatever a rule says: what may kill the server or the host
//! (SGLang's `/release_memory_occupation`; vLLM's `/sleep`, and `/wake_up`, which has killed
//! engines and whole hosts on GB10), what ends requests (a pause whose mode is `abort`, which is
//! the default; LMDeploy's `/sleep`), and what runs code (`/collective_rpc`).

pub mod alertmanager;
pub mod collector;
mod comfyui;
pub mod connection;
pub mod files;
pub mod fleet_lock;
mod key_ring;
mod keys;
mod llama_server;
pub mod network;
mod ollama;
pub mod owner;
pub mod peer;
mod session;
pub mod sglang;
mod tls;
mod triton;
mod wire;

use std::cell::RefCell;
use std::collections::BTreeSet;

pub use key_ring::{EngineKey, KeyRing, NoKey};
pub use keys::{KeyError, Secret, check_permissions};
pub use session::{Answer, CallError, Place, Session, origin};

use crate::engines::{EngineClient, GivesBack, facts};
use crate::model::{CachePermission, EngineKind, counted};

/// What is asked of an engine.
pub struct Emptying<'a> {
    /// The connection to it.
    pub session: &'a Session,
    /// Its keys.
    pub keys: &'a KeyRing,
    /// What it may cost.
    pub allow: &'a BTreeSet<CachePermission>,
    /// Why it is asked without a key that it has.
    pub withheld: RefCell<Option<String>>,
}

impl Emptying<'_> {
    fn allows(&self, permission: CachePermission) -> bool {
        self.allow.contains(&permission)
    }

    /// The key of those who send requests.
    fn api_key(&self) -> Result<Option<EngineKey>, Refusal> {
        self.proven(self.keys.api())
    }

    /// The key of those who control it.
    fn control_key(&self) -> Result<Option<EngineKey>, Refusal> {
        self.proven(self.keys.control())
    }

    /// What is not proven to be the engine is asked without its key.
    fn proven(&self, key: Result<Option<EngineKey>, NoKey>) -> Result<Option<EngineKey>, Refusal> {
        match key {
            Ok(key) => Ok(key),
            Err(NoKey::Unreadable(error)) => Err(error.into()),
            Err(NoKey::Unproven(why)) => {
                *self.withheld.borrow_mut() = Some(why);
                Ok(None)
            }
        }
    }
}

/// Keeps in mind, before an engine is paused, that it must go on.
pub trait Pausing {
    /// It is about to be paused; an error says why it must not be.
    ///
    /// # Errors
    /// It could not be written down.
    fn begin(&mut self) -> Result<(), String>;

    /// It has refused to be paused: there is nothing to keep in mind.
    fn refused(&mut self);

    /// Has it go on, whatever has happened; an error says why it does not.
    ///
    /// # Errors
    /// It is still paused, and will be told again to go on.
    fn end(&mut self) -> Result<(), String>;
}

/// Why nothing, or not all, was done.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// It has no call for it.
    #[error("{0}")]
    NothingToCall(&'static str),
    /// It has nothing to give back.
    #[error("{0}")]
    NothingToGive(&'static str),
    /// It has requests.
    #[error("it has {}, and {then}", counted(*.requests, "request"))]
    Busy {
        /// How many.
        requests: u64,
        /// What follows.
        then: &'static str,
    },
    /// Somebody has paused it.
    #[error("somebody has paused it: it is left as it is, since to empty it would have it go on")]
    Paused,
    /// It says that it cannot be asked.
    #[error("it answers {0} at /ready: it is not ready, or somebody has paused it")]
    NotReady(u16),
    /// What it would cost is not allowed.
    #[error("{why}: a rule must say so with allow: [{}]", permission.name())]
    NotAllowed {
        /// What would have to be allowed.
        permission: CachePermission,
        /// What it would cost.
        why: &'static str,
    },
    /// It asks for a key, or for another one.
    #[error("it answers {status} at {path}: {}", key_hint(*has_key, key))]
    Unauthorized {
        /// The status.
        status: u16,
        /// Where.
        path: String,
        /// Whether one was sent.
        has_key: bool,
        /// What the configuration calls it.
        key: &'static str,
    },
    /// Its version cannot do that.
    #[error("{0}")]
    TooOld(&'static str),
    /// It answered something else than it should.
    #[error("it answers {status} at {path}: {text}")]
    Answered {
        /// The status.
        status: u16,
        /// Where.
        path: String,
        /// The beginning of what it said.
        text: String,
    },
    /// What it answers cannot be read.
    #[error("what it answers at {0} is not what such an engine answers")]
    Unreadable(String),
    /// It was paused, and does not go on.
    #[error("it was paused, and does not go on: {0}; it is told again until it does")]
    StillPaused(String),
    /// That it is paused could not be written down.
    #[error("the undo log cannot keep in mind that it must go on: {0}: it is not paused")]
    NotWrittenDown(String),
    /// A key could not be read.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// It could not be asked.
    #[error(transparent)]
    Call(#[from] CallError),
}

fn key_hint(has_key: bool, key: &str) -> String {
    match has_key {
        true => format!("the key that was sent is not the one that it wants ({key})"),
        false => format!("it asks for a key: name it under engines in the configuration ({key})"),
    }
}

impl Refusal {
    /// Of an answer that is none of those that were hoped for.
    fn of(path: &str, answer: &Answer, has_key: bool, key: &'static str) -> Self {
        let path = path.split('?').next().unwrap_or(path).to_owned();
        match answer.status {
            status @ (401 | 403) => Self::Unauthorized { status, path, has_key, key },
            status => Self::Answered { status, path, text: answer.beginning() },
        }
    }
}

/// Has an engine give back what it only keeps, by the safest call that it has. Returns what was
/// done and what it answered, in words.
///
/// # Errors
/// Why nothing was done, or not all.
pub fn empty_cache(
    kind: EngineKind,
    emptying: &Emptying<'_>,
    pausing: &mut dyn Pausing,
) -> Result<String, Refusal> {
    let client = match facts(kind).gives_back {
        GivesBack::By(client) => client,
        GivesBack::Never(why) => return Err(Refusal::NothingToCall(why)),
        GivesBack::Unknown => {
            let why = "an engine of this kind has no call that gives memory back";
            return Err(Refusal::NothingToCall(why));
        }
    };
    match client {
        EngineClient::Sglang => sglang::empty(emptying, pausing),
        EngineClient::Ollama => ollama::empty(emptying),
        EngineClient::LlamaServer => llama_server::empty(emptying),
        EngineClient::ComfyUi => comfyui::empty(emptying),
        EngineClient::Triton => triton::empty(emptying),
    }
}
