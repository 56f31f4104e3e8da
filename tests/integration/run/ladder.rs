//! Ladders of which a severe step is carried out, and a milder one before it is not.

use std::fs;
use std::process::Command;

use super::Node;
use crate::daemon::binary;

const RULES: &str = "
groups:
- name: mine
  rules:
  - alert: Low
    expr: uma_memory_free_bytes < 5e9
    remedy: {steps: [{drop_caches: {what: pagecache}}, {stop_engine: {}}]}
";

/// Exit code and outputs of `config check` or `rules check`.
fn check(what: &str, node: &Node) -> (i32, String) {
    let config = format!("--config.file={}", node.path("umawarden.yaml").display());
    let output = Command::new(binary()).args([what, "check", &config]).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

#[test]
fn a_ladder_without_its_milder_steps_is_warned_of_at_the_start() {
    let node = Node::new("gb10-4k");
    node.write_rules(RULES);
    fs::write(node.path("umawarden.yaml"), "rule_files: [rules.yaml]\nenforce: [stop]\n").unwrap();
    let warning = "mine/Low carries out step 2 stop_engine (grade stop), and only reports what is \
                   milder before it: step 1 drop_caches (grade drop)";
    let (code, text) = check("config", &node);
    assert!(code == 0 && text.contains(&format!("mind: {warning}")), "{text}");
    let (code, text) = check("rules", &node);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains(&format!("remark: {warning}\n  = add drop to enforce")), "{text}");
    let config = format!("--config.file={}", node.path("umawarden.yaml").display());
    let (_, log) = node.start(&[&config]).terminate();
    assert!(log.contains(warning), "{log}");
    fs::write(node.path("umawarden.yaml"), "rule_files: [rules.yaml]\nmode: enforce\n").unwrap();
    assert!(!check("config", &node).1.contains("carries out"));
}
