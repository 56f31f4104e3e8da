//! What fits: how much of each node an engine may take, and what of its model that holds.
//!
//! A node gives what can be had now, as the gate counts it: what other services have taken is gone
//! already, and so is the kernel's reserve. Of that an engine gets what its own processes and some
//! room to move leave. Each share is told, so that whoever knows better can say so.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde::Serialize;

use crate::engines::sglang;

/// What an engine's own processes take on a node that is large enough, before and beside the model:
/// CUDA contexts, NCCL, Python. vLLM was seen to take 8 to 9 GiB on a DGX Spark before it looks
/// how much is free.
const PROCESSES_BYTES: u64 = 9 << 30;
/// The same on smaller nodes: this part of all memory.
const PROCESSES_PART: u64 = 12;

/// Activations, CUDA graphs and workspaces. It depends on the batch; vLLM logs it at its start.
const WORK_BYTES: u64 = 4 << 30;
const WORK_PART: u64 = 24;

/// What stays free for what comes and goes, as part of all memory.
const HEADROOM_PART: u64 = 32;

/// What an engine takes on every node beside weights and KV cache; `None`: by the node's size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overheads {
    /// Its own processes.
    pub processes_bytes: Option<u64>,
    /// Activations, graphs and workspaces.
    pub work_bytes: Option<u64>,
    /// What shall stay free.
    pub headroom_bytes: Option<u64>,
}

/// The KV cache of one token, over all layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct KvToken {
    /// So much in all.
    pub bytes: u64,
    /// Among so many ranks it can be divided; the rest hold copies.
    pub parts: u32,
}

/// What is to be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Model {
    /// The weights, which all nodes share evenly.
    pub weights_bytes: u64,
    /// `None` where nobody said.
    pub kv_token: Option<KvToken>,
    /// How many tokens shall be cached at the same time.
    pub tokens: Option<u64>,
}

/// A node's memory, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// What it is called.
    pub name: Arc<str>,
    /// All of it.
    pub total_bytes: u64,
    /// What can be had now: free above the reserve, or cache that goes at once.
    pub room_bytes: u64,
    /// The least that an engine counts as free: `MemAvailable` leaves out twice the reserve and
    /// more.
    pub seen_least_bytes: u64,
    /// The most: with all page cache.
    pub seen_most_bytes: u64,
}

/// What a node gives, and what it is asked for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NodeFit {
    /// Which.
    pub node: Arc<str>,
    /// All of its memory.
    pub total_bytes: u64,
    /// What can be had now.
    pub room_bytes: u64,
    /// What the engine's processes take.
    pub processes_bytes: u64,
    /// What shall stay free.
    pub headroom_bytes: u64,
    /// What is left for the model: weights, work and KV cache.
    pub budget_bytes: u64,
    /// The node's share of the weights.
    pub weights_bytes: u64,
    /// Activations, graphs and workspaces.
    pub work_bytes: u64,
    /// What is left for the KV cache at the utilization that all nodes are told.
    pub kv_room_bytes: u64,
    /// The node's part of the KV cache that is wanted, if that is known.
    pub kv_wanted_bytes: Option<u64>,
    /// What lacks: at its own `vllm_utilization`, or, where none lacks any so, at all nodes' one.
    pub lacks_bytes: u64,
    /// The largest `--gpu-memory-utilization` of vLLM that is safe here.
    pub vllm_utilization: f64,
    /// The largest `--mem-fraction-static` of SGLang.
    pub sglang_fraction: f64,
}

/// What all nodes together can do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fit {
    /// Whether what is wanted fits on each.
    pub fits: bool,
    /// Whether it would, if each were told its own utilization.
    pub fits_at_own_utilizations: bool,
    /// The node with the least room for a KV cache.
    pub weakest: Arc<str>,
    /// The largest utilization that is safe on every node, and the least that suffices there.
    pub vllm_utilization: f64,
    /// What suffices for weights, work and the KV cache that is wanted.
    pub vllm_least: f64,
    /// The largest fraction that is safe on every node.
    pub sglang_fraction: f64,
    /// How many tokens the KV cache can hold on the weakest node.
    pub most_tokens: Option<u64>,
    /// Whether SGLang, over several nodes, refuses them as unbalanced.
    pub is_unbalanced: bool,
    /// One after the other, as given.
    pub nodes: Vec<NodeFit>,
}

/// Says what fits. `None` without a node.
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
        node.kv_room_bytes = usable.saturating_sub(node.fixed_bytes());
        let share = if fits_at_own_utilizations { vllm_utilization } else { node.vllm_utilization };
        node.lacks_bytes = lacks_at(share, node);
    }
    let utilization = |node: &NodeFit| hundredths(node.vllm_utilization);
    let weakest = each
        .iter()
        .min_by_key(|node| (node.kv_room_bytes, utilization(node), u64::MAX - node.lacks_bytes))?;
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
            let all = u128::from(weakest.kv_room_bytes) * u128::from(parts(token));
            u64::try_from(all / u128::from(token.bytes)).unwrap_or(u64::MAX)
        }),
        is_unbalanced: (lowest as f64) < sglang::BALANCE * highest as f64,
        nodes: each,
    })
}

impl NodeFit {
    /// What is taken whatever the context.
    fn fixed_bytes(&self) -> u64 {
        self.weights_bytes.saturating_add(self.work_bytes)
    }

    fn wanted_bytes(&self) -> u64 {
        self.fixed_bytes().saturating_add(self.kv_wanted_bytes.unwrap_or(0))
    }
}

/// What a node gives by itself. What is left or lacks depends on the share that all are told.
fn node_fit(model: &Model, overheads: &Overheads, node: &Node, count: u32) -> NodeFit {
    let total = node.total_bytes;
    let processes =
        overheads.processes_bytes.unwrap_or_else(|| PROCESSES_BYTES.min(total / PROCESSES_PART));
    let work = overheads.work_bytes.unwrap_or_else(|| WORK_BYTES.min(total / WORK_PART));
    let headroom = overheads.headroom_bytes.unwrap_or(total / HEADROOM_PART);
    let budget = node.room_bytes.saturating_sub(processes).saturating_sub(headroom);
    // vLLM refuses to start where it does not find all of it available by then.
    let found = node.seen_least_bytes.saturating_sub(processes);
    let vllm_utilization = share_down(budget.min(found), total);
    NodeFit {
        node: Arc::clone(&node.name),
        total_bytes: total,
        room_bytes: node.room_bytes,
        processes_bytes: processes,
        headroom_bytes: headroom,
        budget_bytes: budget,
        weights_bytes: model.weights_bytes.div_ceil(u64::from(count.max(1))),
        work_bytes: work,
        kv_room_bytes: 0,
        kv_wanted_bytes: model.kv_token.zip(model.tokens).map(|(token, tokens)| {
            let parts = u64::from(token.parts.clamp(1, count.max(1)));
            token.bytes.saturating_mul(tokens).div_ceil(parts)
        }),
        lacks_bytes: 0,
        vllm_utilization,
        // What it calls static is weights and KV cache, of what it finds free at its start.
        sglang_fraction: share_down(budget.saturating_sub(work), node.seen_most_bytes),
    }
}

/// The hundredths of a share that `share_down` made.
fn hundredths(share: f64) -> u64 {
    (share * 100.0).round() as u64
}

/// A share of it. Engines are told in hundredths, and what is lost by that holds nothing; it is
/// reckoned in whole ones, since a fraction in binary would lose or add bytes.
fn usable_bytes(share: f64, whole: u64) -> u64 {
    let bytes = u128::from(whole) * u128::from(hundredths(share)) / 100;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// In hundredths, as engines are told, and never more than it is.
fn share_down(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 0.0,
        _ => (u128::from(part.min(whole)) * 100 / u128::from(whole)) as f64 / 100.0,
    }
}

/// The same, and never less.
fn share_up(part: u64, whole: u64) -> f64 {
    match (part, whole) {
        (0, _) => 0.0,
        (_, 0) => f64::INFINITY,
        _ => (u128::from(part) * 100).div_ceil(u128::from(whole)) as f64 / 100.0,
    }
}
