//! Actions in enforce and observe mode, on the files that they write.

use std::fs;

use rustix::fs::inotify;

use super::{ALWAYS, Node, make_fifo, outcomes};
use crate::daemon::{Daemon, history, of_kind};

fn one(daemon: &Daemon, action: &str, outcome: &str) -> bool {
    daemon.count(&outcomes(action, outcome)) == 1.0
}

fn read(node: &Node, file: &str) -> String {
    fs::read_to_string(node.path(&format!("proc/sys/vm/{file}"))).unwrap()
}

fn acts(node: &Node) -> Vec<serde_json::Value> {
    let history = history(&node.storage());
    of_kind(&history, "decision").filter(|d| d["decision"] == "act").cloned().collect()
}

#[test]
fn a_missed_aim_leads_to_the_next_step_and_all_of_it_is_journalled() {
    let node = Node::new("gb10-4k");
    node.write_rules(ALWAYS);
    let daemon = node.start(&["--mode=enforce"]);
    daemon.wait_until("done", |daemon| one(daemon, "compact_memory", "done"));
    assert!(one(&daemon, "drop_caches", "done"));
    assert_eq!((&*read(&node, "drop_caches"), &*read(&node, "compact_memory")), ("1", "1"));
    daemon.wait_until("exhausted", |daemon| {
        daemon.metrics().iter().any(|(series, value)| {
            *value == 1.0 && series.contains("steps_exhausted") && series.contains("Always")
        })
    });
    let api: serde_json::Value =
        serde_json::from_str(&daemon.get("/api/v1/decisions?limit=1000").1).unwrap();
    daemon.terminate();
    let entries = history(&node.storage());
    for item in api["data"]["decisions"].as_array().unwrap() {
        let line = of_kind(&entries, "decision").find(|line| line["id"] == item["id"]).unwrap();
        for (key, value) in line.as_object().unwrap() {
            assert_eq!(item[key], *value, "{key}: the API has what the history has");
        }
    }
    let acts = acts(&node);
    let names: Vec<_> = acts.iter().map(|act| act["action"].to_string()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    assert!(names[0].contains("drop_caches") && names[1].contains("compact_memory"), "{names:?}");
    assert_eq!(acts[0]["because"][0]["series"], "uma_memory_free_bytes");
    let history = history(&node.storage());
    let outcomes: Vec<_> = of_kind(&history, "outcome").collect();
    assert_eq!(outcomes.len(), 2, "{history:#?}");
    for outcome in outcomes {
        let aim_check = &outcome["aim_check"];
        assert_eq!(aim_check["aim_met"], false, "{outcome:#}");
        for when in ["before", "after"] {
            assert_eq!(aim_check[when][0]["value"].as_f64(), Some(4_294_967_296.0), "{outcome:#}");
        }
    }
}

#[test]
fn a_met_aim_needs_no_further_step() {
    let node = Node::new("gb10-4k");
    let low = ALWAYS.replace(">= 0", "< 5e9").replace("< 0\n", "> 5e9\n");
    node.write_rules(&low);
    // The drop must hang until more memory is free: a reader then lets it continue.
    make_fifo(&node.drop_caches());
    let daemon = node.start(&["--mode=enforce"]);
    daemon.wait_until("acting", |_| !acts(&node).is_empty());
    node.set_meminfo("MemFree", 8 << 20);
    assert_eq!(fs::read_to_string(node.drop_caches()).unwrap(), "1");
    daemon.wait_until("done", |daemon| one(daemon, "drop_caches", "done"));
    daemon.wait_until("measured", |_| {
        of_kind(&history(&node.storage()), "outcome").any(|o| o["aim_check"]["aim_met"] == true)
    });
    daemon.terminate();
    assert_eq!(read(&node, "compact_memory"), "");
    let history = history(&node.storage());
    let outcome = of_kind(&history, "outcome").next().unwrap();
    let after = &outcome["aim_check"]["after"][0]["value"];
    assert_eq!(after.as_f64(), Some(8_589_934_592.0), "{outcome:#}");
}

#[test]
fn a_missing_file_fails_the_step_and_the_next_one_is_tried() {
    let node = Node::new("gb10-4k");
    node.write_rules(ALWAYS);
    fs::remove_file(node.drop_caches()).unwrap();
    let daemon = node.start(&["--mode=enforce"]);
    daemon.wait_until("done", |daemon| one(daemon, "compact_memory", "done"));
    assert!(one(&daemon, "drop_caches", "failed"));
    assert!(!node.drop_caches().exists(), "never created");
    let (_, log) = daemon.terminate();
    assert!(log.contains("drop_caches failed: No such file"), "{log}");
    assert!(log.contains("not available what=\"action drop_caches"), "{log}");
}

#[test]
fn observe_mode_opens_no_file_for_writing() {
    let node = Node::new("gb10-4k");
    node.write_rules(ALWAYS);
    let watch = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
    for file in ["drop_caches", "compact_memory"] {
        let path = node.path(&format!("proc/sys/vm/{file}"));
        inotify::add_watch(&watch, &path, inotify::WatchFlags::ALL_EVENTS).unwrap();
    }
    let daemon = node.start(&[]);
    daemon.wait_until("decided", |daemon| one(daemon, "drop_caches", "skipped"));
    let (_, log) = daemon.terminate();
    let seen = rustix::io::read(&watch, &mut [0u8; 1024]);
    assert_eq!(seen, Err(rustix::io::Errno::AGAIN), "something was opened");
    assert!(log.contains("would act (observe mode)"), "{log}");
    assert_eq!(acts(&node)[0]["mode"], "observe");
    assert_eq!(read(&node, "drop_caches"), "");
}

#[test]
fn the_mode_of_a_rule_is_obeyed() {
    let node = Node::new("gb10-4k");
    node.write_rules(&ALWAYS.replace("    remedy:", "    mode: enforce\n    remedy:"));
    let daemon = node.start(&[]);
    daemon.wait_until("done", |daemon| one(daemon, "drop_caches", "done"));
}

#[test]
fn a_hanging_action_delays_neither_notices_nor_the_shutdown() {
    let node = Node::new("gb10-4k");
    let notice = "
  - alert: Notice
    expr: uma_memory_free_bytes >= 0
    for: 1s
    remedy:
      steps:
      - notify: {message: '{{ $value | humanize1024 }}B are free'}
";
    node.write_rules(&format!("{}{notice}", ALWAYS.trim_end()));
    // Opening a FIFO for writing waits for a reader that never comes.
    make_fifo(&node.drop_caches());
    let daemon = node.start(&["--mode=enforce"]);
    daemon.wait_until("reported", |daemon| one(daemon, "notify", "done"));
    assert_eq!(daemon.get("/-/healthy").0, 200);
    let (_, log) = daemon.terminate();
    assert!(log.contains("4GiB are free"), "{log}");
    let done = log.lines().find(|line| line.contains("action=\"notify\"")).unwrap();
    assert!(done.contains("done") && !done.contains("took"), "it takes no time: {done}");
    let history = history(&node.storage());
    let results: Vec<_> = of_kind(&history, "outcome").map(|o| o["result"].clone()).collect();
    assert_eq!(results, ["done", "timed_out"], "{history:#?}");
    assert_eq!(of_kind(&history, "note").last().unwrap()["text"], "stopped");
}

#[test]
fn a_restart_of_the_daemon_resets_no_guard_rail() {
    let node = Node::new("gb10-4k");
    node.write_rules(ALWAYS);
    let daemon = node.start(&["--mode=enforce"]);
    daemon.wait_until("done", |daemon| one(daemon, "compact_memory", "done"));
    daemon.kill();
    fs::write(node.drop_caches(), "").unwrap();
    let daemon = node.start(&["--mode=enforce"]);
    daemon.wait_until("held", |daemon| {
        let series_of_hold = "uma_holds_total{rule=\"Always\",reason=\"cooldown\"}";
        let mut metrics = daemon.metrics().into_iter();
        metrics.any(|(series, value)| value > 0.0 && labels(&series) == labels(series_of_hold))
    });
    assert!(!one(&daemon, "drop_caches", "done"));
    assert_eq!(read(&node, "drop_caches"), "");
}

#[test]
fn a_reboot_resets_no_budget() {
    let node = Node::new("gb10-4k");
    let once = ALWAYS.replace("cooldown: 1h", "cooldown: 1s\n      at_most: {times: 2, per: 30d}");
    node.write_rules(&once);
    let boot_id = node.path("proc/sys/kernel/random/boot_id");
    fs::create_dir_all(boot_id.parent().unwrap()).unwrap();
    fs::write(&boot_id, "the first\n").unwrap();
    let daemon = node.start(&["--mode=enforce"]);
    daemon.wait_until("done", |daemon| one(daemon, "compact_memory", "done"));
    daemon.kill();
    fs::write(node.drop_caches(), "").unwrap();
    fs::write(&boot_id, "the second\n").unwrap();
    let daemon = node.start(&["--mode=enforce"]);
    daemon.wait_until("held", |daemon| {
        let mut metrics = daemon.metrics().into_iter();
        metrics.any(|(series, count)| series.contains("reason=\"budget\"") && count > 0.0)
    });
    assert_eq!(read(&node, "drop_caches"), "");
}

/// The parts of a series, sorted.
fn labels(series: &str) -> std::collections::BTreeSet<String> {
    series.split(['{', '}', ',']).map(str::to_owned).collect()
}
