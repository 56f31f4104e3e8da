//! Whether an engine fits: its share of each node, and what of its model that holds.
//!
//! Available memory is that of the gate: memory of other services and the kernel's reserve are
//! excluded. The engine's own processes and a headroom are subtracted. Every share is reported, so
//! that it can be overridden.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde::Serialize;

use crate::engines::sglang;

/// Memory of an engine's own processes on a large node, without the model: CUDA contexts, NCCL,
/// Python. vLLM took 8 to 9 GiB on a DGX Spark before it measured free memory.
const PROCESSES_BYTES: u64 = 9 << 30;
/// On smaller nodes: this part of all memory.
const PROCESSES_PART: u64 = 12;

/// Activations, CUDA graphs and workspaces. It depends on the batch; vLLM logs it at its start.
const WORK_BYTES: u64 = 4 << 30;
const WORK_PART: u64 = 24;

/// The headroom, as part of all memory.
const HEADROOM_PART: u64 = 32;

/// Memory of an engine on every node without weights and KV cache; `None`: by the node's size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overheads {
    /// CUDA contexts, NCCL, Python.
    pub processes_bytes: Option<u64>,
    /// Activations, graphs and workspaces.
    pub work_bytes: Option<u64>,
    /// Memory that stays free.
    pub headroom_bytes: Option<u64>,
}

/// The KV cache of one token, over all layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct KvToken {
    /// In total.
    pub bytes: u64,
    /// The most ranks that can divide it; further ranks hold copies.
    pub parts: u32,
}

/// The model and its use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Model {
    /// The weights, which all nodes share evenly.
    pub weights_bytes: u64,
    /// `None` if unknown.
    pub kv_token: Option<KvToken>,
    /// Tokens that are cached at the same time.
    pub tokens: Option<u64>,
}

/// A node's memory, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The host name, or the address of a peer.
    pub name: Arc<str>,
    /// `MemTotal`.
    pub total_bytes: u64,
    /// Available memory: free above the reserve, and clean cache.
    pub available_bytes: u64,
    /// The least that an engine measures as free: `MemAvailable` excludes twice the reserve and
    /// more.
    pub seen_least_bytes: u64,
    /// The most that an engine measures as free: with all page cache.
    pub seen_most_bytes: u64,
}

/// What a node has, and what the engine needs on it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NodeFit {
    /// The host name, or the address of a peer.
    pub node: Arc<str>,
    /// `MemTotal`.
    pub total_bytes: u64,
    /// Available memory.
    pub available_bytes: u64,
    /// Memory of the engine's processes.
    pub processes_bytes: u64,
    /// Memory that stays free.
    pub headroom_bytes: u64,
    /// Memory for the model: weights, work and KV cache.
    pub budget_bytes: u64,
    /// The node's share of the weights.
    pub weights_bytes: u64,
    /// Activations, graphs and workspaces.
    pub work_bytes: u64,
    /// Memory for the KV cache at the utilization that is common to all nodes.
    pub kv_available_bytes: u64,
    /// The node's part of the requested KV cache, if known.
    pub kv_wanted_bytes: Option<u64>,
    /// The missing memory: at its own `vllm_utilization`, or, if none is missing on any node, at
    /// the common one.
    pub lacks_bytes: u64,
    /// The largest `--gpu-memory-utilization` of vLLM that is safe here.
    pub vllm_utilization: f64,
    /// The largest `--mem-fraction-static` of SGLang that is safe here.
    pub sglang_fraction: f64,
}

/// The result for all nodes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fit {
    /// Whether it fits on each node.
    pub fits: bool,
    /// Whether it would fit with a utilization of its own for each node.
    pub fits_at_own_utilizations: bool,
    /// The node with the least memory for a KV cache.
    pub weakest: Arc<str>,
    /// The largest utilization that is safe on every node.
    pub vllm_utilization: f64,
    /// The utilization that suffices for weights, work and the requested KV cache.
    pub vllm_least: f64,
    /// The largest fraction that is safe on every node.
    pub sglang_fraction: f64,
    /// Tokens that the KV cache holds on the weakest node.
    pub most_tokens: Option<u64>,
    /// Whether SGLang refuses several nodes as unbalanced.
    pub is_unbalanced: bool,
    /// In the given order.
    pub nodes: Vec<NodeFit>,
}

/// Computes whether it fits. `None` without a node.
pub fn fit(model: &Model, overheads: &Overheads, nodes: &[Node]) -> Option<Fit> {
    let count = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
    let mut each: Vec<NodeFit> =
        nodes.iter().map(|node| node_fit(model, overheads, node, count)).collect();
    let least = |of: fn(&NodeFit) -> f64| each.iter().map(of).fold(1.0, f64::min);
    let vllm_utilization = least(|node| node.vllm_utilization);
    let sglang_fraction = least(|node| node.sglang_fraction);
    let lacks_at = |share: f64, node: &NodeFit| {
        node.wanted_bytes().saturating_sub(usable_bytes(share, node.total_bytes))
    };
    let fits_at_own_utilizations =
        each.iter().all(|node| lacks_at(node.vllm_utilization, node) == 0);
    for node in &mut each {
        let usable = usable_bytes(vllm_utilization, node.total_bytes);
        node.kv_available_bytes = usable.saturating_sub(node.fixed_bytes());
        let share = if fits_at_own_utilizations { vllm_utilization } else { node.vllm_utilization };
        node.lacks_bytes = lacks_at(share, node);
    }
    let utilization = |node: &NodeFit| hundredths(node.vllm_utilization);
    let weakest = each.iter().min_by_key(|node| {
        (node.kv_available_bytes, utilization(node), u64::MAX - node.lacks_bytes)
    })?;
    let parts = |token: KvToken| u64::from(token.parts.clamp(1, count.max(1)));
    let seen = |of: fn(u64, u64) -> u64| nodes.iter().map(|node| node.seen_most_bytes).reduce(of);
    let (lowest, highest) = (seen(u64::min)?, seen(u64::max)?);
    let needed = |node: &NodeFit| share_up(node.wanted_bytes(), node.total_bytes);
    Some(Fit {
        fits: each.iter().all(|node| node.lacks_bytes == 0),
        fits_at_own_utilizations,
        weakest: Arc::clone(&weakest.node),
        vllm_utilization,
        vllm_least: each.iter().map(needed).fold(0.0, f64::max),
        sglang_fraction,
        most_tokens: model.kv_token.filter(|token| token.bytes > 0).map(|token| {
            let all = u128::from(weakest.kv_available_bytes) * u128::from(parts(token));
            u64::try_from(all / u128::from(token.bytes)).unwrap_or(u64::MAX)
        }),
        is_unbalanced: (lowest as f64) < sglang::BALANCE * highest as f64,
        nodes: each,
    })
}

impl NodeFit {
    /// Memory that does not depend on the context.
    fn fixed_bytes(&self) -> u64 {
        self.weights_bytes.saturating_add(self.work_bytes)
    }

    fn wanted_bytes(&self) -> u64 {
        self.fixed_bytes().saturating_add(self.kv_wanted_bytes.unwrap_or(0))
    }
}

/// The result of a node by itself. What is left or missing depends on the common utilization.
fn node_fit(model: &Model, overheads: &Overheads, node: &Node, count: u32) -> NodeFit {
    let total = node.total_bytes;
    let processes =
        overheads.processes_bytes.unwrap_or_else(|| PROCESSES_BYTES.min(total / PROCESSES_PART));
    let work = overheads.work_bytes.unwrap_or_else(|| WORK_BYTES.min(total / WORK_PART));
    let headroom = overheads.headroom_bytes.unwrap_or(total / HEADROOM_PART);
    let budget = node.available_bytes.saturating_sub(processes).saturating_sub(headroom);
    // vLLM refuses to start if less is available then.
    let found = node.seen_least_bytes.saturating_sub(processes);
    let vllm_utilization = share_down(budget.min(found), total);
    NodeFit {
        node: Arc::clone(&node.name),
        total_bytes: total,
        available_bytes: node.available_bytes,
        processes_bytes: processes,
        headroom_bytes: headroom,
        budget_bytes: budget,
        weights_bytes: model.weights_bytes.div_ceil(u64::from(count.max(1))),
        work_bytes: work,
        kv_available_bytes: 0,
        kv_wanted_bytes: model.kv_token.zip(model.tokens).map(|(token, tokens)| {
            let parts = u64::from(token.parts.clamp(1, count.max(1)));
            token.bytes.saturating_mul(tokens).div_ceil(parts)
        }),
        lacks_bytes: 0,
        vllm_utilization,
        // Its static memory is weights and KV cache, as a share of free memory at its start.
        sglang_fraction: share_down(budget.saturating_sub(work), node.seen_most_bytes),
    }
}

/// The hundredths of a share, rounded down.
fn hundredths(share: f64) -> u64 {
    (share * 100.0).round() as u64
}

/// A share in whole hundredths, as in the engines' options: a binary fraction would lose or add
/// bytes.
fn usable_bytes(share: f64, whole: u64) -> u64 {
    let bytes = u128::from(whole) * u128::from(hundredths(share)) / 100;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Rounded down to hundredths, as in the engines' options.
fn share_down(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 0.0,
        _ => (u128::from(part.min(whole)) * 100 / u128::from(whole)) as f64 / 100.0,
    }
}

/// Rounded up to hundredths.
fn share_up(part: u64, whole: u64) -> f64 {
    match (part, whole) {
        (0, _) => 0.0,
        (_, 0) => f64::INFINITY,
        _ => (u128::from(part) * 100).div_ceil(u128::from(whole)) as f64 / 100.0,
    }
}
