//! What to do with the result, in sentences.

#[cfg(test)]
mod tests;

use crate::cli::fit::command::{LayerCounts, ToFit};
use crate::cli::loader;
use crate::engines::{ENGINES, EngineFacts, MemoryShare, ShareOf, UsualShare, facts};
use crate::fit::{Cause, EngineShares, Fit, FitResult, NodeFit, ShareLimits};
use crate::model::bytes_text;

use super::range_text;

/// The worst peak that was measured, in hundredths of the weights: SGLang's
/// (github.com/sgl-project/sglang/pull/20580).
const WORST_PEAK_PERCENT: u64 = 193;

pub(super) fn advice(read: &ToFit, fit: &Fit) -> Vec<String> {
    let mut lines = Vec::new();
    let several = fit.nodes.len() > 1;
    let gives = |node: &NodeFit| (node.kv_available_bytes, node.shares.of_all.most);
    if fit.nodes.iter().any(|node| gives(node) != gives(&fit.nodes[0])) {
        lines.push(format!(
            "The weakest node is {}: it has the least available memory.",
            fit.weakest
        ));
    }
    let causes = fit.causes.iter().map(|cause| why(*cause, read, fit));
    lines.extend(causes.flatten());
    match fit.result {
        FitResult::Fits | FitResult::Tight => shares(read, fit, &mut lines),
        FitResult::DoesNotFit => help(read, fit, &mut lines),
        FitResult::Unknown => {}
    }
    lines.extend(mapping(read, fit));
    lines.extend(usual_share(read, fit));
    lines.extend(unknown_peak(read, fit).filter(|_| fit.result == FitResult::Tight));
    if let Some(command) = &read.command {
        lines.push(loader::sentence(command.engine, command.loader));
    }
    lines.extend(read.layers.map(layers_sentence));
    if let Some(tokens) = fit.most_tokens.filter(|_| fit.result != FitResult::Unknown) {
        lines.push(format!("The KV cache then holds {tokens} tokens."));
    }
    if several && fit.is_unbalanced {
        let balances = ENGINES.iter().filter_map(|facts| facts.balance);
        lines.extend(balances.map(|balance| balance.refusal.to_owned()));
    }
    lines
}

/// The engines that it may be which take a share of that memory.
fn sharing(read: &ToFit, memory: ShareOf) -> impl Iterator<Item = &'static EngineFacts> {
    read.engine.candidates().filter(move |facts| facts.takes_share_of(memory))
}

/// The shares of memory between which it runs.
fn shares(read: &ToFit, fit: &Fit, lines: &mut Vec<String>) {
    let on_each = if fit.nodes.len() > 1 { " on each node" } else { "" };
    // Only the command's own share may be wrong.
    let is_of_share = |cause: &Cause| matches!(cause, Cause::ShareTooLarge | Cause::ShareTooSmall);
    let is_clear = fit.causes.iter().all(is_of_share);
    for facts in sharing(read, ShareOf::AllMemory) {
        lines.push(share_of_all(facts, fit, is_clear, on_each));
    }
    for facts in sharing(read, ShareOf::FreeMemory) {
        lines.push(format!(
            "{}: {} {:.2} at most{on_each}; weights and KV cache alone are {:.2}.",
            facts.display_name(),
            facts.share_option(),
            fit.shares.of_free.most,
            fit.shares.of_free.least
        ));
    }
    let share = read.command.as_ref().and_then(|command| command.share.as_ref());
    if let Some(share) = share.filter(|_| fit.result == FitResult::Fits) {
        lines.push(format!("{} {:.2} is safe.", share.option, share.value));
    }
}

/// The shares of all memory between which an engine runs.
fn share_of_all(facts: &EngineFacts, fit: &Fit, is_clear: bool, on_each: &str) -> String {
    let (name, option) = (facts.display_name(), facts.share_option());
    let ShareLimits { least_possible, least, safe, most } = fit.shares.of_all;
    if least_possible > most {
        format!(
            "{name}: it needs {option} {least_possible:.2} or more, and {most:.2} is the most that \
             leaves memory for processes and headroom{on_each}: expect that it fails."
        )
    } else if is_clear {
        format!(
            "{name}: {option} {least:.2} suffices, {safe:.2} leaves memory for growth after the \
             start, {most:.2} at most{on_each}."
        )
    } else {
        format!(
            "{name}: {option} {most:.2} at most{on_each}; it needs between {least_possible:.2} and \
             {least:.2}, by the work that its log shows. Have `umawarden launch` start it, and \
             watch the first minute."
        )
    }
}

fn help(read: &ToFit, fit: &Fit, lines: &mut Vec<String>) {
    let most = fit.shares.of_all.most;
    let tightest = fit.nodes.iter().find(|node| node.shares.of_all.most == most);
    if let Some(tightest) = tightest.filter(|_| fit.fits_at_own_utilizations)
        && let Some(facts) = sharing(read, ShareOf::AllMemory).next()
        && fit.causes.contains(&Cause::Memory)
    {
        lines.push(format!(
            "{} takes the same share of each node, and {} allows no more than {most:.2}: more \
             memory there, or nodes of one size, would help.",
            facts.display_name(),
            tightest.node
        ));
    }
    lines.push(
        "What helps: more nodes, smaller weights (quantized), a shorter context, fewer requests, \
         KV cache of 8 bits, or other services elsewhere."
            .to_owned(),
    );
    if read.model.mapped_bytes.is_none() && read.command.is_none() {
        lines.push(
            "Weights that a loader leaves in a mapping of their files do not count, since the \
             kernel may evict them: --mapped SIZE, or the engine's command behind --, says so."
                .to_owned(),
        );
    }
}

/// How much of what is mapped can stay in memory.
fn mapping(read: &ToFit, fit: &Fit) -> Option<String> {
    let mapped = read.model.mapped_bytes?;
    let node = fit.nodes.iter().min_by_key(|node| node.available_bytes)?;
    let own = node.weights_bytes.saturating_add(node.work_least_bytes);
    let own = own.saturating_add(node.kv_wanted_bytes.unwrap_or(0));
    let left = node.available_bytes.saturating_sub(own);
    let of_node = mapped.div_ceil(fit.nodes.len().max(1) as u64);
    Some(match left >= of_node {
        true => format!(
            "The mapping ({}) can stay in the page cache, if the KV cache leaves that much.",
            bytes_text(of_node)
        ),
        false => format!(
            "Of the mapping ({}), up to {} can stay in the page cache; the rest is read from disk \
             at each use.",
            bytes_text(of_node),
            bytes_text(left)
        ),
    })
}

/// Why the result is not better.
fn why(cause: Cause, read: &ToFit, fit: &Fit) -> Option<String> {
    let node = fit.nodes.iter().max_by_key(|node| (node.lacks_bytes, node.may_lack_bytes))?;
    let share = read.command.as_ref().and_then(|command| command.share.as_ref());
    let given = share.map(|share| format!("{} {:.2}", share.option, share.value));
    let given = given.or_else(|| Some(usual_share_of(read)?.2)).unwrap_or_default();
    let engine = read.engine.kind.map_or("the engine", |kind| facts(kind).display_name());
    Some(match cause {
        Cause::Memory if node.lacks_bytes > 0 => return None,
        Cause::Memory => format!(
            "Up to {} is missing on {} if the engine takes as much as in the worst reports: work \
             of {} (activations, graphs, buffers), and {} more after its start.",
            bytes_text(node.may_lack_bytes),
            node.node,
            range_text(node.work_least_bytes, node.work_bytes),
            bytes_text(node.growth_bytes)
        ),
        Cause::LoadPeak => {
            let of_peak = |node: &&NodeFit| node.load_peak_bytes;
            let node = fit.nodes.iter().max_by_key(of_peak)?;
            format!(
                "While it loads, it may peak at {} on {}, and with its processes that is more than \
                 the {} that it can have.",
                bytes_text(node.load_peak_bytes?),
                node.node,
                bytes_text(node.available_bytes)
            )
        }
        Cause::ShareTooLarge => share_too_large(&given, engine, read, fit)?,
        Cause::ShareTooSmall if read.engine.takes_free_share() => format!(
            "{given} is below {:.2}, the least for weights and KV cache: {engine} refuses to \
             start.",
            fit.shares.of_free.least
        ),
        Cause::ShareTooSmall if fit.result == FitResult::DoesNotFit => format!(
            "{given} is below {:.2}, the least for weights, work and KV cache: {engine} refuses \
             to start.",
            fit.shares.of_all.least_possible
        ),
        Cause::ShareTooSmall => format!(
            "{given} is below {:.2}: with the most work that reports measured, too little is left \
             for the KV cache, and {engine} refuses to start.",
            fit.shares.of_all.least
        ),
        Cause::Batch => "No report ran so many tokens at the same time: 65536 exhausted a GB10, \
                         which then hung, where 32768 did not."
            .to_owned(),
        Cause::Profiling => {
            read.engine.candidates().find_map(|facts| facts.media_profile)?.to_owned()
        }
        Cause::Mapping => {
            "It does not fit as a whole, but its loader leaves a part of the weights \
                           in a mapping of their files, which the kernel may evict. How large that \
                           part is, is unknown: write it as --mapped SIZE."
                .to_owned()
        }
        Cause::Loader => "Neither the peak of its loader nor what it keeps is known here: compare \
                          with umawarden's figures while it loads, or use another loader."
            .to_owned(),
    })
}

fn share_too_large(given: &str, engine: &str, read: &ToFit, fit: &Fit) -> Option<String> {
    let share = read.engine.share?.value;
    let out_of_memory = "the node may run out of memory";
    let EngineShares { of_all, of_free } = fit.shares;
    let (limit, what) = if read.engine.takes_free_share() {
        (of_free.most, out_of_memory.to_owned())
    } else if share > of_all.most {
        (of_all.most, format!("{engine} may refuse to start, or {out_of_memory}"))
    } else {
        let grows = "what engines take after their start, such as autotuning, may exhaust the node";
        (of_all.safe, grows.to_owned())
    };
    Some(format!("{given} is not safe here: it is above {limit:.2}, and {what}."))
}

/// Warns of an engine's default share, which is that of a GPU with memory of its own.
fn usual_share(read: &ToFit, fit: &Fit) -> Option<String> {
    let (share, memory, text) = usual_share_of(read)?;
    let most = fit.shares.of(memory).most;
    let is_given = read.engine.share.is_some_and(|share| share.is_given);
    let is_named = fit.causes.contains(&Cause::ShareTooLarge);
    (!is_given && !is_named && share > most)
        .then(|| format!("{text} is not safe here: it is above {most:.2}."))
}

/// The default share of the first engine that it may be and that has one, and its text.
fn usual_share_of(read: &ToFit) -> Option<(f64, ShareOf, String)> {
    read.engine.candidates().find_map(|facts| {
        let MemoryShare { of, usual } = facts.memory_share?;
        let UsualShare { value, others } = usual?;
        let name = facts.display_name();
        Some((value, of, format!("{name}'s default of {value} ({others})")))
    })
}

/// Without a command, the peak while it loads is unknown.
fn unknown_peak(read: &ToFit, fit: &Fit) -> Option<String> {
    let node = fit.nodes.iter().max_by_key(|node| node.weights_bytes)?;
    let peak = node.weights_bytes.saturating_mul(WORST_PEAK_PERCENT) / 100;
    let all = peak.saturating_add(node.processes_bytes);
    (read.command.is_none() && all > node.available_bytes).then(|| {
        format!(
            "While it loads, some loaders peak at up to 1.9 times the weights, which would be {} \
             on {}: the engine's command behind -- says which loader it is.",
            bytes_text(peak),
            node.node
        )
    })
}

fn layers_sentence(layers: LayerCounts) -> String {
    let mut text = format!("{} of {} layers keep KV cache", layers.kv, layers.all);
    if layers.windowed > 0 {
        text.push_str(&format!(
            ", {} of them only that of the last {} tokens",
            layers.windowed, layers.window_tokens
        ));
    }
    if layers.state > 0 {
        text.push_str(&format!(
            "; {} keep a state of constant size for each request, which is small and not counted",
            layers.state
        ));
    }
    text.push('.');
    text
}
