//! `umawarden fit`: whether a model fits, and with which options.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
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
        "130.0 GiB of weights and 20.0 GiB of KV cache for 131072 tokens on 2 nodes: it is tight.";
    assert!(printed.starts_with(first), "{printed}");
    let weakest =
        format!("The weakest node is 127.0.0.1:{}: it has the least available memory.", weak.port);
    assert!(printed.contains(&weakest), "{printed}");
    // 100 GiB less 9 for its processes and 3.75 to spare, of 120.
    assert!(printed.contains("--gpu-memory-utilization 0.72 at most on each node"), "{printed}");
    let report = parsed(&fit(&node, &[&of[..], &["--json"]].concat()));
    assert_eq!(report["shares"]["vllm"]["most"], json!(0.72));
    assert_eq!(report["nodes"][1]["shares"]["vllm"]["most"], json!(0.72));
    assert!(report["shares"]["sglang"]["least"].is_f64(), "{report}");
    assert_eq!(report["nodes"][0]["available_bytes"], json!(112 * GIB), "above the reserve");
    assert_eq!(report["nodes"][1]["kv_wanted_bytes"], json!(10 * GIB));
    let too_much = fit(&node, &["--weights=200GiB", &peers]);
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

/// What public reports saw: given options and command, and what must and must not be said.
#[test]
fn reports_from_the_field_get_a_right_or_an_honest_answer() {
    let node = Node::new(Memory::free(114));
    let cases: Vec<Value> =
        serde_json::from_str(include_str!("../../fixtures/fit/cases.json")).unwrap();
    assert!(cases.len() >= 15);
    let texts = |value: &Value| -> Vec<String> {
        value.as_array().unwrap().iter().map(|one| one.as_str().unwrap().to_owned()).collect()
    };
    for case in &cases {
        let mut command = vec!["--".to_owned()];
        let words = case["command"].as_str().unwrap_or_default().split_ascii_whitespace();
        command.extend(words.map(str::to_owned));
        let run = |format: &[&str]| {
            let mut all = texts(&case["arguments"]);
            all.extend(format.iter().map(|word| (*word).to_owned()));
            if command.len() > 1 {
                all.extend(command.iter().cloned());
            }
            let all: Vec<&str> = all.iter().map(String::as_str).collect();
            fit(&node, &all)
        };
        let name = case["case"].as_str().unwrap();
        let output = run(&[]);
        let printed = stdout(&output);
        for text in texts(&case["says"]) {
            assert!(printed.contains(&text), "{name}: {text}: {printed}{}", stderr(&output));
        }
        for text in texts(&case["not"]) {
            assert!(!printed.contains(&text), "{name}: {text}: {printed}");
        }
        let report = parsed(&run(&["--json"]));
        assert_eq!(report["result"], case["result"], "{name}");
        let fits = matches!(case["result"].as_str(), Some("fits" | "tight"));
        assert_eq!(report["fits"], json!(fits), "{name}");
        assert_eq!(output.status.code(), Some(i32::from(!fits)), "{name}");
    }
}

/// A file of that size without content.
fn sparse(path: &Path, bytes: u64) {
    fs::File::create(path).unwrap().set_len(bytes).unwrap();
}

#[test]
fn a_consolidated_file_beside_its_shards_counts_once() {
    let node = Node::new(Memory::free(114));
    let model = node.path("mistral");
    fs::create_dir(&model).unwrap();
    sparse(&model.join("consolidated.safetensors"), 44 * GIB);
    for part in 1..=4 {
        sparse(&model.join(format!("model-0000{part}-of-00004.safetensors")), 11 * GIB);
    }
    let folder = format!("--model={}", model.display());
    let plan = [&*folder, "--memory=121.69GiB"];
    let output = fit(&node, &plan);
    let printed = stdout(&output);
    assert!(printed.starts_with("44.0 GiB of weights on one node: it fits."), "{printed}");
    assert!(printed.contains("consolidated.safetensors (the same weights once more"), "{printed}");
    assert!(printed.contains("config.json"), "{printed}");
    let native = [&plan[..], &["--", "vllm", "serve", "m", "--load-format", "mistral"]].concat();
    let report = parsed(&fit(&node, &[&["--json"][..], &native].concat()));
    assert_eq!(report["weights_bytes"], json!(44 * GIB));
    assert_eq!(report["command"]["loader"]["peak_percent"], json!(180));
    sparse(&model.join("q8.gguf"), GIB);
    fs::remove_file(model.join("model-00003-of-00004.safetensors")).unwrap();
    let cut = fit(&node, &plan);
    assert_eq!(cut.status.code(), Some(2));
    assert!(stderr(&cut).contains("3 of 4 parts of model; the download is incomplete"));
}

#[test]
fn one_quantization_of_several_must_be_named() {
    let node = Node::new(Memory::free(114));
    let model = node.path("gguf");
    fs::create_dir(&model).unwrap();
    for (name, gib) in [
        ("q4-00001-of-00002.gguf", 30),
        ("q4-00002-of-00002.gguf", 20),
        ("q8.gguf", 100),
        ("mmproj-f16.gguf", 1),
    ] {
        sparse(&model.join(name), gib * GIB);
    }
    let of = |path: &Path| fit(&node, &[&format!("--model={}", path.display()), "--json"]);
    let both = of(&model);
    assert_eq!(both.status.code(), Some(2));
    let named = "2 models in the format GGUF, of which an engine loads one: \
                 q4-00001-of-00002.gguf, q8.gguf; name the file";
    assert!(stderr(&both).contains(named), "{}", stderr(&both));
    let one = parsed(&of(&model.join("q4-00001-of-00002.gguf")));
    assert_eq!(one["weights_bytes"], json!(50 * GIB));
    // The command's own model and context.
    let file = model.join("q8.gguf");
    let command = ["--", "llama-server", "-m", file.to_str().unwrap(), "-c", "8192"];
    let report = parsed(&fit(&node, &[&["--json", "--kv-per-token=64KiB"][..], &command].concat()));
    assert_eq!(report["weights_bytes"], json!(100 * GIB));
    assert_eq!(report["tokens"], json!(8192));
    assert_eq!(report["command"]["loader"]["weights"], json!("mapped"));
}

/// Descriptions in the forms of the named families, with sizes that are easy to check.
#[test]
fn hybrid_models_keep_a_cache_in_their_layers_of_attention_only() {
    let node = Node::new(Memory::free(114));
    let model = node.path("hybrid");
    fs::create_dir(&model).unwrap();
    sparse(&model.join("model.safetensors"), GIB);
    let folder = format!("--model={}", model.display());
    let configs: Value =
        serde_json::from_str(include_str!("../../fixtures/fit/models.json")).unwrap();
    for (name, of) in configs.as_object().unwrap() {
        fs::write(model.join("config.json"), of["config"].to_string()).unwrap();
        let plan = [&*folder, "--memory=121GiB", "--context=100K"];
        let report = parsed(&fit(&node, &[&plan[..], &["--json"]].concat()));
        assert_eq!(report["layers"]["kv"], of["kv_layers"], "{name}: {report}");
        assert_eq!(report["layers"]["all"], of["layers"], "{name}");
        assert_eq!(report["nodes"][0]["kv_wanted_bytes"], of["bytes_of_100k"], "{name}");
        let printed = stdout(&fit(&node, &plan));
        let said = format!("{} of {} layers keep KV cache", of["kv_layers"], of["layers"]);
        assert!(printed.contains(&said), "{name}: {printed}");
    }
}

#[test]
fn a_command_that_cannot_be_read_is_refused_with_what_to_write() {
    let node = Node::new(Memory::free(114));
    fs::create_dir(node.path("empty")).unwrap();
    let given = fit(&node, &["--weights=1GiB", "--", "vllm", "serve", "empty"]);
    let noted = "note: the command's model is not read: cannot use the folder empty";
    assert!(stdout(&given).contains(noted), "{}", stdout(&given));
    for (arguments, expected) in [
        (&["--", "ls", "-l"][..], "starts no engine that is known here"),
        (&["--", "vllm", "serve", "org/model"], "the model org/model, which is no file or folder"),
        (&["--", "llama-server", "-hf", "a/b"], "--weights"),
        (&["--weights=1GiB", "--mapped=2GiB"], "--mapped is more than all weights"),
        (&["--weights=1GiB", "--kv-cache-dtype=fp9"], "write auto, fp8"),
        (&["--weights=1GiB", "--requests=0"], "--requests"),
    ] {
        let output = fit(&node, arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains(expected), "{arguments:?}: {}", stderr(&output));
    }
}

#[test]
fn a_model_for_images_is_tight_unless_its_images_are_bounded() {
    let node = Node::new(Memory::free(114));
    let model = node.path("gemma");
    fs::create_dir(&model).unwrap();
    sparse(&model.join("model.safetensors"), 48 * GIB);
    let config = json!({
        "text_config": { "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 64 },
        "vision_config": { "hidden_size": 64 },
    });
    fs::write(model.join("config.json"), config.to_string()).unwrap();
    let run = |options: &[&str]| {
        let command = ["--", "vllm", "serve", model.to_str().unwrap()];
        let share = ["--gpu-memory-utilization", "0.65", "--max-model-len", "8K"];
        let plan = ["--memory=121.69GiB", "--json"];
        parsed(&fit(&node, &[&plan[..], &command, &share, options].concat()))
    };
    let unbounded = run(&[]);
    assert_eq!(unbounded["result"], json!("tight"), "{unbounded}");
    assert_eq!(unbounded["causes"], json!(["profiling"]));
    let bounded = run(&["--limit-mm-per-prompt", "{\"image\": 0}"]);
    assert_eq!(bounded["result"], json!("fits"), "{bounded}");
}

#[test]
fn gate_and_launch_note_what_the_loader_costs() {
    let node = Node::new(Memory::free(114));
    let note = "umawarden: note: vLLM's loader (instanttensor) reads with direct I/O";
    let command = ["--", "./vllm", "serve", "m", "--load-format", "instanttensor"];
    let gate = node.gate(&[&["--need=1GiB", "--timeout=0"][..], &command].concat());
    let gate = { gate }.output().unwrap();
    assert_eq!(gate.status.code(), Some(0), "{}", stderr(&gate));
    assert!(stderr(&gate).contains(note), "{}", stderr(&gate));
    assert!(stderr(&gate).contains("It spares the page cache."), "{}", stderr(&gate));
    let program = node.path("vllm");
    fs::write(&program, "#!/bin/sh\necho served\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let data = format!("--storage.path={}", node.path("data").display());
    let launch = |options: &[&str]| {
        node.command("launch", &[options, &[&*data], &command].concat()).output().unwrap()
    };
    let output = launch(&[]);
    assert_eq!(stdout(&output), "served\n");
    assert!(stderr(&output).contains(note), "{}", stderr(&output));
    let json = launch(&["--json"]);
    assert!(!stderr(&json).contains("note:"), "standard error has the report alone");
    let other = node.command("launch", &[&data, "--", "true"]).output().unwrap();
    assert!(!stderr(&other).contains("note:"), "{}", stderr(&other));
}

/// The head of a GGUF file of 2 layers with 2 KV heads of 64.
fn gguf_head() -> Vec<u8> {
    let mut bytes = [&b"GGUF"[..], &3_u32.to_le_bytes(), &0_u64.to_le_bytes()].concat();
    let name = "general.architecture";
    let numbers = [
        ("llama.block_count", 2_u32),
        ("llama.embedding_length", 512),
        ("llama.attention.head_count", 8),
        ("llama.attention.head_count_kv", 2),
    ];
    bytes.extend((1 + numbers.len() as u64).to_le_bytes());
    for text in [name, "llama"] {
        bytes.extend((text.len() as u64).to_le_bytes());
        bytes.extend(text.as_bytes());
        if text == name {
            bytes.extend(8_u32.to_le_bytes());
        }
    }
    for (key, number) in numbers {
        bytes.extend((key.len() as u64).to_le_bytes());
        bytes.extend(key.as_bytes());
        bytes.extend(4_u32.to_le_bytes());
        bytes.extend(number.to_le_bytes());
    }
    bytes
}

#[test]
fn the_cache_of_a_gguf_model_is_read_from_its_head() {
    let node = Node::new(Memory::free(114));
    let file = node.path("q4.gguf");
    fs::write(&file, gguf_head()).unwrap();
    let command = ["--", "llama-server", "-m", "q4.gguf", "-c", "8192", "-ctk", "q8_0"];
    let report = parsed(&fit(&node, &[&["--json"][..], &command].concat()));
    assert_eq!(report["layers"]["kv"], json!(2));
    assert_eq!(report["kv_bytes_per_token"], json!(2 * 2 * 128 * 34 / 32), "8 bits and a scale");
    let wanted = 8192 * 2 * 2 * 128 * 34 / 32;
    assert_eq!(report["nodes"][0]["kv_wanted_bytes"], json!(wanted));
}
