//! The target of an action.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{
    ContainerRuntime, EngineKeys, EngineKind, EngineSeen, Pod, ProcessId, Proof, ReadOrder,
    Supervisor, UserUnit, Workload,
};

/// `PATH_MAX` of Linux, in bytes.
const LONGEST_PATH: usize = 4096;

/// The target of an action. The executor verifies it and never chooses.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Target {
    /// The whole machine.
    #[default]
    Node,
    /// A control group and those below it.
    Cgroup {
        /// Path below the root of the hierarchy: `/system.slice/vllm.service`.
        path: Arc<str>,
    },
    /// Settings of the kernel; a setting is reserved for one remedy at a time.
    Settings {
        /// `vm.swappiness`, `read_ahead_kb of nvme0n1`, `read_ahead_kb of /models`; sorted.
        names: Vec<Arc<str>>,
    },
    /// An inference engine.
    Engine(Box<EngineTarget>),
    /// A container or a unit to start.
    Workload(Box<Workload>),
}

/// An engine at the time of the decision. Other processes, and files outside of the patterns, are
/// left alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EngineTarget {
    /// Name of the engine.
    pub name: Arc<str>,
    /// Its processes, the main one first.
    #[serde(default)]
    pub processes: Vec<ProcessId>,
    /// Names of those processes.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub comms: BTreeSet<Arc<str>>,
    /// The model files that may be touched: absolute paths or globs, as the engine itself sees
    /// them (in a container, below `/proc/PID/root`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub model_files: Vec<Arc<str>>,
    /// Its control group, below the root of its hierarchy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<Arc<str>>,
    /// Id of its container, confirmed by the container's supervisor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<Arc<str>>,
    /// Id of the container that its control group names, not confirmed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimed_container: Option<Arc<str>>,
    /// Name of that container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_name: Option<Arc<str>>,
    /// The runtime that reports its container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<ContainerRuntime>,
    /// Its pod, confirmed by the container's runtime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Arc<Pod>>,
    /// The systemd unit that it runs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<Arc<str>>,
    /// The service of a user's own systemd that it runs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_unit: Option<UserUnit>,
    /// The service of the system whose `docker run` runs its container in the foreground.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_unit: Option<Arc<str>>,
    /// Kind of the engine. A target has a `kind` of its own.
    #[serde(default, rename = "engine_kind")]
    pub kind: EngineKind,
    /// URL of its health check; other requests go to the same host and port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_url: Option<Arc<str>>,
    /// The network namespace of that URL, if it is not our own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_network: Option<Arc<str>>,
    /// Locations of the keys that it requires.
    #[serde(default, skip_serializing_if = "EngineKeys::is_empty")]
    pub keys: EngineKeys,
    /// What proves its container or unit.
    #[serde(default, skip_serializing_if = "Proof::is_claimed")]
    pub proof: Proof,
    /// Whether too much was read for nothing when it was last read ahead of.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub is_prefetch_vain: bool,
    /// In which order it has read its files, where their names do not show it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub read_order: Vec<ReadOrder>,
}

impl From<&EngineSeen> for EngineTarget {
    fn from(seen: &EngineSeen) -> Self {
        Self {
            name: Arc::clone(&seen.name),
            processes: seen.processes.iter().map(|process| process.id).collect(),
            comms: seen.processes.iter().map(|process| Arc::clone(&process.comm)).collect(),
            model_files: seen.model_files.clone(),
            cgroup: seen.cgroup.clone(),
            container: seen.container.clone(),
            claimed_container: seen.claimed_container.clone(),
            container_name: seen.container_name.clone(),
            runtime: seen.runtime.clone(),
            pod: seen.pod.clone(),
            unit: seen.unit.clone(),
            user_unit: seen.user_unit.clone(),
            client_unit: seen.client_unit.clone(),
            kind: seen.kind,
            health_url: seen.health_url.clone(),
            health_network: seen.health_network.clone(),
            keys: seen.keys.clone(),
            proof: seen.proof,
            is_prefetch_vain: false,
            read_order: Vec::new(),
        }
    }
}

impl EngineTarget {
    /// The service of the system that it runs in, outside of containers.
    pub fn service(&self) -> Option<&Arc<str>> {
        let is_contained = self.container.is_some() || self.claimed_container.is_some();
        let unit = self.unit.as_ref().filter(|_| !is_contained && self.user_unit.is_none());
        unit.filter(|unit| unit.ends_with(".service"))
    }

    /// The service of the system that starts it again if its `Restart=` says so: the one that it
    /// runs in, or the one that runs its container.
    pub fn starting_service(&self) -> Option<&str> {
        self.service().map(|unit| &**unit).or(self.client_unit.as_deref())
    }

    /// The loading processes of the engine, without those that serve.
    pub fn loading(seen: &EngineSeen, serving: &BTreeSet<ProcessId>) -> Self {
        let mut seen = seen.clone();
        let server = seen.server;
        seen.processes.retain(|its| its.id == server || !serving.contains(&its.id));
        Self::from(&seen)
    }
}

impl Target {
    /// Whether the target is well-formed.
    pub fn is_possible(&self) -> bool {
        match self {
            Self::Node => true,
            Self::Cgroup { path } => Self::is_cgroup_path(path),
            Self::Settings { names } => !names.is_empty(),
            Self::Engine(engine) => !engine.processes.is_empty(),
            Self::Workload(workload) => !workload.id.is_empty(),
        }
    }

    /// That container or unit.
    pub fn held(supervisor: Supervisor, name: &str, id: &str) -> Self {
        let (name, id) = (Arc::from(name), Arc::from(id));
        Self::Workload(Box::new(Workload { supervisor, name, id }))
    }

    /// These settings, in order.
    pub fn settings(names: impl IntoIterator<Item = String>) -> Self {
        let mut names: Vec<Arc<str>> = names.into_iter().map(Arc::from).collect();
        names.sort();
        names.dedup();
        Self::Settings { names }
    }

    /// A setting of both targets, if there is one.
    pub fn shared_setting<'t>(&'t self, other: &Self) -> Option<&'t str> {
        let (Self::Settings { names }, Self::Settings { names: theirs }) = (self, other) else {
            return None;
        };
        names.iter().find(|name| theirs.contains(name)).map(|name| &**name)
    }

    /// Whether a text can be a control group's path: from the root of its hierarchy, and never out
    /// of it.
    pub fn is_cgroup_path(path: &str) -> bool {
        let Some(below) = path.strip_prefix('/') else { return false };
        let is_name = |part: &str| !matches!(part, "" | "." | "..");
        path.len() <= LONGEST_PATH
            && !path.chars().any(char::is_control)
            && (below.is_empty() || below.split('/').all(is_name))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node => f.write_str("node"),
            Self::Cgroup { path } => write!(f, "cgroup {path}"),
            Self::Engine(engine) if engine.name.is_empty() => f.write_str("no engine"),
            Self::Engine(engine) => write!(f, "engine {}", engine.name),
            Self::Settings { names } => write!(f, "settings {}", names.join(", ")),
            Self::Workload(workload) => workload.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::SecretSource;

    #[test]
    fn a_target_is_read_back_as_it_was_written() {
        let engine = EngineTarget {
            name: "llm".into(),
            processes: vec![ProcessId { pid: 7, start_ticks: 9 }],
            kind: EngineKind::Sglang,
            health_url: Some("http://127.0.0.1:30000/ready".into()),
            health_network: Some("net:[7]".into()),
            keys: EngineKeys {
                admin: Some(SecretSource::File("/k".into())),
                ..EngineKeys::default()
            },
            ..EngineTarget::default()
        };
        for target in [Target::Node, Target::Engine(Box::new(engine))] {
            let text = serde_json::to_string(&target).unwrap();
            assert_eq!(serde_json::from_str::<Target>(&text).unwrap(), target, "{text}");
        }
        let of_before = r#"{"kind":"engine","name":"a","processes":[]}"#;
        let Target::Engine(read) = serde_json::from_str(of_before).unwrap() else { panic!() };
        assert_eq!(*read, EngineTarget { name: "a".into(), ..EngineTarget::default() });
    }
}
