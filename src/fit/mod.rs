//! Whether an engine fits: its share of each node, and what of its model that holds.
//!
//! Available memory is that of the gate: memory of other services and the kernel's reserve are
//! excluded. What an engine takes beside weights and KV cache is known as a range only: reports
//! differ by 10 GiB and more. A model fits if it fits at the upper end of every range; it does not
//! fit if it does not even at the lower end; between them it is tight. Every share is reported, so
//! that it can be overridden.

mod overheads;
mod share;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde::Serialize;

use crate::engines::loaders::{Loader, USUAL, WeightResidence};
use crate::engines::{ENGINES, EngineFacts, ShareOf, facts};
use crate::model::EngineKind;
pub use overheads::{ACTIVATION_BYTES, Overheads, Span};
pub use share::{EngineShares, NodeShares, ShareLimits, sharing_engines};
use share::{hundredths, share_down, share_up, usable_bytes};

/// So many tokens at the same time ran on a GB10, and twice as many exhausted it
/// (github.com/AEON-7/vllm-dflash issue 1).
const RAN_BATCH: u64 = 32_768;

/// The KV cache of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KvCache {
    /// Of one token, over all layers that keep all tokens.
    pub token_bytes: u64,
    /// Of one token in the window, over all layers that keep the last tokens only.
    pub window_token_bytes: u64,
    /// The window, in tokens.
    pub window_tokens: u64,
    /// The most ranks that can divide it; further ranks hold copies.
    pub parts: u32,
}

impl KvCache {
    /// A model whose layers all keep all tokens.
    pub fn of_token(token_bytes: u64, parts: u32) -> Self {
        Self { token_bytes, parts, ..Self::default() }
    }

    /// The same, where layers with a window keep all tokens.
    pub fn with_whole_windows(self) -> Self {
        let token_bytes = self.token_bytes.saturating_add(self.window_token_bytes);
        Self::of_token(token_bytes, self.parts)
    }

    /// What layers with a window keep of a request.
    fn window_bytes(&self, context: u64) -> u64 {
        self.window_token_bytes.saturating_mul(context.min(self.window_tokens))
    }

    /// Of requests of so many tokens each.
    pub fn bytes(&self, context: u64, requests: u64) -> u64 {
        let one = self.token_bytes.saturating_mul(context);
        one.saturating_add(self.window_bytes(context)).saturating_mul(requests)
    }

    /// Tokens that so much of it holds. `None`: no layer keeps more for more tokens.
    fn tokens(&self, bytes: u128, context: u64, requests: u64) -> Option<u64> {
        let windows = u128::from(self.window_bytes(context)) * u128::from(requests);
        let tokens = bytes.saturating_sub(windows).checked_div(u128::from(self.token_bytes))?;
        Some(u64::try_from(tokens).unwrap_or(u64::MAX))
    }
}

/// The model and its use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Model {
    /// The weights, which all nodes share evenly.
    pub weights_bytes: u64,
    /// The part of them that stays in a mapping of its files, if that is known.
    pub mapped_bytes: Option<u64>,
    /// The largest of its files; 0 if unknown.
    pub largest_file_bytes: u64,
    /// `None` if unknown.
    pub kv_cache: Option<KvCache>,
    /// Tokens of a request.
    pub context: Option<u64>,
    /// Requests that are cached at the same time.
    pub requests: u64,
    /// The KV cache of a rank, if it is given instead.
    pub kv_bytes: Option<u64>,
}

/// The engine, as far as its command says.
#[derive(Clone, Copy, Debug)]
pub struct FitEngine {
    /// `None` without a command.
    pub kind: Option<EngineKind>,
    /// How it reads weights.
    pub loader: &'static Loader,
    /// Tokens that it computes at the same time.
    pub batch_tokens: Option<u64>,
    /// Its share of memory, given or usual.
    pub share: Option<Share>,
    /// Whether the model takes images or sound, and no option bounds them.
    pub profiles_media: bool,
}

/// The share of memory that the options let an engine take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// Between 0 and 1.
    pub value: f64,
    /// Whether the command says it, or it is the engine's default.
    pub is_given: bool,
}

impl Default for FitEngine {
    fn default() -> Self {
        Self { kind: None, loader: &USUAL, batch_tokens: None, share: None, profiles_media: false }
    }
}

impl FitEngine {
    /// The facts of the command's engine; without a command, of all engines.
    pub fn candidates(&self) -> impl Iterator<Item = &'static EngineFacts> {
        let kind = self.kind;
        ENGINES.iter().copied().filter(move |facts| kind.is_none_or(|kind| facts.kind == kind))
    }

    /// Whether it takes the same share of all memory of each node. Without a command it may.
    fn takes_common_share(&self) -> bool {
        self.candidates().any(|facts| facts.takes_share_of(ShareOf::AllMemory))
    }

    /// Whether it is known to take a share of the memory that is free at its start.
    pub fn takes_free_share(&self) -> bool {
        self.kind.is_some_and(|kind| facts(kind).takes_share_of(ShareOf::FreeMemory))
    }

    /// Whether it may profile images or sound without a bound.
    fn may_profile_media(&self) -> bool {
        self.profiles_media && self.candidates().any(|facts| facts.media_profile.is_some())
    }
}

/// A node's memory, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FitNode {
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

/// Whether it fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FitResult {
    /// At the upper end of every range.
    Fits,
    /// At the lower end, but not at the upper end of every range.
    Tight,
    /// Not even at the lower end.
    DoesNotFit,
    /// Nothing is known of what its loader keeps or costs.
    Unknown,
}

/// Why the result is not [`FitResult::Fits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Memory for weights, work, KV cache, processes and growth.
    Memory,
    /// Memory while it loads.
    LoadPeak,
    /// The share that the command has is too large for the node.
    ShareTooLarge,
    /// The share that the command has may be too small for the model.
    ShareTooSmall,
    /// No report ran so many tokens at the same time.
    Batch,
    /// The model takes images or sound, and nothing bounds what the engine takes to profile that.
    Profiling,
    /// A part of the weights stays in a mapping, and how large it is, is unknown.
    Mapping,
    /// The loader is unknown.
    Loader,
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
    /// Memory of the engine's processes, at most.
    pub processes_bytes: u64,
    /// Memory that stays free.
    pub headroom_bytes: u64,
    /// Memory that the engine may take after its start beside its share, at most.
    pub growth_bytes: u64,
    /// Memory for the model: weights, work and KV cache.
    pub budget_bytes: u64,
    /// The node's share of the weights, without what stays in a mapping.
    pub weights_bytes: u64,
    /// Activations, graphs, workspaces and buffers of the loader, at least.
    pub work_least_bytes: u64,
    /// The same, at most.
    pub work_bytes: u64,
    /// The most memory of the model while it loads. `None` if nothing is known of the loader.
    pub load_peak_bytes: Option<u64>,
    /// Memory for the KV cache at the share that the command has, else at the largest that is
    /// common to all nodes; with the most work.
    pub kv_available_bytes: u64,
    /// The node's part of the requested KV cache, if known.
    pub kv_wanted_bytes: Option<u64>,
    /// The missing memory, if every range is at its lower end: at its own share, or, if none is
    /// missing on any node, at the common one.
    pub lacks_bytes: u64,
    /// The missing memory, if every range is at its upper end.
    pub may_lack_bytes: u64,
    /// The largest shares that engines can take on it.
    pub shares: EngineShares<NodeShares>,
}

/// The result for all nodes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fit {
    /// Whether it fits or is tight on each node.
    pub fits: bool,
    /// The result for all nodes.
    pub result: FitResult,
    /// Why it is not better.
    pub causes: Vec<Cause>,
    /// Whether it would fit with a utilization of its own for each node.
    pub fits_at_own_utilizations: bool,
    /// The node with the least memory for a KV cache.
    pub weakest: Arc<str>,
    /// The shares that engines need, and can take, on all nodes.
    pub shares: EngineShares<ShareLimits>,
    /// Tokens that the KV cache holds on the weakest node, over all requests.
    pub most_tokens: Option<u64>,
    /// Whether SGLang refuses several nodes as unbalanced.
    pub is_unbalanced: bool,
    /// In the given order.
    pub nodes: Vec<NodeFit>,
}

/// Computes whether it fits. `None` without a node.
pub fn fit(
    model: &Model,
    engine: &FitEngine,
    overheads: &Overheads,
    nodes: &[FitNode],
) -> Option<Fit> {
    let needs: Vec<EngineNeeds> = nodes
        .iter()
        .map(|node| EngineNeeds::of(model, engine, overheads, node, nodes.len()))
        .collect();
    let mut each: Vec<NodeFit> =
        needs.iter().zip(nodes).map(|(needs, node)| needs.node_fit(node)).collect();
    let shares = common_shares(&needs, nodes, &each);
    let of_all = shares.of_all;
    let ceiling = needs.iter().map(|needs| needs.ceiling).fold(1.0, f64::min);
    let fits_at_own_utilizations = needs.iter().all(|needs| needs.lacks_at(needs.ceiling) == 0);
    for (node, needs) in each.iter_mut().zip(&needs) {
        let own = !engine.takes_common_share() || !fits_at_own_utilizations;
        node.lacks_bytes = needs.lacks_at(if own { needs.ceiling } else { ceiling });
        node.may_lack_bytes = needs.may_lack(engine.takes_common_share().then_some(of_all.safe));
        node.kv_available_bytes = needs.kv_available(engine, of_all.most);
    }
    let share = |node: &NodeFit| hundredths(node.shares.of_all.most);
    let weakest = each
        .iter()
        .min_by_key(|node| (node.kv_available_bytes, share(node), u64::MAX - node.lacks_bytes))?;
    let bounds = if engine.takes_free_share() {
        // It takes its share of what is free then, whatever that is.
        ShareBounds { ceiling: 1.0, limits: shares.of_free }
    } else {
        ShareBounds { ceiling, limits: of_all }
    };
    let (result, causes) = overall_result(model, engine, &needs, &each, &bounds);
    Some(Fit {
        fits: matches!(result, FitResult::Fits | FitResult::Tight),
        result,
        causes,
        fits_at_own_utilizations,
        weakest: Arc::clone(&weakest.node),
        shares,
        most_tokens: model.kv_cache.and_then(|kv_cache| {
            let parts = u128::from(kv_cache.parts.max(1)).min(nodes.len() as u128);
            let all = u128::from(weakest.kv_available_bytes) * parts;
            kv_cache.tokens(all, model.context.unwrap_or(u64::MAX), model.requests.max(1))
        }),
        is_unbalanced: is_unbalanced(nodes),
        nodes: each,
    })
}

/// The shares that engines need, and can take, on all nodes.
fn common_shares(
    needs: &[EngineNeeds],
    nodes: &[FitNode],
    each: &[NodeFit],
) -> EngineShares<ShareLimits> {
    let with = |work: fn(&Span) -> u64| {
        let shares = needs.iter().map(|one| share_up(one.shared_bytes(work), one.total));
        shares.fold(0.0, f64::max)
    };
    let static_share = |(needs, node): (&EngineNeeds, &FitNode)| {
        share_up(needs.resident.saturating_add(needs.kv.unwrap_or(0)), node.seen_most_bytes)
    };
    let least_of_free = needs.iter().zip(nodes).map(static_share).fold(0.0, f64::max);
    EngineShares {
        of_all: ShareLimits {
            least_possible: with(|work| work.least),
            least: with(|work| work.most),
            safe: least(each, |node| node.shares.of_all.safe),
            most: least(each, |node| node.shares.of_all.most),
        },
        of_free: ShareLimits {
            least_possible: least_of_free,
            least: least_of_free,
            safe: least(each, |node| node.shares.of_free.safe),
            most: least(each, |node| node.shares.of_free.most),
        },
    }
}

/// Whether an engine refuses these nodes as unbalanced.
fn is_unbalanced(nodes: &[FitNode]) -> bool {
    let seen = |of: fn(u64, u64) -> u64| nodes.iter().map(|node| node.seen_most_bytes).reduce(of);
    let Some((lowest, highest)) = seen(u64::min).zip(seen(u64::max)) else { return false };
    let mut balances = ENGINES.iter().filter_map(|facts| facts.balance);
    balances.any(|balance| (lowest as f64) < balance.least * highest as f64)
}

fn least(nodes: &[NodeFit], of: fn(&NodeFit) -> f64) -> f64 {
    nodes.iter().map(of).fold(1.0, f64::min)
}

/// The shares between which a command's own must be.
struct ShareBounds {
    /// The largest that any report makes possible.
    ceiling: f64,
    limits: ShareLimits,
}

/// The result, and why it is not better.
fn overall_result(
    model: &Model,
    engine: &FitEngine,
    needs: &[EngineNeeds],
    nodes: &[NodeFit],
    bounds: &ShareBounds,
) -> (FitResult, Vec<Cause>) {
    let loader = engine.loader;
    if loader.peak_percent.is_none() {
        return (FitResult::Unknown, vec![Cause::Loader]);
    }
    let (mut never, mut perhaps) = (Vec::new(), Vec::new());
    let mut consider = |cause, is_impossible: bool, is_sure: bool| {
        if is_impossible {
            never.push(cause);
        } else if !is_sure {
            perhaps.push(cause);
        }
    };
    let over = |bytes: fn(&EngineNeeds) -> u64| needs.iter().any(|one| bytes(one) > one.available);
    consider(
        Cause::Memory,
        nodes.iter().any(|node| node.lacks_bytes > 0),
        nodes.iter().all(|node| node.may_lack_bytes == 0),
    );
    // Without a peak above the weights, it is no other cause than memory.
    if needs.iter().any(|one| one.peaks) {
        consider(Cause::LoadPeak, over(|one| one.peak.least), !over(|one| one.peak.most));
    }
    if let Some(share) = engine.share {
        let ShareLimits { least_possible, least, safe, .. } = bounds.limits;
        let is_above = share.is_given && share.value > bounds.ceiling;
        consider(Cause::ShareTooLarge, is_above, share.value <= safe);
        consider(Cause::ShareTooSmall, share.value < least_possible, share.value >= least);
    }
    consider(Cause::Batch, false, engine.batch_tokens.is_none_or(|tokens| tokens <= RAN_BATCH));
    consider(Cause::Profiling, false, !engine.may_profile_media());
    let is_mapping = loader.residence == WeightResidence::Mapped && model.mapped_bytes.is_none();
    match (never.is_empty(), perhaps.is_empty()) {
        (false, _) if is_mapping && never.contains(&Cause::Memory) => {
            (FitResult::Unknown, vec![Cause::Mapping])
        }
        (false, _) => (FitResult::DoesNotFit, never),
        (true, false) => (FitResult::Tight, perhaps),
        (true, true) => (FitResult::Fits, Vec::new()),
    }
}

/// What the engine needs on a node, in bytes.
struct EngineNeeds {
    total: u64,
    available: u64,
    seen_least: u64,
    /// The node's share of the weights, without what stays in a mapping.
    resident: u64,
    kv: Option<u64>,
    work: Span,
    processes: Span,
    headroom: Span,
    growth: Span,
    /// While it loads, with the processes.
    peak: Span,
    has_known_peak: bool,
    /// Whether it may take more than the weights while it loads.
    peaks: bool,
    /// The largest share with the least processes.
    ceiling: f64,
}

impl EngineNeeds {
    fn of(
        model: &Model,
        engine: &FitEngine,
        overheads: &Overheads,
        node: &FitNode,
        count: usize,
    ) -> Self {
        let count = count.max(1) as u64;
        let total = node.total_bytes;
        let mapped = model.mapped_bytes.unwrap_or(0);
        let resident = model.weights_bytes.saturating_sub(mapped).div_ceil(count);
        let processes = overheads.processes(total);
        let (least, most) = engine.loader.peak_percent.unwrap_or((100, 100));
        let of_weights = |percent: u64| {
            let bytes = u128::from(resident) * u128::from(percent) / 100;
            u64::try_from(bytes).unwrap_or(u64::MAX)
        };
        let staged = match engine.loader.stages_a_file {
            true => model.largest_file_bytes,
            false => 0,
        };
        let beside = staged.saturating_add(engine.loader.buffers_bytes);
        let seen = node.available_bytes.min(node.seen_most_bytes);
        Self {
            total,
            available: node.available_bytes,
            seen_least: node.seen_least_bytes,
            resident,
            kv: model.kv_bytes.or_else(|| {
                let kv_cache = model.kv_cache?;
                let parts = u64::from(kv_cache.parts.max(1)).min(count);
                Some(kv_cache.bytes(model.context?, model.requests.max(1)).div_ceil(parts))
            }),
            work: overheads.work(engine, total),
            headroom: overheads.headroom(total),
            growth: overheads.growth(total),
            peak: Span {
                least: of_weights(least).saturating_add(processes.least),
                most: of_weights(most).saturating_add(beside).saturating_add(processes.most),
            },
            has_known_peak: engine.loader.peak_percent.is_some(),
            peaks: most > 100 || beside > 0,
            ceiling: share_down(seen.saturating_sub(processes.least), total),
            processes,
        }
    }

    /// Weights, work and KV cache: what a share of all memory must hold.
    fn shared_bytes(&self, work: fn(&Span) -> u64) -> u64 {
        let model = self.resident.saturating_add(self.kv.unwrap_or(0));
        model.saturating_add(work(&self.work))
    }

    /// Memory that misses at the lower end of all ranges, with that share.
    fn lacks_at(&self, share: f64) -> u64 {
        let shared = self.shared_bytes(|work| work.least);
        let all = shared.saturating_add(self.processes.least).saturating_add(self.headroom.least);
        let all = all.saturating_add(self.growth.least);
        let of_share = shared.saturating_sub(usable_bytes(share, self.total));
        all.max(self.peak.least).saturating_sub(self.available).max(of_share)
    }

    /// Memory that misses at the upper end of all ranges, with that share.
    fn may_lack(&self, share: Option<f64>) -> u64 {
        let shared = self.shared_bytes(|work| work.most);
        let all = shared.saturating_add(self.processes.most).saturating_add(self.headroom.most);
        let all = all.saturating_add(self.growth.most);
        let usable = share.map_or(u64::MAX, |share| usable_bytes(share, self.total));
        all.saturating_sub(self.available).max(shared.saturating_sub(usable))
    }

    fn budget(&self) -> u64 {
        let taken = self.processes.most.saturating_add(self.headroom.most);
        self.available.saturating_sub(taken)
    }

    /// Memory for the KV cache with the most work.
    fn kv_available(&self, engine: &FitEngine, utilization: f64) -> u64 {
        let usable = if engine.takes_common_share() {
            let share = engine.share.map_or(utilization, |share| share.value.min(utilization));
            usable_bytes(share, self.total)
        } else {
            self.budget()
        };
        usable.saturating_sub(self.resident.saturating_add(self.work.most))
    }

    fn node_fit(&self, node: &FitNode) -> NodeFit {
        let budget = self.budget();
        // With a share of all memory, it refuses to start if less is available then.
        let found = self.seen_least.saturating_sub(self.processes.most);
        let of_model = budget.min(found);
        // A share of free memory holds weights and KV cache.
        let of_free = share_down(budget.saturating_sub(self.work.least), node.seen_most_bytes);
        NodeFit {
            node: Arc::clone(&node.name),
            total_bytes: self.total,
            available_bytes: self.available,
            processes_bytes: self.processes.most,
            headroom_bytes: self.headroom.most,
            growth_bytes: self.growth.most,
            budget_bytes: budget,
            weights_bytes: self.resident,
            work_least_bytes: self.work.least,
            work_bytes: self.work.most,
            load_peak_bytes: self
                .has_known_peak
                .then(|| self.peak.most.saturating_sub(self.processes.most)),
            kv_available_bytes: 0,
            kv_wanted_bytes: self.kv,
            lacks_bytes: 0,
            may_lack_bytes: 0,
            shares: EngineShares {
                of_all: NodeShares {
                    safe: share_down(of_model.saturating_sub(self.growth.most), self.total),
                    most: share_down(of_model, self.total),
                },
                of_free: NodeShares { safe: of_free, most: of_free },
            },
        }
    }
}
