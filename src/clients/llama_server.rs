//! llama-server as a router: a model is a process of its own, which ends with its requests when it
//! is unloaded, and is started again by the next one.

use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use super::{Emptying, EngineKey, Refusal};
use crate::engines::llama_server::metrics;
use crate::model::{CachePermission, counted};

const MODELS: &str = "/models";
const UNLOAD: &str = "/models/unload";

const LOOKING_TAKES: Duration = Duration::from_secs(2);
/// It waits 10 s for a model's process before it kills it.
const UNLOADING_TAKES: Duration = Duration::from_secs(4);

/// More models are not unloaded at a time.
const MOST_MODELS: usize = 4;

const KEY: &str = "api_key_file";

/// Unloads the models that have no request, as far as that can be told.
pub(super) fn empty(emptying: &Emptying<'_>) -> Result<String, Refusal> {
    let key = emptying.api_key()?;
    let models = loaded(emptying, key.as_ref())?;
    if models.is_empty() {
        return Err(Refusal::NothingToGive("it has no model loaded"));
    }
    if !emptying.allows(CachePermission::UnloadModels) {
        return Err(Refusal::NotAllowed {
            permission: CachePermission::UnloadModels,
            why: "to unload a model ends its process, with the requests that it works on",
        });
    }
    let (mut unloaded, mut busy) = (0, 0);
    for model in models {
        let requests = requests(emptying, key.as_ref(), &model)?;
        if requests > 0 {
            busy += requests;
            continue;
        }
        let body = json!({ "model": model });
        let answer = emptying.session.post(UNLOAD, Some(&body), key.as_ref(), UNLOADING_TAKES)?;
        match answer.status {
            200 => unloaded += 1,
            // It has gone meanwhile.
            400 => {}
            _ => return Err(Refusal::of(UNLOAD, &answer, key.is_some(), KEY)),
        }
    }
    match (unloaded, busy) {
        (0, 1..) => {
            Err(Refusal::Busy { requests: busy, then: "to unload its models would end them" })
        }
        _ => Ok(format!("it has unloaded {}", counted(unloaded, "model"))),
    }
}

fn loaded(emptying: &Emptying<'_>, key: Option<&EngineKey>) -> Result<Vec<String>, Refusal> {
    let answer = emptying.session.get(MODELS, key, LOOKING_TAKES)?;
    if !answer.is_success() {
        return Err(Refusal::of(MODELS, &answer, key.is_some(), KEY));
    }
    let told = answer.json();
    let models = told.as_ref().and_then(|told| told.get("data")?.as_array());
    let models = models.ok_or_else(|| Refusal::Unreadable(MODELS.to_owned()))?;
    // Only a router tells how its models stand.
    let state = |model: &Value| model.get("status")?.get("value")?.as_str().map(str::to_owned);
    if models.iter().all(|model| state(model).is_none()) {
        return Err(Refusal::NothingToCall(
            "llama-server gives memory back only as a router, and this one was started with a \
             model",
        ));
    }
    let is_loaded = |model: &&Value| state(model).as_deref() == Some("loaded");
    let name = |model: &Value| model.get("id")?.as_str().map(str::to_owned);
    Ok(models.iter().filter(is_loaded).filter_map(name).take(MOST_MODELS).collect())
}

/// How many requests a model has; 0 where it does not tell, as without --metrics.
fn requests(emptying: &Emptying<'_>, key: Option<&EngineKey>, model: &str) -> Result<u64, Refusal> {
    // Without autoload, so that looking does not start what has ended meanwhile.
    let model = utf8_percent_encode(model, NON_ALPHANUMERIC);
    let path = format!("/metrics?model={model}&autoload=false");
    let answer = emptying.session.get(&path, key, LOOKING_TAKES)?;
    let load = metrics(&answer.text()).filter(|_| answer.is_success());
    Ok(load.and_then(|load| load.requests().value()).unwrap_or(0))
}
