//! Engines in real containers: found through Docker, and probed for their health in their own
//! networks.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::docker::Dockerd;
use super::enabled;
use crate::daemon::{Daemon, history, of_kind};

/// Serves `/health` as vLLM does, on the loopback of its own network.
const SERVER: &str = "/bin/busybox mkdir -p /www && echo ok >/www/health && \
                      exec /bin/busybox httpd -f -p 127.0.0.1:8000 -h /www";

/// A script that is called as vLLM is, and waits for its child.
const START: &str = "/bin/busybox ln -s /bin/busybox /bin/sh && /bin/busybox mkdir -p /srv && \
                     echo '/bin/busybox sh -c \"$SERVER\" & wait' >/srv/vllm && \
                     exec /bin/sh /srv/vllm serve /models/tiny --port 8000";

fn start(dockerd: &Dockerd, name: &str, network: &str, label: &str) {
    let server = format!("SERVER={SERVER}");
    let ran = dockerd.docker(&[
        "run",
        "-d",
        "--name",
        name,
        "--network",
        network,
        "--label",
        label,
        "--env",
        &server,
        "busybox",
        "/bin/busybox",
        "sh",
        "-c",
        START,
    ]);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}

fn engine(daemon: &Daemon, name: &str) -> Option<Value> {
    let response: Value = serde_json::from_str(&daemon.get("/api/v1/engines").1).unwrap();
    let engines = response["data"]["engines"].as_array().unwrap();
    engines.iter().find(|engine| engine["name"] == name).cloned()
}

fn is_ready(daemon: &Daemon, name: &str) -> bool {
    engine(daemon, name).is_some_and(|engine| engine["phase"] == "ready")
}

#[test]
fn real_engines_in_containers_are_found_by_label_and_name_and_probed_in_their_networks() {
    if !enabled() {
        return;
    }
    assert!(Path::new("/bin/busybox").exists(), "tests/run installs busybox-static");
    let dockerd = Dockerd::start();
    dockerd.import_busybox();
    start(&dockerd, "inner-llm", "none", "app=deepseek");
    let storage = tempfile::tempdir().unwrap();
    let config = storage.path().join("umawarden.yaml");
    let text = format!(
        "path: {{docker_socket: {}}}\nengines:\n- {{name: labelled, match: {{label: app=deep*}}}}\n\
         - {{name: named, match: {{container: later-*}}}}\n",
        dockerd.socket_path()
    );
    std::fs::write(&config, text).unwrap();
    let config = format!("--config.file={}", config.display());
    let daemon = Daemon::start(&storage.path().join("data"), &[&config]);
    daemon.wait_until("probed from within", |daemon| is_ready(daemon, "labelled"));
    let found = engine(&daemon, "labelled").unwrap();
    assert_eq!(found["kind"], "vllm");
    assert_eq!(found["container_name"], "inner-llm");
    assert_eq!(found["health_url"], "http://127.0.0.1:8000/health");
    assert!(found["health_network"].as_str().unwrap().starts_with("net:["), "{found}");
    let within = "it answers at http://127.0.0.1:8000/health within its own network";
    assert_eq!(found["reason"], within);
    assert_eq!(daemon.metric("uma_scrape_collector_success{collector=\"docker\"}"), 1.0);
    assert_eq!(daemon.metric("uma_containers"), 1.0);
    // One that starts while Docker is watched, in the network of its host.
    start(&dockerd, "later-llm", "host", "app=other");
    daemon.wait_until("found", |daemon| is_ready(daemon, "named"));
    let found = engine(&daemon, "named").unwrap();
    assert_eq!(found["container_name"], "later-llm");
    assert_eq!(found["health_network"], Value::Null);
    drop(dockerd);
    daemon.wait_until("reported", |daemon| {
        daemon.metric("uma_scrape_collector_success{collector=\"docker\"}") == 0.0
    });
    std::thread::sleep(Duration::from_secs(1));
    daemon.terminate();
}

/// Lives for a while, and is killed at its limit.
const DIES: &str = "/bin/busybox ln -s /bin/busybox /bin/sh; /bin/busybox mkdir -p /srv && \
                    echo '/bin/busybox sleep 4; echo loading; /bin/busybox tail /dev/zero' \
                    >/srv/vllm && exec /bin/sh /srv/vllm serve /models/tiny --port 8000";

fn death(storage: &Path, name: &str) -> Option<Value> {
    let entries = history(storage);
    let of = |entry: &&Value| entry["report"]["who"]["container_name"] == name;
    of_kind(&entries, "engine_died").find(of).map(|entry| entry["report"].clone())
}

#[test]
fn real_engine_death_is_explained_where_docker_restarts_the_container() {
    if !enabled() {
        return;
    }
    let dockerd = Dockerd::start();
    dockerd.import_busybox();
    let storage = tempfile::tempdir().unwrap();
    let data = storage.path().join("data");
    let config = storage.path().join("umawarden.yaml");
    std::fs::write(&config, format!("path: {{docker_socket: {}}}\n", dockerd.socket_path()))
        .unwrap();
    let daemon = Daemon::start(&data, &[&format!("--config.file={}", config.display())]);
    let run = |name: &str, more: &[&str], script: &str| {
        let first = ["run", "-d", "--name", name, "--network", "none"];
        let last = ["busybox", "/bin/busybox", "sh", "-c", script];
        let ran = dockerd.docker(&[&first[..], more, &last].concat());
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    };
    run("again", &["--restart", "always", "--memory", "30m"], DIES);
    let lives = DIES.replace("sleep 4", "sleep 1000");
    run("stopped", &[], &lives);
    daemon.wait_until("explained", |_| death(&data, "again").is_some());
    let report = death(&data, "again").unwrap();
    assert_eq!(report["killer"]["by"], "kernel_oom", "{report:#}");
    assert_eq!(report["exit"]["code"], 137, "{report:#}");
    assert_eq!(report["is_failure"], true);
    // The second is printed by the shell.
    assert_eq!(report["last_lines"], serde_json::json!(["loading", "Killed"]), "{report:#}");
    dockerd.docker(&["stop", "--time", "1", "stopped"]);
    daemon.wait_until("explained", |_| death(&data, "stopped").is_some());
    let report = death(&data, "stopped").unwrap();
    assert_eq!((&report["killer"]["by"], &report["is_failure"]), (&"signal".into(), &false.into()));
    daemon.terminate();
    drop(dockerd);
}
