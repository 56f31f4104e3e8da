//! ComfyUI.

use std::time::Duration;

use serde_json::{Value, json};

use super::command_line::{ProcessRole, Program};
use super::emptying::{Emptying, EmptyingRefusal, ReclaimMethod};
use super::facts::{EngineFacts, HealthPath, LoadSource};
use crate::model::{EngineKind, EngineLoad, Reading, counted};

/// Its prompts, running and waiting.
const QUEUE: &str = "/queue";

pub(super) static FACTS: EngineFacts = EngineFacts {
    known_as: Some("ComfyUI"),
    recognise,
    port: Some(8188),
    port_options: &["--port"],
    host_options: &["--listen"],
    health: &[HealthPath::of("/system_stats")],
    load: &[LoadSource { path: QUEUE, read: queue }],
    gives_back: ReclaimMethod::By(|emptying, _| empty(emptying)),
    ..EngineFacts::new(EngineKind::ComfyUi)
};

/// Options of no other `main.py` (comfy/cli_args.py): images have it in `/app`.
const OWN_OPTIONS: [&str; 14] = [
    "--extra-model-paths-config",
    "--preview-method",
    "--disable-auto-launch",
    "--disable-smart-memory",
    "--disable-all-custom-nodes",
    "--disable-cuda-malloc",
    "--cuda-malloc",
    "--use-pytorch-cross-attention",
    "--use-sage-attention",
    "--front-end-version",
    "--highvram",
    "--normalvram",
    "--lowvram",
    "--novram",
];

fn recognise(program: &Program<'_>) -> Option<ProcessRole> {
    let is_it = match program.name {
        "comfyui" => true,
        "main.py" => program.is_in_folder("comfyui") || program.has_any(&OWN_OPTIONS),
        _ => false,
    };
    is_it.then_some(ProcessRole::Server)
}

/// Reads the response of [`QUEUE`].
pub(super) fn queue(text: &str) -> Option<EngineLoad> {
    let found: Value = serde_json::from_str(text).ok()?;
    let of = |name: &str| found.get(name)?.as_array().map(|queue| queue.len() as u64);
    let running = Reading::Value(of("queue_running")?);
    let waiting = Reading::Value(of("queue_pending")?);
    Some(EngineLoad { running, waiting, ..EngineLoad::NONE })
}

const FREE: &str = "/free";

const QUERY_TAKES: Duration = Duration::from_secs(2);
const FREEING_TAKES: Duration = Duration::from_secs(5);

/// Has it free everything once the prompt that runs has ended; the next one loads it again.
fn empty(emptying: &Emptying<'_>) -> Result<String, EmptyingRefusal> {
    let calls = emptying.calls;
    let answer = calls.get(QUEUE, None, QUERY_TAKES)?;
    let load = queue(&answer.text()).filter(|_| answer.is_success());
    let load = load.ok_or_else(|| EmptyingRefusal::Unreadable(QUEUE.to_owned()))?;
    let body = json!({"unload_models": true, "free_memory": true});
    let answer = calls.post(FREE, Some(&body), None, FREEING_TAKES)?;
    if !answer.is_success() {
        return Err(EmptyingRefusal::of(FREE, &answer, false, "ComfyUI has none"));
    }
    Ok(match load.requests().value() {
        None | Some(0) => "/free answered 200".to_owned(),
        Some(prompts) => {
            format!("/free answered 200; {} first", counted(prompts, "prompt"))
        }
    })
}
