//! Ollama. Its server loads no model: it starts a runner for each.

use super::command_line::{Program, Role, Serving};
use super::facts::{EngineClient, EngineFacts, Environment, GivesBack, HealthPath};
use crate::model::EngineKind;

const HOST: &str = "OLLAMA_HOST";

pub(super) static FACTS: EngineFacts = EngineFacts {
    recognise,
    // Its runners, from 0.30 on.
    starts: &[EngineKind::LlamaServer],
    loads_while_up: true,
    port: Some(11434),
    environment: Environment {
        variables: &[HOST],
        serving: |variable| variable(HOST).map_or(Serving::NONE, |text| serving(&text)),
    },
    health: &[HealthPath::of("/api/version")],
    gives_back: GivesBack::By(EngineClient::Ollama),
    takes_less: Some("a lower OLLAMA_MAX_LOADED_MODELS or context length"),
    images: &["ollama/ollama"],
    ..EngineFacts::new(EngineKind::Ollama)
};

fn recognise(program: &Program<'_>) -> Option<Role> {
    match (program.name, program.rest.first()?.as_str()) {
        ("ollama", "serve" | "start") => Some(Role::Server),
        ("ollama", "runner") => Some(Role::Worker),
        _ => None,
    }
}

/// `http://host:port/path`, of which any part may be missing.
fn serving(text: &str) -> Serving {
    let text = text.trim().trim_matches(['"', '\'']);
    let (usual, rest) = match text.split_once("://") {
        Some(("http", rest)) => (Some(80), rest),
        Some(("https", rest)) => (Some(443), rest),
        Some((_, rest)) => (None, rest),
        None => (None, text),
    };
    let authority = rest.split('/').next().unwrap_or_default();
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port))
            if !port.contains(']') && (!host.contains(':') || host.ends_with(']')) =>
        {
            (host, port.parse().ok())
        }
        _ => (authority, None),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Serving { host: Some(host.to_owned()), port: port.or(usual), model: None }
}
