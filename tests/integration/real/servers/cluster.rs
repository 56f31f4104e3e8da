//! A node that queries a real Prometheus, which has scraped the others.

use super::prometheus::Prometheus;
use crate::cluster::Node;
use crate::real::enabled;

#[test]
fn real_prometheus_answers_for_the_nodes_that_it_scrapes() {
    if !enabled() {
        return;
    }
    let nodes = ["one", "two"].map(|name| Node::with(&format!("node: {name}, peers: []")));
    let [one, two] = nodes.each_ref().map(|node| node.daemon().address().to_owned());
    let targets = format!("[{{targets: ['{one}', '{two}'], labels: {{cluster: rack}}}}]");
    let prometheus = Prometheus::scraping("prometheus", &targets, "");
    prometheus.wait_for("count(uma_memory_available_bytes{cluster=\"rack\"}) == 2");
    let node = Node::with(&format!(
        "name: rack, node: third, prometheus: {{url: \"{}\"}}, interval: 1s",
        prometheus.base()
    ));
    let mut all = [one.as_str(), two.as_str(), "third"].map(|name| (name.to_owned(), true));
    all.sort();
    node.daemon().wait_until("reporting all nodes", |_| node.nodes() == all);
    node.wait_for("Imbalance", "inactive");
    nodes[1].set_available(20);
    node.wait_for("Imbalance", "firing");
    drop(prometheus);
    node.wait_for("Imbalance", "unknown");
}
