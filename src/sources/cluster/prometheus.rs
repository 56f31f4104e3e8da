//! Asks a Prometheus, which knows all nodes: for fleets that are too large to ask each other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::time::{sleep, timeout};

use super::nodes::has_gone;
use super::table::{NodeTable, Told};
use super::{Asking, jittered};
use crate::clients::connection::{Connection, Question, Server};
use crate::model::{
    CLUSTER_LABEL, ClusterNames, MOST_NODES, NODE_LABEL, NodeNews, NodeReadings, PeerAddress,
    PrometheusServer, Wanted, metric,
};
use crate::parse::prometheus_answer::vector;

/// The answer to one query: a series of each of 2,000 nodes has 1 MiB.
const MOST_BYTES: usize = 16 << 20;

const ACCEPT: &str = "application/json";

/// A node that the server does not tell of any more is missed for so long; then it is none.
const MISSED_FOR: Duration = Duration::from_secs(3_600);

/// What stands for all nodes while none is known.
const SERVER: &str = "prometheus";

/// What each node told.
type ToldByNode = BTreeMap<Arc<str>, Told>;

/// Asks until the loop has gone.
pub(super) async fn ask(asking: Asking, server: PrometheusServer) {
    let mut fleet = match Fleet::new(asking, server) {
        Ok(fleet) => fleet,
        // The configuration was checked: this cannot be.
        Err(why) => return tracing::error!("cluster.prometheus.url: {why}"),
    };
    loop {
        let began = (fleet.asking.clock)();
        if !fleet.ask(began).await {
            return;
        }
        let took = (fleet.asking.clock)().saturating_sub(began);
        sleep(jittered(fleet.asking.settings.interval).saturating_sub(took)).await;
    }
}

/// All nodes, by what the server says.
struct Fleet {
    asking: Asking,
    server: PrometheusServer,
    connection: Connection,
    /// The path before `/api/v1`.
    base: String,
    /// Each known node, and when the server last told of it.
    nodes: BTreeMap<Arc<str>, (NodeTable, Duration)>,
    /// Whether the server itself stands for the nodes.
    is_missed: bool,
}

impl Fleet {
    fn new(asking: Asking, server: PrometheusServer) -> Result<Self, String> {
        let rest = server.url.split_once("://").map_or(&*server.url, |(_, rest)| rest);
        let (authority, base) = match rest.split_once('/') {
            Some((authority, base)) => (authority, format!("/{base}")),
            None => (rest, String::new()),
        };
        let address: PeerAddress = authority.parse()?;
        // Without a port it is the scheme's.
        let usual = if server.url.starts_with("https://") { 443 } else { 80 };
        let has_port = authority.trim_start_matches(address.host()).starts_with(':');
        let port = if has_port { address.port() } else { usual };
        let place = Server { host: address.host().to_owned(), port, access: server.access.clone() };
        Ok(Self {
            asking,
            server,
            connection: Connection::new(place),
            base,
            nodes: BTreeMap::new(),
            is_missed: false,
        })
    }

    /// Asks for all that is wanted. Returns whether anybody wants to know.
    async fn ask(&mut self, began: Duration) -> bool {
        let wanted = self.asking.wanted();
        let deadline = self.asking.settings.timeout;
        let answer = timeout(deadline, self.questions(&wanted)).await;
        let answer =
            answer.unwrap_or_else(|_| Err(format!("no answer within {} ms", deadline.as_millis())));
        let now = (self.asking.clock)();
        let took = now.saturating_sub(began);
        let news = match answer {
            Ok(told) if told.is_empty() => {
                let why = "it tells of no node: give its targets the label cluster, or write \
                           cluster: {prometheus: {matchers: …}}";
                self.miss(&format!("{}: {why}", self.server.url), &wanted, took)
            }
            Ok(told) => self.take(told, &wanted, now, took),
            Err(why) => self.miss(&format!("{}: {why}", self.server.url), &wanted, took),
        };
        if news.iter().any(|one| matches!(one.news, NodeNews::Gone)) {
            // That is said once.
            self.asking.news.tell_surely(news).await;
            return true;
        }
        self.asking.news.tell(news)
    }

    async fn questions(&mut self, wanted: &[Wanted]) -> Result<ToldByNode, String> {
        let mut all = ToldByNode::new();
        for one in wanted {
            let query = query(one, &self.asking.names, self.server.matchers.as_deref());
            let encoded = utf8_percent_encode(&query, NON_ALPHANUMERIC);
            let path = format!("{}/api/v1/query?query={encoded}", self.base);
            let mut body = Vec::new();
            let mut take = |part: &[u8]| {
                body.extend_from_slice(part);
                Ok(())
            };
            let asked =
                Question { path: &path, accept: ACCEPT, most_bytes: MOST_BYTES, also: None };
            self.connection.get(asked, &mut take).await?;
            sort(&body, one, &self.server.node_label, &self.asking.names, &mut all)?;
        }
        Ok(all)
    }

    fn take(
        &mut self,
        told: ToldByNode,
        wanted: &Arc<[Wanted]>,
        now: Duration,
        took: Duration,
    ) -> Vec<NodeReadings> {
        let mut news = Vec::with_capacity(told.len());
        if std::mem::take(&mut self.is_missed) {
            news.push(has_gone(&SERVER.into()));
        }
        for (name, told) in told {
            let room = self.nodes.len() < MOST_NODES;
            if !room && !self.nodes.contains_key(&name) {
                continue;
            }
            let cluster = &self.asking.names.cluster;
            let node = self.nodes.entry(Arc::clone(&name));
            let (table, seen) =
                node.or_insert_with(|| (NodeTable::new(cluster, &name, wanted), now));
            table.want(wanted);
            *seen = now;
            news.push(table.answered(&told, took));
        }
        let is_old = |seen: Duration| now.saturating_sub(seen) > MISSED_FOR;
        self.nodes.retain(|name, (_, seen)| {
            if is_old(*seen) {
                news.push(has_gone(name));
            }
            !is_old(*seen)
        });
        for (table, seen) in self.nodes.values_mut().filter(|(_, seen)| *seen != now) {
            let _when = seen;
            news.push(table.silent("the server does not tell of it any more", took));
        }
        news
    }

    /// The server has not answered: all nodes are missed.
    fn miss(&mut self, why: &str, wanted: &Arc<[Wanted]>, took: Duration) -> Vec<NodeReadings> {
        if self.nodes.is_empty() {
            self.is_missed = true;
            let name = SERVER.into();
            let mut table = NodeTable::new(&self.asking.names.cluster, &name, wanted);
            return vec![table.silent(why, took)];
        }
        self.nodes.values_mut().map(|(table, _)| table.silent(why, took)).collect()
    }
}

/// What is asked for one thing that is wanted.
fn query(wanted: &Wanted, names: &ClusterNames, matchers: Option<&str>) -> String {
    // PromQL reads the escapes of JSON; those of Rust it does not.
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let own = wanted.labels.iter().map(|(name, value)| format!("{name}={}", quoted(value)));
    let of_cluster = match matchers {
        Some("") => None,
        Some(matchers) => Some(matchers.to_owned()),
        None => Some(format!("{CLUSTER_LABEL}={}", quoted(&names.cluster))),
    };
    let all: Vec<String> = own.chain(of_cluster).collect();
    format!("{}{{{}}}", wanted.name, all.join(","))
}

/// Gives each node its part of an answer. This node knows its own series better.
fn sort(
    body: &[u8],
    wanted: &Wanted,
    node_label: &str,
    names: &ClusterNames,
    all: &mut ToldByNode,
) -> Result<(), String> {
    let one = std::slice::from_ref(wanted);
    let of_metric = metric(&wanted.name).map_or(&[][..], |metric| metric.labels);
    for sample in vector(body)? {
        let node = sample.labels.iter().find(|(name, _)| *name == node_label);
        let Some((_, node)) = node else { continue };
        if is_own(node, &names.node) {
            continue;
        }
        let is_known = all.contains_key(&**node);
        if !is_known && all.len() >= MOST_NODES {
            // The weakest may be among those that are left out, so that nobody knows it.
            return Err(format!(
                "it tells of more than {MOST_NODES} nodes: choose with cluster: {{prometheus: \
                 {{matchers: …}}}}"
            ));
        }
        // What a target is told apart by is no part of the series.
        let labels: Vec<(&str, &str)> = sample
            .labels
            .iter()
            .map(|(name, value)| match &**name {
                "exported_node" => (NODE_LABEL, &**value),
                NODE_LABEL if of_metric.contains(&NODE_LABEL) && node_label != NODE_LABEL => {
                    (NODE_LABEL, &**value)
                }
                NODE_LABEL => ("", ""),
                other => (other, &**value),
            })
            .filter(|(name, _)| of_metric.contains(name))
            .collect();
        let told = all.entry(Arc::from(&**node)).or_default();
        told.take(&wanted.name, &labels, sample.value, one);
    }
    Ok(())
}

/// Whether that is this node, with a port or without.
fn is_own(node: &str, own: &str) -> bool {
    let host = node.rsplit_once(':').map_or(node, |(host, _)| host);
    node == own || host == own
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> ClusterNames {
        ClusterNames {
            cluster: "rack".into(),
            node: "spark-1".into(),
            known_for: Duration::from_secs(45),
        }
    }

    #[test]
    fn what_is_asked_for_is_of_this_cluster() {
        let pair = |name: &str, value: &str| (Arc::from(name), Arc::from(value));
        let wanted = Wanted { name: "a".into(), labels: vec![pair("b", "c\"d")] };
        assert_eq!(query(&wanted, &names(), None), r#"a{b="c\"d",cluster="rack"}"#);
        assert_eq!(query(&wanted, &names(), Some("job=\"x\"")), r#"a{b="c\"d",job="x"}"#);
        assert_eq!(query(&wanted, &names(), Some("")), r#"a{b="c\"d"}"#);
    }

    #[test]
    fn each_node_gets_its_part_and_this_one_none() {
        let body = br#"{"status":"success","data":{"resultType":"vector","result":[
            {"metric":{"instance":"spark-1:9942","job":"j"},"value":[1,"1"]},
            {"metric":{"instance":"spark-2:9942","job":"j","node":"x"},"value":[1,"2"]},
            {"metric":{"job":"j"},"value":[1,"3"]}]}}"#;
        let wanted = Wanted { name: "uma_memory_available_bytes".into(), labels: Vec::new() };
        let mut all = ToldByNode::new();
        sort(body, &wanted, "instance", &names(), &mut all).unwrap();
        let nodes: Vec<&str> = all.keys().map(|node| &**node).collect();
        assert_eq!(nodes, ["spark-2:9942"]);
        assert!(is_own("spark-1", "spark-1") && !is_own("spark-11:1", "spark-1"));
    }

    #[test]
    fn more_nodes_than_are_kept_are_unknown_and_none_of_them_is_left_out() {
        let fleet = |nodes: usize| {
            let one =
                |node: usize| format!(r#"{{"metric":{{"instance":"n{node}"}},"value":[1,"1"]}}"#);
            let result: Vec<String> = (0..nodes).map(one).collect();
            let data = format!(r#"{{"resultType":"vector","result":[{}]}}"#, result.join(","));
            format!(r#"{{"status":"success","data":{data}}}"#)
        };
        let wanted = Wanted { name: "uma_memory_available_bytes".into(), labels: Vec::new() };
        let sorted = |nodes: usize| {
            let mut all = ToldByNode::new();
            let body = fleet(nodes);
            sort(body.as_bytes(), &wanted, "instance", &names(), &mut all).map(|()| all.len())
        };
        assert_eq!(sorted(MOST_NODES), Ok(MOST_NODES));
        let why = sorted(MOST_NODES + 1).unwrap_err();
        assert!(why.contains("more than 1000 nodes") && why.contains("matchers"), "{why}");
    }
}
