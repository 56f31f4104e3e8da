//! Engines that are stopped in order before a reboot, where that is configured.
//!
//! Where pods are evicted, that comes first, with the slot: engines of pods hold the reboot only if
//! they run after it.
//!
//! No engine is stopped while another one blocks the reboot, since it is protected or ignores its
//! stop requests, or while the cluster has not granted the slot.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::pending::{AGAIN_AFTER, PendingReboot, PendingStage, begin};
use super::{RebootContext, RebootHold, Reboots};
use crate::model::{
    Action, Decision, EnginePhase, EngineTarget, HoldReason, MemoryState, Outcome, OutcomeResult,
    RebootForce, ScheduledReboot, Target, counted,
};

/// How long an engine has to end before it is killed.
const GRACE_MS: u64 = 20_000;

/// After evictions in vain pods are left alone for this time, which doubles.
const EVICTED_AGAIN_AFTER: Duration = Duration::from_secs(600);
const EVICTED_AGAIN_AT_MOST: Duration = Duration::from_secs(24 * 3_600);

/// Most stop requests to one engine.
const MOST_STOPS: u32 = 3;

/// The stop requests to engines, and their results.
#[derive(Debug, Default)]
pub(super) struct EngineDrain {
    requests: BTreeMap<Arc<str>, StopRequests>,
    /// The one that is being stopped, or was last.
    last: Option<Arc<str>>,
    /// When the last stop had ended: what was seen of processes before says nothing.
    ended: Option<Duration>,
}

/// The stop requests to one engine.
#[derive(Debug, Default)]
struct StopRequests {
    times: u32,
    /// Why it goes on, by the executor of the stop.
    failed: Option<Arc<str>>,
}

impl EngineDrain {
    pub(super) fn has_begun(&self) -> bool {
        !self.requests.is_empty()
    }

    /// Whether the last stop had ended before then.
    pub(super) fn is_before(&self, then: Duration) -> bool {
        self.ended.is_none_or(|ended| ended < then)
    }

    fn times(&self, name: &Arc<str>) -> u32 {
        self.requests.get(name).map_or(0, |request| request.times)
    }

    fn begin(&mut self, name: Arc<str>) {
        self.requests.entry(Arc::clone(&name)).or_default().times += 1;
        self.last = Some(name);
    }

    /// Takes the outcome of the last request; `true`: the engine certainly got none.
    fn end(&mut self, outcome: &Outcome) -> bool {
        self.ended = Some(outcome.ended.uptime);
        let request = self.last.as_ref().and_then(|name| self.requests.get_mut(name));
        let Some(request) = request else { return false };
        request.failed = match &outcome.result {
            OutcomeResult::Done | OutcomeResult::Skipped => None,
            OutcomeResult::TimedOut => Some(Arc::from("it has not ended in time")),
            OutcomeResult::Failed(why) | OutcomeResult::NotDone(why) => Some(why.as_str().into()),
        };
        let is_untouched = !outcome.result.is_begun();
        if is_untouched {
            request.times = request.times.saturating_sub(1);
        }
        is_untouched
    }

    /// The engine that gets the next request.
    fn next<'a>(
        &self,
        living: &'a [(Arc<str>, EnginePhase)],
        context: &RebootContext<'_>,
    ) -> Option<&'a Arc<str>> {
        let most = if is_wedged(context) { 1 } else { MOST_STOPS };
        living.iter().map(|(name, _)| name).find(|name| self.times(name) < most)
    }

    /// The reason of a hold for an engine that runs after its last request.
    fn in_vain(&self, name: &Arc<str>) -> Option<String> {
        let request = self.requests.get(name).filter(|request| request.times >= MOST_STOPS)?;
        let times = counted(u64::from(request.times), "time");
        let why = request.failed.as_deref().unwrap_or("it ended, and runs again");
        Some(format!("engine {name} was asked to end {times} and runs: {why}"))
    }
}

impl PendingReboot {
    /// The slot is released since engines run after the eviction of pods: their pods come back.
    pub(super) fn evicted_in_vain(&mut self, now: Duration) {
        let pause = EVICTED_AGAIN_AFTER.saturating_mul(1 << self.evicted_in_vain.min(16));
        self.evicted_in_vain = self.evicted_in_vain.saturating_add(1);
        self.not_evicted_before = now.saturating_add(pause.min(EVICTED_AGAIN_AT_MOST));
    }

    /// Takes the report on the stop that is waited for.
    pub(super) fn drained(&mut self, outcome: &Outcome) {
        self.stage = PendingStage::Waiting;
        if self.drain.end(outcome) {
            let why = match &outcome.result {
                OutcomeResult::NotDone(why) => why.as_str(),
                _ => "it was not tried",
            };
            let name = self.drain.last.as_deref().unwrap_or_default();
            let text = format!("engine {name} could not be stopped: {why}");
            self.hold(RebootHold::new(HoldReason::EnginesRun, text));
            self.not_before = outcome.ended.uptime.saturating_add(AGAIN_AFTER);
        } else {
            self.moved_on(outcome.ended.uptime);
        }
    }
}

impl Reboots {
    /// Whether there was no sample of engines since the end of the last stop, or of the evictions.
    fn awaits_observation(&self, pending: &PendingReboot, context: &RebootContext<'_>) -> bool {
        let ended = pending.drain.ended.max(self.evicted(&pending.scheduled.plan));
        ended.is_some_and(|ended| !context.engines.has_sampled_since(ended))
    }

    /// What holds it back of engines: one that runs where none is stopped, or one that cannot be.
    /// Engines of pods hold it only after the eviction of their pods.
    pub(super) fn hold_for_engines(&self, context: &RebootContext<'_>) -> Option<RebootHold> {
        let pending = self.pending.as_ref()?;
        let plan = &pending.scheduled.plan;
        let living = context.engines.living(context.at.uptime);
        let ends_engines = self.drains(plan) || self.evicts(plan);
        let Some(living) = living.value().filter(|_| ends_engines) else {
            return self.engines_hold(plan, &context.facts());
        };
        if self.awaits_observation(pending, context) {
            return None;
        }
        // Whether the reboot ends engines in any case.
        let ends_all = plan.force.contains(&RebootForce::Engines) || is_wedged(context);
        let may_protect = self.drains(plan) || !ends_all;
        if let Some(name) = first_protected(living, context).filter(|_| may_protect) {
            let text = format!("engine {name} runs, and is protected");
            return Some(RebootHold::new(HoldReason::Protected, text));
        }
        if !self.drains(plan) {
            let was_in_vain = context.at.uptime < pending.not_evicted_before;
            return match self.evicted(plan) {
                None if !was_in_vain => self.engines_hold_but_evicted(plan, &context.facts()),
                _ => self.engines_hold(plan, &context.facts()).map(after_eviction),
            };
        }
        let in_vain = || living.iter().find_map(|(name, _)| pending.drain.in_vain(name));
        if let Some(text) = (!is_wedged(context)).then(in_vain).flatten() {
            return Some(RebootHold::new(HoldReason::EnginesRun, text));
        }
        let Some(name) = pending.drain.next(living, context) else {
            return self.engines_hold(plan, &context.facts());
        };
        context.engines.target_of(name).is_none().then(|| {
            let text = format!("engine {name} runs, and its processes are not known");
            RebootHold::new(HoldReason::EnginesRun, text)
        })
    }

    /// Has the next engine stopped, once nothing holds that; `false`: none is left.
    pub(super) fn drain(&mut self, context: &mut RebootContext<'_>) -> Result<bool, RebootHold> {
        let Some(pending) = &self.pending else { return Ok(false) };
        let living = context.engines.living(context.at.uptime);
        let Some(living) = living.value() else { return Ok(false) };
        if self.awaits_observation(pending, context) {
            return Ok(true);
        }
        if !self.drains(&pending.scheduled.plan) {
            return Ok(false);
        }
        let Some(name) = pending.drain.next(living, context) else { return Ok(false) };
        let Some(engine) = context.engines.target_of(name) else { return Ok(false) };
        self.stop(Arc::clone(name), engine, context).map(|()| true)
    }

    fn stop(
        &mut self,
        name: Arc<str>,
        engine: EngineTarget,
        context: &mut RebootContext<'_>,
    ) -> Result<(), RebootHold> {
        let Some(pending) = &self.pending else { return Ok(()) };
        let ScheduledReboot { rule, decision, .. } = pending.scheduled.clone();
        let action = Action::StopEngine {
            engine: None,
            grace_ms: GRACE_MS,
            unless_free_bytes: None,
            for_reboot: Some(decision),
        };
        if context.guard.is_busy(&action) {
            return Err(RebootHold::plain(HoldReason::Busy));
        }
        let target = Target::Engine(Box::new(engine));
        let act = self.decide(&rule, action, Decision::Act, target, context);
        begin(act, context);
        if let Some(pending) = &mut self.pending {
            pending.drain.begin(name);
            pending.begin(PendingStage::Draining(act));
        }
        self.has_changed = true;
        Ok(())
    }
}

fn after_eviction(held: RebootHold) -> RebootHold {
    RebootHold { text: format!("{}, after the eviction of pods", held.text).into(), ..held }
}

/// With a stuck driver an engine may end on no signal.
fn is_wedged(context: &RebootContext<'_>) -> bool {
    context.facts().memory_state() == Some(MemoryState::Wedged)
}

fn first_protected<'a>(
    living: &'a [(Arc<str>, EnginePhase)],
    context: &RebootContext<'_>,
) -> Option<&'a Arc<str>> {
    let is_protected = |name: &&Arc<str>| {
        let target = context.engines.target_of(name);
        target.is_some_and(|engine| context.guard.is_protected(&Target::Engine(Box::new(engine))))
    };
    living.iter().map(|(name, _)| name).find(is_protected)
}
