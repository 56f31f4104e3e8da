//! Kernel logs of the tests' own: files and FIFOs.

use std::fs::{self, File};
use std::io::Write as _;

use super::{ALWAYS, Node, XID, XIDS, make_fifo, record};
use crate::daemon::{Daemon, history, of_kind};

const RECORDS: &str = "uma_kernel_log_records_total";
const MALFORMED: &str = "uma_kernel_log_malformed_records_total";

fn append(node: &Node, text: &str) {
    let mut file = File::options().append(true).open(node.path("kmsg")).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

fn events(daemon: &Daemon) -> Vec<serde_json::Value> {
    let (status, body) = daemon.get("/api/v1/events?limit=1000");
    if status != 200 {
        return Vec::new();
    }
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    body["data"]["events"].as_array().unwrap().clone()
}

#[test]
fn events_of_a_file_are_counted_served_and_kept() {
    let node = Node::new("gb10-4k");
    append(&node, &record(1, XID));
    let daemon = node.start(&[]);
    assert_eq!(daemon.metric(XIDS), 1.0);
    assert_eq!(daemon.metric("uma_kernel_log_reader{reader=\"file\"}"), 1.0);
    append(&node, &record(2, XID));
    append(&node, "12,3,3000,-;written by user space: NVRM: Xid (PCI:000f:01:00): 79\n");
    append(&node, "4,5,5000,-;one was lost before this one\n");
    daemon.wait_until("read", |daemon| daemon.metric(RECORDS) == 4.0);
    assert_eq!(daemon.metric(XIDS), 2.0);
    assert_eq!(daemon.metric("uma_kernel_log_lost_records_total"), 1.0);
    assert_eq!(daemon.metric("uma_kernel_log_userspace_records_total"), 1.0);
    daemon.wait_until("serving both", |daemon| events(daemon).len() == 2);
    assert_eq!(events(&daemon)[0]["pci"], "000f:01:00");
    daemon.terminate();
    assert_eq!(of_kind(&history(&node.storage()), "xid").count(), 2);
}

#[test]
fn a_restart_goes_on_where_the_last_run_ended() {
    let node = Node::new("gb10-4k");
    node.write_rules(ALWAYS);
    append(&node, &record(1, XID));
    append(&node, &record(2, XID));
    let daemon = node.start(&[]);
    daemon.wait_until("journalled", |daemon| events(daemon).len() == 2);
    daemon.kill();
    append(&node, &record(3, XID));
    let daemon = node.start(&[]);
    daemon.wait_until("journalled", |daemon| events(daemon).len() == 3);
    assert_eq!(daemon.metric(XIDS), 1.0, "only what came in between");
    daemon.terminate();
    append(&node, &record(4, "nothing of note"));
    let daemon = node.start(&[]);
    daemon.wait_until("read", |daemon| daemon.metric(RECORDS) > 0.0);
    assert_eq!((daemon.metric(RECORDS), daemon.metric(XIDS)), (1.0, 0.0));
    daemon.terminate();
    let history = history(&node.storage());
    let seqs: Vec<_> = of_kind(&history, "xid").map(|event| event["seq"].as_u64()).collect();
    assert_eq!(seqs, [Some(1), Some(2), Some(3)]);
    let mut ids: Vec<_> =
        of_kind(&history, "decision").map(|decision| decision["id"].as_u64().unwrap()).collect();
    let decisions = ids.len();
    ids.dedup();
    assert!(decisions >= 3 && ids.len() == decisions && ids.is_sorted(), "{ids:?}");
}

#[test]
fn hostile_records_in_a_fifo_are_survived_and_the_next_event_is_seen() {
    let node = Node::new("gb10-4k");
    make_fifo(&node.path("kmsg"));
    let daemon = node.start(&[]);
    let write = |bytes: &[u8]| {
        // Each writer comes and goes.
        File::options().write(true).open(node.path("kmsg")).unwrap().write_all(bytes).unwrap();
    };
    write(record(1, XID).as_bytes());
    daemon.wait_until("seen", |daemon| daemon.metric(XIDS) == 1.0);
    write(format!("4,{},1,-;{XID}\n", u64::MAX).as_bytes());
    write(format!("4,{}0,1,-;{XID}\n", u64::MAX).as_bytes());
    write(b"\xff\xfe\x00,,;;\n\n\n;\n");
    write(&[b"x".repeat(100_000), b"\n".to_vec()].concat());
    write(format!("4,2,18446744073709551615,-;{XID}\n").as_bytes());
    write(
        record(3, "INFO: task a\\x0ab:1 blocked for more than 99999999999999999999 s").as_bytes(),
    );
    let before = daemon.metrics();
    write(record(4, XID).as_bytes());
    daemon.wait_until("seeing again", |daemon| daemon.metric(XIDS) == 3.0);
    assert!(daemon.metric(MALFORMED) >= 3.0, "{before:#?}");
    assert_eq!(daemon.get("/-/healthy").0, 200);
    let idle = daemon.metric("process_cpu_seconds_total");
    std::thread::sleep(std::time::Duration::from_secs(2));
    let used = daemon.metric("process_cpu_seconds_total") - idle;
    assert!(used < 1.0, "a FIFO without a writer costs {used} s of CPU in 2 s");
}

#[test]
fn a_storm_of_one_kind_is_counted_whole_and_logged_in_part() {
    let node = Node::new("gb10-4k");
    let daemon = node.start(&[]);
    append(&node, &(1..=3000).map(|seq| record(seq, XID)).collect::<String>());
    daemon.wait_until("read", |daemon| daemon.metric(XIDS) == 3000.0);
    daemon.wait_until("journalled", |_| of_kind(&history(&node.storage()), "xid").count() == 3000);
    let (_, log) = daemon.terminate();
    let told = log.lines().filter(|line| line.contains("kernel event")).count();
    assert!((1..100).contains(&told), "{told} lines");
}

#[test]
fn a_log_that_is_begun_anew_is_read_from_its_start() {
    let node = Node::new("gb10-4k");
    append(&node, &(1..=3).map(|seq| record(seq, XID)).collect::<String>());
    let daemon = node.start(&[]);
    fs::write(node.path("kmsg"), record(9, XID)).unwrap();
    daemon.wait_until("read", |daemon| daemon.metric(XIDS) == 4.0);
}
