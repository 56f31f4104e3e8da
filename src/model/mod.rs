//! The words that every module shares: time, readings, observations, events, decisions, outcomes.
//!
//! Nothing here does anything: no files, no clock, no threads, and no imports from the crate.

mod action;
mod alert;
mod decision;
mod engine;
mod engine_access;
mod event;
mod moment;
mod observation;
mod operator;
mod past;
mod reading;
mod series;
mod sysctl;
mod target;
mod time_text;
mod wording;

pub use action::{Action, CacheKind, CachePermission, UndoReason};
pub use alert::{AlertChange, AlertState};
pub use decision::{
    Assessment, Decision, DecisionId, Evidence, HoldReason, Mode, Outcome, OutcomeResult, RuleId,
    Verdict,
};
pub use engine::{
    DeclaredEngine, EngineHealth, EngineKind, EngineMatch, EnginePhase, EngineProcess,
    EngineReadings, EngineSeen, HealthAnswer, ProcessId,
};
pub use engine_access::{EngineKeys, EngineLoad, SecretPlace};
pub use event::{Event, KernelEvent, KillerDaemon, OomConstraint, Pool, Recovery};
pub use moment::Moment;
pub use observation::{KernelRecord, Observation, Readings, Source};
pub use operator::{OperatorCommand, OperatorOrder, Pause, RuleSelector, author};
pub use past::{Asked, Past, PastAct};
pub use reading::{Reading, as_number};
pub use series::{METRICS, Metric, MetricKind, Schema, SeriesKey, metric};
pub use sysctl::{ENGINE_PAUSE, READ_AHEAD, SETTING_NAMES, Sysctl, UndoResult};
pub use target::{EngineTarget, Target};
pub use time_text::{duration, duration_text, end, instant};
pub use wording::{because, counted};
