//! Exports of recorded machines, and failing files.

use std::fs;

use super::{ALWAYS, Node, replace};
use crate::daemon::Daemon;

const STATE: &str = "uma_rule_state{group=\"g\",rule=\"Low\",state=";

/// Fixture, values that it must export, series that it must not.
type Machine<'a> = (&'a str, &'a [(&'a str, f64)], &'a [&'a str]);

#[test]
fn recorded_machines_are_exported_with_their_own_values() {
    let machines: [Machine<'_>; 3] = [
        (
            "gb10-4k",
            &[
                ("uma_memory_total_bytes", 129_945_600_000.0),
                ("uma_memory_free_bytes", 4_294_967_296.0),
                ("uma_memory_available_bytes", 34_359_738_368.0),
                ("uma_scrape_collector_success{collector=\"pressure\"}", 1.0),
            ],
            &["uma_memory_nvmap_bytes"],
        ),
        (
            "gh200",
            &[
                ("uma_numa_memory_bytes{kind=\"total\",node=\"1\"}", 103_079_215_104.0),
                ("uma_numa_memory_bytes{kind=\"free\",node=\"1\"}", 98_304_000_000.0),
            ],
            &["uma_memory_nvmap_bytes"],
        ),
        (
            "jetson",
            &[
                ("uma_memory_nvmap_bytes", 19_327_352_832.0),
                ("uma_scrape_collector_success{collector=\"pressure\"}", 1.0),
                ("uma_scrape_collector_success{collector=\"meminfo\"}", 1.0),
            ],
            &["uma_pressure_ratio{resource=\"memory\",share=\"full\",window=\"10s\"}"],
        ),
    ];
    for (machine, values, absent) in machines {
        // Its files must outlast the daemon.
        let node = Node::new(machine);
        let daemon = node.start(&[]);
        let metrics = daemon.metrics();
        for (series, value) in values {
            assert_eq!(metrics.get(*series), Some(value), "{machine}: {series}");
        }
        let status = daemon.get("/api/v1/status").1;
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        let unsupported = status["data"]["unsupported"].as_array().unwrap();
        for series in absent {
            assert!(!metrics.contains_key(*series), "{machine}: {series}");
            assert!(unsupported.iter().any(|known| known == series), "{machine}: {unsupported:?}");
        }
    }
}

#[test]
fn a_rule_on_a_file_that_turns_to_garbage_is_unknown_until_it_is_back() {
    let node = Node::new("gb10-4k");
    node.write_rules(&ALWAYS.replace("Always", "Low").replace(">= 0", "< 1e9"));
    let meminfo = fs::read_to_string(node.path("proc/meminfo")).unwrap();
    let daemon = node.start(&[]);
    let state = |state: &str| daemon.metrics().get(&format!("{STATE}\"{state}\"}}")).copied();
    let rests = |daemon: &Daemon| daemon.metric("uma_rules{state=\"inactive\"}") == 1.0;
    daemon.wait_until("evaluated", rests);
    replace(&node.path("proc/meminfo"), "\u{0}\u{7f}garbage: -1 kB\nMemFree: many kB\n");
    daemon.wait_until("unknown", |_| state("unknown") == Some(1.0));
    assert_eq!(daemon.metric("uma_scrape_collector_success{collector=\"meminfo\"}"), 0.0);
    assert!(!daemon.metrics().contains_key("uma_memory_free_bytes"));
    assert_eq!(daemon.get("/-/healthy").0, 200);
    fs::remove_file(node.path("proc/meminfo")).unwrap();
    daemon.wait_until("reported", |daemon| {
        daemon.get("/api/v1/status").1.contains("meminfo has vanished")
    });
    assert_eq!(state("unknown"), Some(1.0));
    replace(&node.path("proc/meminfo"), &meminfo);
    daemon.wait_until("evaluated again", rests);
    assert_eq!(state("unknown"), None);
    assert_eq!(daemon.metric("uma_scrape_collector_success{collector=\"meminfo\"}"), 1.0);
    let (_, log) = daemon.terminate();
    assert!(log.contains("rule unknown") && log.contains("rule known again"), "{log}");
    let of_meminfo = |line: &&str| line.contains("source=\"meminfo\"");
    let lines: Vec<&str> = log.lines().filter(of_meminfo).collect();
    let [garbage, vanished, back] = lines[..] else { panic!("once each: {log}") };
    assert!(garbage.contains("WARN") && garbage.contains("source down"), "{garbage}");
    let path = node.path("proc/meminfo").display().to_string();
    assert!(vanished.contains("WARN") && vanished.contains(&format!("{path} has vanished")));
    assert!(back.contains("INFO") && back.contains("source up"), "{back}");
}

/// Such a rule would be a warning of each start on such a machine.
#[test]
fn what_this_machine_does_not_have_is_no_warning_at_the_start() {
    let node = Node::new("jetson");
    node.write_rules(
        "groups:
- name: g
  rules:
  - alert: Absent
    expr: uma_pressure_ratio{resource=\"memory\",share=\"full\",window=\"10s\"} > 0.9
  - alert: Failing
    expr: uma_memory_free_bytes < 1e3
",
    );
    let daemon = node.start(&[]);
    replace(&node.path("proc/meminfo"), "garbage\n");
    let has = |daemon: &Daemon, level: &str, rule: &str| {
        let log = daemon.log();
        log.lines()
            .any(|line| line.contains(level) && line.contains("unknown") && line.contains(rule))
    };
    daemon.wait_until("reporting what fails", |daemon| has(daemon, "WARN", "g/Failing"));
    assert!(has(&daemon, "DEBUG", "g/Absent"), "{}", daemon.log());
    assert!(!has(&daemon, "WARN", "g/Absent"), "{}", daemon.log());
    let picture = daemon.get("/api/v1/picture").1;
    assert!(
        picture.contains("no fault: 1 rule reads what this machine lacks (Absent)"),
        "{picture}"
    );
    let log = daemon.log();
    let about = |line: &&str| {
        !line.contains("DEBUG")
            && (line.contains("memory pressure") || line.contains("source=\"pressure\""))
    };
    let lines: Vec<&str> = log.lines().filter(about).collect();
    let [once] = lines[..] else { panic!("{log}") };
    assert!(
        once.contains("not available what=\"memory pressure") && once.contains("psi=1"),
        "{once}"
    );
}

#[test]
fn rules_are_shown_as_prometheus_shows_them() {
    let node = Node::new("gb10-4k");
    node.write_rules(
        &ALWAYS.replace("    labels:", "    for: 5m\n    keep_firing_for: 2s\n    labels:"),
    );
    let daemon = node.start(&[]);
    let rules: serde_json::Value = serde_json::from_str(&daemon.get("/api/v1/rules").1).unwrap();
    let group = &rules["data"]["groups"][0];
    assert_eq!((&group["name"], group["interval"].as_f64()), (&"g".into(), Some(0.1)));
    let rule = &group["rules"][0];
    assert_eq!(
        (rule["duration"].as_f64(), rule["keepFiringFor"].as_f64()),
        (Some(300.0), Some(2.0))
    );
    assert_eq!(rule["labels"]["severity"], "warning");
    assert_eq!((&rule["state"], &rule["type"]), (&"pending".into(), &"alerting".into()));
}

/// A series as it is written: its name and labels.
fn parts(series: &str) -> (&str, Vec<(&str, &str)>) {
    let (name, rest) = series.split_once('{').unwrap_or((series, ""));
    let pairs = rest.trim_end_matches('}').split("\",").filter(|pair| !pair.is_empty());
    let pairs = pairs.filter_map(|pair| pair.split_once("=\""));
    (name, pairs.map(|(label, value)| (label, value.trim_end_matches('"'))).collect())
}

#[test]
fn exported_series_have_the_labels_and_values_that_rules_are_checked_against() {
    for machine in ["gb10-4k", "gb10-64k", "gh200", "jetson", "x86-64-linux-6.18"] {
        let node = Node::new(machine);
        node.write_rules(ALWAYS);
        let daemon = node.start(&[]);
        daemon.wait_until("decided", |daemon| daemon.log().contains("would act"));
        let metrics = daemon.metrics();
        assert!(metrics.len() > 100, "{machine}: {}", metrics.len());
        for (series, value) in &metrics {
            let (name, labels) = parts(series);
            let metric = umawarden::model::metric(name).unwrap_or_else(|| panic!("{series}"));
            assert!((metric.least..=metric.most).contains(value), "{machine}: {series} {value}");
            for (label, value) in &labels {
                assert!(metric.labels.contains(label), "{machine}: {series}");
                let closed = metric.values(label);
                assert!(closed.is_none_or(|values| values.contains(value)), "{machine}: {series}");
            }
            for label in metric.labels {
                let may_lack = metric.values(label).is_some_and(|values| values.contains(&""))
                    || metric.optional.contains(label);
                let is_there = labels.iter().any(|(own, _)| own == label);
                assert!(is_there || may_lack, "{machine}: {series} lacks {label}");
            }
        }
    }
}
