//! The reboot of last resort: scheduled for a cause, visible, carried out once, and checked after
//! the boot.
//!
//! A reboot is a chain of decisions, each journalled with its outcome as any other: it is scheduled
//! (users are notified), the cluster's slot is taken, engines are drained, the machine is rebooted.
//! The cause is checked until the last of them. [`rails`] has the guard rails; doubt blocks a
//! reboot. Limits count by boots and their uptimes, never by a wall clock, so that no jump of a
//! clock allows another reboot.

mod check;
mod drain;
mod loss;
mod of_policy;
mod order;
mod pending;
mod rails;
mod series;
mod slot;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use promql_rules::store::SeriesStore;

use super::Step;
use super::act::{Act, DecisionNumbers, Proposal};
use super::counters::Counters;
use super::engines::Engines;
use super::guard::Guard;
use super::remedy::Condition;
use crate::model::{
    Action, Decision, DecisionRecord, EarlierRuns, Event, Evidence, LoggedInReadings,
    MemoryAssessment, MemoryState, Mode, Moment, OperatorCommand, Outcome, PastReboot, Reading,
    RebootAct, RebootBudgetLeft, RebootPlan, RebootSettings, RebootStatus, RuleId, ScheduledReboot,
    Target,
};
use loss::Loss;
use pending::{PendingReboot, PendingStage, SHOWS_AGAIN_WITHIN};
use series::RebootCells;
use slot::RebootSlot;

pub(super) use rails::RebootHold;

/// The group and name of the rule that represents orders.
pub const OPERATOR_RULE: [&str; 2] = ["operator", "reboot"];

/// More reboots than these are not remembered: no bound reaches further.
const MOST_REMEMBERED: usize = 1_000;

/// So many in a row that did not help stop the remedy.
const GIVEN_UP_AFTER: usize = 2;

/// What a reboot depends on.
#[derive(Clone, Copy)]
pub(super) struct RebootFacts<'a> {
    pub(super) at: Moment,
    pub(super) guard: &'a Guard,
    pub(super) engines: &'a Engines,
    pub(super) store: &'a SeriesStore,
    pub(super) assessment: &'a MemoryAssessment,
}

/// What a reboot depends on, with what a decision changes.
pub(super) struct RebootContext<'a> {
    pub(super) at: Moment,
    pub(super) mode: Mode,
    pub(super) engines: &'a Engines,
    pub(super) store: &'a SeriesStore,
    pub(super) assessment: &'a MemoryAssessment,
    pub(super) guard: &'a mut Guard,
    pub(super) numbers: &'a mut DecisionNumbers,
    pub(super) counters: &'a mut Counters,
    pub(super) step: &'a mut Step,
}

impl RebootContext<'_> {
    fn facts(&self) -> RebootFacts<'_> {
        RebootFacts {
            at: self.at,
            guard: self.guard,
            engines: self.engines,
            store: self.store,
            assessment: self.assessment,
        }
    }
}

impl RebootFacts<'_> {
    /// The state of memory as rules see it; `None` without an assessment.
    fn memory_state(&self) -> Option<MemoryState> {
        let is_current = |state: &MemoryState| {
            let labels = [("verdict", state.name())];
            self.store.latest_of("uma_memory_verdict", &labels) == Reading::Value(1.0)
        };
        MemoryState::ALL.into_iter().find(is_current)
    }
}

/// Whether only a reboot helps.
fn needs_reboot(state: MemoryState) -> bool {
    matches!(state, MemoryState::Leaked | MemoryState::Wedged)
}

/// Whether memory needs no remedy.
fn is_well(state: MemoryState) -> bool {
    matches!(state, MemoryState::Clean | MemoryState::InUse)
}

/// The reboots, past and scheduled.
#[derive(Debug)]
pub(super) struct Reboots {
    settings: RebootSettings,
    /// Whether earlier runs are known.
    is_restored: bool,
    /// Since when they are known, on the uptime clock.
    restored: Duration,
    /// In a declared world no user is logged in, and a scheduled reboot has no further stage.
    is_rehearsal: bool,
    boot_id: Option<Arc<str>>,
    attempts: Vec<PastReboot>,
    pending: Option<PendingReboot>,
    loss: Loss,
    slot: RebootSlot,
    users: Option<LoggedInReadings>,
    /// A person has cancelled one, and its cause may persist.
    is_called_off: bool,
    /// Why the last one was cancelled.
    called_off: Option<Arc<str>>,
    /// It was cancelled after it had been handed over.
    was_called_off: bool,
    cells: RebootCells,
    status: Arc<RebootStatus>,
    has_changed: bool,
}

impl Reboots {
    pub(super) fn new(counters: &mut Counters, store: &mut SeriesStore) -> Self {
        Self {
            settings: RebootSettings::default(),
            is_restored: false,
            restored: Duration::ZERO,
            is_rehearsal: false,
            boot_id: None,
            attempts: Vec::new(),
            pending: None,
            loss: Loss::default(),
            slot: RebootSlot::default(),
            users: None,
            is_called_off: false,
            called_off: None,
            was_called_off: false,
            cells: RebootCells::new(counters, store),
            status: Arc::default(),
            has_changed: true,
        }
    }

    /// For a declared world.
    pub(super) fn rehearse(&mut self) {
        self.is_rehearsal = true;
        self.is_restored = true;
        self.boot_id = Some(Arc::from("declared"));
    }

    pub(super) fn set_settings(&mut self, settings: &RebootSettings) {
        if self.settings != *settings {
            self.settings.clone_from(settings);
            self.has_changed = true;
        }
    }

    /// What earlier runs did is known.
    pub(super) fn restore(&mut self, past: &EarlierRuns, at: Moment) {
        if self.is_rehearsal {
            return;
        }
        let known = &past.reboots;
        self.has_changed = true;
        self.is_restored = true;
        self.restored = at.uptime;
        self.boot_id.clone_from(&known.boot_id);
        self.attempts.clone_from(&known.attempts);
        let excess = self.attempts.len().saturating_sub(MOST_REMEMBERED);
        self.attempts.drain(..excess);
        self.slot = RebootSlot::restored(known);
        self.is_called_off = known.is_called_off;
        self.loss.restore(known);
        let Some(boot) = &known.boot_id else { return };
        self.pending = known.scheduled.as_ref().and_then(|scheduled| {
            let is_of_boot = scheduled.plan.boot_id == *boot;
            is_of_boot.then(|| PendingReboot::restored(scheduled.clone(), at.uptime))
        });
        let under_way = known.attempts.last().filter(|last| {
            last.boot_id == *boot && last.result.is_none() && last.was_begun != Some(false)
        });
        // What was begun is not begun again; it may still happen.
        if let Some(attempt) = under_way {
            self.pending = Some(PendingReboot::under_way(attempt, at.uptime));
        }
    }

    /// Takes a sample of who is logged in; an older one is dropped.
    pub(super) fn observe_users(&mut self, readings: &LoggedInReadings) {
        if self.users.as_ref().is_none_or(|known| known.at <= readings.at) {
            self.users = Some(readings.clone());
        }
    }

    /// Takes the decision of a rule: the reboot is scheduled once that is in the journal.
    pub(super) fn scheduled(&mut self, decision: &DecisionRecord) {
        let Some(RebootAct::Schedule(plan)) = decision.action.reboot() else { return };
        if decision.mode != Mode::Enforce || !decision.is_act() {
            return;
        }
        let scheduled = ScheduledReboot {
            decision: decision.id,
            rule: decision.rule.clone(),
            plan: plan.clone(),
        };
        let act = Act::pending(decision.id, decision.at.uptime);
        self.pending = Some(PendingReboot::new(scheduled, act));
        self.called_off = None;
        self.has_changed = true;
    }

    /// A plan with what is known now: which boot, when, and what the matter is.
    pub(super) fn complete(&self, plan: RebootPlan, facts: &RebootFacts<'_>) -> RebootPlan {
        let delay = self.settings.delay;
        self.complete_after(plan, delay, facts)
    }

    fn complete_after(
        &self,
        plan: RebootPlan,
        delay: Duration,
        facts: &RebootFacts<'_>,
    ) -> RebootPlan {
        let at = facts.at;
        RebootPlan {
            boot_id: self.boot_id.clone().unwrap_or_default(),
            due: Some(Moment {
                uptime: at.uptime.saturating_add(delay),
                utc: at.utc.saturating_add(delay).unwrap_or(at.utc),
            }),
            memory_state: facts.memory_state(),
            held_bytes: facts.assessment.held_bytes,
            ..plan
        }
    }

    /// Whose condition must be known for the next step.
    pub(super) fn watched(&self) -> Option<(&RuleId, Mode)> {
        let pending = self.pending.as_ref().map(|pending| &pending.scheduled.rule);
        let unjudged = || self.attempts.last().filter(|last| last.result.is_none());
        let rule = pending.or_else(|| unjudged().map(|last| &last.rule))?;
        Some((rule, Mode::Enforce))
    }

    /// Whether one is to come.
    pub(super) fn is_any_scheduled(&self) -> bool {
        self.pending.is_some()
    }

    /// Whether engines go down for a reboot, so that none is started again.
    pub(super) fn is_leaving(&self) -> bool {
        let leaves =
            |pending: &PendingReboot| pending.is_leaving(self.has_slot(&pending.scheduled.plan));
        self.pending.as_ref().is_some_and(leaves)
    }

    /// Takes the report on one of its acts, if it is that.
    pub(super) fn observe_outcome(&mut self, outcome: &Outcome) {
        if !self.observe_slot(outcome) {
            self.observe_pending(outcome);
        }
    }

    /// Follows what is scheduled, and what came of the last one. `condition` is that of the rule
    /// that is watched, `None` where there is none in force.
    pub(super) fn step(&mut self, condition: Option<Condition>, context: &mut RebootContext<'_>) {
        if self.is_rehearsal {
            if condition == Some(Condition::Quiet) {
                self.pending = None;
            }
            return;
        }
        if self.is_restored {
            self.notice_loss(context);
            self.check(condition, context);
            self.advance(condition, context);
            self.release_slot(context);
            let state = context.facts().memory_state();
            // After a restart of the program its cause shows only after a while.
            let known_for = context.at.uptime.saturating_sub(self.restored);
            let ends_call_off = state.is_none_or(is_well)
                && condition != Some(Condition::Firing)
                && known_for >= SHOWS_AGAIN_WITHIN;
            if self.is_called_off && self.pending.is_none() && ends_call_off {
                self.is_called_off = false;
                self.has_changed = true;
            }
        }
        self.publish(context);
    }

    /// Does what a person has ordered, and says why nothing comes of it where that is so.
    pub(super) fn obey(
        &mut self,
        command: &OperatorCommand,
        context: &mut RebootContext<'_>,
    ) -> Result<(), String> {
        self.has_changed = true;
        order::obey(self, command, context)
    }

    /// Decides that.
    fn act(&self, rule: &RuleId, action: Action, context: &mut RebootContext<'_>) -> Act {
        self.decide(rule, action, Decision::Act, Target::Node, context)
    }

    fn decide(
        &self,
        rule: &RuleId,
        action: Action,
        decision: Decision,
        target: Target,
        context: &mut RebootContext<'_>,
    ) -> Act {
        let (action, target) = (&action, &target);
        let proposal = Proposal { rule, mode: Mode::Enforce, step: 0, action, target };
        let decision = proposal.decide(decision, context.numbers, context.at);
        let decision = DecisionRecord { because: because(&context.facts()), ..decision };
        let act = Act::pending(decision.id, context.at.uptime);
        context.step.decisions.push(decision);
        act
    }

    fn report(context: &mut RebootContext<'_>, event: Event) {
        context.counters.count_event(&event.kind, context.at.utc, None);
        context.step.events.push(event);
    }

    /// A picture; the same `Arc` while nothing changes.
    pub(super) fn status(&mut self) -> Arc<RebootStatus> {
        Arc::clone(&self.status)
    }

    fn publish(&mut self, context: &mut RebootContext<'_>) {
        let now_ms = context.at.timeline_ms();
        let left = self.settings.at_most.iter().map(|budget| self.left(*budget, now_ms)).min();
        // While it is not known what was done before, nothing is left.
        let is_lost = self.is_journal_lost(now_ms);
        let is_known = self.is_restored && !is_lost;
        let left = left.map(|left| if is_known { left } else { 0 });
        self.cells.publish(self, left, context.counters);
        let is_same = || {
            let known = self.status.budget.iter();
            known.eq(self.budget_left(now_ms).collect::<Vec<_>>().iter())
        };
        let lost_is_same = self.status.is_journal_lost == is_lost;
        // Time alone changes only what is left, and that only after there was a reboot.
        if self.has_changed || !lost_is_same || !self.attempts.is_empty() && !is_same() {
            self.has_changed = false;
            self.status = Arc::new(self.picture(now_ms));
        }
    }

    fn budget_left(&self, now_ms: i64) -> impl Iterator<Item = RebootBudgetLeft> {
        let budgets = self.settings.at_most.iter();
        budgets.map(move |budget| RebootBudgetLeft {
            budget: *budget,
            left: self.left(*budget, now_ms),
        })
    }

    fn picture(&self, now_ms: i64) -> RebootStatus {
        let pending = self.pending.as_ref();
        RebootStatus {
            stage: pending.map(PendingReboot::public_stage).unwrap_or_default(),
            scheduled: pending.map(|pending| pending.scheduled.clone()),
            waits_for: pending.and_then(|pending| Some(Arc::clone(&pending.held.as_ref()?.text))),
            boot_id: self.boot_id.clone(),
            budget: self.budget_left(now_ms).collect(),
            did_not_help: u32::try_from(self.did_not_help()).unwrap_or(u32::MAX),
            is_given_up: self.did_not_help() >= GIVEN_UP_AFTER,
            is_journal_lost: self.is_journal_lost(now_ms),
            holds_slot: self.slot.is_held(),
            last: self.attempts.last().cloned(),
            called_off: self.called_off.clone(),
        }
    }
}

/// The values that led to it.
fn because(facts: &RebootFacts<'_>) -> Vec<Evidence> {
    let mut because = Vec::new();
    if let Some(state) = facts.memory_state() {
        because.push(Evidence {
            series: format!("uma_memory_verdict{{verdict=\"{}\"}}", state.name()),
            value: Reading::Value(1.0),
        });
    }
    let unaccounted = "uma_memory_unaccounted_bytes";
    let value = facts.store.latest_of(unaccounted, &[]);
    if value != Reading::Unsupported {
        because.push(Evidence { series: unaccounted.to_owned(), value });
    }
    because
}

impl PendingStage {
    /// Whether it waits for that outcome.
    pub(super) fn awaits(&self, outcome: &Outcome) -> bool {
        match self {
            Self::Announcing(act)
            | Self::Draining(act)
            | Self::TakingSlot(act)
            | Self::Performing { act, .. } => act.is_of(outcome),
            Self::Scheduled | Self::Waiting | Self::HandedOver { .. } => false,
        }
    }
}
