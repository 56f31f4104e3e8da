//! Whether what runs is ready, and how far it had come when it died.

use std::time::Duration;

use crate::model::{
    DeferredRestart, EnginePhase, Moment, WorkloadHealth, WorkloadState, seconds_text,
};
use crate::policy::engines::Engines;

/// A workload without readiness reports counts as ready after it has run for this time.
const SETTLES: Duration = Duration::from_secs(60);

/// Readiness of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Readiness {
    pub(super) is_ready: bool,
    pub(super) phase: EnginePhase,
    /// What shows it.
    pub(super) reason: String,
}

/// `None`: it does not run. `began`: since when this life is known, on the uptime clock.
pub(super) fn readiness(
    seen: &DeferredRestart,
    began: Duration,
    at: Moment,
    engines: &Engines,
) -> Option<Readiness> {
    let WorkloadState::Running { health, .. } = &seen.state else { return None };
    let supervisor = seen.target.supervisor.name();
    if let Some((name, phase, reason)) = engines.of_held(&seen.target) {
        let reason = format!("{name} is {phase}: {reason}");
        return Some(Readiness { is_ready: phase.is_up(), phase, reason });
    }
    let runs_for = at.uptime.saturating_sub(began);
    Some(match health {
        Some(WorkloadHealth::Healthy) => Readiness {
            is_ready: true,
            phase: EnginePhase::Ready,
            reason: format!("{supervisor} says that it is ready"),
        },
        Some(WorkloadHealth::Starting | WorkloadHealth::Unhealthy) => Readiness {
            is_ready: false,
            phase: EnginePhase::Starting,
            reason: format!("{supervisor} says that it is not ready"),
        },
        None if runs_for >= SETTLES => Readiness {
            is_ready: true,
            phase: EnginePhase::Ready,
            reason: format!(
                "it has run for {}, and no source reports whether it is ready",
                seconds_text(SETTLES)
            ),
        },
        None => Readiness {
            is_ready: false,
            phase: EnginePhase::Starting,
            reason: "it runs, and no source reports whether it is ready".to_owned(),
        },
    })
}
