//! Settings that are changed for a while, on files in place of the kernel's.

use std::fs;

use super::{Node, outcomes};
use crate::daemon::{Daemon, history, of_kind};

/// Fires while less than 5 GB are free.
const RULES: &str = "
groups:
- name: g
  rules:
  - alert: Short
    expr: uma_memory_free_bytes < 5e9
    remedy:
      steps: [{set_sysctl: {vm.swappiness: 10, vm.compaction_proactiveness: 99, for: 1h}}]
      cooldown: 0s
";

fn node() -> Node {
    let node = Node::new("gb10-4k");
    fs::write(node.path("proc/sys/vm/compaction_proactiveness"), "20\n").unwrap();
    node.write_rules(RULES);
    node
}

fn values(node: &Node) -> [String; 2] {
    ["swappiness", "compaction_proactiveness"].map(|name| {
        let text = fs::read_to_string(node.path("proc/sys/vm").join(name)).unwrap();
        text.trim().to_owned()
    })
}

fn is_set(daemon: &Daemon) -> bool {
    daemon.count("uma_temporary_settings{setting=\"vm.swappiness\"}") == 1.0
}

fn undone(daemon: &Daemon, result: &str) -> f64 {
    daemon.metric(&format!("uma_temporary_settings_undone_total{{result=\"{result}\"}}"))
}

const BEFORE: [&str; 2] = ["60", "20"];
const SET: [&str; 2] = ["10", "99"];

#[test]
fn a_setting_lasts_as_long_as_its_alert_and_history_shows_it() {
    let node = node();
    assert_eq!(values(&node), BEFORE);
    let daemon = node.start(&["--mode=enforce"]);
    daemon.wait_until("set", is_set);
    assert_eq!(values(&node), SET);
    node.set_meminfo("MemFree", 8 << 20);
    daemon.wait_until("undone", |daemon| undone(daemon, "restored") == 2.0);
    daemon.wait_until("reported", |daemon| daemon.count(&outcomes("undo", "done")) == 1.0);
    assert_eq!(values(&node), BEFORE);
    daemon.terminate();
    let history = history(&node.storage());
    let acts: Vec<_> = of_kind(&history, "decision").filter(|d| d["decision"] == "act").collect();
    assert_eq!(acts.len(), 2, "{history:#?}");
    assert_eq!(acts[0]["target"]["names"][1], "vm.swappiness");
    assert_eq!(acts[1]["action"]["undo"]["decision"], acts[0]["id"]);
    assert_eq!(acts[1]["action"]["undo"]["why"], "alert_ended");
    assert_eq!(of_kind(&history, "outcome").count(), 2);
}

#[test]
fn a_clean_shutdown_restores_the_setting_and_reports_it() {
    let node = node();
    let daemon = node.start(&["--mode=enforce"]);
    daemon.wait_until("set", is_set);
    daemon.terminate();
    assert_eq!(values(&node), BEFORE);
    let history = history(&node.storage());
    let is_recorded = of_kind(&history, "note").any(|note| {
        note["text"].as_str().is_some_and(|text| text.contains("vm.swappiness is 60 again"))
    });
    assert!(is_recorded, "{history:#?}");
}

#[test]
fn a_start_after_a_kill_restores_the_settings_that_are_unchanged_since() {
    let node = node();
    let daemon = node.start(&["--mode=enforce"]);
    daemon.wait_until("set", is_set);
    daemon.kill();
    assert_eq!(values(&node), SET);
    fs::write(node.path("proc/sys/vm/compaction_proactiveness"), "33").unwrap();
    let daemon = node.start(&[]);
    daemon.wait_until("undone", |daemon| undone(daemon, "restored") == 1.0);
    assert_eq!(values(&node), ["60", "33"]);
    daemon.wait_until("reported", |daemon| {
        daemon.log().contains("vm.compaction_proactiveness is left at 33")
    });
    daemon.terminate();
}

#[test]
fn observe_mode_writes_no_setting() {
    let node = node();
    let daemon = node.start(&[]);
    daemon.wait_until("reported", |daemon| daemon.count(&outcomes("set_sysctl", "skipped")) == 1.0);
    daemon.terminate();
    assert_eq!(values(&node), BEFORE);
    assert!(!node.storage().join("undo.log").exists());
}

#[test]
fn no_setting_is_changed_without_a_writable_undo_log() {
    let node = node();
    fs::create_dir_all(node.storage().join("undo.log")).unwrap();
    let daemon = node.start(&["--mode=enforce"]);
    daemon.wait_until("failed", |daemon| daemon.count(&outcomes("set_sysctl", "failed")) >= 1.0);
    assert!(daemon.log().contains("opening the undo log"), "{}", daemon.log());
    daemon.terminate();
    assert_eq!(values(&node), BEFORE);
}
