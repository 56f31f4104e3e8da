//! Several nodes on the loopback: the program itself over fake `/proc` and `/sys` files.

mod guarded;
mod hostile;
mod ranks;
mod replayed;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::daemon::{Daemon, binary};

const GIB_IN_KIB: u64 = 1 << 20;

const RULES: &str = r#"groups:
- name: compared
  scope: cluster
  interval: 500ms
  rules:
  - alert: Imbalance
    expr: min by (cluster) (uma_memory_available_bytes) < 0.9 * max by (cluster) (uma_memory_available_bytes)
    remedy: {steps: [{notify: {message: uneven}}], cooldown: 1h}
  - alert: Lesser
    expr: uma_memory_available_bytes < on(cluster) group_left() 0.9 * max by (cluster) (uma_memory_available_bytes)
    remedy: {steps: [{notify: {message: 'low on {{ $labels.node }}'}}], cooldown: 1h}
  - alert: Kernels
    expr: count by (cluster) (count by (cluster, release) (uma_kernel_info)) > 1
- name: own
  interval: 500ms
  rules:
  - alert: Silent
    expr: uma_cluster_peer_up == 0
  - alert: RankLost
    expr: uma_engine_rank_lost == 1
    remedy: {steps: [{stop_engine: {engine: '{{ $labels.engine }}', grace: 1s}}], cooldown: 1h}
"#;

/// A node whose available memory a test sets.
pub struct Node {
    folder: tempfile::TempDir,
    daemon: Option<Daemon>,
}

impl Node {
    fn start(name: &str, peers: &Path) -> Self {
        let peers = peers.display();
        Self::with(&format!("name: rack, node: {name}, file_sd: [{peers}], interval: 500ms"))
    }

    /// `cluster` is the section of its configuration.
    pub fn with(cluster: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut node = Self { folder, daemon: None };
        fs::create_dir_all(node.path("proc/sys/vm")).unwrap();
        fs::create_dir_all(node.path("proc/sys/kernel")).unwrap();
        fs::create_dir_all(node.path("sys")).unwrap();
        fs::write(node.path("proc/sys/kernel/osrelease"), "6.17.0-test\n").unwrap();
        fs::write(node.path("proc/sys/vm/min_free_kbytes"), "90112\n").unwrap();
        fs::write(node.path("proc/kmsg"), "").unwrap();
        node.set_available(100);
        fs::write(node.path("rules.yaml"), RULES).unwrap();
        let config = format!("cluster: {{{cluster}}}\nrule_files: [rules.yaml]\n");
        fs::write(node.path("umawarden.yaml"), config).unwrap();
        let flag = |name: &str, below: &str| format!("--{name}={}", node.path(below).display());
        let arguments = [
            flag("config.file", "umawarden.yaml"),
            flag("path.procfs", "proc"),
            flag("path.sysfs", "sys"),
            flag("path.kmsg", "proc/kmsg"),
            "--gpu.interval=off".to_owned(),
        ];
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        node.daemon = Some(Daemon::start(&node.path("data"), &arguments));
        node
    }

    pub fn path(&self, below: &str) -> PathBuf {
        self.folder.path().join(below)
    }

    pub fn daemon(&self) -> &Daemon {
        self.daemon.as_ref().unwrap()
    }

    pub fn set_available(&self, gib: u64) {
        let (total, available) = (120 * GIB_IN_KIB, gib * GIB_IN_KIB);
        let text = format!(
            "MemTotal: {total} kB\nMemFree: {available} kB\nMemAvailable: {available} kB\n\
             Buffers: 0 kB\nCached: 0 kB\nDirty: 0 kB\nWriteback: 0 kB\nMapped: 0 kB\nShmem: 0 kB\n"
        );
        let new = self.path("proc/meminfo.new");
        fs::write(&new, text).unwrap();
        fs::rename(new, self.path("proc/meminfo")).unwrap();
    }

    /// The `data` of a response of the API.
    fn data(&self, path: &str) -> Value {
        let (status, body) = self.daemon().get(path);
        assert_eq!(status, 200, "{body}");
        let mut response: Value = serde_json::from_str(&body).unwrap();
        response["data"].take()
    }

    pub fn state(&self, alert: &str) -> String {
        let status = self.data("/api/v1/status");
        let rules = status["rules"].as_array().unwrap().iter();
        let mut rules = rules.filter(|rule| rule["alert"] == alert);
        rules.next().unwrap()["state"].as_str().unwrap().to_owned()
    }

    pub fn wait_for(&self, alert: &str, state: &str) {
        self.daemon().wait_until(&format!("{alert} {state}"), |_| self.state(alert) == state);
    }

    /// The nodes it lists, and whether their memory is known.
    pub fn nodes(&self) -> Vec<(String, bool)> {
        let cluster = self.data("/api/v1/cluster");
        let nodes = cluster["nodes"].as_array().unwrap().iter();
        let mut nodes: Vec<_> = nodes
            .map(|node| (node["node"].as_str().unwrap().to_owned(), node["unknown"].is_null()))
            .collect();
        nodes.sort();
        nodes
    }

    /// Exit code and output of `umawarden cluster`.
    fn cluster_command(&self, more: &[&str]) -> (i32, String) {
        let mut command = Command::new(binary());
        command.arg("cluster").arg("--storage.path").arg(self.path("data")).args(more);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        (output.status.code().unwrap(), text)
    }

    /// Actions and conditions of all decisions.
    fn decisions(&self) -> Vec<String> {
        let data = self.data("/api/v1/decisions");
        let decisions = data["decisions"].as_array().unwrap().iter();
        decisions
            .map(|decision| decision["action"].to_string() + &decision["because"].to_string())
            .collect()
    }
}

#[test]
fn three_nodes_track_each_other_and_report_the_weakest_and_the_silent_one() {
    let folder = tempfile::tempdir().unwrap();
    let peers = folder.path().join("peers.json");
    fs::write(&peers, "[]").unwrap();
    let mut nodes = ["one", "two", "three"].map(|name| Node::start(name, &peers));
    assert_eq!(nodes[0].nodes(), [("one".to_owned(), true)]);
    // All nodes share one list, in which each finds itself.
    let target = |(name, node): (&str, &Node)| {
        let address = node.daemon().address();
        format!("{{\"targets\": [\"{address}\"], \"labels\": {{\"node\": \"{name}\"}}}}")
    };
    let targets: Vec<String> =
        ["one", "two", "three"].into_iter().zip(&nodes).map(target).collect();
    let new = folder.path().join("new");
    fs::write(&new, format!("[{}]", targets.join(", "))).unwrap();
    fs::rename(&new, &peers).unwrap();
    let all = ["one", "three", "two"].map(|name| (name.to_owned(), true));
    for node in &nodes {
        node.daemon().wait_until("knows all", |_| node.nodes() == all);
        node.wait_for("Imbalance", "inactive");
        node.wait_for("Kernels", "inactive");
    }
    let (code, text) = nodes[0].cluster_command(&[]);
    assert_eq!(code, 0, "{text}");
    assert!(!text.contains("weakest"), "all have the same: {text}");
    // The page leads to the pages of the others.
    let link = format!("<a href=\"http://{}/\">two</a>", nodes[1].daemon().address());
    let (_, page) = nodes[0].daemon().get("/");
    assert!(page.contains(&link) && !page.contains(">one</a>"), "{page}");
    nodes[0].daemon().wait_until("levels", |daemon| daemon.get("/").1.contains("; answers"));
    assert!(
        text.contains("100.0 GiB of 120.0 GiB available") && text.contains("this node"),
        "{text}"
    );

    nodes[2].set_available(20);
    for node in &nodes {
        node.wait_for("Imbalance", "firing");
        node.daemon().wait_until("decided", |_| !node.decisions().is_empty());
        let decisions = node.decisions().join("\n");
        let labels = ["node=\\\"three\\\"", "cluster=\\\"rack\\\""];
        assert!(labels.iter().all(|label| decisions.contains(label)), "{decisions}");
    }
    nodes[2].daemon().wait_until("decided about itself", |_| {
        nodes[2].decisions().iter().any(|decision| decision.contains("low on three"))
    });
    let decisions = nodes[0].decisions();
    assert!(decisions.iter().all(|decision| !decision.contains("low on")), "{decisions:?}");
    nodes[0].daemon().wait_until("listed", |_| nodes[0].cluster_command(&[]).1.contains("three"));
    let (code, text) = nodes[0].cluster_command(&["--json"]);
    assert_eq!((code, text.lines().count()), (0, 3), "{text}");
    let weakest = text.lines().find(|line| line.contains("\"weakest\":true")).unwrap();
    assert!(weakest.contains("\"node\":\"three\""), "{text}");

    // A stopped node is unknown, and so are rules that depend on it.
    nodes[2].daemon = None;
    for node in &nodes[..2] {
        node.wait_for("Imbalance", "unknown");
        node.wait_for("Silent", "firing");
        let up = node.daemon().metric("uma_cluster_peer_up{peer=\"three\"}");
        assert!(up.abs() < f64::EPSILON);
    }
    let (code, text) = nodes[0].cluster_command(&[]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("unknown: ") && !text.contains("weakest"), "{text}");
    // A node removed from the list no longer counts.
    fs::write(&new, format!("[{}]", targets[..2].join(", "))).unwrap();
    fs::rename(&new, &peers).unwrap();
    for node in &nodes[..2] {
        node.wait_for("Imbalance", "inactive");
        node.wait_for("Silent", "inactive");
    }
}

#[test]
fn umawarden_cluster_fails_helpfully_without_a_configured_cluster() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&folder.path().join("data"), &[]);
    daemon.wait_until("idle", |daemon| {
        let (_, body) = daemon.get("/api/v1/status");
        let response: Value = serde_json::from_str(&body).unwrap();
        let rules = response["data"]["rules"].as_array().unwrap().clone();
        rules.iter().any(|rule| rule["alert"] == "WeakestNode" && rule["idle"] == true)
    });
    let output = Command::new(binary())
        .args(["cluster", "--storage.path"])
        .arg(folder.path().join("data"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("no cluster is configured"), "{stderr}");
}
