//! `umawarden rules report` from outside.

use std::path::Path;

use assert_cmd::Command;
use serde_json::Value;
use umawarden::model::{Mode, Reading};

use crate::explain::{Node, RING, gib, moment};

/// Exit code, and both outputs.
fn report(storage: &Path, arguments: &[&str]) -> (i32, String) {
    let mut command = Command::cargo_bin("umawarden").unwrap();
    command.env_remove("STATE_DIRECTORY").args(["rules", "report"]).args(arguments);
    let output = command.arg("--storage.path").arg(storage).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

fn lines(node: &Node, arguments: &[&str]) -> Vec<Value> {
    let arguments: Vec<&str> = arguments.iter().copied().chain(["--json"]).collect();
    let (code, text) = report(node.settle().storage.path(), &arguments);
    assert_eq!(code, 0, "{text}");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn rule<'l>(lines: &'l [Value], name: &str) -> &'l Value {
    lines.iter().find(|line| line["rule"] == name).unwrap()
}

/// Low twice, for a second and for two minutes.
fn observed() -> Node {
    let mut node = Node::new(Mode::Observe, RING);
    node.live(20, gib(9.0)).live(10, gib(1.5)).live(600, gib(9.0)).live(1200, gib(0.5));
    node.live(20, Reading::Failed).live(100, gib(9.0));
    node
}

/// Long before all of it.
const SINCE: &str = "2026-11-01";

#[test]
fn each_rule_is_reported_with_its_planned_acts_and_hold_reasons() {
    let node = observed();
    let lines = lines(&node, &["--since", SINCE]);
    assert_eq!(
        (&lines[0]["kind"], &lines[0]["rules"]),
        (&"report".into(), &"recorded last".into())
    );
    assert_eq!(lines[0]["journal_begins"], moment(20).utc.to_string());
    let names: Vec<&str> = lines[1..].iter().filter_map(|line| line["rule"].as_str()).collect();
    assert_eq!(names, ["memory/Low", "memory/Present", "memory/Same", "other/Same"]);
    let low = rule(&lines, "memory/Low");
    assert_eq!((low["fired"].as_u64(), low["would_act"].as_u64()), (Some(2), Some(2)));
    assert_eq!((low["ended_by_itself"].as_u64(), low["acted"].as_u64()), (Some(1), Some(0)));
    assert_eq!(low["mode"], "observe");
    for reason in ["cooldown", "budget", "unknown"] {
        assert!(low["held"][reason].as_u64() >= Some(1), "{reason}: {low}");
    }
    let free = &low["values"][0];
    let gib = f64::from(1 << 30);
    assert_eq!(free["series"], "uma_memory_free_bytes");
    assert_eq!(
        (free["least"].as_f64(), free["median"].as_f64(), free["greatest"].as_f64()),
        (Some(0.5 * gib), Some(gib), Some(1.5 * gib))
    );
    assert_eq!(rule(&lines, "other/Same")["has_remedy"], false);
}

#[test]
fn acts_are_reported_with_whether_they_met_their_aim() {
    let mut node = Node::new(Mode::Enforce, RING);
    node.live(20, gib(9.0)).live(4, gib(1.5)).live(10, gib(8.5));
    let lines = lines(&node, &["--since", SINCE]);
    let low = rule(&lines, "memory/Low");
    assert_eq!((low["acted"].as_u64(), low["would_act"].as_u64()), (Some(1), Some(0)));
    assert_eq!((&low["aim"]["met"], &low["mode"]), (&1.into(), &"enforce".into()));
}

#[test]
fn the_text_report_has_a_table_and_the_rules_that_never_fired() {
    let node = observed();
    let (code, text) = report(node.settle().storage.path(), &["--since", SINCE]);
    assert_eq!(code, 0);
    for part in [
        "# the journal begins later, at 2026-11-18T11:06:42Z",
        "rule            mode      fired   would act   acted    held  ended by itself",
        "memory/Low      observe       2           2       0",
        "1 of 2",
        "uma_memory_free_bytes     least    512.0 MiB  median      1.0 GiB  greatest      1.5 GiB",
        "never fired:\n  memory/Same\n  other/Same\n",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

#[test]
fn the_report_counts_only_the_selected_entries() {
    let node = observed();
    let late = moment(1900).utc.to_string();
    let lines = lines(&node, &["--since", &late]);
    assert_eq!(lines[0]["journal_begins"], Value::Null);
    assert_eq!(rule(&lines, "memory/Low")["would_act"], 0);
    let rules = node.storage.path().join("mine.yaml");
    std::fs::write(&rules, "groups: []\n").unwrap();
    let given = ["--since", SINCE, "--rules", rules.to_str().unwrap()];
    let lines = self::lines(&node, &given);
    assert_eq!(lines[0]["rules"], "given");
    let six = ["R1", "R2", "R3", "R4", "R5", "R6"]
        .map(|name| format!("  - {{alert: {name}, expr: uma_memory_free_bytes < 1}}\n"))
        .concat();
    std::fs::write(&rules, format!("groups:\n- name: mine\n  rules:\n{six}")).unwrap();
    let (_, text) = report(node.storage.path(), &given);
    assert!(text.contains("\nnever fired: 6, which --all names\n"), "{text}");
    let (_, text) = report(node.storage.path(), &[&given[..], &["--all"]].concat());
    assert!(text.contains("\nnever fired:\n  mine/R1\n"), "{text}");
    assert_eq!(lines.len(), 3, "only those that did something: {lines:?}");
    assert_eq!(rule(&lines, "memory/Low")["is_loaded"], false);
    let (code, text) = report(Path::new("/nowhere"), &[]);
    assert_eq!((code, text.contains("there is no journal")), (2, true), "{text}");
    assert_eq!(report(node.storage.path(), &["--since", "soon"]).0, 2);
}
