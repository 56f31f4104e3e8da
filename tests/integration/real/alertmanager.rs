//! A real Prometheus and a real Alertmanager: what they find has this node act, and what this node
//! finds they are told.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::enabled;
use crate::daemon::{Daemon, history, of_kind};
use crate::run::Node;

const RULES: &str = r#"
groups:
- name: others
  interval: 100ms
  rules:
  - alert: MakeRoom
    expr: ALERTS{alertname="NodeMemoryLow", job="umawarden"} == 1
    labels: {severity: warning}
    annotations: {summary: "somebody has found {{ $labels.instance }} short of memory"}
    remedy:
      aim: uma_memory_free_bytes > 1e15
      steps:
      - drop_caches: {what: all}
      cooldown: 1h
"#;

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _already_dead = self.0.kill();
        let _already_reaped = self.0.wait();
    }
}

fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Leads from a port to the control socket, which an Alertmanager cannot open.
fn bridge(socket: PathBuf) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let copy = |mut from: Box<dyn Read + Send>, mut to: Box<dyn Write + Send>| {
        let mut bytes = [0; 16_384];
        while let Ok(length @ 1..) = from.read(&mut bytes) {
            if to.write_all(&bytes[..length]).is_err() {
                break;
            }
        }
    };
    std::thread::spawn(move || {
        for near in listener.incoming().flatten() {
            // While the daemon is down, nobody answers.
            let Ok(far) = UnixStream::connect(&socket) else { continue };
            let (from, to) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            std::thread::spawn(move || copy(Box::new(from), Box::new(to)));
            std::thread::spawn(move || {
                copy(Box::new(far), Box::new(near.try_clone().unwrap()));
                let _gone = near.shutdown(Shutdown::Both);
            });
        }
    });
    port
}

/// Posts what it is told to that port: in groups, and again every few seconds.
fn alertmanager(folder: &Path, webhook: u16) -> (Server, String) {
    let config = folder.join("alertmanager.yml");
    let text = format!(
        "route: {{receiver: node, group_by: [job], group_wait: 1s, group_interval: 1s, \
         repeat_interval: 2s}}\nreceivers:\n- name: node\n  webhook_configs:\n  - url: \
         http://127.0.0.1:{webhook}/api/v1/alerts/webhook\n    send_resolved: true\n"
    );
    fs::write(&config, text).unwrap();
    let address = format!("127.0.0.1:{}", free_port());
    let server = Command::new("prometheus-alertmanager")
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.path={}", folder.join("alertmanager").display()))
        .arg(format!("--web.listen-address={address}"))
        .arg("--cluster.listen-address=")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    (Server(server), format!("http://{address}"))
}

/// Finds that the node is short of memory where it has less free than so many bytes.
fn write_prometheus_rules(folder: &Path, below: &str) {
    let text = format!(
        "groups:\n- name: node\n  rules:\n  - alert: NodeMemoryLow\n    expr: \
         uma_memory_free_bytes < {below}\n    labels: {{severity: warning}}\n    annotations: \
         {{summary: low}}\n  - alert: AlwaysSo\n    expr: uma_memory_free_bytes >= 0\n"
    );
    fs::write(folder.join("rules.yml"), text).unwrap();
}

fn prometheus(folder: &Path, target: &str, alertmanager: &str) -> Server {
    let config = folder.join("prometheus.yml");
    let alertmanager = alertmanager.trim_start_matches("http://");
    let text = format!(
        "global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}\n\
         rule_files: [rules.yml]\nscrape_configs:\n- job_name: umawarden\n  static_configs: \
         [{{targets: ['{target}']}}]\nalerting:\n  alertmanagers:\n  - static_configs: [{{targets: \
         ['{alertmanager}']}}]\n"
    );
    fs::write(&config, text).unwrap();
    let server = Command::new("prometheus")
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={}", folder.join("tsdb").display()))
        .arg(format!("--web.listen-address=127.0.0.1:{}", free_port()))
        .arg("--rules.alert.resend-delay=1s")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    Server(server)
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

#[test]
fn real_alertmanager_has_this_node_act_and_tells_it_when_that_is_over() {
    if !enabled() {
        return;
    }
    let node = Node::new("gb10-4k");
    node.write_rules(RULES);
    let folder = tempfile::tempdir().unwrap();
    let address = format!("127.0.0.1:{}", free_port());
    let observing = daemon(&node, &address, &[]);
    let webhook = bridge(node.storage().join("control.sock"));
    let (_alertmanager, url) = alertmanager(folder.path(), webhook);
    write_prometheus_rules(folder.path(), "1e18");
    let prometheus = prometheus(folder.path(), &address, &url);
    let ended = |daemon: &Daemon, outcome: &str| {
        let series = format!("uma_actions_total{{action=\"drop_caches\",outcome=\"{outcome}\"}}");
        daemon.metrics().get(&series).is_some_and(|count| *count > 0.0)
    };
    wait_for("it decides", || ended(&observing, "skipped"));
    let alert = received(&observing, "NodeMemoryLow").unwrap();
    assert_eq!(alert["labels"]["instance"], address.as_str());
    // Groups are posted again with all their alerts.
    let repeated = "uma_received_alerts_ignored_total{reason=\"repeated\"}";
    wait_for("it is repeated", || observing.metric(repeated) >= 4.0);
    assert_eq!(observing.metric("uma_received_alert_turns_total{to=\"firing\"}"), 2.0);
    assert_eq!(fs::read_to_string(node.path("proc/sys/vm/drop_caches")).unwrap(), "");
    observing.terminate();

    let acting = daemon(&node, &address, &["--mode=enforce"]);
    wait_for("it acts", || ended(&acting, "done"));
    write_prometheus_rules(folder.path(), "0");
    let pid = i32::try_from(prometheus.0.id()).unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    wait_for("it is resolved", || received(&acting, "NodeMemoryLow").is_none());
    assert!(received(&acting, "AlwaysSo").is_some(), "the other of its group fires on");
    assert_eq!(acting.metric("uma_received_alert_turns_total{to=\"resolved\"}"), 1.0);
    acting.terminate();
    let history = history(&node.storage());
    let turns = of_kind(&history, "received_alert")
        .filter(|event| event["labels"]["alertname"] == "NodeMemoryLow")
        .map(|event| event["to"].as_str().unwrap().to_owned());
    assert_eq!(turns.collect::<Vec<_>>(), ["firing", "resolved"], "none twice");
}

/// What amtool shows of that alert.
fn amtool(url: &str, name: &str) -> Vec<Value> {
    let output = Command::new("amtool")
        .args(["alert", "query", "--output=json", &format!("--alertmanager.url={url}"), name])
        .output()
        .unwrap();
    let told: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    told.as_array().cloned().unwrap_or_default()
}

#[test]
fn real_alertmanager_is_told_of_this_nodes_alerts_and_of_their_end() {
    if !enabled() {
        return;
    }
    let node = Node::new("gb10-4k");
    let rules = "groups:\n- name: own\n  rules:\n  - {alert: FreeIsKnown, expr: \
                 uma_memory_free_bytes >= 0, labels: {severity: critical}, annotations: {summary: \
                 \"{{ $value }} bytes\"}}\n";
    node.write_rules(rules);
    let folder = tempfile::tempdir().unwrap();
    let (_alertmanager, url) = alertmanager(folder.path(), free_port());
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
    // One that nobody tells of any more ends by itself, though its end was never told.
    node.write_rules(rules);
    assert_eq!(daemon.post("/-/reload").0, 200);
    wait_for("amtool shows it again", || amtool(&url, "FreeIsKnown").len() == 1);
    daemon.kill();
    wait_for("it has ended by itself", || amtool(&url, "FreeIsKnown").is_empty());
}
