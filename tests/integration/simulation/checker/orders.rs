//! What people have ordered, and what may not be done against it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use umawarden::model::{
    Action, Decision, DecisionId, Mode, OperatorOrder, Outcome, OutcomeResult, RuleId,
    RuleSelector, Target,
};
use umawarden::policy::Answer;

use super::{Clock, Violation, broken};

/// People's standing orders; they outlive processes and boots.
#[derive(Default)]
pub struct People {
    is_paused: bool,
    silences: BTreeMap<u64, (RuleSelector, Timestamp)>,
    questions: BTreeMap<DecisionId, Question>,
}

struct Question {
    about: (RuleId, Mode, usize, Action, Target),
    asked: Timestamp,
    given_until: Option<Timestamp>,
    used_by: Option<DecisionId>,
}

fn about(decision: &Decision) -> (RuleId, Mode, usize, Action, Target) {
    let Decision { rule, mode, step, action, target, .. } = decision;
    let mut action = action.clone();
    // How much is free then is no matter of the question.
    if let Action::StopEngine { unless_free_bytes, .. } = &mut action {
        *unless_free_bytes = None;
    }
    (rule.clone(), *mode, *step, action, target.clone())
}

impl People {
    pub fn pause(&mut self, is_paused: bool) {
        self.is_paused = is_paused;
    }

    pub fn have_paused(&self) -> bool {
        self.is_paused
    }

    /// A remedy has asked for a yes.
    pub fn asked(&mut self, decision: &Decision) {
        let (about, asked) = (about(decision), decision.at.utc);
        let question = Question { about, asked, given_until: None, used_by: None };
        self.questions.insert(decision.id, question);
    }

    /// Whether a rule has asked for a yes that it still waits for, or has and cannot use yet.
    pub fn are_asked(&self, clock: &Clock, rule: &RuleId, mode: Mode, expires: Duration) -> bool {
        self.questions.values().any(|question| {
            let (of_rule, of_mode, ..) = &question.about;
            let ends = question.asked.saturating_add(expires).unwrap_or(Timestamp::MAX);
            let ends = question.given_until.map_or(ends, |until| until.max(ends));
            of_rule == rule && *of_mode == mode && question.used_by.is_none() && ends > clock.at.utc
        })
    }

    /// What was not done has used no yes.
    pub fn hear(&mut self, outcome: &Outcome) {
        if !matches!(outcome.result, OutcomeResult::NotDone(_)) {
            return;
        }
        for question in self.questions.values_mut() {
            question.used_by.take_if(|id| *id == outcome.decision);
        }
    }

    /// What was lost with a crash was neither asked nor used.
    pub fn forget(&mut self, decisions: &BTreeSet<DecisionId>) {
        self.questions.retain(|id, _| !decisions.contains(id));
        for question in self.questions.values_mut() {
            question.used_by.take_if(|id| decisions.contains(id));
        }
    }

    /// What was not refused is in force.
    pub fn answered(&mut self, clock: &Clock, answers: &[Answer]) {
        for answer in answers.iter().filter(|answer| answer.refused.is_none()) {
            match &answer.command.order {
                OperatorOrder::Silence { id, rules, until } => {
                    self.silences.insert(*id, (rules.clone(), *until));
                }
                OperatorOrder::EndSilence { id } => {
                    self.silences.remove(id);
                }
                OperatorOrder::Approve { decision, until } => {
                    if let Some(question) = self.questions.get_mut(decision) {
                        question.given_until = Some(*until);
                    }
                }
                OperatorOrder::ResetBreaker { .. }
                | OperatorOrder::Reboot { .. }
                | OperatorOrder::CancelReboot
                | OperatorOrder::ClearReboots => {}
            }
        }
        // Whoever sets the clock forward ends what would have ended by then.
        self.silences.retain(|_, (_, until)| *until > clock.at.utc);
    }

    pub fn allow(
        &mut self,
        clock: &Clock,
        decision: &Decision,
        needs_approval: bool,
    ) -> Result<(), Violation> {
        if self.is_paused {
            return broken("nothing is done while paused", format!("{decision:?}"));
        }
        if let Some((_, until)) =
            self.silences.values().find(|(rules, _)| rules.selects(&decision.rule))
        {
            return broken(
                "nothing is done while silenced",
                format!("until {until}: {decision:?}"),
            );
        }
        if needs_approval && !decision.action.is_notice() {
            return self.use_approval(clock, decision);
        }
        Ok(())
    }

    fn use_approval(&mut self, clock: &Clock, decision: &Decision) -> Result<(), Violation> {
        let question = decision.approved.and_then(|id| self.questions.get_mut(&id));
        let Some(question) = question else {
            return broken("nothing is done unasked", format!("{decision:?}"));
        };
        let is_given = question.given_until.is_some_and(|until| until > clock.at.utc);
        if !is_given || question.about != about(decision) {
            return broken("nothing is done without a yes to that", format!("{decision:?}"));
        }
        if let Some(before) = question.used_by.replace(decision.id) {
            let what = format!("used by {before}: {decision:?}");
            return broken("an approval is used once", what);
        }
        Ok(())
    }
}
