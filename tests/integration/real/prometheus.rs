//! A real Prometheus scrapes it, and promtool finds nothing to complain about.

use std::fs;
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::enabled;
use crate::daemon::Daemon;

fn promtool() -> String {
    std::env::var("UMAWARDEN_PROMTOOL").unwrap_or_else(|_| "promtool".to_owned())
}

#[test]
fn real_promtool_check_metrics_has_no_findings() {
    if !enabled() {
        return;
    }
    let storage = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(storage.path(), &[]);
    let (_, metrics) = daemon.get("/metrics");
    let mut check = Command::new(promtool())
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    check.stdin.take().unwrap().write_all(metrics.as_bytes()).unwrap();
    let output = check.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
    assert!(said.is_empty(), "{}", String::from_utf8_lossy(&said));
}

fn percent_encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _already_dead = self.0.kill();
        let _already_reaped = self.0.wait();
    }
}

#[test]
fn real_prometheus_scrapes_both_formats() {
    if !enabled() {
        return;
    }
    let storage = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(storage.path(), &[]);
    let folder = tempfile::tempdir().unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let config = folder.path().join("prometheus.yml");
    fs::write(
        &config,
        format!(
            "global: {{scrape_interval: 1s, scrape_timeout: 1s}}\n\
             scrape_configs:\n\
             - job_name: umawarden\n  static_configs: [{{targets: ['{}']}}]\n",
            daemon.address()
        ),
    )
    .unwrap();
    // Prometheus itself asks for OpenMetrics first.
    let server = Command::new("prometheus")
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={}", folder.path().join("tsdb").display()))
        .arg(format!("--web.listen-address=127.0.0.1:{port}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _server = Server(server);
    let query = |expr: &str| -> Vec<serde_json::Value> {
        let client = reqwest::blocking::Client::builder().no_proxy().build().unwrap();
        let url = format!("http://127.0.0.1:{port}/api/v1/query");
        let form = format!("query={}", percent_encoded(expr));
        let request = client.post(url).body(form);
        let request = request.header("content-type", "application/x-www-form-urlencoded");
        let Ok(answer) = request.send() else { return vec![] };
        let answer: serde_json::Value = answer.json().unwrap_or_default();
        answer["data"]["result"].as_array().cloned().unwrap_or_default()
    };
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let up = query("up{job=\"umawarden\"}");
        if up.first().is_some_and(|sample| sample["value"][1] == "1") {
            break;
        }
        assert!(Instant::now() < deadline, "Prometheus does not see it up: {up:?}");
        std::thread::sleep(Duration::from_millis(200));
    }
    for expr in [
        "uma_memory_free_bytes > 0",
        "uma_kernel_events_total{event=\"oom_kill\"} >= 0",
        "uma_build_info == 1",
        "uma_source_up{source=\"meminfo\"} == 1",
        "process_resident_memory_bytes > 0",
    ] {
        assert_eq!(query(expr).len(), 1, "{expr}");
    }
    // The text format, as older servers and promtool ask for it.
    let client = reqwest::blocking::Client::builder().no_proxy().build().unwrap();
    for (accept, wanted) in [
        ("text/plain;version=0.0.4", "text/plain; version=0.0.4"),
        ("application/openmetrics-text;version=1.0.0", "application/openmetrics-text"),
    ] {
        let url = format!("http://{}/metrics", daemon.address());
        let answer = client.get(url).header("accept", accept).send().unwrap();
        let kind = answer.headers()["content-type"].to_str().unwrap().to_owned();
        assert!(kind.starts_with(wanted), "{accept} gave {kind}");
    }
}
