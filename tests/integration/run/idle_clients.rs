//! Memory that clients cost the daemon that never read.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use super::Node;
use crate::daemon::Daemon;
use crate::exports::hoards::connect_from;

fn resident_bytes(daemon: &Daemon) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Each requests much more than its socket takes, and never reads. All have one address; without a
/// limit for that they took 37 MiB.
#[test]
fn hundreds_of_clients_that_never_read_cost_a_few_mebibytes() {
    let node = Node::new("gb10-4k");
    // The rules of the binary, and this machine: 100 KiB of metrics.
    let kmsg = format!("--path.kmsg={}", node.path("kmsg").display());
    let daemon = Daemon::start(&node.storage(), &[&kmsg]);
    (0..10).for_each(|_| drop(daemon.metrics()));
    let before = resident_bytes(&daemon);
    let to = daemon.address().parse().unwrap();
    let request = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".repeat(60);
    let hoard: Vec<TcpStream> = (0..500)
        .map(|_| {
            let mut stream = connect_from(2, to);
            // The daemon may have closed the connection.
            let _ = stream.write_all(&request);
            // A client that is served at all gets the beginning of a response.
            let _ = stream.read(&mut [0; 1]);
            stream
        })
        .collect();
    let taken = resident_bytes(&daemon).saturating_sub(before);
    eprintln!("500 clients that never read take {} KiB", taken >> 10);
    assert!(taken < 16 << 20, "{taken} bytes");
    assert_eq!(daemon.get("/metrics").0, 200, "another one is served");
    drop(hoard);
    daemon.terminate();
}
