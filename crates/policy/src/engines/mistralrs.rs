//! mistral.rs. From its documentation and source (0.9.2, and 0.6 for `mistralrs-server`); no real
//! one was run.
//!
//! `POST /v1/models/unload` unloads a model.

use super::command_line::{EnginePart, ProcessRole, Program, option};
use super::facts::{EngineFacts, HealthPath, LoadSource};
use super::last_words::Reason;
use super::load::sum;
use crate::model::{EngineKind, EngineLoad};

const PORT: [&str; 2] = ["--port", "-p"];

pub(super) static FACTS: EngineFacts = EngineFacts {
    known_as: Some("mistral.rs"),
    recognise,
    port: Some(1234),
    host: "0.0.0.0",
    port_options: &PORT,
    // The latter of `mistralrs-server`.
    host_options: &["--host", "--serve-ip"],
    model_options: &["--model-id", "-m"],
    part,
    health: &[HealthPath::of("/health")],
    load: &[LoadSource { path: "/metrics", read: metrics }],
    last_words: &[("This model does not fit on the devices", Reason::TooLittleMemory)],
    images: &["ghcr.io/ericlbuehler/mistral.rs"],
    ..EngineFacts::new(EngineKind::MistralRs)
};

const OLD: &str = "mistralrs-server";

fn recognise(program: &Program<'_>) -> Option<ProcessRole> {
    let is_it = match program.name {
        "mistralrs" => program.has_command("serve"),
        OLD => !program.has_any(&["-i", "--interactive-mode"]),
        _ => false,
    };
    is_it.then_some(ProcessRole::Server)
}

/// `mistralrs-server` has no usual port: without one it serves MCP alone.
fn part(program: &Program<'_>) -> EnginePart {
    let is_headless = program.name == OLD && option(program.rest, &PORT).is_none();
    EnginePart { is_headless, ..EnginePart::WHOLE }
}

fn metrics(text: &str) -> Option<EngineLoad> {
    Some(EngineLoad {
        running: sum(text, &["mistralrs_sequences_running"]),
        waiting: sum(text, &["mistralrs_sequences_waiting"]),
        ..EngineLoad::NONE
    })
}
