//! The black box: its content after a wedge and a power cycle.

use std::fs;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

use super::{Node, XID, record};
use crate::daemon::{Daemon, binary, history, of_kind};

const RECORDS: &str = "uma_black_box_records_total";
const CLEAN: &str = "uma_last_boot_clean";
const UNCLEAN_BOOTS: &str = "uma_unclean_boots_total";

const UNCLEAN: &str = "
groups:
- name: g
  rules:
  - alert: UncleanBoot
    expr: increase(uma_unclean_boots_total[15m]) > 0
    labels: {severity: warning}
";

/// The kernel boots again.
fn boot(node: &Node, id: &str) {
    fs::create_dir_all(node.path("proc/sys/kernel/random")).unwrap();
    fs::write(node.path("proc/sys/kernel/random/boot_id"), format!("{id}\n")).unwrap();
}

fn run_until_recorded(node: &Node, records: f64) -> Daemon {
    let daemon = node.start(&[]);
    daemon.wait_until("recording", |daemon| {
        daemon.metrics().get(RECORDS).is_some_and(|written| *written >= records)
    });
    daemon
}

fn query(node: &Node, arguments: &[&str]) -> Output {
    Command::new(binary())
        .args(["history", "--storage.path"])
        .arg(node.storage())
        .arg("--path.procfs")
        .arg(node.path("proc"))
        .args(arguments)
        .output()
        .unwrap()
}

fn objects(node: &Node, arguments: &[&str]) -> Vec<Value> {
    let output = query(node, arguments);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn file(node: &Node, number: u32) -> PathBuf {
    node.storage().join(format!("black-box/{number:08}.umabox"))
}

fn know_last_boot(daemon: &Daemon) {
    daemon.wait_until("reporting the boot before", |daemon| {
        daemon.metrics().contains_key(UNCLEAN_BOOTS)
    });
}

#[test]
fn the_last_seconds_before_an_unclean_reboot_are_shown_and_counted_once() {
    let node = Node::new("gb10-4k");
    boot(&node, "boot-a");
    node.write_rules(UNCLEAN);
    fs::write(node.path("kmsg"), record(1, "nothing of note")).unwrap();
    let daemon = run_until_recorded(&node, 1.0);
    node.set_meminfo("MemFree", 77_777);
    fs::write(node.path("kmsg"), record(2, XID)).unwrap();
    let so_far = daemon.metric(RECORDS);
    daemon.wait_until("recording that", |daemon| daemon.metric(RECORDS) >= so_far + 2.0);
    assert!(!daemon.metrics().contains_key(CLEAN), "no boot before this one is known");
    daemon.kill();

    // A restart within a boot does not count, however the program ended.
    let daemon = run_until_recorded(&node, 2.0);
    assert_eq!(daemon.metric(UNCLEAN_BOOTS), 0.0);
    daemon.kill();

    boot(&node, "boot-b");
    let daemon = node.start(&[]);
    daemon.wait_until("firing", |daemon| {
        let state = "uma_rule_state{group=\"g\",rule=\"UncleanBoot\",state=\"firing\"}";
        daemon.metrics().get(state) == Some(&1.0)
    });
    assert_eq!((daemon.metric(CLEAN), daemon.metric(UNCLEAN_BOOTS)), (0.0, 1.0));
    assert_eq!(daemon.metric("uma_last_boot_memory_bytes{kind=\"free\"}"), 77_777.0 * 1024.0);
    assert_eq!(daemon.count("uma_events_total{event=\"unclean_boot\"}"), 1.0);

    let lines = objects(&node, &["--last-boot", "--json"]);
    assert_eq!((&lines[0]["boot_id"], &lines[0]["end"]), (&"boot-a".into(), &"unclean".into()));
    let seconds = &lines[1..];
    assert!(seconds.len() >= 5, "{lines:#?}");
    let last = seconds.last().unwrap();
    assert_eq!(last["memory_free_bytes"], 77_777.0 * 1024.0);
    assert_eq!(last["pressure_memory_some_ratio"], 0.0725);
    assert_eq!(last["seconds_to_end"], 0.0);
    let event = seconds.iter().find_map(|second| second["last_event"]["detail"].as_str());
    assert!(event.is_some_and(|detail| detail.starts_with("Xid 31")), "{lines:#?}");
    let table = String::from_utf8(query(&node, &["--last-boot"]).stdout).unwrap();
    assert!(table.starts_with("Boot boot-a did not end in order"), "{table}");
    assert!(table.contains("76.0 MiB") && table.contains("xid (Xid 31"), "{table}");
    let running = String::from_utf8(query(&node, &["--boot", "boot-b"]).stdout).unwrap();
    assert!(running.starts_with("Boot boot-b is this one, and still runs."), "{running}");
    let so_far = daemon.metric(RECORDS);
    daemon.wait_until("recording", |daemon| daemon.metric(RECORDS) >= so_far + 3.0);
    daemon.kill();

    let daemon = run_until_recorded(&node, 2.0);
    know_last_boot(&daemon);
    assert_eq!((daemon.metric(CLEAN), daemon.metric(UNCLEAN_BOOTS)), (0.0, 1.0));
    assert_eq!(daemon.count("uma_events_total{event=\"unclean_boot\"}"), 0.0);
    daemon.terminate();
    let history = history(&node.storage());
    let recorded: Vec<&Value> = of_kind(&history, "unclean_boot").collect();
    assert_eq!(recorded.len(), 1, "{recorded:#?}");
    assert_eq!(recorded[0]["ended_boot_id"], "boot-a");
    assert_eq!(recorded[0]["boot_id"].as_str().map(|id| id.starts_with("boot-b")), Some(true));
    assert_eq!(recorded[0]["memory_free_bytes"], 77_777.0 * 1024.0);
}

#[test]
fn a_clean_shutdown_is_marked_and_an_unknown_boot_time_claims_nothing() {
    let node = Node::new("jetson");
    boot(&node, "boot-a");
    run_until_recorded(&node, 1.0).terminate();
    boot(&node, "boot-b");
    // By the clocks, this boot began long before the end of the last one.
    let lines = objects(&node, &["--last-boot", "--json"]);
    assert_eq!(lines.last().unwrap()["closed"], true);
    assert_ne!(lines[0]["end"], "unclean");
    let daemon = run_until_recorded(&node, 1.0);
    know_last_boot(&daemon);
    assert_eq!(daemon.metric(UNCLEAN_BOOTS), 0.0);
    assert_ne!(daemon.metrics().get(CLEAN), Some(&0.0));
    assert!(!daemon.metrics().contains_key("uma_last_boot_pressure_ratio"), "it has no PSI");
    daemon.terminate();
    assert_eq!(of_kind(&history(&node.storage()), "unclean_boot").count(), 0);
}

#[test]
fn a_foreign_file_is_set_aside_and_damage_costs_only_its_own_records() {
    let node = Node::new("gb10-4k");
    boot(&node, "boot-a");
    run_until_recorded(&node, 3.0).kill();
    let damaged = fs::File::options().write(true).open(file(&node, 0)).unwrap();
    damaged.write_all_at(b"torn", 4096 + 512 + 100).unwrap();
    fs::write(file(&node, 1), "not mine").unwrap();
    boot(&node, "boot-b");
    let daemon = node.start(&[]);
    daemon.wait_until("reporting an unclean boot", |daemon| {
        daemon.metrics().get(CLEAN) == Some(&0.0)
    });
    let (_, log) = daemon.terminate();
    assert!(log.contains("set aside as"), "{log}");
    let aside = file(&node, 1).with_extension("umabox.foreign");
    assert_eq!(fs::read(aside).unwrap(), b"not mine");
    assert!(file(&node, 2).exists());
    let lines = objects(&node, &["--last-boot", "--json"]);
    assert_eq!((&lines[0]["boot_id"], &lines[0]["damaged_records"]), (&"boot-a".into(), &1.into()));
}

#[test]
fn an_unwritable_black_box_is_reported_and_the_daemon_continues() {
    let node = Node::new("gb10-4k");
    boot(&node, "boot-a");
    fs::create_dir_all(node.storage()).unwrap();
    fs::write(node.storage().join("black-box"), "in the way").unwrap();
    let daemon = node.start(&[]);
    daemon.wait_until("reporting its failure", |daemon| {
        daemon.metrics().get("uma_scrape_collector_success{collector=\"black_box\"}") == Some(&0.0)
    });
    assert!(daemon.metric("uma_black_box_write_errors_total") >= 1.0);
    let status = daemon.get("/api/v1/status").1;
    assert!(status.contains("black-box") && status.contains("cannot"), "{status}");
    assert_eq!(daemon.get("/-/healthy").0, 200);
    let (_, log) = daemon.terminate();
    assert!(log.contains("black box not written, retrying why=\"cannot"), "{log}");
}

#[test]
fn the_black_box_can_be_turned_off() {
    let node = Node::new("gb10-4k");
    let daemon = node.start(&["--recording.black-box=0"]);
    daemon.wait_until("journalling", |daemon| daemon.metric("uma_journal_up") == 1.0);
    assert!(!daemon.metrics().keys().any(|series| series.contains("black_box")));
    daemon.terminate();
    assert!(!node.storage().join("black-box").exists());
    let output = query(&node, &["--last-boot"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("no black box") && stderr.contains("--storage.path"), "{stderr}");
}

#[test]
fn queries_without_a_result_report_what_is_recorded() {
    let node = Node::new("gb10-4k");
    boot(&node, "boot-a");
    run_until_recorded(&node, 1.0).terminate();
    let output = query(&node, &["--last-boot"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8(output.stderr).unwrap().contains("knows of no boot before"));
    let output = query(&node, &["--boot", "x"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("it has boot-a"), "{stderr}");
    let output = query(&node, &["--last-boot", "--kind", "xid"]);
    assert_eq!(output.status.code(), Some(2), "it has no kinds");
    let mode = fs::metadata(file(&node, 0)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
}
