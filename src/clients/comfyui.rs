//! ComfyUI: it unloads its models and frees its caches once the prompt that runs has ended, and
//! loads them again for the next one.

use std::time::Duration;

use serde_json::json;

use super::{Emptying, Refusal};
use crate::engines::comfyui::{QUEUE, queue};
use crate::model::counted;

const FREE: &str = "/free";

const LOOKING_TAKES: Duration = Duration::from_secs(2);
const FREEING_TAKES: Duration = Duration::from_secs(5);

/// Has it free everything.
pub(super) fn empty(emptying: &Emptying<'_>) -> Result<String, Refusal> {
    let session = emptying.session;
    let answer = session.get(QUEUE, None, LOOKING_TAKES)?;
    let load = queue(&answer.text()).filter(|_| answer.is_success());
    let load = load.ok_or_else(|| Refusal::Unreadable(QUEUE.to_owned()))?;
    let body = json!({"unload_models": true, "free_memory": true});
    let answer = session.post(FREE, Some(&body), None, FREEING_TAKES)?;
    if !answer.is_success() {
        return Err(Refusal::of(FREE, &answer, false, "ComfyUI has none"));
    }
    Ok(match load.requests().value() {
        None | Some(0) => "/free answered 200".to_owned(),
        Some(prompts) => {
            format!("/free answered 200; {} first", counted(prompts, "prompt"))
        }
    })
}
