//! Acts that go ahead unless a person denies them, over crashes of the daemon.

use std::fs;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::{ALWAYS, Node};
use crate::daemon::{Daemon, history, of_kind};

/// Announces that caches will be dropped, and does so after ten seconds.
fn announcing_node() -> Node {
    let node = Node::new("gb10-4k");
    let announcing = "remedy:\n      require_approval: {unless_denied_within: 10s}";
    let rules = ALWAYS.replace("remedy:", announcing);
    node.write_rules(&rules.replace("      - compact_memory: {}\n", ""));
    node
}

/// The only open announcement.
fn announcement(daemon: &Daemon) -> Value {
    let (status, body) = daemon.get("/api/v1/approvals");
    assert_eq!(status, 200, "{body}");
    let answer: Value = serde_json::from_str(&body).unwrap();
    answer["data"]["approvals"][0].clone()
}

fn announced(daemon: &Daemon) -> Value {
    daemon.wait_until("announced", |daemon| announcement(daemon)["decision"].is_u64());
    announcement(daemon)
}

fn dropped(node: &Node) -> bool {
    !fs::read_to_string(node.drop_caches()).unwrap().is_empty()
}

fn instant(value: &Value) -> Timestamp {
    value.as_str().unwrap().parse().unwrap()
}

#[test]
fn an_announced_act_is_done_at_its_time_although_the_daemon_was_killed_meanwhile() {
    let node = announcing_node();
    let daemon = node.start(&["--mode=enforce"]);
    let asked = announced(&daemon);
    let due = instant(&asked["goes_ahead"]["utc"]);
    let metric = "uma_remedy_goes_ahead_timestamp_seconds{group=\"g\",rule=\"Always\"}";
    daemon.wait_until("exported", |daemon| daemon.metric(metric) == due.as_second() as f64);
    assert!(daemon.get("/").1.contains(&format!("umawarden deny {}", asked["decision"])));
    std::thread::sleep(Duration::from_secs(3));
    daemon.kill();

    let daemon = node.start(&["--mode=enforce"]);
    let again = announced(&daemon);
    assert_eq!(again["decision"], asked["decision"], "it is not announced a second time");
    assert_eq!(instant(&again["goes_ahead"]["utc"]), due);
    daemon.wait_until("done", |_| dropped(&node));
    assert!(Timestamp::now() >= due, "not before its time");
    daemon.terminate();
    let history = history(&node.storage());
    let decisions: Vec<&Value> = of_kind(&history, "decision").collect();
    let act = decisions.iter().find(|made| made["decision"] == "act").unwrap();
    assert_eq!(act["approved"], asked["decision"]);
    let held = decisions.iter().find(|made| made["reason"] == "announced").unwrap();
    assert_eq!(instant(&held["goes_ahead"]), due);
}

#[test]
fn a_denial_outlives_a_crash_and_the_time_of_the_announcement() {
    let node = announcing_node();
    let daemon = node.start(&["--mode=enforce"]);
    let asked = announced(&daemon);
    let (id, due) = (asked["decision"].to_string(), instant(&asked["goes_ahead"]["utc"]));
    let listed = node.order(&["approve", "list"]);
    assert!(listed.stdout.contains("unless it is denied"), "{listed:?}");
    let unknown = node.order(&["deny", "987654"]);
    assert!(unknown.code == 1 && unknown.stderr.contains(&id), "{unknown:?}");
    let denied = node.ordered(&["deny", &id, "--for", "1h", "--comment", "draining"]);
    assert_eq!((&denied["order"], &denied["comment"]), (&"deny".into(), &"draining".into()));
    let again = node.order(&["deny", &id]);
    assert!(again.code == 1 && again.stderr.contains("denied already"), "{again:?}");
    let long = node.order(&["deny", &id, "--for", "30d"]);
    assert_ne!(long.code, 0, "{long:?}");
    daemon.kill();

    let daemon = node.start(&["--mode=enforce"]);
    daemon.wait_until("known again", |daemon| announcement(daemon)["denied_by"].is_string());
    let past = due + Duration::from_secs(2);
    daemon.wait_until("past its time", |_| Timestamp::now() > past);
    assert!(!dropped(&node));
    assert_eq!(announcement(&daemon)["decision"].to_string(), id, "nor announced again");
    // A person may change their mind.
    node.ordered(&["approve", &id]);
    daemon.wait_until("done", |_| dropped(&node));
}
