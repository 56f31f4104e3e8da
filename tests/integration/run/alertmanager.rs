//! Received alerts: posted to the control socket, read by rules, kept over restarts. And this
//! node's alerts, sent to Alertmanagers.

mod burst;
mod sending;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Node, outcomes};
use crate::daemon::{Daemon, history, of_kind};

/// An alert of an Alertmanager has this node act.
const RULES: &str = r#"
groups:
- name: others
  interval: 100ms
  rules:
  - alert: MakeRoom
    expr: ALERTS{alertname="NodeMemoryLow", instance="spark-1:9100"} == 1
    labels: {severity: warning}
    annotations:
      summary: "{{ $labels.instance }} is short of memory: {{ $labels.note }}"
    remedy:
      aim: uma_memory_free_bytes > 1e15
      steps:
      - drop_caches: {what: all}
      - notify: {message: "received {{ $labels.note }}"}
      cooldown: 1h
"#;

fn node() -> Node {
    let node = Node::new("gb10-4k");
    node.write_rules(RULES);
    node
}

/// One alert of a post.
fn alert(name: &str, status: &str, start: u64, more: &[(&str, &str)]) -> Value {
    let mut labels = json!({"alertname": name, "instance": "spark-1:9100"});
    for (name, text) in more {
        labels[*name] = json!(text);
    }
    json!({
        "status": status,
        "labels": labels,
        "annotations": {"summary": "$(reboot)"},
        "startsAt": format!("2026-11-22T10:{:02}:{:02}.5Z", start / 60 % 60, start % 60),
        "endsAt": "0001-01-01T00:00:00Z",
        "generatorURL": "",
    })
}

fn post(alerts: Vec<Value>) -> String {
    json!({
        "version": "4", "groupKey": "{}:{}", "status": "firing", "receiver": "r",
        "groupLabels": {}, "commonLabels": {}, "commonAnnotations": {}, "externalURL": "",
        "truncatedAlerts": 0, "alerts": alerts,
    })
    .to_string()
}

/// Stream of a connection.
trait Stream: Read + Write + Send {}

impl<S: Read + Write + Send> Stream for S {}

/// A connection that posts in sequence.
struct Poster {
    stream: Box<dyn Stream>,
    /// The head of every post.
    header: String,
}

impl Poster {
    /// Over the control socket.
    fn new(storage: &Path) -> Self {
        let stream = UnixStream::connect(storage.join("control.sock")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Self { stream: Box::new(stream), header: "X-Nothing: x".to_owned() }
    }

    fn send(&mut self, body: &str) -> u16 {
        let request = format!(
            "POST /api/v1/alerts/webhook HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n\
             {}\r\nContent-Length: {}\r\n\r\n{body}",
            self.header,
            body.len()
        );
        self.stream.write_all(request.as_bytes()).unwrap();
        let (mut text, mut bytes) = (Vec::new(), [0; 4096]);
        loop {
            let length = self.stream.read(&mut bytes).unwrap();
            assert!(length > 0, "{:?}", String::from_utf8_lossy(&text));
            text.extend_from_slice(&bytes[..length]);
            let answer = String::from_utf8_lossy(&text);
            let Some((head, body)) = answer.split_once("\r\n\r\n") else { continue };
            let length = head.lines().find_map(|line| {
                line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse::<usize>().ok()
            });
            if body.len() >= length.unwrap_or(0) {
                return head.split(' ').nth(1).unwrap().parse().unwrap();
            }
        }
    }
}

fn send(node: &Node, alerts: Vec<Value>) {
    assert_eq!(Poster::new(&node.storage()).send(&post(alerts)), 200);
}

fn received(daemon: &Daemon) -> Vec<Value> {
    let (status, body) = daemon.get("/api/v1/alerts/received");
    assert_eq!(status, 200, "{body}");
    let answer: Value = serde_json::from_str(&body).unwrap();
    answer["data"]["alerts"].as_array().unwrap().clone()
}

fn rule_state(daemon: &Daemon) -> String {
    let (_, body) = daemon.get("/api/v1/rules");
    let answer: Value = serde_json::from_str(&body).unwrap();
    answer["data"]["groups"][0]["rules"][0]["state"].as_str().unwrap().to_owned()
}

/// Turns of alerts, oldest first, as `name turn`.
fn turns(node: &Node) -> Vec<String> {
    let history = history(&node.storage());
    let turns = of_kind(&history, "received_alert").map(|event| {
        let name = event["labels"]["alertname"].as_str().unwrap();
        format!("{name} {}", event["to"].as_str().unwrap())
    });
    turns.collect()
}

#[test]
fn a_posted_alert_makes_a_rule_decide_and_act_until_it_is_resolved() {
    let node = node();
    let daemon = node.start(&[]);
    assert_eq!(rule_state(&daemon), "inactive");
    send(&node, vec![alert("NodeMemoryLow", "firing", 0, &[("note", "a")])]);
    daemon.wait_until("decided", |daemon| {
        daemon.metrics().get(&outcomes("drop_caches", "skipped")) == Some(&1.0)
    });
    assert_eq!(fs::read_to_string(node.drop_caches()).unwrap(), "", "observe does nothing");
    assert_eq!(received(&daemon).len(), 1);
    assert!(
        !daemon.get("/metrics").1.contains("ALERTS{"),
        "a Prometheus would take it for its own"
    );
    send(&node, vec![alert("NodeMemoryLow", "resolved", 0, &[("note", "a")])]);
    daemon.wait_until("resolved", |daemon| rule_state(daemon) == "inactive");
    assert!(received(&daemon).is_empty());
    daemon.terminate();

    let daemon = node.start(&["--mode=enforce"]);
    send(&node, vec![alert("NodeMemoryLow", "firing", 1, &[("note", "a")])]);
    daemon.wait_until("done", |_| fs::read_to_string(node.drop_caches()).unwrap().trim() == "3");
    daemon.terminate();
    let expected = ["NodeMemoryLow firing", "NodeMemoryLow resolved", "NodeMemoryLow firing"];
    assert_eq!(turns(&node), expected);
}

#[test]
fn received_alerts_survive_a_kill_as_firing_or_resolved() {
    let node = node();
    let daemon = node.start(&[]);
    let [low, other] = ["NodeMemoryLow", "Other"];
    send(&node, vec![alert(low, "firing", 0, &[]), alert(other, "firing", 0, &[])]);
    send(&node, vec![alert(other, "resolved", 0, &[])]);
    daemon.wait_until("received", |daemon| received(daemon).len() == 1);
    daemon.wait_until("journalled", |_| turns(&node).len() == 3);
    daemon.kill();
    let daemon = node.start(&[]);
    assert_eq!(received(&daemon)[0]["labels"]["alertname"], low);
    daemon.wait_until("firing", |daemon| rule_state(daemon) == "firing");
    // The rule has kept that state since.
    assert!(!daemon.log().contains("to=\"inactive\""), "{}", daemon.log());
    // Repeated and late posts change nothing.
    send(&node, vec![alert(low, "firing", 0, &[]), alert(other, "firing", 0, &[])]);
    daemon.wait_until("received", |daemon| daemon.count("uma_received_posts_total") > 0.0);
    assert_eq!(received(&daemon).len(), 1);
    daemon.terminate();
    assert_eq!(turns(&node).len(), 3, "nothing new has happened");
}

#[test]
fn an_acknowledged_post_survives_the_end_of_the_daemon() {
    let node = node();
    let daemon = node.start(&[]);
    let mut poster = Poster::new(&node.storage());
    for number in 0..50 {
        let name = format!("A{number}");
        assert_eq!(poster.send(&post(vec![alert(&name, "firing", 0, &[])])), 200);
    }
    daemon.terminate();
    assert_eq!(turns(&node).len(), 50);
}

/// The text of a label reaches log, journal and people as text, and nothing else.
#[test]
fn labels_are_treated_as_text_alone() {
    let node = node();
    let stolen = node.path("stolen");
    let daemon = node.start(&["--mode=enforce"]);
    let touch = format!("$(touch {0}) `touch {0}`; touch {0}\n\u{1b}[31mlevel=ERROR forged", {
        stolen.display()
    });
    let note = format!("{touch} {{{{ $value }}}} {{{{ template }}}} \u{202e}x\0\r");
    send(&node, vec![alert("NodeMemoryLow", "firing", 0, &[("note", &note)])]);
    daemon.wait_until("acted", |daemon| {
        daemon.metrics().get(&outcomes("notify", "done")) == Some(&1.0)
            && daemon.metrics().get(&outcomes("drop_caches", "done")) == Some(&1.0)
    });
    let response: Value = serde_json::from_str(&daemon.get("/api/v1/alerts").1).unwrap();
    let summary = response["data"]["alerts"][0]["annotations"]["summary"].as_str().unwrap();
    assert!(summary.ends_with(&note), "a template is filled in once: {summary:?}");
    let page = daemon.get("/").1;
    assert!(!page.contains('\u{1b}') && !page.contains('\u{202e}'), "{page}");
    let (_, log) = daemon.terminate();
    assert!(!log.contains('\u{1b}') && !log.contains('\u{202e}'), "{log:?}");
    assert!(log.lines().all(|line| !line.trim_start().starts_with("level=ERROR")), "{log}");
    assert!(!stolen.exists());
    let output = std::process::Command::new(crate::daemon::binary())
        .args(["history", "--storage.path"])
        .arg(node.storage())
        .output()
        .unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.contains("NodeMemoryLow") && !shown.contains('\u{1b}'), "{shown:?}");
}
