//! Deaths of engines that this program neither launched nor restarts, until they are reported.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::Engines;
use super::life::{self, Life, ticks};
use crate::model::{
    DeathMemory, DeathReport, EndedWorkload, EngineHealth, EnginePhase, EngineReadings, EngineSeen,
    Event, EventKind, Killer, ProcessId, ProgramEvent, Proof, Supervisor, UserUnit, Workload,
};
use crate::policy::Context;
use crate::policy::death::{ObservedDeath, REPORT_AFTER, memory};

/// A supervisor that answers reports an end within this time.
const SUPERVISOR_REPORTS_WITHIN: Duration = Duration::from_secs(4);

/// A supervisor shares our clock, but a sample takes time.
const SLACK: Duration = Duration::from_secs(5);

/// Most pending deaths, and most remembered ends.
const MOST: usize = 32;

/// An engine whose server has ended.
#[derive(Clone, Debug)]
pub(in crate::policy) struct Dead {
    /// As it was seen alive last.
    seen: EngineSeen,
    /// When that was, and when it was seen to be dead, on the uptime clock.
    last_alive: Duration,
    noticed: Duration,
    phase: EnginePhase,
    memory: Option<DeathMemory>,
    health: Option<EngineHealth>,
    /// Once it is explained and the other nodes know of it: whether its killer came from outside.
    is_from_outside: Option<bool>,
}

impl Dead {
    /// `None`: its death is uncertain, or reported elsewhere. Call it before its life takes the new
    /// sample.
    pub(super) fn of(life: &Life, at: Duration, readings: &EngineReadings) -> Option<Self> {
        let seen = life.seen();
        let all = readings.engines.iter().flat_map(|engine| &engine.processes);
        // It may have become a part of another engine: one that was launched, or is declared.
        let mut living = all.filter(|process| !life::has_ended(process));
        let is_there = living.any(|process| process.id == seen.server);
        if is_there || readings.turned.contains(&seen.server) {
            return None;
        }
        if readings.is_cut || seen.is_launched || seen.is_left_behind {
            return None;
        }
        Some(Self {
            seen: seen.clone(),
            last_alive: life.last_alive(),
            noticed: at,
            phase: life.phase_alive(),
            memory: None,
            health: life.health().cloned(),
            is_from_outside: None,
        })
    }

    /// Whether all is known of it that this node can know; `answers`: whether that supervisor
    /// reports at present.
    fn is_explained(
        &self,
        ends: &VecDeque<EndedWorkload>,
        context: &Context<'_>,
        answers: impl Fn(Supervisor) -> bool,
    ) -> bool {
        let waited = context.at.uptime.saturating_sub(self.noticed);
        let end = end_of(ends, self, context);
        let is_reported = match self.held().map(|held| held.supervisor) {
            // systemd reports the end at once, and its output is read then.
            Some(Supervisor::Systemd) => end.is_some_and(|ended| ended.end.log.is_some()),
            Some(one) if one.runs_containers() => end.is_some() || !answers(one),
            _ => true,
        };
        let is_its = |id: ProcessId| self.seen.processes.iter().any(|process| process.id == id);
        waited >= REPORT_AFTER
            && !context.kills.awaits_outcome(waited, is_its)
            && (is_reported || waited >= SUPERVISOR_REPORTS_WITHIN)
    }

    fn report(&self, ends: &VecDeque<EndedWorkload>, context: &Context<'_>) -> DeathReport {
        let family: BTreeSet<ProcessId> =
            self.seen.processes.iter().map(|process| process.id).collect();
        let left = context.engines.left_of(None, &family, context.at.uptime).unwrap_or_default();
        let held = self.held();
        ObservedDeath {
            held: held.as_ref(),
            end: end_of(ends, self, context).map(|ended| &ended.end),
            noticed: self.noticed,
            began: Some(ticks(self.seen.server.start_ticks)),
            phase: self.phase,
            engine: Some(&self.seen),
            memory: self.memory,
            health: self.health.as_ref(),
            left: &left,
        }
        .report(context)
    }

    fn held(&self) -> Option<Workload> {
        let seen = &self.seen;
        if let Some(id) = &seen.container {
            let name = seen.container_name.as_ref().unwrap_or(id);
            let (name, id) = (Arc::clone(name), Arc::clone(id));
            let supervisor = match seen.runtime_user() {
                Some(user) => Supervisor::DockerOfUser(user),
                None if seen.proof == Proof::PodContainer => Supervisor::Cri,
                None => Supervisor::Docker,
            };
            return Some(Workload { supervisor, name, id });
        }
        if let Some(UserUnit { user, name }) = &seen.user_unit {
            let supervisor = Supervisor::SystemdOfUser(*user);
            return Some(Workload { supervisor, name: Arc::clone(name), id: Arc::clone(name) });
        }
        // What people started themselves shares the unit of their session.
        let name = Arc::clone(seen.service()?.0);
        Some(Workload { supervisor: Supervisor::Systemd, id: Arc::clone(&name), name })
    }
}

/// Pending deaths.
#[derive(Debug, Default)]
pub(in crate::policy) struct Deaths {
    pending: Vec<Dead>,
    /// Ends that supervisors reported, the newest last.
    ends: VecDeque<EndedWorkload>,
}

impl Deaths {
    pub(in crate::policy) fn add(&mut self, dead: impl IntoIterator<Item = Dead>) {
        self.pending.extend(dead);
        self.pending.truncate(MOST);
    }

    /// Takes a supervisor's ends of engines that it does not restart for us.
    pub(in crate::policy) fn take(&mut self, ended: &[EndedWorkload]) {
        for ended in ended {
            let of =
                |ended: &EndedWorkload| (ended.target.supervisor, Arc::clone(&ended.target.id));
            self.ends.retain(|known| of(known) != of(ended));
            self.ends.push_back(ended.clone());
            if self.ends.len() > MOST {
                self.ends.pop_front();
            }
        }
    }

    /// Reports the deaths that are complete. A restarted engine is reported by its restart:
    /// `is_reported_elsewhere`; `answers`: whether that supervisor reports at present.
    ///
    /// Returns those that are explained now: the other nodes wait for them, as these may wait for
    /// the ranks there.
    pub(in crate::policy) fn step(
        &mut self,
        context: &Context<'_>,
        is_reported_elsewhere: impl Fn(&EngineSeen) -> bool,
        answers: impl Fn(Supervisor) -> bool,
        events: &mut Vec<Event>,
    ) -> Vec<DeathReport> {
        if self.pending.is_empty() {
            return Vec::new();
        }
        let now = context.at.uptime;
        self.pending.retain(|dead| !is_reported_elsewhere(&dead.seen));
        for dead in self.pending.iter_mut().filter(|dead| dead.memory.is_none()) {
            dead.memory = Some(memory(context, Some(&dead.seen)));
        }
        let ends = &self.ends;
        let mut explained = Vec::new();
        for dead in self.pending.iter_mut().filter(|dead| dead.is_from_outside.is_none()) {
            if dead.is_explained(ends, context, &answers) {
                let report = dead.report(ends, context);
                dead.is_from_outside = Some(Killer::is_from_outside(report.killer.name()));
                explained.push(report);
            }
        }
        let is_due = |dead: &mut Dead| {
            dead.is_from_outside.is_some_and(|is_from_outside| {
                let (server, noticed) = (dead.seen.server, dead.noticed);
                context.engines.rank_ends_are_known(server, is_from_outside, noticed, now)
            })
        };
        for dead in self.pending.extract_if(.., is_due) {
            let report = dead.report(ends, context);
            let utc = Some(report.ended);
            let kind = ProgramEvent::EngineDied { report: Box::new(report) };
            events.push(Event { kind: kind.into(), utc, seq: None });
        }
        explained
    }
}

impl Engines {
    /// The last health check of an engine, if that run of it is still remembered.
    pub(in crate::policy) fn health_of(&self, seen: &EngineSeen) -> Option<&EngineHealth> {
        let (life, _) = self.lives.get(&seen.name)?;
        life.health().filter(|health| health.server == seen.server)
    }

    /// A death that a launcher reports, in the phase that was seen here: the launcher's is up to a
    /// beat old, and absent where the command ended within the first.
    pub(in crate::policy) fn with_last_phase(&self, mut event: Event) -> Event {
        if let EventKind::Program(ProgramEvent::EngineDied { report }) = &mut event.kind
            && let Some((life, _)) = report.who.server.and_then(|server| self.life_of(server))
        {
            report.phase = Some(life.phase_alive());
        }
        event
    }
}

/// Its supervisor's record of that end.
fn end_of<'e>(
    ends: &'e VecDeque<EndedWorkload>,
    dead: &Dead,
    context: &Context<'_>,
) -> Option<&'e EndedWorkload> {
    let at = context.at;
    let since_alive = at.uptime.saturating_sub(dead.last_alive).saturating_add(SLACK);
    let held = dead.held()?;
    let is_its = |ended: &&EndedWorkload| {
        let ago = ended.end.utc.map(|utc| Duration::try_from(at.utc.duration_since(utc)));
        // One that is slightly in the future is of now.
        let is_since = ago.is_some_and(|ago| ago.is_ok_and(|ago| ago <= since_alive));
        let target = &ended.target;
        (target.supervisor, &target.id) == (held.supervisor, &held.id) && is_since
    };
    ends.iter().rev().find(is_its)
}
