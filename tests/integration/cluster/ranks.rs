//! One vLLM engine over two nodes without Ray: its head and a headless rank, as real vLLM 0.32
//! shows them.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::Node;
use crate::engines::process;

const COMMAND: &str = "/env/bin/python /env/bin/vllm serve /models/a --port 8000 --nnodes 2 \
                       --master-addr 10.0.0.1";

/// The processes of a rank; the head has an engine core, too.
fn start(node: &Node, rank: u32) {
    let procfs = node.path("proc");
    let headless = if rank == 0 { "" } else { " --headless" };
    process(50, 1, "vllm", &format!("{COMMAND} --node-rank {rank}{headless}")).write(&procfs);
    process(51, 50, "VLLM::EngineCor", "VLLM::EngineCore").write(&procfs);
    process(52, 51, "VLLM::Worker_TP", &format!("VLLM::Worker_TP{rank}")).write(&procfs);
}

fn end(node: &Node, pids: &[u32]) {
    for pid in pids {
        fs::remove_dir_all(node.path("proc").join(pid.to_string())).unwrap();
    }
}

/// Two nodes that know each other.
fn pair(folder: &Path) -> [Node; 2] {
    let peers = folder.join("peers.json");
    fs::write(&peers, "[]").unwrap();
    let nodes = ["one", "two"].map(|name| Node::start(name, &peers));
    let target = |(name, node): (&str, &Node)| {
        let address = node.daemon().address();
        format!("{{\"targets\": [\"{address}\"], \"labels\": {{\"node\": \"{name}\"}}}}")
    };
    let targets: Vec<String> = ["one", "two"].into_iter().zip(&nodes).map(target).collect();
    let new = folder.join("new");
    fs::write(&new, format!("[{}]", targets.join(", "))).unwrap();
    fs::rename(&new, &peers).unwrap();
    for node in &nodes {
        let all = ["one", "two"].map(|name| (name.to_owned(), true));
        node.daemon().wait_until("knows both", |_| node.nodes() == all);
    }
    nodes
}

fn ranks(node: &Node, engine: &str) -> f64 {
    node.daemon().metric(&format!("uma_engine_ranks{{engine=\"{engine}\"}}"))
}

fn engine(node: &Node) -> serde_json::Value {
    node.data("/api/v1/engines")["engines"][0].clone()
}

#[test]
fn a_rank_whose_head_has_ended_is_known_and_would_be_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let nodes = pair(folder.path());
    start(&nodes[0], 0);
    start(&nodes[1], 1);
    let has = |node: &Node, series: &str| node.daemon().get("/metrics").1.contains(series);
    let both = [(&nodes[0], "vllm-8000"), (&nodes[1], "vllm")];
    for (node, name) in both {
        let series = format!("uma_engine_ranks{{engine=\"{name}\"}} 2");
        node.daemon().wait_until("both ranks are known", |_| has(node, &series));
        assert!(has(node, &format!("uma_engine_rank_lost{{engine=\"{name}\"}} 0")));
    }
    let found = engine(&nodes[1]);
    assert!(found["port"].is_null() && found["health_url"].is_null(), "{found}");
    let rank = serde_json::json!({"gang": "10.0.0.1:29501", "rank": 1, "ranks": 2});
    assert_eq!(found["rank"], rank, "{found}");
    let other = &found["other_ranks"][0];
    assert_eq!((&other["node"], &other["rank"]), (&"one".into(), &"0".into()), "{found}");
    // vLLM leaves its engine core and its worker when only `vllm serve` is killed.
    end(&nodes[0], &[50]);
    for (node, _) in both {
        node.wait_for("RankLost", "firing");
    }
    let lost = engine(&nodes[1])["lost_rank"].clone();
    assert_eq!(lost, "its rank 0 on one (vllm-8000) has ended");
    for (node, name) in both {
        node.daemon().wait_until("decided", |_| !node.decisions().is_empty());
        let decisions = node.decisions().join("\n");
        assert!(decisions.contains("stop_engine") && decisions.contains(name), "{decisions}");
    }
    assert!((ranks(&nodes[0], "vllm-8000") - 1.0).abs() < f64::EPSILON, "the other one lives");
    end(&nodes[0], &[51, 52]);
    // What is read of another node may be 2.5 s old.
    std::thread::sleep(Duration::from_secs(4));
    end(&nodes[1], &[50, 51, 52]);
    for (node, _) in both {
        node.wait_for("RankLost", "inactive");
    }
    // One death: the head's own, and the rank's report names it.
    let [first, second] = nodes.each_ref().map(|node| {
        node.daemon().wait_until("the death is reported", |_| death(node).is_object());
        death(node)["ranks"].clone()
    });
    // Its cause is not known, so that it has waited for the other one.
    assert_eq!(first["first"], "this", "{first}");
    assert_eq!(second["first"], "other", "{second}");
    let other = &second["others"][0];
    let named = ["node", "engine", "rank"].map(|key| other[key].as_str().unwrap());
    assert_eq!(named, ["one", "vllm-8000", "0"], "{second}");
    assert!(other["seconds"].as_f64().unwrap() < 0.0, "{second}");
}

/// The report on the death of the node's engine.
fn death(node: &Node) -> serde_json::Value {
    node.data("/api/v1/events?kind=engine_died")["events"][0]["report"].clone()
}

#[test]
fn a_node_that_does_not_answer_has_lost_no_rank() {
    let folder = tempfile::tempdir().unwrap();
    let [mut one, two] = pair(folder.path());
    start(&one, 0);
    start(&two, 1);
    two.daemon().wait_until("both ranks are known", |daemon| {
        daemon.get("/metrics").1.contains("uma_engine_ranks{engine=\"vllm\"} 2")
    });
    one.daemon = None;
    two.wait_for("Silent", "firing");
    assert_eq!(two.state("RankLost"), "inactive");
    assert!(engine(&two)["lost_rank"].is_null());
}
