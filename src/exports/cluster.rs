//! `/api/v1/cluster`: the nodes, their state, and the weakest.

use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};

use super::api::success;
use super::routes::Site;
use crate::model::{ClusterStatus, Moment, NodeMemory, Reading};

/// All known nodes, itself first; none without a cluster.
pub(super) async fn cluster(State(site): State<Site>) -> Response {
    let status = site.served.status.load_full();
    let now = (site.served.uptime)();
    let shown = match &status.cluster {
        None => json!({ "configured": false, "nodes": [] }),
        Some(cluster) => shown(cluster, now),
    };
    success(&shown)
}

fn shown(cluster: &ClusterStatus, now: Duration) -> Value {
    let weakest = cluster.weakest();
    let names = &cluster.names;
    let node = |name: &str, memory: NodeMemory| {
        json!({
            "node": name,
            "available_bytes": memory.available.value(),
            "total_bytes": memory.total.value(),
            "weakest": weakest == Some(name),
        })
    };
    let mut own = node(&names.node, cluster.memory);
    own["self"] = true.into();
    let others = cluster.nodes.iter().map(|other| {
        let ago = |answered: Moment| now.saturating_sub(answered.uptime).as_secs_f64();
        // The last report of a silent node is outdated.
        let memory = match other.unknown {
            None => other.memory,
            Some(_) => NodeMemory { total: Reading::Failed, available: Reading::Failed },
        };
        let mut shown = node(&other.node, memory);
        shown["self"] = false.into();
        shown["unknown"] = other.unknown.as_deref().into();
        shown["answered_seconds_ago"] = other.answered.map(ago).into();
        shown["took_seconds"] = other.took.as_secs_f64().into();
        shown["series"] = other.series.into();
        shown["url"] = other.url.as_deref().into();
        shown
    });
    let nodes: Vec<Value> = std::iter::once(own).chain(others).collect();
    json!({
        "configured": true,
        "name": names.cluster,
        "node": names.node,
        "known_for_seconds": names.known_for.as_secs_f64(),
        "nodes": nodes,
    })
}
