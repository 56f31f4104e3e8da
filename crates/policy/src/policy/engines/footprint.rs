//! What an engine has taken and read so far, and whether that is more than before.

use std::time::Duration;

use crate::model::{EngineProcess, EngineSeen, Reading};

const MIB: u64 = 1 << 20;

/// Less than this is what a process reads and takes that only waits.
const READS: u64 = 16 * MIB;
const MEMORY: u64 = 64 * MIB;
/// The same for memory that no counter names: the whole node's, with everything else in it.
const UNACCOUNTED: u64 = 256 * MIB;
/// What a log must grow by within [`LOG_WITHIN`]: an engine that waits for its peers says so, a
/// line or two a minute.
const LOG: u64 = 4 << 10;
const LOG_WITHIN: Duration = Duration::from_secs(60);

/// An engine's memory and reads at one sample.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Footprint {
    pub(super) memory: u64,
    /// From storage.
    pub(super) read_bytes: Option<u64>,
    /// From storage or the page cache.
    reads: u64,
    pub(super) cpu_ms: u64,
    log: Option<u64>,
    unaccounted: Option<u64>,
    newest: u64,
    processes: usize,
}

fn sum(seen: &EngineSeen, of: impl Fn(&EngineProcess) -> Reading<u64>) -> Option<u64> {
    let known = seen.processes.iter().filter_map(|process| of(process).value());
    known.reduce(u64::saturating_add)
}

impl Footprint {
    pub(super) fn new(seen: &EngineSeen, unaccounted: Option<u64>) -> Self {
        let read_bytes = sum(seen, |process| process.read_bytes);
        let chars = sum(seen, |process| process.read_chars);
        let hugetlb = sum(seen, |process| process.hugetlb_bytes).unwrap_or(0);
        let resident = sum(seen, EngineProcess::rss_bytes).unwrap_or(0);
        Self {
            memory: resident.saturating_add(hugetlb),
            read_bytes,
            reads: read_bytes.unwrap_or(0).saturating_add(chars.unwrap_or(0)),
            cpu_ms: seen.processes.iter().map(|process| process.cpu_ms).sum(),
            log: seen.log_bytes.value(),
            unaccounted,
            newest: seen.processes.iter().map(|p| p.id.start_ticks).max().unwrap_or(0),
            processes: seen.processes.len(),
        }
    }

    /// How much more memory it has than `before`, in its own processes and outside of all.
    pub(super) fn grown_since(&self, before: &Self) -> (u64, u64) {
        let outside = match (self.unaccounted, before.unaccounted) {
            (Some(now), Some(before)) => now.saturating_sub(before),
            _ => 0,
        };
        (self.memory.saturating_sub(before.memory), outside)
    }
}

/// The last sample that showed progress.
#[derive(Clone, Debug)]
pub(super) struct ProgressMark {
    pub(super) at: Duration,
    pub(super) footprint: Footprint,
    log: (Duration, Option<u64>),
}

impl ProgressMark {
    pub(super) fn new(at: Duration, footprint: Footprint) -> Self {
        let log = (at, footprint.log);
        Self { at, footprint, log }
    }

    /// Moves on if there was progress: something was read, or memory taken or given back, a process
    /// began or ended, or the log has grown. Returns whether there was.
    pub(super) fn take(&mut self, at: Duration, now: &Footprint) -> bool {
        let before = &self.footprint;
        let outside = match (now.unaccounted, before.unaccounted) {
            (Some(now), Some(before)) => now.abs_diff(before),
            _ => 0,
        };
        let log = match (now.log, self.log.1) {
            (Some(now), Some(before)) => now.saturating_sub(before),
            _ => 0,
        };
        let progressed = now.reads.abs_diff(before.reads) >= READS
            || now.memory.abs_diff(before.memory) >= MEMORY
            || outside >= UNACCOUNTED
            || log >= LOG
            || (now.newest, now.processes) != (before.newest, before.processes);
        if progressed {
            *self = Self::new(at, now.clone());
        } else if at.saturating_sub(self.log.0) >= LOG_WITHIN {
            self.log = (at, now.log);
        }
        progressed
    }

    /// How many cores were busy since then.
    pub(super) fn cores(&self, at: Duration, now: &Footprint) -> f64 {
        let milliseconds = at.saturating_sub(self.at).as_secs_f64() * 1000.0;
        let used = now.cpu_ms.saturating_sub(self.footprint.cpu_ms);
        if milliseconds > 0.0 { used as f64 / milliseconds } else { 0.0 }
    }
}
