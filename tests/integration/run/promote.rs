//! From observe mode to an act, by what the daemon has observed.

use std::fs::{self, File};
use std::io::Write as _;
use std::process::Command;

use serde_json::Value;

use super::{Node, outcomes, record};
use crate::daemon::{Daemon, binary, history, of_kind};

const RULES: &str = "
groups:
- name: mine
  interval: 100ms
  rules:
  - alert: Low
    expr: uma_memory_free_bytes < 5e9
    labels: {severity: warning}
    remedy:
      steps:
      - drop_caches: {what: pagecache}
      - notify: {message: short}
      cooldown: 100ms
      at_most: {times: 1000, per: 1h}
";

/// A kill for want of memory on the whole machine.
const KILL: [&str; 2] = [
    "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,\
     task_memcg=/,task=python3,pid=4242,uid=0",
    "Out of memory: Killed process 4242 (python3) total-vm:9000kB, anon-rss:8000kB, \
     file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:8kB oom_score_adj:0",
];

/// Exit code, and both outputs.
fn run(arguments: &[&str], node: &Node) -> (i32, String) {
    let mut command = Command::new(binary());
    command.args(arguments).env_remove("STATE_DIRECTORY");
    command.arg(format!("--config.file={}", node.path("umawarden.yaml").display()));
    if arguments[0] != "config" {
        command.arg(format!("--storage.path={}", node.storage().display()));
    }
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn start(node: &Node) -> Daemon {
    let config = format!("--config.file={}", node.path("umawarden.yaml").display());
    node.start(&[&config])
}

/// The alerts of the rule that have ended.
fn ended(node: &Node) -> usize {
    of_kind(&history(&node.storage()), "alert").filter(|alert| alert["to"] == "inactive").count()
}

fn would(node: &Node) -> usize {
    of_kind(&history(&node.storage()), "decision").filter(|made| made["decision"] == "act").count()
}

#[test]
fn a_rule_that_was_right_in_observe_mode_is_promoted_and_acts() {
    let node = Node::new("gb10-4k");
    node.write_rules(RULES);
    let config = "# my node\nrule_files: [rules.yaml]   # mine alone\nlog: {level: info}\n";
    fs::write(node.path("umawarden.yaml"), config).unwrap();
    node.set_meminfo("MemFree", 8 << 20);
    let daemon = start(&node);
    for episode in 1..=3 {
        let before = would(&node);
        node.set_meminfo("MemFree", 4 << 20);
        daemon.wait_until("would act", |_| would(&node) > before);
        node.set_meminfo("MemFree", 8 << 20);
        daemon.wait_until("ended", |_| ended(&node) == episode);
    }
    // Nothing confirms it yet.
    let (code, text) = run(&["promote", "--observed=0", "--write"], &node);
    assert_eq!(code, 1, "{text}");
    assert!(
        text.contains("mine/Low drop: not enough seen") && text.contains("by itself"),
        "{text}"
    );
    assert_eq!(fs::read_to_string(node.path("umawarden.yaml")).unwrap(), config);
    let mut kmsg = File::options().append(true).open(node.path("kmsg")).unwrap();
    for (seq, line) in KILL.iter().enumerate() {
        kmsg.write_all(record(seq as u64 + 1, line).as_bytes()).unwrap();
    }
    daemon.wait_until("killed", |_| of_kind(&history(&node.storage()), "oom_kill").count() == 1);
    daemon.terminate();

    let (code, text) = run(&["rules", "report", "--json"], &node);
    let report = lines(&text);
    let rule = report.iter().find(|line| line["rule"] == "mine/Low").unwrap();
    assert!(code == 0 && rule["would_act"].as_u64() >= Some(3), "{rule}");
    assert_eq!(rule["targets"][0]["target"], "node", "{rule}");
    let (code, text) = run(&["promote", "--json", "--observed=0"], &node);
    let promote = lines(&text);
    let drop = promote.iter().find(|line| line["grade"] == "drop").unwrap();
    assert_eq!((code, &drop["readiness"]), (0, &"ready".into()), "{drop}");
    assert_eq!((&drop["counts"]["in_time"], &drop["can_be_enforced"]), (&3.into(), &true.into()));
    // Days of observation are needed by default.
    let (_, text) = run(&["promote"], &node);
    assert!(text.contains("not enough seen (observed for") && text.contains("of 3d"), "{text}");

    let (code, text) = run(&["promote", "Low", "--observed=0", "--write"], &node);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("+6:   mine/Low: {mode: enforce}"), "{text}");
    let expected = format!("{config}\nrules:\n  mine/Low: {{mode: enforce}}\n");
    assert_eq!(fs::read_to_string(node.path("umawarden.yaml")).unwrap(), expected);
    let (code, text) = run(&["config", "check"], &node);
    assert_eq!(code, 0, "{text}");
    node.set_meminfo("MemFree", 4 << 20);
    let daemon = start(&node);
    daemon.wait_until("acted", |daemon| {
        daemon.metrics().get(&outcomes("drop_caches", "done")).is_some_and(|done| *done >= 1.0)
    });
    daemon.terminate();
    assert_eq!(fs::read_to_string(node.path("proc/sys/vm/drop_caches")).unwrap(), "1");
    let (_, text) = run(&["promote", "--observed=0", "--write"], &node);
    assert!(text.contains("enforced already") && text.contains("nothing is written"), "{text}");
}
