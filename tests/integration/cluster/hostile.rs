//! A node whose peers hang, send nonsense or endless responses, or are down.

use std::fs;

use super::Node;
use crate::empty_cache::fake::{FakeServer, Reply};

const AVAILABLE: &str = "uma_memory_available_bytes";

/// Allowed growth of a node with hostile peers, in KiB: buffers for responses of at most 4 MiB
/// each.
const GROWTH_KIB: u64 = 48 << 10;

fn available(value: &str) -> Reply {
    Reply::Answer(200, format!("{AVAILABLE} {value}\n"))
}

fn resident_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn a_node_with_hanging_broken_or_missing_peers_works_as_before() {
    let million: String =
        (0..1_000_000).map(|number| format!("{AVAILABLE}{{x=\"{number}\"}} 1\n")).collect();
    let million = Reply::Answer(200, million);
    let replies = [
        Reply::Hang,
        Reply::Endless,
        million,
        available("1e300"),
        available("-1"),
        available("NaN"),
        available("x"),
    ];
    let servers = replies.map(|reply| FakeServer::start(move |_| reply.clone()));
    let mut peers: Vec<String> =
        servers.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect();
    // No process listens there.
    peers.push("127.0.0.1:9".to_owned());
    let list = peers.iter().map(|peer| format!("'{peer}'")).collect::<Vec<_>>().join(", ");
    let node = Node::with(&format!("name: rack, node: here, peers: [{list}], interval: 500ms"));
    let daemon = node.daemon();
    let before = resident_kib(daemon.pid());
    daemon.wait_until("lists all peers", |_| node.nodes().len() == 1 + peers.len());
    let (silent, impossible) = ([0, 1, 2, 7], "uma_cluster_refused_series_total");
    for peer in silent.map(|index: usize| &peers[index]) {
        daemon.wait_until(&format!("{peer} is silent"), |daemon| {
            daemon.metric(&format!("uma_cluster_peer_up{{peer=\"{peer}\"}}")).abs() < 0.5
        });
    }
    daemon.wait_until("impossible values are refused", |daemon| {
        daemon.metric(&format!("{impossible}{{reason=\"impossible\"}}")) >= 12.0
    });
    node.wait_for("Imbalance", "unknown");
    // Rules about this node are evaluated all the same.
    node.wait_for("Silent", "firing");
    assert_eq!((daemon.get("/-/healthy").0, daemon.get("/-/ready").0), (200, 200));
    let grown = resident_kib(daemon.pid()).saturating_sub(before);
    assert!(grown < GROWTH_KIB, "{grown} KiB more");
}
