//! Rules and settings that change while the daemon runs.

use std::fs;

use rustix::process::Signal;

use super::{ALWAYS, Node, make_fifo, outcomes};
use crate::daemon::{history, of_kind};

const SUCCESSFUL: &str = "uma_config_last_reload_successful";

#[test]
fn a_reload_takes_good_rules_and_keeps_the_current_ones_for_bad_rules() {
    let node = Node::new("gb10-4k");
    node.write_rules(ALWAYS);
    let daemon = node.start(&[]);
    assert_eq!(daemon.get("/-/reload").0, 405);
    assert_eq!(daemon.metric(SUCCESSFUL), 1.0);

    node.write_rules(&ALWAYS.replace("free_bytes >= 0", "fre_bytes >= 0"));
    let (status, body) = daemon.post("/-/reload");
    assert_eq!(status, 500);
    assert!(body.contains("rules.yaml:6:11") && body.contains("did you mean"), "{body}");
    assert_eq!(daemon.metric(SUCCESSFUL), 0.0, "at once");
    let response: serde_json::Value =
        serde_json::from_str(&daemon.get("/api/v1/status").1).unwrap();
    let why = response["data"]["reload_failure"]["error"].to_string();
    assert!(why.contains("rules.yaml:6:11"), "{response}");
    assert!(daemon.get("/").1.contains("the last reload failed"));
    assert!(daemon.get("/api/v1/rules").1.contains("\"Always\""));

    node.write_rules(&ALWAYS.replace("Always", "Other"));
    let (status, body) = daemon.post("/-/reload");
    assert_eq!((status, body.contains("1 rule in 1 group")), (200, true), "{body}");
    assert!(daemon.get("/api/v1/status").1.contains("\"reload_failure\":null"));
    assert_eq!(daemon.metric(SUCCESSFUL), 1.0);
    let rules = daemon.get("/api/v1/rules").1;
    assert!(rules.contains("\"Other\"") && !rules.contains("\"Always\""), "{rules}");
    let metrics = daemon.metrics();
    assert!(
        !metrics
            .keys()
            .any(|series| series.contains("uma_rule_state") && series.contains("rule=\"Always\"")),
        "{metrics:#?}"
    );
    let (_, log) = daemon.terminate();
    assert!(log.contains("the current rules stay"), "{log}");
    let history = history(&node.storage());
    assert!(of_kind(&history, "note").any(|note| note["text"].to_string().contains("reloaded")));
}

#[test]
fn sighup_reloads() {
    let node = Node::new("gb10-4k");
    let daemon = node.start(&[]);
    node.write_rules("groups: 7\n");
    daemon.signal(Signal::HUP);
    daemon.wait_until("reloaded in vain", |daemon| daemon.metric(SUCCESSFUL) == 0.0);
    node.write_rules(ALWAYS);
    daemon.signal(Signal::HUP);
    daemon.wait_until("reloaded", |daemon| daemon.metric(SUCCESSFUL) == 1.0);
    assert!(daemon.get("/api/v1/rules").1.contains("\"Always\""));
    let (_, log) = daemon.terminate();
    assert!(log.contains("rules.yaml:1:9"), "{log}");
}

#[test]
fn a_reload_takes_the_mode_and_names_settings_that_need_a_restart() {
    let node = Node::new("gb10-4k");
    let config = node.path("umawarden.yaml");
    fs::write(&config, "mode: observe\n").unwrap();
    let daemon = node.start(&["--config.file", &config.display().to_string()]);
    assert_eq!(daemon.metric("uma_mode{mode=\"enforce\"}"), 0.0);
    fs::write(&config, "mode: enforce\nsampling_interval: 50ms\n").unwrap();
    let (status, body) = daemon.post("/-/reload");
    assert_eq!(status, 200, "{body}");
    assert!(body.contains("need a restart: sampling_interval"), "{body}");
    assert_eq!(daemon.metric("uma_mode{mode=\"enforce\"}"), 1.0);
}

#[test]
fn a_hanging_reload_does_not_block_the_shutdown() {
    let node = Node::new("gb10-4k");
    let daemon = node.start(&[]);
    make_fifo(&node.path("rules.yaml"));
    daemon.signal(Signal::HUP);
    daemon.wait_until("still answering", |daemon| daemon.get("/-/healthy").0 == 200);
    daemon.terminate();
}

#[test]
fn a_reload_takes_guard_rails_and_reports_mistakes_in_them() {
    let node = Node::new("gb10-4k");
    node.write_rules(ALWAYS);
    let config = node.path("umawarden.yaml");
    let windows = "maintenance_windows: [{name: always}]";
    let write = |rails: &str| {
        fs::write(&config, format!("mode: enforce\nguard_rails: {{{rails}}}\n")).unwrap();
    };
    write(&format!("{windows}, never_in: [always]"));
    let daemon = node.start(&["--config.file", &config.display().to_string()]);
    let is_held = |daemon: &crate::daemon::Daemon| {
        let mut metrics = daemon.metrics().into_iter();
        metrics.any(|(series, count)| series.contains("reason=\"maintenance\"") && count > 0.0)
    };
    daemon.wait_until("held", is_held);
    assert_eq!(daemon.count(&outcomes("drop_caches", "done")), 0.0);
    write(&format!("{windows}, inhibited_by: [Alway]"));
    let (status, body) = daemon.post("/-/reload");
    assert_ne!(status, 200);
    assert!(body.contains("no rule has the alert") && body.contains("\"Always\"?"), "{body}");
    write("");
    assert_eq!(daemon.post("/-/reload").0, 200);
    daemon.wait_until("done", |daemon| daemon.count(&outcomes("drop_caches", "done")) > 0.0);
}
