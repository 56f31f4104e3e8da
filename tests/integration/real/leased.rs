//! An engine of user `nobody` has a lease on its model file and misses each aim: the load of
//! another engine is still handled.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use super::enabled;
use crate::daemon::{Daemon, history, of_kind};
use crate::evict::{Bench, Reader};

const NOBODY: u32 = 65_534;

/// An aim that is never met, so that the breaker counts each act as a miss.
const RULES: &str = "
groups:
- name: g
  interval: 100ms
  rules:
  - alert: Loads
    expr: uma_engine_phase{phase=\"loading\"} == 1
    remedy:
      aim: uma_memory_free_bytes < 0
      steps:
      - evict_checkpoint: {behind: 64MiB, for: 1h}
      cooldown: 1s
      breaker: {misses: 3, reset_after: 1h}
";

/// No server uses that port, so an engine that uses processor time is loading.
fn entry(name: &str, marker: &str, model: &Path) -> String {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    format!(
        "- name: {name}\n  match: {{cmdline: \"* {marker}-{name}\"}}\n  model_files: [{}]\n  \
         health: http://127.0.0.1:{port}/health\n",
        model.display()
    )
}

/// The acts on an engine, each with its result.
fn acts(storage: &Path, engine: &str) -> Vec<(serde_json::Value, Option<serde_json::Value>)> {
    let history = history(storage);
    let decisions = of_kind(&history, "decision");
    let acts = decisions.filter(|one| one["decision"] == "act" && one["target"]["name"] == engine);
    let end = |id: &serde_json::Value| {
        of_kind(&history, "outcome").find(|outcome| outcome["decision"] == *id).cloned()
    };
    acts.map(|act| (act.clone(), end(&act["id"]))).collect()
}

#[test]
fn a_lease_of_user_nobody_does_not_block_eviction_for_other_loads() {
    if !enabled() {
        return;
    }
    let Some(bench) = Bench::new() else { return };
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (leased, model) = (bench.file("leased.safetensors", 1), bench.file("m.safetensors", 160));
    chown(&leased, Some(NOBODY), Some(NOBODY)).unwrap();
    let marker = format!("umawarden-leased-{}", std::process::id());
    let (config, rules) = (folder.path().join("umawarden.yaml"), folder.path().join("rules.yaml"));
    let engines = entry("false", &marker, &leased) + &entry("own", &marker, &model);
    fs::write(&rules, RULES).unwrap();
    fs::write(&config, format!("rule_files: [{}]\nengines:\n{engines}", rules.display())).unwrap();
    let storage = folder.path().join("data");
    let config = format!("--config.file={}", config.display());
    let daemon = Daemon::start(&storage, &[&config, "--mode=enforce"]);
    let program = folder.path().join("test");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let reader = |user: u32, name: &str| {
        let mut command = Command::new(&program);
        command.uid(user).gid(user);
        Reader::run(command, &[&format!("{marker}-{name}")])
    };
    let mut pretender = reader(NOBODY, "false");
    pretender.does(&format!("lease {}", leased.display()));
    daemon.wait_until("its breaker open", |daemon| {
        let open = "uma_remedy_breaker_open{group=\"g\",rule=\"Loads\"}";
        daemon.metrics().get(open) == Some(&1.0)
    });
    let mut own = reader(0, "own");
    own.maps(&model);
    own.does("touch 0 160");
    daemon.wait_until("an act on the other engine", |_| {
        acts(&storage, "own").iter().any(|(_, outcome)| outcome.is_some())
    });
    let (act, outcome) = acts(&storage, "own").swap_remove(0);
    let outcome = outcome.unwrap();
    assert_eq!(outcome["result"], "done", "{act:#} {outcome:#}");
    assert_eq!(acts(&storage, "false").len(), 3, "its own breaker holds");
    assert!(daemon.log().contains("another process holds a lease"), "{}", daemon.log());
}
