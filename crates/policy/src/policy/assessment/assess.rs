//! The state, as a function of the present facts.
//!
//! The order is that of likelihood and of harm. A stuck driver comes first, since other readings
//! are unreliable then. Users of memory come before leaks, and unknown facts before states that
//! depend on them. `leaked` is the rest.

use std::sync::Arc;
use std::time::Duration;

use crate::model::{
    AssessmentEvidence, AssessmentLimits, Baseline, EnginePhase, Holder, LingeringMemory,
    MemoryPlatform, MemoryState, Orphan, Reading, Trend, WedgeSign,
};

/// A fall by less than this is noise, and less than [`LEAST_HELD`] is not reported.
const LEAST_SINK: u64 = 64 << 20;
const LEAST_HELD: u64 = 256 << 20;

/// Holders that are named; further ones are counted.
const NAMED: usize = 8;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum DriverState {
    /// It is not polled, or polling fails.
    #[default]
    Unknown,
    /// None is loaded.
    Absent,
    /// It has answered lately.
    Answers,
    /// It does not answer.
    Silent,
}

#[derive(Clone, Debug)]
pub(super) struct AssessmentInputs<'f> {
    pub(super) unaccounted: Reading<u64>,
    pub(super) baseline: Baseline,
    /// What of `unaccounted` is in each pool above its baseline, where there are several.
    pub(super) by_pool: &'f [(Arc<str>, u64)],
    pub(super) shmem: Reading<u64>,
    pub(super) unaccounted_trend: Option<Trend>,
    pub(super) shmem_trend: Option<Trend>,
    /// Living engines; `Failed` without a current sample.
    pub(super) engines: Reading<&'f [(Arc<str>, EnginePhase)]>,
    pub(super) orphans: &'f [Orphan],
    /// Processes with the driver open, or much in pipes; `Failed` without a current scan.
    pub(super) holders: Reading<&'f [Holder]>,
    /// Number of processes that could not be read.
    pub(super) unseen: u32,
    pub(super) driver: DriverState,
    /// Pids that the driver names and that do not have it open.
    pub(super) ghosts: &'f [u32],
    pub(super) signs: &'f [WedgeSign],
    /// A GPU's own memory that the driver attributes to no process, by the GPU's number.
    pub(super) on_gpus: &'f [(u32, u64)],
    pub(super) platform: MemoryPlatform,
    pub(super) limits: AssessmentLimits,
}

/// Memory above the baseline without an explanation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnexplainedMemory {
    /// Time without a change.
    pub(super) still: Duration,
    /// Time since the remedies were tried, if they were.
    pub(super) tried: Option<Duration>,
}

/// The result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Assessed {
    pub(super) state: MemoryState,
    pub(super) held: Option<u64>,
    pub(super) estimated_seconds: Option<f64>,
    /// Whether only a leak explains it; then time decides.
    pub(super) is_unexplained: bool,
}

impl AssessmentInputs<'_> {
    fn held(&self) -> Reading<u64> {
        self.unaccounted.map(|bytes| bytes.saturating_sub(self.baseline.bytes))
    }

    /// GPUs whose own memory the driver attributes to no process, and how much.
    fn unattributed(&self) -> impl Iterator<Item = &(u32, u64)> {
        self.on_gpus.iter().filter(|(_, bytes)| *bytes >= self.limits.leaked_bytes)
    }

    /// Processes that use memory now, without orphans.
    fn users(&self) -> impl Iterator<Item = &Holder> {
        let is_orphan = |holder: &Holder| self.orphans.iter().any(|orphan| orphan.id == holder.id);
        let holders = self.holders.value().unwrap_or_default();
        holders.iter().filter(move |holder| is_user(holder) && !is_orphan(holder))
    }
}

/// Whether a holder may explain memory that no counter names.
fn is_user(holder: &Holder) -> bool {
    holder.uses_driver() || holder.pipe_bytes > 0
}

/// Assesses, with the evidence. `unexplained` is the time for which only a leak has been left as an
/// explanation; it must be of the assessment before.
pub(super) fn assess(
    facts: &AssessmentInputs<'_>,
    unexplained: Option<UnexplainedMemory>,
) -> (Assessed, Vec<AssessmentEvidence>) {
    let mut assessor = Assessor { facts, evidence: Vec::new() };
    let held = facts.held().value();
    let (state, estimated_seconds) = assessor.explained();
    if let Some(state) = state {
        let assessed = Assessed { state, held, estimated_seconds, is_unexplained: false };
        return (assessed, assessor.evidence);
    }
    let state = assessor.unexplained(unexplained);
    let assessed = Assessed { state, held, estimated_seconds: None, is_unexplained: true };
    (assessed, assessor.evidence)
}

struct Assessor<'j, 'f> {
    facts: &'j AssessmentInputs<'f>,
    evidence: Vec<AssessmentEvidence>,
}

impl Assessor<'_, '_> {
    fn add(&mut self, evidence: AssessmentEvidence) {
        self.evidence.push(evidence);
    }

    fn not_known(&mut self, what: &'static str) {
        self.add(AssessmentEvidence::NotKnown { what });
    }

    /// Everything but a leak; `None` where nothing else is left.
    fn explained(&mut self) -> (Option<MemoryState>, Option<f64>) {
        let facts = self.facts;
        for sign in facts.signs {
            self.add(AssessmentEvidence::Wedge(sign.clone()));
        }
        if facts.signs.len() >= 2 {
            return (Some(MemoryState::Wedged), None);
        }
        let Reading::Value(held) = facts.held() else {
            self.not_known("how much memory is in no counter");
            return (Some(MemoryState::Unknown), None);
        };
        let is_held = held >= facts.limits.leaked_bytes;
        self.add(AssessmentEvidence::Held { bytes: held, baseline: facts.baseline });
        for (pool, bytes) in facts.by_pool.iter().filter(|(_, bytes)| *bytes >= LEAST_HELD) {
            self.add(AssessmentEvidence::InPool { pool: Arc::clone(pool), bytes: *bytes });
        }
        for (gpu, bytes) in facts.unattributed().take(NAMED) {
            self.add(AssessmentEvidence::OnGpu { gpu: *gpu, bytes: *bytes });
        }
        if self.uses() {
            return (Some(MemoryState::InUse), None);
        }
        if let Some(estimate) = self.falls(held) {
            return (Some(MemoryState::Lingering), estimate);
        }
        if !facts.orphans.is_empty() {
            let orphans = facts.orphans.iter().take(NAMED).cloned();
            self.evidence.extend(orphans.map(AssessmentEvidence::Orphan));
            return (Some(MemoryState::Orphan), None);
        }
        if !is_held {
            return (Some(self.no_more_than_usual()), None);
        }
        if self.doubts() {
            return (Some(MemoryState::Unknown), None);
        }
        if facts.platform == MemoryPlatform::Coherent {
            self.add(AssessmentEvidence::CountedAfterExit);
            return (Some(MemoryState::Reclaimable), None);
        }
        (None, None)
    }

    /// Whether a process uses the GPU, or may hold such memory.
    fn uses(&mut self) -> bool {
        let facts = self.facts;
        let engines = facts.engines.value().unwrap_or_default();
        for (name, phase) in engines {
            self.add(AssessmentEvidence::Engine { name: Arc::clone(name), phase: *phase });
        }
        let users = facts.users().count();
        let named = facts.users().take(NAMED).cloned();
        self.evidence.extend(named.map(AssessmentEvidence::Holder));
        if users > NAMED {
            self.add(AssessmentEvidence::MoreHolders { count: (users - NAMED) as u64 });
        }
        users > 0 || !engines.is_empty()
    }

    /// Whether memory is being given back, and how long that takes where predictable.
    fn falls(&mut self, held: u64) -> Option<Option<f64>> {
        let facts = self.facts;
        let is_sinking = |trend: &Trend| trend.sank_bytes >= LEAST_SINK;
        if let Some(trend) = facts.unaccounted_trend.filter(is_sinking)
            && held >= LEAST_HELD
        {
            let pace = -trend.bytes_per_second;
            let seconds = (pace > 1.0).then(|| held as f64 / pace);
            let (what, bytes_per_second) = (LingeringMemory::Unaccounted, trend.bytes_per_second);
            self.add(AssessmentEvidence::Falling { what, bytes_per_second, seconds });
            return Some(seconds);
        }
        let shmem = facts.shmem.value().unwrap_or(0);
        let trend = facts.shmem_trend.filter(is_sinking).filter(|_| shmem >= LEAST_HELD)?;
        let (what, bytes_per_second) = (LingeringMemory::Shmem, trend.bytes_per_second);
        self.add(AssessmentEvidence::Falling { what, bytes_per_second, seconds: None });
        Some(None)
    }

    /// No more than usual is in no counter; shared memory may be held all the same.
    fn no_more_than_usual(&mut self) -> MemoryState {
        let facts = self.facts;
        let Reading::Value(shmem) = facts.shmem else {
            self.not_known("how much is shared memory");
            return MemoryState::Unknown;
        };
        if shmem < facts.limits.leaked_bytes {
            if facts.unattributed().next().is_none() {
                return MemoryState::Clean;
            }
            self.not_known("who has a GPU's own memory");
            return MemoryState::Unknown;
        }
        self.add(AssessmentEvidence::Shmem { bytes: shmem });
        let holders = facts.holders.value().unwrap_or_default();
        let memfds = holders.iter().filter(|holder| holder.memfds > 0).take(NAMED).cloned();
        self.evidence.extend(memfds.map(AssessmentEvidence::Holder));
        MemoryState::HeldShmem
    }

    /// Says what must be known before memory may count as leaked and is not.
    fn doubts(&mut self) -> bool {
        let facts = self.facts;
        let before = self.evidence.len();
        if facts.engines.value().is_none() {
            self.not_known("whether an engine runs");
        }
        match facts.holders {
            Reading::Value(_) if facts.unseen > 0 => {
                self.not_known("what some processes have open (root, or CAP_SYS_PTRACE)");
            }
            Reading::Value(_) => {}
            Reading::Failed | Reading::Unsupported => self.not_known("who has the driver open"),
        }
        if !facts.baseline.is_learned {
            self.not_known("how much is usual: no time without engines was seen in this boot");
        }
        match facts.driver {
            DriverState::Answers => {}
            DriverState::Unknown => self.not_known("whether the driver answers"),
            DriverState::Absent => {
                self.not_known("what holds it: no NVIDIA driver is loaded, so it was none");
            }
            DriverState::Silent => self.not_known("what the driver holds: it does not answer"),
        }
        if facts.unaccounted_trend.is_none() {
            self.not_known("whether it comes or goes: it was sampled too shortly");
        }
        for pid in facts.ghosts.iter().take(NAMED) {
            self.add(AssessmentEvidence::Ghost { pid: *pid });
        }
        // A process that the driver names may be in a place that this program does not see.
        self.evidence.len() > before
    }

    /// Only a leak is left: first what may bring it back is tried, then time must pass.
    fn unexplained(&mut self, so_far: Option<UnexplainedMemory>) -> MemoryState {
        self.add(AssessmentEvidence::NoHolders);
        self.add(AssessmentEvidence::DriverAnswers);
        let Some(UnexplainedMemory { still, tried: Some(tried) }) = so_far else {
            self.add(AssessmentEvidence::NotTried);
            return MemoryState::Reclaimable;
        };
        let still = still.min(tried);
        let leaked_after = self.facts.limits.leaked_after;
        self.add(AssessmentEvidence::Tried { seconds: tried.as_secs() });
        self.add(AssessmentEvidence::Still {
            seconds: still.as_secs(),
            leaked_after_seconds: leaked_after.as_secs(),
        });
        if still >= leaked_after { MemoryState::Leaked } else { MemoryState::Unknown }
    }
}
