//! What puts model files out of memory while an engine loads, beside the loop.

use std::sync::Arc;

use super::clock;
use crate::actions::{EmptyingTally, Evictor, Mounts};
use crate::config::settings::Settings;
use crate::model::{
    Action, Decision, DecisionId, EnginePhase, EngineTarget, Mode, Reading, SeriesKey, Verdict,
};
use crate::policy::Policy;
use crate::policy::status::EngineStatus;

/// Whether an engine's load is followed.
const OF_ENGINE: &str = "uma_engine_evicting";

/// The evictor, and what it tells of itself.
#[derive(Debug)]
pub(super) struct Evicting {
    evictor: Evictor,
    emptied: Arc<EmptyingTally>,
    heeded: Heeded,
}

/// What the evictor was last told of.
#[derive(Debug, Default)]
struct Heeded {
    engines: Arc<[EngineStatus]>,
    /// How many loads had been begun to be followed by then.
    begun: u64,
}

impl Default for Evicting {
    fn default() -> Self {
        Self {
            evictor: Evictor::new(clock::uptime),
            emptied: Arc::default(),
            heeded: Heeded::default(),
        }
    }
}

impl Evicting {
    /// Evicts for the acts of the ordinary lane, too.
    pub(super) fn evictor(&self) -> Evictor {
        self.evictor.clone()
    }

    /// Where it is counted what emptied caches give back.
    pub(super) fn emptied(&self) -> Arc<EmptyingTally> {
        Arc::clone(&self.emptied)
    }

    /// Has it found out what an act would evict, if it is one of observe mode.
    pub(super) fn rehearse(&self, settings: &Settings, decision: &Decision) {
        let would_act = decision.mode == Mode::Observe && decision.verdict == Verdict::Act;
        if would_act && matches!(decision.action, Action::EvictCheckpoint { .. }) {
            let (procfs, sysfs) = (settings.path.procfs.clone(), settings.path.sysfs.clone());
            self.evictor.rehearse(Mounts { procfs, sysfs }, decision);
        }
    }

    /// What an act has done, in words.
    pub(super) fn effect(&self, decision: DecisionId) -> Option<String> {
        self.evictor.effect(decision)
    }

    /// Ends what follows an engine that is no longer on its way to be ready, or has another life.
    pub(super) fn heed(&mut self, engines: Arc<[EngineStatus]>) {
        let begun = self.evictor.begun();
        if begun == self.heeded.begun && Arc::ptr_eq(&engines, &self.heeded.engines) {
            return;
        }
        self.evictor.update(|target| {
            let known = engines.iter().find(|known| {
                let is_it = known.engine.name == target.name
                    && target.processes.first() == Some(&known.engine.server);
                is_it && matches!(known.phase, EnginePhase::Starting | EnginePhase::Loading)
            });
            known.map(|known| EngineTarget::loading(&known.engine, &known.serving))
        });
        self.heeded = Heeded { engines, begun };
    }

    /// Ends what is not to go on by what people have ordered or written since it began.
    pub(super) fn obey(&self, policy: &Policy) {
        let now = clock::now();
        self.evictor.end_where(|rule, engine| policy.stops_following(rule, engine, now));
    }

    /// Ends everything that goes on.
    pub(super) fn stop(&self, why: &'static str) {
        self.evictor.stop(why);
    }

    /// What goes from behind the readers as soon as memory is short, in bytes.
    pub(super) fn evictable_bytes(&self) -> u64 {
        self.evictor.evictable_bytes()
    }

    /// What people shall know since this was last asked.
    pub(super) fn notes(&self) -> Vec<String> {
        self.evictor.take_notes()
    }

    /// Its series, whatever engines there are.
    pub(super) fn series() -> [SeriesKey; 3] {
        let action = [("action", "evict_checkpoint")];
        [
            SeriesKey::new("uma_evicted_bytes_total", &action),
            SeriesKey::new("uma_evicted_refaulted_bytes_total", &action),
            SeriesKey::new("uma_engine_cache_emptied_bytes_total", &[]),
        ]
    }

    /// Their values.
    #[expect(clippy::cast_precision_loss, reason = "exact up to 2^53")]
    pub(super) fn values(&self) -> [Reading<f64>; 3] {
        let tally = self.evictor.tally();
        [tally.evicted_bytes, tally.refaulted_bytes, self.emptied.bytes()]
            .map(|bytes| Reading::Value(bytes as f64))
    }

    /// One series for each engine.
    pub(super) fn series_of(engines: &[EngineStatus]) -> impl Iterator<Item = SeriesKey> {
        engines.iter().map(|known| SeriesKey::new(OF_ENGINE, &[("engine", &*known.engine.name)]))
    }

    /// Whether those are the series of these engines.
    pub(super) fn is_series_of(series: &[SeriesKey], engines: &[EngineStatus]) -> bool {
        let name = |key: &SeriesKey| key.labels.first().map(|(_, name)| Arc::clone(name));
        let known = engines.iter().map(|known| Some(Arc::clone(&known.engine.name)));
        series.iter().map(name).eq(known)
    }

    /// Their values.
    pub(super) fn values_of(&self, engines: &[EngineStatus]) -> impl Iterator<Item = Reading<f64>> {
        let follows = |known: &EngineStatus| {
            f64::from(self.evictor.tracks(&known.engine.name, known.engine.server))
        };
        engines.iter().map(follows).map(Reading::Value)
    }
}
