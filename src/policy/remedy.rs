//! A remedy's course: which step is next, what holds it back, and whether it has helped.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::Surroundings;
use super::evidence::evidence;
use super::promql::{EvalTime, Evaluated, Labels, Value};
use super::rule::{Query, Remedy, Rule};
use super::template::Template;
use crate::model::{
    Action, Assessment, Decision, DecisionId, Evidence, HoldReason, Outcome, OutcomeResult, Verdict,
};

/// After this an action whose outcome has not come is taken for lost. Executors bound their actions
/// far below it; it only keeps a lost message from holding a remedy for ever.
const OUTCOME_LOST_AFTER: Duration = Duration::from_secs(900);

/// Whether the outcome of an action decided at `since` will not come any more.
pub(super) fn outcome_is_lost(since: Duration, now: Duration) -> bool {
    now.saturating_sub(since) >= OUTCOME_LOST_AFTER
}

/// A rule that flaps says once in this time why it holds back.
const HOLD_TOLD_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// An action whose effect cannot be measured for this long ends the round.
const JUDGING_ENDS_AFTER: Duration = Duration::from_secs(30);

/// What a remedy is for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case<'a> {
    /// The rule.
    pub(super) rule: &'a Rule,
    /// Its remedy.
    pub(super) remedy: &'a Remedy,
    /// Labels and value of the alert that fires, for texts.
    pub(super) alert: Option<(&'a Labels, f64)>,
}

impl Case<'_> {
    /// The action with its text filled in.
    fn told(&self, action: &Action) -> Action {
        match (action, self.alert) {
            (Action::Notify { message }, Some((labels, value))) => {
                let rendered = Template::parse(message).map(|text| text.render(labels, value));
                Action::Notify { message: rendered.unwrap_or_else(|_| message.clone()) }
            }
            _ => action.clone(),
        }
    }
}

/// Whether the rule that a remedy belongs to fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    /// No.
    Quiet,
    /// Yes.
    Firing,
    /// It did when that could last be told.
    Unknown,
}

/// Where one remedy is in its course.
#[derive(Clone, Debug)]
pub(super) struct Course {
    phase: Phase,
    /// When each act of the `at_most` window was decided, on the uptime clock.
    acts: VecDeque<Duration>,
    /// Why it holds back in the present episode of its rule.
    last_hold: Option<(HoldReason, usize)>,
    /// When each reason, at each step, was last told.
    holds_told: BTreeMap<(HoldReason, usize), Duration>,
    /// The last decision, in words.
    pub(super) summary: Option<String>,
}

#[derive(Clone, Debug)]
enum Phase {
    /// The next step may be decided.
    Ready { step: usize },
    /// An action is under way.
    Acting { decision: DecisionId, step: usize, before: Vec<Evidence>, since: Duration },
    /// The action has ended; the signals have not been measured since.
    Judging { decision: DecisionId, step: usize, before: Vec<Evidence>, ended: Duration },
    /// Resting after a round.
    Cooling { until: Duration },
}

/// Where a remedy is in its course, for explanations.
#[derive(Clone, Debug)]
pub(super) struct Stand {
    /// The step that is next, or under way.
    pub(super) step: usize,
    /// The decision whose action is under way, or whose effect is still to be measured.
    pub(super) under_way: Option<DecisionId>,
    /// Until when it rests, on the uptime clock.
    pub(super) rests_until: Option<Duration>,
    /// When each act was decided that may still count, on the uptime clock.
    pub(super) acts: Vec<Duration>,
    /// Why it holds back in the present episode of its rule.
    pub(super) holds: Option<HoldReason>,
}

impl Default for Course {
    fn default() -> Self {
        Self {
            phase: Phase::Ready { step: 0 },
            acts: VecDeque::new(),
            last_hold: None,
            holds_told: BTreeMap::new(),
            summary: None,
        }
    }
}

impl Course {
    /// Takes the report on this remedy's action, if it is that.
    pub(super) fn observe_outcome(&mut self, remedy: &Remedy, outcome: &Outcome) {
        let Phase::Acting { decision, step, before, .. } = &mut self.phase else { return };
        if *decision != outcome.decision {
            return;
        }
        self.phase = match outcome.result {
            // Nothing was touched, so there is no effect to measure and no reason for a next step.
            OutcomeResult::Skipped => {
                Phase::Cooling { until: outcome.ended.uptime + remedy.cooldown }
            }
            OutcomeResult::Done | OutcomeResult::Failed(_) | OutcomeResult::TimedOut => {
                Phase::Judging {
                    decision: *decision,
                    step: *step,
                    before: std::mem::take(before),
                    ended: outcome.ended.uptime,
                }
            }
        };
    }

    /// Where it stands.
    pub(super) fn stand(&self) -> Stand {
        let (step, under_way, rests_until) = match &self.phase {
            Phase::Ready { step } => (*step, None, None),
            Phase::Acting { decision, step, .. } | Phase::Judging { decision, step, .. } => {
                (*step, Some(*decision), None)
            }
            Phase::Cooling { until } => (0, None, Some(*until)),
        };
        let holds = self.last_hold.map(|(reason, _)| reason);
        let acts = self.acts.iter().copied().collect();
        Stand { step, under_way, rests_until, acts, holds }
    }

    /// What a course with other steps keeps: cooldown and budget.
    pub(super) fn carried_over(&self, now: Duration, remedy: &Remedy) -> Self {
        let phase = match &self.phase {
            Phase::Cooling { until } => Phase::Cooling { until: *until },
            Phase::Ready { step: 0 } => Phase::Ready { step: 0 },
            Phase::Ready { .. } | Phase::Acting { .. } | Phase::Judging { .. } => {
                Phase::Cooling { until: now + remedy.cooldown }
            }
        };
        let acts = self.acts.clone();
        Self { phase, acts, summary: self.summary.clone(), ..Self::default() }
    }

    /// Takes in an act of an earlier run, in this boot. They come oldest first.
    pub(super) fn resume_act(&mut self, remedy: &Remedy, now: Duration, ago: Duration) {
        let Some(acted) = now.checked_sub(ago) else { return };
        if remedy.at_most.is_some_and(|at_most| ago < at_most.per) {
            self.acts.push_back(acted);
        }
        let until = acted + remedy.cooldown;
        if until > now {
            self.phase = Phase::Cooling { until };
        }
    }

    /// Moves on by one evaluation of the rule.
    pub(super) fn advance(
        &mut self,
        case: &Case<'_>,
        condition: Condition,
        around: &mut Surroundings<'_>,
    ) {
        let remedy = case.remedy;
        let now = around.at.uptime;
        if matches!(self.phase, Phase::Acting { since, .. } if outcome_is_lost(since, now)) {
            self.phase = Phase::Cooling { until: now + remedy.cooldown };
        }
        self.judge(case, around);
        if matches!(self.phase, Phase::Cooling { until } if until <= now) {
            self.phase = Phase::Ready { step: 0 };
        }
        if condition == Condition::Quiet {
            self.last_hold = None;
            if matches!(self.phase, Phase::Ready { step } if step > 0) {
                self.phase = Phase::Cooling { until: now + remedy.cooldown };
            }
            return;
        }
        match self.phase {
            Phase::Ready { step } => {
                let verdict = self.verdict(case, step, condition, around);
                self.decide(case, step, verdict, around);
                // Whoever misses the aim later begins with the first step.
                if step > 0 && verdict == Verdict::Hold(HoldReason::AimMet) {
                    self.phase = Phase::Cooling { until: now + remedy.cooldown };
                }
            }
            Phase::Cooling { .. } => {
                self.hold(case, 0, HoldReason::Cooldown, around);
            }
            // The act that is under way is this rule's answer.
            Phase::Acting { .. } | Phase::Judging { .. } => {}
        }
    }

    /// Measures what the ended action has changed, once there are readings from after it.
    fn judge(&mut self, case: &Case<'_>, around: &mut Surroundings<'_>) {
        let Phase::Judging { decision, step, before, ended } = &mut self.phase else { return };
        let (decision, step, ended) = (*decision, *step, *ended);
        let now = around.at.uptime;
        let out_of_time = now.saturating_sub(ended) >= JUDGING_ENDS_AFTER;
        let measured = around.measured.is_some_and(|measured| measured > ended);
        if !measured && !out_of_time {
            return;
        }
        let aim_met = aim_met(case, around);
        if aim_met.is_none() && !out_of_time {
            return;
        }
        around.step.assessments.push(Assessment {
            decision,
            at: around.at,
            aim_met,
            before: std::mem::take(before),
            after: evidence(case.rule, around.store),
        });
        let next = step + 1;
        self.phase = match aim_met {
            Some(false) if next < case.remedy.steps.len() => Phase::Ready { step: next },
            _ => Phase::Cooling { until: now + case.remedy.cooldown },
        };
        let was_measurable = !matches!(case.remedy.steps.get(step), Some(Action::Notify { .. }));
        if aim_met == Some(false) && next >= case.remedy.steps.len() && was_measurable {
            self.hold(case, step, HoldReason::StepsExhausted, around);
        }
    }

    fn verdict(
        &mut self,
        case: &Case<'_>,
        step: usize,
        condition: Condition,
        around: &Surroundings<'_>,
    ) -> Verdict {
        let is_notice = matches!(case.remedy.steps.get(step), Some(Action::Notify { .. }));
        if condition == Condition::Unknown {
            return Verdict::Hold(HoldReason::Unknown);
        }
        if around.in_flight.is_some() && !is_notice {
            return Verdict::Hold(HoldReason::Busy);
        }
        if self.budget_is_spent(case.remedy, around.at.uptime) {
            return Verdict::Hold(HoldReason::Budget);
        }
        match aim_met(case, around) {
            Some(true) => Verdict::Hold(HoldReason::AimMet),
            Some(false) => Verdict::Act,
            None => Verdict::Hold(HoldReason::Unknown),
        }
    }

    fn budget_is_spent(&mut self, remedy: &Remedy, now: Duration) -> bool {
        let Some(at_most) = remedy.at_most else { return false };
        while self.acts.front().is_some_and(|act| now.saturating_sub(*act) >= at_most.per) {
            self.acts.pop_front();
        }
        self.acts.len() >= at_most.times as usize
    }

    fn decide(
        &mut self,
        case: &Case<'_>,
        step: usize,
        verdict: Verdict,
        around: &mut Surroundings<'_>,
    ) {
        match verdict {
            Verdict::Hold(reason) => self.hold(case, step, reason, around),
            Verdict::Act => {
                let Some(decision) = decision(case, step, verdict, around) else { return };
                if case.remedy.at_most.is_some() {
                    self.acts.push_back(around.at.uptime);
                }
                if !matches!(decision.action, Action::Notify { .. }) {
                    *around.in_flight = Some((decision.id, around.at.uptime));
                }
                self.last_hold = None;
                self.holds_told.clear();
                self.phase = Phase::Acting {
                    decision: decision.id,
                    step,
                    before: decision.because.clone(),
                    since: around.at.uptime,
                };
                self.record(decision, around);
            }
        }
    }

    /// A hold is a decision of its own when its reason changes, and not at every evaluation, nor
    /// each time that a flapping rule comes back to it.
    fn hold(
        &mut self,
        case: &Case<'_>,
        step: usize,
        reason: HoldReason,
        around: &mut Surroundings<'_>,
    ) {
        let now = around.at.uptime;
        let told = self.holds_told.get(&(reason, step));
        let lately = told.is_some_and(|told| now.saturating_sub(*told) < HOLD_TOLD_AGAIN_AFTER);
        let goes_on = self.last_hold.replace((reason, step)) == Some((reason, step));
        if goes_on || lately {
            return;
        }
        self.holds_told.insert((reason, step), now);
        if let Some(decision) = decision(case, step, Verdict::Hold(reason), around) {
            self.record(decision, around);
        }
    }

    fn record(&mut self, decision: Decision, around: &mut Surroundings<'_>) {
        let reason = decision.verdict.reason();
        let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
        self.summary = Some(format!(
            "{} {} at {} ({} mode){reason}",
            decision.verdict.name(),
            decision.action,
            decision.at.utc,
            decision.mode.name(),
        ));
        around.step.decisions.push(decision);
    }
}

fn decision(
    case: &Case<'_>,
    step: usize,
    verdict: Verdict,
    around: &mut Surroundings<'_>,
) -> Option<Decision> {
    let action = case.told(case.remedy.steps.get(step)?);
    let id = DecisionId(*around.next_decision);
    *around.next_decision += 1;
    Some(Decision {
        id,
        at: around.at,
        rule: case.rule.id.clone(),
        mode: case.rule.mode.unwrap_or(around.mode),
        verdict,
        step,
        action,
        because: evidence(case.rule, around.store),
    })
}

/// Whether the aim is met; `None` where that cannot be told. Without an aim of its own, a remedy
/// aims at the end of its rule's condition.
fn aim_met(case: &Case<'_>, around: &Surroundings<'_>) -> Option<bool> {
    match &case.remedy.aim {
        Some(aim) => yields_anything(aim, around),
        None => holds(&case.rule.expr, around).map(|holds| !holds),
    }
}

fn yields_anything(query: &Query, around: &Surroundings<'_>) -> Option<bool> {
    match evaluate(query, around)? {
        Value::Vector(samples) => Some(!samples.is_empty()),
        Value::Scalar(value) => Some(value != 0.0 && !value.is_nan()),
    }
}

/// Whether a condition holds: every sample does, and so does a scalar, whatever its value.
fn holds(query: &Query, around: &Surroundings<'_>) -> Option<bool> {
    match evaluate(query, around)? {
        Value::Vector(samples) => Some(!samples.is_empty()),
        Value::Scalar(_) => Some(true),
    }
}

fn evaluate(query: &Query, around: &Surroundings<'_>) -> Option<Value> {
    let at = EvalTime { timeline_ms: around.at.timeline_ms(), utc_ms: around.at.utc_ms() };
    match query.expr.evaluate(around.store, at) {
        Ok(Evaluated::Known(value)) => Some(value),
        Ok(Evaluated::Unknown(_)) | Err(_) => None,
    }
}
