//! Whatever acts is in the journal with whoever did it, by the table of routes.

use serde_json::{Value, json};
use umawarden::exports::access_table;
use umawarden::model::Role;

use super::{Files, bearer, program, token};
use crate::daemon::{Daemon, history, of_kind};
use crate::run::Node;

/// One remedy waits for approval, and one has missed its aim.
const RULES: &str = "
groups:
- name: g
  interval: 100ms
  rules:
  - alert: Asks
    expr: uma_memory_free_bytes >= 0
    labels: {severity: warning}
    remedy:
      require_approval: {expires: 1h}
      aim: uma_memory_free_bytes < 0
      steps:
      - drop_caches: {what: pagecache}
      cooldown: 1h
  - alert: Misses
    expr: uma_memory_free_bytes >= 0
    labels: {severity: warning}
    remedy:
      aim: uma_memory_free_bytes < 0
      steps:
      - compact_memory: {}
      cooldown: 10ms
      breaker: {misses: 1}
";

const WHO: &str = "token ops (127.0.0.1)";

/// Entries of the journal that name who it was, oldest first.
fn entries(node: &Node) -> Vec<Value> {
    let mut told = history(&node.storage());
    let says = ["operator", "note", "received_alert"];
    told.retain(|entry| {
        says.iter().any(|kind| entry["kind"] == *kind) && entry.to_string().contains(WHO)
    });
    told
}

fn of_api(daemon: &Daemon, path: &str) -> Value {
    let (status, body) = daemon.get(path);
    assert_eq!(status, 200, "{path}: {body}");
    serde_json::from_str::<Value>(&body).unwrap()["data"].clone()
}

/// What has something to act on, for a route of the table: its target and body, and what is written
/// down of it.
fn called(daemon: &Daemon, method: &str, path: &str) -> (String, String, &'static str) {
    let same = |body: Value, written| (path.to_owned(), body.to_string(), written);
    match (method, path) {
        ("POST", "/-/reload") => same(json!({}), "reloaded by"),
        ("POST", "/api/v1/alerts/webhook") => same(
            json!({"alerts": [{"status": "firing", "labels": {"alertname": "Far"},
                "startsAt": "2026-11-22T10:00:00Z"}]}),
            "Far",
        ),
        ("POST", "/api/v1/notes") => same(json!({"comment": "seen"}), "seen"),
        ("POST", "/api/v1/silences") => {
            same(json!({"rule": "g/Misses", "duration": "1h"}), "\"silence\"")
        }
        ("DELETE", "/api/v1/silences/{id}") => {
            ("/api/v1/silences/1".to_owned(), String::new(), "end_silence")
        }
        ("POST", "/api/v1/approvals/{decision}") => {
            let asked = of_api(daemon, "/api/v1/approvals")["approvals"][0]["decision"].clone();
            (format!("/api/v1/approvals/{asked}"), String::new(), "approve")
        }
        ("POST", "/api/v1/breakers/{rule}/reset") => {
            ("/api/v1/breakers/g%2FMisses/reset".to_owned(), String::new(), "reset_breaker")
        }
        // Nothing is forced, and nobody waits for it.
        ("POST", "/api/v1/reboot") => same(json!({"comment": "leaks", "delay": "1d"}), "leaks"),
        ("DELETE", "/api/v1/reboot") => same(json!({"comment": "not now"}), "not now"),
        ("POST", "/api/v1/reboot/clear") => same(json!({"comment": "mended"}), "mended"),
        ("POST", "/api/v1/pause") => same(json!({"comment": "hands off"}), "paused by"),
        ("DELETE", "/api/v1/pause") => same(json!({}), "no longer paused"),
        _ => panic!("{method} {path} acts: say here how it is called, and what is written of it"),
    }
}

#[test]
fn every_call_that_acts_is_in_the_journal_with_who_it_was() {
    let node = Node::new("gb10-4k");
    node.write_rules(RULES);
    let ops = token("ops", Role::Remedy);
    let files = Files::new("", &ops.entry());
    // Whoever reboots is not there.
    let bus = format!("unix:path={}", node.path("no-bus").display());
    let daemon = program::start_with(&node, &files, |command| {
        command.arg("--mode=enforce").env("DBUS_SYSTEM_BUS_ADDRESS", bus);
    });
    daemon.wait_until("asking, and stopped", |daemon| {
        let asked = &of_api(daemon, "/api/v1/approvals")["approvals"];
        let breakers = &of_api(daemon, "/api/v1/breakers")["breakers"];
        asked[0]["decision"].is_u64() && breakers[0]["is_open"] == true
    });
    let client = crate::daemon::http_client().build().unwrap();
    let (name, secret) =
        bearer(&ops).split_once(": ").map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    let call = |method: &str, target: &str, body: String| {
        let url = format!("http://{}{target}", daemon.address());
        let request = client.request(method.parse().unwrap(), url).header(&name, &secret);
        let answer = request.body(body).send().unwrap();
        (answer.status().as_u16(), answer.text().unwrap())
    };
    let acting = access_table().filter(|(_, _, access)| !["read", "local"].contains(access));
    let mut so_far = 0;
    for (method, path, _) in acting {
        let (target, body, written) = called(&daemon, method, path);
        let (status, said) = call(method, &target, body);
        // An order that is refused for what it would do is an order all the same.
        let is_of_reboots = path.starts_with("/api/v1/reboot");
        assert!(status == 200 || (is_of_reboots && status == 409), "{method} {path}: {said}");
        daemon.wait_until("written", |_| entries(&node).len() > so_far);
        let entries = entries(&node);
        assert_eq!(entries.len(), so_far + 1, "{method} {path}: {entries:#?}");
        assert!(
            entries.iter().any(|entry| entry.to_string().contains(written)),
            "{method} {path}: {entries:#?}"
        );
        so_far += 1;
    }
    // A post that changes nothing is counted, and no more.
    let (target, body, _) = called(&daemon, "POST", "/api/v1/alerts/webhook");
    assert_eq!(call("POST", &target, body).0, 200);
    let repeated = "uma_received_alerts_ignored_total{reason=\"repeated\"}";
    daemon.wait_until("counted", |daemon| daemon.metric(repeated) >= 1.0);
    daemon.terminate();
    assert_eq!(entries(&node).len(), so_far);
    let told = history(&node.storage());
    assert_eq!(of_kind(&told, "received_alert").count(), 1);
}
