//! Lives of engines and deferred restarts, and faults of the node, from events of the journal.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::model::{
    DeathReport, EnginePhase, EventKind, FaultClass, KernelEvent, Killer, KillerDaemon,
    LoadReceipt, MemoryState, OomBound, OomConstraint, ProgramEvent, RestartState,
};

/// A kill for memory within this time shows that the act would have been in time.
const KILLS_WITHIN: SignedDuration = SignedDuration::from_mins(5);

/// A wedge shows later: the kernel reports a hung task after two minutes, and the assessment waits
/// for more signs.
const WEDGES_WITHIN: SignedDuration = SignedDuration::from_mins(10);

/// Entries of one kind that are kept.
const MOST: usize = 100_000;

/// Events that [`EngineLives::take`] reads.
pub(super) const KINDS: [&str; 11] = [
    "engine_phase",
    "engine_died",
    "engine_load",
    "engine_restart",
    "memory_verdict",
    "unclean_boot",
    "oom_kill",
    "oom_no_victim",
    "oom_panic",
    "userspace_kill",
    "engine_stuck",
];

/// What events show.
#[derive(Debug, Default)]
pub(super) struct EngineLives {
    phases: BTreeMap<String, Vec<PhaseChange>>,
    ends: BTreeMap<String, Vec<(Timestamp, String)>>,
    loads: BTreeMap<String, Vec<(Timestamp, u64)>>,
    restarts: BTreeMap<String, Vec<(Timestamp, RestartState)>>,
    held: Vec<(Timestamp, Option<u64>)>,
    faults: Vec<MemoryFault>,
    /// Starts and stops of the daemon.
    breaks: Vec<Timestamp>,
    count: usize,
}

/// An engine went to another phase.
#[derive(Clone, Copy, Debug)]
struct PhaseChange {
    at: Timestamp,
    /// The last report of the same: an engine begins and ends to serve all day.
    seen: Timestamp,
    pid: u32,
    to: EnginePhase,
    /// It makes no progress, whatever its phase.
    is_stuck: bool,
}

impl PhaseChange {
    fn is_up(self) -> bool {
        self.to.is_up() && !self.is_stuck
    }
}

/// Memory ran out on this node.
#[derive(Clone, Debug)]
pub(super) struct MemoryFault {
    pub(super) at: Timestamp,
    within: SignedDuration,
    /// Alerts that it confirms, where it may have other causes; else all.
    confirms: Option<Vec<String>>,
    pub(super) text: String,
}

impl MemoryFault {
    /// One that confirms any alert.
    fn of_memory(at: Timestamp, within: SignedDuration, text: String) -> Self {
        Self { at, within, confirms: None, text }
    }
}

/// What became of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LaterState {
    /// It is known to have run until then.
    pub(super) until: Timestamp,
    /// Whether it answered requests at that time.
    pub(super) is_up: bool,
    /// How it ended then, if it did.
    pub(super) ended: Option<String>,
}

impl EngineLives {
    pub(super) fn take(&mut self, at: Timestamp, event: &EventKind, is_claimed: bool) {
        // Whoever can write such a line would promote a rule.
        if is_claimed || self.goes_on(at, event) || self.count >= MOST {
            return;
        }
        self.count += 1;
        match event {
            EventKind::Kernel(event) => self.take_fault(at, event),
            EventKind::Program(event) => self.take_program(at, event),
        }
    }

    /// Takes the report of an engine that is up, and was before.
    fn goes_on(&mut self, at: Timestamp, event: &EventKind) -> bool {
        let EventKind::Program(ProgramEvent::EnginePhase { engine, to, pid, .. }) = event else {
            return false;
        };
        let last = self.phases.get_mut(engine).and_then(|phases| phases.last_mut());
        let Some(last) = last.filter(|last| last.pid == *pid && last.is_up() && to.is_up()) else {
            return false;
        };
        last.seen = at;
        true
    }

    /// The daemon began or ended to observe.
    pub(super) fn interrupt(&mut self, at: Timestamp) {
        self.breaks.push(at);
    }

    fn take_fault(&mut self, at: Timestamp, event: &KernelEvent) {
        let is_of_node = match event {
            KernelEvent::OomKill { manual: false, .. } => {
                FaultClass::of(event) == Some(FaultClass::OomKill(OomBound::Machine))
            }
            KernelEvent::OomNoVictim | KernelEvent::OomPanic => true,
            KernelEvent::UserspaceKill { by, .. } => *by != KillerDaemon::Ray,
            _ => false,
        };
        if is_of_node {
            self.faults.push(MemoryFault::of_memory(at, KILLS_WITHIN, event.to_string()));
        }
    }

    fn take_program(&mut self, at: Timestamp, event: &ProgramEvent) {
        match event {
            ProgramEvent::EnginePhase { engine, to, pid, .. } => {
                let turn = PhaseChange { at, seen: at, pid: *pid, to: *to, is_stuck: false };
                self.phases.entry(engine.clone()).or_default().push(turn);
            }
            ProgramEvent::EngineStuck { engine, stuck, pid, .. } => {
                let phases = self.phases.entry(engine.clone()).or_default();
                let last = phases.last().filter(|last| last.pid == *pid);
                let turn = last.map(|last| PhaseChange { at, seen: at, is_stuck: *stuck, ..*last });
                phases.extend(turn);
            }
            ProgramEvent::EngineDied { report } => self.take_death(report),
            ProgramEvent::EngineLoad { engine, receipt, .. } => {
                let bytes = took(receipt);
                let loads = self.loads.entry(engine.clone()).or_default();
                loads.extend(bytes.map(|bytes| (at, bytes)));
            }
            ProgramEvent::EngineRestart { engine, to, .. } => {
                let states = self.restarts.entry(engine.clone()).or_default();
                // Another reason for the same state is an event, too.
                if states.last().is_none_or(|(_, state)| state != to) {
                    states.push((at, *to));
                }
            }
            ProgramEvent::MemoryAssessed { state, held_bytes, .. } => {
                self.held.push((at, *held_bytes));
                if *state == MemoryState::Wedged {
                    let text = "the driver was wedged".to_owned();
                    self.faults.push(MemoryFault::of_memory(at, WEDGES_WITHIN, text));
                }
            }
            // Somebody may have pulled the plug of a healthy machine.
            ProgramEvent::UncleanBoot { last_record: Some(at), firing, .. } => {
                let text = "the boot ended without order while the alert fired".to_owned();
                let confirms = Some(firing.clone());
                self.faults.push(MemoryFault { at: *at, within: WEDGES_WITHIN, confirms, text });
            }
            _ => {}
        }
    }

    fn take_death(&mut self, report: &DeathReport) {
        let name = report.who.name.to_string();
        self.ends.entry(name).or_default().push((report.ended, report.sentence()));
        let is_of_node = match &report.killer {
            Killer::KernelOom { constraint, manual, .. } => {
                *constraint == Some(OomConstraint::None) && !manual
            }
            // Ray's is known from the log of the engine, whose author may be anybody.
            Killer::UserspaceOom { daemon } => *daemon != KillerDaemon::Ray,
            _ => false,
        };
        if is_of_node {
            let text = report.sentence();
            self.faults.push(MemoryFault::of_memory(report.ended, KILLS_WITHIN, text));
        }
    }

    /// The first fault that followed acts for that alert in that time, soon enough to be what they
    /// would have been for.
    pub(super) fn fault(
        &self,
        alert: &str,
        first: Timestamp,
        last: Timestamp,
    ) -> Option<&MemoryFault> {
        let follows = |fault: &&MemoryFault| {
            let confirms = fault.confirms.as_ref();
            fault.at >= first
                && fault.at.duration_since(last) <= fault.within
                && confirms.is_none_or(|alerts| alerts.iter().any(|name| *name == *alert))
        };
        self.faults.iter().filter(follows).min_by_key(|fault| fault.at)
    }

    /// Whether a fault came within that time after it.
    pub(super) fn has_fault_within(&self, at: Timestamp, time: SignedDuration) -> bool {
        let comes = |fault: &MemoryFault| fault.at >= at && fault.at.duration_since(at) <= time;
        self.faults.iter().any(comes)
    }

    /// What became of the engine that ran at that time, while this node was observed until
    /// `covered`. `None`: that it ran is not known.
    pub(super) fn later_state(
        &self,
        engine: &str,
        pid: Option<u32>,
        at: Timestamp,
        covered: Timestamp,
    ) -> Option<LaterState> {
        let phases = self.phases.get(engine)?;
        let next = phases.partition_point(|turn| turn.at <= at);
        let now = next.checked_sub(1).and_then(|last| phases.get(last));
        let now = now
            .filter(|turn| turn.to != EnginePhase::Gone && pid.is_none_or(|pid| pid == turn.pid));
        let now = now.copied().or_else(|| {
            let later = phases.get(next).filter(|turn| Some(turn.pid) == pid)?;
            Some(PhaseChange { seen: at, ..*later })
        })?;
        let (mut last, mut known) = (now, now.seen.max(at));
        let later = phases.get(next..).unwrap_or_default();
        for turn in later.iter().take_while(|turn| turn.pid == now.pid) {
            if turn.to == EnginePhase::Gone {
                let ended = Some(self.end(engine, turn.at));
                return Some(LaterState { until: turn.at, is_up: last.is_up(), ended });
            }
            (last, known) = (*turn, turn.seen);
        }
        // Without a report nothing has changed, while somebody would have reported it.
        let is_followed = later.iter().any(|turn| turn.pid != now.pid);
        if !is_followed {
            known = known.max(self.break_after(known).unwrap_or(covered));
        }
        Some(LaterState { until: known, is_up: last.is_up(), ended: None })
    }

    /// Engines that ran at that time.
    pub(super) fn engines(&self) -> impl Iterator<Item = &str> {
        self.phases.keys().map(String::as_str)
    }

    fn end(&self, engine: &str, gone: Timestamp) -> String {
        let ends = self.ends.get(engine).map_or(&[][..], Vec::as_slice);
        let near = |(at, _): &&(Timestamp, String)| {
            gone.duration_since(*at).abs() <= SignedDuration::from_mins(2)
        };
        ends.iter().find(near).map_or_else(|| "it ended".to_owned(), |(_, text)| text.clone())
    }

    fn break_after(&self, at: Timestamp) -> Option<Timestamp> {
        self.breaks.iter().copied().find(|one| *one > at)
    }

    /// What the last load of an engine before that time took, in bytes.
    pub(super) fn took(&self, engine: &str, at: Timestamp) -> Option<u64> {
        let loads = self.loads.get(engine)?;
        loads.iter().rev().find(|(loaded, _)| *loaded <= at).map(|(_, bytes)| *bytes)
    }

    /// Memory without an owner by the last assessment before that time, in bytes.
    pub(super) fn held(&self, at: Timestamp) -> Option<u64> {
        self.held.iter().rev().find(|(assessed, _)| *assessed <= at)?.1
    }

    /// The states of a deferred restart after that time.
    pub(super) fn restart_after(
        &self,
        name: &str,
        at: Timestamp,
    ) -> impl Iterator<Item = &(Timestamp, RestartState)> {
        let states = self.restarts.get(name).map_or(&[][..], Vec::as_slice);
        states.iter().filter(move |(changed, _)| *changed > at)
    }
}

/// What a load took, or a lower bound of it.
fn took(receipt: &LoadReceipt) -> Option<u64> {
    receipt.need_bytes().or(receipt.ready_bytes).or(receipt.peak_bytes)
}
