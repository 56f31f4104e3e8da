//! `umawarden fit`.

use std::fs;
use std::process::Output;

use serde_json::{Value, json};

use super::{Memory, Node, stderr, stdout};
use crate::daemon::{Daemon, meminfo_bytes};
use crate::empty_cache::fake::{Asked, FakeEngine, Reply};

const GIB: u64 = 1 << 30;

fn fit(node: &Node, arguments: &[&str]) -> Output {
    node.command("fit", arguments).output().unwrap()
}

/// The umawarden of a node of 120 GiB of which that much can be had.
fn other(had_gib: u64) -> FakeEngine {
    let data = json!({
        "open": true, "need_bytes": 0, "available_bytes": had_gib * GIB,
        "memory": {
            "total_bytes": 120 * GIB, "free_bytes": had_gib * GIB, "clean_cache_bytes": 0,
        },
    });
    let told = json!({"status": "success", "data": data}).to_string();
    FakeEngine::start(move |_: &Asked| Reply::Answer(200, told.clone()))
}

fn parsed(output: &Output) -> Value {
    serde_json::from_str(&stdout(output))
        .unwrap_or_else(|error| panic!("{error}: {}{}", stdout(output), stderr(output)))
}

#[test]
fn the_weakest_of_two_nodes_decides_what_engines_are_told() {
    let node = Node::new(Memory::free(114));
    let weak = other(100);
    let peers = format!("--peers=127.0.0.1:{}", weak.port);
    let of = ["--weights=130GiB", "--context=128K", "--kv-per-token=160KiB", &peers];
    let output = fit(&node, &of);
    let told = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{told}{}", stderr(&output));
    let first =
        "130.0 GiB of weights and 20.0 GiB of KV cache for 131072 tokens on 2 nodes: it fits.";
    assert!(told.starts_with(first), "{told}");
    let weakest =
        format!("The weakest node is 127.0.0.1:{}: it has the least available memory.", weak.port);
    assert!(told.contains(&weakest), "{told}");
    // 100 GiB less 9 for its processes and 3.75 to spare, of 120.
    assert!(told.contains("--gpu-memory-utilization 0.72 at most on each node"), "{told}");
    let shown = parsed(&fit(&node, &[&of[..], &["--json"]].concat()));
    assert_eq!(shown["vllm_utilization"], json!(0.72));
    assert_eq!(shown["nodes"][0]["available_bytes"], json!(112 * GIB), "above the reserve");
    assert_eq!(shown["nodes"][1]["kv_wanted_bytes"], json!(10 * GIB));
    let too_much = fit(&node, &["--weights=170GiB", &peers]);
    assert_eq!(too_much.status.code(), Some(1));
    assert!(stdout(&too_much).contains("it does not fit."), "{}", stdout(&too_much));
}

#[test]
fn a_node_that_does_not_tell_is_no_node_with_room() {
    let node = Node::new(Memory::free(114));
    let strange = FakeEngine::start(|_: &Asked| Reply::Answer(200, "<html>".to_owned()));
    let peers = format!("--peers=127.0.0.1:{}", strange.port);
    let output = fit(&node, &["--weights=10GiB", &peers]);
    assert_eq!(output.status.code(), Some(1));
    let told = stderr(&output);
    assert!(told.contains("unknown whether it fits"), "{told}");
    assert!(told.contains("not as umawarden does"), "{told}");
    let shown = parsed(&fit(&node, &["--weights=10GiB", &peers, "--json"]));
    assert_eq!(shown["fits"], Value::Null);
    assert_eq!(shown["silent"].as_array().unwrap().len(), 1);
}

#[test]
fn nodes_are_planned_or_taken_to_be_like_this_one_and_that_is_said() {
    let node = Node::new(Memory::free(114));
    let output = fit(&node, &["--weights=130GiB", "--nodes=2"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let told = stdout(&output);
    assert!(told.contains("note: one node is assumed to be like this one"), "{told}");
    let planned = parsed(&fit(
        &node,
        &["--weights=130GiB", "--nodes=2", "--memory=121GiB", "--taken=5GiB", "--json"],
    ));
    assert_eq!(planned["nodes"][1]["available_bytes"], json!(116 * GIB));
    assert_eq!(planned["fits"], json!(true));
}

#[test]
fn a_real_daemon_tells_a_peer_what_it_has_and_counts_once() {
    let storage = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(storage.path(), &[]);
    daemon.wait_until("it has measured", |daemon| daemon.get("/api/v1/gate?need=0").0 == 200);
    let node = Node::new(Memory::free(114));
    let peers = format!("--peers={}", daemon.address());
    let shown = parsed(&fit(&node, &["--weights=1MiB", &peers, "--json"]));
    let told = shown["nodes"][1]["total_bytes"].as_f64().unwrap();
    assert_eq!(told, meminfo_bytes("MemTotal"), "{shown}");
    let config = node.path("umawarden.yaml");
    let text = format!("web: {{listen_address: ['{}']}}\n", daemon.address());
    fs::write(&config, text).unwrap();
    let config = format!("--config.file={}", config.display());
    let once = parsed(&fit(&node, &["--weights=1MiB", &peers, "--json", &config]));
    assert_eq!(once["nodes"].as_array().unwrap().len(), 1, "{once}");
}

#[test]
fn a_models_folder_tells_its_weights_and_what_a_token_takes() {
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
    let shown = parsed(&fit(&node, &[&folder, "--context=1000", "--requests=3", "--json"]));
    assert_eq!(shown["weights_bytes"], json!(4096));
    assert_eq!(shown["kv_bytes_per_token"], json!(320 << 10));
    assert_eq!(shown["tokens"], json!(3000));
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
