//! Owners of memory that no counter names, on the real kernel.

use std::time::Duration;

use serde_json::Value;

use super::enabled;
use super::gate::Holder;
use crate::daemon::Daemon;

pub(super) fn verdict(daemon: &Daemon) -> Value {
    let (_, body) = daemon.get("/api/v1/verdict");
    let answer: Value = serde_json::from_str(&body).unwrap_or_default();
    answer["data"]["verdict"].clone()
}

/// 3 GiB in pipes: their owner is named, and they never count as leaked.
#[test]
fn memory_in_pipes_is_in_use_while_its_owner_lives_and_free_afterwards() {
    if !enabled() {
        return;
    }
    let storage = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(storage.path(), &[]);
    daemon.wait_until("clean", |daemon| verdict(daemon)["verdict"] == "clean");
    let mut holder = Holder::start();
    // It was scanned while it filled them, too.
    let is_named = |response: &Value| {
        let texts = response["evidence"].to_string();
        texts.contains(&format!("(pid {}) has 3.0 GiB in pipes", holder.id()))
    };
    daemon.wait_until("naming who holds them", |daemon| is_named(&verdict(daemon)));
    let response = verdict(&daemon);
    assert_eq!(response["verdict"], "in_use", "{response}");
    assert!(response["held_bytes"].as_u64().unwrap() > 1 << 30, "{response}");
    holder.kill();
    // Until the next scan of processes the dead one still counts as the owner: after 10 s, or 50
    // times as long as the last scan took.
    let limit = Duration::from_secs(120);
    daemon.wait_until_within(limit, "clean again", |daemon| verdict(daemon)["verdict"] == "clean");
    let leaked = daemon.metric("uma_memory_verdict{verdict=\"leaked\"}");
    assert!(leaked.abs() < f64::EPSILON);
    daemon.terminate();
}
