//! A person must approve each act, or may deny it until it goes ahead. The approval of an act that
//! was not done stays valid.
//!
//! An announced act goes ahead once both clocks have passed its time: a clock that was set forward
//! shortens nothing. It does so only for as long again. Later it is announced anew, and so it is
//! after its alert has ended or a person has silenced or paused it meanwhile.

use std::time::Duration;

use jiff::Timestamp;

use super::{Guard, GuardedProposal};
use crate::model::{
    DecisionId, DecisionRecord, HoldReason, Mode, Moment, Outcome, OutcomeResult, PendingApproval,
    RuleId,
};
use crate::policy::act::{Act, Proposal};
use crate::policy::status::ApprovalStatus;

/// More open questions of one rule are not asked.
const MOST_ASKED_A_RULE: usize = 16;

/// What has been asked for, and what has been approved and not yet used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Approvals {
    open: Vec<ApprovalRequest>,
    /// Of acts that are under way.
    used: Vec<UsedApproval>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct UsedApproval {
    act: Act,
    request: ApprovalRequest,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct ApprovalRequest {
    asked: PendingApproval,
    lapses: Expiry,
    /// What a person has said, and who.
    answer: Option<(Reply, String)>,
}

/// What a person says to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Approve,
    Deny,
}

impl ApprovalRequest {
    /// Who has said that.
    fn said(&self, reply: Reply) -> Option<&String> {
        self.answer.as_ref().filter(|(said, _)| *said == reply).map(|(_, author)| author)
    }

    /// Whether it waits for people. What would be done in observe mode needs no denial.
    fn waits(&self) -> bool {
        let is_rehearsed = self.asked.goes_ahead.is_some() && self.asked.mode == Mode::Observe;
        self.is_unanswered() && !is_rehearsed
    }

    /// Nobody has said anything.
    fn is_unanswered(&self) -> bool {
        self.answer.is_none()
    }

    /// Whether it is an announcement whose time is over, by both clocks. Rules that were loaded
    /// since may allow more time.
    fn goes_ahead(&self, within: Duration, at: Moment) -> bool {
        let Some(due) = self.asked.goes_ahead.filter(|_| self.is_unanswered()) else {
            return false;
        };
        let announced = due.utc.duration_since(self.asked.since);
        let more = within.saturating_sub(Duration::try_from(announced).unwrap_or_default());
        let utc = due.utc.saturating_add(more).unwrap_or(Timestamp::MAX);
        utc <= at.utc && due.uptime.saturating_add(more) <= at.uptime
    }
}

/// An end that neither clock may pass: one set back must not lengthen an approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Expiry {
    utc: Timestamp,
    uptime: Duration,
}

impl Expiry {
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
        let mut given = self.open.iter().filter(|request| request.said(Reply::Approve).is_some());
        let found =
            given.find(|request| proposal.is(&request.asked) && !request.lapses.is_past(at));
        found.map(|request| request.asked.decision)
    }

    /// The open request for that.
    fn open_for(
        &self,
        proposal: &Proposal<'_>,
        at: Moment,
    ) -> impl Iterator<Item = &ApprovalRequest> {
        let open = self.open.iter().filter(move |request| !request.lapses.is_past(at));
        open.filter(move |request| proposal.is(&request.asked))
    }

    /// The decision that announced that, once it goes ahead.
    pub(super) fn undenied(
        &self,
        proposal: &Proposal<'_>,
        within: Duration,
        at: Moment,
    ) -> Option<DecisionId> {
        let found = self.open_for(proposal, at).find(|request| request.goes_ahead(within, at));
        found.map(|request| request.asked.decision)
    }

    /// Whether a person has denied that.
    pub(super) fn is_denied(&self, proposal: &Proposal<'_>, at: Moment) -> bool {
        self.open_for(proposal, at).any(|request| request.said(Reply::Deny).is_some())
    }

    /// Whether a new question must be put to people, or a new announcement be made.
    pub(super) fn must_ask(
        &self,
        proposal: &Proposal<'_>,
        unless_denied: bool,
        at: Moment,
    ) -> bool {
        let open = self.open.iter().filter(|request| !request.lapses.is_past(at));
        let of_rule = open.filter(|request| request.asked.rule == *proposal.rule);
        let is_known = |request: &ApprovalRequest| {
            !request.is_unanswered() || request.asked.goes_ahead.is_some() == unless_denied
        };
        of_rule.count() < MOST_ASKED_A_RULE && !self.open_for(proposal, at).any(is_known)
    }

    /// Takes back the announcements of a rule that nobody has answered. Returns whether there were
    /// any.
    pub(super) fn withdraw(&mut self, rule: &RuleId, mode: Mode) -> bool {
        let open = self.open.len();
        self.open.retain(|request| {
            let PendingApproval { rule: of, mode: of_mode, goes_ahead, .. } = &request.asked;
            let is_it = (of, *of_mode) == (rule, mode) && goes_ahead.is_some();
            !(is_it && request.is_unanswered())
        });
        self.open.len() < open
    }

    /// Remembers a question.
    pub(super) fn ask(&mut self, asked: PendingApproval, expires: Duration, at: Moment) {
        let ends = asked.since.saturating_add(expires).unwrap_or(Timestamp::MAX);
        let lapses = Expiry::new(at, ends);
        // A clock that was set back since an earlier run has asked makes that question no longer.
        let most = at.uptime.saturating_add(expires);
        let lapses = Expiry { uptime: lapses.uptime.min(most), ..lapses };
        // Runs before this one may have asked the same again and again; the last one is answered.
        self.open.retain(|request| {
            let is_again = request.is_unanswered() && is_same(&request.asked, &asked);
            request.asked.decision != asked.decision && !is_again
        });
        if !lapses.is_past(at) {
            self.open.push(ApprovalRequest { asked, lapses, answer: None });
        }
    }

    /// Takes a person's answer, which is valid until then; an error says why nothing comes of it.
    pub(super) fn answer(
        &mut self,
        decision: DecisionId,
        (reply, author): (Reply, &str),
        until: Timestamp,
        at: Moment,
    ) -> Result<(), String> {
        self.expire(at);
        let known = self.open.iter_mut().find(|request| request.asked.decision == decision);
        let Some(request) = known else {
            return Err(format!(
                "decision {decision} awaits no approval: it is another one, was used or has lapsed"
            ));
        };
        let lapses = Expiry::new(at, until);
        if lapses.is_past(at) {
            return Err(format!("the answer would have lapsed at {until} already"));
        }
        request.lapses = lapses;
        request.answer = Some((reply, author.to_owned()));
        Ok(())
    }

    /// The approval of that decision is used up by this act, unless that is not done.
    pub(super) fn use_up(&mut self, decision: DecisionId, act: Act) {
        let is_it = |request: &mut ApprovalRequest| request.asked.decision == decision;
        let used = self.open.extract_if(.., is_it);
        self.used.extend(used.map(|request| UsedApproval { act, request }));
    }

    /// An act has ended. Returns whether an approval is there again.
    pub(super) fn observe_outcome(&mut self, outcome: &Outcome) -> bool {
        let is_its = |used: &mut UsedApproval| used.act.is_of(outcome);
        let used: Vec<UsedApproval> = self.used.extract_if(.., is_its).collect();
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
        of_rule.filter(|request| request.waits()).count()
    }

    /// When the next announced act of a rule goes ahead.
    pub(super) fn goes_ahead_at(&self, rule: &RuleId) -> Option<Timestamp> {
        let of_rule = self.open.iter().filter(|request| request.asked.rule == *rule);
        let announced = of_rule.filter(|request| request.waits());
        announced.filter_map(|request| Some(request.asked.goes_ahead?.utc)).min()
    }

    pub(super) fn statuses(&self) -> Vec<ApprovalStatus> {
        let status = |request: &ApprovalRequest| ApprovalStatus {
            asked: request.asked.clone(),
            lapses: request.lapses.utc,
            given_by: request.said(Reply::Approve).cloned(),
            denied_by: request.said(Reply::Deny).cloned(),
        };
        self.open.iter().map(status).collect()
    }
}

impl Guard {
    /// The approval that covers that, where one is needed: `Ok(None)` where none is.
    pub(in crate::policy) fn approval(
        &self,
        guarded: &GuardedProposal<'_>,
        at: Moment,
    ) -> Result<Option<DecisionId>, HoldReason> {
        let GuardedProposal { ref proposal, rails, .. } = *guarded;
        let Some(time) = rails.approval.filter(|_| !proposal.action.is_notice()) else {
            return Ok(None);
        };
        if let Some(given) = self.approvals.given(proposal, at) {
            return Ok(Some(given));
        }
        if self.approvals.is_denied(proposal, at) {
            return Err(HoldReason::Denied);
        }
        if !rails.unless_denied {
            return Err(HoldReason::Approval);
        }
        self.approvals.undenied(proposal, time, at).map(Some).ok_or(HoldReason::Announced)
    }

    /// Whether people must be asked to approve of that, or it must be announced, since it has not
    /// been.
    pub(in crate::policy) fn must_ask(
        &self,
        proposal: &Proposal<'_>,
        reason: HoldReason,
        at: Moment,
    ) -> bool {
        self.approvals.must_ask(proposal, reason == HoldReason::Announced, at)
    }

    /// When the next announced act of a rule goes ahead, in seconds since 1970; 0: none is.
    pub(in crate::policy) fn goes_ahead_at(&self, rule: &RuleId) -> i64 {
        self.approvals.goes_ahead_at(rule).map_or(0, Timestamp::as_second)
    }

    /// What was announced for a rule goes ahead no more: it must be announced anew.
    pub(in crate::policy) fn withdraw(&mut self, rule: &RuleId, mode: Mode) {
        if self.approvals.withdraw(rule, mode) {
            self.status = None;
        }
    }

    /// Puts the question of a held decision to people. An announcement stays open for as long again
    /// as it lets them deny it.
    pub(super) fn ask(&mut self, decision: &DecisionRecord, time: Duration) {
        let at = decision.at;
        let uptime = at.uptime.saturating_add(time);
        let goes_ahead = decision.goes_ahead.map(|utc| Moment { utc, uptime });
        let asked = PendingApproval {
            decision: decision.id,
            rule: decision.rule.clone(),
            mode: decision.mode,
            step: decision.step,
            action: decision.action.clone(),
            target: decision.target.clone(),
            since: at.utc,
            goes_ahead,
        };
        self.approvals.ask(asked, stays_open(goes_ahead.is_some(), time), at);
        self.status = None;
    }
}

/// How long a question stays open that people have so much time for.
pub(super) fn stays_open(is_announced: bool, time: Duration) -> Duration {
    if is_announced { time.saturating_mul(2) } else { time }
}
