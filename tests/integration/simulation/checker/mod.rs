//! Invariants from outside: observations and decisions of the policy, and the rules as text. It
//! shares no code with the policy.

mod acts;
mod alerts;
mod brake;
mod grades;
mod neighbours;
mod orders;
mod rails;
mod reads;
mod received;
mod restarts;
mod settings;
mod shapes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use umawarden::model::{
    Action, AimCheck, AlertChange, AlertState, ClusterNames, Decision, DecisionId, DecisionRecord,
    HoldReason, Mode, Moment, Observation, Outcome, OutcomeResult, Reading, RuleId, Source,
};
use umawarden::policy::Step;
use umawarden::policy::guard::GuardRails;
use umawarden::policy::rule::{Rule, RuleGroup, RuleScope, RuleSet};
use umawarden::policy::status::Status;

use self::acts::Acted;
pub use self::acts::engine_of;
use self::brake::Signs;
use self::neighbours::Neighbours;
use self::orders::People;
use self::reads::Failure;
use self::received::Received;
use self::restarts::{Restarts, is_restart};
use self::settings::Settings;
use self::shapes::Shape;

/// An outcome that is later than this is lost.
const LOST_AFTER: Duration = Duration::from_secs(900);

/// A rule may have reported its hold this long before it began to fire again.
const HOLD_VALID_FOR: Duration = Duration::from_secs(60);

/// A rule is evaluated a little after it is due, with the next sample.
const LATE: Duration = Duration::from_secs(2);

/// A violation of an invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub invariant: &'static str,
    pub what: String,
}

fn broken<T>(invariant: &'static str, what: String) -> Result<T, Violation> {
    Err(Violation { invariant, what })
}

/// The time by every clock.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Since the run began; no process can know it.
    pub now: Duration,
    /// The current boot.
    pub boot: u32,
    pub at: Moment,
}

#[derive(Default)]
pub struct Checker {
    mode: Mode,
    rules: BTreeMap<RuleId, Watched>,
    acts: Vec<Acted>,
    ids: BTreeSet<DecisionId>,
    /// Actions under way.
    flights: Vec<Flight>,
    /// Sources that were unreadable the last time.
    failed: BTreeMap<Source, Failure>,
    rails: GuardRails,
    knows_past: bool,
    /// Memory was measured once: nothing is decided before.
    has_measured: bool,
    /// Time of the last step.
    stepped: Duration,
    people: People,
    settings: Settings,
    restarts: Restarts,
    signs: Signs,
    received: Received,
    neighbours: Neighbours,
    /// Time between the last two steps: nothing is evaluated more often.
    slowness: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Flight {
    id: DecisionId,
    mode: Mode,
    kind: Kind,
    since: Duration,
}

/// How an action relates to others under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Ordinary,
    Stop,
    Start,
}

impl Kind {
    fn of(action: &Action) -> Self {
        match action {
            Action::StopEngine { .. } => Self::Stop,
            Action::StartContainer { .. } | Action::StartUnit { .. } => Self::Start,
            _ => Self::Ordinary,
        }
    }

    /// A start waits for everything, and only another start waits for it; a stop waits for stops.
    fn waits_for(self, other: Self) -> bool {
        match (self, other) {
            (Self::Start, _) | (Self::Stop, Self::Stop) => true,
            (Self::Stop, _) | (_, Self::Start) => false,
            (Self::Ordinary, _) => true,
        }
    }
}

type Labels = BTreeMap<Arc<str>, Arc<str>>;

/// State of a rule in this life of the process.
struct Watched {
    rule: Rule,
    /// Time between its evaluations.
    interval: Duration,
    shape: Shape,
    /// This node, for a rule that reads all nodes.
    node: Option<Arc<str>>,
    /// Since when received data contradicts its state.
    differs_since: Option<Duration>,
    alerts: BTreeMap<Labels, (AlertState, Duration)>,
    is_unknown: bool,
    firing_since: Option<Duration>,
    decided: Option<Duration>,
    /// Since when it owes a decision.
    silent_since: Option<Duration>,
    /// One for each mode.
    phases: [(Phase, Mode); 2],
    /// The smallest `cooldown` since the last act.
    cooldown: Duration,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Idle,
    Acting { id: DecisionId, step: usize, since: Duration },
    Ended { id: DecisionId, step: usize, at: Duration },
    Checked { step: usize, aim_met: Option<bool>, at: Duration },
    Skipped { at: Duration },
}

impl Phase {
    /// Its rule changes. The round under way ends then, except one that is already over without a
    /// report: an act was given up, or its setting stays without an aim to assess, so that its
    /// round ends with its outcome if no other step follows. The cooldown then does not start at a
    /// reload that came long after.
    fn interrupted(self, at: Duration, is_never_checked: impl Fn(DecisionId) -> bool) -> Self {
        match self {
            Self::Acting { since, .. } => Self::Skipped { at: at.min(since + LOST_AFTER) },
            Self::Ended { id, at: ended, .. } if is_never_checked(id) => {
                Self::Skipped { at: ended }
            }
            Self::Ended { .. } => Self::Skipped { at },
            phase => phase,
        }
    }
}

impl Watched {
    fn new(rule: &Rule, interval: Duration) -> Self {
        Self {
            rule: rule.clone(),
            interval,
            shape: Shape::of(&rule.expr.text),
            node: None,
            differs_since: None,
            alerts: BTreeMap::new(),
            is_unknown: false,
            firing_since: None,
            decided: None,
            silent_since: None,
            phases: [Mode::Observe, Mode::Enforce].map(|mode| (Phase::Idle, mode)),
            cooldown: cooldown(rule),
        }
    }

    /// The longest time until its next evaluation.
    fn patience(&self) -> Duration {
        self.interval * 2 + LATE
    }

    fn phase(&self, mode: Mode) -> Phase {
        let [(observing, _), (enforcing, _)] = self.phases;
        if mode == Mode::Observe { observing } else { enforcing }
    }

    fn set_phase(&mut self, mode: Mode, phase: Phase) {
        self.phases[usize::from(mode == Mode::Enforce)].0 = phase;
    }

    fn is_firing(&self) -> bool {
        self.alerts.values().any(|(state, _)| *state == AlertState::Firing)
    }

    /// Whether it fires for this node.
    fn is_firing_here(&self) -> bool {
        let mut firing = self.alerts.iter().filter(|(_, (state, _))| *state == AlertState::Firing);
        firing.any(|(labels, _)| match (&self.node, labels.get("node")) {
            (Some(own), Some(node)) => own == node,
            _ => true,
        })
    }
}

fn watched(rules: &RuleSet, node: &Option<Arc<str>>) -> impl Iterator<Item = Watched> {
    let of_group = |group: &RuleGroup| (group.interval, group.scope == RuleScope::Cluster);
    rules.groups.iter().flat_map(move |group| {
        let (interval, is_of_cluster) = of_group(group);
        let node = node.clone().filter(|_| is_of_cluster);
        group
            .rules
            .iter()
            .map(move |rule| Watched { node: node.clone(), ..Watched::new(rule, interval) })
    })
}

fn cooldown(rule: &Rule) -> Duration {
    rule.remedy.as_ref().map_or(Duration::ZERO, |remedy| remedy.rails.cooldown)
}

impl Checker {
    /// These decisions and the effects of those acts are forgotten: they count as nothing.
    pub fn forget(&mut self, decisions: &BTreeSet<DecisionId>, aim_checks: &BTreeSet<DecisionId>) {
        self.acts.retain(|act| !decisions.contains(&act.id));
        self.ids.retain(|id| !decisions.contains(id));
        for act in self.acts.iter_mut().filter(|act| aim_checks.contains(&act.id)) {
            act.aim_met = None;
        }
        self.people.forget(decisions);
        self.restarts.forget(decisions);
    }

    /// An entry of the journal, whether or not a process reads it.
    pub fn kept(&mut self, outcome: &Outcome) {
        self.people.take_outcome(outcome);
    }

    /// A process starts.
    pub fn begin(&mut self, mode: Mode, rules: &RuleSet) {
        self.mode = mode;
        self.flights.clear();
        self.failed.clear();
        self.rails = rules.guard_rails.clone();
        self.knows_past = false;
        self.has_measured = false;
        self.people.pause(false);
        self.settings.clear();
        self.restarts.begin();
        self.signs.clear();
        self.received.begin();
        self.neighbours.begin();
        let node = self.neighbours.own_name();
        self.rules = watched(rules, &node).map(|rule| (rule.rule.id.clone(), rule)).collect();
    }

    /// The name of this node in its cluster, and how long received alerts are kept.
    pub fn among(&mut self, names: Option<&ClusterNames>, forget_after: Duration) {
        self.neighbours.name(names);
        self.received.set_forget_after(forget_after);
    }

    /// Checks the full status.
    pub fn check_status(&self, at: Moment, status: &Status) -> Result<(), Violation> {
        self.check_received(status)?;
        self.check_neighbours(at, status)
    }

    /// Other rules are in force, and these alerts have ended with the old ones.
    pub fn reload(
        &mut self,
        clock: &Clock,
        mode: Mode,
        rules: &RuleSet,
        ended: &[AlertChange],
    ) -> Result<(), Violation> {
        let at = clock.at.uptime;
        for change in ended {
            self.change(clock, change)?;
        }
        self.mode = mode;
        self.rails = rules.guard_rails.clone();
        let mut old = std::mem::take(&mut self.rules);
        let node = self.neighbours.own_name();
        for mut watched in watched(rules, &node) {
            let interval = watched.interval;
            if let Some(known) = old.remove(&watched.rule.id) {
                // The round of a changed rule is over; its cooldown is not.
                let has_aim = acts::aims(&known);
                let settings = &self.settings;
                watched.phases = known.phases.map(|(phase, mode)| {
                    (phase.interrupted(at, |id| !has_aim && settings.is_temporary(id)), mode)
                });
                watched.cooldown = known.cooldown.min(watched.cooldown);
                if known.rule == watched.rule {
                    watched = Watched { interval, ..known };
                }
            }
            self.rules.insert(watched.rule.id.clone(), watched);
        }
        Ok(())
    }

    /// The policy got these observations and returned this step.
    pub fn step(
        &mut self,
        clock: &Clock,
        seen: &[Observation],
        returned: &Step,
    ) -> Result<(), Violation> {
        for seen in seen {
            self.see(clock, seen);
            self.restarts.see(clock, seen);
            self.signs.see(clock, seen);
            self.received.see(clock, seen);
            self.neighbours.see(clock, seen);
        }
        self.slowness = clock.at.uptime.saturating_sub(self.stepped);
        self.received_turns(clock, returned)?;
        self.restarts.take_step(returned);
        self.signs.take_step(clock, returned);
        self.people.answered(clock, &returned.answers);
        for doubt in &returned.doubts {
            match self.rules.get_mut(&doubt.rule) {
                Some(watched) => watched.is_unknown = !doubt.reasons.is_empty(),
                None => return broken("only loaded rules report", doubt.rule.to_string()),
            }
        }
        for change in &returned.alerts {
            self.known_enough(&change.rule, clock, change.to != AlertState::Inactive)?;
            self.change(clock, change)?;
        }
        self.note_firing(clock);
        self.received_is_respected(clock, returned)?;
        self.neighbours_are_respected(clock, returned)?;
        for aim_check in &returned.aim_checks {
            self.check_aim(clock, aim_check)?;
        }
        for decision in &returned.decisions {
            self.decide(clock, decision)?;
        }
        if self.has_measured {
            self.all_is_undone_in_time(clock)?;
        }
        self.every_firing_rule_has_answered(clock)
    }

    fn see(&mut self, clock: &Clock, seen: &Observation) {
        match seen {
            Observation::Readings(readings) => {
                self.has_measured |= readings.source == Source::Meminfo;
                self.failed.remove(&readings.source);
                let all_are = |of| readings.values.iter().all(|value| *value == of);
                let failures =
                    [(Reading::Failed, Failure::Failed), (Reading::Unsupported, Failure::Gone)];
                let failure =
                    failures.into_iter().find(|(of, _)| all_are(*of)).map(|(_, failure)| failure);
                if let Some(failure) = failure.filter(|_| !readings.values.is_empty()) {
                    self.failed.insert(readings.source, failure);
                }
            }
            Observation::Outcome(outcome) => self.take_outcome(outcome),
            Observation::Past(_) => {
                self.knows_past = true;
                self.acts.iter_mut().for_each(|act| act.date(clock));
            }
            Observation::Pause(pause) => self.people.pause(pause.is_some()),
            Observation::Operator(command) => self.reset_breakers(command, clock),
            _ => {}
        }
    }

    fn take_outcome(&mut self, outcome: &Outcome) {
        self.flights.retain(|flight| flight.id != outcome.decision);
        self.settings.take_outcome(outcome);
        self.restarts.take_outcome(outcome);
        let phases = self.rules.values_mut().flat_map(|watched| &mut watched.phases);
        for (phase, _) in phases {
            if let Phase::Acting { id, step, .. } = *phase
                && id == outcome.decision
            {
                *phase = match outcome.result {
                    OutcomeResult::Skipped | OutcomeResult::NotDone(_) => {
                        Phase::Skipped { at: outcome.ended.uptime }
                    }
                    _ => Phase::Ended { id, step, at: outcome.ended.uptime },
                };
            }
        }
    }

    fn decide(&mut self, clock: &Clock, decision: &DecisionRecord) -> Result<(), Violation> {
        if !self.ids.insert(decision.id) {
            return broken("no sequence number is repeated", format!("{decision:?}"));
        }
        if decision.at != clock.at {
            return broken("decisions are made now", format!("{decision:?}"));
        }
        if decision.action.is_undo() {
            return self.undo(clock, decision);
        }
        if is_restart(decision) {
            return match decision.decision {
                Decision::Act => self.restart(clock, decision),
                Decision::Hold(_) => Ok(()),
            };
        }
        if !self.rules.contains_key(&decision.rule) {
            return broken("only loaded rules report", decision.rule.to_string());
        }
        match decision.decision {
            Decision::Act => self.act(clock, decision)?,
            Decision::Hold(reason) => self.hold(clock, reason, decision)?,
        }
        if let Some(watched) = self.rules.get_mut(&decision.rule) {
            watched.decided = Some(clock.at.uptime);
        }
        Ok(())
    }

    /// A hold must have its reason.
    fn hold(
        &mut self,
        clock: &Clock,
        reason: HoldReason,
        decision: &DecisionRecord,
    ) -> Result<(), Violation> {
        let has_acted = || self.acts.iter().any(|act| act.rule == decision.rule);
        let is_true = match reason {
            HoldReason::Busy => {
                let kind = Kind::of(&decision.action);
                let mut same = self.flights.iter().filter(|flight| flight.mode == decision.mode);
                same.any(|flight| kind.waits_for(flight.kind))
            }
            HoldReason::Cooldown | HoldReason::Budget | HoldReason::StepsExhausted => has_acted(),
            HoldReason::GlobalBudget => self.acts.iter().any(|act| !act.is_notice),
            HoldReason::BreakerOpen => has_acted(),
            HoldReason::Paused => self.people.have_paused(),
            HoldReason::JournalUnreadable => !self.knows_past,
            HoldReason::Approval | HoldReason::Announced => {
                self.people.note_request(clock, decision);
                true
            }
            _ => true,
        };
        if reason == HoldReason::AimMet && decision.step > 0 {
            let same = |act: &&mut Acted| act.rule == decision.rule && act.mode == decision.mode;
            if let Some(last) = self.acts.iter_mut().rev().find(same) {
                last.aim_met = Some(true);
            }
        }
        if is_true { Ok(()) } else { broken("a hold names its reason", format!("{decision:?}")) }
    }

    fn check_aim(&mut self, clock: &Clock, aim_check: &AimCheck) -> Result<(), Violation> {
        if self.check_start(aim_check)? {
            return Ok(());
        }
        let at = clock.at.uptime;
        let aim_met = aim_check.aim_met;
        let acts = self.acts.iter_mut().rev();
        for act in acts.filter(|act| act.id == aim_check.decision) {
            act.aim_met = aim_met;
        }
        let phases = self.rules.values_mut().flat_map(|watched| &mut watched.phases);
        for (phase, _) in phases {
            if let Phase::Ended { id, step, .. } = *phase
                && id == aim_check.decision
            {
                *phase = Phase::Checked { step, aim_met, at };
                return Ok(());
            }
        }
        broken("only a completed act is aim_checked, once", format!("{aim_check:?}"))
    }
}
