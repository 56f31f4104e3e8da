//! Requests that make an engine return memory. The file of each engine has them; the caller
//! supplies the connection.
//!
//! Some calls are never made, even if a rule allows them: those that may kill the server or the
//! host (SGLang's `/release_memory_occupation`; vLLM's `/sleep`, and `/wake_up`, which has killed
//! engines and whole hosts on GB10), those that end requests (a pause whose mode is `abort`, the
//! default; LMDeploy's `/sleep`), and those that run code (`/collective_rpc`).

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;

use super::facts;
use crate::model::{CachePermission, EngineKind, counted};
use crate::parse::answer::HttpResponse;

/// How an engine gives memory back while it serves.
#[derive(Debug)]
pub enum ReclaimMethod {
    /// No way is known.
    Unknown,
    /// It cannot: the reason, and what helps.
    Never(&'static str),
    /// By its safest requests. Returns a text with what was done and the responses.
    By(fn(&Emptying<'_>, &mut dyn Pausing) -> Result<String, EmptyingRefusal>),
}

/// Resumes a paused engine.
///
/// # Errors
/// The engine did not confirm it.
pub type ResumeCall = fn(&dyn EngineCalls) -> Result<(), EmptyingRefusal>;

/// One of the keys that an engine may require.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhichKey {
    /// The key for inference requests.
    Api,
    /// The key for control requests.
    Control,
}

/// HTTP requests to one engine.
pub trait EngineCalls {
    /// Reads a key for later requests. `None` if none is configured, or if the engine is not proven
    /// to be the owner of the key.
    ///
    /// # Errors
    /// The key cannot be read.
    fn key(&self, which: WhichKey) -> Result<Option<WhichKey>, EmptyingRefusal>;

    /// Sends a GET request, with a key that [`Self::key`] has returned.
    ///
    /// # Errors
    /// There was no response within `patience`.
    fn get(
        &self,
        path: &str,
        key: Option<WhichKey>,
        patience: Duration,
    ) -> Result<HttpResponse, EmptyingRefusal>;

    /// Sends a POST request, with a key that [`Self::key`] has returned.
    ///
    /// # Errors
    /// There was no response within `patience`. The engine may have received the request.
    fn post(
        &self,
        path: &str,
        body: Option<&Value>,
        key: Option<WhichKey>,
        patience: Duration,
    ) -> Result<HttpResponse, EmptyingRefusal>;

    /// Waits for that time between two requests.
    fn wait(&self, time: Duration);
}

/// A request to return memory.
pub struct Emptying<'a> {
    /// The connection to the engine.
    pub calls: &'a dyn EngineCalls,
    /// The costs that the rule allows.
    pub allow: &'a BTreeSet<CachePermission>,
}

impl Emptying<'_> {
    pub(super) fn allows(&self, permission: CachePermission) -> bool {
        self.allow.contains(&permission)
    }
}

/// Records that an engine is paused, so that it is resumed in any case.
pub trait Pausing {
    /// Records the pause before it is requested.
    ///
    /// # Errors
    /// The undo log could not be written: the engine must not be paused.
    fn begin(&mut self) -> Result<(), String>;

    /// Removes the record, since the engine has refused the pause.
    fn refused(&mut self);

    /// Resumes the engine.
    ///
    /// # Errors
    /// The engine is still paused. The request is repeated later.
    fn end(&mut self) -> Result<(), String>;
}

/// Why the engine returned nothing, or not everything.
#[derive(Debug, thiserror::Error)]
pub enum EmptyingRefusal {
    /// The engine has no request for it.
    #[error("{0}")]
    NothingToCall(&'static str),
    /// The engine has nothing to return.
    #[error("{0}")]
    NothingToGive(&'static str),
    /// The engine works on requests.
    #[error("it has {}, and {then}", counted(*.requests, "request"))]
    Busy {
        /// Running and waiting requests.
        requests: u64,
        /// The consequence, in words.
        then: &'static str,
    },
    /// Another client has paused the engine.
    #[error("another client has paused it: it stays so, since emptying would resume it")]
    Paused,
    /// The engine reports that it is not ready.
    #[error("it answers {0} at /ready: it is not ready, or was paused")]
    NotReady(u16),
    /// The rule does not allow the cost.
    #[error("{why}: a rule must say so with allow: [{}]", permission.name())]
    NotAllowed {
        /// The permission that the rule lacks.
        permission: CachePermission,
        /// The cost, in words.
        why: &'static str,
    },
    /// The engine requires a key, or another one.
    #[error("it answers {status} at {path}: {}", key_hint(*has_key, key))]
    Unauthorized {
        /// The HTTP status.
        status: u16,
        /// The path of the request.
        path: String,
        /// Whether a key was sent.
        has_key: bool,
        /// The key's name in the configuration.
        key: &'static str,
    },
    /// The engine's version has no such request.
    #[error("{0}")]
    TooOld(&'static str),
    /// The response has an unexpected status.
    #[error("it answers {status} at {path}: {text}")]
    Answered {
        /// The HTTP status.
        status: u16,
        /// The path of the request.
        path: String,
        /// The beginning of the body.
        text: String,
    },
    /// The response has an unexpected form.
    #[error("its response at {0} is not that of such an engine")]
    Unreadable(String),
    /// The engine was paused and could not be resumed.
    #[error("it was paused, and does not resume: {0}; the request is repeated until it does")]
    StillPaused(String),
    /// The pause could not be recorded.
    #[error("the undo log cannot record the pause: {0}: it is not paused")]
    NotWrittenDown(String),
    /// A key could not be read, or there was no response.
    #[error("{0}")]
    Unanswered(String),
}

fn key_hint(has_key: bool, key: &str) -> String {
    match has_key {
        true => format!("the key that was sent is wrong ({key})"),
        false => format!("it requires a key: name it under engines in the configuration ({key})"),
    }
}

impl EmptyingRefusal {
    /// Of an answer that is none of those that were hoped for.
    pub(super) fn of(path: &str, answer: &HttpResponse, has_key: bool, key: &'static str) -> Self {
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
) -> Result<String, EmptyingRefusal> {
    match facts(kind).gives_back {
        ReclaimMethod::By(empty) => empty(emptying, pausing),
        ReclaimMethod::Never(why) => Err(EmptyingRefusal::NothingToCall(why)),
        ReclaimMethod::Unknown => Err(EmptyingRefusal::NothingToCall(
            "an engine of this kind has no call that gives memory back",
        )),
    }
}
