//! `umawarden cluster`.

use std::time::Duration;

use anyhow::ensure;
use clap::Args;
use serde::Deserialize;

use super::Exit;
use super::control::{DaemonArguments, entries, list};
use crate::model::{duration_text, measured_bytes_text, printable};

/// Arguments of `umawarden cluster`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct ClusterArguments {
    #[command(flatten)]
    daemon: DaemonArguments,
}

const AFTER_HELP: &str = "\
Shows the nodes of the cluster as this node's daemon sees them: available memory of each, the \
weakest, and nodes without a response, with the reason. A response is outdated after three queries \
(and 5 s); while any node is unknown, so is the weakest.

Nodes are configured under cluster: by peers, dns and file_sd, or by prometheus. With --json: one \
node a line.

Exit codes: 0 all nodes are known; 1 one is unknown; 2 no cluster is configured, no daemon \
answers, or this user may not query it.";

#[derive(Debug, Deserialize)]
struct ClusterNode {
    node: String,
    #[serde(rename = "self")]
    is_self: bool,
    weakest: bool,
    #[serde(default)]
    unknown: Option<String>,
    available_bytes: Option<f64>,
    total_bytes: Option<f64>,
    #[serde(default)]
    answered_seconds_ago: Option<f64>,
}

/// Runs the command.
///
/// # Errors
/// No daemon answers, or there is no cluster.
pub fn execute(arguments: &ClusterArguments) -> anyhow::Result<Exit> {
    let daemon = &arguments.daemon;
    let reply = daemon.client()?.request("GET", "/api/v1/cluster", None)?;
    let is_configured = reply.data.get("configured").and_then(serde_json::Value::as_bool);
    ensure!(
        is_configured == Some(true),
        "no cluster is configured: write cluster: {{peers: [spark-2, spark-3]}} into the \
         configuration file, and restart the daemon"
    );
    let nodes = entries::<ClusterNode>(reply, "nodes")?;
    list(&nodes, daemon.json, "", line);
    let is_any_unknown = nodes.iter().any(|(_, node)| !node.is_known());
    Ok(if is_any_unknown { Exit::Findings } else { Exit::Fine })
}

impl ClusterNode {
    fn is_known(&self) -> bool {
        self.unknown.is_none() && self.available_bytes.is_some()
    }
}

fn line(node: &ClusterNode) -> String {
    let name = printable(&node.node);
    let mut line = match (&node.unknown, node.available_bytes, node.total_bytes) {
        (Some(why), ..) => format!("{name:<28} unknown: {}", printable(why)),
        (None, Some(available), Some(total)) => {
            format!(
                "{name:<28} {} of {} available",
                measured_bytes_text(available),
                measured_bytes_text(total)
            )
        }
        (None, ..) => format!("{name:<28} unknown: it reports no memory"),
    };
    if node.weakest {
        line.push_str(", the weakest");
    }
    if node.is_self {
        line.push_str(", this node");
    }
    if let (Some(_), Some(ago)) = (&node.unknown, node.answered_seconds_ago) {
        let ago = Duration::try_from_secs_f64(ago.max(0.0).round()).unwrap_or_default();
        line.push_str(&format!("; it last answered {} ago", duration_text(ago)));
    }
    line
}
