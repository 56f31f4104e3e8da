//! A real process with the API of SGLang is emptied, and paused for that; the program ends or is
//! killed meanwhile.

use std::os::unix::fs::symlink;

use super::{Node, outcomes};
use crate::daemon::{Daemon, history, of_kind};
use crate::empty_cache::process::Sglang;

/// Fires while an engine is up.
const RULES: &str = "
groups:
- name: g
  rules:
  - alert: Up
    expr: uma_engine_phase{phase=~\"ready|serving\"} == 1
    remedy:
      steps: [{empty_cache: {allow: [retract_requests]}}]
      cooldown: 1h
";

const ENDED: &str = "uma_temporary_settings_undone_total{result=\"restored\"}";

fn node(sglang: &Sglang) -> Node {
    let node = Node::new("gb10-4k");
    node.write_rules(RULES);
    symlink(sglang.proc(), node.path("proc").join(sglang.pid().to_string())).unwrap();
    node
}

/// The scanning process is one of them.
fn start(node: &Node) -> Daemon {
    let daemon = node.start(&["--mode=enforce"]);
    let pid = daemon.pid().to_string();
    symlink(format!("/proc/{pid}"), node.path("proc").join(&pid)).unwrap();
    let own = node.path("proc/self");
    // It may be absent.
    let _ = std::fs::remove_file(&own);
    symlink(pid, own).unwrap();
    daemon
}

#[test]
fn a_busy_engine_is_paused_emptied_and_resumed() {
    let sglang = Sglang::start();
    let node = node(&sglang);
    let daemon = start(&node);
    daemon.wait_until("done", |daemon| daemon.count(&outcomes("empty_cache", "done")) == 1.0);
    let label = format!("{{engine=\"sglang-{}\"}}", sglang.port);
    let metric = |name: &str| daemon.metric(&format!("{name}{label}"));
    assert_eq!(metric("uma_engine_requests_running"), 1.0);
    assert_eq!(metric("uma_engine_requests_waiting"), 0.0);
    let usage = metric("uma_engine_kv_cache_usage_ratio");
    assert!(usage > 0.0 && usage < 0.1, "{usage}");
    let tokens = metric("uma_engine_kv_cache_available_tokens");
    assert!(tokens > 60_000.0 && tokens < 65_536.0, "{tokens}");
    daemon.wait_until("counted", |daemon| daemon.count(ENDED) == 1.0);
    daemon.terminate();
    let posts: Vec<String> =
        sglang.requests().into_iter().filter(|request| request.starts_with("POST")).collect();
    assert_eq!(posts, ["POST /pause_generation", "POST /flush_cache", "POST /continue_generation"]);
    let history = history(&node.storage());
    let act = of_kind(&history, "decision").find(|one| one["decision"] == "act").unwrap();
    assert_eq!(act["target"]["kind"], "engine", "{act}");
    let outcome = of_kind(&history, "outcome").next().unwrap();
    let effect = outcome["effect"].as_str().unwrap();
    assert!(effect.starts_with("no memory came back: free "), "{effect}");
    assert!(
        effect.ends_with("1 request retracted, prefix cache dropped, and it goes on"),
        "{effect}"
    );
}

#[test]
fn an_engine_left_paused_by_a_kill_is_resumed_at_the_next_start() {
    let sglang = Sglang::start();
    sglang.set("hang");
    let node = node(&sglang);
    let daemon = start(&node);
    sglang.wait_until_posted("/flush_cache");
    daemon.kill();
    assert_eq!(sglang.posted("/continue_generation"), 0, "{:#?}", sglang.requests());
    let daemon = node.start(&[]);
    sglang.wait_until_posted("/continue_generation");
    daemon.wait_until("reported", |daemon| daemon.log().contains("is running again, after an end"));
    daemon.wait_until("counted", |daemon| daemon.count(ENDED) == 1.0);
    daemon.terminate();
    assert_eq!(sglang.posted("/continue_generation"), 1);
}

#[test]
fn a_paused_engine_is_resumed_before_the_daemon_ends() {
    let sglang = Sglang::start();
    sglang.set("hang");
    let node = node(&sglang);
    let daemon = start(&node);
    sglang.wait_until_posted("/flush_cache");
    let (took, log) = daemon.terminate();
    assert_eq!(sglang.posted("/continue_generation"), 1, "{took:?} {log}");
}

#[test]
fn an_engine_that_does_not_resume_is_asked_again_every_ten_seconds() {
    const PAUSED: &str = "uma_temporary_settings{setting=\"engine_pause\"}";
    let sglang = Sglang::start();
    sglang.set("deaf");
    let node = node(&sglang);
    let daemon = start(&node);
    daemon.wait_until("failed", |daemon| daemon.count(&outcomes("empty_cache", "failed")) == 1.0);
    daemon.wait_until("shown", |daemon| daemon.count(PAUSED) == 1.0);
    assert_eq!(sglang.posted("/continue_generation"), 3, "within the act");
    sglang.unset("deaf");
    daemon.wait_until("resumed", |daemon| daemon.count(ENDED) == 1.0);
    assert_eq!(sglang.posted("/continue_generation"), 4);
    assert!(daemon.log().contains("is running again, after it did not before"), "{}", daemon.log());
    daemon.wait_until("shown", |daemon| daemon.count(PAUSED) == 0.0);
    daemon.terminate();
    let history = history(&node.storage());
    let outcome = of_kind(&history, "outcome").next().unwrap();
    let why = outcome.to_string();
    assert!(why.contains("it was paused, and does not resume"), "{why}");
}
