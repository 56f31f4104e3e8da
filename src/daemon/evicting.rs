//! What puts model files out of memory while an engine loads, beside the loop.

use super::clock;
use crate::actions::{Evictor, Live};
use crate::config::settings::Settings;
use crate::model::{
    Action, Decision, DecisionId, EnginePhase, EngineTarget, Mode, Reading, SeriesKey, Verdict,
};
use crate::policy::status::EngineStatus;

/// The evictor, and what it tells of itself.
#[derive(Debug)]
pub(super) struct Evicting {
    evictor: Evictor,
}

impl Default for Evicting {
    fn default() -> Self {
        Self { evictor: Evictor::new(clock::uptime) }
    }
}

impl Evicting {
    /// Who acts on this machine.
    pub(super) fn live(&self, settings: &Settings) -> Live {
        Live {
            procfs: settings.path.procfs.clone(),
            sysfs: settings.path.sysfs.clone(),
            evictor: self.evictor.clone(),
            docker: settings.path.docker_socket.clone(),
        }
    }

    /// Has it found out what an act would put out, if it is one of observe mode.
    pub(super) fn rehearse(&self, settings: &Settings, decision: &Decision) {
        let would_act = decision.mode == Mode::Observe && decision.verdict == Verdict::Act;
        if would_act && matches!(decision.action, Action::EvictCheckpoint { .. }) {
            self.evictor.rehearse(&settings.path.procfs, decision);
        }
    }

    /// What an act has done, in words.
    pub(super) fn effect(&self, decision: DecisionId) -> Option<String> {
        self.evictor.effect(decision)
    }

    /// Ends what follows an engine that is no longer on its way to be ready, or has another life.
    pub(super) fn heed(&self, engines: &[EngineStatus]) {
        self.evictor.heed(|target| {
            let known = engines.iter().find(|known| {
                let is_it = known.engine.name == target.name
                    && target.processes.first() == Some(&known.engine.server);
                is_it && matches!(known.phase, EnginePhase::Starting | EnginePhase::Loading)
            });
            known.map(|known| EngineTarget::from(&known.engine))
        });
    }

    /// Ends everything that goes on.
    pub(super) fn stop(&self, why: &'static str) {
        self.evictor.stop(why);
    }

    /// What people shall know since this was last asked.
    pub(super) fn notes(&self) -> Vec<String> {
        self.evictor.notes()
    }

    /// Its series.
    pub(super) fn series() -> [SeriesKey; 3] {
        let action = [("action", "evict_checkpoint")];
        [
            SeriesKey::new("uma_evicted_bytes_total", &action),
            SeriesKey::new("uma_evicted_refaulted_bytes_total", &action),
            SeriesKey::new("uma_evicting_loads", &[]),
        ]
    }

    /// Their values.
    #[expect(clippy::cast_precision_loss, reason = "exact up to 2^53")]
    pub(super) fn values(&self) -> [Reading<f64>; 3] {
        let tally = self.evictor.tally();
        let values = [tally.evicted_bytes, tally.refaulted_bytes, tally.active];
        values.map(|value| Reading::Value(value as f64))
    }
}
