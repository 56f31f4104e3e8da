//! vllm.rs, an engine of its own that is no part of vLLM. From its documentation and source
//! (0.11.3); no real one was run.
//!
//! With several GPUs it starts a `runner` for each.

use super::command_line::{EnginePart, ProcessRole, Program, option};
use super::facts::{EngineFacts, HealthPath};
use super::last_words::Reason;
use crate::model::EngineKind;

/// It requires one of these.
const MODEL: [&str; 3] = ["--m", "--w", "--f"];

pub(super) static FACTS: EngineFacts = EngineFacts {
    known_as: Some("vllm.rs"),
    recognise,
    port: Some(8000),
    host: "0.0.0.0",
    port_options: &["--port"],
    // Only `python -m vllm_rs.server` has it.
    host_options: &["--host"],
    model_options: &MODEL,
    part: |program| EnginePart {
        is_headless: program.has_any(&["--pd-server"]),
        ..EnginePart::WHOLE
    },
    // It has no other path that costs nothing. The response is a constant.
    health: &[HealthPath::of("/v1/models")],
    last_words: &[
        ("KVCache allocation failed", Reason::OutOfMemory),
        ("Failed to allocate KVCache", Reason::OutOfMemory),
        ("Insufficient GPU memory", Reason::OutOfMemory),
    ],
    takes_less: Some("a lower --kv-fraction or --max-model-len"),
    ..EngineFacts::new(EngineKind::VllmRs)
};

fn recognise(program: &Program<'_>) -> Option<ProcessRole> {
    // vLLM's own Rust frontend has the same name. It takes a command, and its model as a word.
    let takes_command = program.rest.first().is_none_or(|word| !word.starts_with('-'));
    let has_model = option(program.rest, &MODEL).is_some() && !takes_command;
    let has = |names: &[&str]| {
        let is = |word: &String| names.contains(&word.split('=').next().unwrap_or_default());
        program.rest.iter().any(is)
    };
    let serves = match program.name {
        "vllm_rs.server" => true,
        "vllm-rs" => {
            has(&["--server", "--ui-server", "--pd-server"])
                || !has(&["--i", "--prompts", "--batch"])
        }
        _ => false,
    };
    (serves && has_model).then_some(ProcessRole::Server)
}
