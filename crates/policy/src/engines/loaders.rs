//! How engines read weights into memory: what each loader costs, whether it fills the page cache,
//! and whether the weights outlive the engine. The rules in the facts of an engine recognise its
//! loader by its command line. Loaders of one engine are in the file of that engine; those here are
//! of several.
//!
//! Every figure has its source. A loader of which nothing is known is [`UNKNOWN`], so that nobody
//! takes silence for a promise.

#[cfg(test)]
mod tests;

use super::launch_command::Options;
use super::{ENGINES, facts};
use crate::model::EngineKind;

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
pub(super) const COPIES: Loader = Loader {
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

pub(super) static PREFETCH: Loader = Loader {
    name: "prefetch",
    costs: "reads all shards into the page cache before it copies them",
    source: "docs.vllm.ai: LoadConfig.safetensors_load_strategy; docs.sglang.io: model loading",
    ..COPIES
};

pub(super) static TORCH: Loader = Loader {
    name: "pt",
    stages_a_file: true,
    costs: "reads each file as a whole into memory, and through the page cache, before it copies \
            it",
    source: "docs.vllm.ai: LoadConfig",
    ..COPIES
};

pub(super) static INSTANTTENSOR: Loader = Loader {
    name: "instanttensor",
    page_cache: PageCacheUse::Spares,
    // 8.4 to 10.8 GiB on two GB10; the upper end is that of all reports.
    work_bytes: (84 * GIB / 10, 14 * GIB),
    costs: "reads with direct I/O into buffers of up to half of MemAvailable, and leaves 4.4 GiB \
            less for the KV cache than mmap (work of 8.4 to 10.8 GiB was measured)",
    source: "github.com/MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks/issues/204",
    ..COPIES
};

pub(super) static RUNAI: Loader = Loader {
    name: "runai_streamer",
    page_cache: PageCacheUse::Unknown,
    buffers_bytes: 40_000_000_000,
    costs: "streams into a buffer of about 40 GB a rank while it loads, unless \
            RUNAI_STREAMER_MEMORY_LIMIT bounds it",
    source: "github.com/scitix/instanttensor/issues/4; docs.vllm.ai: Run:ai Model Streamer",
    ..COPIES
};

pub(super) static CONSOLIDATED: Loader = Loader {
    name: "mistral",
    peak_percent: Some((100, 180)),
    costs: "reads consolidated files through the page cache, and peaks at up to 1.8 times the \
            weights",
    source: "reports, November 2026",
    ..COPIES
};

pub(super) static DUMMY: Loader = Loader {
    name: "dummy",
    page_cache: PageCacheUse::Spares,
    costs: "reads no file: the weights are random",
    source: "docs.vllm.ai: LoadConfig",
    ..COPIES
};

/// A sign of a loader in a command line.
#[derive(Clone, Copy, Debug)]
pub(super) enum LoaderSign {
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

/// The signs of a loader, all of which must hold, and the loader.
#[derive(Debug)]
pub(super) struct LoaderRule(pub(super) &'static [LoaderSign], pub(super) &'static Loader);

/// A daemon that holds weights for engines, and is meant to outlive them.
#[derive(Debug)]
pub struct WeightDaemon {
    /// Its command, such as `vllm preload`.
    pub command: &'static str,
    /// The option of the engines that take their weights from it.
    pub option: &'static str,
    /// Whether that command line is its own.
    pub(super) is_run_by: fn(&[String]) -> bool,
}

/// The option that names a loader.
pub(super) const FORMAT: &[&str] = &["--load-format"];
/// Values of [`FORMAT`] that leave it to further options how safetensors are read.
pub(super) const SAFETENSORS: &[&str] = &["auto", "safetensors", "hf"];

/// The loader of an engine with these options.
pub(super) fn loader(engine: EngineKind, options: &Options<'_>) -> &'static Loader {
    let holds = |rule: &&LoaderRule| rule.0.iter().all(|sign| sign.holds(options));
    facts(engine).loaders.iter().find(holds).map_or(&UNKNOWN, |rule| rule.1)
}

/// Variables of the environment by which loaders are recognised.
pub fn loader_variables() -> impl Iterator<Item = &'static str> {
    let rules = ENGINES.iter().flat_map(|facts| facts.loaders);
    rules.flat_map(|rule| rule.0).filter_map(|sign| match sign {
        LoaderSign::Set(name) => Some(*name),
        _ => None,
    })
}

/// The daemon of that command line, if it is one which holds weights.
pub fn weight_daemon(arguments: &[String]) -> Option<&'static WeightDaemon> {
    let mut daemons = ENGINES.iter().filter_map(|facts| facts.weight_daemon);
    daemons.find(|daemon| (daemon.is_run_by)(arguments))
}
