//! Whether the node can take an engine.
//!
//! `MemAvailable` promises more than a driver can get: it counts CMA pages, dirty page cache and
//! caches in pieces. What counts here is what is free above the low watermark, and what goes at
//! once when memory is wanted: page cache that is clean and unmapped, and half of the kernel's
//! reclaimable caches. A note says when the latter are needed, since an engine may count `MemFree`.
//!
//! Enough is not all. An engine measures free memory while it starts: vLLM gives up when there is
//! more of it after its profiling than before, and SGLang when its ranks differ. So the gate stays
//! closed while memory is being returned, even if it suffices, and while free memory falls so fast
//! that it soon will not. Neither lasts for ever: only a new low of the last seconds counts as
//! returning; memory that no longer falls is a note and closes nothing. An orphan of an engine
//! keeps the gate closed until it ends.

mod baseline;
mod node;
mod orphan;
mod peers;
#[cfg(test)]
mod tests;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use super::pools::memory::{ObtainableMemory, had};
use crate::model::{
    EnginePools, GateMemory, GateNote, GateReason, GateRequest, GateResponse, HOST_POOL,
    LeaseShare, LingeringMemory, MemoryPool, MemoryPools, PoolKind, Reading, Trend,
};
pub(super) use baseline::EnginePresence;
pub(super) use node::NodeGate;
pub use orphan::orphans;
pub use peers::{with_peers, with_turn};
pub use watch::{GateWatch, PoolWatches, SETTLES};

/// A release that takes less than this below its past is noise.
const LEAST_SINK: u64 = 64 << 20;

/// So much more than usual is not worth waiting for.
const LEAST_HELD: u64 = 256 << 20;

/// A fall of free memory is extrapolated for this time.
const AHEAD: Duration = Duration::from_secs(10);

/// At a pace of less than this share of all memory a second no end is estimated.
const LEAST_PACE: f64 = 1.0 / 4096.0;

/// Longer waits are not estimated.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// Amounts that are worth a word: a share of all memory.
const WORTH_A_NOTE: u64 = 64;

/// What is requested of one pool.
struct PoolRequest<'r> {
    pool: &'r MemoryPool,
    need_bytes: u64,
    contiguous_bytes: Option<u64>,
    /// Whether it is where the engine has weights and KV cache.
    is_engines: bool,
}

/// Whether the node can take an engine, with the reasons.
pub fn check_gate(request: &GateRequest, memory: &MemoryPools) -> GateResponse {
    let mut answer = GateFindings::default();
    let parts = match parts(request, memory) {
        Ok(parts) => parts,
        Err(reason) => {
            answer.is_hopeless = matches!(reason, GateReason::NoPool { .. });
            answer.close(reason, None);
            host_part(memory, request.host_need_bytes).into_iter().collect()
        }
    };
    for part in &parts {
        answer.take(part, memory.has_gpu_pools());
    }
    if answer.is_hopeless {
        answer.keep_hopeless();
    }
    let engines = parts.iter().filter(|part| part.is_engines);
    let share = |part: &&PoolRequest<'_>| had(&part.pool.memory).map_or(0, ObtainableMemory::all);
    let least = engines.min_by_key(share).map(|part| part.pool);
    let decisive = least.or_else(|| memory.pool(HOST_POOL));
    let all = decisive.and_then(|pool| had(&pool.memory).ok());
    // Pools that share a need have so many times as much.
    let times = u64::try_from(request.pools.len()).unwrap_or(u64::MAX).max(1);
    let is_open = answer.reasons.is_empty();
    let longest = answer
        .waits
        .into_iter()
        .try_fold(Duration::ZERO, |longest, wait| wait.map(|wait: Duration| wait.max(longest)));
    GateResponse {
        is_open,
        is_hopeless: answer.is_hopeless,
        request: request.clone(),
        available_bytes: all.map(|had| had.all().saturating_mul(times)),
        spare_bytes: all.map(|had| had.spare.saturating_mul(times)),
        wait: if is_open { Some(Duration::ZERO) } else { longest },
        reasons: answer.reasons,
        notes: answer.notes,
        pool: decisive.map_or_else(|| HOST_POOL.into(), |pool| Arc::clone(&pool.pool)),
        memory: decisive.map_or_else(|| GateMemory::UNKNOWN, |pool| pool.memory.clone()),
        pools: if memory.has_gpu_pools() { memory.pools.clone() } else { Vec::new() },
        peers: Vec::new(),
    }
}

/// The request by pool; the host's part is there in any case.
fn parts<'r>(
    request: &GateRequest,
    memory: &'r MemoryPools,
) -> Result<Vec<PoolRequest<'r>>, GateReason> {
    let names = || memory.pools.iter().map(|pool| Arc::clone(&pool.pool)).collect();
    let mut named = Vec::new();
    for name in &request.pools {
        let unknown = || GateReason::NoPool { name: Arc::clone(name), pools: names() };
        let pool = memory.pool(name).ok_or_else(unknown)?;
        if named.iter().all(|known: &&MemoryPool| known.pool != pool.pool) {
            named.push(pool);
        }
    }
    let times = u64::try_from(named.len()).unwrap_or(u64::MAX).max(1);
    if named.is_empty() {
        if let EnginePools::Unknown { why } = &memory.engines {
            return Err(GateReason::PoolUnknown { why: Arc::clone(why), pools: names() });
        }
        named.extend(memory.of_engines());
    }
    let part = |pool| PoolRequest {
        pool,
        need_bytes: request.need_bytes.div_ceil(times),
        contiguous_bytes: request.contiguous_bytes.map(|bytes| bytes.div_ceil(times)),
        is_engines: true,
    };
    let mut parts: Vec<PoolRequest<'r>> = named.into_iter().map(part).collect();
    match parts.iter_mut().find(|part| part.pool.kind == PoolKind::Host) {
        Some(host) => {
            host.need_bytes = host.need_bytes.saturating_add(request.host_need_bytes);
        }
        None => parts.extend(host_part(memory, request.host_need_bytes)),
    }
    Ok(parts)
}

/// What a lease for that request reserves of each pool.
pub(in crate::policy) fn shares(request: &GateRequest, memory: &MemoryPools) -> Vec<LeaseShare> {
    let parts = parts(request, memory).unwrap_or_default();
    let shares = parts
        .iter()
        .filter(|part| part.need_bytes > 0)
        .map(|part| LeaseShare { pool: Arc::clone(&part.pool.pool), need_bytes: part.need_bytes });
    shares.collect()
}

fn host_part(memory: &MemoryPools, need_bytes: u64) -> Option<PoolRequest<'_>> {
    let pool = memory.pool(HOST_POOL)?;
    Some(PoolRequest { pool, need_bytes, contiguous_bytes: None, is_engines: false })
}

/// What was found so far.
#[derive(Default)]
struct GateFindings {
    reasons: Vec<GateReason>,
    notes: Vec<GateNote>,
    /// How long each reason will last, where predictable.
    waits: Vec<Option<Duration>>,
    is_hopeless: bool,
}

impl GateFindings {
    /// Only what never changes counts: the rest would suggest a wait.
    fn keep_hopeless(&mut self) {
        let is_final = |reason: &GateReason| {
            matches!(reason, GateReason::TooLarge { .. } | GateReason::NoPool { .. })
        };
        self.reasons.retain(|reason| is_final(reason.in_any_pool()));
        self.notes.clear();
    }

    fn close(&mut self, reason: GateReason, wait: Option<Duration>) {
        self.reasons.push(reason);
        self.waits.push(wait);
    }

    /// Checks one pool.
    fn take(&mut self, part: &PoolRequest<'_>, has_several: bool) {
        let mut check = GateCheck { part, memory: &part.pool.memory, answer: Self::default() };
        check.amount();
        check.contiguous();
        // Memory that comes back there changes nothing for an engine that measures elsewhere.
        if part.is_engines {
            check.lingering(LingeringMemory::Unaccounted);
            check.lingering(LingeringMemory::Shmem);
        }
        check.orphans();
        check.cache();
        let own = check.answer;
        let pool = || Arc::clone(&part.pool.pool);
        let is_placed = |reason: &GateReason| {
            has_several && !matches!(reason, GateReason::Orphan(_) | GateReason::TooShort)
        };
        self.reasons.extend(own.reasons.into_iter().map(|reason| match is_placed(&reason) {
            true => GateReason::InPool { pool: pool(), reason: Box::new(reason) },
            false => reason,
        }));
        self.notes.extend(own.notes.into_iter().map(|note| match has_several {
            true => GateNote::InPool { pool: pool(), note: Box::new(note) },
            false => note,
        }));
        self.waits.extend(own.waits);
        self.is_hopeless |= own.is_hopeless;
    }
}

struct GateCheck<'r> {
    part: &'r PoolRequest<'r>,
    memory: &'r GateMemory,
    answer: GateFindings,
}

impl GateCheck<'_> {
    fn close(&mut self, reason: GateReason, wait: Option<Duration>) {
        self.answer.close(reason, wait);
    }

    fn unknown(&mut self, what: &'static str) {
        self.close(GateReason::Unknown { what }, None);
    }

    fn too_short(&mut self) {
        if !self.answer.reasons.contains(&GateReason::TooShort) {
            self.close(GateReason::TooShort, Some(SETTLES));
        }
    }

    /// How long it takes at that pace.
    fn time(&self, bytes: u64, bytes_per_second: f64) -> Option<Duration> {
        let least = self.memory.total.value().unwrap_or(0) as f64 * LEAST_PACE;
        (bytes_per_second > least.max(1.0))
            .then(|| Duration::try_from_secs_f64(bytes as f64 / bytes_per_second).ok())
            .flatten()
            .filter(|wait| *wait <= LONGEST_WAIT)
            .map(|wait| wait.max(SETTLES))
    }

    fn amount(&mut self) {
        let need = self.part.need_bytes;
        if need == 0 && !self.part.is_engines {
            return;
        }
        let had = match had(self.memory) {
            Ok(had) => had,
            Err(what) => return self.unknown(what),
        };
        let Reading::Value(total) = self.memory.total else { return self.unknown("MemTotal") };
        let most = total.saturating_sub(self.memory.reserve.value().unwrap_or(0));
        if need > most {
            self.answer.is_hopeless = true;
            self.close(GateReason::TooLarge { need_bytes: need, most_bytes: most }, None);
            return;
        }
        let pace = self.memory.motion.available.map(|trend| trend.bytes_per_second);
        if had.all() < need {
            let reason = GateReason::TooLittle {
                need_bytes: need,
                available_bytes: had.all(),
                spare_bytes: had.spare,
                reclaimable_bytes: had.reclaimable,
            };
            let wait = self.time(need - had.all(), pace.unwrap_or(0.0));
            self.close(reason, wait);
            return;
        }
        if had.spare < need {
            self.answer.notes.push(GateNote::Reclaim { bytes: need - had.spare });
        }
        let Some(pace) = pace else { return self.too_short() };
        if let Some(gone) = self.time(had.all() - need, -pace)
            && (had.all() - need) as f64 <= -pace * AHEAD.as_secs_f64()
        {
            let gone_in_seconds = gone.as_secs_f64();
            self.close(GateReason::Taking { bytes_per_second: -pace, gone_in_seconds }, None);
        }
    }

    fn contiguous(&mut self) {
        let Some(need) = self.part.contiguous_bytes.filter(|need| *need > 0) else { return };
        let Reading::Value(have) = self.memory.contiguous_2mib else {
            return self.unknown("free memory in large blocks (/proc/buddyinfo)");
        };
        if have < need {
            let pace = self.memory.motion.contiguous.map_or(0.0, |trend| trend.bytes_per_second);
            let wait = self.time(need - have, pace);
            self.close(GateReason::Fragmented { need_bytes: need, contiguous_bytes: have }, wait);
        }
    }

    /// What the last engine has held and may still give back.
    fn lingering(&mut self, what: LingeringMemory) {
        let (reading, trend, name) = match what {
            LingeringMemory::Unaccounted => {
                let motion = self.memory.motion.unaccounted;
                (self.memory.unaccounted, motion, "memory that no counter names")
            }
            LingeringMemory::Shmem => (self.memory.shmem, self.memory.motion.shmem, "Shmem"),
        };
        let Reading::Value(held) = reading else { return self.unknown(name) };
        let held = match what {
            LingeringMemory::Unaccounted => held.saturating_sub(self.memory.baseline.bytes),
            LingeringMemory::Shmem => held,
        };
        let Some(Trend { bytes_per_second, sank_bytes }) = trend else { return self.too_short() };
        if held >= LEAST_HELD && sank_bytes >= LEAST_SINK {
            let wait = match what {
                // How much of it goes is not known: others have shared memory, too.
                LingeringMemory::Shmem => None,
                LingeringMemory::Unaccounted => self.time(held, -bytes_per_second),
            };
            let reason = GateReason::Releasing { what, held_bytes: held, bytes_per_second };
            return self.close(reason, wait);
        }
        if held < self.worth_a_note() {
            return;
        }
        self.answer.notes.push(match what {
            LingeringMemory::Unaccounted => {
                GateNote::Unaccounted { above_bytes: held, baseline: self.memory.baseline }
            }
            LingeringMemory::Shmem => GateNote::Shmem { bytes: held },
        });
    }

    fn orphans(&mut self) {
        match &self.memory.orphans {
            Reading::Unsupported => {}
            Reading::Failed => self.unknown("what engines have left behind (/proc/PID)"),
            Reading::Value(orphans) => {
                for orphan in orphans.iter() {
                    self.close(GateReason::Orphan(orphan.clone()), None);
                }
            }
        }
    }

    /// Notes page cache that would count if it were written or unmapped.
    fn cache(&mut self) {
        let is_short = |reason: &GateReason| matches!(reason, GateReason::TooLittle { .. });
        if !self.answer.reasons.iter().any(is_short) {
            return;
        }
        let worth =
            |reading: Reading<u64>| reading.value().filter(|bytes| *bytes >= self.worth_a_note());
        let dirty = worth(self.memory.dirty_cache).map(|bytes| GateNote::Dirty { bytes });
        let mapped = worth(self.memory.mapped_cache).map(|bytes| GateNote::Mapped { bytes });
        self.answer.notes.extend(dirty.into_iter().chain(mapped));
    }

    fn worth_a_note(&self) -> u64 {
        (self.memory.total.value().unwrap_or(0) / WORTH_A_NOTE).max(1)
    }
}
