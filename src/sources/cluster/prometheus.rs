//! Queries a Prometheus that scrapes all nodes: for fleets too large to scrape each other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::time::{sleep, timeout};

use super::nodes::removed;
use super::table::{NodeSamples, NodeTable};
use super::{Scraping, jittered};
use crate::clients::connection::{ConnectionRequest, Server, ServerConnection};
use crate::model::{
    CLUSTER_LABEL, ClusterNames, MOST_NODES, NODE_LABEL, NodeNews, NodeReadings, PeerAddress,
    PrometheusServer, Wanted, metric,
};
use crate::parse::prometheus_answer::vector;

/// The size limit of a response: a series of each of 2,000 nodes has 1 MiB.
const MAX_RESPONSE_BYTES: usize = 16 << 20;

const ACCEPT: &str = "application/json";

/// A node that the server no longer reports counts as silent for this time, and then as removed.
const SILENT_FOR: Duration = Duration::from_secs(3_600);

/// The name in reports while no node is known.
const SERVER: &str = "prometheus";

/// The response for each node.
type SamplesByNode = BTreeMap<Arc<str>, NodeSamples>;

/// Queries until the loop ends.
pub(super) async fn query_all(context: Scraping, server: PrometheusServer) {
    let mut fleet = match PrometheusFleet::new(context, server) {
        Ok(fleet) => fleet,
        // The configuration was checked: this cannot fail.
        Err(why) => return tracing::error!(why, "cluster.prometheus.url is unusable"),
    };
    loop {
        let began = (fleet.context.clock)();
        if !fleet.query_all(began).await {
            return;
        }
        let took = (fleet.context.clock)().saturating_sub(began);
        sleep(jittered(fleet.context.settings.interval).saturating_sub(took)).await;
    }
}

/// All nodes that the server reports.
struct PrometheusFleet {
    context: Scraping,
    server: PrometheusServer,
    connection: ServerConnection,
    /// The path before `/api/v1`.
    base: String,
    /// Each known node, and when the server last reported it.
    nodes: BTreeMap<Arc<str>, (NodeTable, Duration)>,
    /// Whether the server itself was reported as silent, in place of its nodes.
    is_server_reported: bool,
}

impl PrometheusFleet {
    fn new(context: Scraping, server: PrometheusServer) -> Result<Self, String> {
        let rest = server.url.split_once("://").map_or(&*server.url, |(_, rest)| rest);
        let (authority, base) = match rest.split_once('/') {
            Some((authority, base)) => (authority, format!("/{base}")),
            None => (rest, String::new()),
        };
        let address: PeerAddress = authority.parse()?;
        // The default port of the scheme.
        let usual = if server.url.starts_with("https://") { 443 } else { 80 };
        let has_port = authority.trim_start_matches(address.host()).starts_with(':');
        let port = if has_port { address.port() } else { usual };
        let at = Server { host: address.host().to_owned(), port, access: server.access.clone() };
        Ok(Self {
            context,
            server,
            connection: ServerConnection::new(at),
            base,
            nodes: BTreeMap::new(),
            is_server_reported: false,
        })
    }

    /// Queries all wanted series. Returns whether the loop still runs.
    async fn query_all(&mut self, began: Duration) -> bool {
        let wanted = self.context.wanted();
        let deadline = self.context.settings.timeout;
        let response = timeout(deadline, self.responses(&wanted)).await;
        let response = response
            .unwrap_or_else(|_| Err(format!("no answer within {} ms", deadline.as_millis())));
        let now = (self.context.clock)();
        let took = now.saturating_sub(began);
        let news = match response {
            Ok(samples) if samples.is_empty() => {
                let why = "it reports no node: give its targets the label cluster, or write \
                           cluster: {prometheus: {matchers: …}}";
                self.report_silent(&format!("{}: {why}", self.server.url), &wanted, took)
            }
            Ok(samples) => self.take(samples, &wanted, now, took),
            Err(why) => self.report_silent(&format!("{}: {why}", self.server.url), &wanted, took),
        };
        if news.iter().any(|one| matches!(one.news, NodeNews::Gone)) {
            // A removal is reported only once.
            self.context.news.report_reliably(news).await;
            return true;
        }
        self.context.news.report(news)
    }

    async fn responses(&mut self, wanted: &[Wanted]) -> Result<SamplesByNode, String> {
        let mut all = SamplesByNode::new();
        for one in wanted {
            let query = query(one, &self.context.names, self.server.matchers.as_deref());
            let encoded = utf8_percent_encode(&query, NON_ALPHANUMERIC);
            let path = format!("{}/api/v1/query?query={encoded}", self.base);
            let mut body = Vec::new();
            let mut take = |part: &[u8]| {
                body.extend_from_slice(part);
                Ok(())
            };
            let request = ConnectionRequest::get(&path, ACCEPT, MAX_RESPONSE_BYTES);
            self.connection.send(request, &mut take).await?;
            sort(&body, one, &self.server.node_label, &self.context.names, &mut all)?;
        }
        Ok(all)
    }

    fn take(
        &mut self,
        samples: SamplesByNode,
        wanted: &Arc<[Wanted]>,
        now: Duration,
        took: Duration,
    ) -> Vec<NodeReadings> {
        let mut news = Vec::with_capacity(samples.len());
        if std::mem::take(&mut self.is_server_reported) {
            news.push(removed(&SERVER.into()));
        }
        for (name, samples) in samples {
            let has_space = self.nodes.len() < MOST_NODES;
            if !has_space && !self.nodes.contains_key(&name) {
                continue;
            }
            let cluster = &self.context.names.cluster;
            let node = self.nodes.entry(Arc::clone(&name));
            let (table, seen) =
                node.or_insert_with(|| (NodeTable::new(cluster, &name, wanted), now));
            table.want(wanted);
            *seen = now;
            news.push(table.accept(&samples, took));
        }
        let is_old = |seen: Duration| now.saturating_sub(seen) > SILENT_FOR;
        self.nodes.retain(|name, (_, seen)| {
            if is_old(*seen) {
                news.push(removed(name));
            }
            !is_old(*seen)
        });
        for (table, _) in self.nodes.values_mut().filter(|(_, seen)| *seen != now) {
            news.push(table.silent("the server no longer reports it", took));
        }
        news
    }

    /// The server did not respond: all nodes are silent.
    fn report_silent(
        &mut self,
        why: &str,
        wanted: &Arc<[Wanted]>,
        took: Duration,
    ) -> Vec<NodeReadings> {
        if self.nodes.is_empty() {
            self.is_server_reported = true;
            let name = SERVER.into();
            let mut table = NodeTable::new(&self.context.names.cluster, &name, wanted);
            return vec![table.silent(why, took)];
        }
        self.nodes.values_mut().map(|(table, _)| table.silent(why, took)).collect()
    }
}

/// The query for one wanted series.
fn query(wanted: &Wanted, names: &ClusterNames, matchers: Option<&str>) -> String {
    // PromQL accepts the escapes of JSON, but not those of Rust.
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

/// Splits a response by node. The series of this node itself are skipped.
fn sort(
    body: &[u8],
    wanted: &Wanted,
    node_label: &str,
    names: &ClusterNames,
    all: &mut SamplesByNode,
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
            // The weakest node may be among the skipped ones, so that no result would be valid.
            return Err(format!(
                "it reports more than {MOST_NODES} nodes: choose with cluster: {{prometheus: \
                 {{matchers: …}}}}"
            ));
        }
        // Labels that distinguish targets are no part of the series.
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
        let samples = all.entry(Arc::from(&**node)).or_default();
        samples.take(&wanted.name, &labels, sample.value, one);
    }
    Ok(())
}

/// Whether the name is this node's, with or without a port.
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
    fn queries_select_this_cluster() {
        let pair = |name: &str, value: &str| (Arc::from(name), Arc::from(value));
        let wanted = Wanted { name: "a".into(), labels: vec![pair("b", "c\"d")] };
        assert_eq!(query(&wanted, &names(), None), r#"a{b="c\"d",cluster="rack"}"#);
        assert_eq!(query(&wanted, &names(), Some("job=\"x\"")), r#"a{b="c\"d",job="x"}"#);
        assert_eq!(query(&wanted, &names(), Some("")), r#"a{b="c\"d"}"#);
    }

    #[test]
    fn samples_are_sorted_by_node_without_this_one() {
        let body = br#"{"status":"success","data":{"resultType":"vector","result":[
            {"metric":{"instance":"spark-1:9942","job":"j"},"value":[1,"1"]},
            {"metric":{"instance":"spark-2:9942","job":"j","node":"x"},"value":[1,"2"]},
            {"metric":{"job":"j"},"value":[1,"3"]}]}}"#;
        let wanted = Wanted { name: "uma_memory_available_bytes".into(), labels: Vec::new() };
        let mut all = SamplesByNode::new();
        sort(body, &wanted, "instance", &names(), &mut all).unwrap();
        let nodes: Vec<&str> = all.keys().map(|node| &**node).collect();
        assert_eq!(nodes, ["spark-2:9942"]);
        assert!(is_own("spark-1", "spark-1") && !is_own("spark-11:1", "spark-1"));
    }

    #[test]
    fn nodes_beyond_the_bound_make_the_cluster_unknown_instead_of_smaller() {
        let fleet = |nodes: usize| {
            let one =
                |node: usize| format!(r#"{{"metric":{{"instance":"n{node}"}},"value":[1,"1"]}}"#);
            let result: Vec<String> = (0..nodes).map(one).collect();
            let data = format!(r#"{{"resultType":"vector","result":[{}]}}"#, result.join(","));
            format!(r#"{{"status":"success","data":{data}}}"#)
        };
        let wanted = Wanted { name: "uma_memory_available_bytes".into(), labels: Vec::new() };
        let sorted = |nodes: usize| {
            let mut all = SamplesByNode::new();
            let body = fleet(nodes);
            sort(body.as_bytes(), &wanted, "instance", &names(), &mut all).map(|()| all.len())
        };
        assert_eq!(sorted(MOST_NODES), Ok(MOST_NODES));
        let why = sorted(MOST_NODES + 1).unwrap_err();
        assert!(why.contains("more than 1000 nodes") && why.contains("matchers"), "{why}");
    }
}
