//! What Kubernetes knows of this machine, its node, and what is changed in it.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::names::named;

named! {
    /// What a taint does to pods that do not tolerate it. `NoExecute` is not among them: it ends
    /// pods that run.
    #[derive(Default)]
    pub enum TaintEffect {
        /// They are not placed on the node.
        #[default]
        NoSchedule = "NoSchedule",
        /// They are placed on other nodes if that is possible.
        PreferNoSchedule = "PreferNoSchedule",
    }

    /// What is done in Kubernetes before a reboot.
    #[derive(Default)]
    pub enum DrainMode {
        /// The node stays as it is.
        #[default]
        None = "none",
        /// The node is cordoned.
        Cordon = "cordon",
        /// The node is cordoned, and the pods of its engines are evicted.
        Evict = "evict",
    }
}

/// A taint of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Taint {
    /// Its key: `umawarden.dev/memory-leaked`.
    pub key: String,
    /// Its value; mostly none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// What Kubernetes does with pods that do not tolerate the taint.
    pub effect: TaintEffect,
}

/// As kubectl writes it: `KEY=VALUE:EFFECT`.
impl fmt::Display for Taint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)?;
        self.value.iter().try_for_each(|value| write!(f, "={value}"))?;
        write!(f, ":{}", self.effect)
    }
}

/// What is done to the node before a reboot, and undone after it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeDrain {
    /// Where the API server is.
    pub api: KubernetesAccess,
    /// Whether the pods of engines are evicted.
    pub evict: bool,
    /// How long the reboot waits for that, and for the API server.
    pub for_at_most: Duration,
}

/// Where the API server of Kubernetes is, and which node this machine is there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KubernetesAccess {
    /// The node's name; `None`: `NODE_NAME` of the environment, else the name of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// A kubeconfig file; `None`: the service account of the pod that umawarden runs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubeconfig: Option<PathBuf>,
}

/// The DaemonSet whose pod umawarden runs in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonSetName {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
}

impl fmt::Display for DaemonSetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A condition of the node, true while one of some alerts fires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCondition {
    /// Its type: `UnifiedMemoryLeaked`.
    pub kind: Arc<str>,
    /// The names of the alerts.
    pub alerts: Vec<Arc<str>>,
}

/// The section `kubernetes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubernetesSettings {
    /// The API server and the node.
    pub access: KubernetesAccess,
    /// The DaemonSet that replaces the pod of umawarden; `None`: nothing is known to follow it.
    pub daemon_set: Option<DaemonSetName>,
    /// The conditions that are set.
    pub conditions: Vec<NodeCondition>,
    /// Whether events of this node and of its engines' pods are written.
    pub events: bool,
    /// Whether the node offers the resource [`Self::RESOURCE`].
    pub extended_resource: bool,
    /// What is done before a reboot.
    pub drain: DrainMode,
    /// How long a reboot waits for that.
    pub drain_for: Duration,
}

impl KubernetesSettings {
    /// The memory that pods can have, in MiB.
    pub const RESOURCE: &'static str = "umawarden.dev/unified-memory";

    /// How long a reboot waits by default.
    pub const DRAIN_FOR: Duration = Duration::from_secs(600);

    /// The conditions by default, with the shipped rules that set them.
    pub fn default_conditions() -> Vec<NodeCondition> {
        let condition = |kind: &str, alerts: &[&str]| NodeCondition {
            kind: kind.into(),
            alerts: alerts.iter().map(|alert| Arc::from(*alert)).collect(),
        };
        vec![
            condition(
                "UnifiedMemoryPressure",
                &["MemoryAtItsEnd", "MemoryPressureFull", "MemoryCollapse"],
            ),
            condition("UnifiedMemoryLeaked", &["MemoryLeaked"]),
            condition("GpuDriverWedged", &["DriverWedged", "GpuLost", "GpuLostWithoutXid"]),
        ]
    }
}

impl Default for KubernetesSettings {
    fn default() -> Self {
        Self {
            access: KubernetesAccess::default(),
            daemon_set: None,
            conditions: Self::default_conditions(),
            events: true,
            extended_resource: false,
            drain: DrainMode::default(),
            drain_for: Self::DRAIN_FOR,
        }
    }
}
