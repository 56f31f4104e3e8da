//! LMDeploy.

use super::command_line::{Program, Role};
use super::facts::{EngineFacts, Options};
use crate::model::EngineKind;

pub(super) static FACTS: EngineFacts = EngineFacts {
    recognise,
    port: Some(23333),
    options: Options {
        port: &["--server-port"],
        host: &["--server-name"],
        model: &[],
        may_name_model_first: true,
    },
    ..EngineFacts::new(EngineKind::Lmdeploy)
};

fn recognise(program: &Program<'_>) -> Option<Role> {
    let is_it = match (program.name, program.rest) {
        ("lmdeploy", [first, second, ..]) => first == "serve" && second == "api_server",
        (name, _) => name == "lmdeploy.serve.openai.api_server",
    };
    is_it.then_some(Role::Server)
}
