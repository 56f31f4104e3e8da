//! LocalAI. From its documentation and source (4.9); no real one was run.
//!
//! Its server loads no model: it starts a backend for each. `POST /backend/shutdown` ends one, with
//! its requests.

use super::command_line::{EnginePart, ProcessRole, Program, ServingArguments, address};
use super::facts::{EngineFacts, HealthPath};
use super::last_words::Reason;
use crate::model::EngineKind;

/// An earlier one counts.
const ADDRESSES: [&str; 2] = ["LOCALAI_ADDRESS", "ADDRESS"];

pub(super) static FACTS: EngineFacts = EngineFacts {
    known_as: Some("LocalAI"),
    recognise,
    starts: &[EngineKind::Vllm, EngineKind::Sglang],
    loads_while_up: true,
    port: Some(8080),
    host: "0.0.0.0",
    address_options: &["--address"],
    part,
    variables: &ADDRESSES,
    of_variables: |variable| {
        let given = ADDRESSES.iter().find_map(|name| variable(name));
        given.map_or(ServingArguments::NONE, |text| address(&text))
    },
    health: &[HealthPath::of("/readyz"), HealthPath::of("/healthz")],
    last_words: &[("code = Unavailable desc = error reading from server: EOF", Reason::WorkerDied)],
    images: &["localai/localai", "quay.io/go-skynet/local-ai"],
    ..EngineFacts::new(EngineKind::LocalAi)
};

/// Its commands that load no model, or one for a single result.
const COMMANDS: [&str; 13] = [
    "agent",
    "agent-worker",
    "backends",
    "chat",
    "completion",
    "explorer",
    "federated",
    "mcp-server",
    "models",
    "sound-generation",
    "transcript",
    "tts",
    "util",
];

/// Its commands that run backends for the server of another node.
const WORKERS: [&str; 2] = ["worker", "p2p-worker"];

/// Without a command it serves, and the first argument may be a model.
fn recognise(program: &Program<'_>) -> Option<ProcessRole> {
    let is_other = COMMANDS.iter().any(|command| program.has_command(command));
    // A release's file is named `local-ai-v4.9.0-linux-arm64`.
    let is_named = program.name == "local-ai" || program.name.starts_with("local-ai-v");
    (is_named && !is_other).then_some(ProcessRole::Server)
}

fn part(program: &Program<'_>) -> EnginePart {
    let is_headless = WORKERS.iter().any(|command| program.has_command(command));
    let name = is_headless.then_some("localai-worker");
    EnginePart { is_headless, name, ..EnginePart::WHOLE }
}
