//! The cluster's slot: taken before the first engine is stopped, confirmed after each, and released
//! as soon as the reboot does not happen.
//!
//! Engines are down from the first stop on. So a node without the slot must not stop any, and a
//! node that has the slot and waits for another guard rail must not delay all other nodes.
//!
//! With Kubernetes the same act cordons the node before, and evicts pods after.

use std::time::Duration;

use super::pending::{PendingReboot, PendingStage};
use super::{RebootContext, RebootHold, Reboots, is_well, order};
use crate::model::{
    Action, Grade, HoldReason, Mode, Outcome, OutcomeResult, PastReboot, PastReboots, RebootAct,
    RebootForce, RebootLock, RebootPlan, ScheduledReboot,
};
use crate::policy::act::Act;

/// Time until the cluster's lock is requested again, at first and at most.
const LOCK_AGAIN_AFTER: Duration = Duration::from_secs(30);
const LOCK_AGAIN_AT_MOST: Duration = Duration::from_secs(600);

/// A grant is valid for this time: servers forget, or are set up again.
const BELIEVED_FOR: Duration = Duration::from_secs(300);

/// A reboot that is blocked by another guard rail keeps the slot for this time.
const KEPT_FOR: Duration = Duration::from_secs(120);

/// Most attempts to release a slot that the journal may have lost, each later than the last.
const MOST_FORGOTTEN_TRIES: u32 = 8;

/// Failed calls, which are repeated with back-off.
#[derive(Debug, Default)]
struct CallRetries {
    failures: u32,
    not_before: Duration,
}

impl CallRetries {
    fn put_off(&mut self, now: Duration) {
        let wait = LOCK_AGAIN_AFTER.saturating_mul(1 << self.failures.min(8));
        self.failures = self.failures.saturating_add(1);
        self.not_before = now.saturating_add(wait.min(LOCK_AGAIN_AT_MOST));
    }
}

/// The state of the slot.
#[derive(Debug, Default)]
pub(super) struct RebootSlot {
    /// The lock that this node may hold: a server without a response may have granted it.
    held: Option<RebootLock>,
    /// Whether it was first requested in this boot: no reboot has used it.
    is_of_boot: bool,
    /// Time of the last grant, unless a later response says otherwise.
    granted: Option<Duration>,
    /// The pending request; and whether nothing was held before.
    taking: Option<(Act, bool)>,
    releasing: Option<Act>,
    taken: CallRetries,
    released: CallRetries,
    /// Whether the server may have a grant that the journal does not have.
    is_unknown: bool,
}

impl RebootSlot {
    /// What earlier runs have written down.
    pub(super) fn restored(known: &PastReboots) -> Self {
        Self {
            held: known.slot.clone(),
            is_of_boot: known.is_slot_of_boot,
            is_unknown: known.is_slot_unknown,
            ..Self::default()
        }
    }

    /// Whether this node may hold one.
    pub(super) fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// Drops requests whose outcome is lost.
    fn give_up_waiting(&mut self, now: Duration) {
        self.taking = self.taking.filter(|(act, _)| !act.is_lost(now));
        if self.releasing.is_some_and(|act| act.is_lost(now)) {
            self.releasing = None;
            self.released.put_off(now);
        }
    }
}

impl Reboots {
    /// The lock that must be asked for that reboot.
    fn lock_for(&self, plan: &RebootPlan) -> Option<&RebootLock> {
        let is_forced = plan.force.contains(&RebootForce::Slot);
        self.settings.lock.as_ref().filter(|_| !is_forced)
    }

    /// Whether the pods of engines are evicted for that reboot, once its slot is granted.
    pub(super) fn evicts(&self, plan: &RebootPlan) -> bool {
        let drain = self.lock_for(plan).and_then(|lock| lock.drain.as_ref());
        drain.is_some_and(|drain| drain.evict)
    }

    /// When the last evictions have ended, if they were not in vain.
    pub(super) fn evicted(&self, plan: &RebootPlan) -> Option<Duration> {
        self.slot.granted.filter(|_| self.evicts(plan) && self.has_slot(plan))
    }

    /// Whether no slot is needed, or the last response has granted it.
    pub(super) fn has_slot(&self, plan: &RebootPlan) -> bool {
        let is_of = |lock| self.slot.granted.is_some() && self.slot.held.as_ref() == Some(lock);
        self.lock_for(plan).is_none_or(is_of)
    }

    /// Requests the cluster's slot; `false`: none is needed, or it is granted.
    ///
    /// A repeated request is harmless (`RecursiveLock`), and a server may have forgotten the grant:
    /// so it is repeated once an engine has ended, and after a while.
    pub(super) fn take_slot(
        &mut self,
        context: &mut RebootContext<'_>,
    ) -> Result<bool, RebootHold> {
        let Some(pending) = &self.pending else { return Ok(false) };
        let plan = &pending.scheduled.plan;
        let Some(lock) = self.lock_for(plan).cloned() else { return Ok(false) };
        let now = context.at.uptime;
        let is_new = |granted: Duration| {
            now.saturating_sub(granted) < BELIEVED_FOR && pending.drain.is_before(granted)
        };
        if self.has_slot(plan) && self.slot.granted.is_some_and(is_new) {
            return Ok(false);
        }
        // The calls of two acts could overtake one another.
        if self.slot.releasing.is_some() || self.slot.taking.is_some() {
            let text = "the cluster's lock has not answered yet what it was asked before";
            return Err(RebootHold::new(HoldReason::NoSlot, text));
        }
        let rule = pending.scheduled.rule.clone();
        let act =
            self.act(&rule, Action::Reboot(Box::new(RebootAct::TakeSlot(lock.clone()))), context);
        let was_free = self.slot.held.as_ref() != Some(&lock);
        self.slot.is_of_boot |= was_free;
        self.slot.held = Some(lock);
        self.slot.taking = Some((act, was_free));
        if let Some(pending) = &mut self.pending {
            pending.begin(PendingStage::TakingSlot(act));
        }
        self.has_changed = true;
        Ok(true)
    }

    /// Takes the report on what was asked of the lock, if it is that.
    pub(super) fn observe_slot(&mut self, outcome: &Outcome) -> bool {
        let now = outcome.ended.uptime;
        if self.slot.releasing.is_some_and(|act| act.is_of(outcome)) {
            self.slot.releasing = None;
            match outcome.result {
                OutcomeResult::Done => self.slot = RebootSlot::default(),
                _ => self.slot.released.put_off(now),
            }
        } else if let Some((_, was_free)) = self.slot.taking.take_if(|(act, _)| act.is_of(outcome))
        {
            self.slot_answered(outcome, was_free);
        } else {
            return false;
        }
        self.has_changed = true;
        true
    }

    fn slot_answered(&mut self, outcome: &Outcome, was_free: bool) {
        let (now, slot) = (outcome.ended.uptime, &mut self.slot);
        let why = match &outcome.result {
            OutcomeResult::Done => None,
            OutcomeResult::Failed(why) | OutcomeResult::NotDone(why) => Some(why.as_str()),
            OutcomeResult::TimedOut | OutcomeResult::Skipped => Some("no answer in time"),
        };
        if why.is_none() {
            (slot.granted, slot.taken) = (Some(now), CallRetries::default());
        } else if outcome.result.is_begun() {
            slot.granted = None;
        } else if was_free {
            // Nobody was asked.
            (slot.held, slot.is_of_boot) = (None, false);
        }
        let is_awaited = |pending: &&mut PendingReboot| pending.stage.awaits(outcome);
        let Some(pending) = self.pending.as_mut().filter(is_awaited) else { return };
        pending.stage = PendingStage::Waiting;
        let Some(why) = why else {
            pending.moved_on(now);
            return;
        };
        let lost = if pending.drain.has_begun() { ", and engines are stopped for it" } else { "" };
        let drain = self.slot.held.as_ref().filter(|lock| lock.drain.is_some());
        // Pods that end take time: a rail that holds meanwhile must not undo the cordon at once.
        if drain.is_some() {
            pending.moved_on(now);
        }
        let what = match drain.map(|lock| lock.url.is_empty()) {
            None => "the cluster's lock has given no slot",
            Some(true) => "the Kubernetes node is not drained",
            Some(false) => "the Kubernetes node is not drained, or has no slot",
        };
        let text = format!("{what}{lost}: {why}");
        pending.hold(RebootHold::new(HoldReason::NoSlot, text));
        self.slot.taken.put_off(now);
        pending.not_before = self.slot.taken.not_before;
    }

    /// Releases the slot when the reboot does not happen, or when the node is well after it. It
    /// does so even if the journal cannot be written: a release takes nothing from other nodes, and
    /// a second one is harmless (`UnlockIfHeld`).
    pub(super) fn release_slot(&mut self, context: &mut RebootContext<'_>) {
        let now = context.at.uptime;
        self.slot.give_up_waiting(now);
        let is_asked = self.slot.releasing.is_some() || self.slot.taking.is_some();
        if is_asked || now < self.slot.released.not_before {
            return;
        }
        let lock = match &self.slot.held {
            Some(lock) => self.is_slot_idle(context).then_some(lock),
            None => self.forgotten_slot(context),
        };
        let Some(lock) = lock.cloned() else { return };
        let pending = self.pending.as_ref().map(|pending| &pending.scheduled);
        let last = || self.attempts.last().map(|last| last.rule.clone());
        let rule = pending.map(|ScheduledReboot { rule, .. }| rule.clone()).or_else(last);
        let action = Action::Reboot(Box::new(RebootAct::ReleaseSlot(lock)));
        let act = self.act(&rule.unwrap_or_else(order::rule), action, context);
        let was_in_vain = self.pending.as_ref().is_some_and(|pending| {
            let is_held = |reason| pending.held.as_ref().is_some_and(|held| held.reason == reason);
            is_held(HoldReason::EnginesRun) && self.evicted(&pending.scheduled.plan).is_some()
        });
        if let Some(pending) = self.pending.as_mut().filter(|_| was_in_vain) {
            pending.evicted_in_vain(now);
        }
        self.slot.releasing = Some(act);
        self.slot.granted = None;
        self.has_changed = true;
    }

    /// Whether others could have it.
    fn is_slot_idle(&self, context: &RebootContext<'_>) -> bool {
        let now = context.at.uptime;
        if let Some(pending) = &self.pending {
            return pending.is_stuck_since(now.saturating_sub(KEPT_FOR));
        }
        let last = self.attempts.last().filter(|last| last.was_begun != Some(false));
        let is_judged = last.is_none_or(|last| last.result.is_some());
        let is_of_boot = |last: &PastReboot| Some(&last.boot_id) == self.boot_id.as_ref();
        if self.slot.is_of_boot {
            return is_judged || !last.is_some_and(is_of_boot);
        }
        let was_used = last.is_some_and(|last| !is_of_boot(last));
        is_judged && (!was_used || context.facts().memory_state().is_none_or(is_well))
    }

    /// A lock that may count this node among those that reboot although the journal does not have
    /// it: the journal is new, or was lost.
    ///
    /// The protocol has every client begin so: "In the initialization state, the client tries to
    /// release any reboot slot it may have previously held." Without a slot that is harmless,
    /// and no node can release another's. Under the name that zincati derives it could be zincati's
    /// own slot on this very node, asked for before a reboot that has not happened yet; zincati
    /// does the same whenever it is started. It is done once in the life of a journal, after the
    /// node was watched for as long as after any reboot and is well, and not in observe mode.
    fn forgotten_slot(&self, context: &RebootContext<'_>) -> Option<&RebootLock> {
        let was_watched =
            context.at.uptime.saturating_sub(self.restored) >= self.settings.check_after;
        let may_be_there = self.slot.is_unknown
            && self.slot.released.failures < MOST_FORGOTTEN_TRIES
            && self.pending.is_none()
            && self.attempts.last().is_none_or(|last| last.result.is_some());
        let is_well = context.facts().memory_state().is_some_and(is_well);
        let is_due = may_be_there
            && was_watched
            && is_well
            && context.guard.capped(context.mode, Grade::Reboot) == Mode::Enforce;
        self.settings.lock.as_ref().filter(|_| is_due)
    }
}
