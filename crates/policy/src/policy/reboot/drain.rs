//! Engines that are stopped in order before a reboot, where that is configured.
//!
//! None is stopped for a reboot that another one holds: one that is protected, or that goes on
//! whatever it is told. Nor for one that the cluster has not given its slot yet.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::course::{AGAIN_AFTER, Course, Stage, begin};
use super::{Held, Reboots, Scene};
use crate::model::{
    Action, EnginePhase, EngineTarget, HoldReason, MemoryVerdict, Outcome, OutcomeResult,
    ScheduledReboot, Target, Verdict, counted,
};

/// How long an engine has to end before it is killed.
const GRACE_MS: u64 = 20_000;

/// So often an engine is told to end.
const MOST_STOPS: u32 = 3;

/// Which engines were told to end, and what came of it.
#[derive(Debug, Default)]
pub(super) struct Drain {
    told: BTreeMap<Arc<str>, Told>,
    /// The one that is being stopped, or was last.
    last: Option<Arc<str>>,
    /// When the last stop had ended: what was seen of processes before says nothing.
    ended: Option<Duration>,
}

/// What one engine was told.
#[derive(Debug, Default)]
struct Told {
    times: u32,
    /// Why it goes on, as whoever was to stop it says.
    failed: Option<Arc<str>>,
}

impl Drain {
    pub(super) fn has_begun(&self) -> bool {
        !self.told.is_empty()
    }

    /// Whether the last stop had ended before then.
    pub(super) fn is_before(&self, then: Duration) -> bool {
        self.ended.is_none_or(|ended| ended < then)
    }

    fn times(&self, name: &Arc<str>) -> u32 {
        self.told.get(name).map_or(0, |told| told.times)
    }

    fn begin(&mut self, name: Arc<str>) {
        self.told.entry(Arc::clone(&name)).or_default().times += 1;
        self.last = Some(name);
    }

    /// The last one ended, or not; `true`: certainly nobody was told to.
    fn end(&mut self, outcome: &Outcome) -> bool {
        self.ended = Some(outcome.ended.uptime);
        let told = self.last.as_ref().and_then(|name| self.told.get_mut(name));
        let Some(told) = told else { return false };
        told.failed = match &outcome.result {
            OutcomeResult::Done | OutcomeResult::Skipped => None,
            OutcomeResult::TimedOut => Some(Arc::from("it has not ended in time")),
            OutcomeResult::Failed(why) | OutcomeResult::NotDone(why) => Some(why.as_str().into()),
        };
        let is_untouched = !outcome.result.is_begun();
        if is_untouched {
            told.times = told.times.saturating_sub(1);
        }
        is_untouched
    }

    /// The next one that is to be told.
    fn next<'a>(
        &self,
        living: &'a [(Arc<str>, EnginePhase)],
        scene: &Scene<'_>,
    ) -> Option<&'a Arc<str>> {
        let most = if is_wedged(scene) { 1 } else { MOST_STOPS };
        living.iter().map(|(name, _)| name).find(|name| self.times(name) < most)
    }

    /// What to say of one that was told as often as makes sense, and is there.
    fn in_vain(&self, name: &Arc<str>) -> Option<String> {
        let told = self.told.get(name).filter(|told| told.times >= MOST_STOPS)?;
        let times = counted(u64::from(told.times), "time");
        let why = told.failed.as_deref().unwrap_or("it ended, and runs again");
        Some(format!("engine {name} was told to end {times} and runs: {why}"))
    }
}

impl Course {
    /// Whether nobody has looked since the last stop had ended.
    fn awaits_look(&self, scene: &Scene<'_>) -> bool {
        self.drain.ended.is_some_and(|ended| !scene.engines.has_looked_since(ended))
    }

    /// Takes the report on the stop that is waited for.
    pub(super) fn drained(&mut self, outcome: &Outcome) {
        self.stage = Stage::Waiting;
        if self.drain.end(outcome) {
            let why = match &outcome.result {
                OutcomeResult::NotDone(why) => why.as_str(),
                _ => "it was not tried",
            };
            let name = self.drain.last.as_deref().unwrap_or_default();
            let text = format!("engine {name} could not be stopped: {why}");
            self.hold(Held::new(HoldReason::EnginesRun, text));
            self.not_before = outcome.ended.uptime.saturating_add(AGAIN_AFTER);
        } else {
            self.moved_on(outcome.ended.uptime);
        }
    }
}

impl Reboots {
    /// What holds it back of engines: one that runs where none is stopped, or one that cannot be.
    pub(super) fn hold_for_engines(&self, scene: &Scene<'_>) -> Option<Held> {
        let course = self.course.as_ref()?;
        let plan = &course.scheduled.plan;
        let living = scene.engines.living(scene.at.uptime);
        let Some(living) = living.value().filter(|_| self.drains(plan)) else {
            return self.engines_hold(plan, &scene.view());
        };
        if course.awaits_look(scene) {
            return None;
        }
        if let Some(name) = first_protected(living, scene) {
            let text = format!("engine {name} runs, and is protected");
            return Some(Held::new(HoldReason::Protected, text));
        }
        let in_vain = || living.iter().find_map(|(name, _)| course.drain.in_vain(name));
        if let Some(text) = (!is_wedged(scene)).then(in_vain).flatten() {
            return Some(Held::new(HoldReason::EnginesRun, text));
        }
        let Some(name) = course.drain.next(living, scene) else {
            return self.engines_hold(plan, &scene.view());
        };
        scene.engines.target_of(name).is_none().then(|| {
            let text = format!("engine {name} runs, and its processes are not known");
            Held::new(HoldReason::EnginesRun, text)
        })
    }

    /// Has the next engine stopped, once nothing holds that; `false`: none is left.
    pub(super) fn drain(&mut self, scene: &mut Scene<'_>) -> Result<bool, Held> {
        let Some(course) = &self.course else { return Ok(false) };
        let living = scene.engines.living(scene.at.uptime);
        let Some(living) = living.value().filter(|_| self.drains(&course.scheduled.plan)) else {
            return Ok(false);
        };
        if course.awaits_look(scene) {
            return Ok(true);
        }
        let Some(name) = course.drain.next(living, scene) else { return Ok(false) };
        let Some(engine) = scene.engines.target_of(name) else { return Ok(false) };
        self.stop(Arc::clone(name), engine, scene).map(|()| true)
    }

    fn stop(
        &mut self,
        name: Arc<str>,
        engine: EngineTarget,
        scene: &mut Scene<'_>,
    ) -> Result<(), Held> {
        let Some(course) = &self.course else { return Ok(()) };
        let ScheduledReboot { rule, decision, .. } = course.scheduled.clone();
        let action = Action::StopEngine {
            grace_ms: GRACE_MS,
            unless_free_bytes: None,
            for_reboot: Some(decision),
        };
        if scene.guard.is_busy(&action) {
            return Err(Held::plain(HoldReason::Busy));
        }
        let target = Target::Engine(Box::new(engine));
        let act = self.decide(&rule, action, Verdict::Act, target, scene);
        begin(act, scene);
        if let Some(course) = &mut self.course {
            course.drain.begin(name);
            course.begin(Stage::Draining(act));
        }
        self.has_changed = true;
        Ok(())
    }
}

/// Over a driver that is stuck an engine may not end whatever is sent to it.
fn is_wedged(scene: &Scene<'_>) -> bool {
    scene.view().verdict() == Some(MemoryVerdict::Wedged)
}

fn first_protected<'a>(
    living: &'a [(Arc<str>, EnginePhase)],
    scene: &Scene<'_>,
) -> Option<&'a Arc<str>> {
    let is_protected = |name: &&Arc<str>| {
        let target = scene.engines.target_of(name);
        target.is_some_and(|engine| scene.guard.is_protected(&Target::Engine(Box::new(engine))))
    };
    living.iter().map(|(name, _)| name).find(is_protected)
}
