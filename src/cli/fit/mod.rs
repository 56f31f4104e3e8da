//! `umawarden fit`.

mod model;
mod nodes;
mod show;

use std::path::PathBuf;

use clap::Args;

use super::Exit;
use super::gate::NodeArguments;
use crate::cli::output::outln;
use crate::config::measure::size_bytes;
use crate::fit::{KvToken, Model, Overheads, fit};
use crate::model::PeerAddress;

/// The most nodes of an engine.
const MOST_NODES: u32 = 1024;

/// Arguments of `umawarden fit`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct FitArguments {
    /// The size of the weights, for example 130GiB [default: the files of --model].
    #[arg(long, value_name = "SIZE", value_parser = size_bytes, required_unless_present = "model")]
    weights: Option<u64>,

    /// The model's folder: its files have the size of the weights, its config.json the size of KV
    /// cache for a token.
    #[arg(long, value_name = "FOLDER")]
    model: Option<PathBuf>,

    /// The number of nodes [default: this one and --peers].
    #[arg(long, value_name = "NUMBER", value_parser = nodes)]
    nodes: Option<u32>,

    /// The other nodes: HOST or HOST:PORT (9942 unless given) of the umawarden that runs there,
    /// several with commas [without a value: those of cluster in the configuration file]. Nodes
    /// that are neither are taken to be like this one.
    #[arg(long, value_name = "NODES", value_delimiter = ',', num_args = 0..=1)]
    peers: Option<Vec<PeerAddress>>,

    /// Tokens of one request: 131072, 128k (thousands) or 128K (times 1024), as vLLM reads them.
    #[arg(long, value_name = "TOKENS", value_parser = tokens)]
    context: Option<u64>,

    /// Requests of this length that are cached at the same time.
    #[arg(long, value_name = "NUMBER", default_value_t = 1, requires = "context")]
    requests: u64,

    /// The KV cache of one token, over all layers [with --model: from its config.json].
    #[arg(long, value_name = "SIZE", value_parser = size_bytes)]
    kv_per_token: Option<u64>,

    /// The type of numbers in the KV cache, as the engine's own option.
    #[arg(long, value_name = "TYPE", default_value = "auto")]
    kv_cache_dtype: model::KvCacheType,

    /// Memory of the engine's processes on each node, without the model [default: 9GiB, and a
    /// twelfth of a smaller node].
    #[arg(long, value_name = "SIZE", value_parser = size_bytes)]
    processes: Option<u64>,

    /// Activations and CUDA graphs [default: 4GiB, and a 24th of a smaller node].
    #[arg(long, value_name = "SIZE", value_parser = size_bytes)]
    work: Option<u64>,

    /// Memory that stays free for other uses [default: a 32nd of the node].
    #[arg(long, value_name = "SIZE", value_parser = size_bytes)]
    headroom: Option<u64>,

    /// Plan for nodes with this much memory instead of reading this one.
    #[arg(long, value_name = "SIZE", value_parser = size_bytes, conflicts_with = "peers")]
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
}

const AFTER_HELP: &str = "\
Reads this node's available memory, queries its peers for theirs, and shows whether a model fits,
which node is the weakest, and the largest --gpu-memory-utilization (vLLM) or --mem-fraction-static
(SGLang) that is safe on all of them. Available memory is that of `umawarden gate`: memory of other
services, of running engines too, and the kernel's reserve are excluded. The engine's own processes
and a headroom are subtracted.

The KV cache is divided among the nodes as tensor parallelism does it: by KV heads, as far as there
are enough; latent attention (DeepSeek's) keeps all of it on each node. The defaults of --processes,
--work and --headroom are experience, not measurement: an engine logs at its start what it really
took.

Exit codes: 0 it fits; 1 it does not, or a node did not respond; 2 invalid arguments.

  umawarden fit --weights 130GiB --nodes 2 --context 128K --kv-per-token 80KiB
  umawarden fit --model /models/deepseek --peers spark-2 --context 64K --requests 4
  umawarden fit --model /models/qwen --memory 121GiB --nodes 2";

fn nodes(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| (1..=MOST_NODES).contains(number));
    number.ok_or_else(|| format!("write a number from 1 to {MOST_NODES}"))
}

/// A number of tokens, in vLLM's form.
fn tokens(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.char_indices().next_back() {
        Some((at, 'k')) => (&text[..at], 1000),
        Some((at, 'K')) => (&text[..at], 1 << 10),
        Some((at, 'm')) => (&text[..at], 1_000_000),
        Some((at, 'M')) => (&text[..at], 1 << 20),
        _ => (text, 1),
    };
    let number: Option<u64> = digits.parse().ok();
    number
        .and_then(|number| number.checked_mul(unit))
        .filter(|number| *number > 0)
        .ok_or_else(|| "write a number of tokens: 131072, 128k or 128K".to_owned())
}

/// Runs the command.
///
/// # Errors
/// The model, the node or the configuration cannot be read.
pub fn execute(arguments: &FitArguments) -> anyhow::Result<Exit> {
    let folder = arguments.model.as_deref().map(model::read_folder).transpose()?;
    let kv_token = match (arguments.kv_per_token, &folder) {
        // How it can be divided is unknown; usually it can.
        (Some(bytes), _) => Some(KvToken { bytes, parts: u32::MAX }),
        (None, Some(folder)) => Some(folder.kv_token(arguments.kv_cache_dtype)?),
        (None, None) => None,
    };
    anyhow::ensure!(
        arguments.context.is_none() || kv_token.is_some(),
        "how much KV cache a token takes depends on the model: name its folder with --model, or \
         write --kv-per-token (2 x layers x KV heads x head size x bytes: 320KiB for 80 layers, 8 \
         heads of 128, 16 bits)"
    );
    let weights = arguments.weights.or(folder.map(|folder| folder.weights_bytes)).unwrap_or(0);
    let model = Model {
        weights_bytes: weights,
        kv_token,
        tokens: arguments.context.map(|context| context.saturating_mul(arguments.requests)),
    };
    let overheads = Overheads {
        processes_bytes: arguments.processes,
        work_bytes: arguments.work,
        headroom_bytes: arguments.headroom,
    };
    let nodes = nodes::query(arguments)?;
    let Some(fit) = fit(&model, &overheads, &nodes.known).filter(|_| nodes.silent.is_empty())
    else {
        show::silent(&nodes, arguments.json);
        return Ok(Exit::Findings);
    };
    if arguments.json {
        outln!("{}", show::json(&model, &fit, &nodes));
    } else {
        show::text(&model, &fit, &nodes);
    }
    Ok(if fit.fits { Exit::Fine } else { Exit::Findings })
}

#[cfg(test)]
mod tests {
    use super::*;

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
