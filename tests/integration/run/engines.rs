//! An engine on the node: found, declared, tracked, exported, journalled, and read by a rule.

use std::fs;
use std::process::Command;

use serde_json::Value;

use super::Node;
use crate::daemon::{Daemon, binary};
use crate::engines::live::SilentPort;

const LOADS: &str = "\
groups:
- name: g
  interval: 100ms
  rules:
  - alert: Loads
    expr: uma_engine_phase{phase=\"loading\"} == 1
";

impl Node {
    fn put_process(&self, pid: u32, parent: u32, comm: &str, line: &str, maps: &str) {
        let folder = self.path("proc").join(pid.to_string());
        fs::create_dir_all(folder.join("fd")).unwrap();
        let stat = format!(
            "{pid} ({comm}) S {parent} 1 1 0 -1 4194304 0 0 0 0 10 5 0 0 20 0 1 0 77 1 2 3\n"
        );
        for (name, text) in [
            ("cmdline", line.replace(' ', "\0")),
            ("cgroup", "0::/system.slice/vllm.service\n".to_owned()),
            ("status", "RssAnon: 1024 kB\nRssFile: 512 kB\nRssShmem: 0 kB\n".to_owned()),
            ("io", "rchar: 9\nread_bytes: 4096\n".to_owned()),
            ("maps", maps.to_owned()),
            ("stat", stat),
        ] {
            fs::write(folder.join(name), text).unwrap();
        }
    }

    pub fn put_engine(&self) {
        self.put_process(10, 1, "vllm", "python vllm serve /m --api-key secret --port 1", "");
        let maps = "7f0000000000-7f0000200000 r--s 0 8:1 5 /m/x.safetensors\n";
        self.put_process(11, 10, "VLLM::EngineCor", "VLLM::EngineCore", maps);
    }

    fn engines(&self, more: &[&str]) -> (i32, String) {
        let output = Command::new(binary())
            .arg("engines")
            .args(more)
            .arg("--storage.path")
            .arg(self.storage())
            .output()
            .unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
    }
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = std::time::Instant::now();
    while !is_so() {
        assert!(began.elapsed().as_secs() < 60, "never {what}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

fn phase(daemon: &Daemon, phase: &str) -> bool {
    let series = format!("uma_engine_phase{{engine=\"deepseek\",phase=\"{phase}\"}}");
    daemon.metrics().get(&series) == Some(&1.0)
}

/// Phases in the journal, newest first.
fn journalled(daemon: &Daemon) -> Vec<String> {
    let (_, events) = daemon.get("/api/v1/events?kind=engine_phase");
    let response: Value = serde_json::from_str(&events).unwrap();
    let events = response["data"]["events"].as_array().unwrap();
    events.iter().map(|event| event["to"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_declared_engine_is_tracked_exported_journalled_and_read_by_rules() {
    let node = Node::new("gb10-4k");
    let silent = SilentPort::take();
    let refused = format!("127.0.0.1:{}", silent.number);
    let file = node.path("umawarden.yaml");
    let text = format!(
        "engines:\n- name: deepseek\n  match: {{comm: \"VLLM::*\"}}\n  \
         model_files: [\"/m/**\"]\n  health: http://{refused}/health\n"
    );
    fs::write(&file, text).unwrap();
    node.write_rules(LOADS);
    let config = format!("--config.file={}", file.display());
    let daemon = node.start(&[&config]);
    wait_for("scanned", || daemon.metrics().get("uma_engines") == Some(&0.0));
    assert_eq!(node.engines(&[]), (0, String::new()));
    node.put_engine();
    wait_for("loading", || phase(&daemon, "loading"));
    let firing = "uma_rule_state{group=\"g\",rule=\"Loads\",state=\"firing\"}";
    wait_for("read by the rule", || daemon.metrics().get(firing) == Some(&1.0));
    let metrics = daemon.metrics();
    let info = metrics.keys().find(|series| series.starts_with("uma_engine_info{")).unwrap();
    for label in ["engine=\"deepseek\"", "kind=\"vllm\"", "unit=\"vllm.service\""] {
        assert!(info.contains(label), "{info}");
    }
    assert!(!info.contains("secret"), "{info}");
    assert_eq!(metrics.get("uma_engine_mapped_model_bytes{engine=\"deepseek\"}"), Some(&2097152.0));
    assert_eq!(metrics.get("uma_engine_processes{engine=\"deepseek\"}"), Some(&2.0));
    let (status, body) = daemon.get("/api/v1/engines");
    assert_eq!(status, 200);
    assert!(!body.contains("secret"), "{body}");
    let response: Value = serde_json::from_str(&body).unwrap();
    let engine = &response["data"]["engines"][0];
    assert_eq!((&engine["name"], &engine["phase"]), (&"deepseek".into(), &"loading".into()));
    assert_eq!(engine["health"]["answer"], "refused");
    assert_eq!(engine["processes"][1]["mapped_model_files"], 1);
    assert_eq!(engine["unit"], "vllm.service");
    let (code, printed) = node.engines(&[]);
    assert_eq!(code, 0);
    assert!(printed.starts_with("deepseek"), "{printed}");
    assert!(printed.contains("loading for"), "{printed}");
    // A process of that age may have had its model for long: its worker is more informative.
    assert!(printed.contains("its worker VLLM::EngineCor (pid 11) has started"), "{printed}");
    let (_, line) = node.engines(&["--json"]);
    let one: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(one["server"]["pid"], 10);
    fs::remove_dir_all(node.path("proc/10")).unwrap();
    fs::remove_dir_all(node.path("proc/11")).unwrap();
    wait_for("gone", || phase(&daemon, "gone"));
    // The journal is written after the export.
    wait_for("journalled", || journalled(&daemon).first().is_some_and(|phase| phase == "gone"));
    assert_eq!(journalled(&daemon).last().map(String::as_str), Some("starting"));
    drop(daemon);
    let output = Command::new(binary())
        .args(["history", "--kind", "engine_phase", "--storage.path"])
        .arg(node.storage())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("deepseek: starting → loading: its worker VLLM::EngineCor (pid 11)"),
        "{text}"
    );
}

#[test]
fn engines_cannot_be_shown_without_a_daemon() {
    let node = Node::new("gb10-4k");
    let (code, printed) = node.engines(&[]);
    assert_eq!((code, printed), (2, String::new()));
}
