//! More posts than any Alertmanager sends: none is lost or counted twice, and memory stays bounded.

use std::fs::File;
use std::io::BufReader;
use std::net::TcpStream;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use serde_json::Value;
use umawarden::model::{Observation, Role};
use umawarden::recording::{RecordingEntry, SegmentReader, segment_files};

use super::{Poster, alert, node, post, turns};
use crate::access::{Files, TLS, bearer, program, tls_client, token};
use crate::daemon::Daemon;
use crate::run::Node;

const POSTERS: usize = 4;
const ROUNDS: usize = 1_250;

/// Limit for the growth of memory in bytes: queued and stored alerts are bounded.
const GROWTH: f64 = 12e6;

/// The limit where each post is journalled and recorded: that takes up to 14 MB once, and no more
/// after four times as many posts.
const GROWTH_WHERE_ALL_IS_WRITTEN: f64 = 24e6;

const TURNS: &str = "uma_received_alert_turns_total";
const IGNORED: &str = "uma_received_alerts_ignored_total";

/// Posts until it is accepted.
fn insist(poster: &mut Poster, body: &str) {
    while poster.send(body) != 200 {
        // 503 asks for a retry.
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn sum(daemon: &Daemon, name: &str) -> f64 {
    let metrics = daemon.metrics();
    metrics.iter().filter(|(series, _)| series.starts_with(name)).map(|(_, value)| value).sum()
}

/// The alert of each poster in each round.
type AlertOf = fn(usize, usize) -> Value;

/// Its alert fires and ends again and again.
fn the_same(poster: usize, round: usize) -> Value {
    alert(&format!("Burst{poster}"), status(round), u64::try_from(round / 2).unwrap(), &[])
}

/// An alert fires and ends, and then another one.
fn ever_another(poster: usize, round: usize) -> Value {
    alert(&format!("Burst{poster}-{}", round / 2), status(round), 0, &[])
}

fn status(round: usize) -> &'static str {
    if round.is_multiple_of(2) { "firing" } else { "resolved" }
}

/// Ten thousand posts in a row by four at once, each of them twice, as by a pair of Alertmanagers.
fn ten_thousand_posts(
    node: &Node,
    daemon: Daemon,
    alert_of: AlertOf,
    connect: &(impl Fn() -> Poster + Sync),
    growth: f64,
) {
    let burst = |rounds: std::ops::Range<usize>| {
        std::thread::scope(|scope| {
            for poster in 0..POSTERS {
                let rounds = rounds.clone();
                scope.spawn(move || {
                    let mut connection = connect();
                    for round in rounds {
                        let body = post(vec![alert_of(poster, round)]);
                        insist(&mut connection, &body);
                        insist(&mut connection, &body);
                    }
                });
            }
        });
    };
    let resident = || sum(&daemon, "process_resident_memory_bytes");
    let expected = (POSTERS * ROUNDS) as f64;
    burst(0..ROUNDS / 5);
    let before = resident();
    burst(ROUNDS / 5..ROUNDS);
    daemon
        .wait_until("counted", |daemon| sum(daemon, "uma_received_posts_total") >= 2.0 * expected);
    daemon.wait_until("counted", |daemon| sum(daemon, TURNS) >= expected);
    assert_eq!(sum(&daemon, TURNS), expected, "none lost, none doubled");
    assert_eq!(sum(&daemon, IGNORED), expected);
    let after = resident();
    println!("{before} bytes before, {after} after");
    assert!(after < before + growth, "{before} bytes before, {after} after");
    daemon.terminate();
    assert_eq!(turns(node).len(), POSTERS * ROUNDS);
}

#[test]
fn ten_thousand_posts_in_a_burst_are_accepted_once_each() {
    let node = node();
    let daemon = node.start(&["--recording.size=0"]);
    let storage = node.storage();
    ten_thousand_posts(&node, daemon, the_same, &|| Poster::new(&storage), GROWTH);
}

#[test]
fn ten_thousand_posts_of_different_alerts_are_accepted_once_each_and_recorded() {
    let node = node();
    let daemon = node.start(&[]);
    let storage = node.storage();
    let connect = || Poster::new(&storage);
    ten_thousand_posts(&node, daemon, ever_another, &connect, GROWTH_WHERE_ALL_IS_WRITTEN);
    assert!(!alerts_of_steps(&node).is_empty());
}

#[test]
fn ten_thousand_posts_over_the_network_are_accepted_once_each() {
    let node = node();
    let ops = token("alertmanager", Role::Operate);
    let files = Files::new(TLS, &ops.entry());
    let daemon = program::start_with(&node, &files, |command| {
        command.arg("--recording.size=0");
    });
    let address = daemon.address().to_owned();
    let connect = || {
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let connection = ClientConnection::new(tls_client(None), name).unwrap();
        let stream = TcpStream::connect(&address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let stream = StreamOwned::new(connection, stream);
        Poster { stream: Box::new(stream), header: bearer(&ops) }
    };
    ten_thousand_posts(&node, daemon, the_same, &connect, GROWTH);
}

/// The longest posts, by two at once: the loop takes only a part of one in each step, so its other
/// work waits for a part and not for a post.
#[test]
fn the_longest_posts_are_accepted_in_parts_and_once_each() {
    const ALERTS: usize = 2_000;
    let node = node();
    let daemon = node.start(&[]);
    let of = |status: &str| {
        let names = (0..ALERTS).map(|number| format!("Long{number}"));
        post(names.map(|name| alert(&name, status, 0, &[])).collect::<Vec<Value>>())
    };
    let storage = node.storage();
    for body in [of("firing"), of("resolved")] {
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| insist(&mut Poster::new(&storage), &body));
            }
        });
    }
    let repeated = format!("{IGNORED}{{reason=\"repeated\"}}");
    daemon.wait_until("counted", |daemon| sum(daemon, &repeated) >= (2 * ALERTS) as f64);
    assert_eq!(sum(&daemon, &repeated), (2 * ALERTS) as f64);
    assert_eq!(sum(&daemon, "uma_received_posts_total"), 4.0);
    assert_eq!(sum(&daemon, &format!("{TURNS}{{to=\"firing\"}}")), ALERTS as f64);
    assert_eq!(sum(&daemon, &format!("{TURNS}{{to=\"resolved\"}}")), ALERTS as f64);
    daemon.terminate();
    assert_eq!(turns(&node).len(), 2 * ALERTS, "each of them is kept");
    let steps = alerts_of_steps(&node);
    assert!(steps.iter().all(|alerts| *alerts <= 100), "{steps:?}");
    // A recorder that lags drops steps.
    assert!(!steps.is_empty());
}

/// The number of alerts that each step took in, by the recording.
fn alerts_of_steps(node: &Node) -> Vec<usize> {
    let mut steps = Vec::new();
    for path in segment_files(&node.storage().join("recording")) {
        let mut reader = SegmentReader::open(BufReader::new(File::open(path).unwrap())).unwrap();
        while let Some(entry) = reader.next_entry().unwrap() {
            let RecordingEntry::Step(step) = entry else { continue };
            let of = |seen: &Observation| match seen {
                Observation::ReceivedAlerts(post) => Some(post.alerts.len()),
                _ => None,
            };
            let alerts: Vec<usize> = step.seen.iter().filter_map(of).collect();
            if !alerts.is_empty() {
                steps.push(alerts.iter().sum());
            }
        }
    }
    steps
}
