//! LM Studio: its desktop program, and `llmster`, its daemon without a desktop. From its
//! documentation and public reports (0.4); no real one was run.
//!
//! Models are loaded by processes below it. It unloads a model that was loaded for a request after
//! an hour without one, and `lms unload` unloads it at once.
//!
//! `lms` is a client: it starts the daemon, and has it serve HTTP. Until then nothing listens, and
//! no argument names the port (usually 1234). An assumed port would make the engine seem stuck.

use super::command_line::{ProcessRole, Program};
use super::facts::EngineFacts;
use super::last_words::Reason;
use crate::model::EngineKind;

pub(super) static FACTS: EngineFacts = EngineFacts {
    known_as: Some("LM Studio"),
    recognise,
    loads_while_up: true,
    last_words: &[
        ("Model loading was stopped due to insufficient system resources", Reason::TooLittleMemory),
        ("The model has crashed without additional information", Reason::WorkerDied),
    ],
    ..EngineFacts::new(EngineKind::LmStudio)
};

fn recognise(program: &Program<'_>) -> Option<ProcessRole> {
    // The desktop program runs itself with --type for windows, GPU and helpers.
    let is_helper = program.rest.iter().any(|word| word.starts_with("--type="));
    let is_it = match program.name {
        "llmster" => true,
        "lm-studio" => !is_helper,
        _ => false,
    };
    is_it.then_some(ProcessRole::Server)
}
