//! `llama-server` of llama.cpp.

use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use super::command_line::{EnginePart, ProcessRole, Program, ServingArguments};
use super::emptying::{Emptying, EmptyingRefusal, ReclaimMethod, WhichKey};
use super::facts::{EngineFacts, HealthPath, LoadSource};
use super::last_words::Reason;
use super::launch_command::SizeOptions;
use super::load::{greatest_share, sum};
use super::loaders::{COPIES, Loader, LoaderRule, LoaderSign, PageCacheUse, WeightResidence};
use crate::model::{CachePermission, EngineKind, EngineLoad, counted};

const HOST: &str = "LLAMA_ARG_HOST";
const PORT: &str = "LLAMA_ARG_PORT";
const MODEL: &str = "LLAMA_ARG_MODEL";

pub(super) static FACTS: EngineFacts = EngineFacts {
    known_as: Some("llama-server"),
    recognise,
    port: Some(8080),
    port_options: &["--port"],
    host_options: &["--host"],
    model_options: &["--model", "-m", "--hf-repo", "-hf", "-hfr"],
    served_name_options: &["--alias", "-a"],
    part,
    sizes: SizeOptions {
        // All its slots share this context.
        all_tokens: &["-c", "--ctx-size"],
        requests: &["-np", "--parallel"],
        kv_type: &["-ctk", "--cache-type-k"],
        whole_windows: &["--swa-full"],
        ..SizeOptions::NONE
    },
    loaders: LOADERS,
    entry_point: &["llama-server"],
    variables: &[HOST, PORT, MODEL],
    of_variables: |variable| ServingArguments::of_environment(variable, [HOST, PORT, MODEL]),
    health: &[HealthPath::of("/health")],
    load: &[LoadSource { path: "/metrics", read: metrics }],
    gives_back: ReclaimMethod::By(|emptying, _| empty(emptying)),
    last_words: &[
        ("unable to allocate CUDA*buffer", Reason::OutOfMemory),
        ("failed to allocate CUDA*buffer", Reason::OutOfMemory),
        ("unable to allocate Vulkan*buffer", Reason::OutOfMemory),
        ("failed to allocate Vulkan*buffer", Reason::OutOfMemory),
        ("unable to allocate ROCm*buffer", Reason::OutOfMemory),
        ("failed to allocate ROCm*buffer", Reason::OutOfMemory),
        // Before it named the device.
        ("unable to allocate backend buffer", Reason::OutOfMemory),
        ("failed to allocate buffer for kv cache", Reason::OutOfMemory),
        ("failed to allocate compute", Reason::OutOfMemory),
        ("unable to allocate CPU*buffer", Reason::HostOutOfMemory),
        ("failed to allocate CPU*buffer", Reason::HostOutOfMemory),
        ("failed to allocate buffer of size", Reason::HostOutOfMemory),
        ("ggml_aligned_malloc: insufficient memory", Reason::HostOutOfMemory),
        ("ggml_vulkan: Device memory allocation of size*failed", Reason::OutOfMemory),
        ("Remote RPC server crashed", Reason::PeerLost),
    ],
    takes_less: Some("a lower --ctx-size, or fewer --n-gpu-layers"),
    images: &["ghcr.io/ggml-org/llama.cpp"],
    ..EngineFacts::new(EngineKind::LlamaServer)
};

const DIRECT_IO: Option<&str> = Some("--direct-io (--load-mode dio in newer builds)");

static DIRECT: Loader = Loader {
    name: "direct-io",
    page_cache: PageCacheUse::Spares,
    costs: "reads with direct I/O and leaves no cache (gpt-oss-120b on a DGX Spark: 10.5 s instead \
            of 110 s)",
    source: "github.com/ggml-org/llama.cpp/pull/18012",
    ..COPIES
};

static READ: Loader = Loader {
    name: "read",
    costs: "reads through the page cache",
    instead: DIRECT_IO,
    source: "github.com/ggml-org/llama.cpp: tools/server/README.md",
    ..COPIES
};

static MMAP: Loader = Loader {
    name: "mmap",
    costs: "maps the file and copies it through the page cache (gpt-oss-120b on a DGX Spark: \
            110 s)",
    instead: DIRECT_IO,
    source: "github.com/ggml-org/llama.cpp/pull/18012",
    ..COPIES
};

static MAPPED: Loader = Loader {
    name: "mmap",
    residence: WeightResidence::Mapped,
    costs: "maps the file; what is not on the GPU stays in the mapping",
    instead: None,
    source: "github.com/ggml-org/llama.cpp: tools/server/README.md",
    ..COPIES
};

static AUTO: Loader = Loader {
    name: "mmap",
    residence: WeightResidence::Mapped,
    costs: "maps the file; what does not fit on the GPU stays in the mapping",
    instead: DIRECT_IO,
    source: "github.com/ggml-org/llama.cpp: tools/server/README.md",
    ..COPIES
};

static LOCKED: Loader = Loader {
    name: "mlock",
    costs: "locks what it maps, so that the kernel cannot evict it",
    instead: None,
    source: "github.com/ggml-org/llama.cpp: tools/server/README.md",
    ..COPIES
};

const LOAD_MODE: &[&str] = &["--load-mode", "-lm"];

const GPU_LAYERS: &[&str] = &["-ngl", "--gpu-layers", "--n-gpu-layers"];

const ON_CPU: &[&str] = &[
    "-cmoe",
    "--cpu-moe",
    "-ncmoe",
    "--n-cpu-moe",
    "-ncffn",
    "--n-cpu-ffn",
    "-ot",
    "--override-tensor",
];

/// The first rule that holds decides.
static LOADERS: &[LoaderRule] = &[
    LoaderRule(&[LoaderSign::Is(LOAD_MODE, &["dio"])], &DIRECT),
    LoaderRule(&[LoaderSign::Is(LOAD_MODE, &["none"])], &READ),
    LoaderRule(&[LoaderSign::Is(LOAD_MODE, &["mlock", "mmap+mlock"])], &LOCKED),
    LoaderRule(&[LoaderSign::Has(&["-dio", "--direct-io"])], &DIRECT),
    LoaderRule(&[LoaderSign::Has(&["--mlock"])], &LOCKED),
    LoaderRule(&[LoaderSign::Has(&["--no-mmap"])], &READ),
    LoaderRule(&[LoaderSign::Has(ON_CPU)], &MAPPED),
    LoaderRule(&[LoaderSign::LayersOnGpu(GPU_LAYERS)], &MMAP),
    LoaderRule(&[LoaderSign::IsUsual(LOAD_MODE, &["auto", "mmap"])], &AUTO),
];

/// Computes for a server on another node, and has its part of the model.
const RPC_SERVERS: [&str; 2] = ["rpc-server", "ggml-rpc-server"];

/// Other programs are called `rpc-server`, too. All of these are its options (tools/rpc).
const RPC_OPTIONS: [&str; 12] = [
    "-H",
    "--host",
    "-p",
    "--port",
    "-t",
    "--threads",
    "-d",
    "--device",
    "-m",
    "--mem",
    "-c",
    "--cache",
];

fn is_rpc_server(program: &Program<'_>) -> bool {
    let mut options = program.rest.iter().filter(|word| word.starts_with('-')).peekable();
    let is_of_llama = options.peek().is_some() || program.path.contains("llama");
    let is_called_so = RPC_SERVERS.contains(&program.name);
    is_called_so && is_of_llama && options.all(|word| RPC_OPTIONS.contains(&&**word))
}

/// Its RPC server speaks no HTTP.
fn part(program: &Program<'_>) -> EnginePart {
    match is_rpc_server(program) {
        true => EnginePart { is_headless: true, name: Some(RPC_SERVERS[0]), ..EnginePart::WHOLE },
        false => EnginePart::WHOLE,
    }
}

fn recognise(program: &Program<'_>) -> Option<ProcessRole> {
    let serves = match program.name {
        // The second is Docker Model Runner's.
        "llama-server" | "com.docker.llama-server" => true,
        // One program for all commands (github.com/ggml-org/llama.cpp/pull/23296).
        "llama" => program.has_command("serve"),
        _ => is_rpc_server(program),
    };
    let lists = program.has_any(&["--list-devices", "--cache-list", "-cl", "--completion-bash"]);
    (serves && !lists).then_some(ProcessRole::Server)
}

/// Reads its metrics; those of one model where it is a router.
fn metrics(text: &str) -> Option<EngineLoad> {
    Some(EngineLoad {
        running: sum(text, &["llamacpp:requests_processing"]),
        waiting: sum(text, &["llamacpp:requests_deferred"]),
        kv_cache_usage: greatest_share(text, "llamacpp:kv_cache_usage_ratio"),
        // Its counters of tokens rise only when a request ends.
        work: sum(text, &["llamacpp:n_decode_total"]),
        ..EngineLoad::NONE
    })
}

const MODELS: &str = "/models";
const UNLOAD: &str = "/models/unload";

const QUERY_TAKES: Duration = Duration::from_secs(2);
/// It waits 10 s for a model's process before it kills it.
const UNLOADING_TAKES: Duration = Duration::from_secs(4);

/// Most models that are unloaded at a time.
const MOST_MODELS: usize = 4;

const KEY: &str = "api_key_file";

/// Unloads the models without requests. This works only for a router, where each model is a
/// process. Unloading ends the process with its requests, and the next request starts it again.
fn empty(emptying: &Emptying<'_>) -> Result<String, EmptyingRefusal> {
    let key = emptying.calls.key(WhichKey::Api)?;
    let models = loaded(emptying, key)?;
    if models.is_empty() {
        return Err(EmptyingRefusal::NothingToGive("it has no model loaded"));
    }
    if !emptying.allows(CachePermission::UnloadModels) {
        return Err(EmptyingRefusal::NotAllowed {
            permission: CachePermission::UnloadModels,
            why: "to unload a model ends its process, with the requests that it works on",
        });
    }
    let (mut unloaded, mut busy) = (0, 0);
    for model in models {
        let requests = requests(emptying, key, &model)?;
        if requests > 0 {
            busy += requests;
            continue;
        }
        let body = json!({ "model": model });
        let answer = emptying.calls.post(UNLOAD, Some(&body), key, UNLOADING_TAKES)?;
        match answer.status {
            200 => unloaded += 1,
            // The model has been unloaded since.
            400 => {}
            _ => return Err(EmptyingRefusal::of(UNLOAD, &answer, key.is_some(), KEY)),
        }
    }
    match (unloaded, busy) {
        (0, 1..) => Err(EmptyingRefusal::Busy {
            requests: busy,
            then: "to unload its models would end them",
        }),
        _ => Ok(format!("it has unloaded {}", counted(unloaded, "model"))),
    }
}

fn loaded(emptying: &Emptying<'_>, key: Option<WhichKey>) -> Result<Vec<String>, EmptyingRefusal> {
    let answer = emptying.calls.get(MODELS, key, QUERY_TAKES)?;
    if !answer.is_success() {
        return Err(EmptyingRefusal::of(MODELS, &answer, key.is_some(), KEY));
    }
    let found = answer.json();
    let models = found.as_ref().and_then(|found| found.get("data")?.as_array());
    let models = models.ok_or_else(|| EmptyingRefusal::Unreadable(MODELS.to_owned()))?;
    // Only a router reports the states of its models.
    let state = |model: &Value| model.get("status")?.get("value")?.as_str().map(str::to_owned);
    if models.iter().all(|model| state(model).is_none()) {
        return Err(EmptyingRefusal::NothingToCall(
            "llama-server gives memory back only as a router, and this one was started with a \
             model",
        ));
    }
    let is_loaded = |model: &&Value| state(model).as_deref() == Some("loaded");
    let name = |model: &Value| model.get("id")?.as_str().map(str::to_owned);
    Ok(models.iter().filter(is_loaded).filter_map(name).take(MOST_MODELS).collect())
}

/// Requests of a model; 0 where it reports none, as without --metrics.
fn requests(
    emptying: &Emptying<'_>,
    key: Option<WhichKey>,
    model: &str,
) -> Result<u64, EmptyingRefusal> {
    // Without autoload, so that the request does not start a model that has ended since.
    let model = utf8_percent_encode(model, NON_ALPHANUMERIC);
    let path = format!("/metrics?model={model}&autoload=false");
    let answer = emptying.calls.get(&path, key, QUERY_TAKES)?;
    let load = metrics(&answer.text()).filter(|_| answer.is_success());
    Ok(load.and_then(|load| load.requests().value()).unwrap_or(0))
}
