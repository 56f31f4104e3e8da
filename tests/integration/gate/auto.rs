//! `--need auto` and `fit --like`: what an engine took before.

use std::process::Output;

use serde_json::Value;

use super::{Memory, Node, stderr, stdout};
use crate::load_receipts::{load, write};

const SERVE: &str = "vllm serve qwen --max-model-len 4096";

/// A node with 100 GiB free, and the loads of two configurations: the newest is the smallest.
fn node() -> Node {
    let node = Node::new(Memory::free(100));
    let old = "vllm serve qwen --max-model-len 99999";
    let events = vec![
        load("qwen", 0, 300, old, "6.17"),
        load("qwen", 1_000, 60, SERVE, "6.17"),
        load("qwen", 2_000, 40, SERVE, "6.18"),
        load("small", 3_000, 8, "vllm serve small", "6.18"),
    ];
    write(&node.path("data"), events);
    node
}

fn run(node: &Node, command: &str, arguments: &[&str]) -> Output {
    let storage = format!("--storage.path={}", node.path("data").display());
    let all: Vec<&str> = [&*storage].into_iter().chain(arguments.iter().copied()).collect();
    node.command(command, &all).output().unwrap()
}

#[test]
fn the_gate_waits_for_what_an_engine_took_before() {
    let node = node();
    let gate = |arguments: &[&str]| run(&node, "gate", &[&["--timeout=0"], arguments].concat());
    let auto = ["--need=auto", "--like"];
    let small = gate(&[&auto[..], &["small", "--json"]].concat());
    assert_eq!(small.status.code(), Some(0), "{}", stderr(&small));
    let expected = "--need auto is 20.0 GiB for small: the most of 1 earlier load (number 4: 8.0 GiB \
                    when ready, 12.0 GiB of growth after that)";
    assert!(stderr(&small).contains(expected), "{}", stderr(&small));
    let json: Value = serde_json::from_str(&stdout(&small)).unwrap();
    assert_eq!(json["need_bytes"].as_u64(), Some(20 << 30), "{json}");
    let any = gate(&[&auto[..], &["qwen"]].concat());
    assert_eq!(any.status.code(), Some(2), "a node of 120 GiB never has 312: {}", stderr(&any));
    let same = ["qwen", "--", "vllm", "serve", "qwen", "--max-model-len", "4096"];
    let same = gate(&[&auto[..], &same].concat());
    assert_eq!(same.status.code(), Some(0), "{}", stderr(&same));
    assert!(stderr(&same).contains("72.0 GiB for qwen: the most of 2 earlier loads (number 2"));
    let other = gate(&[&auto[..], &["small", "--", "vllm", "serve", "x"]].concat());
    let note = "1 earlier load, none of them with these arguments";
    assert!(stderr(&other).contains(note), "{}", stderr(&other));
}

#[test]
fn without_a_load_nothing_is_guessed() {
    let node = node();
    for (arguments, expected) in [
        (&["--need=auto", "--like=nobody"][..], "no earlier load of nobody is known in full"),
        (&["--need=auto", "--like=a\u{1b}[2J"], "a\\u{1b}[2J is known in full: give its size"),
        (&["--need=auto"], "--need auto needs --like NAME"),
        (&["--need=1GiB", "--like=qwen"], "--like goes with --need auto"),
        (&["--need=Auto", "--like=qwen"], "invalid value 'Auto'"),
    ] {
        let gate = run(&node, "gate", arguments);
        assert_eq!(gate.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&gate).contains(expected), "{expected}\n{}", stderr(&gate));
    }
    let launch = ["--need=auto", "--timeout=0", "--name=nobody", "--", "true"];
    let launch = run(&node, "launch", &launch);
    assert_eq!(launch.status.code(), Some(2), "{}", stderr(&launch));
    assert!(stderr(&launch).contains("or run it once while `umawarden run` watches"));
    let empty = Node::new(Memory::free(100));
    let none = run(&empty, "gate", &["--need=auto", "--like=qwen"]);
    assert_eq!(none.status.code(), Some(2), "{}", stderr(&none));
}

#[test]
fn launch_waits_for_what_the_engine_of_its_name_took() {
    let node = node();
    let launch =
        |name: &str| run(&node, "launch", &["--need=auto", "--timeout=0", name, "--", "true"]);
    let small = launch("--name=small");
    assert_eq!(small.status.code(), Some(0), "{}", stderr(&small));
    assert!(stderr(&small).contains("--need auto is 20.0 GiB for small"), "{}", stderr(&small));
    assert_eq!(launch("--name=qwen").status.code(), Some(124), "this node never has so much");
}

#[test]
fn fit_counts_what_an_engine_took_before() {
    let node = node();
    let small = run(&node, "fit", &["--like=small", "--json"]);
    assert_eq!(small.status.code(), Some(0), "{}{}", stdout(&small), stderr(&small));
    let json: Value = serde_json::from_str(&stdout(&small)).unwrap();
    assert_eq!(json["weights_bytes"].as_u64(), Some(8 << 30), "{json}");
    assert_eq!(json["result"], "fits", "{json}");
    let note = json["notes"][0].as_str().unwrap();
    assert!(note.starts_with("counted as weights is all that it took before: 20.0 GiB"), "{note}");
    let large = run(&node, "fit", &["--like=qwen"]);
    assert_eq!(large.status.code(), Some(1), "{}", stdout(&large));
    for arguments in [&["--like=nobody"][..], &["--like=small", "--weights=1GiB"]] {
        assert_eq!(run(&node, "fit", arguments).status.code(), Some(2), "{arguments:?}");
    }
}
