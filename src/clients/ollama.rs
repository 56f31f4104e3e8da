//! Ollama: its models are unloaded, each after the last of its requests, and loaded again by the
//! next one.

use std::thread::sleep;
use std::time::Duration;

use serde_json::json;

use super::{Emptying, Refusal, Session};
use crate::model::counted;

const LOADED: &str = "/api/ps";
const UNLOAD: &str = "/api/generate";

const LOOKING_TAKES: Duration = Duration::from_secs(2);
const UNLOADING_TAKES: Duration = Duration::from_secs(3);

/// How long it is looked whether they have gone, and how often.
const GOING_TAKES: u32 = 20;
const LOOKED_EVERY: Duration = Duration::from_millis(200);

/// More models are not loaded at a time.
const MOST_MODELS: usize = 16;

/// Unloads all that is loaded.
pub(super) fn empty(emptying: &Emptying<'_>) -> Result<String, Refusal> {
    let session = emptying.session;
    let models = loaded(session)?;
    if models.is_empty() {
        return Err(Refusal::NothingToGive("it has no model loaded"));
    }
    for model in &models {
        // Exactly 0, and no prompt: with one it would generate.
        let body = json!({"model": model, "keep_alive": 0, "stream": false});
        let answer = session.post(UNLOAD, Some(&body), None, UNLOADING_TAKES)?;
        if !answer.is_success() {
            return Err(Refusal::of(UNLOAD, &answer, false, "Ollama has none"));
        }
    }
    let told = counted(models.len() as u64, "model");
    for _ in 0..GOING_TAKES {
        if loaded(session)?.iter().all(|model| !models.contains(model)) {
            return Ok(format!("it has unloaded {told}"));
        }
        sleep(LOOKED_EVERY);
    }
    Ok(format!("it unloads {told} after their last requests"))
}

fn loaded(session: &Session) -> Result<Vec<String>, Refusal> {
    let answer = session.get(LOADED, None, LOOKING_TAKES)?;
    if !answer.is_success() {
        return Err(Refusal::of(LOADED, &answer, false, "Ollama has none"));
    }
    let told = answer.json();
    let models = told.as_ref().and_then(|told| told.get("models")?.as_array());
    let models = models.ok_or_else(|| Refusal::Unreadable(LOADED.to_owned()))?;
    let name = |model: &serde_json::Value| {
        model.get("model").or_else(|| model.get("name"))?.as_str().map(str::to_owned)
    };
    Ok(models.iter().filter_map(name).take(MOST_MODELS).collect())
}
