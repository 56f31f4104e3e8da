//! Deferred restarts: containers and units that are restarted only when there is memory for them,
//! as their supervisors report them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::names::named;
use super::{EngineSeen, EngineUser, GateRequest, Mode, Moment, StartNeed};

/// The server that runs a container or a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Supervisor {
    /// Docker, or a server with its API.
    Docker,
    /// The system's systemd.
    Systemd,
    /// A user's own Docker or Podman (rootless). It reports ends, and restarts nothing for us.
    DockerOfUser(u32),
    /// The systemd of a user (`systemctl --user`). It restarts units that the configuration names.
    SystemdOfUser(u32),
    /// The container runtime of Kubernetes (CRI). It reports ends; a kubelet starts its containers
    /// again, whatever is done here.
    Cri,
}

impl Supervisor {
    /// Those of the system that restart workloads for us.
    pub const ALL: [Self; 2] = [Self::Docker, Self::Systemd];

    /// The name for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Docker | Self::DockerOfUser(_) => "Docker",
            Self::Systemd | Self::SystemdOfUser(_) => "systemd",
            Self::Cri => "the container runtime",
        }
    }

    /// Whether it is a systemd, that of the machine or of a user.
    pub const fn is_systemd(&self) -> bool {
        matches!(self, Self::Systemd | Self::SystemdOfUser(_))
    }

    /// The word for what it runs.
    pub const fn thing(self) -> &'static str {
        match self {
            Self::Docker | Self::DockerOfUser(_) | Self::Cri => "container",
            Self::Systemd | Self::SystemdOfUser(_) => "unit",
        }
    }

    /// Whether it runs containers.
    pub const fn runs_containers(self) -> bool {
        matches!(self, Self::Docker | Self::DockerOfUser(_) | Self::Cri)
    }

    /// The user whose own it is.
    pub const fn user(self) -> Option<u32> {
        match self {
            Self::DockerOfUser(user) | Self::SystemdOfUser(user) => Some(user),
            Self::Docker | Self::Systemd | Self::Cri => None,
        }
    }
}

/// A container or a unit, identified as by its supervisor.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Workload {
    /// The supervisor that runs it.
    pub supervisor: Supervisor,
    /// Name of the container or the unit; of a pod's container `NAMESPACE/POD/CONTAINER`.
    pub name: Arc<str>,
    /// The container's id, or the unit's name again.
    pub id: Arc<str>,
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.supervisor.thing(), self.name)?;
        self.supervisor.user().map_or(Ok(()), |user| write!(f, " of user {user}"))
    }
}

impl Workload {
    /// Whether that engine runs in it. A user's own runtime may report any id.
    pub fn runs(&self, engine: &EngineSeen) -> bool {
        match self.supervisor {
            Supervisor::Docker | Supervisor::Cri => engine.system_container() == Some(&self.id),
            Supervisor::DockerOfUser(user) => {
                engine.runtime_user() == Some(user) && engine.container.as_ref() == Some(&self.id)
            }
            Supervisor::Systemd => {
                let units = [&engine.unit, &engine.client_unit];
                units.into_iter().flatten().any(|unit| *unit == self.id)
            }
            Supervisor::SystemdOfUser(user) => {
                let its = engine.user_unit.as_ref();
                its.is_some_and(|unit| unit.user == user && unit.name == self.id)
            }
        }
    }
}

/// Whether an end was requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnRequest {
    /// Its supervisor received a request to stop it.
    Yes,
    /// There was no request.
    No,
    /// No source of that fact was available.
    Unknown,
}

/// The end of one run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadEnd {
    /// Identifies this end among others of the same target: the time, as its supervisor writes it.
    pub mark: Arc<str>,
    /// Time of the end, by the wall clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utc: Option<Timestamp>,
    /// Duration of the run, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lived: Option<Duration>,
    /// The exit code; of a process that a signal ended, 128 and its number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Whether its supervisor reports an OOM kill.
    #[serde(default)]
    pub is_oom_killed: bool,
    /// Further error that its supervisor reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Arc<str>>,
    /// Whether the end was requested.
    pub requested: OnRequest,
    /// Whether its supervisor does not report requests to stop.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub are_stops_silent: bool,
    /// Whether its whole pod was stopped. A kubelet does that when it deletes, evicts or preempts
    /// the pod, or when the last container of a pod has ended that is not started again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_pod_stopped: bool,
    /// Its last output, reported for a while after the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<Arc<WorkloadLog>>,
}

/// The end of the target's own log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkloadLog {
    /// The last lines, the newest last.
    Lines(Vec<String>),
    /// Why it is unknown.
    Unknown(String),
}

impl WorkloadEnd {
    /// An end without any known fact.
    pub fn unknown() -> Self {
        Self {
            mark: "".into(),
            utc: None,
            lived: None,
            exit_code: None,
            is_oom_killed: false,
            error: None,
            requested: OnRequest::Unknown,
            are_stops_silent: false,
            is_pod_stopped: false,
            log: None,
        }
    }

    /// Whether it ended like a requested stop: by SIGINT, SIGTERM or SIGKILL, or with 0 where
    /// requests are not reported.
    pub fn looks_requested(&self) -> bool {
        let is_such = match self.exit_code {
            Some(130 | 137 | 143) => true,
            Some(0) => self.are_stops_silent,
            _ => false,
        };
        is_such && !self.is_oom_killed
    }
}

impl fmt::Display for WorkloadEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.exit_code {
            Some(code) => write!(f, "exit code {code}")?,
            None => f.write_str("no exit code")?,
        }
        if self.is_oom_killed {
            f.write_str(", killed for memory")?;
        }
        if let Some(error) = &self.error {
            write!(f, ", {error}")?;
        }
        Ok(())
    }
}

/// Health as its supervisor reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkloadHealth {
    /// The start period of the checks.
    Starting,
    /// It passes its checks; a unit has reported that it is ready.
    Healthy,
    /// It fails its checks.
    Unhealthy,
}

/// The state of a container or a unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum WorkloadState {
    /// It runs.
    Running {
        /// Identifies this run: its start time, as its supervisor writes it.
        mark: Arc<str>,
        /// `None` where its supervisor has no health check.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        health: Option<WorkloadHealth>,
    },
    /// It has ended.
    Ended(WorkloadEnd),
    /// It has never been started.
    Fresh,
    /// Anything else: it is being started, stopped, paused or removed.
    Between {
        /// The status as its supervisor names it.
        status: Arc<str>,
    },
}

/// Limits of restarts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartLimits {
    /// Pause after the first failed start. It doubles with each further one.
    pub back_off: Duration,
    /// Longest pause.
    pub back_off_at_most: Duration,
    /// Most starts within `per`.
    pub times: u32,
    /// The time in which `times` counts.
    pub per: Duration,
    /// Deaths in a row in the same phase after which a person must allow further starts.
    pub give_up_after: u32,
    /// Time in the ready state after which the count of deaths restarts.
    pub healthy_after: Duration,
    /// Time after which the next engine may start, even if this one is not ready.
    pub ready_within: Duration,
}

impl Default for RestartLimits {
    fn default() -> Self {
        Self {
            back_off: Duration::from_secs(10),
            back_off_at_most: Duration::from_secs(300),
            times: 10,
            per: Duration::from_secs(3_600),
            give_up_after: 5,
            healthy_after: Duration::from_secs(600),
            ready_within: Duration::from_secs(1_800),
        }
    }
}

/// A restart that the configuration declares.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeclaredRestart {
    /// The containers or the unit.
    pub matches: RestartMatch,
    /// Memory that it needs.
    pub need: StartNeed,
    /// Limits of its restarts.
    pub limits: RestartLimits,
    /// Mode instead of the node's.
    pub mode: Option<Mode>,
}

/// The selector of an entry in the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RestartMatch {
    /// Containers whose name matches a glob.
    Container(Arc<str>),
    /// Containers with that label, whose value is a glob.
    Label(Arc<str>, Arc<str>),
    /// The system's unit of that name.
    Unit(Arc<str>),
    /// The unit of that name in a user's own systemd (`systemctl --user`).
    UnitOfUser(EngineUser, Arc<str>),
}

impl RestartMatch {
    /// The name of the unit, if it selects one.
    pub const fn unit(&self) -> Option<&Arc<str>> {
        match self {
            Self::Unit(name) | Self::UnitOfUser(_, name) => Some(name),
            Self::Container(_) | Self::Label(..) => None,
        }
    }
}

/// A target as its supervisor reported it last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeferredRestart {
    /// The container or unit to restart.
    #[serde(flatten)]
    pub target: Workload,
    /// State of the target, by its supervisor.
    #[serde(flatten)]
    pub state: WorkloadState,
    /// Memory that it needs.
    #[serde(flatten)]
    pub need: StartNeed,
    /// Limits of its restarts.
    pub limits: RestartLimits,
    /// Mode instead of the node's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Why it is a target, for people.
    pub found_by: Arc<str>,
    /// Why it is not restarted: its supervisor restarts it, or its settings are invalid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub obstacle: Option<Arc<str>>,
}

/// A container or unit that has ended and is no target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedWorkload {
    /// The container or unit.
    #[serde(flatten)]
    pub target: Workload,
    /// When and how it ended.
    pub end: WorkloadEnd,
}

/// All targets that one supervisor has reported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartReadings {
    /// The supervisor that was queried.
    pub supervisor: Supervisor,
    /// Time of the report, on the uptime clock.
    pub read_at: Duration,
    /// All targets; empty after an error.
    pub deferred: Vec<DeferredRestart>,
    /// Ends of containers and units of engines that are no targets; each is reported for a while.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ended: Vec<EndedWorkload>,
    /// Why the targets are unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Arc<str>>,
}

named! {
    /// The state of a deferred restart.
    pub enum RestartState {
        /// It runs, and is not ready yet.
        Starting = "starting",
        /// It runs, and is ready as far as is known.
        Running = "running",
        /// It has ended, and waits for its restart.
        Waiting = "waiting",
        /// It is down on request, or was never up.
        Stopped = "stopped",
        /// It died too often: a person must allow further starts.
        GivenUp = "given_up",
        /// It is not restarted: its supervisor restarts it, or its settings are invalid.
        NotOurs = "not_ours",
        /// Its supervisor gives no usable report.
        Unknown = "unknown",
    }
}

impl RestartState {
    /// Whether it runs.
    pub const fn is_up(self) -> bool {
        matches!(self, Self::Starting | Self::Running)
    }

    /// The text for people.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Stopped => "stopped",
            Self::GivenUp => "GIVEN UP",
            Self::NotOurs => "not ours",
            Self::Unknown => "unknown",
        }
    }
}

/// A restart of the first rank of an engine that spans nodes: memory is to be reserved on all of
/// them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GangStart {
    /// The end after which it comes.
    pub after: Arc<str>,
    /// The memory on each node.
    pub need: GateRequest,
    /// The other nodes, and the name of the engine on each.
    pub nodes: Vec<(Arc<str>, Arc<str>)>,
}

/// A rank that has ended, of an engine that spans nodes, and those on other nodes that lived while
/// it did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastRanks {
    /// Id of its container, or its unit's name.
    pub workload: Arc<str>,
    /// Name of the engine on this node.
    pub engine: Arc<str>,
    /// What its ranks have in common.
    pub gang: Arc<str>,
    /// The number of their user.
    pub user: Arc<str>,
    /// Its number; `None`: its ranks have no numbers, as with Ray.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u32>,
    /// Whether it served requests.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub serves: bool,
    /// Ranks of the same engine on other nodes.
    pub others: Vec<PastRank>,
}

impl PastRanks {
    /// The other nodes, and the engine's name on each.
    pub fn nodes(&self) -> Vec<(Arc<str>, Arc<str>)> {
        let of = |other: &PastRank| (Arc::clone(&other.node), Arc::clone(&other.engine));
        self.others.iter().map(of).collect::<BTreeMap<_, _>>().into_iter().collect()
    }
}

/// A rank on another node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastRank {
    /// Name of that node.
    pub node: Arc<str>,
    /// Its number, or `unknown`.
    pub rank: Arc<str>,
    /// Start of its server, after the boot of its node.
    pub start: Duration,
    /// Name of the engine there.
    pub engine: Arc<str>,
}

/// The status of a deferred restart, for people.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RestartStatus {
    /// The last report.
    #[serde(flatten)]
    pub seen: DeferredRestart,
    /// The present state.
    pub state: RestartState,
    /// Start of the present state.
    #[serde(skip)]
    pub since: Moment,
    /// The reason of the state.
    pub reason: Arc<str>,
    /// Time until it can start; `None` where it does not wait, or nothing shows how long.
    #[serde(rename = "estimated_seconds", serialize_with = "super::gate::seconds")]
    pub wait: Option<Duration>,
    /// Deaths in a row after restarts by this program.
    pub deaths_in_a_row: u32,
    /// The memory that it waits for on other nodes.
    #[serde(skip)]
    pub gang: Option<GangStart>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ContainerRuntime, EngineKind, EngineProcess, ProcessId, UserUnit};

    #[test]
    fn a_users_supervisor_runs_no_engine_of_the_system_or_of_another_user() {
        let id = ProcessId { pid: 7, start_ticks: 70 };
        let process = EngineProcess::holding(id, "vllm", 0);
        let mut engine =
            EngineSeen::new("e".into(), EngineKind::Vllm, id, vec![process], "test".into());
        let held = |supervisor| Workload { supervisor, name: "lives".into(), id: "ab".into() };
        let of = |engine: &EngineSeen| {
            [Supervisor::Docker, Supervisor::DockerOfUser(1), Supervisor::DockerOfUser(2)]
                .map(|supervisor| held(supervisor).runs(engine))
        };
        engine.container = Some("ab".into());
        assert_eq!(of(&engine), [true, false, false]);
        let (socket, log) = ("/s".into(), None);
        engine.runtime = Some(ContainerRuntime { socket, user: Some(1), is_podman: true, log });
        assert_eq!(of(&engine), [false, true, false]);
        engine.user_unit = Some(UserUnit { user: 1, name: "ab".into() });
        let units =
            [Supervisor::Systemd, Supervisor::SystemdOfUser(1), Supervisor::SystemdOfUser(2)];
        assert_eq!(units.map(|supervisor| held(supervisor).runs(&engine)), [false, true, false]);
        engine.client_unit = Some("ab".into());
        assert!(held(Supervisor::Systemd).runs(&engine), "it runs the container");
        let texts = [Supervisor::Docker, Supervisor::SystemdOfUser(1)].map(held);
        let texts = texts.map(|held| held.to_string());
        assert_eq!(texts, ["container lives", "unit lives of user 1"]);
        let written = serde_json::to_string(&Supervisor::DockerOfUser(1)).unwrap();
        assert_eq!(written, "{\"docker_of_user\":1}");
        assert_eq!(serde_json::from_str::<Supervisor>("\"docker\"").unwrap(), Supervisor::Docker);
    }
}
