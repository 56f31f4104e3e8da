//! Assesses memory that no process accounts for: one state for the node.
//!
//! If a driver keeps memory after its last user has ended, only a reboot helps. So memory counts as
//! leaked only if nothing else explains it, and it has not changed for minutes after every remedy
//! was tried. An unknown fact never counts as its absence.

mod assess;
mod signs;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use promql_rules::store::SeriesStore;

use crate::model::{
    Action, AssessmentEvidence, AssessmentLimits, Baseline, CacheKind, DecisionId, DecisionRecord,
    EnginePhase, Event, GateMemory, GpuDevice, GpuDriver, GpuPicture, GpuReadings, HolderReadings,
    MemoryAssessment, MemoryPlatform, MemoryState, Moment, Orphan, Outcome, OutcomeResult,
    ProgramEvent, Reading, SeriesKey,
};
use crate::policy::counters::{Cell, Counters};
use assess::{Assessed, AssessmentInputs, DriverState, UnexplainedMemory, assess};
use signs::Signs;

/// Time between two assessments.
const EVERY: Duration = Duration::from_secs(1);

/// Older samples are not current.
const CURRENT_WITHIN: Duration = Duration::from_secs(30);

/// Changes within this many bytes do not count.
const SWING: u64 = 64 << 20;

/// Acts whose outcome is awaited; more are forgotten.
const MOST_AWAITED: usize = 64;

/// Start of the time in which only a leak explains the memory.
#[derive(Clone, Copy, Debug)]
struct LeakWindow {
    unexplained: Duration,
    /// Start of the time in which it has stayed between `low` and `high`.
    still: Duration,
    low: u64,
    high: u64,
}

/// A remedy of this program that may reclaim memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReclaimAttempt {
    /// Dirty pages were written, then caches of every driver dropped.
    Drop,
    /// Memory was compacted.
    Compact,
}

/// The inputs of an assessment besides the driver's and the processes'.
#[derive(Debug)]
pub(super) struct AssessmentContext<'b> {
    /// The memory that the kernel manages, if current.
    pub(super) memory: Option<&'b GateMemory>,
    /// What each pool has above its baseline in no counter, where the kernel manages several.
    pub(super) by_pool: &'b [(Arc<str>, u64)],
    /// Engines that live.
    pub(super) engines: Reading<&'b [(Arc<str>, EnginePhase)]>,
}

/// Tracks the inputs and the state.
#[derive(Debug)]
pub(super) struct AssessmentWatch {
    limits: AssessmentLimits,
    holders: Option<HolderReadings>,
    driver: GpuDriver,
    /// When the driver was last read.
    driver_read_at: Duration,
    platform: MemoryPlatform,
    /// Processes that the driver names.
    named: Vec<u32>,
    /// Processes that it names and that do not have it open.
    ghosts: Vec<u32>,
    /// A GPU's own memory that the driver attributes to no process, by GPU.
    on_gpus: Vec<(u32, u64)>,
    signs: Signs,
    awaited: Vec<(DecisionId, ReclaimAttempt)>,
    dropped: Option<Duration>,
    compacted: Option<Duration>,
    since: Option<LeakWindow>,
    assessed_at: Option<Duration>,
    /// Whether there was ever a state other than `unknown`.
    has_assessed: bool,
    assessment: Arc<MemoryAssessment>,
    cells: [Cell; MemoryState::ALL.len()],
}

/// A series for each state.
pub(super) const VERDICT: &str = "uma_memory_verdict";

impl AssessmentWatch {
    pub(super) fn new(started: Moment, counters: &mut Counters, store: &mut SeriesStore) -> Self {
        let cells = MemoryState::ALL.map(|state| {
            let key = SeriesKey::new(VERDICT, &[("verdict", state.name())]);
            let cell = counters.cell(store, &key);
            // Unknown until it is assessed: neither false nor a failure.
            counters.set_reading(cell, Reading::Unsupported);
            cell
        });
        Self {
            limits: AssessmentLimits::default(),
            holders: None,
            driver: GpuDriver::Unknown { why: Arc::from("it is not queried") },
            driver_read_at: Duration::ZERO,
            platform: MemoryPlatform::default(),
            named: Vec::new(),
            ghosts: Vec::new(),
            on_gpus: Vec::new(),
            signs: Signs::default(),
            awaited: Vec::new(),
            dropped: None,
            compacted: None,
            since: None,
            assessed_at: None,
            has_assessed: false,
            assessment: Arc::new(MemoryAssessment::unknown(started.utc)),
            cells,
        }
    }

    pub(super) fn set_limits(&mut self, limits: AssessmentLimits) {
        self.limits = limits;
    }

    /// The last assessment; the same `Arc` until the next.
    pub(super) fn shared(&self) -> Arc<MemoryAssessment> {
        Arc::clone(&self.assessment)
    }

    /// The last assessment, borrowed.
    pub(super) fn current(&self) -> &MemoryAssessment {
        &self.assessment
    }

    /// Takes the processes that have the driver open.
    pub(super) fn take_holders(&mut self, readings: &HolderReadings) {
        if self.holders.as_ref().is_some_and(|known| known.read_at > readings.read_at) {
            return;
        }
        if readings.error.is_none() {
            self.signs.take_holders(readings);
        }
        self.holders = Some(readings.clone());
        self.find_ghosts();
    }

    /// Takes the driver's state and picture.
    pub(super) fn take_driver(&mut self, readings: &GpuReadings) {
        self.driver_read_at = readings.read_at;
        self.driver.clone_from(&readings.driver);
        self.signs.set_silent(match readings.driver {
            GpuDriver::Silent { since, .. } => Some(since),
            GpuDriver::Absent { .. } | GpuDriver::Unknown { .. } | GpuDriver::Responsive => None,
        });
        if let Some(picture) = &readings.picture {
            self.platform = platform(picture);
            let unowned =
                |device: &GpuDevice| Some((device.index, device.unowned_bytes().value()?));
            let devices = picture.devices.iter().filter(|_| !picture.is_cut);
            self.on_gpus = devices.filter_map(unowned).collect();
            self.named = picture.pids().unwrap_or_default();
            self.named.retain(|pid| !readings.askers.contains(pid));
            self.find_ghosts();
        }
    }

    fn find_ghosts(&mut self) {
        let holders = self.holders.as_ref().map_or(&[][..], |known| &known.holders);
        let has_open = |pid: u32| holders.iter().any(|it| it.id.pid == pid && it.devices > 0);
        self.ghosts.clear();
        self.ghosts.extend(self.named.iter().copied().filter(|pid| !has_open(*pid)));
    }

    /// Takes an event that may be a sign.
    pub(super) fn take_event(&mut self, at: Duration, event: &Event) {
        self.signs.take_event(at, event);
    }

    /// Remembers a decision that may bring memory back.
    pub(super) fn decided(&mut self, decision: &DecisionRecord) {
        let what = match &decision.action {
            Action::DropCaches { what: CacheKind::All, sync: true } => ReclaimAttempt::Drop,
            Action::CompactMemory => ReclaimAttempt::Compact,
            _ => return,
        };
        if decision.is_act() {
            if self.awaited.len() >= MOST_AWAITED {
                self.awaited.remove(0);
            }
            self.awaited.push((decision.id, what));
        }
    }

    /// Takes the outcome of a remembered decision.
    pub(super) fn observe_outcome(&mut self, outcome: &Outcome) {
        let place = self.awaited.iter().position(|(id, _)| *id == outcome.decision);
        let Some((_, what)) = place.map(|place| self.awaited.remove(place)) else { return };
        if outcome.result != OutcomeResult::Done {
            return;
        }
        let ended = Some(outcome.ended.uptime);
        match what {
            ReclaimAttempt::Drop => self.dropped = ended,
            ReclaimAttempt::Compact => self.compacted = ended,
        }
    }

    /// Assesses, if it is time to. A state that has changed is an event.
    pub(super) fn assess(
        &mut self,
        at: Moment,
        context: &AssessmentContext<'_>,
        counters: &mut Counters,
        events: &mut Vec<Event>,
    ) {
        // Without a scan of the driver's users no state is due.
        let is_due =
            self.assessed_at.is_none_or(|assessed| at.uptime.saturating_sub(assessed) >= EVERY);
        if self.holders.is_none() || !is_due {
            return;
        }
        self.assessed_at = Some(at.uptime);
        self.signs.see(at.uptime);
        let unexplained = self.unexplained(at.uptime, context);
        let (assessed, evidence) = assess(&self.facts(at.uptime, context), unexplained);
        self.follow(at.uptime, context, assessed);
        self.take(at, assessed, evidence, events);
        for (cell, state) in self.cells.iter().zip(MemoryState::ALL) {
            counters.set(*cell, f64::from(state == assessed.state));
        }
    }

    fn take(
        &mut self,
        at: Moment,
        assessed: Assessed,
        evidence: Vec<AssessmentEvidence>,
        events: &mut Vec<Event>,
    ) {
        let (before, state) = (self.assessment.state, assessed.state);
        let is_new = state != before;
        let assessment = MemoryAssessment {
            state,
            since: if is_new { at.utc } else { self.assessment.since },
            held_bytes: assessed.held,
            estimated_seconds: assessed.estimated_seconds,
            evidence,
            is_driver_absent: self.is_driver_absent(),
        };
        // A node that is found well is no event.
        let is_well = matches!(state, MemoryState::Clean | MemoryState::InUse);
        let is_first = is_new && !std::mem::replace(&mut self.has_assessed, true);
        if is_new && !(is_first && is_well) {
            let (held_bytes, evidence) = (assessed.held, assessment.reasons());
            let kind = ProgramEvent::MemoryAssessed { state, before, held_bytes, evidence };
            events.push(Event { kind: kind.into(), utc: Some(at.utc), seq: None });
        }
        self.assessment = Arc::new(assessment);
    }

    /// Tracks how long only a leak has explained the memory.
    fn follow(&mut self, at: Duration, context: &AssessmentContext<'_>, assessed: Assessed) {
        let held = context.memory.and_then(|memory| memory.unaccounted.value());
        let Some(held) = held.filter(|_| assessed.is_unexplained) else {
            self.since = None;
            return;
        };
        let since = self.since.get_or_insert(LeakWindow {
            unexplained: at,
            still: at,
            low: held,
            high: held,
        });
        let (low, high) = (since.low.min(held), since.high.max(held));
        *since = match high - low <= SWING {
            true => LeakWindow { low, high, ..*since },
            false => LeakWindow { still: at, low: held, high: held, ..*since },
        };
    }

    fn unexplained(
        &self,
        at: Duration,
        context: &AssessmentContext<'_>,
    ) -> Option<UnexplainedMemory> {
        let since = self.since?;
        // A change in this sample ends the steady time.
        let held = context.memory?.unaccounted.value()?;
        let moves = since.high.max(held) - since.low.min(held) > SWING;
        let still = if moves { Duration::ZERO } else { at.saturating_sub(since.still) };
        let tried = self.dropped.zip(self.compacted).map(|(one, other)| one.min(other));
        let tried = tried.filter(|tried| *tried >= since.unexplained);
        Some(UnexplainedMemory { still, tried: tried.map(|tried| at.saturating_sub(tried)) })
    }

    fn facts<'f>(&'f self, at: Duration, context: &AssessmentContext<'f>) -> AssessmentInputs<'f> {
        let is_current = |readings: &&HolderReadings| {
            readings.error.is_none() && at.saturating_sub(readings.read_at) <= CURRENT_WITHIN
        };
        let holders = self.holders.as_ref().filter(is_current);
        let memory = context.memory;
        let known = |reading: Option<Reading<u64>>| reading.unwrap_or(Reading::Failed);
        let driver = self.driver_state(at, holders);
        AssessmentInputs {
            unaccounted: known(memory.map(|memory| memory.unaccounted)),
            baseline: memory.map_or_else(unlearned, |memory| memory.baseline),
            by_pool: context.by_pool,
            shmem: known(memory.map(|memory| memory.shmem)),
            unaccounted_trend: memory.and_then(|memory| memory.motion.unaccounted),
            shmem_trend: memory.and_then(|memory| memory.motion.shmem),
            engines: context.engines,
            orphans: memory.map_or(&[], orphans),
            holders: holders
                .map_or(Reading::Failed, |readings| Reading::Value(readings.holders.as_slice())),
            unseen: holders.map_or(0, |readings| readings.unseen),
            driver,
            ghosts: &self.ghosts,
            signs: self.signs.all(),
            on_gpus: if driver == DriverState::Answers { &self.on_gpus } else { &[] },
            platform: self.platform,
            limits: self.limits,
        }
    }

    fn is_driver_absent(&self) -> bool {
        let loaded = self.holders.as_ref().map(|readings| readings.is_driver_loaded);
        loaded == Some(Reading::Value(false))
    }

    fn driver_state(&self, at: Duration, holders: Option<&HolderReadings>) -> DriverState {
        if holders.is_some() && self.is_driver_absent() {
            return DriverState::Absent;
        }
        let is_current = at.saturating_sub(self.driver_read_at) <= CURRENT_WITHIN;
        match self.driver {
            GpuDriver::Silent { .. } => DriverState::Silent,
            GpuDriver::Responsive if is_current => DriverState::Answers,
            // That no library is found here does not prove that no driver holds memory.
            _ => DriverState::Unknown,
        }
    }
}

fn unlearned() -> Baseline {
    Baseline { bytes: 0, is_learned: false }
}

fn platform(picture: &GpuPicture) -> MemoryPlatform {
    if picture.devices.iter().any(GpuDevice::is_coherent) {
        return MemoryPlatform::Coherent;
    }
    let has_own = picture.devices.iter().any(|device| device.is_unified() == Some(false));
    if has_own { MemoryPlatform::Discrete } else { MemoryPlatform::Unified }
}

fn orphans(memory: &GateMemory) -> &[Orphan] {
    match &memory.orphans {
        Reading::Value(orphans) => orphans,
        Reading::Unsupported | Reading::Failed => &[],
    }
}
