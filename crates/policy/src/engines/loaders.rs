//! How engines read weights into memory: what each loader costs, whether it fills the page cache,
//! and whether the weights outlive the engine. [`RULES`] recognises a loader by the engine's
//! command line.
//!
//! Every figure has its source. A loader of which nothing is known is [`UNKNOWN`], so that nobody
//! takes silence for a promise.

#[cfg(test)]
mod tests;

use super::launch_command::Options;
use crate::model::EngineKind::{self, LlamaServer, Sglang, Vllm};

const GIB: u64 = 1 << 30;

/// Whether the files of the weights stay in the page cache while they are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageCacheUse {
    /// Every byte that is read stays in the page cache until the kernel needs it.
    Fills,
    /// It reads with direct I/O, or evicts each file behind itself.
    Spares,
    /// No report says.
    Unknown,
}

impl PageCacheUse {
    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fills => "fills",
            Self::Spares => "spares",
            Self::Unknown => "unknown",
        }
    }
}

/// Where the weights are once they are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightResidence {
    /// In memory of the engine's own.
    Copied,
    /// A part stays in a mapping of its files: page cache, which the kernel may evict.
    Mapped,
    /// In memory of another process, which outlives the engine.
    Outlives,
}

impl WeightResidence {
    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Copied => "copied",
            Self::Mapped => "mapped",
            Self::Outlives => "outlives_engine",
        }
    }
}

/// One way in which an engine reads weights, and its costs.
#[derive(Debug)]
pub struct Loader {
    /// Its name, as the engine's option has it where there is one.
    pub name: &'static str,
    /// What it does to the page cache.
    pub page_cache: PageCacheUse,
    /// Where it leaves the weights.
    pub residence: WeightResidence,
    /// The least and the most that reports measured beside weights and KV cache on a GB10, in
    /// bytes.
    pub work_bytes: (u64, u64),
    /// The least and the most memory while it loads, in hundredths of the weights. `None`: no
    /// report says.
    pub peak_percent: Option<(u64, u64)>,
    /// Whether it keeps a whole file beside the weights that it copies from it.
    pub stages_a_file: bool,
    /// Buffers that it has only while it loads, in bytes.
    pub buffers_bytes: u64,
    /// What it does and costs, in a clause: `reads ...`.
    pub costs: &'static str,
    /// The options that spare the page cache, if it fills it and they have no price.
    pub instead: Option<&'static str>,
    /// Where this is from.
    pub source: &'static str,
}

/// What engines take beside weights and KV cache: 3.3 to 6.4 GiB with vLLM's usual loader on two
/// GB10, 5.4 on one; up to 14 GiB in all reports of November 2026. No report divides it by engine.
pub const WORK_BYTES: (u64, u64) = (33 * GIB / 10, 14 * GIB);

/// One of which nothing is known.
pub static UNKNOWN: Loader = Loader {
    name: "unknown",
    page_cache: PageCacheUse::Unknown,
    residence: WeightResidence::Copied,
    work_bytes: WORK_BYTES,
    peak_percent: None,
    stages_a_file: false,
    buffers_bytes: 0,
    costs: "is not known here: neither its peak nor what it keeps",
    instead: None,
    source: "none",
};

/// A loader that copies, through the page cache, and has no peak.
const COPIES: Loader = Loader {
    name: "",
    page_cache: PageCacheUse::Fills,
    residence: WeightResidence::Copied,
    work_bytes: WORK_BYTES,
    peak_percent: Some((100, 100)),
    stages_a_file: false,
    buffers_bytes: 0,
    costs: "",
    instead: None,
    source: "",
};

/// Where no command says which it is: what most loaders do.
pub static USUAL: Loader = Loader {
    name: "usual",
    page_cache: PageCacheUse::Unknown,
    costs: "is not named: a command behind -- names it",
    source: "reports, November 2026",
    ..COPIES
};

static VLLM_MMAP: Loader = Loader {
    name: "mmap",
    costs: "maps one shard at a time and reads it through the page cache",
    source: "docs.vllm.ai: LoadConfig; reports, November 2026",
    ..COPIES
};

static VLLM_EAGER: Loader = Loader {
    name: "eager",
    stages_a_file: true,
    costs: "reads each shard as a whole into memory, and through the page cache, before it copies \
            it",
    source: "docs.vllm.ai: LoadConfig.safetensors_load_strategy",
    ..COPIES
};

static PREFETCH: Loader = Loader {
    name: "prefetch",
    costs: "reads all shards into the page cache before it copies them",
    source: "docs.vllm.ai: LoadConfig.safetensors_load_strategy; docs.sglang.io: model loading",
    ..COPIES
};

static TORCH: Loader = Loader {
    name: "pt",
    stages_a_file: true,
    costs: "reads each file as a whole into memory, and through the page cache, before it copies \
            it",
    source: "docs.vllm.ai: LoadConfig",
    ..COPIES
};

static INSTANTTENSOR: Loader = Loader {
    name: "instanttensor",
    page_cache: PageCacheUse::Spares,
    // 8.4 to 10.8 GiB on two GB10; the upper end is that of all reports.
    work_bytes: (84 * GIB / 10, 14 * GIB),
    costs: "reads with direct I/O into buffers of up to half of MemAvailable, and leaves 4.4 GiB \
            less for the KV cache than mmap (work of 8.4 to 10.8 GiB was measured)",
    source: "github.com/MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks/issues/204",
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

static SGLANG_FASTSAFETENSORS: Loader = Loader {
    // 47.12 GB for weights of 27.03 GB, since the buffers stay.
    peak_percent: Some((100, 174)),
    instead: Some("--weight-loader-drop-cache-after-load"),
    costs: "keeps shards beside the weights (47.1 GB for 27.0 GB were measured on a GB10), and \
            reads through the page cache without GDS, as on all integrated GPUs",
    source: "github.com/sgl-project/sglang/pull/40065, github.com/sgl-project/sglang/pull/31859",
    ..FASTSAFETENSORS_BASE
};

static SGLANG_FASTSAFETENSORS_DROPPING: Loader = Loader {
    page_cache: PageCacheUse::Spares,
    peak_percent: Some((100, 174)),
    costs: "keeps shards beside the weights (47.1 GB for 27.0 GB were measured on a GB10), and \
            evicts each from the page cache once it is copied",
    source: "github.com/sgl-project/sglang/pull/40065, github.com/sgl-project/sglang/pull/31859",
    ..FASTSAFETENSORS_BASE
};

const FASTSAFETENSORS_BASE: Loader = Loader { name: "fastsafetensors", ..COPIES };

static RUNAI: Loader = Loader {
    name: "runai_streamer",
    page_cache: PageCacheUse::Unknown,
    buffers_bytes: 40_000_000_000,
    costs: "streams into a buffer of about 40 GB a rank while it loads, unless \
            RUNAI_STREAMER_MEMORY_LIMIT bounds it",
    source: "github.com/scitix/instanttensor/issues/4; docs.vllm.ai: Run:ai Model Streamer",
    ..COPIES
};

static CONSOLIDATED: Loader = Loader {
    name: "mistral",
    peak_percent: Some((100, 180)),
    costs: "reads consolidated files through the page cache, and peaks at up to 1.8 times the \
            weights",
    source: "reports, November 2026",
    ..COPIES
};

static DUMMY: Loader = Loader {
    name: "dummy",
    page_cache: PageCacheUse::Spares,
    costs: "reads no file: the weights are random",
    source: "docs.vllm.ai: LoadConfig",
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

static VLLM_TABLE_IN_FILE: Loader = Loader {
    name: "mmap with a table in its file",
    residence: WeightResidence::Mapped,
    costs: "leaves a table of embeddings (47.7 GiB in Qwen3.8-Flash-Next) in a mapping of its file",
    source: "github.com/vllm-project/vllm/pull/54129, github.com/vllm-project/vllm/pull/54070",
    ..COPIES
};

static SGLANG_MMAP: Loader = Loader {
    name: "mmap",
    // 157 GB for a model of 81.6 GB, whose code had collected all tensors first.
    peak_percent: Some((100, 193)),
    costs: "maps shards and reads them through the page cache; a model whose code collects the \
            tensors first peaks at up to 1.9 times the weights (157 GB on one node were measured)",
    instead: Some("--weight-loader-drop-cache-after-load"),
    source: "github.com/sgl-project/sglang/pull/20580",
    ..COPIES
};

static SGLANG_DROPPING: Loader = Loader {
    name: "mmap, evicting",
    page_cache: PageCacheUse::Spares,
    peak_percent: Some((100, 193)),
    costs: "maps shards and evicts each from the page cache once it is copied; a model whose code \
            collects the tensors first peaks at up to 1.9 times the weights (157 GB on one node \
            were measured)",
    source: "github.com/sgl-project/sglang/pull/20580, docs.sglang.io: model loading",
    ..COPIES
};

static SGLANG_READ: Loader = Loader {
    name: "read",
    peak_percent: Some((100, 193)),
    stages_a_file: true,
    costs: "reads each shard as a whole into memory, and through the page cache, before it copies \
            it",
    instead: Some("--weight-loader-drop-cache-after-load"),
    source: "github.com/sgl-project/sglang/pull/7469",
    ..COPIES
};

static SGLANG_TABLE_IN_FILE: Loader = Loader {
    name: "mmap with a table in its file",
    residence: WeightResidence::Mapped,
    costs: "leaves a table of embeddings (47.7 GiB in Qwen3.8-Flash-Next) in a mapping of its file",
    instead: Some("--weight-loader-drop-cache-after-load"),
    source: "github.com/sgl-project/sglang/pull/37068",
    ..COPIES
};

static LLAMA_DIRECT: Loader = Loader {
    name: "direct-io",
    page_cache: PageCacheUse::Spares,
    costs: "reads with direct I/O and leaves no cache (gpt-oss-120b on a DGX Spark: 10.5 s instead \
            of 110 s)",
    source: "github.com/ggml-org/llama.cpp/pull/18012",
    ..COPIES
};

const DIRECT_IO: Option<&str> = Some("--direct-io (--load-mode dio in newer builds)");

static LLAMA_READ: Loader = Loader {
    name: "read",
    costs: "reads through the page cache",
    instead: DIRECT_IO,
    source: "github.com/ggml-org/llama.cpp: tools/server/README.md",
    ..COPIES
};

static LLAMA_MMAP: Loader = Loader {
    name: "mmap",
    costs: "maps the file and copies it through the page cache (gpt-oss-120b on a DGX Spark: \
            110 s)",
    instead: DIRECT_IO,
    source: "github.com/ggml-org/llama.cpp/pull/18012",
    ..COPIES
};

static LLAMA_MAPPED: Loader = Loader {
    name: "mmap",
    residence: WeightResidence::Mapped,
    costs: "maps the file; what is not on the GPU stays in the mapping",
    instead: None,
    source: "github.com/ggml-org/llama.cpp: tools/server/README.md",
    ..COPIES
};

static LLAMA_AUTO: Loader = Loader {
    name: "mmap",
    residence: WeightResidence::Mapped,
    costs: "maps the file; what does not fit on the GPU stays in the mapping",
    instead: DIRECT_IO,
    source: "github.com/ggml-org/llama.cpp: tools/server/README.md",
    ..COPIES
};

static LLAMA_LOCKED: Loader = Loader {
    name: "mlock",
    costs: "locks what it maps, so that the kernel cannot evict it",
    instead: None,
    source: "github.com/ggml-org/llama.cpp: tools/server/README.md",
    ..COPIES
};

/// Variables of the environment by which a loader is recognised.
pub const VARIABLES: [&str; 3] =
    ["VLLM_PLE_MMAP", "VLLM_PLE_DISK_OFFLOAD_DIR", "USE_FASTSAFETENSOR"];

/// A sign of a loader in a command line.
#[derive(Clone, Copy, Debug)]
enum LoaderSign {
    /// The last of these options has one of these values.
    Is(&'static [&'static str], &'static [&'static str]),
    /// None of these options is there, or the last has one of these values.
    IsUsual(&'static [&'static str], &'static [&'static str]),
    /// One of these options is there.
    Has(&'static [&'static str]),
    /// This variable of the environment is set, and not to 0.
    Set(&'static str),
    /// A number of this option keeps layers on the GPU.
    LayersOnGpu(&'static [&'static str]),
}

impl LoaderSign {
    fn holds(self, options: &Options<'_>) -> bool {
        match self {
            Self::Is(names, values) => {
                options.value(names).is_some_and(|value| is_one_of(value, values))
            }
            Self::IsUsual(names, values) => {
                options.value(names).is_none_or(|value| is_one_of(value, values))
            }
            Self::Has(names) => options.has(names),
            Self::Set(name) => options.variable(name).is_some_and(|value| value != "0"),
            Self::LayersOnGpu(names) => {
                options.value(names).is_some_and(|value| !is_one_of(value, &["auto", "0"]))
            }
        }
    }
}

/// vLLM reads its formats without regard to case.
fn is_one_of(value: &str, values: &[&str]) -> bool {
    values.iter().any(|one| value.eq_ignore_ascii_case(one))
}

/// A loader, and the signs of its use, all of which must hold.
struct LoaderRule(EngineKind, &'static [LoaderSign], &'static Loader);

const FORMAT: &[&str] = &["--load-format"];
const STRATEGY: &[&str] = &["--safetensors-load-strategy"];
const SAFETENSORS: &[&str] = &["auto", "safetensors", "hf"];
const DROPS: LoaderSign = LoaderSign::Has(&["--weight-loader-drop-cache-after-load"]);
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
static RULES: &[LoaderRule] = &[
    LoaderRule(Vllm, &[LoaderSign::Set("VLLM_PLE_MMAP")], &VLLM_TABLE_IN_FILE),
    LoaderRule(Vllm, &[LoaderSign::Set("VLLM_PLE_DISK_OFFLOAD_DIR")], &VLLM_TABLE_IN_FILE),
    LoaderRule(Vllm, &[LoaderSign::Is(FORMAT, &["instanttensor"])], &INSTANTTENSOR),
    LoaderRule(Vllm, &[LoaderSign::Is(FORMAT, &["fastsafetensors"])], &FASTSAFETENSORS),
    LoaderRule(
        Vllm,
        &[LoaderSign::Is(FORMAT, &["runai_streamer", "runai_streamer_sharded"])],
        &RUNAI,
    ),
    LoaderRule(Vllm, &[LoaderSign::Is(FORMAT, &["mistral"])], &CONSOLIDATED),
    LoaderRule(Vllm, &[LoaderSign::Is(FORMAT, &["pt"])], &TORCH),
    LoaderRule(Vllm, &[LoaderSign::Is(FORMAT, &["dummy"])], &DUMMY),
    LoaderRule(Vllm, &[LoaderSign::Is(FORMAT, &["ipc_cache"])], &IPC_CACHE),
    LoaderRule(Vllm, &[LoaderSign::Set("USE_FASTSAFETENSOR")], &FASTSAFETENSORS),
    LoaderRule(
        Vllm,
        &[
            LoaderSign::IsUsual(FORMAT, SAFETENSORS),
            LoaderSign::Is(STRATEGY, &["eager", "torchao"]),
        ],
        &VLLM_EAGER,
    ),
    LoaderRule(
        Vllm,
        &[LoaderSign::IsUsual(FORMAT, SAFETENSORS), LoaderSign::Is(STRATEGY, &["prefetch"])],
        &PREFETCH,
    ),
    LoaderRule(
        Vllm,
        &[LoaderSign::IsUsual(FORMAT, SAFETENSORS), LoaderSign::IsUsual(STRATEGY, &["lazy"])],
        &VLLM_MMAP,
    ),
    LoaderRule(
        Sglang,
        &[LoaderSign::Is(&["--ple-offload-backend"], &["file"])],
        &SGLANG_TABLE_IN_FILE,
    ),
    LoaderRule(
        Sglang,
        &[LoaderSign::Is(FORMAT, &["fastsafetensors"]), DROPS],
        &SGLANG_FASTSAFETENSORS_DROPPING,
    ),
    LoaderRule(Sglang, &[LoaderSign::Is(FORMAT, &["fastsafetensors"])], &SGLANG_FASTSAFETENSORS),
    LoaderRule(Sglang, &[LoaderSign::Is(FORMAT, &["instanttensor"])], &INSTANTTENSOR),
    LoaderRule(Sglang, &[LoaderSign::Is(FORMAT, &["runai_streamer"])], &RUNAI),
    LoaderRule(Sglang, &[LoaderSign::Is(FORMAT, &["mistral"])], &CONSOLIDATED),
    LoaderRule(Sglang, &[LoaderSign::Is(FORMAT, &["pt"])], &TORCH),
    LoaderRule(Sglang, &[LoaderSign::Is(FORMAT, &["dummy"])], &DUMMY),
    LoaderRule(Sglang, &[LoaderSign::IsUsual(FORMAT, SAFETENSORS), DROPS], &SGLANG_DROPPING),
    LoaderRule(
        Sglang,
        &[
            LoaderSign::IsUsual(FORMAT, SAFETENSORS),
            LoaderSign::Has(&["--weight-loader-prefetch-checkpoints"]),
        ],
        &PREFETCH,
    ),
    LoaderRule(
        Sglang,
        &[
            LoaderSign::IsUsual(FORMAT, SAFETENSORS),
            LoaderSign::Has(&["--weight-loader-disable-mmap"]),
        ],
        &SGLANG_READ,
    ),
    LoaderRule(Sglang, &[LoaderSign::IsUsual(FORMAT, SAFETENSORS)], &SGLANG_MMAP),
    LoaderRule(LlamaServer, &[LoaderSign::Is(LOAD_MODE, &["dio"])], &LLAMA_DIRECT),
    LoaderRule(LlamaServer, &[LoaderSign::Is(LOAD_MODE, &["none"])], &LLAMA_READ),
    LoaderRule(LlamaServer, &[LoaderSign::Is(LOAD_MODE, &["mlock", "mmap+mlock"])], &LLAMA_LOCKED),
    LoaderRule(LlamaServer, &[LoaderSign::Has(&["-dio", "--direct-io"])], &LLAMA_DIRECT),
    LoaderRule(LlamaServer, &[LoaderSign::Has(&["--mlock"])], &LLAMA_LOCKED),
    LoaderRule(LlamaServer, &[LoaderSign::Has(&["--no-mmap"])], &LLAMA_READ),
    LoaderRule(LlamaServer, &[LoaderSign::Has(ON_CPU)], &LLAMA_MAPPED),
    LoaderRule(LlamaServer, &[LoaderSign::LayersOnGpu(GPU_LAYERS)], &LLAMA_MMAP),
    LoaderRule(LlamaServer, &[LoaderSign::IsUsual(LOAD_MODE, &["auto", "mmap"])], &LLAMA_AUTO),
];

/// The loader of an engine with these options.
pub(super) fn loader(engine: EngineKind, options: &Options<'_>) -> &'static Loader {
    let holds =
        |rule: &&LoaderRule| rule.0 == engine && rule.1.iter().all(|sign| sign.holds(options));
    RULES.iter().find(holds).map_or(&UNKNOWN, |rule| rule.2)
}

/// Whether a command line is that of a daemon which holds weights for engines, and is meant to
/// outlive them: `vllm preload`, and the module and the command that it had before.
pub fn holds_weights(arguments: &[String]) -> bool {
    const MODULE: &str = "vllm.model_executor.model_loader.weight_cache.daemon";
    let is_vllm = |word: &String| word.rsplit('/').next() == Some("vllm");
    let is_command = |word: &String| matches!(&**word, "preload" | "weight-cache-daemon");
    let mut pairs = arguments.iter().zip(arguments.iter().skip(1)).take(4);
    pairs.any(|(one, next)| (one == "-m" && next == MODULE) || (is_vllm(one) && is_command(next)))
}
