//! One container or unit: it runs, dies, waits, is started, and is ready or dies again.

mod decide;
mod gang;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use promql_rules::store::SeriesStore;

use super::death::Death;
use super::life::{Readiness, readiness};
use super::series::{Came, RestartCells};
use crate::model::{
    AimCheck, DecisionId, DeferredRestart, EnginePhase, EngineSeen, Event, GangStart, Grade,
    HoldReason, Mode, Moment, Outcome, OutcomeResult, PastAct, PastRanks, ProcessId, ProgramEvent,
    RestartState, RestartStatus, RuleId, Supervisor, Workload, WorkloadEnd, WorkloadState,
};
use crate::policy::Context;
use crate::policy::act::{Act, HoldReasons};
use crate::policy::counters::Counters;
use crate::policy::death::{ObservedDeath, REPORT_AFTER, memory, own_bytes};
use crate::policy::guard::{AtMost, BreakerLimit, Guard, Rails};

/// A completed start is visible within this time; the supervisor may report it late.
const SHOWS_WITHIN: Duration = Duration::from_secs(10);

/// Its processes are remembered so often.
const PROCESSES_EVERY: Duration = Duration::from_secs(1);

/// So many of its processes are remembered, those with the highest numbers.
const MOST_PROCESSES: usize = 512;

/// At most so many deaths wait for their report; more are dropped.
const MOST_UNREPORTED: usize = 8;

/// A start of ours, until it is known whether it went well.
#[derive(Clone, Debug)]
struct StartAttempt {
    act: Act,
    mode: Mode,
    /// The end that it came after.
    after: Arc<str>,
    /// Whether it is counted already.
    is_counted: bool,
}

#[derive(Debug)]
pub(super) struct Restart {
    rule: RuleId,
    rails: Rails,
    seen: DeferredRestart,
    /// The life or end that was reported last, and the end before it.
    reported: Option<(bool, Arc<str>)>,
    past_end: Option<Arc<str>>,
    /// When its supervisor was asked, on the uptime clock.
    observed: Duration,
    cells: RestartCells,
    state: RestartState,
    since: Moment,
    reason: Arc<str>,
    /// How long it still waits, where that shows.
    wait: Option<Duration>,
    attempt: Option<StartAttempt>,
    /// The last start of ours that is known.
    last_act: Option<DecisionId>,
    /// Since when it runs or is down, on the uptime clock.
    turned: Duration,
    ready_since: Option<Duration>,
    /// How far this life has come.
    phase: EnginePhase,
    /// The largest memory that its processes were seen to hold.
    peak_bytes: u64,
    /// The end after which nothing more is done: observe mode has reported what it would do.
    rehearsed: Option<Arc<str>>,
    /// Where it earlier_state, as an earlier run saw.
    earlier_state: Option<RestartState>,
    /// This life was seen to go on.
    was_up: bool,
    /// Its processes as they were seen last, and when.
    engine: Option<(Arc<EngineSeen>, Duration)>,
    /// The processes of this life, or of the last one while it is down.
    family: BTreeSet<ProcessId>,
    /// Its ranks, if it is one of an engine that spans nodes, and the memory that it wants on other
    /// nodes.
    ranks: Option<PastRanks>,
    gang: Option<GangStart>,
    /// Its deaths, until their details are known.
    unreported_deaths: Vec<Death>,
    holds: HoldReasons<HoldReason>,
    /// Its supervisor reports that it has ended and that it is ours.
    is_down: bool,
    /// Its state is an event already, with the reason.
    is_reported: bool,
    /// Only later reports count: a start has found another state.
    not_before: Duration,
    deaths: u32,
}

impl Restart {
    /// `started`: start of the observation. A later death is news, even if it was never seen alive.
    pub(super) fn new(
        (at, started): (Moment, Moment),
        read_at: Duration,
        seen: &DeferredRestart,
        counters: &mut Counters,
        store: &mut SeriesStore,
    ) -> Self {
        let mut restart = Self {
            rule: super::rule(&seen.target.name),
            rails: rails(seen),
            cells: RestartCells::new(&seen.target, counters, store),
            seen: seen.clone(),
            reported: mark(&seen.state),
            past_end: None,
            observed: read_at,
            state: RestartState::Unknown,
            since: at,
            reason: format!("found by {}", seen.found_by).into(),
            wait: None,
            attempt: None,
            last_act: None,
            turned: began(&seen.state, at),
            ready_since: None,
            phase: EnginePhase::Starting,
            peak_bytes: 0,
            rehearsed: None,
            earlier_state: None,
            was_up: matches!(seen.state, WorkloadState::Running { .. }),
            engine: None,
            family: BTreeSet::new(),
            ranks: None,
            gang: None,
            unreported_deaths: Vec::new(),
            holds: HoldReasons::default(),
            is_down: false,
            is_reported: false,
            not_before: Duration::ZERO,
            deaths: 0,
        };
        if let WorkloadState::Ended(end) = &seen.state
            && end.utc.is_some_and(|utc| utc >= started.utc)
        {
            restart.die(at, end.clone());
        }
        restart
    }

    pub(super) fn supervisor(&self) -> Supervisor {
        self.seen.target.supervisor
    }

    pub(super) fn target(&self) -> &Workload {
        &self.seen.target
    }

    /// Its mode on a node with that one.
    pub(super) fn mode(&self, of_node: Mode, guard: &Guard) -> Mode {
        guard.capped(self.seen.mode.unwrap_or(of_node), Grade::Restart)
    }

    /// It is not started by us: the death of an engine in it is reported as that of any other.
    pub(super) fn is_left_to_others(&self) -> bool {
        self.seen.obstacle.is_some()
    }

    pub(super) fn retire(&self, counters: &mut Counters) {
        self.cells.retire(counters);
    }

    /// Takes a report of its supervisor.
    pub(super) fn observe(&mut self, at: Moment, read_at: Duration, seen: &DeferredRestart) {
        let reported = mark(&seen.state);
        if reported.is_some() && reported != self.reported && !self.goes_back(&seen.state) {
            if let Some((false, end)) = std::mem::replace(&mut self.reported, reported) {
                self.past_end = Some(end);
            }
            // Despite the wall clock: the last poll has found another state.
            self.turned = began(&seen.state, at).max(self.observed);
            self.holds.forget();
            match &seen.state {
                WorkloadState::Running { .. } => {
                    (self.ready_since, self.phase) = (None, EnginePhase::Starting);
                    (self.rehearsed, self.earlier_state, self.peak_bytes) = (None, None, 0);
                    (self.was_up, self.engine, self.gang) = (true, None, None);
                    self.family.clear();
                }
                // A life may end between two polls.
                WorkloadState::Ended(end) if self.was_up || self.attempt.is_some() => {
                    self.die(at, end.clone());
                }
                WorkloadState::Ended(_) | WorkloadState::Fresh | WorkloadState::Between { .. } => {}
            }
        }
        if self.seen.limits != seen.limits || self.seen.target != seen.target {
            self.rails = rails(seen);
        }
        // Of another container with the same name nothing is known.
        if self.seen.target.id != seen.target.id {
            (self.attempt, self.ranks) = (None, None);
        }
        self.seen.clone_from(seen);
        self.observed = read_at;
    }

    /// Whether the report is of the end before the life that was seen since.
    fn goes_back(&self, state: &WorkloadState) -> bool {
        let WorkloadState::Ended(end) = state else { return false };
        let lives = matches!(self.reported, Some((true, _)));
        lives && self.past_end.as_ref() == Some(&end.mark)
    }

    /// What earlier runs did with it.
    pub(super) fn remember(
        &mut self,
        act: Option<&PastAct>,
        earlier_state: Option<RestartState>,
        ranks: Option<PastRanks>,
    ) {
        self.remember_ranks(ranks);
        if let WorkloadState::Ended(end) = &self.seen.state
            && !self.was_up
        {
            self.earlier_state = earlier_state;
            let was_up =
                matches!(earlier_state, Some(RestartState::Starting | RestartState::Running));
            if was_up && self.unreported_deaths.is_empty() {
                let at = self.since;
                self.die(at, end.clone());
            }
        }
        let Some(act) = act.filter(|_| self.last_act.is_none()) else { return };
        self.last_act = Some(act.id);
        let goes_on = act.has_ended && act.aim_met.is_none();
        let Some(after) = act.started_after.clone().filter(|_| goes_on) else { return };
        let ended = Duration::from_millis(u64::try_from(act.uptime_ms).unwrap_or(0));
        let (mode, act) = (act.mode, Act::ended_at(act.id, ended));
        self.attempt = Some(StartAttempt { act, mode, after, is_counted: true });
    }

    fn die(&mut self, at: Moment, end: WorkloadEnd) {
        self.was_up = false;
        let is_reported_by_others = self.is_left_to_others() && !self.family.is_empty();
        if is_reported_by_others || self.unreported_deaths.len() >= MOST_UNREPORTED {
            return;
        }
        self.unreported_deaths.push(Death {
            end,
            noticed: at.uptime,
            phase: self.phase,
            engine: self.engine.take().map(|(engine, _)| engine),
            memory: None,
        });
    }

    /// Reports its deaths once their details have had time to arrive.
    pub(super) fn report_deaths(&mut self, context: &Context<'_>, events: &mut Vec<Event>) {
        let now = context.at.uptime;
        for death in self.unreported_deaths.iter_mut().filter(|death| death.memory.is_none()) {
            death.memory = Some(memory(context, death.engine.as_deref()));
        }
        let (target, family) = (&self.seen.target, &self.family);
        let is_due = |death: &mut Death| {
            let waited = now.saturating_sub(death.noticed);
            let is_its = |id: ProcessId| family.contains(&id);
            waited >= REPORT_AFTER && !context.kills.awaits_outcome(waited, is_its)
        };
        for death in self.unreported_deaths.extract_if(.., is_due) {
            let left = context.engines.left_of(Some(target), family, now).unwrap_or_default();
            let report = ObservedDeath {
                held: Some(target),
                end: Some(&death.end),
                noticed: death.noticed,
                began: None,
                phase: death.phase,
                engine: death.engine.as_deref(),
                memory: death.memory,
                health: death
                    .engine
                    .as_deref()
                    .and_then(|engine| context.engines.health_of(engine)),
                left: &left,
            }
            .report(context);
            let utc = Some(report.ended);
            let kind = ProgramEvent::EngineDied { report: Box::new(report) };
            events.push(Event { kind: kind.into(), utc, seq: None });
        }
    }

    /// Takes the report on its start, if it is that.
    pub(super) fn observe_outcome(&mut self, outcome: &Outcome) -> bool {
        let Some(attempt) = &mut self.attempt else { return false };
        if !attempt.act.is_of(outcome) {
            return false;
        }
        match &outcome.result {
            OutcomeResult::Done | OutcomeResult::Failed(_) | OutcomeResult::TimedOut => {
                attempt.act.end(outcome);
                // What came of it shows: who did not answer may have started it all the same.
                if let OutcomeResult::Failed(why) = &outcome.result {
                    self.reason = format!("starting it failed: {why}").into();
                }
            }
            OutcomeResult::Skipped => {
                self.rehearsed = Some(Arc::clone(&attempt.after));
                self.attempt = None;
            }
            // The next poll shows the change.
            OutcomeResult::NotDone(why) => {
                self.reason = Arc::from(why.as_str());
                self.not_before = outcome.ended.uptime;
                self.attempt = None;
            }
        }
        true
    }

    /// Since when it is down; what is not comes last.
    pub(super) fn ended_since(&self) -> Duration {
        match self.seen.state {
            WorkloadState::Ended(_) => self.turned,
            _ => Duration::MAX,
        }
    }

    /// Whether others wait for it.
    pub(super) fn is_starting(&self, at: Moment) -> bool {
        let runs = matches!(self.seen.state, WorkloadState::Running { .. });
        match self.attempt.as_ref().map(|attempt| (attempt.mode, attempt.act.ended())) {
            Some((Mode::Enforce, None)) => true,
            // What has ended, and does not show yet.
            Some((_, Some(ended))) if !runs => at.uptime.saturating_sub(ended) < SHOWS_WITHIN,
            _ => {
                self.state == RestartState::Starting
                    && at.uptime.saturating_sub(self.turned) < self.seen.limits.ready_within
            }
        }
    }

    /// Determines its state; returns whether that has changed.
    pub(super) fn track(
        &mut self,
        doubt: Option<Arc<str>>,
        context: &mut Context<'_>,
        events: &mut Vec<Event>,
    ) -> bool {
        let mode = self.mode(context.mode, context.guard);
        context.guard.know_restart(&self.rule, &self.rails);
        self.deaths = context.guard.misses(&self.rule, mode);
        self.is_down = false;
        if self.is_left_to_others() {
            self.observe_processes(context);
        }
        if let Some(doubt) = doubt {
            return self.set_state(RestartState::Unknown, doubt, context.at, events);
        }
        if let Some(obstacle) = self.seen.obstacle.clone() {
            return self.set_state(RestartState::NotOurs, obstacle, context.at, events);
        }
        let ready = readiness(&self.seen, self.turned, context.at, context.engines);
        if let Some(readiness) = ready {
            self.observe_processes(context);
            return self.track_life(&readiness, mode, context, events);
        }
        self.settle(context);
        match &self.seen.state {
            WorkloadState::Fresh => {
                let reason = match self.supervisor() {
                    Supervisor::Docker | Supervisor::DockerOfUser(_) | Supervisor::Cri => {
                        "it has never been started".into()
                    }
                    Supervisor::Systemd => {
                        "systemd knows of no start of it: it forgets one that has ended well and \
                         that no target wants, unless umawarden runs"
                            .into()
                    }
                    Supervisor::SystemdOfUser(_) => format!(
                        "its user's systemd knows of no start of it, or has forgotten that it \
                         ended well: `systemctl --user enable {}` prevents that",
                        self.seen.target.name
                    )
                    .into(),
                };
                self.set_state(RestartState::Stopped, reason, context.at, events)
            }
            WorkloadState::Between { status } => {
                let reason = format!("{} says: {status}", self.supervisor().name()).into();
                self.set_state(RestartState::Unknown, reason, context.at, events)
            }
            state @ WorkloadState::Ended(_) if self.goes_back(state) => {
                let what = "reports an end that came before the life that was seen since";
                let reason = format!("{} {what}", self.supervisor().name()).into();
                self.set_state(RestartState::Unknown, reason, context.at, events)
            }
            WorkloadState::Ended(_) => {
                self.is_down = self.observed >= self.not_before;
                false
            }
            WorkloadState::Running { .. } => false,
        }
    }

    /// Remembers what it holds, for when it has died.
    fn observe_processes(&mut self, context: &Context<'_>) {
        let now = context.at.uptime;
        let is_new = |(_, when): &(_, Duration)| now.saturating_sub(*when) < PROCESSES_EVERY;
        if self.engine.as_ref().is_some_and(is_new) {
            return;
        }
        let Some(engine) = context.engines.seen_of_held(&self.seen.target) else { return };
        self.peak_bytes = self.peak_bytes.max(own_bytes(engine));
        self.observe_ranks(engine, context);
        self.family.extend(engine.processes.iter().map(|process| process.id));
        while self.family.len() > MOST_PROCESSES {
            self.family.pop_first();
        }
        self.engine = Some((Arc::new(engine.clone()), now));
    }

    /// It runs.
    fn track_life(
        &mut self,
        readiness: &Readiness,
        mode: Mode,
        context: &mut Context<'_>,
        events: &mut Vec<Event>,
    ) -> bool {
        let now = context.at.uptime;
        // Its server may end before its container does. Then the container's age shows no phase.
        let has_ended =
            !self.family.is_empty() && context.engines.of_held(&self.seen.target).is_none();
        if !has_ended && !readiness.phase.is_ending() {
            self.phase = self.phase.max(readiness.phase);
        }
        if readiness.is_ready && self.ready_since.is_none() {
            self.ready_since = Some(now);
            if let Some(attempt) = self.attempt.as_mut().filter(|attempt| !attempt.is_counted) {
                attempt.is_counted = true;
                self.cells.count(Came::Ready, context.counters);
            }
        }
        let ready_for = self.ready_since.map_or(Duration::ZERO, |since| now.saturating_sub(since));
        if self.ready_since.is_some() && self.attempt.is_none() && self.deaths > 0 {
            // A person has started it, and it went well: so the journal records it for the
            // start that died last, even if another was decided since.
            let missed = context.guard.forgive(&self.rule, mode);
            if let Some(decision) = missed {
                context.step.aim_checks.push(aim_check(decision, context.at, true, None));
            }
        } else if ready_for >= self.seen.limits.healthy_after {
            self.check_aim(true, None, context);
        }
        let state = match self.ready_since {
            Some(_) => RestartState::Running,
            None => RestartState::Starting,
        };
        self.set_state(state, Arc::from(readiness.reason.as_str()), context.at, events)
    }

    /// It is down: what came of the last start?
    fn settle(&mut self, context: &mut Context<'_>) {
        let now = context.at.uptime;
        let Some(attempt) = &self.attempt else { return };
        if attempt.act.is_lost(now) {
            self.check_aim(false, Some(EnginePhase::Starting), context);
            return;
        }
        let (Some(ended), WorkloadState::Ended(end)) = (attempt.act.ended(), &self.seen.state)
        else {
            return;
        };
        let is_counted = attempt.is_counted;
        if end.mark != attempt.after && context.kills.stopped_for_start(&self.family, end) {
            self.check_aim(true, None, context);
        } else if end.mark != attempt.after {
            if !is_counted {
                self.cells.count(Came::Died, context.counters);
            }
            let phase = self.phase;
            self.check_aim(false, Some(phase), context);
        } else if self.observed > ended && now.saturating_sub(ended) >= SHOWS_WITHIN {
            if !is_counted {
                self.cells.count(Came::Failed, context.counters);
            }
            self.turned = ended;
            self.check_aim(false, Some(EnginePhase::Starting), context);
        }
    }

    fn check_aim(&mut self, is_well: bool, died: Option<EnginePhase>, context: &mut Context<'_>) {
        let Some(attempt) = self.attempt.take() else { return };
        let at = context.at;
        context.step.aim_checks.push(aim_check(attempt.act.decision, at, is_well, died));
        context.guard.start_checked(&self.rule, attempt.mode, is_well, died, at.timeline_ms());
        self.deaths = context.guard.misses(&self.rule, attempt.mode);
    }

    /// Records its state; a change is an event, and so is another reason to hold.
    fn set_state(
        &mut self,
        state: RestartState,
        reason: Arc<str>,
        at: Moment,
        events: &mut Vec<Event>,
    ) -> bool {
        let is_other = self.state != state;
        let has_changed = is_other || self.reason != reason;
        if is_other {
            self.since = at;
        }
        (self.state, self.reason) = (state, reason);
        if is_other || !self.is_reported {
            self.is_reported = true;
            let is_container = self.supervisor() == Supervisor::Docker;
            events.push(Event {
                kind: ProgramEvent::EngineRestart {
                    engine: self.seen.target.name.to_string(),
                    to: state,
                    reason: self.reason.to_string(),
                    container: is_container.then(|| self.seen.target.id.to_string()),
                    ranks: self.ranks.clone().map(Box::new),
                }
                .into(),
                utc: Some(at.utc),
                seq: None,
            });
        }
        has_changed
    }

    pub(super) fn publish(&self, context: &mut Context<'_>) {
        let waits = match self.state {
            RestartState::Waiting => context.at.uptime.saturating_sub(self.turned),
            _ => Duration::ZERO,
        };
        self.cells.publish(self.state, self.deaths, waits, context.counters);
    }

    pub(super) fn status(&self) -> RestartStatus {
        let mut seen = self.seen.clone();
        if let WorkloadState::Ended(end) = &mut seen.state {
            // That is for the report of its death.
            end.log = None;
        }
        RestartStatus {
            seen,
            state: self.state,
            since: self.since,
            reason: Arc::clone(&self.reason),
            wait: self.wait.filter(|_| self.state == RestartState::Waiting),
            deaths_in_a_row: self.deaths,
            gang: self.gang.clone(),
        }
    }
}

/// The guard rails of its starts.
fn rails(seen: &DeferredRestart) -> Rails {
    let limits = &seen.limits;
    Rails {
        at_most: Some(AtMost { times: limits.times, per: limits.per }),
        breaker: Some(BreakerLimit { misses: limits.give_up_after, reset_after: None }),
        ..Rails::default()
    }
}

fn aim_check(
    decision: DecisionId,
    at: Moment,
    is_well: bool,
    died_in: Option<EnginePhase>,
) -> AimCheck {
    let (before, after) = (Vec::new(), Vec::new());
    AimCheck { decision, at, aim_met: Some(is_well), has_aim: true, died_in, before, after }
}

/// The mark of a life (`true`) or an end (`false`).
fn mark(state: &WorkloadState) -> Option<(bool, Arc<str>)> {
    match state {
        WorkloadState::Running { mark, .. } => Some((true, Arc::clone(mark))),
        WorkloadState::Ended(end) => Some((false, Arc::clone(&end.mark))),
        WorkloadState::Fresh | WorkloadState::Between { .. } => None,
    }
}

/// When the state began on the uptime clock, as far as that is known.
fn began(state: &WorkloadState, at: Moment) -> Duration {
    let WorkloadState::Ended(WorkloadEnd { utc: Some(utc), .. }) = state else { return at.uptime };
    let ago = Duration::try_from(at.utc.duration_since(*utc)).unwrap_or_default();
    at.uptime.saturating_sub(ago)
}

fn is_before_boot(end: &WorkloadEnd, at: Moment) -> bool {
    let ago = end.utc.and_then(|utc| Duration::try_from(at.utc.duration_since(utc)).ok());
    ago.is_some_and(|ago| ago > at.uptime)
}
