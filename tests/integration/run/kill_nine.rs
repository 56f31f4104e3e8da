//! `kill -9` in enforce mode: every decision is compared with its outcome and with the effect.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use super::{Node, make_fifo};
use crate::daemon::{Daemon, history, of_kind};

const KILLS: u64 = 50;

/// Acts as often as it may.
const OFTEN: &str = "
groups:
- name: g
  interval: 20ms
  rules:
  - alert: Often
    expr: uma_memory_free_bytes >= 0
    remedy:
      aim: uma_memory_free_bytes < 0
      steps:
      - drop_caches: {what: pagecache}
      cooldown: 50ms
      at_most: {times: 1000, per: 1h}
      breaker: {misses: 0, reset_after: 1m}
";

#[test]
fn kill_nine_loses_no_decision_and_repeats_none() {
    let node = Node::new("gb10-4k");
    node.write_rules(OFTEN);
    // The test reads the file: one byte a drop, and no kill loses one.
    make_fifo(&node.drop_caches());
    let mut dropped = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(node.drop_caches())
        .unwrap();
    let own = node.arguments();
    let mut arguments: Vec<&str> = own.iter().map(String::as_str).collect();
    arguments.push("--mode=enforce");
    for round in 0..KILLS {
        let daemon = Daemon::spawn(&node.storage(), &arguments);
        std::thread::sleep(Duration::from_millis(20 + round * 37 % 600));
        daemon.kill();
    }
    // It handles the leftovers of the last one, and ends cleanly.
    Daemon::start(&node.storage(), &arguments).terminate();
    let mut drops = vec![0; 64 << 10];
    let drops = dropped.read(&mut drops).unwrap_or(0);

    let history = history(&node.storage());
    let mut ended: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for outcome in of_kind(&history, "outcome") {
        let results = ended.entry(outcome["decision"].as_u64().unwrap()).or_default();
        results.push(outcome["result"].as_str().unwrap().to_owned());
    }
    let acts: Vec<u64> = of_kind(&history, "decision")
        .filter(|decision| decision["decision"] == "act" && decision["mode"] == "enforce")
        .map(|decision| decision["id"].as_u64().unwrap())
        .collect();
    assert!(acts.windows(2).all(|two| two[0] < two[1]), "a number is given twice: {acts:?}");
    for (decision, results) in &ended {
        assert!(acts.contains(decision), "decision {decision} of {results:?} is missing");
        assert_eq!(results.len(), 1, "decision {decision} ended as {results:?}");
    }
    let done = ended.values().filter(|results| results[0] == "done").count();
    let open = acts.len() - ended.len();
    println!("{} decisions, {done} done, {open} cut off, {drops} drops", acts.len());
    assert!(done as u64 >= KILLS / 2, "too few acts for a result: {done}");
    // One act is under way at a time, so a kill interrupts at most one.
    assert!(open as u64 <= KILLS, "{open} decisions have no outcome");
    assert!(done <= drops, "{done} are recorded as done, and {drops} were");
    assert!(drops <= acts.len(), "{drops} drops of {} decisions", acts.len());
}
