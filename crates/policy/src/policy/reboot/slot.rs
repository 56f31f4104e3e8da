//! The cluster's slot: had before the first engine is stopped, asked for again after each, and
//! given back as soon as nothing comes of it.
//!
//! Engines are down from the first stop on. So whoever is refused must not have stopped one, and
//! whoever has the slot and waits for something else must not keep all other nodes waiting.

use std::time::Duration;

use super::pending::{PendingReboot, Stage};
use super::{RebootContext, RebootHold, Reboots, is_well, order};
use crate::model::{
    Action, HoldReason, Mode, Outcome, OutcomeResult, PastReboot, PastReboots, RebootAct,
    RebootForce, RebootLock, RebootPlan, ScheduledReboot,
};
use crate::policy::act::Act;

/// How long it is waited before the cluster's lock is asked again, at first and at most.
const LOCK_AGAIN_AFTER: Duration = Duration::from_secs(30);
const LOCK_AGAIN_AT_MOST: Duration = Duration::from_secs(600);

/// A grant is as good as new for so long: servers forget, or are set up anew.
const BELIEVED_FOR: Duration = Duration::from_secs(300);

/// A reboot that has the slot, and is held back by something else, keeps it for so long.
const KEPT_FOR: Duration = Duration::from_secs(120);

/// So often it is tried to give back what the journal may have forgotten, each time later.
const MOST_FORGOTTEN_TRIES: u32 = 8;

/// Calls that fail are made again later and later.
#[derive(Debug, Default)]
struct Tries {
    failures: u32,
    not_before: Duration,
}

impl Tries {
    fn put_off(&mut self, now: Duration) {
        let wait = LOCK_AGAIN_AFTER.saturating_mul(1 << self.failures.min(8));
        self.failures = self.failures.saturating_add(1);
        self.not_before = now.saturating_add(wait.min(LOCK_AGAIN_AT_MOST));
    }
}

/// What is known of it.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// What this node may hold: whoever has not answered may have granted it.
    held: Option<RebootLock>,
    /// It was asked for in this boot first: nothing was rebooted with it.
    is_of_boot: bool,
    /// When it was granted last, if nothing else was heard since.
    granted: Option<Duration>,
    /// It was asked for; and whether nothing was held before.
    taking: Option<(Act, bool)>,
    releasing: Option<Act>,
    taken: Tries,
    released: Tries,
    /// The server may know of one that the journal has never learnt of, or has lost.
    is_unknown: bool,
}

impl Slot {
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

    /// Nobody tells any more what came of what was asked.
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

    /// Whether nothing of the cluster stands in its way, as far as was heard last.
    pub(super) fn has_slot(&self, plan: &RebootPlan) -> bool {
        let is_of = |lock| self.slot.granted.is_some() && self.slot.held.as_ref() == Some(lock);
        self.lock_for(plan).is_none_or(is_of)
    }

    /// Asks for the cluster's slot; `false`: none is needed, or it is there.
    ///
    /// To ask again for what one has does no harm (`RecursiveLock`), and a server may have
    /// forgotten meanwhile: so it is asked again once an engine has ended, and after a while.
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
            pending.begin(Stage::TakingSlot(act));
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
                OutcomeResult::Done => self.slot = Slot::default(),
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
            (slot.granted, slot.taken) = (Some(now), Tries::default());
        } else if outcome.result.is_begun() {
            slot.granted = None;
        } else if was_free {
            // Nobody was asked.
            (slot.held, slot.is_of_boot) = (None, false);
        }
        let is_awaited = |pending: &&mut PendingReboot| pending.stage.awaits(outcome);
        let Some(pending) = self.pending.as_mut().filter(is_awaited) else { return };
        pending.stage = Stage::Waiting;
        let Some(why) = why else {
            pending.moved_on(now);
            return;
        };
        let lost = if pending.drain.has_begun() { ", and engines are stopped for it" } else { "" };
        let text = format!("the cluster's lock has given no slot{lost}: {why}");
        pending.hold(RebootHold::new(HoldReason::NoSlot, text));
        self.slot.taken.put_off(now);
        pending.not_before = self.slot.taken.not_before;
    }

    /// Gives the slot back when nothing comes of it, or when the node is well after its reboot.
    /// That is done even if the journal cannot be written: it takes nothing from anybody, and to
    /// do it twice does no harm (`UnlockIfHeld`).
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

    /// A lock that may count this node among those who reboot although the journal knows nothing of
    /// it: the journal is new, or was lost.
    ///
    /// The protocol has every client begin so: "In the initialization state, the client tries to
    /// release any reboot slot it may have previously held." Whoever has none loses nothing by it,
    /// and nobody can release another's. Under the name that zincati derives it could be zincati's
    /// own slot on this very node, asked for before a reboot that has not happened yet; zincati
    /// does the same whenever it is started. It is done once in the life of a journal, after the
    /// node was watched for as long as after any reboot and is well, and by nobody who only
    /// observes.
    fn forgotten_slot(&self, context: &RebootContext<'_>) -> Option<&RebootLock> {
        let was_watched =
            context.at.uptime.saturating_sub(self.restored) >= self.settings.check_after;
        let may_be_there = self.slot.is_unknown
            && self.slot.released.failures < MOST_FORGOTTEN_TRIES
            && self.pending.is_none()
            && self.attempts.last().is_none_or(|last| last.result.is_some());
        let is_well = context.facts().memory_state().is_some_and(is_well);
        let is_due = may_be_there && was_watched && is_well && context.mode == Mode::Enforce;
        self.settings.lock.as_ref().filter(|_| is_due)
    }
}
