//! `llama-server` of llama.cpp.

use super::command_line::{Program, Role, Serving};
use super::facts::{EngineFacts, Environment, Options};
use crate::model::EngineKind;

const HOST: &str = "LLAMA_ARG_HOST";
const PORT: &str = "LLAMA_ARG_PORT";
const MODEL: &str = "LLAMA_ARG_MODEL";

pub(super) static FACTS: EngineFacts = EngineFacts {
    recognise,
    port: Some(8080),
    options: Options {
        port: &["--port"],
        host: &["--host"],
        model: &["--model", "-m", "--hf-repo", "-hf", "-hfr"],
        may_name_model_first: false,
    },
    environment: Environment {
        variables: &[HOST, PORT, MODEL],
        serving: |variable| Serving {
            host: variable(HOST),
            port: variable(PORT).and_then(|text| text.parse().ok()),
            model: variable(MODEL),
        },
    },
    ..EngineFacts::new(EngineKind::LlamaServer)
};

fn recognise(program: &Program<'_>) -> Option<Role> {
    (program.name == "llama-server").then_some(Role::Server)
}
