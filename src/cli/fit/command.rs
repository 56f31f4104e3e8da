//! What to fit: the options of `fit`, and what they do not say, from the engine's command.

use std::path::PathBuf;

use super::FitArguments;
use super::model::{self, ModelFiles, element_thirty_seconds};
use crate::engines::{GivenOption, LaunchCommand, facts};
use crate::fit::{ACTIVATION_BYTES, FitEngine, KvCache, Model, Share};
use crate::model::{bytes_text, counted};

/// What to fit, and remarks for the reader.
#[derive(Debug)]
pub(super) struct ToFit {
    pub(super) model: Model,
    pub(super) engine: FitEngine,
    /// The command, if there is one.
    pub(super) command: Option<LaunchCommand>,
    /// The nodes that the command needs.
    pub(super) nodes: Option<u32>,
    /// The layers of the model, if they are known.
    pub(super) layers: Option<LayerCounts>,
    pub(super) notes: Vec<String>,
}

/// How many layers keep what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LayerCounts {
    pub(super) all: u64,
    pub(super) kv: u64,
    pub(super) windowed: u64,
    pub(super) window_tokens: u64,
    pub(super) state: u64,
}

/// Reads options, command and model.
///
/// # Errors
/// The command starts no known engine, or the model cannot be read.
pub(super) fn read(arguments: &FitArguments) -> anyhow::Result<ToFit> {
    let command = command(arguments)?;
    let mut notes = Vec::new();
    let files = files(arguments, command.as_ref(), &mut notes)?;
    let kept_as = kept_as(arguments, command.as_ref(), &mut notes);
    let (mut context, mut requests) = (arguments.context, arguments.requests.unwrap_or(1));
    if let Some(command) = command.as_ref().filter(|_| context.is_none()) {
        (context, requests) = of_command(command, arguments, files.as_ref(), &mut notes);
    }
    let kv_cache = match (arguments.kv_per_token, &files) {
        // How it can be divided is unknown; usually it can.
        (Some(bytes), _) => Some(KvCache::of_token(bytes, u32::MAX)),
        (None, Some(files)) => match files.kv_cache(&kept_as) {
            Ok(kv_cache) => Some(kv_cache),
            Err(why) if arguments.context.is_some() => anyhow::bail!(why),
            Err(why) => {
                notes.push(format!("the KV cache is not counted: {why}"));
                None
            }
        },
        (None, None) => None,
    };
    let is_whole = command.as_ref().is_some_and(|command| command.keeps_windows_whole);
    let kv_cache = match kv_cache {
        Some(kv_cache) if is_whole => Some(kv_cache.with_whole_windows()),
        kv_cache => kv_cache,
    };
    anyhow::ensure!(
        arguments.context.is_none() || kv_cache.is_some(),
        "how much KV cache a token takes depends on the model: name its folder with --model, or \
         write --kv-per-token (2 x layers x KV heads x head size x bytes: 320KiB for 80 layers, 8 \
         heads of 128, 16 bits)"
    );
    if let Some(files) = &files {
        notes.extend(files.weights.notes.iter().cloned());
    }
    if let Some(command) = &command {
        remarks(command, &mut notes);
    }
    let weights = files.as_ref().map(|files| &files.weights);
    let model = Model {
        weights_bytes: arguments.weights.or(weights.map(|of| of.bytes)).unwrap_or(0),
        mapped_bytes: arguments.mapped,
        largest_file_bytes: weights.map_or(0, |of| of.largest_bytes),
        kv_cache,
        context: context.filter(|_| kv_cache.is_some()),
        requests,
        kv_bytes: command.as_ref().and_then(|one| one.kv_bytes.as_ref()).map(|one| one.value),
    };
    anyhow::ensure!(
        model.mapped_bytes.is_none_or(|mapped| mapped <= model.weights_bytes),
        "--mapped is more than all weights, which are {}",
        bytes_text(model.weights_bytes)
    );
    let shape = files.as_ref().and_then(|files| files.shape.as_ref().ok());
    let is_bounded = command.as_ref().is_some_and(|command| command.bounds_media);
    let engine = command.as_ref().map_or_else(FitEngine::default, engine);
    let profiles_media = shape.is_some_and(|shape| shape.has_media) && !is_bounded;
    Ok(ToFit {
        model,
        engine: FitEngine { profiles_media, ..engine },
        nodes: command.as_ref().filter(|_| arguments.peers.is_none()).map(nodes),
        layers: shape.map(|shape| LayerCounts {
            all: shape.layers,
            kv: shape.kv_layers(),
            windowed: shape.windowed_layers,
            window_tokens: shape.window_tokens,
            state: shape.state_layers,
        }),
        command,
        notes,
    })
}

fn command(arguments: &FitArguments) -> anyhow::Result<Option<LaunchCommand>> {
    if arguments.command.is_empty() {
        return Ok(None);
    }
    let words: Vec<String> =
        arguments.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let command = LaunchCommand::read(&words);
    let command = command.ok_or_else(|| {
        anyhow::anyhow!(
            "the command behind -- starts no engine that is known here, such as vllm serve, python \
             -m sglang.launch_server, llama-server, or docker run with one of them: leave it out, \
             and write --weights SIZE"
        )
    })?;
    Ok(Some(command))
}

/// The model of --model, else that of the command if it is here.
fn files(
    arguments: &FitArguments,
    command: Option<&LaunchCommand>,
    notes: &mut Vec<String>,
) -> anyhow::Result<Option<ModelFiles>> {
    let is_consolidated = command.is_some_and(|command| command.loader.name == "mistral");
    if let Some(path) = &arguments.model {
        return model::read(path, is_consolidated).map(Some);
    }
    let Some(command) = command else { return Ok(None) };
    let named = command.model.as_deref().map(PathBuf::from);
    match named.filter(|path| path.exists()) {
        Some(path) => match model::read(&path, is_consolidated) {
            // The weights are given; of the model only the KV cache is missing.
            Err(error) if arguments.weights.is_some() => {
                notes.push(format!("the command's model is not read: {error:#}"));
                Ok(None)
            }
            read => read.map(Some),
        },
        None if arguments.weights.is_some() => Ok(None),
        None => Err(anyhow::anyhow!(
            "the command names {}: give its folder with --model, or the size of its weights with \
             --weights",
            command.model.as_deref().map_or_else(
                || "no model".to_owned(),
                |model| format!("the model {model}, which is no file or folder here")
            )
        )),
    }
}

/// The type of the KV cache.
fn kept_as(
    arguments: &FitArguments,
    command: Option<&LaunchCommand>,
    notes: &mut Vec<String>,
) -> String {
    if let Some(kind) = &arguments.kv_cache_dtype {
        return kind.clone();
    }
    let Some(given) = command.and_then(|command| command.kv_type.as_ref()) else {
        return "auto".to_owned();
    };
    if given.value != "auto" && element_thirty_seconds(&given.value).is_none() {
        notes.push(format!(
            "{} {} is not known here: the KV cache is counted as the model has it",
            given.option, given.value
        ));
    }
    given.value.clone()
}

/// Context and requests of the command.
fn of_command(
    command: &LaunchCommand,
    arguments: &FitArguments,
    files: Option<&ModelFiles>,
    notes: &mut Vec<String>,
) -> (Option<u64>, u64) {
    let requests = arguments.requests.unwrap_or(1);
    if let Some(context) = &command.context {
        return (Some(context.value), requests);
    }
    if let Some(all) = &command.all_tokens {
        return (Some(all.value), 1);
    }
    let facts = facts(command.engine);
    let longest = files.and_then(|files| files.shape.as_ref().ok()?.longest_tokens);
    let longest = longest.filter(|_| facts.needs_longest_request);
    if let Some(tokens) = longest.filter(|_| command.kv_bytes.is_none()) {
        notes.push(format!(
            "the command has no {}: {} needs KV cache for the {tokens} tokens that config.json \
             allows",
            facts.sizes.context.first().copied().unwrap_or_default(),
            facts.display_name()
        ));
        return (Some(tokens), requests);
    }
    (None, requests)
}

fn engine(command: &LaunchCommand) -> FitEngine {
    let given = command.share.as_ref().map(|share| Share { value: share.value, is_given: true });
    let usual = facts(command.engine).memory_share.and_then(|share| share.usual);
    let usual = usual.map(|usual| Share { value: usual.value, is_given: false });
    FitEngine {
        kind: Some(command.engine),
        loader: command.loader,
        batch_tokens: command.batch.as_ref().map(|batch| batch.value),
        share: given.or(usual),
        profiles_media: false,
    }
}

/// On unified memory each node has one GPU, and so one rank.
fn nodes(command: &LaunchCommand) -> u32 {
    let nodes = command.nodes.as_ref().map_or(command.ranks, |nodes| nodes.value);
    u32::try_from(nodes).unwrap_or(u32::MAX).clamp(1, super::MOST_NODES)
}

/// The options of the command that count.
fn read_of(command: &LaunchCommand) -> String {
    let count = |given: &Option<GivenOption<u64>>| {
        given.as_ref().map(|given| format!("{} {}", given.option, given.value))
    };
    let options = [
        count(&command.context),
        count(&command.all_tokens),
        command.kv_type.as_ref().map(|given| format!("{} {}", given.option, given.value)),
        command.share.as_ref().map(|given| format!("{} {:.2}", given.option, given.value)),
        count(&command.nodes),
    ];
    let options: Vec<String> = options.into_iter().flatten().collect();
    let name = facts(command.engine).display_name();
    let model = command.model.as_deref().unwrap_or("no model");
    let loader = command.loader.name;
    let options = if options.is_empty() { "no size".to_owned() } else { options.join(", ") };
    format!("read of the command: {name} with {model}, {options}, loader {loader}")
}

/// What the reader should know of the command.
fn remarks(command: &LaunchCommand, notes: &mut Vec<String>) {
    notes.push(read_of(command));
    let nodes = u64::from(nodes(command));
    if nodes > 1 {
        notes.push(format!(
            "the command has {}: one for each of {}",
            counted(command.ranks, "rank"),
            counted(nodes, "node")
        ));
    }
    if let Some(batch) = &command.batch {
        let activations = batch.value.saturating_mul(ACTIVATION_BYTES);
        notes.push(format!(
            "{} {}: activations of up to {} (0.65 MiB a token was measured)",
            batch.option,
            batch.value,
            bytes_text(activations)
        ));
    }
    if let Some(offload) = &command.offload_gib {
        notes.push(format!(
            "{} {} frees nothing on unified memory: the weights stay in the same memory",
            offload.option, offload.value
        ));
    }
    if let Some(bytes) = &command.kv_bytes {
        notes.push(format!(
            "{} sets the KV cache to {}, whatever the share of memory is",
            bytes.option,
            bytes_text(bytes.value)
        ));
    }
    if let Some(requests) = &command.requests {
        notes.push(format!(
            "{} {}: so many requests share the KV cache; --requests counts it for several",
            requests.option, requests.value
        ));
    }
    let name = command.engine.name();
    notes.extend(command.unread.iter().map(|what| format!("not read of {name}'s {what}")));
}
