//! ComfyUI.

use super::command_line::{Program, Role};
use super::facts::{EngineFacts, Options};
use crate::model::EngineKind;

pub(super) static FACTS: EngineFacts = EngineFacts {
    recognise,
    port: Some(8188),
    options: Options {
        port: &["--port"],
        host: &["--listen"],
        model: &[],
        may_name_model_first: false,
    },
    ..EngineFacts::new(EngineKind::ComfyUi)
};

fn recognise(program: &Program<'_>) -> Option<Role> {
    let is_it = match program.name {
        "comfyui" => true,
        "main.py" => is_in_its_folder(program),
        _ => false,
    };
    is_it.then_some(Role::Server)
}

fn is_in_its_folder(program: &Program<'_>) -> bool {
    let is_its = |part: &str| part.eq_ignore_ascii_case("comfyui");
    match program.path.rsplit('/').nth(1) {
        Some(part) if part != "." => is_its(part),
        _ => program.folder.is_some_and(is_its),
    }
}
