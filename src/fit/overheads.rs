//! What an engine takes beside weights and KV cache, as ranges of what reports measured.

use super::FitEngine;

const GIB: u64 = 1 << 30;

/// Memory of an engine's own processes on a large node, without the model: CUDA contexts, NCCL,
/// Python. vLLM took 8 to 9 GiB on a DGX Spark before it measured free memory. Another one ran with
/// a share of 0.93, beside which nothing is left
/// (github.com/MiaAI-Lab/DeepSeek-v4-Flash-One-DGX-Spark issue 4).
const PROCESSES: Span = Span { least: 0, most: 9 * GIB };
/// On smaller nodes: this part of all memory.
const PROCESSES_PART: u64 = 12;

/// What engines took beside their share after they had measured free memory: autotuning, graphs,
/// compilers. 17 to 19 GiB within 10 s after the weights (github.com/vllm-project/vllm issue 56824,
/// and reports of November 2026); others took none.
const GROWTH: Span = Span { least: 0, most: 18 * GIB };

/// Figures of reports are of nodes of 121 GiB. Below this size they shrink with the node.
const REPORTED_FROM: u64 = 96 * GIB;

/// The headroom, as part of all memory.
const HEADROOM_PART: u64 = 32;

/// Activations of one more token that is computed at the same time: 5.30 GiB of 8224 tokens, 1.39
/// of 2048 (github.com/MiaAI-Lab/DeepSeek-v4-Flash-One-DGX-Spark issue 4).
pub const ACTIVATION_BYTES: u64 = 680_000;
/// The tokens that the most work is of: vLLM's default for a server.
const USUAL_BATCH: u64 = 8192;

/// A range, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// In the best report.
    pub least: u64,
    /// In the worst.
    pub most: u64,
}

impl Span {
    fn exact(bytes: u64) -> Self {
        Self { least: bytes, most: bytes }
    }

    fn at_most(self, bytes: u64) -> Self {
        Self { least: self.least.min(bytes), most: self.most.min(bytes) }
    }

    /// For a node of that size.
    fn scaled(self, total: u64) -> Self {
        let of = |bytes: u64| {
            let share = u128::from(bytes) * u128::from(total.min(REPORTED_FROM));
            u64::try_from(share / u128::from(REPORTED_FROM)).unwrap_or(u64::MAX)
        };
        Self { least: of(self.least), most: of(self.most) }
    }
}

/// Memory of an engine on every node without weights and KV cache; `None`: what reports measured,
/// by the node's size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overheads {
    /// CUDA contexts, NCCL, Python.
    pub processes_bytes: Option<u64>,
    /// Activations, graphs, workspaces and buffers of the loader.
    pub work_bytes: Option<u64>,
    /// What it takes beside its share after its start.
    pub growth_bytes: Option<u64>,
    /// Memory that stays free.
    pub headroom_bytes: Option<u64>,
}

impl Overheads {
    pub(super) fn processes(&self, total: u64) -> Span {
        let usual = || PROCESSES.at_most(total / PROCESSES_PART);
        self.processes_bytes.map_or_else(usual, Span::exact)
    }

    pub(super) fn work(&self, engine: &FitEngine, total: u64) -> Span {
        if let Some(bytes) = self.work_bytes {
            return Span::exact(bytes);
        }
        let (least, most) = engine.loader.work_bytes;
        let work = Span { least, most }.scaled(total);
        let Some(tokens) = engine.batch_tokens else { return work };
        let usual = USUAL_BATCH * ACTIVATION_BYTES;
        let usual = Span::exact(usual).scaled(total).most;
        let most = work.most.saturating_sub(usual);
        let most = most.saturating_add(tokens.saturating_mul(ACTIVATION_BYTES));
        Span { most: most.max(work.least), ..work }
    }

    pub(super) fn growth(&self, total: u64) -> Span {
        self.growth_bytes.map_or_else(|| GROWTH.scaled(total), Span::exact)
    }

    /// None is needed to start.
    pub(super) fn headroom(&self, total: u64) -> Span {
        match self.headroom_bytes {
            Some(bytes) => Span::exact(bytes),
            None => Span { least: 0, most: total / HEADROOM_PART },
        }
    }
}
