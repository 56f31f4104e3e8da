//! How an engine is asked to give memory back: by the calls in its file, over a connection that
//! others make.
//!
//! Some calls are made by none of them, whatever a rule says: what may kill the server or the host
//! (SGLang's `/release_memory_occupation`; vLLM's `/sleep`, and `/wake_up`, which has killed
//! engines and whole hosts on GB10), what ends requests (a pause whose mode is `abort`, which is
//! the default; LMDeploy's `/sleep`), and what runs code (`/collective_rpc`).

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;

use super::facts;
use crate::model::{CachePermission, EngineKind, counted};
use crate::parse::answer::Answer;

/// How an engine gives memory back while it serves.
#[derive(Debug)]
pub enum GivesBack {
    /// Nothing is known of it.
    Unknown,
    /// It does not: why, and what helps.
    Never(&'static str),
    /// By calls: the safest ones that it has. Returns what was done and what it answered, in words.
    By(fn(&Emptying<'_>, &mut dyn Pausing) -> Result<String, Refusal>),
}

/// Has an engine that was paused go on. An error says that it did not confirm it.
pub type GoOn = fn(&dyn EngineCalls) -> Result<(), Refusal>;

/// One of the keys that an engine may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhichKey {
    /// Of those who send requests.
    Api,
    /// Of those who control it.
    Control,
}

/// Calls to one engine.
pub trait EngineCalls {
    /// Reads a key, which later calls may send. `None` if the engine has none, or is not proven to
    /// be the one that it belongs to.
    ///
    /// # Errors
    /// It cannot be read.
    fn key(&self, which: WhichKey) -> Result<Option<WhichKey>, Refusal>;

    /// Asks, with a key that was read before.
    ///
    /// # Errors
    /// No answer has come in time.
    fn get(&self, path: &str, key: Option<WhichKey>, patience: Duration)
    -> Result<Answer, Refusal>;

    /// Tells, with a key that was read before.
    ///
    /// # Errors
    /// No answer has come in time; it may have heard it all the same.
    fn post(
        &self,
        path: &str,
        body: Option<&Value>,
        key: Option<WhichKey>,
        patience: Duration,
    ) -> Result<Answer, Refusal>;

    /// Waits so long.
    fn wait(&self, time: Duration);
}

/// What is asked of an engine.
pub struct Emptying<'a> {
    /// The calls to it.
    pub calls: &'a dyn EngineCalls,
    /// What it may cost.
    pub allow: &'a BTreeSet<CachePermission>,
}

impl Emptying<'_> {
    pub(super) fn allows(&self, permission: CachePermission) -> bool {
        self.allow.contains(&permission)
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
    /// A key could not be read, or it could not be asked.
    #[error("{0}")]
    Unanswered(String),
}

fn key_hint(has_key: bool, key: &str) -> String {
    match has_key {
        true => format!("the key that was sent is not the one that it wants ({key})"),
        false => format!("it asks for a key: name it under engines in the configuration ({key})"),
    }
}

impl Refusal {
    /// Of an answer that is none of those that were hoped for.
    pub(super) fn of(path: &str, answer: &Answer, has_key: bool, key: &'static str) -> Self {
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
    match facts(kind).gives_back {
        GivesBack::By(empty) => empty(emptying, pausing),
        GivesBack::Never(why) => Err(Refusal::NothingToCall(why)),
        GivesBack::Unknown => {
            Err(Refusal::NothingToCall("an engine of this kind has no call that gives memory back"))
        }
    }
}
