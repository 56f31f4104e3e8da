//! `umawarden fit`: whether a model fits, and with which options.

use std::fs;
use std::process::Output;

use serde_json::{Value, json};

use super::{Memory, Node, stderr, stdout};
use crate::daemon::{Daemon, meminfo_bytes};
use crate::empty_cache::fake::{FakeServer, Reply, Request};

const GIB: u64 = 1 << 30;

fn fit(node: &Node, arguments: &[&str]) -> Output {
    node.command("fit", arguments).output().unwrap()
}

/// The umawarden of a node of 120 GiB with `available_gib` available.
fn peer_with(available_gib: u64) -> FakeServer {
    let data = json!({
        "open": true, "need_bytes": 0, "available_bytes": available_gib * GIB,
        "memory": {
            "total_bytes": 120 * GIB, "free_bytes": available_gib * GIB, "clean_cache_bytes": 0,
        },
    });
    let body = json!({"status": "success", "data": data}).to_string();
    FakeServer::start(move |_: &Request| Reply::Answer(200, body.clone()))
}

fn parsed(output: &Output) -> Value {
    serde_json::from_str(&stdout(output))
        .unwrap_or_else(|error| panic!("{error}: {}{}", stdout(output), stderr(output)))
}

#[test]
fn the_weakest_of_two_nodes_decides_the_recommended_options() {
    let node = Node::new(Memory::free(114));
    let weak = peer_with(100);
    let peers = format!("--peers=127.0.0.1:{}", weak.port);
    let of = ["--weights=130GiB", "--context=128K", "--kv-per-token=160KiB", &peers];
    let output = fit(&node, &of);
    let printed = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{printed}{}", stderr(&output));
    let first =
        "130.0 GiB of weights and 20.0 GiB of KV cache for 131072 tokens on 2 nodes: it fits.";
    assert!(printed.starts_with(first), "{printed}");
    let weakest =
        format!("The weakest node is 127.0.0.1:{}: it has the least available memory.", weak.port);
    assert!(printed.contains(&weakest), "{printed}");
    // 100 GiB less 9 for its processes and 3.75 to spare, of 120.
    assert!(printed.contains("--gpu-memory-utilization 0.72 at most on each node"), "{printed}");
    let report = parsed(&fit(&node, &[&of[..], &["--json"]].concat()));
    assert_eq!(report["vllm_utilization"], json!(0.72));
    assert_eq!(report["nodes"][0]["available_bytes"], json!(112 * GIB), "above the reserve");
    assert_eq!(report["nodes"][1]["kv_wanted_bytes"], json!(10 * GIB));
    let too_much = fit(&node, &["--weights=170GiB", &peers]);
    assert_eq!(too_much.status.code(), Some(1));
    assert!(stdout(&too_much).contains("it does not fit."), "{}", stdout(&too_much));
}

#[test]
fn a_peer_with_an_invalid_response_makes_the_fit_unknown() {
    let node = Node::new(Memory::free(114));
    let strange = FakeServer::start(|_: &Request| Reply::Answer(200, "<html>".to_owned()));
    let peers = format!("--peers=127.0.0.1:{}", strange.port);
    let output = fit(&node, &["--weights=10GiB", &peers]);
    assert_eq!(output.status.code(), Some(1));
    let printed = stderr(&output);
    assert!(printed.contains("unknown whether it fits"), "{printed}");
    assert!(printed.contains("not as umawarden does"), "{printed}");
    let report = parsed(&fit(&node, &["--weights=10GiB", &peers, "--json"]));
    assert_eq!(report["fits"], Value::Null);
    assert_eq!(report["silent"].as_array().unwrap().len(), 1);
}

#[test]
fn planned_and_assumed_nodes_are_noted() {
    let node = Node::new(Memory::free(114));
    let output = fit(&node, &["--weights=130GiB", "--nodes=2"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let printed = stdout(&output);
    assert!(printed.contains("note: one node is assumed to be like this one"), "{printed}");
    let planned = parsed(&fit(
        &node,
        &["--weights=130GiB", "--nodes=2", "--memory=121GiB", "--taken=5GiB", "--json"],
    ));
    assert_eq!(planned["nodes"][1]["available_bytes"], json!(116 * GIB));
    assert_eq!(planned["fits"], json!(true));
}

#[test]
fn a_real_daemon_reports_its_memory_and_is_counted_once() {
    let storage = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(storage.path(), &[]);
    daemon.wait_until("it has measured", |daemon| daemon.get("/api/v1/gate?need=0").0 == 200);
    let node = Node::new(Memory::free(114));
    let peers = format!("--peers={}", daemon.address());
    let report = parsed(&fit(&node, &["--weights=1MiB", &peers, "--json"]));
    let total_bytes = report["nodes"][1]["total_bytes"].as_f64().unwrap();
    assert_eq!(total_bytes, meminfo_bytes("MemTotal"), "{report}");
    let config = node.path("umawarden.yaml");
    let text = format!("web: {{listen_address: ['{}']}}\n", daemon.address());
    fs::write(&config, text).unwrap();
    let config = format!("--config.file={}", config.display());
    let once = parsed(&fit(&node, &["--weights=1MiB", &peers, "--json", &config]));
    assert_eq!(once["nodes"].as_array().unwrap().len(), 1, "{once}");
}

#[test]
fn weights_and_bytes_per_token_are_read_from_a_models_folder() {
    let node = Node::new(Memory::free(114));
    let model = node.path("model");
    fs::create_dir(&model).unwrap();
    fs::write(model.join("model.safetensors"), [0; 4096]).unwrap();
    let config = json!({
        "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
        "hidden_size": 8192, "torch_dtype": "bfloat16",
    });
    fs::write(model.join("config.json"), config.to_string()).unwrap();
    let folder = format!("--model={}", model.display());
    let report = parsed(&fit(&node, &[&folder, "--context=1000", "--requests=3", "--json"]));
    assert_eq!(report["weights_bytes"], json!(4096));
    assert_eq!(report["kv_bytes_per_token"], json!(320 << 10));
    assert_eq!(report["tokens"], json!(3000));
    let half = ["--json", "--kv-cache-dtype=fp8"];
    let half = parsed(&fit(&node, &[&[&*folder, "--context=1000"], &half[..]].concat()));
    assert_eq!(half["kv_bytes_per_token"], json!(160 << 10));
    let few = fit(&node, &[&folder, "--context=50m"]);
    assert_eq!(few.status.code(), Some(1));
    for (arguments, expected) in [
        (&["--context=1"][..], "--weights"),
        (&["--weights=1GiB", "--context=1"], "--kv-per-token (2 x layers"),
        (&["--weights=1GiB", "--context=1.5k"], "131072, 128k or 128K"),
        (&["--weights=1GiB", "--nodes=0"], "--nodes"),
        (&["--model=/nothing"], "cannot read the model's folder /nothing"),
        (&["--weights=1GiB", "--peers"], "--peers names no nodes"),
        (&["--weights=1GiB", "--peers=a,b", "--nodes=2"], "less than the number of nodes"),
    ] {
        let output = fit(&node, arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains(expected), "{arguments:?}: {}", stderr(&output));
    }
}
