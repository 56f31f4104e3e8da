//! A node among others: who they are, how they are asked, and what they said.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::names::named;
use super::{
    CLUSTER_LABEL, EXPORTED_NODE_LABEL, Moment, NODE_LABEL, PeerAddress, Reading, Schema, SeriesKey,
};

/// Nobody has a larger cluster of nodes that ask each other.
pub const MOST_PEERS: usize = 64;
/// Beyond so many, asking a Prometheus costs less than asking each other.
pub const PEERS_ASKED_CHEAPLY: usize = 16;
/// More nodes than these no server tells of.
pub const MOST_NODES: usize = 1_000;
/// Series that are kept of one node.
pub const MOST_SERIES_OF_A_NODE: usize = 150;

/// How this node is called among others, and how long what they said is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterNames {
    /// The cluster, label `cluster`.
    pub cluster: Arc<str>,
    /// This node, label `node`.
    pub node: Arc<str>,
    /// What a node said longer ago than this is not known any more.
    pub known_for: Duration,
}

/// How the nodes of the cluster are known and asked.
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
    /// A server that knows all of them, and is asked instead.
    pub prometheus: Option<PrometheusServer>,
    /// Between two questions.
    pub interval: Duration,
    /// An answer may take so long.
    pub timeout: Duration,
    /// The path of a node's metrics.
    pub metrics_path: String,
    /// How nodes are spoken to.
    pub access: Access,
}

impl ClusterSettings {
    /// How long what a node said is known: three questions, and not less than 5 s.
    pub fn known_for(&self) -> Duration {
        self.interval.saturating_mul(3).max(Duration::from_secs(5))
    }

    /// Whether anything tells who the other nodes are.
    pub fn has_peers(&self) -> bool {
        !(self.peers.is_empty() && self.dns.is_empty() && self.files.is_empty())
    }
}

/// A Prometheus server, or what speaks its HTTP API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrometheusServer {
    /// `http://host:port`, or `https://`, with the path before `/api/v1`.
    pub url: String,
    /// The label by which it tells nodes apart.
    pub node_label: Arc<str>,
    /// Matchers that all queries carry, as in `job="umawarden"`.
    pub matchers: Option<Arc<str>>,
    /// How it is spoken to.
    pub access: Access,
}

/// How a server is spoken to. Files are read when they are needed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Over TLS.
    pub tls: Option<TlsFiles>,
    /// By what it lets this program in.
    pub credentials: Option<Credentials>,
}

/// Who is trusted, and who this program is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Whoever signs with a certificate of this file (PEM); `None`: whom the system trusts.
    pub ca: Option<PathBuf>,
    /// This program's certificate and its key (PEM).
    pub own: Option<(PathBuf, PathBuf)>,
    /// The name that the server's certificate must bear, if it is not the host's.
    pub server_name: Option<String>,
}

impl TlsFiles {
    /// Only whoever signs with a certificate of that file is trusted; `None`: whom the system
    /// trusts.
    pub fn trusting(ca: Option<PathBuf>) -> Self {
        Self { ca, ..Self::default() }
    }
}

/// By what a server lets this program in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// A token in a file.
    Bearer(PathBuf),
    /// A name, and a password in a file.
    Basic {
        /// The name.
        username: String,
        /// The file.
        password: PathBuf,
    },
}

/// The same series beside those of other nodes.
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

/// News of other nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterReadings {
    /// Of each node that there is news of.
    pub nodes: Vec<NodeReadings>,
}

impl ClusterReadings {
    /// How many values these are; not less than the news.
    pub fn values(&self) -> usize {
        let one = |node: &NodeReadings| match &node.news {
            NodeNews::Answered { schema, values } => schema.series.len().max(values.len()).max(1),
            NodeNews::Silent { schema, .. } => schema.series.len().max(1),
            NodeNews::Gone => 1,
        };
        self.nodes.iter().map(one).sum()
    }
}

/// News of one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeReadings {
    /// Its name, label `node`.
    pub node: Arc<str>,
    /// What there is to tell.
    pub news: NodeNews,
    /// How long asking took.
    pub took: Duration,
    /// What it told and was not believed or not kept, each with why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<(Refusal, u64)>,
}

/// What there is to tell of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum NodeNews {
    /// It has answered.
    Answered {
        /// Which series the values belong to, those of the node that are known; with the labels
        /// `cluster` and `node`. The same `Arc` while nothing changes.
        schema: Arc<Schema>,
        /// One reading for each; `Unsupported` for a series that has ended, `Failed` where what
        /// the node says cannot be.
        values: Vec<Reading<f64>>,
    },
    /// It has not.
    Silent {
        /// Why.
        why: Arc<str>,
        /// What is not known now, though nothing of it may have been known before.
        schema: Arc<Schema>,
    },
    /// It is no node of the cluster any more, or is this one.
    Gone,
}

named! {
    /// Why something that a node told was not believed or not kept.
    pub enum Refusal {
        /// A value that the series cannot have.
        Impossible = "impossible",
        /// The same series twice in one answer.
        Twice = "twice",
        /// More series than are kept of a node.
        TooMany = "too_many",
        /// Longer labels than anybody needs.
        TooLong = "too_long",
    }
}

/// Where it stands with one other node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeStatus {
    /// Its name.
    pub node: Arc<str>,
    /// Why nothing is known of it, if that is so.
    pub unknown: Option<Arc<str>>,
    /// When it has answered last.
    pub answered: Option<Moment>,
    /// How long asking took last.
    pub took: Duration,
    /// Series that are kept of it.
    pub series: usize,
    /// What its memory is.
    pub memory: NodeMemory,
}

/// The memory of one node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NodeMemory {
    /// All of it.
    pub total: Reading<f64>,
    /// What the kernel says is to be had.
    pub available: Reading<f64>,
}

/// Where it stands with all nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterStatus {
    /// How this node and the cluster are called.
    pub names: ClusterNames,
    /// This node's memory.
    pub memory: NodeMemory,
    /// The others, by name.
    pub nodes: Vec<NodeStatus>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_stands_under_its_node_whatever_it_says_itself() {
        let [cluster, node] = ["c", "spark-2"].map(Arc::from);
        let key = SeriesKey::new("uma_a", &[("zone", "x"), ("node", "0"), ("cluster", "lie")]);
        let told = series_of_node(&key, &cluster, &node).to_string();
        assert_eq!(told, r#"uma_a{cluster="c",exported_node="0",node="spark-2",zone="x"}"#);
    }
}
