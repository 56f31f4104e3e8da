//! What must hold whatever happens, told from the outside: what the policy saw and said, and the
//! rules as they were read. It shares no code with what it checks.

mod acts;
mod alerts;
mod reads;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use umawarden::model::{
    AlertChange, AlertState, Assessment, Decision, DecisionId, HoldReason, Mode, Moment,
    Observation, Outcome, OutcomeResult, Reading, RuleId, Source, Verdict,
};
use umawarden::policy::Step;
use umawarden::policy::rule::{Rule, RuleSet};

use self::acts::Acted;

/// An outcome that has not come after this will not come.
const LOST_AFTER: Duration = Duration::from_secs(900);

/// A rule that holds back may have said so this long before it began to fire again.
const HELD_BEFORE: Duration = Duration::from_secs(60);

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
    last_id: Option<DecisionId>,
    /// The action that is under way, and since when.
    flight: Option<(DecisionId, Duration)>,
    /// Sources of which nothing could be read the last time.
    failed: BTreeSet<Source>,
}

type Labels = BTreeMap<Arc<str>, Arc<str>>;

/// What is known of a rule in this life of the process.
struct Watched {
    rule: Rule,
    /// Time between its evaluations.
    interval: Duration,
    reads: BTreeSet<Source>,
    alerts: BTreeMap<Labels, (AlertState, Duration)>,
    is_unknown: bool,
    firing_since: Option<Duration>,
    decided: Option<Duration>,
    course: Course,
    /// The least that `cooldown` was since the last act.
    cooldown: Duration,
}

#[derive(Clone, Copy, Debug)]
enum Course {
    Idle,
    Acting { id: DecisionId, step: usize, since: Duration },
    Ended { id: DecisionId, step: usize },
    Judged { step: usize, aim_met: Option<bool>, at: Duration },
    Skipped { at: Duration },
}

impl Watched {
    fn new(rule: &Rule, interval: Duration) -> Self {
        Self {
            rule: rule.clone(),
            interval,
            reads: reads::sources(&rule.expr),
            alerts: BTreeMap::new(),
            is_unknown: false,
            firing_since: None,
            decided: None,
            course: Course::Idle,
            cooldown: cooldown(rule),
        }
    }

    fn is_firing(&self) -> bool {
        self.alerts.values().any(|(state, _)| *state == AlertState::Firing)
    }
}

fn watched(rules: &RuleSet) -> impl Iterator<Item = Watched> {
    rules
        .groups
        .iter()
        .flat_map(|group| group.rules.iter().map(|rule| Watched::new(rule, group.interval)))
}

fn cooldown(rule: &Rule) -> Duration {
    rule.remedy.as_ref().map_or(Duration::ZERO, |remedy| remedy.cooldown)
}

impl Checker {
    /// Nobody will remember these decisions: they have done nothing that counts.
    pub fn forget(&mut self, forgotten: &BTreeSet<DecisionId>) {
        self.acts.retain(|act| !forgotten.contains(&act.id));
    }

    /// A process starts; its first decision has that number.
    pub fn begin(&mut self, mode: Mode, rules: &RuleSet, first: DecisionId) {
        self.mode = mode;
        self.last_id = first.0.checked_sub(1).map(DecisionId);
        self.flight = None;
        self.failed.clear();
        self.rules = watched(rules).map(|rule| (rule.rule.id.clone(), rule)).collect();
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
        let mut old = std::mem::take(&mut self.rules);
        for mut watched in watched(rules) {
            let interval = watched.interval;
            if let Some(known) = old.remove(&watched.rule.id) {
                // The round of a rule that has changed is over; its rest is not.
                watched.course = match known.course {
                    Course::Acting { .. } | Course::Ended { .. } => Course::Skipped { at },
                    course => course,
                };
                watched.cooldown = known.cooldown.min(watched.cooldown);
                if known.rule == watched.rule {
                    watched = Watched { interval, ..known };
                }
            }
            if watched.rule.remedy.is_none() {
                watched.course = Course::Idle;
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
        seen.iter().for_each(|seen| self.see(seen));
        for doubt in &said.doubts {
            match self.rules.get_mut(&doubt.rule) {
                Some(watched) => watched.is_unknown = !doubt.reasons.is_empty(),
                None => return broken("only loaded rules speak", doubt.rule.to_string()),
            }
        }
        for change in &said.alerts {
            self.known_enough(&change.rule, clock)?;
            self.change(clock, change)?;
        }
        self.note_firing(clock);
        for assessment in &said.assessments {
            self.assess(clock, assessment)?;
        }
        for decision in &said.decisions {
            self.decide(clock, decision)?;
        }
        self.every_firing_rule_has_answered(clock)
    }

    fn see(&mut self, seen: &Observation) {
        match seen {
            Observation::Readings(readings) => {
                let has_failed = readings.values.iter().all(|value| *value == Reading::Failed);
                if has_failed && !readings.values.is_empty() {
                    self.failed.insert(readings.source);
                } else {
                    self.failed.remove(&readings.source);
                }
            }
            Observation::Outcome(outcome) => self.hear(outcome),
            _ => {}
        }
    }

    fn hear(&mut self, outcome: &Outcome) {
        self.flight.take_if(|(id, _)| *id == outcome.decision);
        for watched in self.rules.values_mut() {
            if let Course::Acting { id, step, .. } = watched.course
                && id == outcome.decision
            {
                watched.course = match outcome.result {
                    OutcomeResult::Skipped => Course::Skipped { at: outcome.ended.uptime },
                    _ => Course::Ended { id, step },
                };
            }
        }
    }

    fn decide(&mut self, clock: &Clock, decision: &Decision) -> Result<(), Violation> {
        if self.last_id.is_some_and(|last| decision.id <= last) {
            let what = format!("{} after {:?}", decision.id, self.last_id);
            return broken("decisions are numbered upwards", what);
        }
        self.last_id = Some(decision.id);
        if decision.at != clock.at {
            return broken("decisions are made now", format!("{decision:?}"));
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
    fn hold(&self, reason: HoldReason, decision: &Decision) -> Result<(), Violation> {
        let has_acted = || self.acts.iter().any(|act| act.rule == decision.rule);
        let is_true = match reason {
            HoldReason::Busy => self.flight.is_some(),
            HoldReason::Cooldown | HoldReason::Budget | HoldReason::StepsExhausted => has_acted(),
            _ => true,
        };
        if is_true { Ok(()) } else { broken("a hold names its reason", format!("{decision:?}")) }
    }

    fn assess(&mut self, clock: &Clock, assessment: &Assessment) -> Result<(), Violation> {
        let at = clock.at.uptime;
        for watched in self.rules.values_mut() {
            if let Course::Ended { id, step } = watched.course
                && id == assessment.decision
            {
                watched.course = Course::Judged { step, aim_met: assessment.aim_met, at };
                return Ok(());
            }
        }
        broken("only what has ended is judged, once", format!("{assessment:?}"))
    }
}
