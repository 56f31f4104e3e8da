//! Orders of people, and the acts that they forbid.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use umawarden::model::{
    Action, DecisionId, DecisionRecord, Mode, OperatorOrder, Outcome, OutcomeResult, RuleId,
    RuleSelector, Target,
};
use umawarden::policy::Answer;

use super::{Clock, Violation, broken};

/// Orders in force; they outlive processes and boots.
#[derive(Default)]
pub struct People {
    is_paused: bool,
    silences: BTreeMap<u64, (RuleSelector, Timestamp)>,
    requests: BTreeMap<DecisionId, ApprovalRequest>,
}

struct ApprovalRequest {
    about: (RuleId, Mode, usize, Action, Target),
    at: Timestamp,
    given_until: Option<Timestamp>,
    used_by: Option<DecisionId>,
}

fn about(decision: &DecisionRecord) -> (RuleId, Mode, usize, Action, Target) {
    let DecisionRecord { rule, mode, step, action, target, .. } = decision;
    let mut action = action.clone();
    // The current free memory is not part of the request.
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

    /// A remedy has asked for approval.
    pub fn note_request(&mut self, decision: &DecisionRecord) {
        let (about, at) = (about(decision), decision.at.utc);
        let request = ApprovalRequest { about, at, given_until: None, used_by: None };
        self.requests.insert(decision.id, request);
    }

    /// Whether a rule waits for an approval, or has one that it cannot use yet.
    pub fn has_request(&self, clock: &Clock, rule: &RuleId, mode: Mode, expires: Duration) -> bool {
        self.requests.values().any(|request| {
            let (of_rule, of_mode, ..) = &request.about;
            let ends = request.at.saturating_add(expires).unwrap_or(Timestamp::MAX);
            let ends = request.given_until.map_or(ends, |until| until.max(ends));
            of_rule == rule && *of_mode == mode && request.used_by.is_none() && ends > clock.at.utc
        })
    }

    /// An act that was not done has used no approval.
    pub fn take_outcome(&mut self, outcome: &Outcome) {
        if !matches!(outcome.result, OutcomeResult::NotDone(_)) {
            return;
        }
        for request in self.requests.values_mut() {
            request.used_by.take_if(|id| *id == outcome.decision);
        }
    }

    /// Entries that a crash lost are neither requests nor uses.
    pub fn forget(&mut self, decisions: &BTreeSet<DecisionId>) {
        self.requests.retain(|id, _| !decisions.contains(id));
        for request in self.requests.values_mut() {
            request.used_by.take_if(|id| decisions.contains(id));
        }
    }

    /// An order that was not refused is in force.
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
                    if let Some(request) = self.requests.get_mut(decision) {
                        request.given_until = Some(*until);
                    }
                }
                OperatorOrder::ResetBreaker { .. }
                | OperatorOrder::Reboot { .. }
                | OperatorOrder::CancelReboot
                | OperatorOrder::ClearReboots => {}
            }
        }
        // Setting the clock forward ends every order with an earlier end.
        self.silences.retain(|_, (_, until)| *until > clock.at.utc);
    }

    pub fn allow(
        &mut self,
        clock: &Clock,
        decision: &DecisionRecord,
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

    fn use_approval(&mut self, clock: &Clock, decision: &DecisionRecord) -> Result<(), Violation> {
        let request = decision.approved.and_then(|id| self.requests.get_mut(&id));
        let Some(request) = request else {
            return broken("nothing is done without its approval", format!("{decision:?}"));
        };
        let is_given = request.given_until.is_some_and(|until| until > clock.at.utc);
        if !is_given || request.about != about(decision) {
            return broken("an approval covers one act alone", format!("{decision:?}"));
        }
        if let Some(before) = request.used_by.replace(decision.id) {
            let what = format!("used by {before}: {decision:?}");
            return broken("an approval is used once", what);
        }
        Ok(())
    }
}
