//! An engine is stopped for a start with a higher priority, and is started again.

use std::process::{Command, Stdio};

use super::{available, gib};
use crate::daemon::{binary, of_kind};
use crate::real::enabled;
use crate::real::restarts::{LABEL, Node, starts, state_of, wait_for};

/// What the engine holds: shared memory, which goes with its container.
const HOLDS: u64 = 3;

fn rules(node: &Node) -> String {
    let path = node.folder.path().join("for-start.yaml");
    let rules = "
groups:
- name: starts
  interval: 200ms
  rules:
  - alert: FreeForStart
    expr: max by (pool) (uma_lease_missing_bytes and on(who) uma_lease_priority > 0) > 0
    for: 1s
    remedy: {steps: [{stop_engine: {engine: low, grace: 5s}}]}
";
    std::fs::write(&path, rules).unwrap();
    path.display().to_string()
}

#[test]
fn real_engine_is_stopped_for_a_start_and_started_again() {
    if !enabled() {
        return;
    }
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let node = Node::new("");
    let config = format!(
        "mode: enforce\npath: {{docker_socket: {}}}\nrule_files: [{}]\nstarts: {{folder: {}}}\n\
         engines:\n- name: low\n  match: {{container: low}}\n  \
         health: http://127.0.0.1:{port}/health\n",
        node.dockerd.socket_path(),
        rules(&node),
        node.folder.path().join("run").display()
    );
    std::fs::write(node.config(), config).unwrap();
    let daemon = node.daemon();
    let script = format!(
        "/bin/busybox dd if=/dev/zero of=/dev/shm/m bs=1M count={} && /bin/busybox mkdir -p /www \
         && /bin/busybox touch /www/health && exec /bin/busybox httpd -f -p {port} -h /www",
        HOLDS << 10
    );
    let need = format!("umawarden.restart.need={HOLDS}GiB");
    let arguments = ["run", "-d", "--name", "low", "--network", "host", "--shm-size", "4g"];
    let mut arguments = arguments.to_vec();
    arguments.extend(["--label", LABEL, "--label", &need, "busybox", "/bin/busybox", "sh", "-c"]);
    arguments.push(&script);
    node.docker(&arguments);
    wait_for("it is ready", 60, &daemon, || {
        let (_, metrics) = daemon.get("/metrics");
        metrics.contains("uma_engine_phase{engine=\"low\",phase=\"ready\"} 1")
            || metrics.contains("uma_engine_phase{engine=\"low\",phase=\"serving\"} 1")
    });
    wait_for("it is known as the container", 60, &daemon, || state_of(&daemon, "low") == "running");
    // With what the engine holds there is enough.
    let need = format!("--need={}", available() + gib(1));
    let config = format!("--config.file={}", node.config());
    let mut launch = Command::new(binary());
    launch.args(["launch", &config, &need, "--name=high", "--priority=5", "--timeout=60s"]);
    let mut high = launch.args(["--", "sleep", "3"]).stdin(Stdio::null()).spawn().unwrap();
    wait_for("it is stopped", 30, &daemon, || !node.is_running("low"));
    assert_eq!(high.wait().unwrap().code(), Some(0));
    wait_for("it is started again", 30, &daemon, || node.is_running("low"));
    assert!(node.started("low") > node.ended("low"));
    let history = node.history();
    let stops = of_kind(&history, "decision")
        .filter(|one| one["decision"] == "act" && one["rule"]["alert"] == "FreeForStart");
    let stops: Vec<_> = stops.collect();
    assert_eq!(stops.len(), 1, "{stops:#?}");
    assert_eq!(stops[0]["target"]["name"], "low", "{:#}", stops[0]);
    assert_eq!(starts(&history, "low").len(), 1);
    let died = of_kind(&history, "engine_died").next().unwrap();
    assert_eq!(died["report"]["killer"]["by"], "umawarden", "{died:#}");
    daemon.terminate();
}
