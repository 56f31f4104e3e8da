//! `umawarden query`, and queries of a daemon.

use std::process::{Command, Output};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::Node;
use crate::daemon::{Daemon, binary};
use crate::engines::live::SilentPort;

/// The output of a query of this node, in ASCII.
fn query(node: &Node, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(binary());
    command.arg("query").args(arguments).env("LC_ALL", "C");
    let storage = format!("--storage.path={}", node.storage().display());
    let Output { status, stdout, stderr } = command.arg(storage).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

fn api(daemon: &Daemon, target: &str) -> Value {
    let (status, body) = daemon.get(target);
    assert_eq!(status, 200, "{target}: {body}");
    serde_json::from_str(&body).unwrap()
}

/// Where the daemon's clock is: its last sample.
fn sampled(daemon: &Daemon) -> Timestamp {
    let status = api(daemon, "/api/v1/status");
    status["data"]["sampled"].as_str().unwrap().parse().unwrap()
}

#[test]
fn values_of_a_daemon_are_printed_as_a_table_and_over_time() {
    let node = Node::new("gb10-4k");
    let daemon = node.start(&[]);
    let both =
        "label_replace(uma_memory_total_bytes, 'of', 'all', '', '') or uma_memory_free_bytes";
    let (code, table, _) = query(&node, &[both]);
    let expected =
        "121.0 GiB  uma_memory_total_bytes{of=\"all\"}\n  4.0 GiB  uma_memory_free_bytes\n";
    assert_eq!((code, &*table), (Some(0), expected));
    let begin = sampled(&daemon);
    let waits = |seconds: i64| {
        daemon.wait_until("sampled for some time", |daemon| {
            sampled(daemon).duration_since(begin) > SignedDuration::from_secs(seconds)
        });
    };
    waits(1);
    node.set_meminfo("MemFree", 8_388_608);
    waits(7);
    let (code, plot, _) = query(&node, &["uma_memory_free_bytes", "--since=1m"]);
    assert_eq!(code, Some(0), "{plot}");
    assert!(plot.is_ascii() && plot.starts_with("uma_memory_free_bytes, last 8.0 GiB\n"), "{plot}");
    assert!(plot.contains("8.0 GiB |") && plot.contains("4.0 GiB |"), "{plot}");
    let (_, lines, _) = query(&node, &["uma_memory_page_cache_bytes", "--since=1m", "--step=5s"]);
    assert!(lines.lines().count() >= 4 && lines.contains(", last "), "{lines}");
    let (_, json, _) = query(&node, &["uma_memory_page_cache_bytes", "--since=1m", "--json"]);
    let first: Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
    assert_eq!(first["metric"]["__name__"], "uma_memory_page_cache_bytes");
    assert!(first["metric"].get("instance").is_none(), "as rules see them: {first}");
    assert!(first["values"].as_array().unwrap().len() >= 2);
    let (code, samples, _) = query(&node, &["uma_memory_free_bytes[1m]"]);
    assert!(code == Some(0) && samples.starts_with("uma_memory_free_bytes\n  "), "{samples}");
    assert!(samples.contains(" 4.0 GiB  2") && samples.contains(" 8.0 GiB  2"), "{samples}");
    let (code, _, error) = query(&node, &["uma_memory_free_bytes[1m]", "--since=1m"]);
    assert!(code == Some(2) && error.contains("\"range vector\" for range query"), "{error}");
    assert_eq!(query(&node, &["'a'"]).1, "a\n");
    let (code, nothing, _) = query(&node, &["uma_memory_free_bytes < 0"]);
    assert_eq!((code, nothing.starts_with("nothing")), (Some(1), true), "{nothing}");
    let (code, _, error) = query(&node, &["uma_memory_free_bytes[5m:1m]"]);
    assert!(code == Some(2) && error.contains("1:22: parse error: subqueries"), "{error}");
    let (code, _, error) = query(&node, &["1", "--since=2030-01-01"]);
    assert!(code == Some(2) && error.contains("is not before"), "{error}");
    let (_, _, warning) = query(&node, &["uma_memory_fre_bytes"]);
    assert!(warning.contains("did you mean \"uma_memory_free_bytes\""), "{warning}");
    let labelled = api(&daemon, "/api/v1/query?query=uma_memory_free_bytes");
    let port = daemon.address().rsplit_once(':').unwrap().1;
    let instance = labelled["data"]["result"][0]["metric"]["instance"].as_str().unwrap();
    assert!(instance.ends_with(&format!(":{port}")), "{instance}");
    daemon.terminate();
    let (code, _, error) = query(&node, &["1"]);
    assert!(code == Some(2) && error.contains("--recording FOLDER"), "{error}");
}

/// Also the series that the policy derives are there.
#[test]
fn a_daemon_and_a_command_read_the_flight_recorder() {
    let node = Node::new("gb10-4k");
    let first = node.start(&[]);
    let begin = sampled(&first);
    first.wait_until("recorded for some seconds", |daemon| {
        sampled(daemon).duration_since(begin) > SignedDuration::from_secs(3)
    });
    let at = sampled(&first);
    first.terminate();
    std::thread::sleep(Duration::from_millis(1500));
    let folder = format!("--recording={}", node.storage().display());
    for expr in ["uma_memory_free_bytes", "uma_pool_free_bytes"] {
        let (code, table, error) = query(&node, &[expr, &folder]);
        assert!(code == Some(0) && table.contains("4.0 GiB"), "{table}{error}");
        let (code, plot, error) = query(&node, &[expr, &folder, "--since=1m", "--step=1s"]);
        assert!(code == Some(0) && plot.contains("last 4.0 GiB"), "{plot}{error}");
        assert!(error.contains("the recording has samples from"), "{error}");
    }
    let (code, _, error) = query(&node, &["1", "--recording=/proc/self/status"]);
    assert_eq!(code, Some(2), "{error}");
    let (code, _, error) = query(&node, &["uma_memory_free_bytes", &folder, "--until=2020-01-01"]);
    assert!(code == Some(2) && error.contains("the recording has nothing between"), "{error}");

    let second = node.start(&[]);
    for expr in ["uma_memory_free_bytes", "uma_pool_free_bytes"] {
        let found = api(&second, &format!("/api/v1/query?query={expr}&time={at}"));
        let values = found["data"]["result"].as_array().unwrap();
        assert!(!values.is_empty() && found.get("warnings").is_none(), "{expr}: {found}");
    }
    let rate = api(&second, "/api/v1/query?query=count_over_time(uma_memory_free_bytes[1m])");
    let count: f64 = rate["data"]["result"][0]["value"][1].as_str().unwrap().parse().unwrap();
    assert!(count >= 2.0, "samples of both: {rate}");
    second.terminate();

    let off = node.path("off.yaml");
    std::fs::write(&off, "recording: {size: 0}\n").unwrap();
    let third = node.start(&[&format!("--config.file={}", off.display())]);
    let found = api(&third, &format!("/api/v1/query?query=uma_memory_free_bytes&time={at}"));
    let warning = found["warnings"][0].as_str().unwrap();
    assert!(warning.contains("are missing: the flight recorder is off"), "{warning}");
    let listed = api(&third, &format!("/api/v1/labels?start={at}"));
    assert_eq!(listed["warnings"][0], warning);
    third.terminate();
}

/// Grafana fills its variables from such lists.
#[test]
fn lists_have_what_only_the_flight_recorder_has() {
    let node = Node::new("gb10-4k");
    let silent = SilentPort::take();
    let file = node.path("umawarden.yaml");
    let text = format!(
        "engines:\n- name: deepseek\n  match: {{comm: \"VLLM::*\"}}\n  \
         health: http://127.0.0.1:{}/health\n",
        silent.number
    );
    std::fs::write(&file, text).unwrap();
    node.put_engine();
    let config = format!("--config.file={}", file.display());
    let first = node.start(&[&config]);
    let is_known = |daemon: &Daemon| {
        daemon.metrics().keys().any(|series| series.starts_with("uma_engine_info{"))
    };
    first.wait_until("tracking the engine", is_known);
    let begin = sampled(&first);
    first.wait_until("recorded for some seconds", |daemon| {
        sampled(daemon).duration_since(begin) > SignedDuration::from_secs(3)
    });
    first.terminate();
    for process in ["proc/10", "proc/11"] {
        std::fs::remove_dir_all(node.path(process)).unwrap();
    }
    std::thread::sleep(Duration::from_millis(1500));
    let second = node.start(&[&config]);
    let selected = "match[]=uma_engine_info";
    let values = format!("/api/v1/label/engine/values?{selected}");
    assert_eq!(api(&second, &values)["data"], serde_json::json!([]), "no engine runs");
    let found = api(&second, &format!("{values}&start={begin}"));
    assert_eq!(found["data"], serde_json::json!(["deepseek"]), "{found}");
    assert!(found.get("warnings").is_none(), "{found}");
    let found = api(&second, &format!("/api/v1/series?{selected}&start={begin}"));
    assert_eq!(found["data"][0]["engine"], "deepseek", "{found}");
    let found = api(&second, &format!("/api/v1/labels?{selected}&start={begin}"));
    assert!(found["data"].as_array().unwrap().contains(&"engine".into()), "{found}");
    second.terminate();
}

#[test]
fn queries_do_not_hold_up_the_loop() {
    let node = Node::new("gb10-4k");
    let daemon = node.start(&["--sampling-interval=100ms"]);
    let missed = daemon.count("uma_samples_missed_total");
    let end = Timestamp::now().as_second();
    let query = format!(
        "/api/v1/query_range?query=sum(uma_memory_page_cache_bytes)/scalar(uma_memory_total_bytes)\
         &start={}&end={end}&step=1",
        end - 10_000
    );
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let (status, body) = daemon.get(&query);
                assert!([200, 503].contains(&status), "{body}");
            });
        }
    });
    let missed = daemon.count("uma_samples_missed_total") - missed;
    assert!(missed < 20.0, "{missed} samples of the loop were missed");
    daemon.terminate();
}
