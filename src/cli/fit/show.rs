//! Prints the result.

use serde_json::{Value, json};

use super::nodes::Nodes;
use crate::cli::history::printable;
use crate::cli::output::{errln, outln};
use crate::fit::{Fit, Model, NodeFit};
use crate::model::bytes_text;

pub(super) fn text(model: &Model, fit: &Fit, nodes: &Nodes) {
    outln!("{}", summary(model, fit));
    outln!();
    table(fit);
    outln!();
    for line in advice(fit) {
        outln!("{}", printable(&line));
    }
    notes(nodes);
}

/// Prints why nothing is known.
pub(super) fn silent(nodes: &Nodes, is_json: bool) {
    if is_json {
        outln!("{}", json!({ "fits": Value::Null, "silent": silent_json(nodes) }));
    }
    for (node, why) in &nodes.silent {
        errln!("umawarden: {}: {}", printable(node), printable(why));
    }
    errln!("umawarden: unknown whether it fits; umawarden must run on each of its nodes");
}

pub(super) fn json(model: &Model, fit: &Fit, nodes: &Nodes) -> Value {
    let mut object = json!(fit);
    object["weights_bytes"] = model.weights_bytes.into();
    object["kv_bytes_per_token"] = model.kv_token.map(|token| token.bytes).into();
    object["tokens"] = model.tokens.into();
    object["notes"] = nodes.notes.clone().into();
    object
}

fn silent_json(nodes: &Nodes) -> Vec<Value> {
    nodes.silent.iter().map(|(node, why)| json!({ "node": node, "why": why })).collect()
}

fn notes(nodes: &Nodes) {
    for note in &nodes.notes {
        outln!("note: {}", printable(note));
    }
}

fn summary(model: &Model, fit: &Fit) -> String {
    let mut what = format!("{} of weights", bytes_text(model.weights_bytes));
    if let Some((token, tokens)) = model.kv_token.zip(model.tokens) {
        let all = token.bytes.saturating_mul(tokens);
        what.push_str(&format!(" and {} of KV cache for {tokens} tokens", bytes_text(all)));
    }
    let on = match fit.nodes.len() {
        1 => "one node".to_owned(),
        count => format!("{count} nodes"),
    };
    let result = if fit.fits { "it fits" } else { "it does not fit" };
    format!("{what} on {on}: {result}.")
}

fn table(fit: &Fit) {
    let name_width = fit.nodes.iter().map(|node| printable(&node.node).chars().count()).max();
    let width = name_width.unwrap_or(0).max(4);
    outln!(
        "{:width$}  {:>9}  {:>9}  {:>9}  {:>9}  {:>9}  {:>9}  {:>9}  {:>9}  {:>5}  {:>6}",
        "NODE",
        "MEMORY",
        "CAN HAVE",
        "PROCESSES",
        "HEADROOM",
        "WEIGHTS",
        "WORK",
        "FOR KV",
        "LACKS",
        "VLLM",
        "SGLANG"
    );
    for node in &fit.nodes {
        let NodeFit { total_bytes, available_bytes, processes_bytes, headroom_bytes, .. } = node;
        let lacks = match node.lacks_bytes {
            0 => "-".to_owned(),
            lacks => bytes_text(lacks),
        };
        outln!(
            "{:width$}  {:>9}  {:>9}  {:>9}  {:>9}  {:>9}  {:>9}  {:>9}  {lacks:>9}  {:>5.2}  \
             {:>6.2}",
            printable(&node.node),
            bytes_text(*total_bytes),
            bytes_text(*available_bytes),
            bytes_text(*processes_bytes),
            bytes_text(*headroom_bytes),
            bytes_text(node.weights_bytes),
            bytes_text(node.work_bytes),
            bytes_text(node.kv_available_bytes),
            node.vllm_utilization,
            node.sglang_fraction,
        );
    }
}

fn advice(fit: &Fit) -> Vec<String> {
    let mut lines = Vec::new();
    let several = fit.nodes.len() > 1;
    let gives = |node: &NodeFit| (node.kv_available_bytes, node.vllm_utilization);
    let differ = fit.nodes.iter().any(|node| gives(node) != gives(&fit.nodes[0]));
    if differ {
        lines.push(format!(
            "The weakest node is {}: it has the least available memory.",
            fit.weakest
        ));
    }
    if fit.fits {
        let on_each = if several { " on each node" } else { "" };
        lines.push(format!(
            "vLLM: --gpu-memory-utilization {:.2} at most{on_each}; {:.2} suffices.",
            fit.vllm_utilization, fit.vllm_least
        ));
        lines.push(format!(
            "SGLang: --mem-fraction-static {:.2} at most{on_each}.",
            fit.sglang_fraction
        ));
    } else {
        let tightest = fit.nodes.iter().find(|node| node.vllm_utilization == fit.vllm_utilization);
        if let Some(tightest) = tightest.filter(|_| fit.fits_at_own_utilizations) {
            lines.push(format!(
                "vLLM takes the same share of each node, and {} allows no more than {:.2}: more \
                 memory there, or nodes of one size, would help.",
                tightest.node, tightest.vllm_utilization
            ));
        }
        lines.push(
            "What helps: more nodes, smaller weights (quantized), a shorter context, fewer \
             requests, KV cache of 8 bits, or other services elsewhere."
                .to_owned(),
        );
    }
    if let Some(tokens) = fit.most_tokens {
        lines.push(format!("The KV cache then holds {tokens} tokens."));
    }
    if several && fit.is_unbalanced {
        lines.push(
            "SGLang refuses nodes whose free memory differs by more than a tenth: free some on the \
             weakest, or set SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK=0."
                .to_owned(),
        );
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fit::{Node, Overheads, fit};

    const GIB: u64 = 1 << 30;

    fn node(name: &str, total_gib: u64, available_gib: u64) -> Node {
        let available_bytes = available_gib * GIB;
        Node {
            name: name.into(),
            total_bytes: total_gib * GIB,
            available_bytes,
            seen_least_bytes: available_bytes,
            seen_most_bytes: available_bytes,
        }
    }

    fn advice_for(weights_gib: u64, nodes: &[Node]) -> String {
        let model = Model { weights_bytes: weights_gib * GIB, kv_token: None, tokens: None };
        let nothing = Some(0);
        let overheads =
            Overheads { processes_bytes: nothing, work_bytes: nothing, headroom_bytes: nothing };
        advice(&fit(&model, &overheads, nodes).unwrap()).join("\n")
    }

    #[test]
    fn the_smallest_node_is_named_if_only_the_common_share_is_too_small() {
        let by_share = advice_for(180, &[node("spark", 121, 94), node("small", 96, 94)]);
        assert!(by_share.contains("spark allows no more than 0.77"), "{by_share}");
        for nodes in [
            [node("spark", 121, 94), node("small", 96, 80)],
            [node("spark", 121, 117), node("two", 121, 60)],
        ] {
            let by_memory = advice_for(180, &nodes);
            assert!(by_memory.contains("What helps"), "{by_memory}");
            assert!(!by_memory.contains("allows no more"), "{by_memory}");
        }
    }
}
