//! A node beside others that hang, lie, never end or are not there.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use super::Node;

const AVAILABLE: &str = "uma_memory_available_bytes";

/// So much may a node that asks liars grow, in KiB: buffers for answers of at most 4 MiB each.
const GROWTH_KIB: u64 = 48 << 10;

/// Does that with each connection, once it has been asked.
fn serve(answer: impl Fn(&mut TcpStream) + Copy + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || {
                let mut stream = stream.unwrap();
                let mut asked = [0; 4096];
                while stream.read(&mut asked).is_ok_and(|read| read > 0) {
                    answer(&mut stream);
                }
            });
        }
    });
    address
}

/// The head of an answer that ends with its connection.
fn begin(stream: &mut TcpStream) {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n\r\n";
    let _gone = stream.write_all(head.as_bytes());
}

fn says(stream: &mut TcpStream, value: &str) {
    begin(stream);
    let _gone = stream.write_all(format!("{AVAILABLE} {value}\n").as_bytes());
    let _gone = stream.shutdown(std::net::Shutdown::Both);
}

fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn a_node_beside_others_that_hang_lie_or_are_gone_goes_on_as_before() {
    let hangs = serve(|_| thread::sleep(Duration::from_secs(3_600)));
    let huge = serve(|stream| says(stream, "1e300"));
    let negative = serve(|stream| says(stream, "-1"));
    let nothing = serve(|stream| says(stream, "NaN"));
    let endless = serve(|stream| {
        begin(stream);
        let mut number = 0_u64;
        while writeln!(stream, "{AVAILABLE}{{x=\"{number}\"}} 1").is_ok() {
            number += 1;
        }
    });
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let liars = [&*hangs, &*huge, &*negative, &*nothing, &*endless, &*gone];
    let node = Node::with(&format!(
        "name: rack, node: here, peers: [{}], interval: 500ms",
        liars.map(|address| format!("'{address}'")).join(", ")
    ));
    let daemon = node.daemon();
    let before = resident_kib(daemon.pid());
    daemon.wait_until("knows them", |_| node.nodes().len() == 1 + liars.len());
    let silent = [&hangs, &endless, &gone];
    daemon.wait_until("three are silent", |daemon| {
        silent.iter().all(|peer| {
            daemon.metric(&format!("uma_cluster_peer_up{{peer=\"{peer}\"}}")).abs() < 0.5
        })
    });
    daemon.wait_until("three are not believed", |daemon| {
        daemon.metric("uma_cluster_refused_series_total{reason=\"impossible\"}") >= 12.0
    });
    node.wait_for("Imbalance", "unknown");
    // Rules about this node are judged all the same, and soon.
    node.wait_for("Silent", "firing");
    assert_eq!(daemon.get("/-/healthy").0, 200);
    assert_eq!(daemon.get("/-/ready").0, 200);
    let grown = resident_kib(daemon.pid()).saturating_sub(before);
    assert!(grown < GROWTH_KIB, "{grown} KiB more");
}
