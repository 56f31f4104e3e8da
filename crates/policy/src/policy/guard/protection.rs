//! What no action may touch.

use std::fmt;
use std::sync::Arc;

use glob::Pattern;
use promql_rules::Labels;
use serde::{Deserialize, Serialize};

use crate::model::{EngineTarget, Pod, Proof, Supervisor, Target, Workload};
use crate::parse::container::is_of_pods;
use crate::parse::process::system_units;

/// A pattern with `*`, `?` and `[…]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Glob(Pattern);

impl Glob {
    /// Whether it matches the whole text.
    pub fn matches(&self, text: &str) -> bool {
        self.0.matches(text)
    }
}

impl TryFrom<String> for Glob {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if text.is_empty() {
            return Err("an empty pattern protects nothing".to_owned());
        }
        Pattern::new(&text).map(Self).map_err(|error| format!("\"{text}\" is no pattern: {error}"))
    }
}

impl From<Glob> for String {
    fn from(glob: Glob) -> Self {
        glob.0.as_str().to_owned()
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str())
    }
}

/// What is protected. The node itself is not a thing that could be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Protected {
    /// Command names of processes, as in `/proc/PID/comm`.
    #[serde(default)]
    pub processes: Vec<Glob>,
    /// Names of systemd units.
    #[serde(default)]
    pub units: Vec<Glob>,
    /// Names and ids of containers.
    #[serde(default)]
    pub containers: Vec<Glob>,
    /// Namespaces of pods.
    #[serde(default)]
    pub namespaces: Vec<Glob>,
    /// Labels of pods: the name, and a pattern of the value.
    #[serde(default)]
    pub pod_labels: Vec<(Arc<str>, Glob)>,
    /// Labels of the alert that names the target.
    #[serde(default)]
    pub labels: Vec<(Arc<str>, Glob)>,
}

/// The namespace that is protected without a word.
const KUBE_SYSTEM: &str = "kube-system";

/// Labels by which alerts name what they are about.
const PROCESS_LABELS: [&str; 2] = ["process", "comm"];
const UNIT_LABELS: [&str; 1] = ["unit"];
const CONTAINER_LABELS: [&str; 2] = ["container", "container_name"];
const NAMESPACE_LABELS: [&str; 1] = ["namespace"];

/// The traits of a target. `None`: unknown, so that it may match anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct TargetTraits {
    processes: Option<Vec<String>>,
    units: Option<Vec<String>>,
    containers: Option<Vec<String>>,
    /// Of its pods; empty: it is in none.
    namespaces: Option<Vec<String>>,
    pod_labels: Option<Vec<(Arc<str>, Arc<str>)>>,
}

impl Protected {
    /// Where nothing is written: the namespace of Kubernetes itself.
    pub fn usual() -> Self {
        let namespaces = Glob::try_from(KUBE_SYSTEM.to_owned()).into_iter().collect();
        Self { namespaces, ..Self::default() }
    }

    /// Whether namespaces are protected beyond those that are without a word. Without a control
    /// group an engine may be in any, and most machines have none.
    fn has_own_namespaces(&self) -> bool {
        self.namespaces.iter().any(|glob| glob.0.as_str() != KUBE_SYSTEM)
    }

    /// Whether a target must not be touched: it is protected, or it is unknown that it is not.
    pub fn protects(&self, target: &Target, labels: &Labels) -> bool {
        let traits = match target {
            Target::Node | Target::Settings { .. } => return false,
            Target::Cgroup { path } => TargetTraits::of_cgroup(path, labels),
            Target::Engine(engine) => TargetTraits::of_engine(engine, labels),
            Target::Workload(held) => TargetTraits::of_held(held),
        };
        let by_label = self.labels.iter().any(|(name, glob)| {
            labels.iter().any(|(known, value)| known == name && glob.matches(value))
        });
        let has_label = |known: &[(Arc<str>, Arc<str>)]| {
            let mut own = self.pod_labels.iter();
            own.any(|(key, glob)| known.iter().any(|(its, of)| its == key && glob.matches(of)))
        };
        by_label
            || (traits.namespaces.is_some() || self.has_own_namespaces() || !is_lost(target))
                && may_match(&self.namespaces, traits.namespaces.as_deref())
            || traits.pod_labels.as_deref().map_or(!self.pod_labels.is_empty(), has_label)
            || may_match(&self.processes, traits.processes.as_deref())
            || may_match(&self.units, traits.units.as_deref())
            || may_match(&self.containers, traits.containers.as_deref())
    }
}

/// Whether not even a control group is known of an engine.
fn is_lost(target: &Target) -> bool {
    matches!(target, Target::Engine(engine) if engine.cgroup.is_none())
}

fn may_match(globs: &[Glob], names: Option<&[String]>) -> bool {
    match names {
        None => !globs.is_empty(),
        Some(names) => globs.iter().any(|glob| names.iter().any(|name| glob.matches(name))),
    }
}

impl TargetTraits {
    /// A service or a container is itself; a slice above them has others, which are unknown.
    fn of_cgroup(path: &str, labels: &Labels) -> Self {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let units: Vec<&str> = parts.iter().copied().filter(|part| is_unit(part)).collect();
        let container = parts.iter().rev().find_map(|part| container_id(part));
        let is_inside_one =
            container.is_some() || parts.iter().any(|part| part.ends_with(".service"));
        let processes = labelled(&PROCESS_LABELS, labels);
        let mut all_units = labelled(&UNIT_LABELS, labels);
        all_units.extend(units.iter().map(|unit| (*unit).to_owned()));
        let mut containers = labelled(&CONTAINER_LABELS, labels);
        // A container's name is not in its path: without a label it may be any.
        let named = !containers.is_empty();
        containers.extend(container.map(str::to_owned));
        // Which pod a path is of, only the runtime knows.
        let namespaces = labelled(&NAMESPACE_LABELS, labels);
        let is_in_pod = is_of_pods(path);
        Self {
            processes: (!processes.is_empty()).then_some(processes),
            units: is_inside_one.then_some(all_units),
            containers: (is_inside_one && (container.is_none() || named)).then_some(containers),
            namespaces: (!is_in_pod || is_inside_one && !namespaces.is_empty())
                .then_some(namespaces),
            pod_labels: (!is_in_pod).then(Vec::new),
        }
    }

    /// What has ended has no processes, and its name says what it is.
    fn of_held(held: &Workload) -> Self {
        let (name, id) = (held.name.to_string(), held.id.to_string());
        let of_pod = held.name.split_once('/').map(|(namespace, _)| namespace.to_owned());
        let is_in_pod = held.supervisor == Supervisor::Cri;
        let (units, containers) = match held.supervisor {
            Supervisor::Docker | Supervisor::DockerOfUser(_) => (Vec::new(), vec![name, id]),
            Supervisor::Systemd => (vec![name], Vec::new()),
            Supervisor::SystemdOfUser(user) => {
                (vec![name, format!("user@{user}.service")], Vec::new())
            }
            Supervisor::Cri => (Vec::new(), vec![name, id]),
        };
        Self {
            processes: Some(Vec::new()),
            units: Some(units),
            containers: Some(containers),
            namespaces: if is_in_pod { of_pod.map(|one| vec![one]) } else { Some(Vec::new()) },
            pod_labels: (!is_in_pod).then(Vec::new),
        }
    }

    /// Which processes it has is known, and so is everything that they are in, unless their control
    /// group could not be read. Of its path only what no user can choose counts, or a hog would
    /// hide behind the name of a protected unit. An unconfirmed container may be any,
    /// unless a user has named it.
    fn of_engine(engine: &EngineTarget, labels: &Labels) -> Self {
        let mut processes = labelled(&PROCESS_LABELS, labels);
        processes.extend(engine.comms.iter().map(|comm| comm.to_string()));
        processes.push(engine.name.to_string());
        let Some(path) = engine.cgroup.as_deref() else {
            return Self { processes: Some(processes), ..Self::of_pod(engine, labels, true) };
        };
        let mut units = labelled(&UNIT_LABELS, labels);
        units.extend(system_units(path).map(str::to_owned));
        units.extend(engine.client_unit.iter().map(|unit| unit.to_string()));
        let mut containers = labelled(&CONTAINER_LABELS, labels);
        containers.extend(engine.container_name.iter().map(|name| name.to_string()));
        let is_of_user = path.starts_with("/user.slice/");
        let is_unconfirmed = engine.claimed_container.is_some() && !is_of_user;
        let is_nameless = is_unconfirmed || engine.container.is_some() && containers.is_empty();
        containers.extend(engine.container.iter().map(|container| container.to_string()));
        let containers = (!is_nameless).then_some(containers);
        // A user's own groups hold no pod.
        let may_be_in_pod = engine.proof == Proof::PodContainer
            || engine.proof == Proof::Claimed && is_of_pods(path) && !is_of_user;
        let of_pod = Self::of_pod(engine, labels, may_be_in_pod);
        Self { processes: Some(processes), units: Some(units), containers, ..of_pod }
    }

    /// Of its pod alone. `may_be_in_one`: whether it may be in a pod that no runtime has confirmed.
    fn of_pod(engine: &EngineTarget, labels: &Labels, may_be_in_one: bool) -> Self {
        let mut namespaces = labelled(&NAMESPACE_LABELS, labels);
        let known = engine.pod.as_deref();
        namespaces.extend(known.map(|pod| pod.namespace.to_string()));
        let is_known = known.is_some() || !may_be_in_one;
        let pairs = |pod: &Pod| {
            let labels = pod.labels.as_ref()?.iter();
            Some(labels.map(|(key, value)| (Arc::clone(key), Arc::clone(value))).collect())
        };
        Self {
            namespaces: is_known.then_some(namespaces),
            pod_labels: if is_known { known.map_or(Some(Vec::new()), pairs) } else { None },
            ..Self::default()
        }
    }
}

fn labelled(names: &[&str], labels: &Labels) -> Vec<String> {
    let named = labels.iter().filter(|(name, _)| names.contains(&&**name));
    named.map(|(_, value)| value.to_string()).collect()
}

fn is_unit(part: &str) -> bool {
    [".service", ".scope", ".slice"].iter().any(|suffix| part.ends_with(suffix))
}

/// The id in `docker-ID.scope`, `cri-containerd-ID.scope`, or a folder that is one.
fn container_id(part: &str) -> Option<&str> {
    let name = part.strip_suffix(".scope").unwrap_or(part);
    let id = name.rsplit('-').next().unwrap_or(name);
    let is_id = id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id.then_some(id)
}
