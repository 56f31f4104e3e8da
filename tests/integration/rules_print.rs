//! `umawarden rules print`.

use std::fs;
use std::path::Path;

use assert_cmd::Command;
use serde_json::Value;

const CONFIG: &str = "
rules:
  load/CheckpointLoads: {mode: enforce, cooldown: 9s}
";

/// Exit code, standard output and standard error.
fn print(config: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut program = Command::cargo_bin("umawarden").unwrap();
    program.args(["rules", "print", "--config.file"]).arg(config).args(arguments);
    let output = program.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn the_rules_in_force_are_printed_with_sources_and_overrides() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("umawarden.yaml");
    fs::write(&config, CONFIG).unwrap();
    let (code, text, _) = print(&config, &["CheckpointLoads"]);
    assert_eq!(code, Some(0));
    let place = format!("# overridden in {}:3: mode, cooldown", config.display());
    for expected in ["# shipped:engines.yaml:", &place, "    mode: enforce", "cooldown: 9s"] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
    assert!(
        text.contains("evict_checkpoint: {") && text.contains("  # evict: carried out"),
        "{text}"
    );
    // What is printed can be loaded.
    let all = folder.path().join("all.yaml");
    let (_, text, _) = print(&config, &[]);
    assert!(text.contains("only reported, the node's mode is observe"), "{text}");
    fs::write(&all, text).unwrap();
    let checked = Command::cargo_bin("umawarden").unwrap().args(["rules", "check"]).arg(&all).ok();
    checked.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn json_has_one_object_a_rule() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("umawarden.yaml");
    fs::write(&config, CONFIG).unwrap();
    let (_, text, _) = print(&config, &["--json"]);
    let rules: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let rule = |name: &str| rules.iter().find(|rule| rule["rule"] == name).unwrap();
    let loads = rule("load/CheckpointLoads");
    assert_eq!(loads["overridden"]["keys"], serde_json::json!(["mode", "cooldown"]));
    assert_eq!(loads["remedy"]["steps"][0]["carried_out"], true);
    assert_eq!(loads["remedy"]["guard_rails"]["cooldown"], "9s");
    let brake = rule("brake/MemoryCollapse");
    assert_eq!(brake["remedy"]["steps"][0]["carried_out"], false);
    assert!(brake["line"].as_u64() > Some(1) && brake["overridden"].is_null());
}

#[test]
fn an_unknown_rule_gets_a_suggestion() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("umawarden.yaml");
    fs::write(&config, "").unwrap();
    let (code, _, error) = print(&config, &["MemoryColapse"]);
    assert_eq!(code, Some(2));
    assert!(error.contains("did you mean \"MemoryCollapse\"?"), "{error}");
}
