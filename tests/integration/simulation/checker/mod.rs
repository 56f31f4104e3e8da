//! What must hold whatever happens, told from the outside: what the policy saw and said, and the
//! rules as they were read. It shares no code with what it checks.

mod acts;
mod alerts;
mod brake;
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
    Action, AlertChange, AlertState, Assessment, ClusterNames, Decision, DecisionId, HoldReason,
    Mode, Moment, Observation, Outcome, OutcomeResult, Reading, RuleId, Source, Verdict,
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
use self::reads::Lack;
use self::received::Received;
use self::restarts::{Restarts, is_restart};
use self::settings::Settings;
use self::shapes::Shape;

/// An outcome that has not come after this will not come.
const LOST_AFTER: Duration = Duration::from_secs(900);

/// A rule that holds back may have said so this long before it began to fire again.
const HELD_BEFORE: Duration = Duration::from_secs(60);

/// A rule is evaluated a little after it is due, with the next sample.
const LATE: Duration = Duration::from_secs(2);

/// Something that must never be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub invariant: &'static str,
    pub what: String,
}

fn broken<T>(invariant: &'static str, what: String) -> Result<T, Violation> {
    Err(Violation { invariant, what })
}

/// What time it is, by every clock there is.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Since the run began; what no process can know.
    pub now: Duration,
    /// Which boot it is.
    pub boot: u32,
    pub at: Moment,
}

#[derive(Default)]
pub struct Checker {
    mode: Mode,
    rules: BTreeMap<RuleId, Watched>,
    acts: Vec<Acted>,
    ids: BTreeSet<DecisionId>,
    /// The actions that are under way.
    flights: Vec<Flight>,
    /// Sources of which nothing could be read the last time.
    failed: BTreeMap<Source, Lack>,
    rails: GuardRails,
    knows_past: bool,
    /// Memory was measured once: nothing is decided before.
    has_measured: bool,
    /// When the last step was.
    stepped: Duration,
    people: People,
    settings: Settings,
    restarts: Restarts,
    signs: Signs,
    received: Received,
    neighbours: Neighbours,
    /// Between the last two steps: nothing is evaluated more often.
    slowness: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Flight {
    id: DecisionId,
    mode: Mode,
    kind: Kind,
    since: Duration,
}

/// What an action is to those beside it.
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

    /// A start waits for everything, and nothing but another start for it; a stop for its like.
    fn waits_for(self, other: Self) -> bool {
        match (self, other) {
            (Self::Start, _) | (Self::Stop, Self::Stop) => true,
            (Self::Stop, _) | (_, Self::Start) => false,
            (Self::Ordinary, _) => true,
        }
    }
}

type Labels = BTreeMap<Arc<str>, Arc<str>>;

/// What is known of a rule in this life of the process.
struct Watched {
    rule: Rule,
    /// Time between its evaluations.
    interval: Duration,
    shape: Shape,
    /// This node, for a rule that reads all of them.
    node: Option<Arc<str>>,
    /// What others told would have it stand otherwise, since then.
    differs_since: Option<Duration>,
    alerts: BTreeMap<Labels, (AlertState, Duration)>,
    is_unknown: bool,
    firing_since: Option<Duration>,
    decided: Option<Duration>,
    /// It owes an answer since then.
    silent_since: Option<Duration>,
    /// One for each mode.
    courses: [(Course, Mode); 2],
    /// The least that `cooldown` was since the last act.
    cooldown: Duration,
}

#[derive(Clone, Copy, Debug)]
enum Course {
    Idle,
    Acting { id: DecisionId, step: usize, since: Duration },
    Ended { id: DecisionId, step: usize, at: Duration },
    Judged { step: usize, aim_met: Option<bool>, at: Duration },
    Skipped { at: Duration },
}

impl Course {
    /// Its rule changes. The round that is under way ends then, but for one that is over already
    /// and of which nothing more was told: an act was given up, or what it has set stays without
    /// an aim by which it could be judged, so that its round ends with its outcome if no other
    /// step follows. Nobody need rest from a reload on that came long after.
    fn broken_off(self, at: Duration, is_never_judged: impl Fn(DecisionId) -> bool) -> Self {
        match self {
            Self::Acting { since, .. } => Self::Skipped { at: at.min(since + LOST_AFTER) },
            Self::Ended { id, at: ended, .. } if is_never_judged(id) => Self::Skipped { at: ended },
            Self::Ended { .. } => Self::Skipped { at },
            course => course,
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
            courses: [Mode::Observe, Mode::Enforce].map(|mode| (Course::Idle, mode)),
            cooldown: cooldown(rule),
        }
    }

    /// How long it takes until it is evaluated.
    fn patience(&self) -> Duration {
        self.interval * 2 + LATE
    }

    fn course(&self, mode: Mode) -> Course {
        let [(observing, _), (enforcing, _)] = self.courses;
        if mode == Mode::Observe { observing } else { enforcing }
    }

    fn set_course(&mut self, mode: Mode, course: Course) {
        self.courses[usize::from(mode == Mode::Enforce)].0 = course;
    }

    fn is_firing(&self) -> bool {
        self.alerts.values().any(|(state, _)| *state == AlertState::Firing)
    }

    /// Whether it fires, and not for other nodes alone.
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
    /// Nobody will remember these decisions, nor what those acts came to: they have done nothing
    /// that counts.
    pub fn forget(&mut self, decisions: &BTreeSet<DecisionId>, judgements: &BTreeSet<DecisionId>) {
        self.acts.retain(|act| !decisions.contains(&act.id));
        self.ids.retain(|id| !decisions.contains(id));
        for act in self.acts.iter_mut().filter(|act| judgements.contains(&act.id)) {
            act.aim_met = None;
        }
        self.people.forget(decisions);
        self.restarts.forget(decisions);
    }

    /// That is in the journal, whether or not a process hears of it.
    pub fn kept(&mut self, outcome: &Outcome) {
        self.people.hear(outcome);
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

    /// This is how the node is called among others, and how long received alerts are kept.
    pub fn among(&mut self, names: Option<&ClusterNames>, forget_after: Duration) {
        self.neighbours.name(names);
        self.received.set_forget_after(forget_after);
    }

    /// The whole picture.
    pub fn look(&self, at: Moment, status: &Status) -> Result<(), Violation> {
        self.look_at_received(status)?;
        self.look_at_neighbours(at, status)
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
                // The round of a rule that has changed is over; its rest is not.
                let has_aim = acts::aims(&known);
                let settings = &self.settings;
                watched.courses = known.courses.map(|(course, mode)| {
                    (course.broken_off(at, |id| !has_aim && settings.is_temporary(id)), mode)
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

    /// The policy was told that and has said this.
    pub fn step(
        &mut self,
        clock: &Clock,
        seen: &[Observation],
        said: &Step,
    ) -> Result<(), Violation> {
        for seen in seen {
            self.see(clock, seen);
            self.restarts.see(clock, seen);
            self.signs.see(clock, seen);
            self.received.see(clock, seen);
            self.neighbours.see(clock, seen);
        }
        self.slowness = clock.at.uptime.saturating_sub(self.stepped);
        self.received_turns(clock, said)?;
        self.restarts.said(said);
        self.signs.hear(clock, said);
        self.people.answered(clock, &said.answers);
        for doubt in &said.doubts {
            match self.rules.get_mut(&doubt.rule) {
                Some(watched) => watched.is_unknown = !doubt.reasons.is_empty(),
                None => return broken("only loaded rules speak", doubt.rule.to_string()),
            }
        }
        for change in &said.alerts {
            self.known_enough(&change.rule, clock, change.to != AlertState::Inactive)?;
            self.change(clock, change)?;
        }
        self.note_firing(clock);
        self.received_is_heeded(clock, said)?;
        self.neighbours_are_heeded(clock, said)?;
        for assessment in &said.assessments {
            self.assess(clock, assessment)?;
        }
        for decision in &said.decisions {
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
                let lacks = [(Reading::Failed, Lack::Failed), (Reading::Unsupported, Lack::Gone)];
                let lack = lacks.into_iter().find(|(of, _)| all_are(*of)).map(|(_, lack)| lack);
                if let Some(lack) = lack.filter(|_| !readings.values.is_empty()) {
                    self.failed.insert(readings.source, lack);
                }
            }
            Observation::Outcome(outcome) => self.hear(outcome),
            Observation::Past(_) => {
                self.knows_past = true;
                self.acts.iter_mut().for_each(|act| act.date(clock));
            }
            Observation::Pause(pause) => self.people.pause(pause.is_some()),
            Observation::Operator(command) => self.reset_breakers(command, clock),
            _ => {}
        }
    }

    fn hear(&mut self, outcome: &Outcome) {
        self.flights.retain(|flight| flight.id != outcome.decision);
        self.settings.hear(outcome);
        self.restarts.hear(outcome);
        let courses = self.rules.values_mut().flat_map(|watched| &mut watched.courses);
        for (course, _) in courses {
            if let Course::Acting { id, step, .. } = *course
                && id == outcome.decision
            {
                *course = match outcome.result {
                    OutcomeResult::Skipped | OutcomeResult::NotDone(_) => {
                        Course::Skipped { at: outcome.ended.uptime }
                    }
                    _ => Course::Ended { id, step, at: outcome.ended.uptime },
                };
            }
        }
    }

    fn decide(&mut self, clock: &Clock, decision: &Decision) -> Result<(), Violation> {
        if !self.ids.insert(decision.id) {
            return broken("no number is given twice", format!("{decision:?}"));
        }
        if decision.at != clock.at {
            return broken("decisions are made now", format!("{decision:?}"));
        }
        if decision.action.is_undo() {
            return self.undo(clock, decision);
        }
        if is_restart(decision) {
            return match decision.verdict {
                Verdict::Act => self.restart(clock, decision),
                Verdict::Hold(_) => Ok(()),
            };
        }
        if !self.rules.contains_key(&decision.rule) {
            return broken("only loaded rules speak", decision.rule.to_string());
        }
        match decision.verdict {
            Verdict::Act => self.act(clock, decision)?,
            Verdict::Hold(reason) => self.hold(reason, decision)?,
        }
        if let Some(watched) = self.rules.get_mut(&decision.rule) {
            watched.decided = Some(clock.at.uptime);
        }
        Ok(())
    }

    /// A reason that is given must be one.
    fn hold(&mut self, reason: HoldReason, decision: &Decision) -> Result<(), Violation> {
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
            HoldReason::Approval => {
                self.people.asked(decision);
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

    fn assess(&mut self, clock: &Clock, assessment: &Assessment) -> Result<(), Violation> {
        if self.assess_start(assessment)? {
            return Ok(());
        }
        let at = clock.at.uptime;
        let aim_met = assessment.aim_met;
        let acts = self.acts.iter_mut().rev();
        for act in acts.filter(|act| act.id == assessment.decision) {
            act.aim_met = aim_met;
        }
        let courses = self.rules.values_mut().flat_map(|watched| &mut watched.courses);
        for (course, _) in courses {
            if let Course::Ended { id, step, .. } = *course
                && id == assessment.decision
            {
                *course = Course::Judged { step, aim_met, at };
                return Ok(());
            }
        }
        broken("only what has ended is judged, once", format!("{assessment:?}"))
    }
}
