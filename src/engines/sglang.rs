//! SGLang.

use std::time::Duration;

use serde_json::Value;

use super::command_line::{Program, Role};
use super::facts::{
    EngineClient, EngineFacts, GivesBack, HealthPath, LoadSource, Options, SlowHealth,
};
use super::last_words::{LastWords, python_status, worker_name};
use super::load::{greatest_share, share, sum};
use crate::model::{EngineKind, EngineLoad, Reading};

/// Its load, within milliseconds; with the API key where it has one.
pub const LOADS: &str = "/v1/loads?include=core";

/// What it logs when it has given memory back, one line a rank:
/// `torch.cuda.empty_cache() called: reserved X MB -> Y MB (freed Z MB)`.
pub const FREED: &str = "torch.cuda.empty_cache() called: reserved ";

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
    // After a pause /ready stays 503 until somebody has asked /health, which takes seconds.
    health: &[
        HealthPath::of("/ready"),
        HealthPath { path: LOADS, overrules_unready: true },
        HealthPath::of("/health"),
    ],
    load: &[
        LoadSource { path: LOADS, read: loads },
        // It wants a key for that, or is older; for its metrics it wants none.
        LoadSource { path: "/metrics", read: metrics },
    ],
    unread_load: EngineLoad {
        kv_cache_usage: Reading::Failed,
        kv_cache_available_tokens: Reading::Failed,
        ..EngineLoad::UNREAD
    },
    gives_back: GivesBack::By(EngineClient::Sglang),
    never_called: &[(
        &["release_memory_occupation", "resume_memory_occupation"],
        "SGLang's server ends if it is busy, or if it is told to resume what it has not released",
    )],
    last_words: &[
        (
            "Not enough memory. Please try to increase --mem-fraction-static",
            LastWords::TooLittleMemory,
        ),
        ("The memory capacity is unbalanced", LastWords::Unbalanced),
    ],
    worker_died,
    takes_less: Some("a lower --mem-fraction-static or --max-total-tokens"),
    slow_health: Some(SlowHealth {
        path: "/health",
        who: "a paused SGLang",
        takes: Duration::from_secs(20),
    }),
    images: &["lmsysorg/sglang", "nvcr.io/nvidia/sglang"],
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

fn metrics(text: &str) -> Option<EngineLoad> {
    Some(EngineLoad {
        running: sum(text, &["sglang:num_running_reqs"]),
        waiting: sum(text, &["sglang:num_queue_reqs"]),
        kv_cache_usage: greatest_share(text, "sglang:token_usage"),
        kv_cache_available_tokens: sum(
            text,
            &["sglang:kv_available_tokens", "sglang:kv_evictable_tokens"],
        ),
        ..EngineLoad::NONE
    })
}

/// Reads the response of [`LOADS`]: of all ranks.
pub fn loads(text: &str) -> Option<EngineLoad> {
    let told: Value = serde_json::from_str(text).ok()?;
    let loads = told.get("loads")?.as_array()?;
    let sum = |of: &dyn Fn(&Value) -> Option<u64>| {
        Reading::from(loads.iter().filter_map(of).reduce(u64::saturating_add))
    };
    let number = |load: &Value, name: &str| load.get(name).and_then(Value::as_u64);
    let running = sum(&|load| number(load, "num_running_reqs"));
    running.value()?;
    let usage = loads.iter().filter_map(|load| share(load.get("token_usage")?.as_f64()?));
    Some(EngineLoad {
        running,
        waiting: sum(&|load| number(load, "num_waiting_reqs")),
        kv_cache_usage: usage.reduce(f64::max).into(),
        kv_cache_available_tokens: sum(&|load| {
            let used = number(load, "num_used_tokens")?;
            Some(number(load, "max_total_num_tokens")?.saturating_sub(used))
        }),
        is_sleeping: Reading::Unsupported,
    })
}

/// The version that SGLang tells in [`LOADS`]: `0.5.23`, perhaps with something behind it.
pub fn version(text: &str) -> Option<[u32; 3]> {
    let told: Value = serde_json::from_str(text).ok()?;
    let mut parts = told.get("version")?.as_str()?.splitn(3, '.');
    let mut next = || {
        let part = parts.next()?;
        let digits = part.bytes().take_while(u8::is_ascii_digit).count();
        part.get(..digits)?.parse().ok()
    };
    Some([next()?, next()?, next()?])
}

/// `Rank 0 scheduler died during initialization (exit code: -9).`, `Subprocess scheduler_0 (pid=N)
/// crashed with exit code -9.`
fn worker_died(line: &str) -> Option<LastWords> {
    if let Some((before, rest)) = line.split_once(" scheduler died during initialization ")
        && let Some((_, rank)) = before.rsplit_once("Rank ")
    {
        let status = python_status(rest.strip_prefix("(exit code: ")?)?;
        let worker = format!("scheduler of rank {}", worker_name(rank)?);
        return Some(LastWords::WorkerDied { worker, pid: None, status });
    }
    let (_, rest) = line.split_once("Subprocess ")?;
    let (worker, rest) = rest.split_once(" (pid=")?;
    let (pid, rest) = rest.split_once(')')?;
    let status = python_status(rest.strip_prefix(" crashed with exit code ")?)?;
    let pid = pid.parse().ok();
    Some(LastWords::WorkerDied { worker: worker_name(worker)?, pid, status })
}
