//! TabbyAPI, which serves ExLlama. From its documentation and source (August 2026); no real one was
//! run.
//!
//! Its `config.yml` may name another port, and is not read. `POST /v1/model/unload` returns the
//! model's memory; requests fail until a model is loaded again.

use super::command_line::{ProcessRole, Program, ServingArguments};
use super::facts::{EngineFacts, HealthPath};
use super::last_words::Reason;
use crate::model::EngineKind;

const HOST: &str = "TABBY_NETWORK_HOST";
const PORT: &str = "TABBY_NETWORK_PORT";
const MODEL: &str = "TABBY_MODEL_MODEL_NAME";

pub(super) static FACTS: EngineFacts = EngineFacts {
    known_as: Some("TabbyAPI"),
    recognise,
    port: Some(5000),
    port_options: &["--port"],
    host_options: &["--host"],
    model_options: &["--model-name"],
    variables: &[HOST, PORT, MODEL],
    of_variables: |variable| ServingArguments::of_environment(variable, [HOST, PORT, MODEL]),
    // Its /health returns 503 from the first failed request on, for as long as it lives.
    health: &[HealthPath::of("/.well-known/serviceinfo"), HealthPath::of("/health")],
    last_words: &[("Insufficient VRAM", Reason::OutOfMemory)],
    images: &["ghcr.io/theroyallab/tabbyapi"],
    ..EngineFacts::new(EngineKind::TabbyApi)
};

/// Its commands that serve nothing.
const COMMANDS: [&str; 3] = ["download", "export-openapi", "export-config"];

/// Options of no other such script (common/args.py, config_sample.yml): images have it in `/app`.
const OWN_OPTIONS: [&str; 6] = [
    "--gpu-split-auto",
    "--autosplit-reserve",
    "--inline-model-loading",
    "--use-dummy-models",
    "--draft-model-name",
    "--disable-fetch-requests",
];

fn recognise(program: &Program<'_>) -> Option<ProcessRole> {
    let is_script = matches!(program.name, "main.py" | "start.py");
    let serves = !program.has_any(&COMMANDS);
    let is_it = program.is_in_folder("tabbyapi") || program.has_any(&OWN_OPTIONS);
    (is_script && serves && is_it).then_some(ProcessRole::Server)
}
