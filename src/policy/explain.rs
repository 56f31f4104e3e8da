//! Why a rule does what it does: all that its decisions follow from, at one instant.

use std::sync::Arc;
use std::time::Duration;

use super::Policy;
use super::promql::{EvalTime, Traced, TracedValue, Value};
use super::remedy::Stand;
use super::rule::{Query, Remedy, Rule};
use super::status::{RuleState, RuleStatus};
use crate::model::{Action, DecisionId, HoldReason, Moment, RuleId};

/// What is known of one rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// Where it stands.
    pub rule: RuleStatus,
    /// Its condition, taken apart.
    pub condition: Traced,
    /// Its remedy, if it has one.
    pub remedy: Option<RemedyExplanation>,
}

/// What is known of a rule's remedy.
#[derive(Clone, Debug, PartialEq)]
pub struct RemedyExplanation {
    /// Its aim, taken apart; without one it aims at the end of the condition.
    pub aim: Option<Traced>,
    /// Whether the aim is met; `None` where that cannot be told.
    pub aim_met: Option<bool>,
    /// What is tried in turn.
    pub steps: Vec<Action>,
    /// Which of them is next, or under way.
    pub step: usize,
    /// The decision whose action is under way, or whose effect is still to be measured.
    pub under_way: Option<DecisionId>,
    /// One for each reason to hold back.
    pub rails: Vec<Rail>,
}

/// One reason to hold back, and whether it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rail {
    /// Which.
    pub reason: HoldReason,
    /// Whether it holds the remedy back now, or would if the rule fired.
    pub holds: bool,
    /// How much longer, where time alone ends it.
    pub left: Option<Duration>,
    /// How much of a bound is used up, and the bound.
    pub used: Option<(u64, u64)>,
    /// The same in words.
    pub detail: String,
}

impl Policy {
    /// What is known of a rule, as of the last step. Without a past, what looks back is unknown.
    pub fn explain(&self, rule: &RuleId, at: Moment, has_past: bool) -> Option<Explanation> {
        let status = self.rule_statuses.iter().find(|status| status.rule == *rule)?;
        let (rule, stand) = self.groups.iter().find_map(|group| group.stand(rule))?;
        let eval_at = EvalTime { timeline_ms: at.timeline_ms(), utc_ms: at.utc_ms() };
        let trace = |query: &Query| query.expr.trace(&query.text, &self.store, eval_at, has_past);
        let condition = trace(&rule.expr);
        let remedy = rule.remedy.as_ref().map(|remedy| {
            let aim = remedy.aim.as_ref().map(&trace);
            let known = Known {
                rule,
                remedy,
                status,
                stand: &stand,
                aim_met: aim_met(aim.as_ref(), &condition),
                in_flight: self.in_flight,
                now: at.uptime,
            };
            RemedyExplanation {
                aim_met: known.aim_met,
                steps: remedy.steps.clone(),
                step: stand.step,
                under_way: stand.under_way,
                rails: HoldReason::ALL.map(|reason| known.rail(reason)).to_vec(),
                aim,
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
    let TracedValue::Known(value) = &aim.unwrap_or(condition).value else { return None };
    Some(match (aim, value) {
        (Some(_), Value::Vector(samples)) => !samples.is_empty(),
        (Some(_), Value::Scalar(value)) => *value != 0.0 && !value.is_nan(),
        (None, Value::Vector(samples)) => samples.is_empty(),
        (None, Value::Scalar(_)) => false,
    })
}

/// What the rails of one remedy are told from.
struct Known<'a> {
    rule: &'a Rule,
    remedy: &'a Remedy,
    status: &'a RuleStatus,
    stand: &'a Stand,
    aim_met: Option<bool>,
    in_flight: Option<(DecisionId, Duration)>,
    now: Duration,
}

impl Known<'_> {
    fn rail(&self, reason: HoldReason) -> Rail {
        let rail = |holds, detail: String| Rail { reason, holds, left: None, used: None, detail };
        match reason {
            HoldReason::Cooldown => self.cooldown(),
            HoldReason::Budget => self.budget(),
            HoldReason::Busy => match self.in_flight {
                Some((decision, since)) => {
                    let since = self.now.saturating_sub(since);
                    let detail =
                        format!("the action of #{decision} is under way for {}", time(since));
                    rail(true, detail)
                }
                None => rail(false, "no action is under way".to_owned()),
            },
            HoldReason::AimMet => rail(
                self.aim_met == Some(true),
                match self.aim_met {
                    Some(true) => "the aim is met".to_owned(),
                    Some(false) => "the aim is missed".to_owned(),
                    None => "whether the aim is met cannot be told".to_owned(),
                },
            ),
            HoldReason::Unknown => {
                let rule_is_unknown = self.status.state == RuleState::Unknown;
                let detail = match (rule_is_unknown, self.aim_met) {
                    (true, _) => self.status.unknown.join("; "),
                    (false, None) => "whether the aim is met cannot be told".to_owned(),
                    (false, Some(_)) => "condition and aim can be told".to_owned(),
                };
                rail(rule_is_unknown || self.aim_met.is_none(), detail)
            }
            _ => rail(self.stand.holds == Some(reason), self.last_word(reason)),
        }
    }

    /// Of a reason that only the last decision tells of.
    fn last_word(&self, reason: HoldReason) -> String {
        let (step, steps) = (self.stand.step, &self.remedy.steps);
        match (reason, steps.get(step)) {
            (HoldReason::StepsExhausted, Some(next)) => {
                format!("step {} of {} is next: {next}", step + 1, steps.len())
            }
            _ if self.stand.holds == Some(reason) => "it is why it holds back".to_owned(),
            _ => "it is not why it held back last".to_owned(),
        }
    }

    fn cooldown(&self) -> Rail {
        let cooldown = self.remedy.cooldown;
        let left = self.stand.rests_until.and_then(|until| until.checked_sub(self.now));
        let left = left.filter(|left| !left.is_zero());
        let detail = match left {
            Some(left) => format!("rests for {} more, of {}", time(left), time(cooldown)),
            None => format!("it rests for {} after a round, and does not now", time(cooldown)),
        };
        Rail { reason: HoldReason::Cooldown, holds: left.is_some(), left, used: None, detail }
    }

    fn budget(&self) -> Rail {
        let reason = HoldReason::Budget;
        let Some(at_most) = self.remedy.at_most else {
            let detail = format!("{} has no at_most", self.rule.id);
            return Rail { reason, holds: false, left: None, used: None, detail };
        };
        let acts = &self.stand.acts;
        let spent = acts.iter().filter(|act| self.now.saturating_sub(**act) < at_most.per);
        let (used, most) = (spent.clone().count() as u64, u64::from(at_most.times));
        let holds = used >= most;
        let oldest = spent.min().filter(|_| holds);
        let left = oldest.map(|act| (*act + at_most.per).saturating_sub(self.now));
        let mut detail = format!("{used} of {most} used in the last {}", time(at_most.per));
        if let Some(left) = left {
            detail.push_str(&format!(", the next in {}", time(left)));
        }
        Rail { reason, holds, left, used: Some((used, most)), detail }
    }
}

/// For people: in milliseconds at the finest.
fn time(time: Duration) -> String {
    let milliseconds = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    humantime::format_duration(Duration::from_millis(milliseconds)).to_string()
}
