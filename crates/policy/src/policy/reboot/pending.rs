//! One reboot that is pending: announced, due, and step by step to its end.

use std::sync::Arc;
use std::time::Duration;

use super::drain::EngineDrain;
use super::{RebootContext, RebootFacts, RebootHold, Reboots, needs_reboot};
use crate::model::{
    Action, Decision, DecisionRecord, Grade, HoldReason, MemoryState, Mode, Outcome, OutcomeResult,
    PastReboot, RebootAct, RebootForce, RebootMeans, RebootOrder, RebootStage, RebootWay,
    ScheduledReboot, Target,
};
use crate::policy::act::{Act, HoldReasons};
use crate::policy::remedy::Condition;

/// After a restart of the program the cause must show again within this time.
pub(super) const SHOWS_AGAIN_WITHIN: Duration = Duration::from_secs(1_800);

/// An accepted orderly reboot happens within this time, or not at all.
const HAPPENS_WITHIN: Duration = Duration::from_secs(900);

/// The same for another executor: a batch system drains its node first.
const HANDED_OVER_WITHIN: Duration = Duration::from_secs(24 * 3_600);

/// Time until a refused reboot is tried again.
pub(super) const AGAIN_AFTER: Duration = Duration::from_secs(60);

/// A scheduled reboot.
#[derive(Debug)]
pub(super) struct PendingReboot {
    pub(super) scheduled: ScheduledReboot,
    pub(super) stage: PendingStage,
    /// Its present hold.
    pub(super) held: Option<RebootHold>,
    /// The reported holds.
    holds: HoldReasons<HoldReason>,
    /// `None`: this process has seen its cause; else the time by which it must.
    unconfirmed_until: Option<Duration>,
    /// Logged-in users were warned, and have until then.
    warned_until: Option<Duration>,
    /// The way that was requested, even if the configuration has changed since.
    way: Option<RebootWay>,
    /// The engines to stop first.
    pub(super) drain: EngineDrain,
    /// How often engines ran after the eviction of their pods, and the time until the next one.
    pub(super) evicted_in_vain: u32,
    pub(super) not_evicted_before: Duration,
    /// Earliest next attempt after a refusal.
    pub(super) not_before: Duration,
    /// Time of the last progress.
    moved: Duration,
}

/// The stage of a scheduled reboot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PendingStage {
    /// It is being journalled and announced.
    Announcing(Act),
    /// It is scheduled.
    Scheduled,
    /// It is due.
    Waiting,
    /// The cluster's slot is requested.
    TakingSlot(Act),
    /// An engine is being stopped.
    Draining(Act),
    /// It is being carried out.
    Performing { act: Act, is_sysrq: bool },
    /// The executor has accepted it, or hangs, since then.
    HandedOver { since: Duration, is_sysrq: bool },
}

/// Whether the cause of a scheduled reboot persists.
#[derive(Debug)]
enum Cause {
    Persists,
    Doubt(RebootHold),
    Ended(String),
}

impl PendingReboot {
    /// One that `act` has scheduled.
    pub(super) fn new(scheduled: ScheduledReboot, act: Act) -> Self {
        Self {
            scheduled,
            stage: PendingStage::Announcing(act),
            held: None,
            holds: HoldReasons::default(),
            unconfirmed_until: None,
            warned_until: None,
            way: None,
            drain: EngineDrain::default(),
            evicted_in_vain: 0,
            not_evicted_before: Duration::ZERO,
            not_before: Duration::ZERO,
            moved: act.since,
        }
    }

    /// One that an earlier run of the program has scheduled in this boot.
    pub(super) fn restored(scheduled: ScheduledReboot, now: Duration) -> Self {
        let unconfirmed_until = Some(now.saturating_add(SHOWS_AGAIN_WITHIN));
        let act = Act::pending(scheduled.decision, now);
        Self { stage: PendingStage::Scheduled, unconfirmed_until, ..Self::new(scheduled, act) }
    }

    /// One that an earlier run has begun in this boot, and that has not happened yet.
    pub(super) fn under_way(attempt: &PastReboot, now: Duration) -> Self {
        let scheduled = ScheduledReboot {
            decision: attempt.decision,
            rule: attempt.rule.clone(),
            plan: attempt.plan.clone(),
        };
        let stage = PendingStage::HandedOver { since: now, is_sysrq: false };
        Self { stage, way: attempt.way.clone(), ..Self::restored(scheduled, now) }
    }

    /// Whether engines are stopped for it. A reboot without the slot leaves them alone, and they
    /// may be started again.
    pub(super) fn is_leaving(&self, has_slot: bool) -> bool {
        match self.stage {
            PendingStage::Announcing(_) | PendingStage::Scheduled | PendingStage::Waiting => {
                self.drain.has_begun() && has_slot
            }
            PendingStage::TakingSlot(_)
            | PendingStage::Draining(_)
            | PendingStage::Performing { .. }
            | PendingStage::HandedOver { .. } => true,
        }
    }

    /// It has come a step further.
    pub(super) fn moved_on(&mut self, now: Duration) {
        self.moved = now;
    }

    /// Whether a guard rail has blocked it since then, other than the cluster's slot.
    pub(super) fn is_stuck_since(&self, then: Duration) -> bool {
        let is_held = self.held.as_ref().is_some_and(|held| held.reason != HoldReason::NoSlot);
        self.stage == PendingStage::Waiting && is_held && self.moved <= then
    }

    /// Its state, for people.
    pub(super) fn public_stage(&self) -> RebootStage {
        match self.stage {
            PendingStage::Announcing(_) => RebootStage::Announcing,
            PendingStage::Scheduled => RebootStage::Scheduled,
            PendingStage::Waiting if self.is_warning() => RebootStage::Warning,
            PendingStage::Waiting => RebootStage::Waiting,
            PendingStage::Draining(_) => RebootStage::Draining,
            PendingStage::TakingSlot(_) => RebootStage::TakingSlot,
            PendingStage::Performing { .. } => RebootStage::Performing,
            PendingStage::HandedOver { .. } => RebootStage::HandedOver,
        }
    }

    fn is_warning(&self) -> bool {
        let waits_for = self.held.as_ref().map(|held| held.reason);
        self.warned_until.is_some() && waits_for == Some(HoldReason::LoggedIn)
    }

    /// It waits for something that an outcome has reported.
    pub(super) fn hold(&mut self, held: RebootHold) {
        self.holds.set(held.reason);
        self.held = Some(held);
    }

    /// An act of it begins: it waits for nothing else.
    pub(super) fn begin(&mut self, stage: PendingStage) {
        self.stage = stage;
        self.holds.release();
        self.held = None;
    }

    fn cause(&mut self, condition: Option<Condition>, facts: &RebootFacts<'_>) -> Cause {
        let plan = &self.scheduled.plan;
        if plan.ordered_by.is_some() {
            return Cause::Persists;
        }
        let Some(condition) = condition else {
            return Cause::Ended("its rule has gone, or does not act any more".to_owned());
        };
        let (state, now) = (facts.memory_state(), facts.at.uptime);
        let is_unconfirmed = self.unconfirmed_until.is_some();
        let is_over = self.unconfirmed_until.is_some_and(|until| now >= until);
        let is_for_memory = Reboots::is_for_memory(plan);
        match state {
            None | Some(MemoryState::Unknown) if !is_over => {
                return Cause::Doubt(RebootHold::plain(HoldReason::NoCause));
            }
            None | Some(MemoryState::Unknown) => {}
            // After a restart signs must show again, and the remedies must be tried again.
            Some(state) if is_unconfirmed && !is_over && may_turn(state) && is_for_memory => {
                return Cause::Doubt(RebootHold::plain(HoldReason::Unconfirmed));
            }
            Some(state) if is_for_memory && !needs_reboot(state) => {
                return Cause::Ended(format!("memory is {state} now"));
            }
            Some(_) => {}
        }
        match condition {
            Condition::Firing => {
                self.unconfirmed_until = None;
                Cause::Persists
            }
            Condition::Unknown => Cause::Doubt(RebootHold::plain(HoldReason::Unknown)),
            Condition::Quiet if !is_unconfirmed => Cause::Ended("its alert has ended".to_owned()),
            Condition::Quiet if is_over => {
                Cause::Ended("its cause has not shown since umawarden was restarted".to_owned())
            }
            Condition::Quiet => Cause::Doubt(RebootHold::plain(HoldReason::Unconfirmed)),
        }
    }
}

impl Reboots {
    pub(super) fn observe_pending(&mut self, outcome: &Outcome) {
        let Some(pending) = &mut self.pending else { return };
        if !pending.stage.awaits(outcome) {
            return;
        }
        self.has_changed = true;
        let now = outcome.ended.uptime;
        match pending.stage {
            PendingStage::Announcing(_) => match outcome.result {
                // It is in the journal: it is valid even if the announcement failed.
                OutcomeResult::Done | OutcomeResult::Failed(_) | OutcomeResult::TimedOut => {
                    pending.stage = PendingStage::Scheduled;
                }
                OutcomeResult::Skipped => self.pending = None,
                OutcomeResult::NotDone(ref why) => {
                    self.called_off = Some(format!("it could not be scheduled: {why}").into());
                    self.pending = None;
                }
            },
            PendingStage::Draining(_) => pending.drained(outcome),
            PendingStage::Performing { is_sysrq, .. } => self.performed(outcome, is_sysrq, now),
            PendingStage::Scheduled
            | PendingStage::Waiting
            | PendingStage::TakingSlot(_)
            | PendingStage::HandedOver { .. } => {}
        }
    }

    fn performed(&mut self, outcome: &Outcome, is_sysrq: bool, now: Duration) {
        let Some(pending) = &mut self.pending else { return };
        match &outcome.result {
            OutcomeResult::Done | OutcomeResult::TimedOut | OutcomeResult::Skipped => {
                pending.stage = PendingStage::HandedOver { since: now, is_sysrq };
                self.mark_last(|attempt| attempt.was_begun = Some(true));
            }
            // The orderly way hangs all the same.
            OutcomeResult::NotDone(_) | OutcomeResult::Failed(_) if is_sysrq => {
                pending.stage = PendingStage::HandedOver { since: now, is_sysrq };
            }
            OutcomeResult::NotDone(why) => {
                let text = format!("it was refused: {why}");
                pending.hold(RebootHold::new(HoldReason::Busy, text));
                pending.not_before = now.saturating_add(AGAIN_AFTER);
                pending.stage = PendingStage::Waiting;
                pending.way = None;
                // Nothing was begun.
                self.attempts.pop();
            }
            OutcomeResult::Failed(why) => {
                let why = format!("it failed: {why}");
                self.mark_last(|attempt| attempt.was_begun = Some(true));
                self.give_up(why);
            }
        }
    }

    fn mark_last(&mut self, mark: impl FnOnce(&mut PastReboot)) {
        if let Some(last) = self.attempts.last_mut() {
            mark(last);
        }
    }

    /// Gives up a reboot that was begun and will not happen. The next step checks it.
    fn give_up(&mut self, why: String) {
        self.pending = None;
        self.called_off = Some(why.into());
        self.has_changed = true;
    }

    /// Moves what is scheduled on.
    pub(super) fn advance(
        &mut self,
        condition: Option<Condition>,
        context: &mut RebootContext<'_>,
    ) {
        let now = context.at.uptime;
        let Some(pending) = &mut self.pending else { return };
        let cause = pending.cause(condition, &context.facts());
        match pending.stage {
            PendingStage::Announcing(act) => {
                // Whether it is in the journal is not known: another one is scheduled if need be.
                if act.is_lost(now) {
                    self.pending = None;
                    self.has_changed = true;
                }
            }
            PendingStage::Performing { act, is_sysrq } => {
                if act.is_lost(now) {
                    pending.stage = PendingStage::HandedOver { since: now, is_sysrq };
                    self.has_changed = true;
                }
            }
            PendingStage::Draining(act) | PendingStage::TakingSlot(act) => {
                if act.is_lost(now) {
                    pending.stage = PendingStage::Waiting;
                    self.has_changed = true;
                }
            }
            PendingStage::HandedOver { since, is_sysrq } => {
                self.advance_handed_over(since, is_sysrq, cause, context);
            }
            PendingStage::Scheduled | PendingStage::Waiting => match cause {
                Cause::Ended(why) => self.call_off(&why, context),
                Cause::Doubt(held) => self.come_due(now, Some(held), context),
                Cause::Persists => self.come_due(now, None, context),
            },
        }
    }

    fn advance_handed_over(
        &mut self,
        since: Duration,
        is_sysrq: bool,
        cause: Cause,
        context: &mut RebootContext<'_>,
    ) {
        let waited = context.at.uptime.saturating_sub(since);
        let way = self.way_in_use().clone();
        match (&way, cause) {
            (RebootWay::Sentinel { .. }, Cause::Ended(why)) => {
                self.call_off(&why, context);
            }
            (RebootWay::Sentinel { .. }, _) if way != self.settings.way => {
                self.call_off("it was asked for by a file, and reboot.way is another now", context);
            }
            (RebootWay::Sentinel { .. }, _) => {}
            (RebootWay::Command { .. }, _) => {
                if waited >= HANDED_OVER_WITHIN {
                    self.give_up("it has not happened within a day".to_owned());
                }
            }
            (RebootWay::Logind, cause) => {
                let is_wedged = context.facts().memory_state() == Some(MemoryState::Wedged);
                let persists = matches!(cause, Cause::Persists);
                let hangs = self.settings.sysrq_after.is_some_and(|after| waited >= after);
                if hangs && is_wedged && persists && !is_sysrq {
                    return self.perform(RebootMeans::Sysrq, context);
                }
                let longest = self.settings.sysrq_after.unwrap_or_default() + HAPPENS_WITHIN;
                if waited >= longest {
                    self.give_up("its executor accepted it, and nothing happened".to_owned());
                }
            }
        }
    }

    /// Proceeds once it is due, unless a guard rail blocks it.
    fn come_due(
        &mut self,
        now: Duration,
        doubt: Option<RebootHold>,
        context: &mut RebootContext<'_>,
    ) {
        let Some(pending) = &mut self.pending else { return };
        let due = pending.scheduled.plan.due.map_or(Duration::MAX, |due| due.uptime);
        if now < due {
            return;
        }
        if pending.stage == PendingStage::Scheduled {
            pending.stage = PendingStage::Waiting;
            self.has_changed = true;
        }
        if now < pending.not_before {
            return;
        }
        let held = doubt.or_else(|| self.hold_due(context));
        let held = held.or_else(|| self.hold_for_people(context));
        let held = held.or_else(|| self.hold_for_engines(context));
        let next = match held {
            Some(held) => Err(held),
            // A refusal comes before any engine is stopped.
            None => match self.take_slot(context) {
                Ok(false) => self.drain(context),
                asked_or_held => asked_or_held,
            },
        };
        match next {
            Ok(true) => {}
            Ok(false) => self.perform(RebootMeans::Way(self.settings.way.clone()), context),
            Err(held) => self.wait_for(held, context),
        }
    }

    fn wait_for(&mut self, held: RebootHold, context: &mut RebootContext<'_>) {
        let Some(pending) = &mut self.pending else { return };
        let is_news = pending.holds.hold(held.reason, context.at.uptime);
        self.has_changed |= pending.held.as_ref() != Some(&held);
        let reason = held.reason;
        pending.held = Some(held);
        if !is_news {
            return;
        }
        let (rule, plan) = (pending.scheduled.rule.clone(), pending.scheduled.plan.clone());
        let how = RebootMeans::Way(self.settings.way.clone());
        let order = RebootOrder { boot_id: Arc::clone(&plan.boot_id), how, plan };
        let action = Action::Reboot(Box::new(RebootAct::Perform(order)));
        self.decide(&rule, action, Decision::Hold(reason), Target::Node, context);
    }

    /// All rails once more.
    fn hold_due(&self, context: &RebootContext<'_>) -> Option<RebootHold> {
        let ScheduledReboot { rule, plan, .. } = &self.pending.as_ref()?.scheduled;
        let facts = context.facts();
        let is_forced = |reason| match reason {
            HoldReason::Inhibited => plan.force.contains(&RebootForce::Alerts),
            HoldReason::Maintenance => plan.force.contains(&RebootForce::Windows),
            _ => false,
        };
        if context.mode != Mode::Enforce && plan.ordered_by.is_some() {
            let text = "the mode is observe now: nothing is done";
            return Some(RebootHold::new(HoldReason::Paused, text));
        }
        if !facts.guard.enforces(Grade::Reboot) {
            let text = "the grade reboot is not enforced now: nothing is done";
            return Some(RebootHold::new(HoldReason::NotEnforced, text));
        }
        let general = facts.guard.hold_reboot(rule, &is_forced, facts.at).map(RebootHold::plain);
        general.or_else(|| self.hold(plan, &facts))
    }

    /// Whoever is logged in goes, or was warned and has had some time.
    fn hold_for_people(&mut self, context: &mut RebootContext<'_>) -> Option<RebootHold> {
        let now = context.at.uptime;
        let plan = &self.pending.as_ref()?.scheduled.plan;
        let held = self.users_hold(plan, &context.facts())?;
        if !self.warns() {
            return Some(held);
        }
        let (warn_for, announcement) = (self.settings.warn_for, plan.announcement());
        let pending = self.pending.as_mut()?;
        if let Some(until) = pending.warned_until {
            return (now < until).then_some(held);
        }
        pending.warned_until = Some(now.saturating_add(warn_for));
        let minutes = warn_for.as_secs().div_ceil(60);
        let text = format!("{announcement}\nSave your work and log out within {minutes} min.");
        let rule = pending.scheduled.rule.clone();
        self.has_changed = true;
        self.act(&rule, Action::Reboot(Box::new(RebootAct::WarnUsers { text })), context);
        Some(held)
    }

    /// Decides the act that reboots the machine, by that means.
    fn perform(&mut self, how: RebootMeans, context: &mut RebootContext<'_>) {
        let Some(pending) = &self.pending else { return };
        let ScheduledReboot { rule, plan, .. } = pending.scheduled.clone();
        let is_sysrq = how == RebootMeans::Sysrq;
        let way = match &how {
            RebootMeans::Way(way) => Some(way.clone()),
            RebootMeans::Sysrq => None,
        };
        let order = RebootOrder { boot_id: Arc::clone(&plan.boot_id), how, plan: plan.clone() };
        let action = Action::Reboot(Box::new(RebootAct::Perform(order)));
        if !is_sysrq && context.guard.is_busy(&action) {
            return self.wait_for(RebootHold::plain(HoldReason::Busy), context);
        }
        let act = self.act(&rule, action, context);
        begin(act, context);
        // The second means ends the same boot, and is the same reboot.
        if let Some(way) = way {
            self.attempts.push(PastReboot {
                decision: act.decision,
                rule,
                boot_id: Arc::clone(&plan.boot_id),
                uptime_ms: context.at.timeline_ms(),
                utc: context.at.utc,
                is_long_past: false,
                plan,
                way: Some(way.clone()),
                was_begun: None,
                result: None,
                is_cleared: false,
            });
            if let Some(pending) = &mut self.pending {
                pending.way = Some(way);
            }
        }
        if let Some(pending) = &mut self.pending {
            pending.begin(PendingStage::Performing { act, is_sysrq });
        }
        self.has_changed = true;
    }

    /// The way that was asked to reboot, or else the configured one.
    fn way_in_use(&self) -> &RebootWay {
        let asked = self.pending.as_ref().and_then(|pending| pending.way.as_ref());
        asked.unwrap_or(&self.settings.way)
    }

    /// Ends what is scheduled.
    pub(super) fn call_off(&mut self, why: &str, context: &mut RebootContext<'_>) {
        let way = self.way_in_use().clone();
        let Some(pending) = self.pending.take() else { return };
        let was_handed_over = matches!(pending.stage, PendingStage::HandedOver { .. });
        self.was_called_off = was_handed_over;
        let act = RebootAct::CallOff { way, why: why.to_owned(), was_handed_over };
        self.act(&pending.scheduled.rule, Action::Reboot(Box::new(act)), context);
        self.called_off = Some(Arc::from(why));
        self.has_changed = true;
    }

    /// Whether it can still be called off; an error says why not.
    pub(super) fn can_call_off(&self) -> Result<(), String> {
        let Some(pending) = &self.pending else { return Err("no reboot is scheduled".to_owned()) };
        match (&pending.stage, self.way_in_use()) {
            (PendingStage::Performing { .. }, _) => {
                Err("the reboot has begun: it is too late".to_owned())
            }
            (PendingStage::HandedOver { .. }, RebootWay::Logind) => {
                Err("the reboot is under way: it is too late (shutdown -c may help)".to_owned())
            }
            _ => Ok(()),
        }
    }
}

/// Whether the state may become one that needs a reboot.
fn may_turn(state: MemoryState) -> bool {
    !needs_reboot(state) && state != MemoryState::Clean
}

/// Others wait until it has ended.
pub(super) fn begin(act: Act, context: &mut RebootContext<'_>) {
    let is_it = |decision: &&DecisionRecord| decision.id == act.decision;
    if let Some(decision) = context.step.decisions.iter().find(is_it) {
        context.guard.begin(decision);
    }
}
