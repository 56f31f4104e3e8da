//! Types that all modules share: time, readings, observations, events, decisions, outcomes.
//!
//! They have no side effects and import nothing else of the crate.

mod access;
mod account;
mod action;
mod alert;
mod alertmanager;
mod assessment;
mod cluster;
mod death;
mod decision;
mod engine;
mod engine_access;
mod event;
mod fault_class;
mod fleet;
mod gate;
mod gpu;
mod grade;
mod holder;
mod identity;
mod kubernetes;
mod lease;
mod moment;
mod names;
mod observation;
mod operator;
mod past;
mod peer;
mod picture;
mod pod;
mod pool;
mod printable;
mod program_event;
mod reboot;
mod reboot_stage;
mod receipt;
mod received_alert;
mod release;
mod restart;
mod series;
mod shipped;
mod start;
mod sysctl;
mod target;
mod telemetry;
mod time_text;
mod wording;

pub use access::{Credential, OrderedBy, RefusalReason, Role};
pub use account::{AccountEntry, Basis, MemoryAccount, Owner, ProcessMemory};
pub use action::{Action, CacheKind, CachePermission, Lane, Prefetch, UndoReason};
pub use alert::AlertChange;
pub use alertmanager::{
    AlertSending, AlertmanagerCredentials, AlertmanagerServer, AlertmanagerSettings, SentDecisions,
};
pub use assessment::{
    AssessmentEvidence, AssessmentLimits, MemoryAssessment, MemoryPlatform, MemoryState, WedgeSign,
};
pub use cluster::{
    Access, ClusterNames, ClusterReadings, ClusterSettings, ClusterStatus, Credentials, MOST_NODES,
    MOST_PEERS, MOST_SERIES_OF_A_NODE, NodeMemory, NodeNews, NodeReadings, NodeStatus,
    PEERS_ASKED_CHEAPLY, PrometheusServer, Rejection, TlsFiles, series_of_node,
};
pub use death::{
    DeathMemory, DeathProof, DeathReport, Deceased, ExitStatus, FirstDeath, KilledWorker, Killer,
    LastHealth, RankDeath, RankDeaths, Survivor, signal_name,
};
pub use decision::{
    AimCheck, Decision, DecisionId, DecisionRecord, Evidence, HoldReason, Mode, Outcome,
    OutcomeResult, RuleId,
};
pub use engine::{
    DeclaredEngine, EngineHealth, EngineKind, EngineMatch, EnginePhase, EngineProcess, EngineRank,
    EngineReadings, EngineSeen, HealthResponse, LastOutput, LaunchedEngine, ProcessEnd, ProcessId,
    RankStatus, RayKill,
};
pub use engine_access::{EngineKeys, EngineLoad, SecretSource};
pub use event::{Event, EventKind, SYSLOG_SEQ_BASE};
pub use fault_class::{DeathTime, FaultClass, OomBound, XidClass};
pub use fleet::FleetAction;
pub use gate::{
    Baseline, GateMemory, GateNote, GateReason, GateResponse, LingeringMemory, MemoryTrends,
    Orphan, PeerGate, PeerGateResponse, Trend,
};
pub use gpu::{
    GpuDevice, GpuDriver, GpuHealth, GpuInstance, GpuMemory, GpuPicture, GpuProcess, GpuReadings,
    GpuRecovery,
};
pub use grade::{Grade, Grades, mode_text};
pub use holder::{HiddenProcess, Holder, HolderReadings, ObservedTask};
pub use identity::{ContainerRuntime, EngineUser, Proof, UserUnit};
pub use kernel_faults::{
    GpuLossSign, KernelEvent, KillerDaemon, OomConstraint, PageRecovery, Pool, Recovery,
};
pub use kubernetes::{
    DaemonSetName, DrainMode, KubernetesAccess, KubernetesSettings, NodeCondition, NodeDrain,
    Taint, TaintEffect,
};
pub use lease::{
    GANG_LEASE, GangReading, Lease, LeaseCall, LeaseChange, LeaseEnd, LeaseHolder, LeaseNews,
    LeaseReadings, LeaseRequest, LeaseShare, LeaseStage, LeaseState, RESTART_LEASE, ReservedPool,
    lease_lasts,
};
pub use moment::Moment;
pub(crate) use names::named;
pub use observation::{KernelRecord, Observation, Readings, Source};
pub use operator::{OperatorCommand, OperatorOrder, Pause, RuleSelector, author, remote_author};
pub use past::{EarlierRuns, PastAct, PendingApproval};
pub use peer::PeerAddress;
pub use picture::{
    ApprovalPicture, EnginePicture, MOST_HAPPENED, MOST_PAST_HAPPENED, MachineInfo, MemoryHistory,
    MemoryPart, MemoryPicture, NodeHealth, NodeHealthLevel, NodePicture, NodeState, PartHistory,
    PartKind, Picture, Queue, RecentEvent, RecentEventKind, RecentEventLevel, SilencePicture,
    WaitKind, WaitingStart,
};
pub use pod::Pod;
pub use pool::{EnginePools, HOST_POOL, MemoryPool, MemoryPools, PoolFigures, PoolKind};
pub use printable::{is_unprintable, printable, printable_beginning, without_unprintable};
pub use program_event::ProgramEvent;
pub use promql_rules::{
    AlertState, CLUSTER_LABEL, EXPORTED_NODE_LABEL, NODE_LABEL, Reading, SeriesKey, Wanted,
    as_number,
};
pub use reboot::{
    EnginesRule, LoggedIn, LoggedInReadings, LoggedInRule, PastReboot, PastReboots, RebootAct,
    RebootBudget, RebootBudgetLeft, RebootForce, RebootLock, RebootMeans, RebootOrder, RebootPlan,
    RebootResult, RebootSettings, RebootStatus, RebootWay, ScheduledReboot,
};
pub use reboot_stage::RebootStage;
pub use receipt::{
    LoadConfiguration, LoadEnd, LoadReading, LoadReceipt, PastLoad, ReadOrder, TrackedReading,
};
pub use received_alert::{
    ALERTS, FORGET_RECEIVED_AFTER, PastReceived, ReceivedAlert, ReceivedAlertStatus,
    ReceivedAlerts, ReceivedIgnored, ReceivedStatus, ReceivedTurn,
};
pub use release::{Release, ReleaseEnd, ReleaseMemory, ReleasePoint, WhyUnknown};
pub use restart::{
    DeclaredRestart, DeferredRestart, EndedWorkload, GangStart, OnRequest, PastRank, PastRanks,
    RestartLimits, RestartMatch, RestartReadings, RestartState, RestartStatus, Supervisor,
    Workload, WorkloadEnd, WorkloadHealth, WorkloadLog, WorkloadState,
};
pub use series::{METRICS, Metric, MetricKind, Schema, metric};
pub use shipped::{ADD_SHIPPED, ShippedPart, ShippedRule, off_names, off_text};
pub use start::{GateRequest, StartNeed, StartSettings, pool_names};
pub use sysctl::{ENGINE_PAUSE, READ_AHEAD, SETTING_NAMES, Sysctl, UndoResult};
pub use target::{EngineTarget, Target};
pub use telemetry::{ExportResult, Signal};
pub use time_text::{
    age_text, duration, duration_text, end, instant, measured_seconds_text, rounded_seconds_text,
    seconds_text, tenths_text,
};
pub use wording::{because, bytes_text, counted, measured_bytes_text, size_bytes};

/// Whether a field is left out of JSON.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
