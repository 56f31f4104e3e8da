//! A replay of one node's recording repeats its decisions by cluster rules.

use std::process::{Command, Output};

use serde_json::Value;

use super::Node;
use crate::daemon::{binary, history, of_kind};

fn replay(node: &Node, mode: &str) -> (Output, String) {
    let storage = node.path("data");
    let output = Command::new(binary()).args(["replay", mode]).arg(storage).output().unwrap();
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    (output, text)
}

/// Decisions by cluster rules, in order and without their time, which has two formats.
fn decisions(lines: &[Value]) -> Vec<Value> {
    let mut found: Vec<Value> = of_kind(lines, "decision")
        .filter(|decision| decision["rule"]["group"] == "compared")
        .cloned()
        .collect();
    found.iter_mut().for_each(|found| _ = found.as_object_mut().unwrap().remove("time"));
    found.sort_by_key(|decision| decision["id"].as_u64());
    found
}

#[test]
fn a_replay_of_one_nodes_recording_repeats_its_cluster_decisions() {
    let other = Node::with("name: rack, node: two, peers: []");
    let file = tempfile::NamedTempFile::with_suffix(".json").unwrap();
    let address = other.daemon().address();
    let target = format!("[{{\"targets\": [\"{address}\"], \"labels\": {{\"node\": \"two\"}}}}]");
    std::fs::write(file.path(), target).unwrap();
    let path = file.path().display();
    let mut node =
        Node::with(&format!("name: rack, node: one, file_sd: ['{path}'], interval: 500ms"));
    node.wait_for("Imbalance", "inactive");
    other.set_available(20);
    node.wait_for("Imbalance", "firing");
    node.daemon().wait_until("decided", |_| !node.decisions().is_empty());
    // A silent node becomes unknown, in the replay as well.
    drop(other);
    node.wait_for("Imbalance", "unknown");
    node.wait_for("Silent", "firing");
    node.daemon.take().unwrap().terminate();

    let (output, text) = replay(&node, "--json");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let journalled = decisions(&history(&node.path("data")));
    assert!(!journalled.is_empty());
    assert!(journalled[0].to_string().contains("node=\\\"two\\\""), "{journalled:#?}");
    assert_eq!(decisions(&lines), journalled);
    let (output, text) = replay(&node, "--diff");
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("recorded decisions came again"), "{text}");
}
