//! Engines without progress: those that start or load, and those whose running requests get no
//! token although their health check succeeds.
//!
//! vLLM's `/health` answers 200 while its engine core waits for a rank that has ended. Its metrics
//! then stay as they were at its last step: requests run, and no number changes. A long prompt
//! changes the share of the KV cache in use before it has a token.

use std::time::Duration;

use super::{Life, Turn};
use crate::engines::facts;
use crate::model::{EngineHealth, EnginePhase, HealthResponse, Reading, counted};

/// Since when nothing that the engine reports of its running requests has changed.
#[derive(Debug, Default)]
pub(super) struct Stall {
    last: Option<Still>,
}

#[derive(Debug)]
struct Still {
    /// Bits of the numbers, for comparison.
    numbers: [Reading<u64>; 4],
    running: u64,
    since: Duration,
    until: Duration,
}

impl Stall {
    /// Takes a response of its health check. One without numbers proves nothing.
    pub(super) fn take(&mut self, health: &EngineHealth) {
        let load = &health.load;
        let (Reading::Value(running), Reading::Value(_)) = (load.running, load.work) else {
            if load.running != Reading::Failed {
                self.last = None;
            }
            return;
        };
        if running == 0 || health.answer != HealthResponse::Ready {
            self.last = None;
            return;
        }
        let usage = load.kv_cache_usage.map(f64::to_bits);
        let numbers = [load.running, load.waiting, usage, load.work];
        match &mut self.last {
            Some(still) if still.numbers == numbers => still.until = health.asked_at,
            last => {
                let (since, until) = (health.asked_at, health.asked_at);
                *last = Some(Still { numbers, running, since, until });
            }
        }
    }

    /// The running requests, and for how long they have made no progress.
    pub(super) fn lasts(&self) -> Option<(u64, Duration)> {
        let still = self.last.as_ref()?;
        Some((still.running, still.until.saturating_sub(still.since)))
    }
}

impl Life {
    /// Becomes stuck if it has made no progress for too long.
    pub(super) fn stick(&mut self) -> Option<Turn> {
        if self.is_stuck {
            return None;
        }
        let waited = self.sampled.saturating_sub(self.mark.at);
        let reason = if self.is_on_its_way() && waited >= self.seen.stuck_after {
            let cores = self.mark.cores(self.sampled, &self.now);
            format!(
                "nothing was read and no memory taken for {} s, while its processes used \
                 {cores:.1} cores{}",
                waited.as_secs(),
                self.deadlock()
            )
        } else {
            self.stalled()?
        };
        self.is_stuck = true;
        Some(Turn::Stuck { stuck: true, reason })
    }

    /// What the ranks of an engine may wait for: two DGX Sparks were seen to wait for each other in
    /// CUDA-graph capture, without end.
    fn deadlock(&self) -> String {
        let option = facts(self.seen.kind).without_cuda_graphs;
        let option =
            option.filter(|_| self.seen.rank.is_some() && self.phase == EnginePhase::Loading);
        let advice = |option| {
            format!(
                "; if its ranks wait for each other in CUDA-graph capture, restart all of them, \
                 with {option} if it happens again"
            )
        };
        option.map(advice).unwrap_or_default()
    }

    pub(super) fn unstick(&mut self, reason: &str) -> Turn {
        self.is_stuck = false;
        Turn::Stuck { stuck: false, reason: reason.to_owned() }
    }

    /// Why the requests of an engine that is up are stuck.
    pub(super) fn stalled(&self) -> Option<String> {
        let (running, lasts) = self.stall.lasts()?;
        (self.phase.is_up() && lasts >= self.seen.stuck_after).then(|| {
            format!(
                "{} running for {} s without a token, while its health check succeeds (unless its \
                 owner has paused it)",
                counted(running, "request"),
                lasts.as_secs()
            )
        })
    }
}
