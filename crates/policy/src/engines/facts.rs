//! The facts about one kind of engine.

use std::time::Duration;

use super::command_line::{Program, Role, Serving};
use super::emptying::{GivesBack, GoOn};
use super::last_words::LastWords;
use crate::model::{EngineKind, EngineLoad};

/// The value of a variable of an engine's environment.
pub type Variable<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// What is known of one kind of engine: data, and functions without I/O.
#[derive(Debug)]
pub struct EngineFacts {
    /// The kind that this is about.
    pub kind: EngineKind,
    /// What people call it, if it is recognised without being declared.
    pub known_as: Option<&'static str>,
    /// Recognises its processes by what they run.
    pub recognise: fn(&Program<'_>) -> Option<Role>,
    /// How the titles of its workers begin. The kernel keeps 15 bytes of a title.
    pub titles: &'static [&'static str],
    /// Engines that are workers of this one where it has started them.
    pub starts: &'static [EngineKind],
    /// Whether a worker may load a model while the server is up.
    pub loads_while_up: bool,
    /// The port that it serves on without an option.
    pub port: Option<u16>,
    /// The address that it listens at without an option.
    pub host: &'static str,
    /// The options that name the port, in all spellings.
    pub port_options: &'static [&'static str],
    /// The options that name the address.
    pub host_options: &'static [&'static str],
    /// The options that name the model.
    pub model_options: &'static [&'static str],
    /// Whether the first argument that is no option may name the model.
    pub may_name_model_first: bool,
    /// The variables that say how it serves, where its options do not. Others are not read: keys
    /// are among them.
    pub variables: &'static [&'static str],
    /// What these variables say.
    pub of_variables: fn(&Variable<'_>) -> Serving,
    /// Where it is asked for its health: the first path, and a later one where an earlier one is
    /// not there. A request must cost nothing and wake nothing.
    pub health: &'static [HealthPath],
    /// Where it reports its work: a later path where the earlier ones report nothing.
    pub load: &'static [LoadSource],
    /// Its load where that could not be read.
    pub unread_load: EngineLoad,
    /// How it gives memory back while it serves.
    pub gives_back: GivesBack,
    /// Has one that was paused for that go on.
    pub go_on: Option<GoOn>,
    /// Names of calls that are never made, whatever a rule allows, and why.
    pub never_called: &'static [(&'static [&'static str], &'static str)],
    /// Parts of lines that it logs when it dies, beside those that any engine may log.
    pub last_words: &'static [(&'static str, LastWords)],
    /// Reads the line that says how a worker has ended.
    pub worker_died: fn(&str) -> Option<LastWords>,
    /// The settings with which it takes less memory.
    pub takes_less: Option<&'static str>,
    /// The command that ends with 0 though one of its workers was killed.
    pub hides_killed_workers: Option<&'static str>,
    /// A health path that answers slowly in one of its states.
    pub slow_health: Option<SlowHealth>,
    /// Repositories of its images, as its makers name them; all below one that ends with `/`.
    pub images: &'static [&'static str],
}

/// A path that is asked for an engine's health.
#[derive(Debug)]
pub struct HealthPath {
    /// The path.
    pub path: &'static str,
    /// Whether it is also asked where an earlier one has answered that the engine is not ready.
    pub overrules_unready: bool,
}

impl HealthPath {
    pub(super) const fn of(path: &'static str) -> Self {
        Self { path, overrules_unready: false }
    }
}

/// A health path that answers slowly in one of an engine's states.
#[derive(Debug)]
pub struct SlowHealth {
    /// The path.
    pub path: &'static str,
    /// Which engine answers slowly, in words.
    pub who: &'static str,
    /// How long it takes.
    pub takes: Duration,
}

/// A path at which an engine reports its work.
#[derive(Debug)]
pub struct LoadSource {
    /// The path.
    pub path: &'static str,
    /// Reads the body of the response; `None` if it is something else.
    pub read: fn(&str) -> Option<EngineLoad>,
}

impl EngineFacts {
    /// Nothing is known of it.
    pub(super) const fn new(kind: EngineKind) -> Self {
        Self {
            kind,
            known_as: None,
            recognise: |_| None,
            titles: &[],
            starts: &[],
            loads_while_up: false,
            port: None,
            host: "127.0.0.1",
            port_options: &[],
            host_options: &[],
            model_options: &[],
            may_name_model_first: false,
            variables: &[],
            of_variables: |_| Serving::NONE,
            health: &[],
            load: &[],
            unread_load: EngineLoad::UNREAD,
            gives_back: GivesBack::Unknown,
            go_on: None,
            never_called: &[],
            last_words: &[],
            worker_died: |_| None,
            takes_less: None,
            hides_killed_workers: None,
            slow_health: None,
            images: &[],
        }
    }

    /// Whether it is known how it gives memory back, or why it does not.
    pub fn can_empty_cache(&self) -> bool {
        !matches!(self.gives_back, GivesBack::Unknown)
    }

    /// Whether a process of that name, or with that title, is one of its workers.
    pub fn has_title(&self, name: &str) -> bool {
        self.titles.iter().any(|title| name.starts_with(title))
    }
}
