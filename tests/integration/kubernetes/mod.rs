//! The daemon as an agent of Kubernetes, against an API server that fails.

pub mod fake_api;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::daemon::Daemon;
use fake_api::{FakeApi, Fault, NODE};

/// An alert that fires while a file says so: a gauge of the kernel's that a test can set.
const RULES: &str = "
groups:
- name: g
  interval: 50ms
  rules:
  - alert: Tight
    expr: uma_memory_free_bytes > THRESHOLD
    labels: {severity: critical}
    annotations: {summary: 'it is tight'}
    remedy:
      steps:
      - taint_node: {key: umawarden.dev/tight, for: 1h}
      - cordon_node: {for: 1h}
      cooldown: 0s
      at_most: {times: 1000, per: 1h}
      breaker: {misses: 0}
";

/// Fires always, or never.
pub const ALWAYS: &str = "0";
pub const NEVER: &str = "1e18";

pub struct Agent {
    folder: tempfile::TempDir,
    arguments: Vec<String>,
}

impl Agent {
    pub fn of(kubeconfig: &Path, folder: tempfile::TempDir, more: &str) -> Self {
        let config = folder.path().join("config.yaml");
        let text = format!(
            "mode: enforce\nguard_rails: {{budget: {{times: 1000, per: 1h}}}}\nkubernetes:\n  node: \
             {NODE}\n  kubeconfig: {}\n  conditions: {{Tight: [Tight]}}\n{more}",
            kubeconfig.display()
        );
        fs::write(&config, text).unwrap();
        let rules = folder.path().join("rules.yaml");
        let arguments = vec![
            format!("--config.file={}", config.display()),
            format!("--rules={}", rules.display()),
        ];
        Self { folder, arguments }
    }

    fn new(api: &FakeApi) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self::of(&api.kubeconfig(folder.path()), folder, "")
    }

    pub fn start(&self, threshold: &str) -> Daemon {
        self.set(threshold);
        let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        Daemon::start(&self.folder.path().join("data"), &arguments)
    }

    pub fn set(&self, threshold: &str) {
        let rules = RULES.replace("THRESHOLD", threshold);
        fs::write(self.folder.path().join("rules.yaml"), rules).unwrap();
    }
}

fn taints(api: &FakeApi) -> Vec<String> {
    let content = api.content();
    let taints = content.node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    taints.iter().map(|taint| taint["key"].as_str().unwrap().to_owned()).collect()
}

fn is_cordoned(api: &FakeApi) -> bool {
    api.content().node["spec"]["unschedulable"] == json!(true)
}

#[test]
fn conditions_taints_and_events_follow_an_alert_and_are_gone_after_it() {
    let api = FakeApi::start();
    api.content().node["spec"]["taints"] = json!([{"key": "gpu", "effect": "NoSchedule"}]);
    let agent = Agent::new(&api);
    let daemon = agent.start(ALWAYS);
    daemon.wait_until("reported", |_| {
        api.content().condition("Tight").as_deref() == Some("True")
            && taints(&api).len() == 2
            && is_cordoned(&api)
            && !api.content().events.is_empty()
    });
    assert_eq!(api.content().condition("Ready").as_deref(), Some("True"), "the kubelet's stays");
    let event = api.content().events.values().next().unwrap().clone();
    assert_eq!([&event["reason"], &event["involvedObject"]["kind"]], ["Tight", "Node"]);
    agent.set(NEVER);
    assert_eq!(daemon.post("/-/reload").0, 200);
    daemon.wait_until("undone", |_| {
        api.content().condition("Tight").as_deref() == Some("False")
            && taints(&api) == ["gpu"]
            && !is_cordoned(&api)
    });
    assert!(api.content().node["metadata"]["annotations"].get("umawarden.dev/held").is_none());
    daemon.terminate();
    assert_eq!(api.content().condition("Tight").as_deref(), Some("Unknown"));
}

#[test]
fn an_orderly_end_undoes_and_so_does_the_next_start_after_a_kill() {
    let api = FakeApi::start();
    let agent = Agent::new(&api);
    let daemon = agent.start(ALWAYS);
    daemon.wait_until("tainted", |_| taints(&api).len() == 1 && is_cordoned(&api));
    daemon.terminate();
    assert!(taints(&api).is_empty() && !is_cordoned(&api));
    for round in 0..5 {
        let daemon = agent.start(ALWAYS);
        std::thread::sleep(Duration::from_millis(fastrand::u64(0..700)));
        daemon.kill();
        let daemon = agent.start(NEVER);
        daemon.wait_until("undone", |_| taints(&api).is_empty() && !is_cordoned(&api));
        assert!(api.content().node["metadata"]["annotations"].get("umawarden.dev/held").is_none());
        daemon.terminate();
        assert!(taints(&api).is_empty(), "round {round}");
    }
}

/// While pods are replaced nothing may be placed on an unfit node; once they are removed, nobody
/// would undo what is left.
#[test]
fn a_pod_that_is_replaced_leaves_what_it_has_set_and_one_that_is_removed_undoes_it() {
    let api = FakeApi::start();
    let folder = tempfile::tempdir().unwrap();
    let more = "  daemon_set: umawarden/umawarden\n";
    let agent = Agent::of(&api.kubeconfig(folder.path()), folder, more);
    api.content().daemon_set = Some(json!({"spec": {"template": {
        "metadata": {"annotations": {"umawarden.dev/takes-over": "true"}},
        "spec": {"tolerations": [{"operator": "Exists"}]},
    }}}));
    let daemon = agent.start(ALWAYS);
    daemon.wait_until("tainted", |_| taints(&api).len() == 1 && is_cordoned(&api));
    let (_, log) = daemon.terminate();
    assert!(log.contains("the next pod takes over"), "{log}");
    assert!(taints(&api).len() == 1 && is_cordoned(&api));
    // The next one cannot know for two minutes whether the node is well.
    let before = api.content().requests;
    let daemon = agent.start(NEVER);
    daemon.wait_until("read", |_| api.content().requests > before + 2);
    assert!(taints(&api).len() == 1 && is_cordoned(&api));
    api.content().daemon_set = None;
    daemon.terminate();
    assert!(taints(&api).is_empty() && !is_cordoned(&api));
    assert!(api.content().node["metadata"]["annotations"].get("umawarden.dev/held").is_none());
}

#[test]
fn others_that_change_the_node_at_the_same_time_lose_nothing() {
    let api = FakeApi::start();
    let agent = Agent::new(&api);
    api.set_fault(Fault::Conflicts);
    let daemon = agent.start(ALWAYS);
    daemon.wait_until("refused", |daemon| {
        daemon.count(r#"uma_actions_total{action="taint_node",outcome="failed"}"#) > 0.0
    });
    assert!(taints(&api).is_empty());
    api.set_fault(Fault::None);
    daemon.wait_until("tainted", |_| taints(&api).len() == 1);
    daemon.terminate();
}

/// The first undo of a start fails, an act follows, and then the undo is tried again.
#[test]
fn what_this_run_has_set_stays_when_the_undo_of_an_earlier_run_comes_late() {
    let api = FakeApi::start();
    let earlier =
        json!([{"by": {"decision": 999}, "taint": {"key": "old", "effect": "NoSchedule"}}]);
    {
        let node = &mut api.content().node;
        node["metadata"]["annotations"] = json!({"umawarden.dev/held": earlier.to_string()});
        node["spec"]["taints"] = json!([{"key": "old", "effect": "NoSchedule"}]);
    }
    let agent = Agent::new(&api);
    api.set_fault(Fault::Status(503));
    let daemon = agent.start(NEVER);
    daemon
        .wait_until("refused", |daemon| daemon.log().contains("changes of an earlier run unknown"));
    api.set_fault(Fault::None);
    agent.set(ALWAYS);
    assert_eq!(daemon.post("/-/reload").0, 200);
    daemon.wait_until("tainted", |_| taints(&api).contains(&"umawarden.dev/tight".to_owned()));
    daemon.wait_until("undone", |_| !taints(&api).contains(&"old".to_owned()));
    assert_eq!(taints(&api), ["umawarden.dev/tight"]);
    daemon.terminate();
    assert!(taints(&api).is_empty());
}

#[test]
fn a_server_that_fails_in_any_way_delays_nothing_and_all_comes_in_the_end() {
    let api = FakeApi::start();
    let agent = Agent::new(&api);
    for fault in [
        Fault::Status(401),
        Fault::Status(403),
        Fault::Status(410),
        Fault::Status(429),
        Fault::Status(500),
        Fault::Garbage,
        Fault::Hangs,
    ] {
        api.set_fault(fault);
        let daemon = agent.start(ALWAYS);
        let before = api.content().requests;
        daemon.wait_until("asked", |_| api.content().requests > before);
        let began = Instant::now();
        assert_eq!(daemon.get("/metrics").0, 200);
        assert!(began.elapsed() < Duration::from_secs(5), "{fault:?}");
        let (took, _) = daemon.terminate();
        // Less than `TimeoutStopSec=` of the unit.
        assert!(took < Duration::from_secs(14), "{fault:?}: {took:?}");
        assert!(taints(&api).is_empty(), "{fault:?}");
    }
    api.set_fault(Fault::Status(503));
    let daemon = agent.start(ALWAYS);
    daemon.wait_until("refused", |daemon| {
        daemon.count(r#"uma_kubernetes_requests_total{result="error"}"#) > 0.0
    });
    api.set_fault(Fault::None);
    daemon.wait_until("reported", |_| {
        api.content().condition("Tight").is_some() && taints(&api).len() == 1
    });
    let log = daemon.log();
    assert!(log.contains("(503)") && !log.contains("failed with error"), "{log}");
    daemon.terminate();
}

#[test]
fn changes_of_the_node_alone_show_that_the_server_answers() {
    let api = FakeApi::start();
    let agent = Agent::new(&api);
    let config = agent.folder.path().join("config.yaml");
    let text = fs::read_to_string(&config).unwrap();
    let off = text.replace("conditions: {Tight: [Tight]}", "conditions: false\n  events: false");
    fs::write(&config, off).unwrap();
    let daemon = agent.start(NEVER);
    daemon.wait_until("answered", |daemon| {
        daemon.count("uma_kubernetes_last_success_timestamp_seconds") > 0.0
    });
    daemon.terminate();
}

#[test]
fn a_missing_right_is_named_once_and_the_other_features_go_on() {
    let api = FakeApi::start();
    let folder = tempfile::tempdir().unwrap();
    let agent = Agent::of(Path::new("/nowhere/kubeconfig"), folder, "");
    let daemon = agent.start(ALWAYS);
    let said = |log: &str| log.matches("kubernetes.kubeconfig /nowhere/kubeconfig").count();
    daemon.wait_until("said", |daemon| said(&daemon.log()) >= 3);
    std::thread::sleep(Duration::from_secs(3));
    let (_, log) = daemon.terminate();
    let warned = log.lines().filter(|line| line.contains("WARN") && said(line) > 0);
    let features = warned.filter(|line| line.contains("feature=")).count();
    assert_eq!(features, 2, "conditions and events, once each:\n{log}");
    assert_eq!(api.content().requests, 0);
}
