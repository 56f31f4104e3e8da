//! Evicts model files from memory while an engine loads, on threads of its own.

use std::sync::Arc;

use super::clock;
use crate::actions::{EmptyingTally, Evictor, Mounts};
use crate::config::settings::Settings;
use crate::model::{
    Action, DecisionId, DecisionRecord, EnginePhase, EngineTarget, Mode, Observation, Reading,
    SeriesKey,
};
use crate::policy::Policy;
use crate::policy::status::EngineStatus;

/// Whether an engine's load is tracked.
const OF_ENGINE: &str = "uma_engine_evicting";

/// The evictor and its metrics.
#[derive(Debug)]
pub(super) struct Evicting {
    evictor: Evictor,
    emptied: Arc<EmptyingTally>,
    heeded: AppliedState,
}

/// The last state that the evictor was given.
#[derive(Debug, Default)]
struct AppliedState {
    engines: Arc<[EngineStatus]>,
    /// Loads that had been tracked by then.
    begun: u64,
}

impl Default for Evicting {
    fn default() -> Self {
        Self {
            evictor: Evictor::new(clock::uptime),
            emptied: Arc::default(),
            heeded: AppliedState::default(),
        }
    }
}

impl Evicting {
    /// Evicts for the acts of the ordinary lane, too.
    pub(super) fn evictor(&self) -> Evictor {
        self.evictor.clone()
    }

    /// Counts memory that emptied caches return.
    pub(super) fn emptied(&self) -> Arc<EmptyingTally> {
        Arc::clone(&self.emptied)
    }

    /// Measures what an act would evict, in observe mode.
    pub(super) fn rehearse(&self, settings: &Settings, decision: &DecisionRecord) {
        let would_act = decision.mode == Mode::Observe && decision.is_act();
        if would_act && matches!(decision.action, Action::EvictCheckpoint { .. }) {
            let (procfs, sysfs) = (settings.path.procfs.clone(), settings.path.sysfs.clone());
            self.evictor.rehearse(Mounts { procfs, sysfs }, decision);
        }
    }

    /// The effect of an act, in words.
    pub(super) fn effect(&self, decision: DecisionId) -> Option<String> {
        self.evictor.effect(decision)
    }

    /// Ends evictions for engines that are not loading any more.
    pub(super) fn update(&mut self, engines: Arc<[EngineStatus]>) {
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
        self.heeded = AppliedState { engines, begun };
    }

    /// Ends evictions that orders or new rules forbid.
    pub(super) fn obey(&self, policy: &Policy) {
        let now = clock::now();
        self.evictor.end_where(|rule, engine| policy.stops_following(rule, engine, now));
    }

    /// Ends all evictions.
    pub(super) fn stop(&self, why: &'static str) {
        self.evictor.stop(why);
    }

    /// Bytes behind the readers that are evicted once memory is short.
    pub(super) fn evictable_bytes(&self) -> u64 {
        self.evictor.evictable_bytes()
    }

    /// How engines have read whose evictions have ended since the last call.
    pub(super) fn readings(&self) -> impl Iterator<Item = Observation> {
        let readings = self.evictor.take_readings().into_iter();
        readings.map(|tracked| Observation::LoadReading(Box::new(tracked)))
    }

    /// News for the log since the last call.
    pub(super) fn notes(&self) -> Vec<String> {
        self.evictor.take_notes()
    }

    /// Its series without engines.
    pub(super) fn series() -> [SeriesKey; 5] {
        let action = [("action", "evict_checkpoint")];
        [
            SeriesKey::new("uma_evicted_bytes_total", &action),
            SeriesKey::new("uma_evicted_refaulted_bytes_total", &action),
            SeriesKey::new("uma_prefetched_bytes_total", &[]),
            SeriesKey::new("uma_prefetch_unused_bytes_total", &[]),
            SeriesKey::new("uma_engine_cache_emptied_bytes_total", &[]),
        ]
    }

    /// Values of the series of [`Self::series`], in their order.
    #[expect(clippy::cast_precision_loss, reason = "exact up to 2^53")]
    pub(super) fn values(&self) -> [Reading<f64>; 5] {
        let tally = self.evictor.tally();
        let (ahead, unused) = (tally.prefetched_bytes, tally.unused_bytes);
        [tally.evicted_bytes, tally.refaulted_bytes, ahead, unused, self.emptied.bytes()]
            .map(|bytes| Reading::Value(bytes as f64))
    }

    /// The series of each engine.
    pub(super) fn series_of(engines: &[EngineStatus]) -> impl Iterator<Item = SeriesKey> {
        engines.iter().map(|known| SeriesKey::new(OF_ENGINE, &[("engine", &*known.engine.name)]))
    }

    /// Whether the series belong to these engines.
    pub(super) fn is_series_of(series: &[SeriesKey], engines: &[EngineStatus]) -> bool {
        let name = |key: &SeriesKey| key.labels.first().map(|(_, name)| Arc::clone(name));
        let known = engines.iter().map(|known| Some(Arc::clone(&known.engine.name)));
        series.iter().map(name).eq(known)
    }

    /// Values of the series of [`Self::series_of`], in their order.
    pub(super) fn values_of(&self, engines: &[EngineStatus]) -> impl Iterator<Item = Reading<f64>> {
        let follows = |known: &EngineStatus| {
            f64::from(self.evictor.tracks(&known.engine.name, known.engine.server))
        };
        engines.iter().map(follows).map(Reading::Value)
    }
}
