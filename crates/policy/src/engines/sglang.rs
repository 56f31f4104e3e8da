//! SGLang.
//!
//! Its pools are made once and stay; what it gives back is what torch has reserved and does not
//! use. `/continue_generation` does that during requests, in milliseconds, from 0.5.12 on.
//! `/flush_cache` does it only while there is no request, and drops what was computed of prefixes.

use std::time::Duration;

use serde_json::{Value, json};

use super::command_line::{EnginePart, ProcessRole, Program, option};
use super::emptying::{Emptying, EmptyingRefusal, EngineCalls, Pausing, ReclaimMethod, WhichKey};
use super::facts::{
    Balance, EngineFacts, HealthPath, LoadSource, MemoryShare, ShareOf, SlowHealth,
};
use super::last_words::{LastWords, Reason, python_status, worker_name};
use super::launch_command::SizeOptions;
use super::load::{greatest_share, share, sum};
use super::loaders::{
    CONSOLIDATED, COPIES, DUMMY, FORMAT, INSTANTTENSOR, Loader, LoaderRule, LoaderSign, PREFETCH,
    PageCacheUse, RUNAI, SAFETENSORS, TORCH, WeightResidence,
};
use crate::model::{CachePermission, EngineKind, EngineLoad, EngineRank, Reading, counted};
use crate::parse::answer::HttpResponse;

/// Its load, within milliseconds; with the API key where it has one.
const LOADS: &str = "/v1/loads?include=core";

/// What it logs when it has given memory back, one line a rank:
/// `torch.cuda.empty_cache() called: reserved X MB -> Y MB (freed Z MB)`.
const FREED: &str = "torch.cuda.empty_cache() called: reserved ";

pub(super) static FACTS: EngineFacts = EngineFacts {
    known_as: Some("SGLang"),
    recognise,
    titles: &["sglang::"],
    port: Some(30000),
    port_options: &["--port"],
    host_options: &["--host"],
    model_options: &["--model-path", "--model"],
    served_name_options: &["--served-model-name"],
    part,
    sizes: SizeOptions {
        context: &["--context-length"],
        all_tokens: &["--max-total-tokens"],
        requests: &["--max-running-requests"],
        batch: &["--chunked-prefill-size"],
        kv_type: &["--kv-cache-dtype"],
        share: &["--mem-fraction-static"],
        ranks: [
            &["--tp-size", "--tp", "--tensor-parallel-size"],
            &["--pp-size", "--pp", "--pipeline-parallel-size"],
        ],
        nodes: &["--nnodes"],
        offload_gib: &["--cpu-offload-gb"],
        whole_windows: &["--disable-hybrid-swa-memory"],
        file: &["--config"],
        ..SizeOptions::NONE
    },
    memory_share: Some(MemoryShare { of: ShareOf::FreeMemory, usual: None }),
    balance: Some(Balance {
        least: 0.9,
        refusal: "SGLang refuses nodes whose free memory differs by more than a tenth: free some \
                  on the weakest, or set SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK=0.",
    }),
    loaders: LOADERS,
    // After a pause /ready stays 503 until a request to /health, which takes seconds.
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
    // The server queries its scheduler for that, and not for /ready.
    core_load: Some(LOADS),
    unread_load: EngineLoad {
        kv_cache_usage: Reading::Failed,
        kv_cache_available_tokens: Reading::Failed,
        ..EngineLoad::UNREAD
    },
    gives_back: ReclaimMethod::By(empty),
    freed_in_log,
    go_on: Some(go_on),
    never_called: &[(
        &["release_memory_occupation", "resume_memory_occupation"],
        "SGLang's server ends if it is busy, or when asked to resume what it has not released",
    )],
    last_words: &[
        (
            "Not enough memory. Please try to increase --mem-fraction-static",
            Reason::KvCacheTooSmall,
        ),
        ("Prefill out of memory", Reason::KvCacheTooSmall),
        ("Decode out of memory. Try to lower your batch size", Reason::KvCacheTooSmall),
        ("alloc_req_slots runs out of memory", Reason::KvCacheTooSmall),
        ("larger than the profiled value -", Reason::KvCacheTooSmall),
        ("The memory capacity is unbalanced", Reason::Unbalanced),
        ("Not enough host memory available. Requesting", Reason::TooLittleMemory),
        ("scheduler is dead. Please check", Reason::WorkerDied),
        ("scheduler died during initialization", Reason::WorkerDied),
        ("Child process unexpectedly failed with", Reason::WorkerDied),
        ("Watchdog timeout (", Reason::WorkerTimedOut),
        // Of a soft one it only writes.
        ("watchdog timeout (*soft=False", Reason::WorkerTimedOut),
        ("couldn't get a response from detokenizer", Reason::WorkerTimedOut),
        ("Initialization failed. Please see the error messages", Reason::GaveUp),
        ("Received sigquit from a child", Reason::GaveUp),
        ("SIGQUIT received*one child failed", Reason::GaveUp),
    ],
    worker_died,
    takes_less: Some("a lower --mem-fraction-static or --max-total-tokens"),
    without_cuda_graphs: Some("--disable-cuda-graph"),
    slow_health: Some(SlowHealth {
        path: "/health",
        who: "a paused SGLang",
        takes: Duration::from_secs(20),
    }),
    images: &["lmsysorg/sglang", "nvcr.io/nvidia/sglang"],
    ..EngineFacts::new(EngineKind::Sglang)
};

static MMAP: Loader = Loader {
    name: "mmap",
    // 157 GB for a model of 81.6 GB, whose code had collected all tensors first.
    peak_percent: Some((100, 193)),
    costs: "maps shards and reads them through the page cache; a model whose code collects the \
            tensors first peaks at up to 1.9 times the weights (157 GB on one node were measured)",
    instead: Some("--weight-loader-drop-cache-after-load"),
    source: "github.com/sgl-project/sglang/pull/20580",
    ..COPIES
};

static EVICTING: Loader = Loader {
    name: "mmap, evicting",
    page_cache: PageCacheUse::Spares,
    peak_percent: Some((100, 193)),
    costs: "maps shards and evicts each from the page cache once it is copied; a model whose code \
            collects the tensors first peaks at up to 1.9 times the weights (157 GB on one node \
            were measured)",
    source: "github.com/sgl-project/sglang/pull/20580, docs.sglang.io: model loading",
    ..COPIES
};

static READ: Loader = Loader {
    name: "read",
    peak_percent: Some((100, 193)),
    stages_a_file: true,
    costs: "reads each shard as a whole into memory, and through the page cache, before it copies \
            it",
    instead: Some("--weight-loader-drop-cache-after-load"),
    source: "github.com/sgl-project/sglang/pull/7469",
    ..COPIES
};

static FASTSAFETENSORS: Loader = Loader {
    name: "fastsafetensors",
    // 47.12 GB for weights of 27.03 GB, since the buffers stay.
    peak_percent: Some((100, 174)),
    instead: Some("--weight-loader-drop-cache-after-load"),
    costs: "keeps shards beside the weights (47.1 GB for 27.0 GB were measured on a GB10), and \
            reads through the page cache without GDS, as on all integrated GPUs",
    source: "github.com/sgl-project/sglang/pull/40065, github.com/sgl-project/sglang/pull/31859",
    ..COPIES
};

static FASTSAFETENSORS_EVICTING: Loader = Loader {
    name: "fastsafetensors",
    page_cache: PageCacheUse::Spares,
    peak_percent: Some((100, 174)),
    costs: "keeps shards beside the weights (47.1 GB for 27.0 GB were measured on a GB10), and \
            evicts each from the page cache once it is copied",
    source: "github.com/sgl-project/sglang/pull/40065, github.com/sgl-project/sglang/pull/31859",
    ..COPIES
};

static TABLE_IN_FILE: Loader = Loader {
    name: "mmap with a table in its file",
    residence: WeightResidence::Mapped,
    costs: "leaves a table of embeddings (47.7 GiB in Qwen3.8-Flash-Next) in a mapping of its file",
    instead: Some("--weight-loader-drop-cache-after-load"),
    source: "github.com/sgl-project/sglang/pull/37068",
    ..COPIES
};

const DROPS: LoaderSign = LoaderSign::Has(&["--weight-loader-drop-cache-after-load"]);

/// The first rule that holds decides.
static LOADERS: &[LoaderRule] = &[
    LoaderRule(&[LoaderSign::Is(&["--ple-offload-backend"], &["file"])], &TABLE_IN_FILE),
    LoaderRule(&[LoaderSign::Is(FORMAT, &["fastsafetensors"]), DROPS], &FASTSAFETENSORS_EVICTING),
    LoaderRule(&[LoaderSign::Is(FORMAT, &["fastsafetensors"])], &FASTSAFETENSORS),
    LoaderRule(&[LoaderSign::Is(FORMAT, &["instanttensor"])], &INSTANTTENSOR),
    LoaderRule(&[LoaderSign::Is(FORMAT, &["runai_streamer"])], &RUNAI),
    LoaderRule(&[LoaderSign::Is(FORMAT, &["mistral"])], &CONSOLIDATED),
    LoaderRule(&[LoaderSign::Is(FORMAT, &["pt"])], &TORCH),
    LoaderRule(&[LoaderSign::Is(FORMAT, &["dummy"])], &DUMMY),
    LoaderRule(&[LoaderSign::IsUsual(FORMAT, SAFETENSORS), DROPS], &EVICTING),
    LoaderRule(
        &[
            LoaderSign::IsUsual(FORMAT, SAFETENSORS),
            LoaderSign::Has(&["--weight-loader-prefetch-checkpoints"]),
        ],
        &PREFETCH,
    ),
    LoaderRule(
        &[
            LoaderSign::IsUsual(FORMAT, SAFETENSORS),
            LoaderSign::Has(&["--weight-loader-disable-mmap"]),
        ],
        &READ,
    ),
    LoaderRule(&[LoaderSign::IsUsual(FORMAT, SAFETENSORS)], &MMAP),
];

fn recognise(program: &Program<'_>) -> Option<ProcessRole> {
    match program.name {
        "sglang" | "sglang.cli.main" if program.has_command("serve") => Some(ProcessRole::Server),
        "sglang.launch_server" => Some(ProcessRole::Server),
        "launch_server.py" if program.path.contains("sglang/") => Some(ProcessRole::Server),
        _ => None,
    }
}

/// A log may also hold prompts: what is no plausible amount does not count.
fn freed_in_log(text: &str) -> Vec<f64> {
    let amounts = text.split(FREED).skip(1).filter_map(|rest| {
        let line = rest.split(['\n', '\r']).next()?;
        let amount = line.split_once("(freed ")?.1.split_once(" MB)")?.0;
        let amount: f64 = amount.parse().ok()?;
        (0.0..1e9).contains(&amount).then_some(amount)
    });
    amounts.collect()
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

/// Ranks meet at `--dist-init-addr`. All serve HTTP; those after the first answer health checks
/// only (SGLang 0.5.23).
fn part(program: &Program<'_>) -> EnginePart {
    let words = program.rest;
    let number = |name| option(words, &[name])?.parse::<u32>().ok();
    let nodes = number("--nnodes").filter(|nodes| *nodes > 1);
    let address = option(words, &["--dist-init-addr", "--nccl-init-addr"]);
    let rank = nodes.zip(address).map(|(nodes, address)| {
        let rank = number("--node-rank").or(Some(0));
        EngineRank { gang: address.into(), rank, ranks: Some(nodes) }
    });
    EnginePart { rank, ..EnginePart::WHOLE }
}

/// Reads the response of [`LOADS`]: of all ranks.
pub(super) fn loads(text: &str) -> Option<EngineLoad> {
    let found: Value = serde_json::from_str(text).ok()?;
    let loads = found.get("loads")?.as_array()?;
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
        ..EngineLoad::NONE
    })
}

/// The version in the response of [`LOADS`]: `0.5.23`, perhaps with a suffix.
pub fn version(text: &str) -> Option<[u32; 3]> {
    let found: Value = serde_json::from_str(text).ok()?;
    let mut parts = found.get("version")?.as_str()?.splitn(3, '.');
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

const CONTINUE: &str = "/continue_generation";
const PAUSE: &str = "/pause_generation";
const FLUSH: &str = "/flush_cache";

/// A query is answered within milliseconds.
const QUERY_TAKES: Duration = Duration::from_secs(2);
/// To give back tens of GiB takes the driver a while.
const EMPTYING_TAKES: Duration = Duration::from_secs(10);
/// A paused engine computes nothing, and other probes begin to fail.
const PAUSED_FLUSHING_TAKES: Duration = Duration::from_secs(2);
const PAUSING_TAKES: Duration = Duration::from_secs(2);
/// `/health` has a token generated, and gives up after 20 s.
const HEALTH_TAKES: Duration = Duration::from_secs(5);

/// The first with `torch_empty_cache`; before, the field is ignored, and the answer is 200.
const EMPTIES_SINCE: [u32; 3] = [0, 5, 12];
/// The first whose pause knows modes; before, each ends all requests.
const RETRACTS_SINCE: [u32; 3] = [0, 5, 6];

const CONTROL_KEY: &str = "admin_key_file, or api_key_file where it has no admin key";

/// The state of the engine before emptying.
struct EngineReport {
    load: Option<EngineLoad>,
    version: Option<[u32; 3]>,
}

impl EngineReport {
    fn requests(&self) -> Option<u64> {
        self.load.and_then(|load| load.requests().value())
    }
}

fn empty(emptying: &Emptying<'_>, pausing: &mut dyn Pausing) -> Result<String, EmptyingRefusal> {
    let key = emptying.calls.key(WhichKey::Control)?;
    let known = query(emptying)?;
    let is_idle = known.requests() == Some(0);
    check_not_paused(emptying)?;
    if is_idle && emptying.allows(CachePermission::DropPrefixCache) {
        let answer = emptying.calls.post(FLUSH, None, key, EMPTYING_TAKES)?;
        match answer.status {
            200 => return Ok("/flush_cache answered 200: its prefix cache is dropped".to_owned()),
            // A request has arrived.
            400 => {}
            _ => return Err(refused(FLUSH, &answer, key)),
        }
    } else if known.requests() > Some(0) && emptying.allows(CachePermission::RetractRequests) {
        return retract(emptying, &known, key, pausing);
    }
    if known.version.is_some_and(|version| version < EMPTIES_SINCE) {
        return Err(EmptyingRefusal::TooOld(
            "SGLang before 0.5.12 gives memory back only by /flush_cache: allow: \
             [drop_prefix_cache] does that while it has no request",
        ));
    }
    let answer = proceed(emptying.calls, key, EMPTYING_TAKES)?;
    let requests = match known.requests() {
        Some(0) => "it has no request".to_owned(),
        Some(requests) => format!("with {}", counted(requests, "request")),
        None => "whether it has requests is not known".to_owned(),
    };
    Ok(format!("{CONTINUE} answered {}, {requests}", answer.status))
}

/// Queries load and version; both are unknown without the key that the engine requires.
fn query(emptying: &Emptying<'_>) -> Result<EngineReport, EmptyingRefusal> {
    let key = emptying.calls.key(WhichKey::Api)?;
    let answer = emptying.calls.get(LOADS, key, QUERY_TAKES)?;
    if !answer.is_success() {
        return Ok(EngineReport { load: None, version: None });
    }
    let text = answer.text();
    let load = loads(&text).ok_or_else(|| EmptyingRefusal::Unreadable(LOADS.to_owned()))?;
    Ok(EngineReport { load: Some(load), version: version(&text) })
}

/// Refuses a paused engine: `/continue_generation` would resume what a trainer has paused.
fn check_not_paused(emptying: &Emptying<'_>) -> Result<(), EmptyingRefusal> {
    let key = emptying.calls.key(WhichKey::Api)?;
    let ask = |path| emptying.calls.get(path, key, QUERY_TAKES);
    match ask("/ready")?.status {
        200 => Ok(()),
        // It is well, and does not take requests.
        503 if ask("/ping")?.status == 200 => Err(EmptyingRefusal::Paused),
        404 if emptying.allows(CachePermission::Unpause) => Ok(()),
        404 => Err(EmptyingRefusal::NotAllowed {
            permission: CachePermission::Unpause,
            why: "SGLang before 0.5.21 does not report whether it was paused, and \
                  would resume",
        }),
        status => Err(EmptyingRefusal::NotReady(status)),
    }
}

/// Pauses, flushes and resumes the engine.
fn retract(
    emptying: &Emptying<'_>,
    known: &EngineReport,
    key: Option<WhichKey>,
    pausing: &mut dyn Pausing,
) -> Result<String, EmptyingRefusal> {
    if known.version.is_none_or(|version| version < RETRACTS_SINCE) {
        return Err(EmptyingRefusal::TooOld(
            "SGLang before 0.5.6 ends all requests when it is paused, and its version is not in \
             /v1/loads: it is not paused",
        ));
    }
    let calls = emptying.calls;
    pausing.begin().map_err(EmptyingRefusal::NotWrittenDown)?;
    let paused = calls.post(PAUSE, Some(&json!({"mode": "retract"})), key, PAUSING_TAKES);
    let flushed = match &paused {
        Ok(answer) if answer.is_success() => {
            Some(calls.post(FLUSH, None, key, PAUSED_FLUSHING_TAKES))
        }
        // For example a wrong key, with which it could not be resumed either.
        Ok(answer) if (400..500).contains(&answer.status) => {
            pausing.refused();
            return Err(refused(PAUSE, answer, key));
        }
        _ => None,
    };
    // It may be paused even where it did not answer.
    pausing.end().map_err(EmptyingRefusal::StillPaused)?;
    // A probe during the pause leaves it marked as unhealthy until the next one; the result does
    // not matter.
    let _ = calls.get("/health", None, HEALTH_TAKES);
    let answer = paused?;
    if !answer.is_success() {
        return Err(refused(PAUSE, &answer, key));
    }
    let requests =
        known.requests().map_or("all requests".to_owned(), |requests| counted(requests, "request"));
    match flushed {
        Some(Ok(answer)) if answer.is_success() => {
            Ok(format!("{requests} retracted, prefix cache dropped, and it goes on"))
        }
        Some(Ok(answer)) => Err(refused(FLUSH, &answer, key)),
        Some(Err(error)) => Err(error),
        None => Err(EmptyingRefusal::Unreadable(PAUSE.to_owned())),
    }
}

fn proceed(
    calls: &dyn EngineCalls,
    key: Option<WhichKey>,
    patience: Duration,
) -> Result<HttpResponse, EmptyingRefusal> {
    let body = json!({"torch_empty_cache": true});
    let answer = calls.post(CONTINUE, Some(&body), key, patience)?;
    match answer.status {
        404 => Err(EmptyingRefusal::TooOld("this SGLang has no /continue_generation")),
        _ if answer.is_success() => Ok(answer),
        _ => Err(refused(CONTINUE, &answer, key)),
    }
}

fn refused(path: &str, answer: &HttpResponse, key: Option<WhichKey>) -> EmptyingRefusal {
    EmptyingRefusal::of(path, answer, key.is_some(), CONTROL_KEY)
}

/// Has one that was paused go on.
fn go_on(calls: &dyn EngineCalls) -> Result<(), EmptyingRefusal> {
    let key = calls.key(WhichKey::Control)?;
    proceed(calls, key, PAUSING_TAKES).map(drop)
}
