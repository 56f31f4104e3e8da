//! Invariants of deferred restarts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use umawarden::model::{
    Action, AimCheck, DecisionId, DecisionRecord, DeferredRestart, EnginePhase, EngineReadings,
    EngineSeen, EngineTarget, EventKind, HealthResponse, Mode, Observation, OnRequest, Outcome,
    OutcomeResult, ProcessId, ProgramEvent, Reading, RestartReadings, Source, Supervisor, Target,
    WorkloadHealth, WorkloadState,
};
use umawarden::policy::Step;

use super::acts::Acted;
use super::{Checker, Clock, LOST_AFTER, Violation, broken};

/// Older readings count as unknown.
const KNOWN_FOR: Duration = Duration::from_secs(15);

/// A completed start is visible within this time.
const SHOWS_WITHIN: Duration = Duration::from_secs(10);

/// A container or unit that runs this long without a report counts as ready.
const SETTLES: Duration = Duration::from_secs(60);

/// The window in which a release is searched, and its age.
const PAST: Duration = Duration::from_secs(5);
const SETTLED: Duration = Duration::from_millis(500);

#[derive(Default)]
pub struct Restarts {
    /// Time of the last reading of each supervisor, and whether it succeeded.
    polled: BTreeMap<Supervisor, (Duration, bool)>,
    deferred: BTreeMap<Arc<str>, Deferred>,
    engines: Vec<EngineSeen>,
    scanned_at: Option<Duration>,
    /// Servers that have answered.
    ready: BTreeSet<ProcessId>,
    /// Engines that load, and are not stuck.
    loading: BTreeSet<String>,
    memory: VecDeque<(Duration, Memory)>,
    reserve: [f64; 2],
    baseline: Option<u64>,
    starts: BTreeMap<DecisionId, Start>,
    life: u32,
}

struct Deferred {
    seen: DeferredRestart,
    read_at: Duration,
    /// Time of the first reading of this state.
    since: Duration,
    /// Time of the last reading of another state.
    otherwise: Option<Duration>,
}

/// As read; an unreadable value is NaN.
#[derive(Clone, Copy)]
struct Memory {
    total: f64,
    free: f64,
    clean: f64,
    unaccounted: f64,
}

struct Start {
    name: Arc<str>,
    mark: Arc<str>,
    life: u32,
    at: Duration,
    outcome: Option<(OutcomeResult, Duration)>,
    died_in: Option<EnginePhase>,
}

fn mark(state: &WorkloadState) -> Option<(bool, &str)> {
    match state {
        WorkloadState::Running { mark, .. } => Some((true, mark)),
        WorkloadState::Ended(end) => Some((false, &end.mark)),
        WorkloadState::Fresh | WorkloadState::Between { .. } => None,
    }
}

impl Restarts {
    /// A process starts, and knows nothing.
    pub fn begin(&mut self) {
        let starts = std::mem::take(&mut self.starts);
        *self = Self { starts, life: self.life + 1, ..Self::default() };
    }

    pub fn forget(&mut self, decisions: &BTreeSet<DecisionId>) {
        self.starts.retain(|id, _| !decisions.contains(id));
    }

    pub fn see(&mut self, clock: &Clock, seen: &Observation) {
        match seen {
            Observation::Restarts(readings) => self.observe(readings),
            Observation::Engines(readings) => self.observe_engines(readings),
            Observation::EngineHealth(health) if health.answer == HealthResponse::Ready => {
                self.ready.insert(health.server);
            }
            Observation::Past(past) => {
                let host = past.unaccounted_baselines.get("host").copied();
                self.baseline = host.or(self.baseline);
            }
            Observation::Readings(readings) => {
                let value = |name: &str, label: Option<&str>| {
                    let mut all = readings.schema.series.iter().zip(&readings.values);
                    let is_it = |key: &umawarden::model::SeriesKey| {
                        *key.name == *name
                            && label
                                .is_none_or(|label| key.labels.iter().any(|(_, v)| **v == *label))
                    };
                    let found = all.find(|(key, _)| is_it(key)).map(|(_, value)| *value);
                    found.and_then(Reading::value).unwrap_or(f64::NAN)
                };
                match readings.source {
                    Source::Meminfo => {
                        let memory = Memory {
                            total: value("uma_memory_total_bytes", None),
                            free: value("uma_memory_free_bytes", None),
                            clean: value("uma_memory_page_cache_bytes", Some("clean")),
                            unaccounted: value("uma_memory_unaccounted_bytes", None),
                        };
                        self.measure(clock.at.uptime, memory);
                    }
                    Source::Zoneinfo => {
                        self.reserve[0] = value("uma_memory_watermark_bytes", Some("low"));
                    }
                    Source::Sysctl => self.reserve[1] = value("uma_memory_reserve_bytes", None),
                    _ => {}
                }
            }
            _ => {}
        }
    }

    fn measure(&mut self, now: Duration, memory: Memory) {
        while self.memory.front().is_some_and(|(at, _)| now.saturating_sub(*at) > PAST) {
            self.memory.pop_front();
        }
        self.memory.push_back((now, memory));
    }

    fn observe(&mut self, readings: &RestartReadings) {
        let read_at = readings.read_at;
        self.polled.insert(readings.supervisor, (read_at, readings.error.is_none()));
        if readings.error.is_some() {
            return;
        }
        let is_there =
            |name: &Arc<str>| readings.deferred.iter().any(|seen| seen.target.name == *name);
        self.deferred.retain(|name, deferred| {
            let is_kept = deferred.seen.target.supervisor != readings.supervisor || is_there(name);
            // A container that returns counts as another one; the executor inspects it once more
            // before a start.
            if !is_kept {
                let its = self.starts.values_mut().filter(|start| start.name == *name);
                its.for_each(|start| start.life = 0);
            }
            is_kept
        });
        for seen in &readings.deferred {
            let known = self.deferred.remove(&seen.target.name);
            let is_same = known
                .as_ref()
                .is_some_and(|deferred| mark(&deferred.seen.state) == mark(&seen.state));
            let (since, otherwise) = match &known {
                Some(deferred) if is_same => (deferred.since, deferred.otherwise),
                Some(deferred) => (read_at, Some(deferred.read_at)),
                None => (read_at, None),
            };
            let deferred = Deferred { seen: seen.clone(), read_at, since, otherwise };
            self.deferred.insert(Arc::clone(&seen.target.name), deferred);
        }
    }

    fn observe_engines(&mut self, readings: &EngineReadings) {
        self.scanned_at = Some(readings.read_at);
        self.engines.clone_from(&readings.engines);
        let is_there = |name: &String| self.engines.iter().any(|engine| *engine.name == **name);
        self.loading.retain(is_there);
    }

    pub fn take_outcome(&mut self, outcome: &Outcome) {
        if let Some(start) = self.starts.get_mut(&outcome.decision) {
            start.outcome = Some((outcome.result.clone(), outcome.ended.uptime));
        }
    }

    /// Engine events of the program.
    pub fn take_step(&mut self, step: &Step) {
        for event in &step.events {
            match &event.kind {
                EventKind::Program(ProgramEvent::EnginePhase {
                    engine,
                    to: EnginePhase::Loading,
                    ..
                }) => {
                    self.loading.insert(engine.clone());
                }
                EventKind::Program(ProgramEvent::EnginePhase { engine, .. }) => {
                    self.loading.remove(engine);
                }
                EventKind::Program(ProgramEvent::EngineStuck { engine, stuck, .. }) => {
                    let is_known = self.loading.remove(engine);
                    if !stuck && (is_known || self.engines.iter().any(|one| *one.name == **engine))
                    {
                        self.loading.insert(engine.clone());
                    }
                }
                EventKind::Program(ProgramEvent::UnaccountedBaseline { bytes, .. }) => {
                    self.baseline = Some(*bytes)
                }
                _ => {}
            }
        }
    }

    /// A stopped engine was present at the last scan, which was recent.
    pub fn is_seen_alive(&self, now: Duration, target: &EngineTarget) -> Result<(), Violation> {
        let is_new = self
            .scanned_at
            .is_some_and(|scanned_at| now.saturating_sub(scanned_at) <= 2 * SHOWS_WITHIN);
        let found = self.engines.iter().find(|engine| engine.name == target.name);
        let is_same = found.is_some_and(|engine| {
            let mut ids = engine.processes.iter().map(|process| process.id);
            target.processes.iter().all(|id| ids.any(|found| found == *id))
        });
        if is_new && is_same {
            return Ok(());
        }
        broken("a stopped engine was seen", format!("{target:?}, last scan {:?}", self.scanned_at))
    }

    fn is_known(&self, supervisor: Supervisor, now: Duration) -> bool {
        let last_poll = self.polled.get(&supervisor);
        last_poll.is_some_and(|(at, could)| *could && now.saturating_sub(*at) <= KNOWN_FOR)
    }

    fn engine_in(&self, seen: &DeferredRestart) -> Option<&EngineSeen> {
        let id = Some(&seen.target.id);
        self.engines.iter().find(|engine| match seen.target.supervisor {
            Supervisor::Docker | Supervisor::DockerOfUser(_) | Supervisor::Cri => {
                engine.container.as_ref() == id
            }
            Supervisor::Systemd | Supervisor::SystemdOfUser(_) => engine.unit.as_ref() == id,
        })
    }

    /// The container or unit that is still on its way to ready.
    fn occupant(&self, own: &str, now: Duration) -> Option<String> {
        let starts = |deferred: &&Deferred| {
            let seen = &deferred.seen;
            let runs = matches!(&seen.state, WorkloadState::Running { health, .. }
                if *health != Some(WorkloadHealth::Healthy));
            let is_young =
                now.saturating_sub(deferred.since) < SETTLES.min(seen.limits.ready_within);
            let engine = self.engine_in(seen).filter(|engine| {
                engine.health_url.is_some() && !self.ready.contains(&engine.server)
            });
            runs && is_young
                && *seen.target.name != *own
                && seen.obstacle.is_none()
                && self.is_known(seen.target.supervisor, now)
                && engine.is_some_and(|engine| engine.processes[0].id == engine.server)
        };
        let starting = self
            .deferred
            .values()
            .find(starts)
            .map(|deferred| deferred.seen.target.name.to_string());
        let own = self.deferred.get(own).and_then(|deferred| self.engine_in(&deferred.seen));
        let own = own.map(|engine| &*engine.name);
        starting.or_else(|| self.loading.iter().find(|name| Some(name.as_str()) != own).cloned())
    }

    /// Memory suffices, none is being released, and no process of it is left.
    fn has_memory(&self, seen: &DeferredRestart, now: Duration) -> Result<(), String> {
        let Some((at, memory)) = self.memory.back() else { return Err("unmeasured".to_owned()) };
        if now.saturating_sub(*at) > Duration::from_secs(2) {
            return Err(format!("measured at {at:?}"));
        }
        let reserve = self.reserve[0].max(self.reserve[1]);
        let shortfall = (reserve - memory.free).max(0.0);
        let usable = (memory.free - reserve).max(0.0) + (memory.clean - shortfall).max(0.0);
        let need = seen.need.need_bytes.unwrap_or(0) as f64;
        // NaN is less than any number.
        if !(usable + 4096.0 >= need && memory.unaccounted.is_finite()) {
            return Err(format!("{usable} of {need}"));
        }
        let usual = (1 << 30) as f64 + memory.total / 64.0;
        let above = memory.unaccounted - self.baseline.map_or(usual, |bytes| bytes as f64);
        let earlier = self.memory.iter().filter(|(at, _)| now.saturating_sub(*at) >= SETTLED);
        let least = earlier.map(|(_, sample)| sample.unaccounted).fold(f64::MAX, f64::min);
        let sank = least.max(0.0) - memory.unaccounted.max(0.0);
        if above > (257 << 20) as f64 && least < f64::MAX && sank > (65 << 20) as f64 {
            return Err(format!("{above} is being released, {sank} of it"));
        }
        let left = self.engine_in(seen).map(|engine| engine.processes.len()).unwrap_or_default();
        if left > 0 {
            return Err(format!("{left} of its processes are left"));
        }
        Ok(())
    }
}

impl Checker {
    /// A decision about a deferred restart.
    pub(super) fn restart(
        &mut self,
        clock: &Clock,
        decision: &DecisionRecord,
    ) -> Result<(), Violation> {
        if !decision.is_act() {
            return Ok(());
        }
        let (Target::Workload(target), Some(mark)) =
            (&decision.target, decision.action.starts_after())
        else {
            return broken("a restart has a target", format!("{decision:?}"));
        };
        let now = clock.at.uptime;
        let deferred = self.restarts.deferred.get(&target.name);
        let Some(deferred) = deferred.filter(|deferred| deferred.seen.target == **target) else {
            return broken("only a reported container or unit is started", format!("{decision:?}"));
        };
        if !self.restarts.is_known(target.supervisor, now) || deferred.seen.obstacle.is_some() {
            return broken("nothing is started without readings", format!("{decision:?}"));
        }
        let WorkloadState::Ended(end) = &deferred.seen.state else {
            let what = format!("it is {:?}: {decision:?}", deferred.seen.state);
            return broken("never two starts without an end in between", what);
        };
        if end.requested == OnRequest::Yes || end.mark != *mark {
            return broken("a requested stop is final", format!("{end:?}: {decision:?}"));
        }
        let mode = deferred.seen.mode.unwrap_or(self.mode);
        let mode = if self.enforces("start_unit") { mode } else { Mode::Observe };
        if decision.mode != mode {
            return broken("the mode is obeyed", format!("{decision:?}"));
        }
        self.is_first_after_that_end(decision, mark, deferred)?;
        self.limits_allow_start(clock, decision, deferred)?;
        if let Some(other) = self.restarts.occupant(&target.name, now) {
            return broken("one start at a time", format!("{other} does: {decision:?}"));
        }
        if let Err(why) = self.restarts.has_memory(&deferred.seen, now) {
            return broken("never a start without memory", format!("{why}: {decision:?}"));
        }
        self.people.allow(clock, decision, None)?;
        self.rails_allow_start(clock, decision)?;
        self.fly(clock, decision)?;
        let (name, mark, life) = (Arc::clone(&target.name), Arc::clone(mark), self.restarts.life);
        let start = Start { name, mark, life, at: now, outcome: None, died_in: None };
        self.restarts.starts.insert(decision.id, start);
        self.acts.push(Acted::new(clock, decision));
        Ok(())
    }

    /// An earlier start after the same exit has failed, and that was observed.
    fn is_first_after_that_end(
        &self,
        decision: &DecisionRecord,
        mark: &Arc<str>,
        deferred: &Deferred,
    ) -> Result<(), Violation> {
        let now = decision.at.uptime;
        let of_mode = |id: &DecisionId| {
            self.acts.iter().any(|act| act.id == *id && act.mode == decision.mode)
        };
        for (id, start) in &self.restarts.starts {
            let is_same = start.name == deferred.seen.target.name && start.mark == *mark;
            if !is_same || start.life != self.restarts.life || !of_mode(id) {
                continue;
            }
            let is_over = match &start.outcome {
                None => now.saturating_sub(start.at) >= LOST_AFTER,
                Some((OutcomeResult::NotDone(_), at)) => deferred.read_at >= *at,
                Some((OutcomeResult::Skipped, _)) => false,
                Some((_, at)) => deferred.read_at > *at && now.saturating_sub(*at) >= SHOWS_WITHIN,
            };
            if !is_over {
                let what =
                    format!("{id} at {:?} ended {:?}: {decision:?}", start.at, start.outcome);
                return broken("never two starts without an end in between", what);
            }
        }
        Ok(())
    }

    /// Back-off, cap, and the stop after so many deaths in the same phase.
    fn limits_allow_start(
        &self,
        clock: &Clock,
        decision: &DecisionRecord,
        deferred: &Deferred,
    ) -> Result<(), Violation> {
        let limits = &deferred.seen.limits;
        let lately = self.acts_of(decision).filter(|act| act.ago(clock) < limits.per);
        if lately.count() >= limits.times as usize {
            return broken("never more starts than at_most", format!("{limits:?}: {decision:?}"));
        }
        let deaths = self.deaths_in_a_row(decision);
        if limits.give_up_after > 0 && deaths >= limits.give_up_after {
            let what = format!("{deaths} deaths, {limits:?}: {decision:?}");
            return broken("repeated deaths in the same phase end the restarts", what);
        }
        let Some(doublings) = deaths.checked_sub(1) else { return Ok(()) };
        let wait = limits.back_off.saturating_mul(1 << doublings.min(20));
        let wait = wait.min(limits.back_off_at_most);
        if let Some(otherwise) = deferred.otherwise
            && clock.at.uptime.saturating_sub(otherwise) + Duration::from_millis(1) < wait
        {
            let what = format!("{deaths} deaths, {wait:?} from {otherwise:?} on: {decision:?}");
            return broken("a start waits longer after each death", what);
        }
        Ok(())
    }

    /// As far as they are certain.
    fn deaths_in_a_row(&self, decision: &DecisionRecord) -> u32 {
        let mut deaths = 0;
        let mut phase = None;
        let mut acts: Vec<&Acted> = self.acts_of(decision).collect();
        acts.reverse();
        for act in acts {
            let Some(start) = self.restarts.starts.get(&act.id) else { break };
            let was_begun = start.outcome.as_ref().is_none_or(|(result, _)| result.is_begun());
            match act.aim_met {
                _ if !was_begun => {}
                _ if act.is_forgiven => break,
                Some(false) if deaths == 0 || start.died_in == phase => {
                    (deaths, phase) = (deaths + 1, start.died_in);
                }
                _ => break,
            }
        }
        deaths
    }

    fn rails_allow_start(&self, clock: &Clock, decision: &DecisionRecord) -> Result<(), Violation> {
        if !self.knows_past {
            return broken("nothing is done before the past is known", format!("{decision:?}"));
        }
        let windows = self.rails.never_in.iter();
        if let Some(window) = windows.clone().find(|name| self.is_open(name, clock)) {
            return broken("maintenance windows are respected", format!("{window}: {decision:?}"));
        }
        let Target::Workload(target) = &decision.target else { return Ok(()) };
        let is_unit = target.supervisor == Supervisor::Systemd;
        if is_unit && self.rails.protect.units.iter().any(|glob| glob.matches(&target.name)) {
            return broken("nothing protected is touched", format!("{decision:?}"));
        }
        self.within_budget(clock, decision)
    }

    /// Handles the outcome of a start; `false`: it was no start.
    pub(super) fn check_start(&mut self, aim_check: &AimCheck) -> Result<bool, Violation> {
        let id = aim_check.decision;
        let Some(start) = self.restarts.starts.get_mut(&id) else { return Ok(false) };
        let aim_met = self.acts.iter().find(|act| act.id == id).and_then(|act| act.aim_met);
        let was_begun = start.outcome.as_ref().is_none_or(|(result, _)| result.is_begun());
        // One that people have started since may become ready at any time.
        if aim_check.aim_met != Some(true) && (!was_begun || aim_met.is_some()) {
            let what = format!("{:?}, {aim_met:?}: {aim_check:?}", start.outcome);
            return broken("only a start is aim_checked, once", what);
        }
        start.died_in = aim_check.died_in;
        for act in self.acts.iter_mut().filter(|act| act.id == id) {
            act.aim_met = aim_check.aim_met;
        }
        Ok(true)
    }
}

/// Whether it is about a deferred restart.
pub fn is_restart(decision: &DecisionRecord) -> bool {
    matches!(decision.action, Action::StartContainer { .. } | Action::StartUnit { .. })
}
