//! A death of a deferred restart, until it is reported.

use std::sync::Arc;
use std::time::Duration;

use crate::model::{DeathMemory, EnginePhase, EngineSeen, WorkloadEnd};

/// A death that is not reported yet.
#[derive(Clone, Debug)]
pub(super) struct Death {
    pub(super) end: WorkloadEnd,
    /// When it is known, on the uptime clock.
    pub(super) noticed: Duration,
    /// How far it had come.
    pub(super) phase: EnginePhase,
    /// What was known of its processes last.
    pub(super) engine: Option<Arc<EngineSeen>>,
    /// Memory at that moment.
    pub(super) memory: Option<DeathMemory>,
}
