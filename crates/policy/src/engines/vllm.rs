//! vLLM.

use super::command_line::{EnginePart, ProcessRole, Program, option};
use super::emptying::ReclaimMethod;
use super::facts::{EngineFacts, HealthPath, LoadSource, MemoryShare, ShareOf, UsualShare};
use super::last_words::{LastWords, Reason, python_status, worker_name};
use super::launch_command::SizeOptions;
use super::load::{greatest_share, samples, sum};
use super::loaders::{
    CONSOLIDATED, COPIES, DUMMY, FORMAT, INSTANTTENSOR, Loader, LoaderRule, LoaderSign, PREFETCH,
    RUNAI, SAFETENSORS, TORCH, WeightDaemon, WeightResidence,
};
use crate::model::{EngineKind, EngineLoad, EngineRank, Reading};

/// KServe's server, whose engine this one is unless its model or `--backend` says else. It has
/// addresses of its own, which are not polled.
const KSERVE: &str = "huggingfaceserver";

/// Holds the weights on the GPU for engines that come and go (`--load-format ipc_cache`, 0.32).
const PRELOAD: &str = "preload";

pub(super) static FACTS: EngineFacts = EngineFacts {
    known_as: Some("vLLM"),
    recognise,
    // Ray's workers are titled by their class: of the classic executor, and of the one since 0.32.
    titles: &["VLLM::", "ray::RayWorkerW", "ray::RayWorkerP"],
    port: Some(8000),
    host: "0.0.0.0",
    port_options: &["--port"],
    host_options: &["--host"],
    model_options: &["--model"],
    served_name_options: &["--served-model-name"],
    may_name_model_first: true,
    part,
    sizes: SizeOptions {
        context: &["--max-model-len"],
        requests: &["--max-num-seqs"],
        batch: &["--max-num-batched-tokens"],
        kv_type: &["--kv-cache-dtype"],
        kv_bytes: &["--kv-cache-memory-bytes", "--kv-cache-memory"],
        share: &["--gpu-memory-utilization"],
        ranks: [&["--tensor-parallel-size", "-tp"], &["--pipeline-parallel-size", "-pp"]],
        nodes: &["--nnodes", "-n"],
        offload_gib: &["--cpu-offload-gb"],
        media: &["--limit-mm-per-prompt", "--skip-mm-profiling", "--language-model-only"],
        whole_windows: &["--disable-hybrid-kv-cache-manager"],
        file: &["--config"],
        ..SizeOptions::NONE
    },
    memory_share: Some(MemoryShare {
        of: ShareOf::AllMemory,
        usual: Some(UsualShare { value: 0.9, others: "0.92 in newer versions" }),
    }),
    // It does not start if its KV cache holds no request of the greatest length.
    needs_longest_request: true,
    media_profile: Some(
        "The model also takes images or sound, with which vLLM profiles its memory at the start. \
         That took 50 GiB and more beside its share on a GB10, and hung it: bound it by \
         --limit-mm-per-prompt, or leave it out by --language-model-only.",
    ),
    loaders: LOADERS,
    weight_daemon: Some(&WEIGHT_DAEMON),
    entry_point: &["vllm", "serve"],
    health: &[HealthPath::of("/health")],
    load: &[LoadSource { path: "/metrics", read: metrics }],
    unread_load: EngineLoad {
        kv_cache_usage: Reading::Failed,
        is_sleeping: Reading::Failed,
        ..EngineLoad::UNREAD
    },
    // /reset_prefix_cache frees blocks within a pool that stays, and what /release_kv_cache_memory
    // gives is taken again by the /wake_up behind it.
    gives_back: ReclaimMethod::Never(
        "vLLM gives no memory back while it serves: its KV cache is one pool from start to end, \
         /reset_prefix_cache frees 0 bytes of it, and /sleep with /wake_up may kill the engine or \
         the host. Start it with a smaller --gpu-memory-utilization",
    ),
    never_called: &[(
        &["sleep", "wake_up", "release_kv_cache_memory", "release_kv_cache"],
        "vLLM's wake_up may kill the engine, and on GB10 the whole host, and what sleep gives back \
         is taken again then",
    )],
    last_words: &[
        ("larger than the available KV cache memory", Reason::KvCacheTooSmall),
        ("larger than the maximum number of tokens*in KV cache", Reason::KvCacheTooSmall),
        ("No available memory for the cache blocks", Reason::KvCacheTooSmall),
        ("KV cache memory: -", Reason::KvCacheTooSmall),
        ("KV cache memory (-", Reason::KvCacheTooSmall),
        // The rest of the sentence is another line in some versions.
        ("memory on*on startup is less than", Reason::TooLittleMemory),
        ("Too large swap space", Reason::TooLittleMemory),
        ("Error in memory profiling", Reason::MeasurementDisturbed),
        ("Cannot provide a placement group", Reason::NodeMissing),
        ("Current node has no GPU available", Reason::NodeMissing),
        ("GPUs exceeds the total number of available GPUs", Reason::NodeMissing),
        ("Engine core proc*died unexpectedly", Reason::WorkerDied),
        ("RPC call to*timed out", Reason::WorkerTimedOut),
        ("Timed out waiting for engine", Reason::WorkerTimedOut),
        ("Engine iteration timed out", Reason::WorkerTimedOut),
        ("Did not receive response from front-end", Reason::WorkerTimedOut),
        ("EngineCore encountered", Reason::GaveUp),
        ("EngineCore failed to start", Reason::GaveUp),
        ("Engine core initialization failed", Reason::GaveUp),
        ("Engine process failed to start", Reason::GaveUp),
        ("WorkerProc initialization failed", Reason::GaveUp),
        ("WorkerProc failed to start", Reason::GaveUp),
        ("Worker failed with error*check the stack trace", Reason::GaveUp),
        ("AsyncLLM output_handler failed", Reason::GaveUp),
        ("RuntimeError: Executor failed", Reason::GaveUp),
        ("Got fatal signal from worker processes", Reason::GaveUp),
        ("EngineDeadError", Reason::GaveUp),
        ("AsyncEngineDeadError", Reason::GaveUp),
        ("MQEngineDeadError", Reason::GaveUp),
    ],
    worker_died,
    takes_less: Some("a lower --gpu-memory-utilization or --max-model-len"),
    without_cuda_graphs: Some("--enforce-eager"),
    hides_killed_workers: Some("vllm serve"),
    images: &["vllm/vllm-openai", "nvcr.io/nvidia/vllm"],
    ..EngineFacts::new(EngineKind::Vllm)
};

static MMAP: Loader = Loader {
    name: "mmap",
    costs: "maps one shard at a time and reads it through the page cache",
    source: "docs.vllm.ai: LoadConfig; reports, November 2026",
    ..COPIES
};

static EAGER: Loader = Loader {
    name: "eager",
    stages_a_file: true,
    costs: "reads each shard as a whole into memory, and through the page cache, before it copies \
            it",
    source: "docs.vllm.ai: LoadConfig.safetensors_load_strategy",
    ..COPIES
};

static FASTSAFETENSORS: Loader = Loader {
    name: "fastsafetensors",
    stages_a_file: true,
    costs: "keeps a whole shard beside the weights, and reads through the page cache without GDS, \
            as on all integrated GPUs (it loaded in 33 s instead of 356 s on a GB10)",
    source: "github.com/vllm-project/vllm/pull/55985, github.com/sgl-project/sglang/pull/31859",
    ..COPIES
};

static IPC_CACHE: Loader = Loader {
    name: "ipc_cache",
    residence: WeightResidence::Outlives,
    costs: "takes the weights from a daemon (vllm preload), whose memory outlives the engine and \
            is wanted",
    source: "github.com/vllm-project/vllm/pull/54921",
    ..COPIES
};

static TABLE_IN_FILE: Loader = Loader {
    name: "mmap with a table in its file",
    residence: WeightResidence::Mapped,
    costs: "leaves a table of embeddings (47.7 GiB in Qwen3.8-Flash-Next) in a mapping of its file",
    source: "github.com/vllm-project/vllm/pull/54129, github.com/vllm-project/vllm/pull/54070",
    ..COPIES
};

const STRATEGY: &[&str] = &["--safetensors-load-strategy"];

/// The first rule that holds decides.
static LOADERS: &[LoaderRule] = &[
    LoaderRule(&[LoaderSign::Set("VLLM_PLE_MMAP")], &TABLE_IN_FILE),
    LoaderRule(&[LoaderSign::Set("VLLM_PLE_DISK_OFFLOAD_DIR")], &TABLE_IN_FILE),
    LoaderRule(&[LoaderSign::Is(FORMAT, &["instanttensor"])], &INSTANTTENSOR),
    LoaderRule(&[LoaderSign::Is(FORMAT, &["fastsafetensors"])], &FASTSAFETENSORS),
    LoaderRule(&[LoaderSign::Is(FORMAT, &["runai_streamer", "runai_streamer_sharded"])], &RUNAI),
    LoaderRule(&[LoaderSign::Is(FORMAT, &["mistral"])], &CONSOLIDATED),
    LoaderRule(&[LoaderSign::Is(FORMAT, &["pt"])], &TORCH),
    LoaderRule(&[LoaderSign::Is(FORMAT, &["dummy"])], &DUMMY),
    LoaderRule(&[LoaderSign::Is(FORMAT, &["ipc_cache"])], &IPC_CACHE),
    LoaderRule(&[LoaderSign::Set("USE_FASTSAFETENSOR")], &FASTSAFETENSORS),
    LoaderRule(
        &[
            LoaderSign::IsUsual(FORMAT, SAFETENSORS),
            LoaderSign::Is(STRATEGY, &["eager", "torchao"]),
        ],
        &EAGER,
    ),
    LoaderRule(
        &[LoaderSign::IsUsual(FORMAT, SAFETENSORS), LoaderSign::Is(STRATEGY, &["prefetch"])],
        &PREFETCH,
    ),
    LoaderRule(
        &[LoaderSign::IsUsual(FORMAT, SAFETENSORS), LoaderSign::IsUsual(STRATEGY, &["lazy"])],
        &MMAP,
    ),
];

static WEIGHT_DAEMON: WeightDaemon = WeightDaemon {
    command: "vllm preload",
    option: "--load-format ipc_cache",
    is_run_by: holds_weights,
};

/// `vllm preload`, and the module and the command that it had before.
fn holds_weights(arguments: &[String]) -> bool {
    const MODULE: &str = "vllm.model_executor.model_loader.weight_cache.daemon";
    let is_vllm = |word: &String| word.rsplit('/').next() == Some("vllm");
    let is_command = |word: &String| matches!(&**word, PRELOAD | "weight-cache-daemon");
    let mut pairs = arguments.iter().zip(arguments.iter().skip(1)).take(4);
    pairs.any(|(one, next)| (one == "-m" && next == MODULE) || (is_vllm(one) && is_command(next)))
}

fn recognise(program: &Program<'_>) -> Option<ProcessRole> {
    match program.name {
        "vllm" | "vllm.entrypoints.cli.main"
            if program.has_command("serve") || program.has_command(PRELOAD) =>
        {
            Some(ProcessRole::Server)
        }
        "vllm.entrypoints.openai.api_server" | "vllm.entrypoints.api_server" => {
            Some(ProcessRole::Server)
        }
        KSERVE
            if option(program.rest, &["--backend"])
                .is_none_or(|backend| backend != "huggingface") =>
        {
            Some(ProcessRole::Server)
        }
        "api_server.py" if program.path.contains("vllm/entrypoints/") => Some(ProcessRole::Server),
        // vLLM's own Rust frontend. `serve` starts a headless engine, as its child; `frontend`
        // serves for one that runs, and is a child of `vllm serve` where it inherits a listener
        // (github.com/vllm-project/vllm: rust/src/cmd/src/cli.rs, pull/40848). None was run.
        "vllm-rs" if program.has_command("serve") => Some(ProcessRole::Server),
        "vllm-rs" if program.has_command("frontend") => {
            let is_child = option(program.rest, &["--listen-fd"]).is_some();
            Some(if is_child { ProcessRole::Worker } else { ProcessRole::Server })
        }
        _ => None,
    }
}

/// The ranks of one engine meet at the master's address, data-parallel ones at the first rank's.
/// Of the others `--headless` ones serve no HTTP (vLLM 0.32).
fn part(program: &Program<'_>) -> EnginePart {
    let words = program.rest;
    let value = |names: &[&str]| option(words, names);
    let number = |names: &[&str]| value(names)?.parse::<u32>().ok();
    if words.first().is_some_and(|first| first == PRELOAD) {
        let name = Some("vllm-preload");
        return EnginePart { is_headless: true, name, ..EnginePart::WHOLE };
    }
    if program.name == KSERVE {
        return EnginePart { is_headless: true, name: Some(KSERVE), ..EnginePart::WHOLE };
    }
    let meet = |address: &str, port: &[&str], usual: &str| {
        format!("{address}:{}", value(port).unwrap_or(usual)).into()
    };
    let nodes = number(&["--nnodes", "-n"]).filter(|nodes| *nodes > 1);
    let rank = if nodes.is_some() {
        let address = value(&["--master-addr"]).unwrap_or("127.0.0.1");
        let rank = number(&["--node-rank", "-r"]).or(Some(0));
        let gang = meet(address, &["--master-port"], "29501");
        Some(EngineRank { gang, rank, ranks: nodes })
    } else {
        value(&["--data-parallel-address", "-dpa"]).map(|address| {
            let gang = meet(address, &["--data-parallel-rpc-port", "-dpp"], "29550");
            // The first replica of each node, or the only one where each serves on its own.
            let first = number(&["--data-parallel-start-rank", "-dpr"]);
            let rank = first.or(number(&["--data-parallel-rank", "-dpn"])).or(Some(0));
            EngineRank { gang, rank, ranks: None }
        })
    };
    let is_headless = words.iter().any(|word| word == "--headless");
    EnginePart { rank, is_headless, name: None }
}

fn metrics(text: &str) -> Option<EngineLoad> {
    Some(EngineLoad {
        running: sum(text, &["vllm:num_requests_running"]),
        waiting: sum(text, &["vllm:num_requests_waiting"]),
        kv_cache_usage: greatest_share(text, "vllm:kv_cache_usage_perc"),
        is_sleeping: sleeps(text).into(),
        work: sum(text, &["vllm:prompt_tokens_total", "vllm:generation_tokens_total"]),
        ..EngineLoad::NONE
    })
}

/// One series for each state; of several engines any that is not awake.
fn sleeps(text: &str) -> Option<bool> {
    let awake = samples(text, &["vllm:engine_sleep_state"])
        .filter(|(series, _)| series.contains("sleep_state=\"awake\""));
    awake.map(|(_, value)| value == 0.0).reduce(|one, other| one || other)
}

/// `Worker proc VllmWorker-0 died unexpectedly (exit code: -9)`.
fn worker_died(line: &str) -> Option<LastWords> {
    let (_, rest) = line.split_once("Worker proc ")?;
    let (worker, rest) = rest.split_once(" died unexpectedly")?;
    let status = rest.strip_prefix(" (exit code: ").and_then(python_status).unwrap_or_default();
    Some(LastWords::WorkerDied { worker: worker_name(worker)?, pid: None, status })
}
