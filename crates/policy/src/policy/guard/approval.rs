//! A person must approve each act. The approval of an act that was not done stays valid.

use std::time::Duration;

use jiff::Timestamp;

use crate::model::{DecisionId, Moment, Outcome, OutcomeResult, PendingApproval, RuleId};
use crate::policy::act::{Act, Proposal};
use crate::policy::status::ApprovalStatus;

/// More open questions of one rule are not asked.
const MOST_ASKED_A_RULE: usize = 16;

/// What has been asked for, and what has been approved and not yet used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Approvals {
    open: Vec<Request>,
    /// Of acts that are under way.
    used: Vec<Used>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Used {
    act: Act,
    request: Request,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Request {
    asked: PendingApproval,
    lapses: Lapse,
    given_by: Option<String>,
}

/// An end that neither clock may pass: one set back must not lengthen an approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lapse {
    utc: Timestamp,
    uptime: Duration,
}

impl Lapse {
    fn new(at: Moment, utc: Timestamp) -> Self {
        let left = Duration::try_from(utc.duration_since(at.utc)).unwrap_or_default();
        Self { utc, uptime: at.uptime.saturating_add(left) }
    }

    fn is_past(self, at: Moment) -> bool {
        self.utc <= at.utc || self.uptime <= at.uptime
    }
}

/// Whether both ask for the same.
fn is_same(one: &PendingApproval, other: &PendingApproval) -> bool {
    let PendingApproval { rule, mode, step, action, target, .. } = other;
    Proposal { rule, mode: *mode, step: *step, action, target }.is(one)
}

impl Approvals {
    /// The decision whose approval covers that now.
    pub(super) fn given(&self, proposal: &Proposal<'_>, at: Moment) -> Option<DecisionId> {
        let mut given = self.open.iter().filter(|request| request.given_by.is_some());
        let found =
            given.find(|request| proposal.is(&request.asked) && !request.lapses.is_past(at));
        found.map(|request| request.asked.decision)
    }

    /// Whether a new question must be put to people.
    pub(super) fn must_ask(&self, proposal: &Proposal<'_>, at: Moment) -> bool {
        let open = self.open.iter().filter(|request| !request.lapses.is_past(at));
        let of_rule = open.filter(|request| request.asked.rule == *proposal.rule);
        of_rule.clone().count() < MOST_ASKED_A_RULE
            && !of_rule.clone().any(|request| proposal.is(&request.asked))
    }

    /// Remembers a question.
    pub(super) fn ask(&mut self, asked: PendingApproval, expires: Duration, at: Moment) {
        let ends = asked.since.saturating_add(expires).unwrap_or(Timestamp::MAX);
        let lapses = Lapse::new(at, ends);
        // A clock that was set back since an earlier run has asked makes that question no longer.
        let most = at.uptime.saturating_add(expires);
        let lapses = Lapse { uptime: lapses.uptime.min(most), ..lapses };
        // Runs before this one may have asked the same again and again; the last one is answered.
        self.open.retain(|request| {
            let is_again = request.given_by.is_none() && is_same(&request.asked, &asked);
            request.asked.decision != asked.decision && !is_again
        });
        if !lapses.is_past(at) {
            self.open.push(Request { asked, lapses, given_by: None });
        }
    }

    /// Takes a person's yes; an error says why nothing comes of it.
    pub(super) fn approve(
        &mut self,
        decision: DecisionId,
        until: Timestamp,
        author: &str,
        at: Moment,
    ) -> Result<(), String> {
        self.expire(at);
        let known = self.open.iter_mut().find(|request| request.asked.decision == decision);
        let Some(request) = known else {
            return Err(format!(
                "decision {decision} awaits no approval: it is another one, was used or has lapsed"
            ));
        };
        let lapses = Lapse::new(at, until);
        if lapses.is_past(at) {
            return Err(format!("the approval would have lapsed at {until} already"));
        }
        request.lapses = lapses;
        request.given_by = Some(author.to_owned());
        Ok(())
    }

    /// The approval of that decision is used up by this act, unless that is not done.
    pub(super) fn use_up(&mut self, decision: DecisionId, act: Act) {
        let is_it = |request: &mut Request| request.asked.decision == decision;
        let used = self.open.extract_if(.., is_it);
        self.used.extend(used.map(|request| Used { act, request }));
    }

    /// An act has ended. Returns whether an approval is there again.
    pub(super) fn observe_outcome(&mut self, outcome: &Outcome) -> bool {
        let is_its = |used: &mut Used| used.act.is_of(outcome);
        let used: Vec<Used> = self.used.extract_if(.., is_its).collect();
        if !matches!(outcome.result, OutcomeResult::NotDone(_)) {
            return false;
        }
        let open = self.open.len();
        self.open.extend(used.into_iter().map(|used| used.request));
        self.open.len() > open
    }

    /// Forgets what has lapsed.
    pub(super) fn expire(&mut self, at: Moment) {
        self.open.retain(|request| !request.lapses.is_past(at));
        self.used.retain(|used| !used.act.is_lost(at.uptime));
    }

    /// How many of a rule's questions wait for an answer.
    pub(super) fn pending(&self, rule: &RuleId) -> usize {
        let of_rule = self.open.iter().filter(|request| request.asked.rule == *rule);
        of_rule.filter(|request| request.given_by.is_none()).count()
    }

    pub(super) fn statuses(&self) -> Vec<ApprovalStatus> {
        let status = |request: &Request| ApprovalStatus {
            asked: request.asked.clone(),
            lapses: request.lapses.utc,
            given_by: request.given_by.clone(),
        };
        self.open.iter().map(status).collect()
    }
}
