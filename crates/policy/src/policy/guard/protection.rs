//! What no action may touch.

use std::fmt;
use std::sync::Arc;

use glob::Pattern;
use promql_rules::Labels;
use serde::{Deserialize, Serialize};

use crate::model::{EngineTarget, Supervisor, Target, Workload};
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
    /// Names of processes.
    #[serde(default)]
    pub processes: Vec<Glob>,
    /// Names of systemd units.
    #[serde(default)]
    pub units: Vec<Glob>,
    /// Names and ids of containers.
    #[serde(default)]
    pub containers: Vec<Glob>,
    /// Labels of the alert that names the target.
    #[serde(default)]
    pub labels: Vec<(Arc<str>, Glob)>,
}

/// Labels by which alerts name what they are about.
const PROCESS_LABELS: [&str; 2] = ["process", "comm"];
const UNIT_LABELS: [&str; 1] = ["unit"];
const CONTAINER_LABELS: [&str; 2] = ["container", "container_name"];

/// The traits of a target. `None`: unknown, so that it may match anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Traits {
    processes: Option<Vec<String>>,
    units: Option<Vec<String>>,
    containers: Option<Vec<String>>,
}

impl Protected {
    /// Whether a target must not be touched: it is protected, or it is unknown that it is not.
    pub fn protects(&self, target: &Target, labels: &Labels) -> bool {
        let traits = match target {
            Target::Node | Target::Settings { .. } => return false,
            Target::Cgroup { path } => Traits::of_cgroup(path, labels),
            Target::Engine(engine) => Traits::of_engine(engine, labels),
            Target::Workload(held) => Traits::of_held(held),
        };
        let by_label = self.labels.iter().any(|(name, glob)| {
            labels.iter().any(|(known, value)| known == name && glob.matches(value))
        });
        by_label
            || may_match(&self.processes, traits.processes.as_deref())
            || may_match(&self.units, traits.units.as_deref())
            || may_match(&self.containers, traits.containers.as_deref())
    }
}

fn may_match(globs: &[Glob], names: Option<&[String]>) -> bool {
    match names {
        None => !globs.is_empty(),
        Some(names) => globs.iter().any(|glob| names.iter().any(|name| glob.matches(name))),
    }
}

impl Traits {
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
        Self {
            processes: (!processes.is_empty()).then_some(processes),
            units: is_inside_one.then_some(all_units),
            containers: (is_inside_one && (container.is_none() || named)).then_some(containers),
        }
    }

    /// What has ended has no processes, and its name says what it is.
    fn of_held(held: &Workload) -> Self {
        let (name, id) = (held.name.to_string(), held.id.to_string());
        let (units, containers) = match held.supervisor {
            Supervisor::Docker | Supervisor::DockerOfUser(_) => (Vec::new(), vec![name, id]),
            Supervisor::Systemd | Supervisor::SystemdOfUser(_) => (vec![name], Vec::new()),
            Supervisor::Cri => (Vec::new(), vec![name, id]),
        };
        Self { processes: Some(Vec::new()), units: Some(units), containers: Some(containers) }
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
            return Self { processes: Some(processes), ..Self::default() };
        };
        let mut units = labelled(&UNIT_LABELS, labels);
        units.extend(system_units(path).map(str::to_owned));
        let mut containers = labelled(&CONTAINER_LABELS, labels);
        containers.extend(engine.container_name.iter().map(|name| name.to_string()));
        let is_of_user = path.starts_with("/user.slice/");
        let is_unconfirmed = engine.claimed_container.is_some() && !is_of_user;
        let is_nameless = is_unconfirmed || engine.container.is_some() && containers.is_empty();
        containers.extend(engine.container.iter().map(|container| container.to_string()));
        let containers = (!is_nameless).then_some(containers);
        Self { processes: Some(processes), units: Some(units), containers }
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
