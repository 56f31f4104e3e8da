//! `umawarden promote` on a journal of days.

use std::fs;
use std::path::Path;

use assert_cmd::Command;
use serde_json::Value;

use crate::observed_days::{CONFIG, Storage, run};

fn find<'l>(lines: &'l [Value], rule: &str, grade: &str) -> &'l Value {
    lines.iter().find(|line| line["rule"] == rule && line["grade"] == grade).unwrap()
}

#[test]
fn each_rule_and_grade_has_a_readiness_with_its_evidence() {
    let storage = Storage::new();
    let lines = storage.json(&["promote"]);
    let drop = find(&lines, "memory/PageCacheEatsReserve", "drop");
    assert_eq!(drop["readiness"], "ready", "{drop}");
    assert_eq!(
        (&drop["counts"]["lasted"], &drop["episodes"][0]["target"]),
        (&4.into(), &"node".into())
    );
    let stop = find(&lines, "brake/MemoryCollapse", "stop");
    assert_eq!(stop["readiness"], "would_have_been_wrong", "{stop}");
    let why = stop["episodes"][0]["why"].as_str().unwrap();
    assert!(why.contains("vllm-8000 ran on and answered for at least 4d"), "{why}");
    assert!(why.contains("the trouble ended by itself after 2s"), "{why}");
    assert_eq!(stop["can_be_enforced"], false);
    let never = find(&lines, "load/CheckpointLoads", "evict");
    assert_eq!(
        (&never["readiness"], &never["why"]),
        (&"not_enough_seen".into(), &"seen 0 times, of 3".into())
    );
    let notice = find(&lines, "kernel/OomKill", "notice");
    assert_eq!(notice["readiness"], "enforced");
    let (code, text) = storage.run(&["promote"]);
    assert_eq!(code, 0);
    for part in [
        "brake/MemoryCollapse stop: would have been wrong (wrong 1 of 1 times)",
        "would stop_engine on engine vllm-8000: wrong: ",
        "memory/PageCacheEatsReserve drop: ready (needed 4 of 4 times)\n",
        "  episodes 4, acts 4: lasted 4\n",
        "would drop_caches on node: lasted: the trouble lasted 10m\n",
        "can be enforced: memory/PageCacheEatsReserve (drop)",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    let (_, alone) = storage.run(&["promote", "MemoryCollapse"]);
    assert!(
        alone.contains("left out: brake/MemoryCollapse: ") && !alone.contains("CheckpointLoads"),
        "{alone}"
    );
    assert_eq!(storage.config(), CONFIG, "nothing is written without --write");
}

#[test]
fn a_grade_is_added_and_other_rules_of_it_are_kept_from_acting() {
    let storage = Storage::new();
    let (code, text) = storage.run(&["promote", "--write"]);
    assert_eq!(code, 0, "{text}");
    let config = storage.config();
    assert!(config.contains("enforce: [notice, drop]   # since Monday\n"), "{config}");
    assert!(config.contains("    severity: warning # it is only a test machine\n"), "{config}");
    assert!(!config.contains("PageCacheEatsReserve"), "the node's mode is enforce: {config}");
    for pinned in
        ["memory/MemoryRunsOutSoon", "kernel/DriverOutOfMemory", "leak/MemoryWithoutOwner"]
    {
        assert!(config.contains(&format!("  {pinned}: {{mode: observe}}\n")), "{pinned}: {config}");
        assert!(text.contains(&format!("{pinned} observes from now on")), "{text}");
    }
    assert!(
        text.contains("-2: enforce: [notice]") && text.contains("+2: enforce: [notice, drop]"),
        "{text}"
    );
    let check = Command::cargo_bin("umawarden")
        .unwrap()
        .args(["config", "check", "--config.file"])
        .arg(storage.path("umawarden.yaml"))
        .output()
        .unwrap();
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));
    let printed = Command::cargo_bin("umawarden")
        .unwrap()
        .args(["rules", "print", "--json", "--config.file"])
        .arg(storage.path("umawarden.yaml"))
        .output()
        .unwrap();
    let drops: Vec<String> = String::from_utf8(printed.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|rule| {
            rule["remedy"]["steps"]
                .as_array()
                .into_iter()
                .flatten()
                .any(|step| step["grade"] == "drop" && step["carried_out"] == true)
        })
        .map(|rule| rule["rule"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(drops, ["memory/PageCacheEatsReserve"], "nothing else acts");
    // It is done.
    let (code, text) = storage.run(&["promote", "--write"]);
    assert!(code == 1 && text.contains("nothing is written"), "{text}");
    assert_eq!(storage.config(), config);
}

#[test]
fn what_was_wrong_is_written_only_by_force_which_says_what_it_overrides() {
    let storage = Storage::new();
    let (code, text) = storage.run(&["promote", "brake/MemoryCollapse", "--write"]);
    assert!(code == 1 && text.contains("nothing is written"), "{text}");
    assert_eq!(storage.config(), CONFIG);
    let (code, text) = storage.run(&["promote", "--write", "--force", "MemoryCollapse"]);
    assert_eq!(code, 0, "{text}");
    let forced =
        "forced: brake/MemoryCollapse stop, although: would have been wrong (wrong 1 of 1 times)";
    assert!(text.contains(forced), "{text}");
    assert!(storage.config().contains("enforce: [notice, stop]"), "{}", storage.config());
    assert!(!storage.config().contains("drop"), "only what was named: {}", storage.config());
    let (code, text) = storage.run(&["promote", "--force", "MemoryCollapse"]);
    assert!(code == 2 && text.contains("--write"), "{text}");
}

#[test]
fn files_that_cannot_be_changed_or_used_are_named() {
    let storage = Storage::new();
    let flow = "{enforce: [notice], rule_files: [shipped]}\n";
    fs::write(storage.path("umawarden.yaml"), flow).unwrap();
    let (code, text) = storage.run(&["promote", "--write"]);
    assert_eq!(code, 1, "{text}");
    assert!(
        text.contains("cannot be changed safely") && text.contains("umawarden.yaml.promote"),
        "{text}"
    );
    assert_eq!(storage.config(), flow);
    let snippet = fs::read_to_string(storage.path("umawarden.yaml.promote")).unwrap();
    assert!(
        snippet.contains("# Add to enforce: drop\n") && snippet.contains("mode: observe"),
        "{snippet}"
    );
    fs::write(storage.path("umawarden.yaml"), "enforce: [notice\n").unwrap();
    assert_eq!(storage.run(&["promote"]).0, 2);
    assert_eq!(storage.run(&["promote", "NoSuchRule"]).0, 2);
    let nowhere = Path::new("/nowhere");
    fs::write(storage.path("umawarden.yaml"), CONFIG).unwrap();
    let (code, text) = run(nowhere, &storage.path("umawarden.yaml"), &["promote"]);
    assert!(code == 2 && text.contains("there is no journal"), "{text}");
}
