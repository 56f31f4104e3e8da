//! Why a rule does what it does: all that its decisions follow from, at one instant.

mod json;

use std::sync::Arc;

use promql_rules::{EvalTime, Traced, TracedValue, Value};

use super::Policy;
use super::aim::{Aimed, Case};
use super::brake::Brake;
use super::engines::Engines;
use super::guard::{Guard, GuardedProposal, Rail, stops_lost_rank};
use super::reboot::{RebootFacts, Reboots};
use super::remedy::RemedyProgress;
use super::rule::{Query, RemedyStep, RuleSet};
use super::status::{RuleState, RuleStatus};
use crate::model::{
    DecisionId, DecisionRecord, Evidence, HoldReason, MemoryAccount, Moment, Observation,
    RebootAct, RuleId,
};

pub use json::{part_json, rail_json};

/// The explanation of one rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// Its state.
    pub rule: RuleStatus,
    /// Its condition, taken apart.
    pub condition: Traced,
    /// Its remedy, if it has one.
    pub remedy: Option<RemedyExplanation>,
}

/// The explanation of a rule's remedy.
#[derive(Clone, Debug, PartialEq)]
pub struct RemedyExplanation {
    /// Its aim, taken apart; without one it aims at the end of the condition.
    pub aim: Option<Traced>,
    /// Whether the aim is met; `None` where that is unknown.
    pub aim_met: Option<bool>,
    /// What is tried in turn.
    pub steps: Vec<RemedyStep>,
    /// Which of them is next, or under way.
    pub step: usize,
    /// The decision whose action is under way, or whose effect is still to be measured.
    pub under_way: Option<DecisionId>,
    /// One for each reason to hold back.
    pub rails: Vec<Rail>,
}

impl Policy {
    /// Explains a rule as of the last step. Without earlier runs, limits over time are unknown.
    pub fn explain(&self, rule: &RuleId, at: Moment, has_past: bool) -> Option<Explanation> {
        let status = self.rule_statuses.iter().find(|status| status.rule == *rule)?;
        let mut groups = self.groups.iter();
        let (rule, progress, alert) = groups.find_map(|group| group.progress(rule, self.mode))?;
        let eval_at = EvalTime { timeline_ms: at.timeline_ms(), utc_ms: at.utc_ms() };
        let store = self.store_of(rule);
        let trace = |query: &Query| query.expr.trace(&query.text, store, eval_at, has_past);
        let condition = trace(&rule.expr);
        let remedy = rule.remedy.as_ref().map(|remedy| {
            let trace_aim = |aim: &Query| aim.expr.trace_aim(&aim.text, store, eval_at, has_past);
            let aim = remedy.aim.as_ref().map(trace_aim);
            let aim_met = aim_met(aim.as_ref(), &condition);
            let case = Case { rule, remedy, mode: status.mode, alert };
            let (progress, engines, brake) = (&progress, &self.engines, &self.brake);
            let facts = RebootFacts {
                at,
                guard: &self.guard,
                engines,
                store: &self.store,
                assessment: self.assessment.current(),
            };
            let reboots = &self.reboots;
            let known = RemedyFacts {
                status,
                progress,
                case: &case,
                aim_met,
                engines,
                brake,
                reboots,
                facts,
            };
            let rails = HoldReason::ALL.map(|reason| known.rail(reason, &self.guard, at));
            RemedyExplanation {
                aim,
                aim_met,
                steps: remedy.steps.clone(),
                step: progress.step,
                under_way: progress.under_way,
                rails: rails.into_iter().flatten().collect(),
            }
        });
        Some(Explanation { rule: status.clone(), condition, remedy })
    }

    /// The rules in force.
    pub fn rules(&self) -> Arc<[RuleStatus]> {
        Arc::clone(&self.rule_statuses)
    }
}

fn aim_met(aim: Option<&Traced>, condition: &Traced) -> Option<bool> {
    match (aim, &condition.value) {
        (Some(aim), _) => aim.yields,
        (None, TracedValue::Known(Value::Scalar(_))) => Some(false),
        (None, _) => condition.yields.map(|yields| !yields),
    }
}

/// Explains the condition and the aim of a decision by the values that were journalled with it.
/// `None` if the rule is not loaded any more.
pub fn of_decision(made: &DecisionRecord, rules: &RuleSet) -> Option<Explanation> {
    let mut policy = Policy::rehearsing(made.at, made.mode, rules);
    let seen: Vec<Observation> = made.because.iter().filter_map(sample).collect();
    policy.step(made.at, &seen);
    let mut explanation = policy.explain(&made.rule, made.at, false)?;
    explanation.rule.mode = made.mode;
    Some(explanation)
}

/// A journalled value as a sample.
pub fn sample(evidence: &Evidence) -> Option<Observation> {
    let series = promql_rules::parse(&evidence.series).ok()?.as_series()?;
    Some(Observation::Sample { series, value: evidence.value })
}

/// The facts about one remedy except its guard rails.
struct RemedyFacts<'a> {
    status: &'a RuleStatus,
    progress: &'a RemedyProgress,
    case: &'a Case<'a>,
    aim_met: Option<bool>,
    engines: &'a Engines,
    brake: &'a Brake,
    reboots: &'a Reboots,
    facts: RebootFacts<'a>,
}

impl RemedyFacts<'_> {
    fn rail(&self, reason: HoldReason, guard: &Guard, at: Moment) -> Option<Rail> {
        let rail = |holds, detail: String| Rail { reason, holds, left: None, used: None, detail };
        Some(match reason {
            HoldReason::AimMet => rail(
                self.aim_met == Some(true),
                match self.aim_met {
                    Some(true) => "the aim is met".to_owned(),
                    Some(false) => "the aim is missed".to_owned(),
                    None => "whether the aim is met is unknown".to_owned(),
                },
            ),
            HoldReason::Unknown => {
                let rule_is_unknown = self.status.state == RuleState::Unknown;
                let detail = match (rule_is_unknown, self.aim_met) {
                    (true, _) => self.status.unknown.join("; "),
                    (false, None) => "whether the aim is met is unknown".to_owned(),
                    (false, Some(_)) => "condition and aim are known".to_owned(),
                };
                rail(rule_is_unknown || self.aim_met.is_none(), detail)
            }
            HoldReason::StepsExhausted => {
                let (step, steps) = (self.progress.step, &self.case.remedy.steps);
                let next = steps.get(step).map(ToString::to_string).unwrap_or_default();
                let detail = format!("step {} of {} is next: {next}", step + 1, steps.len());
                rail(self.progress.holds == Some(reason), detail)
            }
            _ if reason.is_of_reboot() => {
                let action =
                    self.case.remedy.steps.get(self.progress.step)?.action(self.case.alert);
                let RebootAct::Schedule(plan) = action.reboot()? else { return None };
                let facts = RebootFacts { guard, ..self.facts };
                let held = self.reboots.hold_new(plan, &facts)?;
                if held.reason != reason {
                    return None;
                }
                rail(true, held.text.to_string())
            }
            _ => {
                let step = self.progress.step;
                let written = self.case.remedy.steps.get(step)?;
                if reason == HoldReason::UnclearTarget && self.case.remedy.stops_engines() {
                    let took = who_took(self.brake.account());
                    return Some(match self.brake.choose(at.uptime) {
                        Ok(engine) => {
                            rail(false, format!("{} has grown most; {took}", engine.name))
                        }
                        Err(why) => rail(true, format!("{}; {took}", why.meaning())),
                    });
                }
                let aimed = Aimed::of(
                    written,
                    self.case.alert,
                    (self.engines, self.brake),
                    (at, self.case.mode),
                );
                let guarded = GuardedProposal {
                    proposal: self.case.proposal(step, &aimed),
                    rails: &self.case.remedy.rails,
                    labels: self.case.alert.map(|(labels, _)| labels),
                    is_free_of_fleet: stops_lost_rank(&aimed.action, self.facts.store),
                };
                guard.rail(reason, &guarded, at)?
            }
        })
    }
}

/// Who took memory lately, in one line.
fn who_took(account: &MemoryAccount) -> String {
    let seconds = account.window.as_secs();
    if account.entries.is_empty() {
        return format!("no process took memory within {seconds} s");
    }
    let entries: Vec<String> = account.entries.iter().map(ToString::to_string).collect();
    format!("taken within {seconds} s: {}", entries.join("; "))
}
