//! vLLM.

use super::command_line::{Program, Role};
use super::facts::{EngineFacts, Options};
use crate::model::EngineKind;

pub(super) static FACTS: EngineFacts = EngineFacts {
    recognise,
    titles: &["VLLM::"],
    port: Some(8000),
    host: "0.0.0.0",
    options: Options {
        port: &["--port"],
        host: &["--host"],
        model: &["--model"],
        may_name_model_first: true,
    },
    ..EngineFacts::new(EngineKind::Vllm)
};

fn recognise(program: &Program<'_>) -> Option<Role> {
    match program.name {
        "vllm" | "vllm.entrypoints.cli.main" if program.has_command("serve") => Some(Role::Server),
        "vllm.entrypoints.openai.api_server" | "vllm.entrypoints.api_server" => Some(Role::Server),
        _ => None,
    }
}
