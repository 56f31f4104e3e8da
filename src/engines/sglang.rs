//! SGLang.

use super::command_line::{Program, Role};
use super::facts::{EngineFacts, Options};
use crate::model::EngineKind;

pub(super) static FACTS: EngineFacts = EngineFacts {
    recognise,
    titles: &["sglang::"],
    port: Some(30000),
    options: Options {
        port: &["--port"],
        host: &["--host"],
        model: &["--model-path", "--model"],
        may_name_model_first: false,
    },
    ..EngineFacts::new(EngineKind::Sglang)
};

fn recognise(program: &Program<'_>) -> Option<Role> {
    match program.name {
        "sglang" | "sglang.cli.main" if program.has_command("serve") => Some(Role::Server),
        "sglang.launch_server" => Some(Role::Server),
        "launch_server.py" if program.path.contains("sglang/") => Some(Role::Server),
        _ => None,
    }
}
