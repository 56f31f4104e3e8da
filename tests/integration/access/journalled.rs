//! Every acting route of the access table is journalled with its caller.

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
  - alert: NeedsApproval
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

const CALLER: &str = "token ops (127.0.0.1)";

/// Entries of the journal that name the caller, oldest first.
fn entries(node: &Node) -> Vec<Value> {
    let mut entries = history(&node.storage());
    let kinds = ["operator", "note", "received_alert"];
    entries.retain(|entry| {
        kinds.iter().any(|kind| entry["kind"] == *kind) && entry.to_string().contains(CALLER)
    });
    entries
}

fn of_api(daemon: &Daemon, path: &str) -> Value {
    let (status, body) = daemon.get(path);
    assert_eq!(status, 200, "{path}: {body}");
    serde_json::from_str::<Value>(&body).unwrap()["data"].clone()
}

/// The target and body of a valid call of the route, and a text of its journal entry.
fn call_of(daemon: &Daemon, method: &str, path: &str) -> (String, String, &'static str) {
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
        // What was denied may be approved all the same.
        ("DELETE" | "POST", "/api/v1/approvals/{decision}") => {
            let decision = of_api(daemon, "/api/v1/approvals")["approvals"][0]["decision"].clone();
            let written = if method == "POST" { "approve" } else { "deny" };
            (format!("/api/v1/approvals/{decision}"), String::new(), written)
        }
        ("POST", "/api/v1/breakers/{rule}/reset") => {
            ("/api/v1/breakers/g%2FMisses/reset".to_owned(), String::new(), "reset_breaker")
        }
        // The reboot is neither forced nor immediate.
        ("POST", "/api/v1/reboot") => same(json!({"comment": "leaks", "delay": "1d"}), "leaks"),
        ("DELETE", "/api/v1/reboot") => same(json!({"comment": "not now"}), "not now"),
        ("POST", "/api/v1/reboot/clear") => same(json!({"comment": "mended"}), "mended"),
        ("POST", "/api/v1/pause") => same(json!({"comment": "hands off"}), "paused by"),
        ("DELETE", "/api/v1/pause") => same(json!({}), "no longer paused"),
        _ => panic!("{method} {path} acts: add its call and its journal entry here"),
    }
}

#[test]
fn every_acting_call_is_journalled_with_its_caller() {
    let node = Node::new("gb10-4k");
    node.write_rules(RULES);
    let ops = token("ops", Role::Remedy);
    let files = Files::new("", &ops.entry());
    // There is no system bus, so no reboot can follow.
    let bus = format!("unix:path={}", node.path("no-bus").display());
    let daemon = program::start_with(&node, &files, |command| {
        command.arg("--mode=enforce").env("DBUS_SYSTEM_BUS_ADDRESS", bus);
    });
    daemon.wait_until("approval pending and breaker open", |daemon| {
        let approvals = &of_api(daemon, "/api/v1/approvals")["approvals"];
        let breakers = &of_api(daemon, "/api/v1/breakers")["breakers"];
        approvals[0]["decision"].is_u64() && breakers[0]["is_open"] == true
    });
    let client = crate::daemon::http_client().build().unwrap();
    let (name, secret) =
        bearer(&ops).split_once(": ").map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    let call = |method: &str, target: &str, body: String| {
        let url = format!("http://{}{target}", daemon.address());
        let request = client.request(method.parse().unwrap(), url).header(&name, &secret);
        let response = request.body(body).send().unwrap();
        (response.status().as_u16(), response.text().unwrap())
    };
    // This node has no ledger: leases have a test in gate::gangs.
    let is_lease = |path: &str| path == "/api/v1/gate" || path.starts_with("/api/v1/leases");
    let acting = access_table()
        .filter(|(_, path, access)| !["read", "local"].contains(access) && !is_lease(path));
    let mut so_far = 0;
    for (method, path, _) in acting {
        let (target, body, written) = call_of(&daemon, method, path);
        let (status, body) = call(method, &target, body);
        // A reboot that is refused with 409 is journalled, too.
        let is_of_reboots = path.starts_with("/api/v1/reboot");
        assert!(status == 200 || (is_of_reboots && status == 409), "{method} {path}: {body}");
        daemon.wait_until("journalled", |_| entries(&node).len() > so_far);
        let entries = entries(&node);
        assert_eq!(entries.len(), so_far + 1, "{method} {path}: {entries:#?}");
        assert!(
            entries.iter().any(|entry| entry.to_string().contains(written)),
            "{method} {path}: {entries:#?}"
        );
        so_far += 1;
    }
    // A repeated alert is only counted.
    let (target, body, _) = call_of(&daemon, "POST", "/api/v1/alerts/webhook");
    assert_eq!(call("POST", &target, body).0, 200);
    let repeated = "uma_received_alerts_ignored_total{reason=\"repeated\"}";
    daemon.wait_until("counted", |daemon| daemon.metric(repeated) >= 1.0);
    daemon.terminate();
    assert_eq!(entries(&node).len(), so_far);
    let entries = history(&node.storage());
    assert_eq!(of_kind(&entries, "received_alert").count(), 1);
}
