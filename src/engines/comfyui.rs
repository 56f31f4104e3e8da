//! ComfyUI.

use serde_json::Value;

use super::command_line::{Program, Role};
use super::facts::{EngineClient, EngineFacts, GivesBack, HealthPath, LoadSource, Options};
use crate::model::{EngineKind, EngineLoad, Reading};

/// Its prompts, running and waiting.
pub const QUEUE: &str = "/queue";

pub(super) static FACTS: EngineFacts = EngineFacts {
    recognise,
    port: Some(8188),
    options: Options {
        port: &["--port"],
        host: &["--listen"],
        model: &[],
        may_name_model_first: false,
    },
    health: &[HealthPath::of("/system_stats")],
    load: &[LoadSource { path: QUEUE, read: queue }],
    gives_back: GivesBack::By(EngineClient::ComfyUi),
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

/// Reads the response of [`QUEUE`].
pub fn queue(text: &str) -> Option<EngineLoad> {
    let told: Value = serde_json::from_str(text).ok()?;
    let of = |name: &str| told.get(name)?.as_array().map(|queue| queue.len() as u64);
    let running = Reading::Value(of("queue_running")?);
    let waiting = Reading::Value(of("queue_pending")?);
    Some(EngineLoad { running, waiting, ..EngineLoad::NONE })
}
