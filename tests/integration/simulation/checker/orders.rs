//! Orders of people, and the acts that they forbid.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use umawarden::model::{
    Action, DecisionId, DecisionRecord, Mode, OperatorOrder, Outcome, OutcomeResult, RuleId,
    RuleSelector, Target,
};
use umawarden::policy::CommandResult;

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
    /// The time since the run began.
    now: Duration,
    is_announced: bool,
    given_until: Option<Timestamp>,
    denied_until: Option<Timestamp>,
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

    /// A remedy has asked for approval, or announced an act.
    pub fn note_request(&mut self, clock: &Clock, decision: &DecisionRecord) {
        let request = ApprovalRequest {
            about: about(decision),
            at: decision.at.utc,
            now: clock.now,
            is_announced: decision.goes_ahead.is_some(),
            given_until: None,
            denied_until: None,
            used_by: None,
        };
        self.requests.insert(decision.id, request);
    }

    /// Whether a rule waits for an approval, or has one that it cannot use yet.
    pub fn has_request(&self, clock: &Clock, rule: &RuleId, mode: Mode, expires: Duration) -> bool {
        self.requests.values().any(|request| {
            let (of_rule, of_mode, ..) = &request.about;
            let open = if request.is_announced { 2 * expires } else { expires };
            let ends = request.at.saturating_add(open).unwrap_or(Timestamp::MAX);
            let answered = request.given_until.max(request.denied_until);
            let ends = answered.map_or(ends, |until| until.max(ends));
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
    pub fn answered(&mut self, clock: &Clock, answers: &[CommandResult]) {
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
                        (request.given_until, request.denied_until) = (Some(*until), None);
                    }
                }
                OperatorOrder::Deny { decision, until } => {
                    if let Some(request) = self.requests.get_mut(decision) {
                        (request.given_until, request.denied_until) = (None, Some(*until));
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
        people: Option<(Duration, bool)>,
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
        match people.filter(|_| !decision.action.is_notice()) {
            Some(people) => self.use_approval(clock, decision, people),
            None => Ok(()),
        }
    }

    fn use_approval(
        &mut self,
        clock: &Clock,
        decision: &DecisionRecord,
        (within, unless_denied): (Duration, bool),
    ) -> Result<(), Violation> {
        let request = decision.approved.and_then(|id| self.requests.get_mut(&id));
        let Some(request) = request else {
            return broken("nothing is done without its approval", format!("{decision:?}"));
        };
        let is_given = request.given_until.is_some_and(|until| until > clock.at.utc);
        let is_denied = request.denied_until.is_some_and(|until| until > clock.at.utc);
        let had_time = clock.now.saturating_sub(request.now) >= within;
        if unless_denied && request.is_announced && !is_given && request.about == about(decision) {
            if is_denied {
                return broken("nothing is done that was denied", format!("{decision:?}"));
            }
            if !had_time {
                return broken("people have their time to deny", format!("{decision:?}"));
            }
        } else if !is_given || request.about != about(decision) {
            return broken("an approval covers one act alone", format!("{decision:?}"));
        }
        if let Some(before) = request.used_by.replace(decision.id) {
            let what = format!("used by {before}: {decision:?}");
            return broken("an approval is used once", what);
        }
        Ok(())
    }
}
