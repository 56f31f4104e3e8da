//! A real Prometheus and a real Alertmanager: this node acts on their alerts, and sends them its
//! own.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::free_address;
use crate::daemon::{Daemon, history, of_kind};
use crate::real::{Started, enabled};
use crate::run::Node;

const RULES: &str = r#"
groups:
- name: others
  interval: 100ms
  rules:
  - alert: MakeRoom
    expr: ALERTS{alertname="AvailableMemoryUneven", node="weak"} == 1
    labels: {severity: warning}
    annotations: {summary: "somebody has found {{ $labels.node }} short of memory"}
    remedy:
      aim: uma_memory_free_bytes > 1e15
      steps:
      - drop_caches: {what: all}
      cooldown: 1h
"#;

fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    // Shipped alerts must hold for a minute.
    let deadline = Instant::now() + Duration::from_secs(180);
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Posts its alerts to that node, with that token: in groups, and again every few seconds.
fn alertmanager(folder: &Path, node: &str, token: &str) -> (Started, String) {
    let config = folder.join("alertmanager.yml");
    let text = format!(
        "route: {{receiver: node, group_by: [job], group_wait: 1s, group_interval: 1s, \
         repeat_interval: 2s}}\nreceivers:\n- name: node\n  webhook_configs:\n  - url: \
         http://{node}/api/v1/alerts/webhook\n    send_resolved: true\n    http_config: \
         {{authorization: {{credentials: {token}}}}}\n"
    );
    fs::write(&config, text).unwrap();
    let address = free_address();
    let server = Command::new("prometheus-alertmanager")
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.path={}", folder.join("alertmanager").display()))
        .arg(format!("--web.listen-address={address}"))
        .arg("--cluster.listen-address=")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    (Started(server), format!("http://{address}"))
}

/// Scrapes each target with its labels, and evaluates the rules that are shipped for it.
fn prometheus(folder: &Path, targets: &[(&str, &str)], alertmanager: &str) -> Started {
    let config = folder.join("prometheus.yml");
    let alertmanager = alertmanager.trim_start_matches("http://");
    let target = |(address, labels): &(&str, &str)| {
        format!("  - {{targets: ['{address}'], labels: {{{labels}}}}}\n")
    };
    let targets: String = targets.iter().map(target).collect();
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/alerts/cluster.yaml");
    let text = format!(
        "global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}\n\
         rule_files: ['{shipped}']\nscrape_configs:\n- job_name: umawarden\n  \
         static_configs:\n{targets}alerting:\n  alertmanagers:\n  - static_configs: \
         [{{targets: ['{alertmanager}']}}]\n"
    );
    fs::write(&config, text).unwrap();
    let server = Command::new("prometheus")
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={}", folder.join("tsdb").display()))
        .arg(format!("--web.listen-address={}", free_address()))
        .arg("--rules.alert.resend-delay=1s")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    Started(server)
}

fn daemon(node: &Node, address: &str, more: &[&str]) -> Daemon {
    let own = node.arguments();
    let listen = format!("--web.listen-address={address}");
    let mut arguments: Vec<&str> = own.iter().map(String::as_str).collect();
    arguments.push(&listen);
    arguments.extend(more);
    let mut command = Command::new(crate::daemon::binary());
    command.args(["run", "--storage.path"]).arg(node.storage()).args(arguments);
    let daemon = Daemon::from_command(&mut command);
    daemon.wait_until("ready", |daemon| daemon.get("/-/ready").0 == 200);
    daemon
}

fn received(daemon: &Daemon, name: &str) -> Option<Value> {
    let answer: Value = serde_json::from_str(&daemon.get("/api/v1/alerts/received").1).ok()?;
    let alerts = answer["data"]["alerts"].as_array()?.clone();
    alerts.into_iter().find(|alert| alert["labels"]["alertname"] == name)
}

/// Permissions: an Alertmanager, a reader, and a token that has expired.
const TOKENS: [(&str, &str, &str); 3] = [
    ("alertmanager", "role: operate", "the-right-one"),
    ("viewer", "role: read", "only-reads"),
    ("gone", "role: remedy, expires: 2020-01-01T00:00:00Z", "has-expired"),
];

fn write_tokens(node: &Node) -> String {
    let entry = |(name, more, token): &(&str, &str, &str)| {
        let hash: String = Sha256::digest(token).iter().map(|byte| format!("{byte:02x}")).collect();
        format!("- {{name: {name}, {more}, sha256: {hash}}}\n")
    };
    let file = node.path("tokens.yml");
    fs::write(&file, TOKENS.iter().map(entry).collect::<String>()).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    format!("--web.tokens.file={}", file.display())
}

/// A client with wrong credentials is rejected, and none of its posts is accepted.
fn refuses_others(daemon: &Daemon, address: &str) {
    let post = r#"{"version": "4", "groupKey": "g", "status": "firing", "alerts": [{"status":
        "firing", "labels": {"alertname": "Forged"}, "startsAt": "2026-01-01T00:00:00Z",
        "fingerprint": "00000000000000ff"}]}"#;
    let client = crate::daemon::http_client().build().unwrap();
    for (token, expected) in
        [(None, 401), (Some("wrong"), 401), (Some("has-expired"), 401), (Some("only-reads"), 403)]
    {
        let url = format!("http://{address}/api/v1/alerts/webhook");
        let mut request = client.post(url).body(post);
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        assert_eq!(request.send().unwrap().status().as_u16(), expected, "{token:?}");
    }
    assert_eq!(received(daemon, "Forged"), None);
}

#[test]
fn real_prometheus_and_alertmanager_detect_an_imbalance_and_a_node_acts_until_it_is_over() {
    if !enabled() {
        return;
    }
    let [weak, strong] = ["gb10-4k"; 2].map(Node::new);
    weak.write_rules(RULES);
    let total = 127_535_432;
    for (node, available) in [(&weak, total / 2), (&strong, total / 10 * 9)] {
        node.set_meminfo("MemTotal", total);
        node.set_meminfo("MemAvailable", available);
    }
    let tokens = write_tokens(&weak);
    let folder = tempfile::tempdir().unwrap();
    let address = free_address();
    let observing = daemon(&weak, &address, &[&tokens]);
    let other = daemon(&strong, "127.0.0.1:0", &[]);
    // On this machine, which is a cluster of its own.
    let storage = tempfile::tempdir().unwrap();
    let third = Daemon::start(storage.path(), &[]);
    let (_alertmanager, url) = alertmanager(folder.path(), &address, TOKENS[0].2);
    let targets = [
        (address.as_str(), "cluster: rack, node: weak"),
        (other.address(), "cluster: rack, node: strong"),
        (third.address(), "cluster: alone, node: third"),
    ];
    let _prometheus = prometheus(folder.path(), &targets, &url);
    let ended = |daemon: &Daemon, outcome: &str| {
        let series = format!("uma_actions_total{{action=\"drop_caches\",outcome=\"{outcome}\"}}");
        daemon.metrics().get(&series).is_some_and(|count| *count > 0.0)
    };
    wait_for("it decides", || ended(&observing, "skipped"));
    let alert = received(&observing, "AvailableMemoryUneven").unwrap();
    assert_eq!(
        (&alert["labels"]["node"], &alert["labels"]["cluster"]),
        (&json!("weak"), &json!("rack"))
    );
    // Groups are posted again with all their alerts.
    let repeated = "uma_received_alerts_ignored_total{reason=\"repeated\"}";
    wait_for("it is repeated", || observing.metric(repeated) >= 4.0);
    assert_eq!(observing.count("uma_received_alert_turns_total{to=\"firing\"}"), 1.0);
    refuses_others(&observing, &address);
    assert_eq!(fs::read_to_string(weak.path("proc/sys/vm/drop_caches")).unwrap(), "");
    observing.terminate();

    let acting = daemon(&weak, &address, &["--mode=enforce", &tokens]);
    wait_for("it acts", || ended(&acting, "done"));
    weak.set_meminfo("MemAvailable", total / 10 * 9);
    wait_for("it is resolved", || received(&acting, "AvailableMemoryUneven").is_none());
    assert_eq!(acting.count("uma_received_alert_turns_total{to=\"resolved\"}"), 1.0);
    acting.terminate();
    let history = history(&weak.storage());
    let turns = of_kind(&history, "received_alert").map(|event| {
        assert_eq!(event["labels"]["alertname"], "AvailableMemoryUneven", "nothing forged");
        assert_eq!(event["by"], "token alertmanager (127.0.0.1)", "{event}");
        event["to"].as_str().unwrap().to_owned()
    });
    assert_eq!(turns.collect::<Vec<_>>(), ["firing", "resolved"], "none twice");
}

/// The alert as amtool shows it.
fn amtool(url: &str, name: &str) -> Vec<Value> {
    let output = Command::new("amtool")
        .args(["alert", "query", "--output=json", &format!("--alertmanager.url={url}"), name])
        .output()
        .unwrap();
    let response: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    response.as_array().cloned().unwrap_or_default()
}

#[test]
fn real_alertmanager_receives_this_nodes_alerts_and_their_end() {
    if !enabled() {
        return;
    }
    let node = Node::new("gb10-4k");
    let rules = "groups:\n- name: own\n  rules:\n  - {alert: FreeIsKnown, expr: \
                 uma_memory_free_bytes >= 0, labels: {severity: critical}, annotations: {summary: \
                 \"{{ $value }} bytes\"}}\n";
    node.write_rules(rules);
    let folder = tempfile::tempdir().unwrap();
    let (_alertmanager, url) = alertmanager(folder.path(), "127.0.0.1:1", "nobody");
    let config = node.path("umawarden.yaml");
    let text = format!(
        "alertmanager:\n  send: [{{url: '{url}'}}]\n  resend_every: 1s\n  labels: {{cluster: lab}}\n"
    );
    fs::write(&config, text).unwrap();
    let daemon = daemon(&node, "127.0.0.1:0", &[&format!("--config.file={}", config.display())]);
    wait_for("amtool shows it", || amtool(&url, "FreeIsKnown").len() == 1);
    let alert = &amtool(&url, "FreeIsKnown")[0];
    assert_eq!(alert["labels"]["severity"], "critical");
    assert_eq!(alert["labels"]["cluster"], "lab");
    assert!(alert["annotations"]["summary"].as_str().unwrap().ends_with(" bytes"), "{alert}");
    assert_eq!(alert["status"]["state"], "active");
    node.write_rules("groups: []\n");
    assert_eq!(daemon.post("/-/reload").0, 200);
    wait_for("amtool shows it no more", || amtool(&url, "FreeIsKnown").is_empty());
    // An alert that is no longer repeated ends, although its end was never sent.
    node.write_rules(rules);
    assert_eq!(daemon.post("/-/reload").0, 200);
    wait_for("amtool shows it again", || amtool(&url, "FreeIsKnown").len() == 1);
    daemon.kill();
    wait_for("it has ended by itself", || amtool(&url, "FreeIsKnown").is_empty());
}
