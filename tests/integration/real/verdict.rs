//! What holds memory that no counter names, on the real kernel.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::enabled;
use super::gate::Holder;
use crate::daemon::Daemon;

pub(super) fn verdict(daemon: &Daemon) -> Value {
    let (_, body) = daemon.get("/api/v1/verdict");
    let answer: Value = serde_json::from_str(&body).unwrap_or_default();
    answer["data"]["verdict"].clone()
}

/// 6 GiB in pipes: whoever holds them is named, and they are never taken for leaked.
#[test]
fn memory_in_pipes_is_in_use_while_its_owner_lives_and_free_afterwards() {
    if !enabled() {
        return;
    }
    let storage = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(storage.path(), &[]);
    daemon.wait_until("clean", |daemon| verdict(daemon)["verdict"] == "clean");
    let mut holder = Holder::start();
    // It was looked at while it filled them, too.
    let is_named = |told: &Value| {
        let texts = told["evidence"].to_string();
        texts.contains(&format!("(pid {}) has 6.0 GiB in pipes", holder.id()))
    };
    daemon.wait_until("naming who holds them", |daemon| is_named(&verdict(daemon)));
    let told = verdict(&daemon);
    assert_eq!(told["verdict"], "in_use", "{told}");
    assert!(told["held_bytes"].as_u64().unwrap() > 4 << 30, "{told}");
    holder.kill();
    let killed = Instant::now();
    // Until the next look at the processes the dead one is still believed to hold what is gone.
    daemon.wait_until("clean again", |daemon| verdict(daemon)["verdict"] == "clean");
    assert!(killed.elapsed() < Duration::from_secs(15));
    let leaked = daemon.metric("uma_memory_verdict{verdict=\"leaked\"}");
    assert!(leaked.abs() < f64::EPSILON);
    daemon.terminate();
}
