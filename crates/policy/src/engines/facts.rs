//! The facts about one kind of engine.

use std::time::Duration;

use super::command_line::{EnginePart, ProcessRole, Program, ServingArguments};
use super::emptying::{ReclaimMethod, ResumeCall};
use super::last_words::{LastWords, Phrase};
use super::launch_command::SizeOptions;
use super::loaders::{LoaderRule, WeightDaemon};
use crate::model::{EngineKind, EngineLoad};

/// The value of a variable of an engine's environment.
pub type Variable<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// The facts about one kind of engine: data, and functions without I/O.
#[derive(Debug)]
pub struct EngineFacts {
    /// The kind of engine.
    pub kind: EngineKind,
    /// Its usual name, if it is recognised without a declaration.
    pub known_as: Option<&'static str>,
    /// Recognises its processes by what they run.
    pub recognise: fn(&Program<'_>) -> Option<ProcessRole>,
    /// How the titles of its workers begin. The kernel keeps 15 bytes of a title.
    pub titles: &'static [&'static str],
    /// Engines that are workers of this one if it has started them.
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
    /// The options that name both, as `HOST:PORT`.
    pub address_options: &'static [&'static str],
    /// The options that name the model.
    pub model_options: &'static [&'static str],
    /// The options that name what its clients call the model.
    pub served_name_options: &'static [&'static str],
    /// Whether the first argument that is no option may name the model.
    pub may_name_model_first: bool,
    /// Reads from its command what it does where an engine has several parts.
    pub part: fn(&Program<'_>) -> EnginePart,
    /// The options that set how much memory it takes.
    pub sizes: SizeOptions,
    /// How it divides memory by the share in its options, if that is known.
    pub memory_share: Option<MemoryShare>,
    /// Whether its KV cache must hold the longest request that the model allows, where no option
    /// says how long a request is.
    pub needs_longest_request: bool,
    /// What may happen where it profiles images or sound without a bound, and what bounds that.
    pub media_profile: Option<&'static str>,
    /// It refuses nodes whose free memory differs by more than that.
    pub balance: Option<Balance>,
    /// How its options name the loader of its weights. The first rule that holds decides.
    pub(super) loaders: &'static [LoaderRule],
    /// Its daemon that holds weights, if it has one.
    pub weight_daemon: Option<&'static WeightDaemon>,
    /// What an official image runs, before the arguments behind the image. Empty: nothing.
    pub entry_point: &'static [&'static str],
    /// Environment variables that replace missing options. No others are read: they may hold keys.
    pub variables: &'static [&'static str],
    /// Reads these variables.
    pub of_variables: fn(&Variable<'_>) -> ServingArguments,
    /// Paths for health checks. A later one is used where an earlier one does not exist. A request
    /// must cost nothing and wake nothing.
    pub health: &'static [HealthPath],
    /// Paths that report its load. A later one is used where the earlier ones report nothing.
    pub load: &'static [LoadSource],
    /// The one of these paths that the part answers that computes. Its HTTP server may go on
    /// without that.
    pub core_load: Option<&'static str>,
    /// Its load where it could not be read.
    pub unread_load: EngineLoad,
    /// How it returns memory while it serves.
    pub gives_back: ReclaimMethod,
    /// Reads in a part of its log how much it gave back then, in MB, for each rank.
    pub freed_in_log: fn(&str) -> Vec<f64>,
    /// Resumes an engine that was paused for that.
    pub go_on: Option<ResumeCall>,
    /// Names of requests that are never sent, even if a rule allows them, and the reason.
    pub never_called: &'static [(&'static [&'static str], &'static str)],
    /// Parts of lines that it logs when it dies, in addition to those that any engine may log.
    pub(super) last_words: &'static [Phrase],
    /// Reads a line that reports the end of a worker.
    pub worker_died: fn(&str) -> Option<LastWords>,
    /// The options with which it takes less memory.
    pub takes_less: Option<&'static str>,
    /// The option with which it captures no CUDA graphs.
    pub without_cuda_graphs: Option<&'static str>,
    /// A command that exits with 0 although one of its workers was killed.
    pub hides_killed_workers: Option<&'static str>,
    /// A health path that answers slowly in one of its states.
    pub slow_health: Option<SlowHealth>,
    /// Repositories of its official images; one that ends with `/` includes all below it.
    pub images: &'static [&'static str],
}

/// The memory that an engine's share is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareOf {
    /// All memory of a node. It holds weights, work and KV cache, and is the same on each node.
    AllMemory,
    /// The memory that is free at the start. It holds weights and KV cache.
    FreeMemory,
}

/// How an engine divides memory by the share in [`SizeOptions::share`].
#[derive(Clone, Copy, Debug)]
pub struct MemoryShare {
    /// The memory that it is a share of.
    pub of: ShareOf,
    /// The share without an option, if it is the same on all machines.
    pub usual: Option<UsualShare>,
}

/// The share that an engine takes without an option.
#[derive(Clone, Copy, Debug)]
pub struct UsualShare {
    /// Between 0 and 1.
    pub value: f64,
    /// What other versions take, in words.
    pub others: &'static str,
}

/// The balance of free memory that an engine requires of several nodes.
#[derive(Clone, Copy, Debug)]
pub struct Balance {
    /// The least free memory of a node, as a share of that of any other.
    pub least: f64,
    /// What the engine refuses, and what helps.
    pub refusal: &'static str,
}

/// A path of health checks.
#[derive(Debug)]
pub struct HealthPath {
    /// The path, such as `/health`.
    pub path: &'static str,
    /// Whether it is also requested after an earlier path reported that the engine is not ready.
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
    /// One of [`EngineFacts::health`].
    pub path: &'static str,
    /// Which engine answers slowly, in words.
    pub who: &'static str,
    /// Time to the response.
    pub takes: Duration,
}

/// A path at which an engine reports its work.
#[derive(Debug)]
pub struct LoadSource {
    /// The path, such as `/metrics`.
    pub path: &'static str,
    /// Reads the body of the response; `None` if it is something else.
    pub read: fn(&str) -> Option<EngineLoad>,
}

impl EngineFacts {
    /// Facts of an engine without any.
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
            address_options: &[],
            model_options: &[],
            served_name_options: &[],
            may_name_model_first: false,
            part: |_| EnginePart::WHOLE,
            sizes: SizeOptions::NONE,
            memory_share: None,
            needs_longest_request: false,
            media_profile: None,
            balance: None,
            loaders: &[],
            weight_daemon: None,
            entry_point: &[],
            variables: &[],
            of_variables: |_| ServingArguments::NONE,
            health: &[],
            load: &[],
            core_load: None,
            unread_load: EngineLoad::UNREAD,
            gives_back: ReclaimMethod::Unknown,
            freed_in_log: |_| Vec::new(),
            go_on: None,
            never_called: &[],
            last_words: &[],
            worker_died: |_| None,
            takes_less: None,
            without_cuda_graphs: None,
            hides_killed_workers: None,
            slow_health: None,
            images: &[],
        }
    }

    /// Its usual name, else that of its kind.
    pub fn display_name(&self) -> &'static str {
        self.known_as.unwrap_or(self.kind.name())
    }

    /// Whether it takes a share of that memory.
    pub fn takes_share_of(&self, memory: ShareOf) -> bool {
        self.memory_share.is_some_and(|share| share.of == memory)
    }

    /// The option that sets its share of memory; empty if there is none.
    pub fn share_option(&self) -> &'static str {
        self.sizes.share.first().copied().unwrap_or_default()
    }

    /// Whether it is known how it gives memory back, or why it does not.
    pub fn can_empty_cache(&self) -> bool {
        !matches!(self.gives_back, ReclaimMethod::Unknown)
    }

    /// Whether a process of that name, or with that title, is one of its workers.
    pub fn has_title(&self, name: &str) -> bool {
        self.titles.iter().any(|title| name.starts_with(title))
    }
}
