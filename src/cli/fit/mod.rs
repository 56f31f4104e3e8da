//! `umawarden fit`.

mod command;
mod model;
mod nodes;
mod show;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgGroup, Args};

use super::Exit;
use super::gate::{NodeArguments, Pools, pools};
use super::loads;
use crate::cli::output::outln;
use crate::config::measure::size_bytes;
use crate::engines::count;
use crate::fit::{FitResult, Overheads, fit};
use crate::model::PeerAddress;

/// The most nodes of an engine.
const MOST_NODES: u32 = 1024;

/// A number without a unit below this lacks its unit.
const LEAST_BARE: u64 = 1 << 20;

/// What has the size of a model: usage and error name all of it.
fn sources() -> ArgGroup {
    let group = ArgGroup::new("sources").args(["weights", "model", "like", "command"]);
    group.required(true).multiple(true)
}

/// Arguments of `umawarden fit`.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER_HELP, group = sources())]
pub struct FitArguments {
    /// The size of the weights, for example 130GiB [default: the files of --model].
    #[arg(long, value_name = "SIZE", value_parser = large_bytes)]
    weights: Option<u64>,

    /// The model's folder, or one file of it (GGUF): its files have the size of the weights, its
    /// config.json the size of KV cache for a token [default: that of the command].
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,

    /// What the engine of this name (or with this beginning of a fingerprint) took before on this
    /// node, by `umawarden loads`: in place of weights, KV cache and everything else.
    #[arg(
        long, value_name = "NAME",
        conflicts_with_all = [
            "weights", "model", "mapped", "nodes", "peers", "context", "requests",
            "kv_per_token", "processes", "work", "growth", "command",
        ]
    )]
    like: Option<String>,

    /// The part of the weights that stays in a mapping of its files, as page cache that the kernel
    /// may evict: experts that llama.cpp keeps on the CPU, a table of embeddings in its file.
    #[arg(long, value_name = "SIZE", value_parser = size_bytes)]
    mapped: Option<u64>,

    /// The number of nodes [default: this one and --peers].
    #[arg(long, value_name = "NUMBER", value_parser = nodes)]
    nodes: Option<u32>,

    /// The other nodes: HOST or HOST:PORT (9942 unless given) of the umawarden that runs there,
    /// several with commas [without a value: those of cluster in the configuration file]. Nodes
    /// that are neither are taken to be like this one.
    #[arg(long, value_name = "NODES", value_delimiter = ',', num_args = 0..=1)]
    peers: Option<Vec<PeerAddress>>,

    /// The GPUs that share the model on each node, where they have memory of their own: gpu0,gpu1
    /// [default: the one with the least available memory].
    #[arg(long, value_name = "POOLS", value_parser = pools, conflicts_with = "memory")]
    pool: Option<Pools>,

    /// Tokens of one request: 131072, 128k (thousands) or 128K (times 1024), as vLLM reads them.
    #[arg(long, value_name = "TOKENS", value_parser = tokens)]
    context: Option<u64>,

    /// Requests of this length that are cached at the same time [default: 1].
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,

    /// The KV cache of one token, over all layers [with --model: from its config.json].
    #[arg(long, value_name = "SIZE", value_parser = size_bytes)]
    kv_per_token: Option<u64>,

    /// The type of numbers in the KV cache, as the engine's own option: auto, fp8, q8_0 [default:
    /// that of the command, else auto].
    #[arg(long, value_name = "TYPE", value_parser = kv_cache_type)]
    kv_cache_dtype: Option<String>,

    /// Memory of the engine's processes on each node, without the model [default: up to 9GiB, and a
    /// twelfth of a smaller node].
    #[arg(long, value_name = "SIZE", value_parser = size_bytes)]
    processes: Option<u64>,

    /// Activations, CUDA graphs and buffers of the loader [default: what reports measured, 3.3 to
    /// 14 GiB by loader and batch, and less on a smaller node].
    #[arg(long, value_name = "SIZE", value_parser = size_bytes)]
    work: Option<u64>,

    /// What the engine takes after its start beside its share: autotuning, compilers [default: up
    /// to 18GiB, and less on a smaller node].
    #[arg(long, value_name = "SIZE", value_parser = size_bytes)]
    growth: Option<u64>,

    /// Memory that stays free for other uses [default: a 32nd of the node].
    #[arg(long, value_name = "SIZE", value_parser = size_bytes)]
    headroom: Option<u64>,

    /// Plan for nodes with this much memory instead of reading this one.
    #[arg(long, value_name = "SIZE", value_parser = large_bytes, conflicts_with = "peers")]
    memory: Option<u64>,

    /// Memory of other services and the kernel [default: a sixteenth].
    #[arg(long, value_name = "SIZE", value_parser = size_bytes, requires = "memory")]
    taken: Option<u64>,

    /// One JSON object.
    #[arg(long)]
    json: bool,

    /// This node and its daemon.
    #[command(flatten)]
    node: NodeArguments,

    /// The engine's command, behind `--`: its options are read, and it is not run.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

const AFTER_HELP: &str = "\
Reads this node's available memory, queries its peers for theirs, and shows whether a model fits, \
which node is the weakest, and the --gpu-memory-utilization (vLLM) or --mem-fraction-static \
(SGLang) that is safe on all of them. Available memory is that of `umawarden gate`: memory of \
other services, of running engines too, and the kernel's reserve are excluded.

What an engine takes beside weights and KV cache is known as ranges that reports measured. A model \
*fits* at the upper end of all ranges. It is *tight* if it fits at the lower end only: it may run, \
or exhaust the node. It *does not fit* if it does not at the lower end. It is *unknown* if nothing \
is known of what its loader keeps or costs. An engine logs at its start what it really took: with \
--work and --growth the answer becomes exact.

With the engine's command behind --, the model, context, type of the KV cache, share of memory, \
ranks and loader are read from it (also within docker run, env and bash -c). Options of fit itself \
win. The loader's costs are named, and whether it spares the page cache.

The KV cache is divided among the nodes as tensor parallelism does it: by KV heads, as far as \
there are enough; latent attention (DeepSeek's) keeps all of it on each node. Layers of linear \
attention and Mamba keep none, and layers with a window keep the window.

Exit codes: 0 it fits or is tight; 1 it does not fit, it is unknown, or a node did not respond; 2 \
invalid arguments.

  umawarden fit --weights 130GiB --nodes 2 --context 128K --kv-per-token 80KiB
  umawarden fit --like qwen
  umawarden fit --model /models/deepseek --peers spark-2 --context 64K
  umawarden fit --model /models/qwen --memory 121GiB --nodes 2
  umawarden fit --model /models/q4/model-00001-of-00003.gguf
  umawarden fit -- vllm serve /models/qwen --max-model-len 128K";

fn nodes(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| (1..=MOST_NODES).contains(number));
    number.ok_or_else(|| format!("write a number from 1 to {MOST_NODES}"))
}

/// A number of tokens, in vLLM's form.
fn tokens(text: &str) -> Result<u64, String> {
    // vLLM also reads fractions; here they are more often a mistake.
    let number = count(text).filter(|_| !text.contains('.') && !text.ends_with(['g', 'G']));
    number.ok_or_else(|| "write a number of tokens: 131072, 128k or 128K".to_owned())
}

fn kv_cache_type(text: &str) -> Result<String, String> {
    let is_known = text == "auto" || model::element_thirty_seconds(text).is_some();
    is_known.then(|| text.to_owned()).ok_or_else(|| {
        "write auto, fp8 or the engine's own name of a type: bfloat16, int8, q8_0, q4_0".to_owned()
    })
}

impl FitArguments {
    /// With --like, what that engine took before as the only weights, and where it is from.
    ///
    /// # Errors
    /// No earlier load is known.
    fn as_before(&self) -> anyhow::Result<(Self, Option<String>)> {
        let Some(like) = &self.like else { return Ok((self.clone(), None)) };
        let storage = self.node.settings()?.storage.path;
        let expected = loads::expected(&storage, like, &[])?;
        let arguments = Self {
            weights: Some(expected.took_bytes),
            processes: Some(0),
            work: Some(0),
            growth: Some(expected.growth_bytes),
            ..self.clone()
        };
        let note = format!("counted as weights is all that it took before: {}", expected.note);
        Ok((arguments, Some(note)))
    }
}

/// Runs the command.
///
/// # Errors
/// The model, the node, the command or the configuration cannot be read.
pub fn execute(arguments: &FitArguments) -> anyhow::Result<Exit> {
    let (arguments, note) = &arguments.as_before()?;
    let mut read = command::read(arguments)?;
    read.notes.extend(note.clone());
    let overheads = Overheads {
        processes_bytes: arguments.processes,
        work_bytes: arguments.work,
        growth_bytes: arguments.growth,
        headroom_bytes: arguments.headroom,
    };
    let of_nodes = FitArguments { nodes: arguments.nodes.or(read.nodes), ..arguments.clone() };
    let nodes = nodes::query(&of_nodes)?;
    let fit = fit(&read.model, &read.engine, &overheads, &nodes.known);
    let Some(fit) = fit.filter(|_| nodes.silent.is_empty()) else {
        show::silent(&nodes, arguments.json);
        return Ok(Exit::Findings);
    };
    if arguments.json {
        outln!("{}", show::json(&read, &fit, &nodes));
    } else {
        show::text(&read, &fit, &nodes);
    }
    Ok(match fit.result {
        FitResult::Fits | FitResult::Tight => Exit::Fine,
        FitResult::DoesNotFit | FitResult::Unknown => Exit::Findings,
    })
}

/// Reads the size of a model or of a node: 100 is hardly meant to be 100 bytes, and 100B is.
fn large_bytes(text: &str) -> Result<u64, String> {
    let is_bare = text.trim_end().ends_with(|last: char| last.is_ascii_digit());
    match size_bytes(text)? {
        bytes @ 1..LEAST_BARE if is_bare => {
            Err(format!("are {bytes} bytes meant? Write {bytes}GiB, or {bytes}B if they are"))
        }
        bytes => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_can_have_the_size_of_a_model_is_named() {
        let command = FitArguments::augment_args(clap::Command::new("fit"));
        let error = command.try_get_matches_from(["fit"]).unwrap_err().to_string();
        for part in ["--weights <SIZE>", "--model <PATH>", "--like <NAME>", "COMMAND"] {
            assert!(error.contains(part), "{part} is not in {error}");
        }
    }

    #[test]
    fn a_small_number_needs_its_unit() {
        let asked = "are 100 bytes meant? Write 100GiB, or 100B if they are";
        assert_eq!(large_bytes("100"), Err(asked.to_owned()));
        assert_eq!(large_bytes("100B"), Ok(100));
        assert_eq!(large_bytes("100GiB"), Ok(100 << 30));
        assert_eq!(large_bytes("1048576"), Ok(1 << 20));
    }

    #[test]
    fn tokens_are_read_as_vllm_reads_them() {
        for (text, expected) in [
            ("131072", Some(131_072)),
            ("128k", Some(128_000)),
            ("128K", Some(131_072)),
            ("1m", Some(1_000_000)),
            ("1M", Some(1 << 20)),
            ("", None),
            ("K", None),
            ("0", None),
            ("-1", None),
            ("1.5k", None),
            ("99999999999999999999", None),
            ("99999999999999M", None),
            ("128Ki", None),
        ] {
            assert_eq!(tokens(text).ok(), expected, "{text}");
        }
    }
}
