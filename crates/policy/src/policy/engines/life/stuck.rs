//! Engines without progress: those that start or load, and those whose requests get no token
//! although their health check succeeds.
//!
//! vLLM's `/health` answers 200 while its engine core waits for a rank that has ended. Its metrics
//! then stay as they were at its last step. Where the core lives and schedules nothing, requests
//! only wait, and their number goes up and down. So neither count is progress. A long prompt
//! changes the share of the KV cache in use before it has a token.
//!
//! SGLang counts a request's tokens at its end. Its scheduler answers queries of its load between
//! two batches, and the HTTP server goes on without it.

use std::time::Duration;

use super::{Life, LifeChange};
use crate::engines::facts;
use crate::model::{EngineHealth, EnginePhase, HealthResponse, Reading, counted, seconds_text};

/// Since when an engine has done nothing for its requests, as far as it reports that.
#[derive(Debug, Default)]
pub(super) struct EngineStall {
    last: Option<UnchangedNumbers>,
    /// Whether its core has ever answered.
    has_answered: bool,
    /// The first and the last query of its load in a row without an answer of its core.
    silent: Option<(Duration, Duration)>,
}

#[derive(Debug)]
struct UnchangedNumbers {
    /// Its tokens, and the bits of its KV cache's usage.
    numbers: [Reading<u64>; 2],
    requests: u64,
    since: Duration,
    until: Duration,
}

impl EngineStall {
    /// Takes a response of its health check. One without numbers proves nothing.
    pub(super) fn take(&mut self, health: &EngineHealth) {
        self.take_silence(health);
        let load = &health.load;
        let (Reading::Value(requests), Reading::Value(_)) = (load.requests(), load.work) else {
            if load.requests() != Reading::Failed {
                self.last = None;
            }
            return;
        };
        let is_asleep = load.is_sleeping == Reading::Value(true);
        if requests == 0 || is_asleep || health.answer != HealthResponse::Ready {
            self.last = None;
            return;
        }
        let numbers = [load.work, load.kv_cache_usage.map(f64::to_bits)];
        match &mut self.last {
            Some(still) if still.numbers == numbers => {
                (still.requests, still.until) = (requests, health.asked_at);
            }
            last => {
                let (since, until) = (health.asked_at, health.asked_at);
                *last = Some(UnchangedNumbers { numbers, requests, since, until });
            }
        }
    }

    fn take_silence(&mut self, health: &EngineHealth) {
        match (health.load.core_answers, &health.answer) {
            (Reading::Failed, HealthResponse::Ready) if self.has_answered => {
                let first = self.silent.map_or(health.asked_at, |(first, _)| first);
                self.silent = Some((first, health.asked_at));
            }
            (answers, _) => {
                self.has_answered |= answers == Reading::Value(true);
                self.silent = None;
            }
        }
    }

    /// Its requests, and for how long they have made no progress.
    fn lasts(&self) -> Option<(u64, Duration)> {
        let still = self.last.as_ref()?;
        Some((still.requests, still.until.saturating_sub(still.since)))
    }
}

impl Life {
    /// Becomes stuck if it has made no progress for too long.
    pub(super) fn stick(&mut self) -> Option<LifeChange> {
        if self.is_stuck {
            return None;
        }
        let waited = self.sampled.saturating_sub(self.mark.at);
        let reason = if self.is_on_its_way() && waited >= self.seen.stuck_after {
            let cores = self.mark.cores(self.sampled, &self.now);
            format!(
                "nothing was read and no memory taken for {}, while its processes used \
                 {cores:.1} cores{}",
                seconds_text(waited),
                self.deadlock()
            )
        } else {
            self.stalled()?
        };
        self.is_stuck = true;
        Some(LifeChange::Stuck { stuck: true, reason })
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

    pub(super) fn unstick(&mut self, reason: &str) -> LifeChange {
        self.is_stuck = false;
        LifeChange::Stuck { stuck: false, reason: reason.to_owned() }
    }

    /// Why the requests of an engine that is up are stuck.
    pub(super) fn stalled(&self) -> Option<String> {
        let after = self.seen.stuck_after;
        if let Some((requests, lasts)) = self.stall.lasts()
            && self.phase.is_up()
            && lasts >= after
        {
            return Some(format!(
                "{} running or waiting for {} without a token, while its health check succeeds \
                 (unless its owner has paused it)",
                counted(requests, "request"),
                seconds_text(lasts)
            ));
        }
        let (first, last) = self.stall.silent?;
        let lasts = last.saturating_sub(first);
        // New weights, or kernels that are compiled, may keep it from answering.
        let still = self.sampled.saturating_sub(self.mark.at);
        (self.phase.is_up() && lasts >= after && still >= after).then(|| {
            format!(
                "its core has not answered for {}, and has read and taken nothing, while its \
                 health check succeeds",
                seconds_text(lasts)
            )
        })
    }
}
