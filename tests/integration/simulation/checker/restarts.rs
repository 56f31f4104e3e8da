//! What must hold of everything that is started again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use umawarden::model::{
    Action, Assessment, Decision, DecisionId, DeferredRestart, EnginePhase, EngineReadings,
    EngineSeen, EngineTarget, EventKind, HealthAnswer, Observation, Outcome, OutcomeResult,
    ProcessId, ProgramEvent, Reading, Requested, RestartReadings, Source, Supervisor, Target,
    Verdict, WorkloadHealth, WorkloadState,
};
use umawarden::policy::Step;

use super::acts::Acted;
use super::{Checker, Clock, LOST_AFTER, Violation, broken};

/// What was told longer ago is not known.
const TOLD_WITHIN: Duration = Duration::from_secs(15);

/// A start that has ended shows within this time.
const SHOWS_WITHIN: Duration = Duration::from_secs(10);

/// What runs for so long, and of which nobody tells more, is taken for ready.
const SETTLES: Duration = Duration::from_secs(60);

/// How far back a release is looked for, from how long ago on.
const PAST: Duration = Duration::from_secs(5);
const SETTLED: Duration = Duration::from_millis(500);

#[derive(Default)]
pub struct Restarts {
    /// When each supervisor told last, and whether it could.
    told: BTreeMap<Supervisor, (Duration, bool)>,
    held: BTreeMap<Arc<str>, Told>,
    engines: Vec<EngineSeen>,
    looked: Option<Duration>,
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

struct Told {
    seen: DeferredRestart,
    read_at: Duration,
    /// When it was first told that it is so.
    since: Duration,
    /// When it was last told otherwise.
    otherwise: Option<Duration>,
}

/// As told; what could not be read is not a number.
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
            Observation::Restarts(readings) => self.be_told(readings),
            Observation::Engines(readings) => self.look(readings),
            Observation::EngineHealth(health) if health.answer == HealthAnswer::Ready => {
                self.ready.insert(health.server);
            }
            Observation::Past(past) => self.baseline = past.unaccounted_baseline.or(self.baseline),
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

    fn be_told(&mut self, readings: &RestartReadings) {
        let read_at = readings.read_at;
        self.told.insert(readings.supervisor, (read_at, readings.error.is_none()));
        if readings.error.is_some() {
            return;
        }
        let is_there = |name: &Arc<str>| readings.held.iter().any(|seen| seen.target.name == *name);
        self.held.retain(|name, told| {
            let is_kept = told.seen.target.supervisor != readings.supervisor || is_there(name);
            // What comes back is another one, as far as anybody can tell; whoever starts it looks
            // once more before.
            if !is_kept {
                let its = self.starts.values_mut().filter(|start| start.name == *name);
                its.for_each(|start| start.life = 0);
            }
            is_kept
        });
        for seen in &readings.held {
            let known = self.held.remove(&seen.target.name);
            let is_same =
                known.as_ref().is_some_and(|told| mark(&told.seen.state) == mark(&seen.state));
            let (since, otherwise) = match &known {
                Some(told) if is_same => (told.since, told.otherwise),
                Some(told) => (read_at, Some(told.read_at)),
                None => (read_at, None),
            };
            let told = Told { seen: seen.clone(), read_at, since, otherwise };
            self.held.insert(Arc::clone(&seen.target.name), told);
        }
    }

    fn look(&mut self, readings: &EngineReadings) {
        self.looked = Some(readings.read_at);
        self.engines.clone_from(&readings.engines);
        let is_there = |name: &String| self.engines.iter().any(|engine| *engine.name == **name);
        self.loading.retain(is_there);
    }

    pub fn hear(&mut self, outcome: &Outcome) {
        if let Some(start) = self.starts.get_mut(&outcome.decision) {
            start.outcome = Some((outcome.result.clone(), outcome.ended.uptime));
        }
    }

    /// What the program says of engines.
    pub fn said(&mut self, said: &Step) {
        for event in &said.events {
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
                EventKind::Program(ProgramEvent::UnaccountedBaseline { bytes }) => {
                    self.baseline = Some(*bytes)
                }
                _ => {}
            }
        }
    }

    /// Whoever is stopped was there when somebody last looked, and that was now.
    pub fn is_seen_alive(&self, now: Duration, target: &EngineTarget) -> Result<(), Violation> {
        let is_new =
            self.looked.is_some_and(|looked| now.saturating_sub(looked) <= 2 * SHOWS_WITHIN);
        let found = self.engines.iter().find(|engine| engine.name == target.name);
        let is_same = found.is_some_and(|engine| {
            let mut ids = engine.processes.iter().map(|process| process.id);
            target.processes.iter().all(|id| ids.any(|found| found == *id))
        });
        if is_new && is_same {
            return Ok(());
        }
        broken("whoever is stopped was seen", format!("{target:?}, last looked {:?}", self.looked))
    }

    fn is_known(&self, supervisor: Supervisor, now: Duration) -> bool {
        let told = self.told.get(&supervisor);
        told.is_some_and(|(at, could)| *could && now.saturating_sub(*at) <= TOLD_WITHIN)
    }

    fn engine_in(&self, seen: &DeferredRestart) -> Option<&EngineSeen> {
        let id = Some(&seen.target.id);
        self.engines.iter().find(|engine| match seen.target.supervisor {
            Supervisor::Docker => engine.container.as_ref() == id,
            Supervisor::Systemd => engine.unit.as_ref() == id,
        })
    }

    /// Who is still on its way to be ready, as anybody can see.
    fn occupant(&self, own: &str, now: Duration) -> Option<String> {
        let starts = |told: &&Told| {
            let seen = &told.seen;
            let runs = matches!(&seen.state, WorkloadState::Running { health, .. }
                if *health != Some(WorkloadHealth::Healthy));
            let is_young = now.saturating_sub(told.since) < SETTLES.min(seen.limits.ready_within);
            let engine = self.engine_in(seen).filter(|engine| {
                engine.health_url.is_some() && !self.ready.contains(&engine.server)
            });
            runs && is_young
                && *seen.target.name != *own
                && seen.obstacle.is_none()
                && self.is_known(seen.target.supervisor, now)
                && engine.is_some_and(|engine| engine.processes[0].id == engine.server)
        };
        let held = self.held.values().find(starts).map(|told| told.seen.target.name.to_string());
        let own = self.held.get(own).and_then(|told| self.engine_in(&told.seen));
        let own = own.map(|engine| &*engine.name);
        held.or_else(|| self.loading.iter().find(|name| Some(name.as_str()) != own).cloned())
    }

    /// There is memory for it, nothing is being given back, and nothing of it is left behind.
    fn has_room(&self, seen: &DeferredRestart, now: Duration) -> Result<(), String> {
        let Some((at, memory)) = self.memory.back() else { return Err("unmeasured".to_owned()) };
        if now.saturating_sub(*at) > Duration::from_secs(2) {
            return Err(format!("measured at {at:?}"));
        }
        let reserve = self.reserve[0].max(self.reserve[1]);
        let lacks = (reserve - memory.free).max(0.0);
        let room = (memory.free - reserve).max(0.0) + (memory.clean - lacks).max(0.0);
        let need = seen.need_bytes.unwrap_or(0) as f64;
        // One that is not a number is less than any.
        if !(room + 4096.0 >= need && memory.unaccounted.is_finite()) {
            return Err(format!("{room} of {need}"));
        }
        let usual = (1 << 30) as f64 + memory.total / 64.0;
        let above = memory.unaccounted - self.baseline.map_or(usual, |bytes| bytes as f64);
        let earlier = self.memory.iter().filter(|(at, _)| now.saturating_sub(*at) >= SETTLED);
        let least = earlier.map(|(_, told)| told.unaccounted).fold(f64::MAX, f64::min);
        let sank = least.max(0.0) - memory.unaccounted.max(0.0);
        if above > (257 << 20) as f64 && least < f64::MAX && sank > (65 << 20) as f64 {
            return Err(format!("{above} is being given back, {sank} of it"));
        }
        let left = self.engine_in(seen).map(|engine| engine.processes.len()).unwrap_or_default();
        if left > 0 {
            return Err(format!("{left} of its processes are left"));
        }
        Ok(())
    }
}

impl Checker {
    /// Something about what is started again was decided.
    pub(super) fn restart(&mut self, clock: &Clock, decision: &Decision) -> Result<(), Violation> {
        if decision.verdict != Verdict::Act {
            return Ok(());
        }
        let (Target::Held(target), Some(mark)) = (&decision.target, decision.action.starts_after())
        else {
            return broken("who starts again starts something", format!("{decision:?}"));
        };
        let now = clock.at.uptime;
        let told = self.restarts.held.get(&target.name);
        let Some(told) = told.filter(|told| told.seen.target == **target) else {
            return broken("nothing is started that nobody tells of", format!("{decision:?}"));
        };
        if !self.restarts.is_known(target.supervisor, now) || told.seen.obstacle.is_some() {
            return broken("nothing is started in the dark", format!("{decision:?}"));
        }
        let WorkloadState::Ended(end) = &told.seen.state else {
            let what = format!("it is {:?}: {decision:?}", told.seen.state);
            return broken("never two starts without an end in between", what);
        };
        if end.requested == Requested::Yes || end.mark != *mark {
            return broken("what somebody has ended stays down", format!("{end:?}: {decision:?}"));
        }
        if decision.mode != told.seen.mode.unwrap_or(self.mode) {
            return broken("the mode is obeyed", format!("{decision:?}"));
        }
        self.is_first_after_that_end(decision, mark, told)?;
        self.limits_allow_start(clock, decision, told)?;
        if let Some(other) = self.restarts.occupant(&target.name, now) {
            return broken("one starts at a time", format!("{other} does: {decision:?}"));
        }
        if let Err(why) = self.restarts.has_room(&told.seen, now) {
            return broken(
                "never a start into memory that is not there",
                format!("{why}: {decision:?}"),
            );
        }
        self.people.allow(clock, decision, false)?;
        self.rails_allow_start(clock, decision)?;
        self.fly(clock, decision)?;
        let (name, mark, life) = (Arc::clone(&target.name), Arc::clone(mark), self.restarts.life);
        let start = Start { name, mark, life, at: now, outcome: None, died_in: None };
        self.restarts.starts.insert(decision.id, start);
        self.acts.push(Acted::new(clock, decision));
        Ok(())
    }

    /// An earlier start after the same end has come to nothing, and that was seen.
    fn is_first_after_that_end(
        &self,
        decision: &Decision,
        mark: &Arc<str>,
        told: &Told,
    ) -> Result<(), Violation> {
        let now = decision.at.uptime;
        let of_mode = |id: &DecisionId| {
            self.acts.iter().any(|act| act.id == *id && act.mode == decision.mode)
        };
        for (id, start) in &self.restarts.starts {
            let is_same = start.name == told.seen.target.name && start.mark == *mark;
            if !is_same || start.life != self.restarts.life || !of_mode(id) {
                continue;
            }
            let is_over = match &start.outcome {
                None => now.saturating_sub(start.at) >= LOST_AFTER,
                Some((OutcomeResult::NotDone(_), at)) => told.read_at >= *at,
                Some((OutcomeResult::Skipped, _)) => false,
                Some((_, at)) => told.read_at > *at && now.saturating_sub(*at) >= SHOWS_WITHIN,
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
        decision: &Decision,
        told: &Told,
    ) -> Result<(), Violation> {
        let limits = &told.seen.limits;
        let lately = self.acts_of(decision).filter(|act| act.ago(clock) < limits.per);
        if lately.count() >= limits.times as usize {
            return broken("never more starts than at_most", format!("{limits:?}: {decision:?}"));
        }
        let deaths = self.deaths_in_a_row(decision);
        if limits.give_up_after > 0 && deaths >= limits.give_up_after {
            let what = format!("{deaths} deaths, {limits:?}: {decision:?}");
            return broken("what dies of the same again and again stays down", what);
        }
        let Some(doublings) = deaths.checked_sub(1) else { return Ok(()) };
        let wait = limits.back_off.saturating_mul(1 << doublings.min(20));
        let wait = wait.min(limits.back_off_at_most);
        if let Some(otherwise) = told.otherwise
            && clock.at.uptime.saturating_sub(otherwise) + Duration::from_millis(1) < wait
        {
            let what = format!("{deaths} deaths, {wait:?} from {otherwise:?} on: {decision:?}");
            return broken("a start waits longer after each death", what);
        }
        Ok(())
    }

    /// As far as anybody can be sure of them.
    fn deaths_in_a_row(&self, decision: &Decision) -> u32 {
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

    fn rails_allow_start(&self, clock: &Clock, decision: &Decision) -> Result<(), Violation> {
        if !self.knows_past {
            return broken("nothing is done before the past is known", format!("{decision:?}"));
        }
        let windows = self.rails.never_in.iter();
        if let Some(window) = windows.clone().find(|name| self.is_open(name, clock)) {
            return broken("maintenance windows are kept", format!("{window}: {decision:?}"));
        }
        let Target::Held(target) = &decision.target else { return Ok(()) };
        let is_unit = target.supervisor == Supervisor::Systemd;
        if is_unit && self.rails.protect.units.iter().any(|glob| glob.matches(&target.name)) {
            return broken("what is protected is left alone", format!("{decision:?}"));
        }
        self.within_budget(clock, decision)
    }

    /// What came of a start; `false`: it was none.
    pub(super) fn assess_start(&mut self, assessment: &Assessment) -> Result<bool, Violation> {
        let id = assessment.decision;
        let Some(start) = self.restarts.starts.get_mut(&id) else { return Ok(false) };
        let judged = self.acts.iter().find(|act| act.id == id).and_then(|act| act.aim_met);
        let was_begun = start.outcome.as_ref().is_none_or(|(result, _)| result.is_begun());
        // One that people have started since may go well at any time.
        if assessment.aim_met != Some(true) && (!was_begun || judged.is_some()) {
            let what = format!("{:?}, {judged:?}: {assessment:?}", start.outcome);
            return broken("only what was begun is judged, once", what);
        }
        start.died_in = assessment.died_in;
        for act in self.acts.iter_mut().filter(|act| act.id == id) {
            act.aim_met = assessment.aim_met;
        }
        Ok(true)
    }
}

/// Whether it is about something that is started again.
pub fn is_restart(decision: &Decision) -> bool {
    matches!(decision.action, Action::StartContainer { .. } | Action::StartUnit { .. })
}
