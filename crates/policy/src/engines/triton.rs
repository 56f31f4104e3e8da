//! NVIDIA Triton.

use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use super::command_line::{ProcessRole, Program};
use super::emptying::{Emptying, EmptyingRefusal, ReclaimMethod};
use super::facts::{EngineFacts, HealthPath};
use super::last_words::Reason;
use crate::model::{CachePermission, EngineKind, counted};

pub(super) static FACTS: EngineFacts = EngineFacts {
    known_as: Some("Triton"),
    recognise,
    port: Some(8000),
    host: "0.0.0.0",
    port_options: &["--http-port"],
    host_options: &["--http-address"],
    model_options: &["--model-repository"],
    health: &[HealthPath::of("/v2/health/ready")],
    gives_back: ReclaimMethod::By(|emptying, _| empty(emptying)),
    last_words: &[
        ("Stub process*is not healthy", Reason::WorkerDied),
        ("stub process exited unexpectedly", Reason::WorkerDied),
        ("failed to load all models", Reason::GaveUp),
    ],
    images: &["nvcr.io/nvidia/tritonserver"],
    ..EngineFacts::new(EngineKind::Triton)
};

fn recognise(program: &Program<'_>) -> Option<ProcessRole> {
    (program.name == "tritonserver").then_some(ProcessRole::Server)
}

const INDEX: &str = "/v2/repository/index";

const QUERY_TAKES: Duration = Duration::from_secs(2);
const UNLOADING_TAKES: Duration = Duration::from_secs(4);

/// More models are not unloaded at a time.
const MOST_MODELS: usize = 4;

const KEY: &str = "Triton has none";

/// Only in explicit control mode: models finish their requests and are unloaded until they are
/// loaded again.
fn empty(emptying: &Emptying<'_>) -> Result<String, EmptyingRefusal> {
    if !emptying.allows(CachePermission::UnloadModels) {
        return Err(EmptyingRefusal::NotAllowed {
            permission: CachePermission::UnloadModels,
            why: "a model that Triton unloads is not served until it is loaded again",
        });
    }
    let calls = emptying.calls;
    let answer = calls.post(INDEX, Some(&json!({"ready": true})), None, QUERY_TAKES)?;
    if !answer.is_success() {
        return Err(EmptyingRefusal::of(INDEX, &answer, false, KEY));
    }
    let found = answer.json();
    let models = found.as_ref().and_then(Value::as_array);
    let models = models.ok_or_else(|| EmptyingRefusal::Unreadable(INDEX.to_owned()))?;
    let is_ready = |model: &&Value| model.get("state").and_then(Value::as_str) == Some("READY");
    let name = |model: &Value| model.get("name")?.as_str().map(str::to_owned);
    let mut names: Vec<String> = models.iter().filter(is_ready).filter_map(name).collect();
    // Each version has an entry.
    names.dedup();
    names.truncate(MOST_MODELS);
    if names.is_empty() {
        return Err(EmptyingRefusal::NothingToGive("it has no model loaded"));
    }
    for name in &names {
        let model = utf8_percent_encode(name, NON_ALPHANUMERIC);
        let path = format!("/v2/repository/models/{model}/unload");
        let answer = calls.post(&path, Some(&json!({})), None, UNLOADING_TAKES)?;
        if !answer.is_success() {
            return Err(EmptyingRefusal::of(&path, &answer, false, KEY));
        }
    }
    Ok(format!("it unloads {}", counted(names.len() as u64, "model")))
}
