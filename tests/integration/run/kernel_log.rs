//! Kernel logs of the tests: files and FIFOs.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::net::UnixListener;

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
fn events_of_a_log_file_are_counted_served_and_journalled() {
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
fn a_restart_continues_where_the_last_run_ended() {
    let node = Node::new("gb10-4k");
    node.write_rules(ALWAYS);
    append(&node, &record(1, XID));
    append(&node, &record(2, XID));
    let daemon = node.start(&[]);
    daemon.wait_until("journalled", |daemon| events(daemon).len() == 2);
    let has_decided = |_: &Daemon| of_kind(&history(&node.storage()), "decision").count() > 0;
    daemon.wait_until("decided", has_decided);
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
    daemon.wait_until("reported", |daemon| daemon.metric(XIDS) == 1.0);
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
fn a_storm_of_one_event_is_counted_in_full_and_logged_in_part() {
    let node = Node::new("gb10-4k");
    let daemon = node.start(&[]);
    append(&node, &(1..=3000).map(|seq| record(seq, XID)).collect::<String>());
    daemon.wait_until("read", |daemon| daemon.metric(XIDS) == 3000.0);
    daemon.wait_until("journalled", |_| of_kind(&history(&node.storage()), "xid").count() == 3000);
    let (_, log) = daemon.terminate();
    let count = log.lines().filter(|line| line.contains("kernel event")).count();
    assert!((1..100).contains(&count), "{count} lines");
}

#[test]
fn a_truncated_log_is_read_from_its_start() {
    let node = Node::new("gb10-4k");
    append(&node, &(1..=3).map(|seq| record(seq, XID)).collect::<String>());
    let daemon = node.start(&[]);
    fs::write(node.path("kmsg"), record(9, XID)).unwrap();
    daemon.wait_until("read", |daemon| daemon.metric(XIDS) == 4.0);
}

/// Values of the series that the kernel log feeds.
fn fed(daemon: &Daemon) -> Vec<(String, f64)> {
    let is_fed = |series: &str| {
        series.starts_with("uma_kernel_event") || series.starts_with("uma_kernel_log_records")
    };
    daemon.metrics().into_iter().filter(|(series, _)| is_fed(series)).collect()
}

fn rule_state(daemon: &Daemon) -> (String, String) {
    let body: serde_json::Value = serde_json::from_str(&daemon.get("/api/v1/status").1).unwrap();
    let rule = &body["data"]["rules"][0];
    (rule["state"].as_str().unwrap().to_owned(), rule["unknown"].to_string())
}

const ON_XID: &str = "
groups:
- name: g
  interval: 100ms
  rules:
  - alert: Xid
    expr: increase(uma_kernel_events_total{event=\"xid\"}[1m]) > 0
";

#[test]
fn series_without_a_reader_are_missing_and_not_0() {
    let node = Node::new("gb10-4k");
    node.write_rules(ON_XID);
    fs::remove_file(node.path("kmsg")).unwrap();
    // A socket's file cannot be opened, and that is no reason to read the syslog ring instead.
    let _socket = UnixListener::bind(node.path("kmsg")).unwrap();
    let daemon = node.start(&[]);
    assert_eq!(daemon.metric("uma_kernel_log_reader{reader=\"none\"}"), 1.0);
    assert_eq!(daemon.metric("uma_scrape_collector_success{collector=\"kernel_log\"}"), 0.0);
    assert_eq!(fed(&daemon), []);
    daemon.wait_until("unknown", |daemon| rule_state(daemon).0 == "unknown");
    let reason = rule_state(&daemon).1;
    assert!(reason.contains("is neither a device, a file nor a FIFO"), "{reason}");
}

#[test]
fn series_fed_by_a_log_vanish_and_return_with_it() {
    let node = Node::new("gb10-4k");
    node.write_rules(ON_XID);
    let daemon = node.start(&[]);
    append(&node, &record(1, XID));
    daemon.wait_until("reported", |daemon| rule_state(daemon).0 == "firing");
    let before = fed(&daemon);
    assert!(before.contains(&(XIDS.to_owned(), 1.0)), "{before:?}");
    fs::rename(node.path("kmsg"), node.path("kept")).unwrap();
    fs::create_dir(node.path("kmsg")).unwrap();
    daemon.wait_until("missing", |daemon| fed(daemon).is_empty());
    daemon.wait_until("unknown", |daemon| rule_state(daemon).0 == "unknown");
    fs::remove_dir(node.path("kmsg")).unwrap();
    fs::rename(node.path("kept"), node.path("kmsg")).unwrap();
    daemon.wait_until("back", |daemon| fed(daemon) == before);
    daemon.wait_until("evaluated", |daemon| rule_state(daemon).0 == "firing");
}

#[test]
fn events_that_last_until_a_reboot_are_known_after_a_restart() {
    let node = Node::new("gb10-4k");
    node.write_rules(
        "groups: [{name: g, rules: [{alert: Fatal, expr: \
         'uma_kernel_event_last_timestamp_seconds{event=\"uvm_fatal\"} > 0'}]}]",
    );
    let daemon = node.start(&[]);
    let fatal = "uma_kernel_event_last_timestamp_seconds{event=\"uvm_fatal\"}";
    assert_eq!(daemon.count(fatal), 0.0);
    append(
        &node,
        &record(
            1,
            "NVRM: uvm encountered global fatal error 0x60, requiring os reboot to recover.",
        ),
    );
    daemon.wait_until("reported", |daemon| rule_state(daemon).0 == "firing");
    daemon.wait_until("journalled", |daemon| events(daemon).len() == 1);
    let then = daemon.metric(fatal);
    daemon.kill();
    let daemon = node.start(&[]);
    assert_eq!(daemon.metric(fatal), then);
    assert_eq!(daemon.metric("uma_kernel_events_total{event=\"uvm_fatal\"}"), 0.0);
    daemon.wait_until("firing", |daemon| rule_state(daemon).0 == "firing");
}

#[test]
fn log_lines_distinguish_old_events_from_new_ones() {
    let node = Node::new("gb10-4k");
    fs::write(node.path("not a folder"), "").unwrap();
    append(&node, &record(1, XID));
    // Without a journal the records are read again at every start.
    for _ in 0..2 {
        let daemon = node.start_with_storage(&node.path("not a folder"), &[]);
        append(&node, &record(2, XID));
        daemon.wait_until("reported", |daemon| {
            daemon.log().contains("kernel event kind=\"xid\" seq=2")
        });
        let (_, log) = daemon.terminate();
        let lines: Vec<&str> =
            log.lines().filter(|line| line.contains("kernel event kind=")).collect();
        let [old, new] = lines[..] else { panic!("{log}") };
        assert!(old.contains("DEBUG") && old.contains("old kernel event") && old.contains("seq=1"));
        assert!(old.contains("happened="), "{old}");
        assert!(new.contains("WARN") && !new.contains("old") && !new.contains("happened"), "{new}");
        fs::write(node.path("kmsg"), record(1, XID)).unwrap();
    }
}
