//! Fact faults of a node, each with its fix. Pure, over collected facts.
//!
//! A check is a function from [`DoctorFacts`] to findings in the file of its subject, a call in
//! [`examine`], and a fixture of real data. It reports only known faults, and names a guessed
//! threshold as a guess.

pub mod advice;
mod cluster;
mod containers;
mod engines;
mod loaders;
mod node;
mod ray;
mod script;
mod systemctl;
mod time_span;
mod units;
mod version;

#[cfg(test)]
mod tests;

use serde::Serialize;

use crate::model::{Event, ShippedRule, Sysctl};
pub use advice::{AdviceTable, StartedEngine, Versions};
pub use cluster::ClusterFacts;
pub use containers::{ContainerFacts, HealthCheck};
pub use loaders::RunningLoader;
pub use node::dgx_release;
pub use ray::{RayVariables, Raylet};
pub use script::{MOST_SCRIPT_BYTES, OpenScript};
pub use systemctl::{OF_OTHERS, PROPERTIES, SystemdState, UnitState, unit_states};
pub use units::{UnitFacts, unit};

/// A fact, or why it is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact<T> {
    /// It was determined.
    Is(T),
    /// This node has no such thing.
    Absent,
    /// It could not be determined, for this reason.
    Unknown(String),
}

/// The severity of a finding, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The check passed.
    Ok,
    /// Not checked; the text has the reason.
    Unknown,
    /// It fails together with another fault.
    Warning,
    /// It will fail.
    Problem,
}

impl Severity {
    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unknown => "unknown",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }
}

/// The result of one check of one subject.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The name of the check: `restart_policy`.
    pub check: &'static str,
    /// The worst consequence.
    pub severity: Severity,
    /// The subject, if there are several: `container chat`, `unit chat.service`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// The state, and its consequence.
    pub text: String,
    /// What a person can do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
    /// The entry of the advice that it is from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The source of that entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// How sure that entry is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certainty: Option<advice::AdviceCertainty>,
}

/// The kernel settings of a node beside those of its profile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProfileMisfits {
    /// The profile's name.
    pub profile: String,
    /// The settings that differ.
    pub misfits: Vec<Misfit>,
    /// Engines that the profile's values would keep from starting now, a sentence each.
    pub costs: Vec<String>,
}

/// A kernel setting that differs from the node's profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// The sysctl: `vm.swappiness`.
    pub name: Sysctl,
    /// The current value.
    pub now: u32,
    /// The value of the profile.
    pub wanted: u32,
}

/// An engine that the daemon watches.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
pub struct EngineFacts {
    /// Its name in the API.
    pub name: String,
    /// Why its key is withheld from its queries, if it is.
    #[serde(default)]
    pub key_withheld: Option<String>,
    /// The container that its control group names, and that Docker does not confirm.
    #[serde(default)]
    pub claimed_container: Option<String>,
    /// Why the own runtime of a user, which may run its container, cannot be queried.
    #[serde(default)]
    pub container_runtime_error: Option<String>,
}

/// Something that the rules need and the program cannot do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnmetNeed {
    /// What cannot be done.
    pub what: String,
    /// What a person can do about it.
    pub remedy: String,
    /// Whether it is needed now, or only in mode enforce.
    pub is_wanted_now: bool,
}

/// Input of all checks.
#[derive(Clone, Debug)]
pub struct DoctorFacts {
    /// What is known against versions and options.
    pub advice: AdviceTable,
    /// The size of a page.
    pub page_bytes: u64,
    /// `CmaFree` beyond `CmaTotal`: memory that belongs to no CMA area. 0 is usual.
    pub hidden_cma_bytes: Fact<u64>,
    /// The release of DGX OS.
    pub dgx_os: Fact<String>,
    /// `MemTotal` and `SwapTotal`, in bytes.
    pub memory: Fact<(u64, u64)>,
    /// The release of the kernel: `6.17.0-1004-nvidia`.
    pub kernel: Fact<String>,
    /// `/proc/driver/nvidia/version`.
    pub driver: Fact<String>,
    /// Whether the kernel reports memory pressure (PSI).
    pub has_pressure: Fact<bool>,
    /// Events in the kernel log of this boot.
    pub kernel_log: Fact<Vec<Event>>,
    /// The settings that differ from the node's profile.
    pub settings: Fact<ProfileMisfits>,
    /// What the rules need and the program cannot do.
    pub lacks: Fact<Vec<UnmetNeed>>,
    /// Rules inside the binary that the configuration leaves out.
    pub rules_off: Fact<Vec<ShippedRule>>,
    /// Whether a daemon responds.
    pub has_daemon: Fact<bool>,
    /// The engines that the daemon watches. Absent without a daemon.
    pub engines: Fact<Vec<EngineFacts>>,
    /// How running engines read their weights.
    pub loaders: Fact<Vec<RunningLoader>>,
    /// Ray's processes with a memory monitor.
    pub raylets: Fact<Vec<Raylet>>,
    /// Docker's containers.
    pub containers: Fact<Vec<ContainerFacts>>,
    /// systemd units that run engines, and the names of all units.
    pub units: Fact<(Vec<UnitFacts>, std::collections::BTreeSet<String>)>,
    /// The answer of the API server of Kubernetes. Absent without the section `kubernetes`.
    pub cluster: Fact<ClusterFacts>,
    /// The state of these units in systemd. Absent if systemd does not run.
    pub systemd: Fact<SystemdState>,
}

/// All findings, the most severe first. Checks that pass have one too.
pub fn examine(facts: &DoctorFacts) -> Vec<Finding> {
    let mut findings = node::examine(facts);
    findings.extend(engines::examine(facts));
    findings.extend(loaders::examine(facts));
    findings.extend(advice::examine(facts));
    findings.extend(ray::examine(facts));
    findings.extend(containers::examine(facts));
    findings.extend(units::examine(facts));
    findings.extend(cluster::examine(facts));
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings
}

impl Finding {
    fn new(check: &'static str, severity: Severity, text: impl Into<String>) -> Self {
        let text = text.into();
        let (id, source) = (None, None);
        Self { check, severity, subject: None, text, fix: None, id, source, certainty: None }
    }

    fn ok(check: &'static str, text: impl Into<String>) -> Self {
        Self::new(check, Severity::Ok, text)
    }

    fn of(self, subject: &str) -> Self {
        Self { subject: Some(subject.to_owned()), ..self }
    }

    fn fix(self, fix: impl Into<String>) -> Self {
        Self { fix: Some(fix.into()), ..self }
    }
}

/// What a socket that cannot be used keeps from being done, where it keeps containers unknown. Both
/// are one finding.
fn lack_of_socket(facts: &DoctorFacts) -> Option<&UnmetNeed> {
    let (Fact::Unknown(why), Fact::Is(lacks)) = (&facts.containers, &facts.lacks) else {
        return None;
    };
    let socket = why.split(": ").next().filter(|socket| socket.starts_with('/'))?;
    lacks.iter().find(|lack| lack.what.contains(socket))
}

/// The value, or a finding with the reason why there is none.
fn known<'f, T>(
    check: &'static str,
    fact: &'f Fact<T>,
    absent: &str,
) -> Result<&'f T, Box<Finding>> {
    match fact {
        Fact::Is(value) => Ok(value),
        Fact::Absent => Err(Box::new(Finding::ok(check, absent))),
        Fact::Unknown(why) => Err(Box::new(Finding::new(check, Severity::Unknown, why))),
    }
}
