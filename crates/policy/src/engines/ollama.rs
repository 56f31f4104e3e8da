//! Ollama. Its server loads no model: it starts a runner for each.

use std::time::Duration;

use serde_json::json;

use super::command_line::{ProcessRole, Program, ServingArguments, address};
use super::emptying::{Emptying, EmptyingRefusal, EngineCalls, ReclaimMethod};
use super::facts::{EngineFacts, HealthPath};
use super::last_words::{LastWords, Reason};
use crate::model::{EngineKind, ExitStatus, counted};

const HOST: &str = "OLLAMA_HOST";

pub(super) static FACTS: EngineFacts = EngineFacts {
    known_as: Some("Ollama"),
    recognise,
    // Its runners, from 0.30 on.
    starts: &[EngineKind::LlamaServer],
    loads_while_up: true,
    port: Some(11434),
    variables: &[HOST],
    of_variables: |variable| variable(HOST).map_or(ServingArguments::NONE, |text| address(&text)),
    health: &[HealthPath::of("/api/version")],
    gives_back: ReclaimMethod::By(|emptying, _| empty(emptying)),
    last_words: &[
        ("model requires more system memory", Reason::TooLittleMemory),
        ("model requires more gpu memory", Reason::TooLittleMemory),
        ("insufficient memory - required allocations", Reason::TooLittleMemory),
        ("model request too large for system", Reason::TooLittleMemory),
        ("memory layout cannot be allocated", Reason::TooLittleMemory),
        ("llama-server reported out-of-memory*CUDA error", Reason::OutOfMemory),
        // Where it does not show an allocation for the GPU.
        ("llama-server reported out-of-memory", Reason::HostOutOfMemory),
        ("llama runner process no longer running", Reason::WorkerDied),
        ("llama-server process no longer running", Reason::WorkerDied),
        ("model runner has unexpectedly stopped", Reason::WorkerDied),
        ("model failed to load*resource limitations", Reason::GaveUp),
        ("timed out waiting for llama runner to start", Reason::WorkerTimedOut),
        ("timed out waiting for llama-server to start", Reason::WorkerTimedOut),
    ],
    worker_died,
    takes_less: Some("a lower OLLAMA_MAX_LOADED_MODELS or context length"),
    images: &["ollama/ollama"],
    ..EngineFacts::new(EngineKind::Ollama)
};

fn recognise(program: &Program<'_>) -> Option<ProcessRole> {
    match (program.name, program.rest.first()?.as_str()) {
        // Its runners until 0.5.
        ("ollama_llama_server", _) => Some(ProcessRole::Worker),
        ("ollama", "serve" | "start") => Some(ProcessRole::Server),
        ("ollama", "runner") => Some(ProcessRole::Worker),
        _ => None,
    }
}

/// Go's names of the signals that end a runner.
const SIGNALS: [(&str, i32); 5] =
    [("killed", 9), ("aborted", 6), ("segmentation fault", 11), ("bus error", 7), ("quit", 3)];

/// What the server calls its runners; the second from 0.30 on.
const RUNNERS: [&str; 2] = ["llama runner", "llama-server"];

/// `llama runner process has terminated: signal: killed`, `msg="llama runner terminated"
/// error="signal: killed"`.
fn worker_died(line: &str) -> Option<LastWords> {
    let named = RUNNERS.into_iter().find_map(|name| Some((name, line.split_once(name)?.1)));
    let (worker, rest) = named?;
    let (_, rest) = rest.split_once("terminated")?;
    let (_, name) = rest.split_once("signal: ")?;
    let (_, signal) = SIGNALS.into_iter().find(|(signal, _)| name.starts_with(signal))?;
    let status = ExitStatus::Signal { signal };
    Some(LastWords::WorkerDied { worker: worker.to_owned(), pid: None, status })
}

const LOADED: &str = "/api/ps";
const UNLOAD: &str = "/api/generate";

const QUERY_TAKES: Duration = Duration::from_secs(2);
const UNLOADING_TAKES: Duration = Duration::from_secs(3);

/// Number of checks whether the models are gone, and the time between them.
const CHECKS: u32 = 20;
const CHECKED_EVERY: Duration = Duration::from_millis(200);

/// Most models that are loaded at a time.
const MOST_MODELS: usize = 16;

/// Unloads all models, each after the last of its requests; the next one loads it again.
fn empty(emptying: &Emptying<'_>) -> Result<String, EmptyingRefusal> {
    let calls = emptying.calls;
    let models = loaded(calls)?;
    if models.is_empty() {
        return Err(EmptyingRefusal::NothingToGive("it has no model loaded"));
    }
    for model in &models {
        // Exactly 0, and no prompt: with one it would generate.
        let body = json!({"model": model, "keep_alive": 0, "stream": false});
        let answer = calls.post(UNLOAD, Some(&body), None, UNLOADING_TAKES)?;
        if !answer.is_success() {
            return Err(EmptyingRefusal::of(UNLOAD, &answer, false, "Ollama has none"));
        }
    }
    let unloaded = counted(models.len() as u64, "model");
    for _ in 0..CHECKS {
        if loaded(calls)?.iter().all(|model| !models.contains(model)) {
            return Ok(format!("it has unloaded {unloaded}"));
        }
        calls.wait(CHECKED_EVERY);
    }
    Ok(format!("it unloads {unloaded} after their last requests"))
}

fn loaded(calls: &dyn EngineCalls) -> Result<Vec<String>, EmptyingRefusal> {
    let answer = calls.get(LOADED, None, QUERY_TAKES)?;
    if !answer.is_success() {
        return Err(EmptyingRefusal::of(LOADED, &answer, false, "Ollama has none"));
    }
    let found = answer.json();
    let models = found.as_ref().and_then(|found| found.get("models")?.as_array());
    let models = models.ok_or_else(|| EmptyingRefusal::Unreadable(LOADED.to_owned()))?;
    let name = |model: &serde_json::Value| {
        model.get("model").or_else(|| model.get("name"))?.as_str().map(str::to_owned)
    };
    Ok(models.iter().filter_map(name).take(MOST_MODELS).collect())
}
