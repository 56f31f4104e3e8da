//! The interval at which memory is sampled.

use std::fs;

use super::{Node, XID, record};

const INTERVAL: &str = "uma_sampling_interval_seconds";

/// The fixture's machine of 121 GiB with that much free, and twice as much available.
fn with_free(node: &Node, free_kib: u64) {
    node.set_meminfo("MemAvailable", 2 * free_kib);
    node.set_meminfo("MemFree", free_kib);
}

#[test]
fn the_sampling_interval_follows_available_memory() {
    let node = Node::new("gb10-4k");
    with_free(&node, 40 << 20);
    let daemon = node.start(&[]);
    daemon.wait_until("slow", |daemon| daemon.metric(INTERVAL) == 0.25);
    with_free(&node, 6 << 20);
    daemon.wait_until("fast", |daemon| daemon.metric(INTERVAL) == 0.02);
    daemon.wait_until("at the middle interval", |daemon| daemon.metric(INTERVAL) == 0.1);
    daemon.wait_until("calm again", |daemon| daemon.metric(INTERVAL) == 0.25);
    daemon.terminate();
}

#[test]
fn a_fixed_sampling_interval_stays_the_same() {
    let node = Node::new("gb10-4k");
    with_free(&node, 40 << 20);
    let daemon = node.start(&["--sampling-interval=50ms"]);
    with_free(&node, 1 << 20);
    let free = 1024.0 * 1024.0 * 1024.0;
    daemon.wait_until("reported", |daemon| daemon.metric("uma_memory_free_bytes") == free);
    assert_eq!(daemon.metric(INTERVAL), 0.05);
    let reactions = |part: &str| daemon.metric(&format!("uma_loop_reaction_seconds_{part}"));
    daemon.wait_until("reactions counted", |_| reactions("count") > 10.0);
    let metrics = daemon.metrics();
    let part = |part: &str| metrics[&format!("uma_loop_reaction_seconds_{part}")];
    assert_eq!(part("bucket{le=\"+Inf\"}"), part("count"));
    assert!(part("sum") > 0.0);
    daemon.terminate();
}

#[test]
fn kernel_events_and_rules_shorten_the_sampling_interval() {
    let node = Node::new("gb10-4k");
    with_free(&node, 40 << 20);
    node.write_rules(
        "groups: [{name: g, interval: 1s, rules: [{alert: Short, \
         expr: 'deriv(uma_memory_free_bytes[120ms]) > 1e18'}]}]\n",
    );
    let daemon = node.start(&[]);
    daemon.wait_until("a third of the range", |daemon| daemon.metric(INTERVAL) == 0.04);
    daemon.terminate();

    node.write_rules("groups: []\n");
    let daemon = node.start(&[]);
    daemon.wait_until("slow", |daemon| daemon.metric(INTERVAL) == 0.25);
    fs::write(node.path("kmsg"), record(1, XID)).unwrap();
    daemon.wait_until("at the middle interval", |daemon| daemon.metric(INTERVAL) == 0.1);
    daemon.terminate();
}
