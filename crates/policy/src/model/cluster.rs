//! The nodes of a cluster: their addresses, queries and responses.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::names::named;
use super::{
    CLUSTER_LABEL, EXPORTED_NODE_LABEL, Moment, NODE_LABEL, NodeHealthLevel, PeerAddress, Reading,
    Schema, SeriesKey,
};

/// Most peers that a node queries.
pub const MOST_PEERS: usize = 64;
/// With more peers, querying a Prometheus costs less than querying each other.
pub const PEERS_ASKED_CHEAPLY: usize = 16;
/// Most nodes in the response of a Prometheus.
pub const MOST_NODES: usize = 1_000;
/// Series of one node that are kept.
pub const MOST_SERIES_OF_A_NODE: usize = 150;

/// Name of this node in its cluster, and how long values of others stay known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterNames {
    /// The cluster, label `cluster`.
    pub cluster: Arc<str>,
    /// This node, label `node`.
    pub node: Arc<str>,
    /// Age at which values of a node become unknown.
    pub known_for: Duration,
}

/// Discovery and queries of the nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterSettings {
    /// The cluster's name.
    pub name: Arc<str>,
    /// This node's; `None`: its host name.
    pub node: Option<Arc<str>>,
    /// Nodes that are named.
    pub peers: Vec<PeerAddress>,
    /// Names whose every address is a node.
    pub dns: Vec<PeerAddress>,
    /// Files in Prometheus' file_sd format.
    pub files: Vec<PathBuf>,
    /// A Prometheus that is queried instead of the nodes.
    pub prometheus: Option<PrometheusServer>,
    /// Time between two queries.
    pub interval: Duration,
    /// Longest time of a query.
    pub timeout: Duration,
    /// The path of a node's metrics.
    pub metrics_path: String,
    /// TLS and credentials for the nodes.
    pub access: Access,
}

impl ClusterSettings {
    /// How long values of a node stay known: three intervals, at least 5 s.
    pub fn known_for(&self) -> Duration {
        self.interval.saturating_mul(3).max(Duration::from_secs(5))
    }

    /// Whether any discovery of other nodes is configured.
    pub fn has_peers(&self) -> bool {
        !(self.peers.is_empty() && self.dns.is_empty() && self.files.is_empty())
    }
}

/// A Prometheus server, or one with its HTTP API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrometheusServer {
    /// `http://host:port`, or `https://`, with the path before `/api/v1`.
    pub url: String,
    /// The label that identifies nodes.
    pub node_label: Arc<str>,
    /// Matchers that all queries carry, as in `job="umawarden"`.
    pub matchers: Option<Arc<str>>,
    /// TLS and credentials for the server.
    pub access: Access,
}

/// TLS and credentials. Files are read when they are needed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Certificates, if TLS is configured.
    pub tls: Option<TlsFiles>,
    /// Credentials of this program.
    pub credentials: Option<Credentials>,
}

/// Trusted certificates and the client certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// File (PEM) of the trusted certificates; `None`: those of the system.
    pub ca: Option<PathBuf>,
    /// This program's certificate and its key (PEM).
    pub own: Option<(PathBuf, PathBuf)>,
    /// Name in the server's certificate, if it differs from the host's.
    pub server_name: Option<String>,
}

impl TlsFiles {
    /// Trusts the certificates of that file only; `None`: those of the system.
    pub fn trusting(ca: Option<PathBuf>) -> Self {
        Self { ca, ..Self::default() }
    }
}

/// Credentials for a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// A token in a file.
    Bearer(PathBuf),
    /// A name, and a password in a file.
    Basic {
        /// The user's name.
        username: String,
        /// File of the password.
        password: PathBuf,
    },
}

/// The series with the labels of its node and cluster.
pub fn series_of_node(key: &SeriesKey, cluster: &Arc<str>, node: &Arc<str>) -> SeriesKey {
    let mut labels: Vec<(Arc<str>, Arc<str>)> = key
        .labels
        .iter()
        .filter(|(name, _)| ![CLUSTER_LABEL, EXPORTED_NODE_LABEL].contains(&&**name))
        .map(|(name, value)| match &**name {
            NODE_LABEL => (Arc::from(EXPORTED_NODE_LABEL), Arc::clone(value)),
            _ => (Arc::clone(name), Arc::clone(value)),
        })
        .collect();
    labels.push((Arc::from(CLUSTER_LABEL), Arc::clone(cluster)));
    labels.push((Arc::from(NODE_LABEL), Arc::clone(node)));
    labels.sort();
    SeriesKey { name: Arc::clone(&key.name), labels: labels.into() }
}

/// Reports of other nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterReadings {
    /// A report for each node that has one.
    pub nodes: Vec<NodeReadings>,
}

impl ClusterReadings {
    /// Number of values; at least the number of reports.
    pub fn values(&self) -> usize {
        let one = |node: &NodeReadings| match &node.news {
            NodeNews::Answered { schema, values } => schema.series.len().max(values.len()).max(1),
            NodeNews::Silent { schema, .. } => schema.series.len().max(1),
            NodeNews::Gone => 1,
        };
        self.nodes.iter().map(one).sum()
    }
}

/// A report of one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeReadings {
    /// Its name, label `node`.
    pub node: Arc<str>,
    /// The report.
    pub news: NodeNews,
    /// Duration of the query.
    pub took: Duration,
    /// Number of rejected values and series, for each reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<(Rejection, u64)>,
    /// The URL of its page, where it is known to have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<Arc<str>>,
}

impl NodeReadings {
    /// A report without rejected values.
    pub fn new(node: Arc<str>, news: NodeNews, took: Duration) -> Self {
        Self { node, news, took, refused: Vec::new(), url: None }
    }
}

/// What is reported of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum NodeNews {
    /// The readings of its last response.
    Answered {
        /// Which series the values belong to, those of the node that are known; with the labels
        /// `cluster` and `node`. The same `Arc` while nothing changes.
        schema: Arc<Schema>,
        /// One reading for each; `Unsupported` for a series that has ended, `Failed` where what
        /// the node says cannot be.
        values: Vec<Reading<f64>>,
    },
    /// It has not answered.
    Silent {
        /// The error.
        why: Arc<str>,
        /// Series that are unknown now.
        schema: Arc<Schema>,
    },
    /// It is no node of the cluster any more, or is this one.
    Gone,
}

named! {
    /// Why a value or series of a node was rejected.
    pub enum Rejection {
        /// A value that the series cannot have.
        Impossible = "impossible",
        /// The same series twice in one answer.
        Twice = "twice",
        /// More series than are kept of a node.
        TooMany = "too_many",
        /// Labels that are too long.
        TooLong = "too_long",
    }
}

/// The status of another node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeStatus {
    /// Value of its label `node`.
    pub node: Arc<str>,
    /// Why it is unknown, if it is.
    pub unknown: Option<Arc<str>>,
    /// When it has answered last.
    pub answered: Option<Moment>,
    /// Duration of the last query.
    pub took: Duration,
    /// Series that are kept of it.
    pub series: usize,
    /// Memory of the node by its last answer, as far as it is known.
    pub memory: NodeMemory,
    /// Whether it is well by its last answer; `None`: it does not report that.
    pub level: Option<NodeHealthLevel>,
    /// The URL of its page, where it is known to have one.
    pub url: Option<Arc<str>>,
}

/// The memory of one node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NodeMemory {
    /// `uma_memory_total_bytes`.
    pub total: Reading<f64>,
    /// Available memory, as the kernel estimates it.
    pub available: Reading<f64>,
}

/// The status of all nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterStatus {
    /// Names of this node and of the cluster.
    pub names: ClusterNames,
    /// Memory of this node, which is none of `nodes`.
    pub memory: NodeMemory,
    /// The others, by name.
    pub nodes: Vec<NodeStatus>,
}

impl ClusterStatus {
    /// The node with the least memory, if all report theirs and it is not equal on all.
    pub fn weakest(&self) -> Option<&str> {
        let own = (&*self.names.node, self.memory.available.value()?);
        let (mut least, mut most) = (own, own.1);
        for other in &self.nodes {
            if other.unknown.is_some() {
                return None;
            }
            let available = other.memory.available.value()?;
            most = most.max(available);
            if available < least.1 {
                least = (&other.node, available);
            }
        }
        (least.1 < most).then_some(least.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_has_the_label_of_its_node_despite_its_own_label() {
        let [cluster, node] = ["c", "spark-2"].map(Arc::from);
        let key = SeriesKey::new("uma_a", &[("zone", "x"), ("node", "0"), ("cluster", "lie")]);
        let labelled = series_of_node(&key, &cluster, &node).to_string();
        assert_eq!(labelled, r#"uma_a{cluster="c",exported_node="0",node="spark-2",zone="x"}"#);
    }
}
