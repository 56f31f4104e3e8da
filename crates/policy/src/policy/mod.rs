//! Observations in, decisions out. Pure: no files, no clock, no threads.
//!
//! [`Policy::step`] is the whole interface: the daemon, a dry run, a replay and the tests differ
//! only in who makes the observations and in what happens to the decisions.

mod act;
mod aim;
mod alert;
mod assessment;
mod brake;
mod cluster;
mod context;
mod counters;
pub mod death;
mod engines;
mod evidence;
pub mod explain;
pub mod gate;
mod gpu;
mod group;
pub mod guard;
pub mod happened;
mod intake;
pub mod leases;
pub mod memory_parts;
pub mod memory_ring;
pub mod overview;
pub mod pace;
mod picture;
pub mod pools;
mod reboot;
mod received;
mod remedy;
pub mod restarts;
mod resuming;
pub mod rule;
mod sources;
pub mod status;
#[cfg(test)]
mod tests;
mod well;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use promql_rules::store::SeriesStore;

use crate::model::{
    Action, AimCheck, AlertChange, AssessmentLimits, Decision, DecisionId, DecisionRecord,
    EngineSeen, EngineTarget, Event, Grade, Grades, HOST_POOL, Mode, Moment, Observation,
    OperatorCommand, Reading, RuleId, SeriesKey, ShippedRule, metric,
};
use act::{DecisionNumbers, Proposal};
use assessment::AssessmentWatch;
use brake::{Brake, Declared};
use cluster::Cluster;
use context::Context;
use counters::Counters;
use death::Kills;
use engines::{Deaths, Engines};
use gate::NodeGate;
use gpu::Gpus;
use group::RunningGroup;
use guard::Guard;
use happened::Happenings;
use kernel_faults::{EventAssembler, LoggedEvent};
use leases::Leases;
use pace::MemoryMeasurement;
use pools::PoolSeries;
use reboot::Reboots;
use received::TrackedAlerts;
use restarts::Restarts;
use rule::{RemedyStep, RuleScope, RuleSet};
use sources::SourceTable;
use status::RuleState;

/// Older kernel events count at the time when they happened, and no rule takes them for news. A
/// restart takes a supervisor from a tenth of a second to half a minute, and ranges of rules for
/// events are about as long: an event in that time is still worth acting on, and a minute allows
/// for both. Later it does not help to drop caches for an allocation that failed then.
const OLD_AFTER: Duration = Duration::from_secs(60);

/// How long ago that was, if it is old at `now`.
pub fn old_by(utc: Timestamp, now: Moment) -> Option<Duration> {
    let age = Duration::try_from(now.utc.duration_since(utc)).ok()?;
    (age > OLD_AFTER).then_some(age)
}

/// What one step brought.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// Events of the kernel log and of the program.
    pub events: Vec<Event>,
    /// Alerts that became pending, began to fire, or ended.
    pub alerts: Vec<AlertChange>,
    /// What to do, and what not to do and why.
    pub decisions: Vec<DecisionRecord>,
    /// What earlier actions have changed.
    pub aim_checks: Vec<AimCheck>,
    /// Rules that became unknown, and those that are known again.
    pub doubts: Vec<Doubt>,
    /// The results of orders, in their order.
    pub answers: Vec<CommandResult>,
    /// Nothing came but lines of the kernel log that mean nothing: they were counted, and the next
    /// step shows that.
    pub is_only_counted: bool,
}

/// The result of an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandResult {
    /// The order.
    pub command: OperatorCommand,
    /// Why nothing has changed; `None`: it was done.
    pub refused: Option<String>,
}

/// A rule became unknown, or known again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// The rule whose state is in doubt, or no longer is.
    pub rule: RuleId,
    /// Which readings are missing, and why; empty when it is known again.
    pub reasons: Vec<String>,
}

impl Doubt {
    /// Whether the rule is unknown only since this machine does not have what it reads.
    pub fn is_of_machine(&self) -> bool {
        !self.reasons.is_empty() && well::is_of_machine(&self.reasons)
    }
}

/// The state from which decisions follow: readings, kernel events, rules.
#[derive(Debug)]
pub struct Policy {
    started: Moment,
    mode: Mode,
    store: SeriesStore,
    sources: SourceTable,
    kernel_log: EventAssembler,
    /// What the assembler has just found; empty between steps.
    logged: Vec<LoggedEvent>,
    /// Kernel events that an earlier run of this program has counted, by sequence number.
    already_counted: BTreeSet<u64>,
    counters: Counters,
    groups: Vec<RunningGroup>,
    brake: Brake,
    /// The engines of a declared world.
    declared: Option<Declared>,
    engines: Engines,
    gate: NodeGate,
    leases: Leases,
    pool_series: PoolSeries,
    /// The measurement that the gate knows.
    gate_measured: Option<Duration>,
    restarts: Restarts,
    /// What lately killed anything.
    kills: Kills,
    deaths: Deaths,
    gpus: Gpus,
    assessment: AssessmentWatch,
    reboots: Reboots,
    received: TrackedAlerts,
    cluster: Cluster,
    /// The shortest range of a rule.
    shortest_range: Duration,
    numbers: DecisionNumbers,
    guard: Guard,
    happenings: Happenings,
    rule_statuses: Arc<[status::RuleStatus]>,
    shipped_off: Arc<[ShippedRule]>,
    enforced: Arc<Grades>,
    series: Arc<[SeriesKey]>,
    /// The state of the store that they are of.
    series_of: Option<u64>,
}

impl Policy {
    /// A policy that has seen nothing yet. `next_decision` continues the journal's numbering.
    pub fn new(started: Moment, mode: Mode, rules: &RuleSet, next_decision: DecisionId) -> Self {
        Self::over(SeriesStore::default(), started, mode, rules, next_decision)
    }

    /// A policy for a declared world: its rules see the series of [`Observation::Sample`], and none
    /// that the policy makes itself. Its engines follow from their series.
    pub fn rehearsing(started: Moment, mode: Mode, rules: &RuleSet) -> Self {
        let mut own = Self::over(SeriesStore::closed(), started, mode, rules, DecisionId(1));
        own.reboots.rehearse();
        own.cluster.declare(None);
        Self { declared: Some(Declared::default()), ..own }
    }

    fn over(
        store: SeriesStore,
        started: Moment,
        mode: Mode,
        rules: &RuleSet,
        next_decision: DecisionId,
    ) -> Self {
        let mut store = store.fed_by(|name| Some(metric(name)?.source.name()));
        let mut counters = Counters::new(&mut store);
        let engines = Engines::new(&mut counters, &mut store);
        let assessment = AssessmentWatch::new(started, &mut counters, &mut store);
        let reboots = Reboots::new(&mut counters, &mut store);
        let received = TrackedAlerts::new(&mut counters, &mut store);
        let mut policy = Self {
            started,
            mode,
            store,
            sources: SourceTable::default(),
            kernel_log: EventAssembler::new(),
            logged: Vec::new(),
            already_counted: BTreeSet::new(),
            counters,
            groups: Vec::new(),
            brake: Brake::default(),
            declared: None,
            engines,
            gate: NodeGate::default(),
            leases: Leases::default(),
            pool_series: PoolSeries::default(),
            gate_measured: None,
            restarts: Restarts::default(),
            kills: Kills::default(),
            deaths: Deaths::default(),
            gpus: Gpus::default(),
            assessment,
            reboots,
            received,
            cluster: Cluster::default(),
            shortest_range: Duration::MAX,
            numbers: DecisionNumbers::from(next_decision),
            guard: Guard::default(),
            happenings: Happenings::default(),
            rule_statuses: Arc::new([]),
            shipped_off: Arc::new([]),
            enforced: Arc::default(),
            series: Arc::new([]),
            series_of: None,
        };
        policy.replace_rules(started, mode, rules);
        policy
    }

    /// Sets the limits of the assessment.
    pub fn set_assessment_limits(&mut self, limits: AssessmentLimits) {
        self.assessment.set_limits(limits);
    }

    /// Sets the time after which unrepeated received alerts expire.
    pub fn forget_received_after(&mut self, forget_after: Duration) {
        self.received.set_forget_after(forget_after);
    }

    /// Takes other rules, and returns the alerts that end with the old ones. The state of an
    /// unchanged rule is kept. Budgets and cooldowns are kept by name even where the rule has
    /// changed, so that a reload resets no guard rail.
    pub fn replace_rules(&mut self, at: Moment, mode: Mode, rules: &RuleSet) -> Vec<AlertChange> {
        self.mode = mode;
        self.guard.replace_rails(&rules.guard_rails, rules.own_rails());
        self.shipped_off = Arc::clone(&rules.shipped_off);
        self.enforced = Arc::new(rules.guard_rails.enforced.clone());
        self.reboots.set_settings(&rules.guard_rails.reboot);
        let mut old = std::mem::take(&mut self.groups);
        self.shortest_range = Duration::MAX;
        self.cluster.replace_rules(&rules.groups);
        for group in &rules.groups {
            // In a declared world they read this store too.
            let of_node = group.scope == RuleScope::Node;
            for (name, range_ms) in group.rules.iter().flat_map(evidence::reads) {
                if !of_node && !self.store.is_closed() {
                    continue;
                }
                self.store.retain(&name, range_ms);
                let range_ms = u64::try_from(range_ms).ok().filter(|range_ms| *range_ms > 0);
                let range = range_ms.map_or(Duration::MAX, Duration::from_millis);
                self.shortest_range = self.shortest_range.min(range);
            }
            let mut group = RunningGroup::new(
                group,
                at,
                &mut old,
                &mut self.store,
                &mut self.counters,
                &mut self.guard,
            );
            group.configure(rules);
            self.groups.push(group);
        }
        let mut ended = Vec::new();
        for group in &mut old {
            group.end(at, &self.groups, &mut self.counters, &mut self.guard, &mut ended);
        }
        self.counters.set_mode(mode, &mut self.store);
        self.refresh_rule_statuses();
        ended
    }

    /// Takes in what was seen since the last step and returns what to do about it.
    ///
    /// Nothing is published or evaluated before the first sample of memory. The counters begin with
    /// the backlog of the kernel log at a first start, which is no burst.
    pub fn step(&mut self, at: Moment, seen: &[Observation]) -> Step {
        let step = self.advance(at, seen);
        self.happenings.take(at, &step);
        step
    }

    fn advance(&mut self, at: Moment, seen: &[Observation]) -> Step {
        let mut step = Step::default();
        let mut newest_record = None;
        for observation in seen {
            if let Observation::KernelRecord(record) = observation {
                newest_record = Some(self.observe_record(at, record, &mut step));
            } else {
                self.observe(at, observation, &mut step);
            }
        }
        // More records may wait to be read, so what is unfinished has been silent only until the
        // last one; in a backlog that may be long ago.
        self.kernel_log.tick(newest_record.unwrap_or(at.uptime), &mut self.logged);
        self.take_logged(&mut step);
        if !self.already_counted.is_empty() {
            let known = &self.already_counted;
            step.events.retain(|event| event.seq.is_none_or(|seq| !known.contains(&seq)));
        }
        if self.is_only_lines(at, seen, &step) {
            step.is_only_counted = true;
            return step;
        }
        self.follow_received(at, &mut step);
        for event in step.events.iter().filter(|event| !event.is_claimed()) {
            self.assessment.take_event(at.uptime, event);
        }
        self.kills.take(&step.events);
        self.measure_gate_memory(at, &mut step);
        self.assess_memory(at, &mut step);
        self.track_ranks(at, &mut step);
        self.count_events(at, &step.events);
        if self.sources.memory_measured().is_none() {
            return step;
        }
        self.guard.advance(at);
        if self.has_measured(at) {
            self.brake.measure(at.uptime, &self.store, self.gate.memory());
            if let Some(declared) = &mut self.declared {
                self.brake.rehearse(at.uptime, declared, &self.store);
            }
        }
        self.counters.set_guard(&self.guard, self.mode, at);
        self.publish_level();
        self.engines.publish(at, &mut self.counters);
        self.cluster.publish(at, &mut self.counters);
        self.publish_fleet(at);
        let sampled = seen.iter().any(|seen| matches!(seen, Observation::Readings(_)));
        if sampled || self.groups.iter().any(|group| group.due() <= at.uptime) {
            self.counters.publish(at, &mut self.store);
        } else {
            self.counters.show(&mut self.store);
        }
        self.advance_cluster(at);
        let evaluated = self.has_measured(at) && self.evaluate(at, &mut step);
        self.undo(at, &mut step);
        self.restart(at, &mut step);
        self.reboot(at, &mut step);
        for decision in &step.decisions {
            self.assessment.decided(decision);
            self.kills.decided(decision);
            self.counters.count_decision(decision, &mut self.store);
        }
        if evaluated {
            self.publish_evaluated(at);
        }
        step
    }

    /// Publishes what the evaluation of rules has changed.
    fn publish_evaluated(&mut self, at: Moment) {
        self.publish_fleet(at);
        self.refresh_rule_statuses();
        let mut counts = [0; RuleState::ALL.len()];
        for group in &mut self.groups {
            group.publish(at, self.mode, &self.guard, &mut self.counters, &mut counts);
        }
        self.counters.set_rules(counts);
        self.publish_level();
        self.counters.set_guard(&self.guard, self.mode, at);
        self.counters.publish_changed(at, &mut self.store);
    }

    /// Whether there is nothing to evaluate: a log may have many meaningless lines while memory is
    /// short.
    fn is_only_lines(&self, at: Moment, seen: &[Observation], step: &Step) -> bool {
        let is_line = |seen: &Observation| matches!(seen, Observation::KernelRecord(_));
        !seen.is_empty()
            && step.events.is_empty()
            && seen.iter().all(is_line)
            && self.sources.memory_measured().is_some()
            && self.groups.iter().all(|group| group.due() > at.uptime)
    }

    /// How long the caller may wait before the next step without keeping back an unfinished trace.
    /// Rules need no deadline of their own: those that are due are evaluated with the next sample,
    /// since nothing new is known before; see [`Policy::needs_samples_every`].
    pub fn next_step_in(&self, now: Duration) -> Duration {
        let next = self.kernel_log.next_deadline();
        next.map_or(Duration::MAX, |due| due.saturating_sub(now))
    }

    /// How often rules need memory measured: as often as its group says where one is pending or
    /// firing, and so that the shortest range holds the two samples without which it is empty.
    pub fn needs_samples_every(&self) -> Duration {
        let own = self.groups.iter().filter(|group| group.scope() == RuleScope::Node);
        let active = own.filter(|group| group.is_active()).map(RunningGroup::interval);
        active.min().unwrap_or(Duration::MAX).min(self.shortest_range / 3)
    }

    /// The last sample of the CPUs' memory; `None` if unknown. A kernel without that figure has no
    /// reserve.
    pub fn memory(&self) -> Option<MemoryMeasurement> {
        let host = self.gate.memory()?.pool(HOST_POOL)?;
        #[expect(clippy::cast_precision_loss, reason = "exact up to 2^53")]
        let number = |reading: Reading<u64>| reading.value().map(|bytes| bytes as f64);
        Some(MemoryMeasurement {
            total: number(host.memory.total)?,
            free: number(host.memory.free)?,
            available: number(host.figures.available)?,
            reserve: number(host.figures.reserve).unwrap_or(0.0),
        })
    }

    /// The first kernel-log record that must be read again after a restart, so that an unfinished
    /// trace is seen whole. `None`: nothing is unfinished.
    pub fn kernel_log_pending_since(&self) -> Option<u64> {
        self.kernel_log.pending_since_seq()
    }

    /// What an expression yields now, over all that has been seen.
    pub fn ask(&self, query: &rule::Query, at: Moment) -> Result<promql_rules::Evaluated, String> {
        let at = promql_rules::EvalTime { timeline_ms: at.timeline_ms(), utc_ms: at.utc_ms() };
        query.expr.evaluate(&self.store, at)
    }

    /// The inference engines, by name, those too that have gone lately.
    pub fn engines(&mut self) -> Arc<[status::EngineStatus]> {
        self.engines.statuses()
    }

    /// Whether an inference engine lives, or has left something behind.
    pub fn is_any_engine_alive(&self) -> bool {
        self.engines.is_any_alive()
    }

    /// Whether an inference engine is on its way to be ready: it starts or loads.
    pub fn is_any_engine_on_its_way(&self) -> bool {
        self.engines.is_any_on_its_way()
    }

    /// Whether an inference engine takes a model in, and is not stuck.
    pub fn is_any_engine_loading(&self) -> bool {
        self.engines.is_any_loading()
    }

    /// Why the load of an engine, which an act of that rule follows, is not to be followed any
    /// longer, if so. What holds such an act back by its number or its time does not end one.
    pub fn stops_following(
        &self,
        rule: &RuleId,
        engine: &EngineTarget,
        now: Moment,
    ) -> Option<&'static str> {
        let follows = |step: &RemedyStep| matches!(step, RemedyStep::EvictCheckpoint { .. });
        match self.groups.iter().find_map(|group| group.rule(rule, self.mode)) {
            Some((rule, mode)) if rule.remedy.iter().any(|own| own.steps.iter().any(follows)) => {
                if mode == Mode::Observe {
                    return Some("its rule only observes now");
                }
            }
            _ => return Some("its rule is gone, or another one"),
        }
        if !self.guard.enforces(Grade::Evict) {
            return Some("the grade evict is not enforced now");
        }
        self.guard.ends_following(rule, engine, now)
    }

    /// The parts that decide, with their context.
    fn deciders<'a>(
        &'a mut self,
        at: Moment,
        step: &'a mut Step,
    ) -> (&'a mut [RunningGroup], &'a mut Restarts, &'a mut Deaths, Context<'a>) {
        let context = Context {
            at,
            mode: self.mode,
            store: &self.store,
            cluster: &self.cluster,
            measured: self.sources.memory_measured(),
            memory: self.gate.memory(),
            leases: &self.leases,
            engines: &self.engines,
            brake: &self.brake,
            assessment: self.assessment.current(),
            reboots: &mut self.reboots,
            kills: &self.kills,
            guard: &mut self.guard,
            numbers: &mut self.numbers,
            counters: &mut self.counters,
            step,
        };
        (&mut self.groups, &mut self.restarts, &mut self.deaths, context)
    }

    /// Tracks deferred restarts, starts them, and reports deaths. The sample of memory must be
    /// current.
    fn restart(&mut self, at: Moment, step: &mut Step) {
        if !self.has_measured(at) {
            return;
        }
        self.kills.observe_memory(at.uptime, &self.store);
        let (_, restarts, deaths, mut context) = self.deciders(at, step);
        let mut events = Vec::new();
        restarts.step(&mut context, &mut events);
        let is_observed = |supervisor| restarts.is_observed(supervisor, at);
        let is_held = |engine: &EngineSeen| restarts.hold(engine);
        let explained = deaths.step(&context, is_held, is_observed, &mut events);
        for event in &events {
            context.counters.count_event(&event.kind, at.utc, None);
        }
        self.record_rank_deaths(at, &events, &explained);
        step.events.extend(events);
    }

    /// Evaluates the groups that are due; returns whether any was.
    fn evaluate(&mut self, at: Moment, step: &mut Step) -> bool {
        self.read_fleet(at);
        let Self { brake, restarts, mode, guard, .. } = self;
        brake.take_restarted(|engine| restarts.mode_of(engine, (*mode, guard), at));
        let (groups, _, _, mut context) = self.deciders(at, step);
        // All alerts first: a remedy may depend on the state of other rules.
        let mut is_due = false;
        for group in groups.iter_mut().filter(|group| group.due() <= at.uptime) {
            group.evaluate(&mut context);
            is_due = true;
        }
        if !is_due {
            return false;
        }
        context.guard.set_inhibitors(groups.iter().flat_map(RunningGroup::states));
        for group in groups.iter_mut().filter(|group| group.due() <= at.uptime) {
            group.remedy(&mut context);
            group.evaluated(at.uptime);
        }
        true
    }

    /// Ends the temporary settings whose alert or whose time is over.
    fn undo(&mut self, at: Moment, step: &mut Step) {
        let (groups, in_force) = (&self.groups, self.mode);
        let cluster = &self.cluster;
        let enforced = Grade::ALL.map(|grade| self.guard.enforces(grade).then_some(grade));
        let fires = |rule: &RuleId, mode, grade| {
            // What is not enforced any more does not stay either.
            if mode == Mode::Enforce && !enforced.contains(&Some(grade)) {
                return None;
            }
            groups.iter().find_map(|group| group.fires(rule, mode, in_force, cluster))
        };
        for due in self.guard.due_undos(at, fires) {
            let action = Action::Undo { decision: due.decision, why: due.why, grade: due.grade };
            let (rule, mode, target) = (&due.rule, due.mode, &due.target);
            let proposal = Proposal { rule, mode, step: due.step, action: &action, target };
            let decision = proposal.decide(Decision::Act, &mut self.numbers, at);
            self.guard.undoing(&decision);
            step.decisions.push(decision);
        }
    }

    fn refresh_rule_statuses(&mut self) {
        let mode = self.mode;
        if self.groups.iter().any(RunningGroup::changed)
            || self.rule_statuses.len()
                != self.groups.iter().map(RunningGroup::rules).sum::<usize>()
        {
            self.rule_statuses =
                self.groups.iter_mut().flat_map(|group| group.statuses(mode)).collect();
        }
    }
}
