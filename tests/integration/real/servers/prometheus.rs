//! A real Prometheus scrapes the daemon, and promtool finds no fault.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{free_address, prometheus_3};
use crate::daemon::Daemon;
use crate::real::{Started, enabled};

pub fn promtool() -> String {
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
    let printed = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&printed));
    assert!(printed.is_empty(), "{}", String::from_utf8_lossy(&printed));
}

/// A Prometheus of our own that scrapes one target every second.
pub struct Prometheus {
    _server: Started,
    url: String,
    _folder: tempfile::TempDir,
}

impl Prometheus {
    /// `scrape` goes into the scrape configuration, to request one format.
    pub fn start(program: &str, target: &str, scrape: &str) -> Self {
        let prometheus = Self::begin(program, target, scrape);
        prometheus.wait_for("up{job=\"umawarden\"} == 1");
        prometheus
    }

    /// The same with those `static_configs`.
    pub fn scraping(program: &str, targets: &str, scrape: &str) -> Self {
        let scraping = format!(
            "scrape_configs:\n\
             - job_name: umawarden\n  static_configs: {targets}\n{scrape}"
        );
        let prometheus = Self::run(program, &scraping, &[]);
        prometheus.wait_for("up{job=\"umawarden\"} == 1");
        prometheus
    }

    /// As `start`, with these recording rules.
    pub fn recording(program: &str, targets: &str, rules: &str) -> Self {
        let scraping = format!(
            "{rules}scrape_configs:\n\
             - job_name: umawarden\n  static_configs: [{{targets: ['{targets}']}}]\n"
        );
        let prometheus = Self::run(program, &scraping, &[]);
        prometheus.wait_for("up{job=\"umawarden\"} == 1");
        prometheus
    }

    /// As `start`, without waiting for a scrape.
    pub fn begin(program: &str, target: &str, scrape: &str) -> Self {
        let scraping = format!(
            "scrape_configs:\n\
             - job_name: umawarden\n  static_configs: [{{targets: ['{target}']}}]\n{scrape}"
        );
        Self::run(program, &scraping, &[])
    }

    /// With that text in its configuration, and those flags.
    pub fn run(program: &str, more: &str, flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let address = free_address();
        let config = folder.path().join("prometheus.yml");
        let text = format!("global: {{scrape_interval: 1s, scrape_timeout: 1s}}\n{more}");
        fs::write(&config, text).unwrap();
        let server = Command::new(program)
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("tsdb").display()))
            .arg(format!("--web.listen-address={address}"))
            .args(flags)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let url = format!("http://{address}/api/v1");
        Self { _server: Started(server), url, _folder: folder }
    }

    /// Its URL.
    pub fn base(&self) -> &str {
        self.url.trim_end_matches("/api/v1")
    }

    fn query(&self, expr: &str) -> Vec<serde_json::Value> {
        self.get("query", &format!("query={}", percent_encoded(expr)))
    }

    /// Whether an expression had a value at any time of the last three minutes.
    pub fn has_had(&self, expr: &str) -> bool {
        let now = jiff::Timestamp::now().as_second();
        let query = percent_encoded(expr);
        let body = format!("query={query}&start={}&end={now}&step=1", now - 180);
        !self.get("query_range", &body).is_empty()
    }

    /// Status and body of a form.
    pub fn post(&self, path: &str, body: &str) -> (u16, serde_json::Value) {
        post(&self.url, path, body)
    }

    fn get(&self, path: &str, body: &str) -> Vec<serde_json::Value> {
        let client = crate::daemon::http_client().build().unwrap();
        let request = client.post(format!("{}/{path}", self.url)).body(body.to_owned());
        let request = request.header("content-type", "application/x-www-form-urlencoded");
        let Ok(answer) = request.send() else { return Vec::new() };
        let answer: serde_json::Value = answer.json().unwrap_or_default();
        answer["data"]["result"].as_array().cloned().unwrap_or_default()
    }

    pub fn wait_for(&self, expr: &str) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while self.query(expr).is_empty() {
            assert!(Instant::now() < deadline, "Prometheus never has {expr}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

/// Sends a form to an API of that kind; status and body of the response.
pub fn post(url: &str, path: &str, body: &str) -> (u16, serde_json::Value) {
    let client = crate::daemon::http_client().build().unwrap();
    let request = client.post(format!("{url}/{path}")).body(body.to_owned());
    let request = request.header("content-type", "application/x-www-form-urlencoded");
    let response = request.send().unwrap();
    (response.status().as_u16(), response.json().unwrap())
}

pub fn percent_encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// It has the series that every daemon exports.
pub fn assert_scraped_by(prometheus: &Prometheus) {
    for expr in ["up == 1", "uma_memory_free_bytes > 0", "uma_build_info == 1"] {
        assert_eq!(prometheus.query(expr).len(), 1, "{expr}");
    }
}

/// Prometheus has every sample of our output, with the type that we declare.
fn assert_scraped(prometheus: &Prometheus, daemon: &Daemon) {
    for expr in [
        "uma_memory_free_bytes > 0",
        "uma_kernel_events_total{event=\"oom_kill\"} >= 0",
        "uma_build_info == 1",
        "uma_scrape_collector_success{collector=\"meminfo\"} == 1",
        "process_resident_memory_bytes > 0",
    ] {
        assert_eq!(prometheus.query(expr).len(), 1, "{expr}");
    }
    let all = "count({job=\"umawarden\",__name__=~\"uma_.*|process_.*\"})";
    let counts = || {
        let scraped = prometheus.query(all)[0]["value"][1].as_str().unwrap().parse::<usize>();
        (scraped.unwrap(), daemon.metrics().len())
    };
    // Activity of the machine between the scrape and the query may add a series.
    let deadline = Instant::now() + Duration::from_secs(10);
    let (mut scraped, mut exported) = counts();
    while scraped != exported {
        assert!(Instant::now() < deadline, "{exported} exported, {scraped} scraped");
        std::thread::sleep(Duration::from_millis(200));
        (scraped, exported) = counts();
    }
}

#[test]
fn real_prometheus_of_the_distribution_scrapes_the_daemon() {
    if !enabled() {
        return;
    }
    let storage = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(storage.path(), &[]);
    let prometheus = Prometheus::start("prometheus", daemon.address(), "");
    assert_scraped(&prometheus, &daemon);
}

#[test]
fn real_prometheus_3_scrapes_both_formats() {
    if !enabled() {
        return;
    }
    let storage = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(storage.path(), &[]);
    for protocol in ["OpenMetricsText1.0.0", "PrometheusText0.0.4"] {
        let scrape = format!("  scrape_protocols: [{protocol}]\n");
        let prometheus = Prometheus::start(&prometheus_3(), daemon.address(), &scrape);
        assert_scraped(&prometheus, &daemon);
    }
}

/// An expression can be pasted into Grafana and back: both sides show the same series.
#[test]
fn real_prometheus_3_understands_every_shipped_expression() {
    if !enabled() {
        return;
    }
    let storage = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(storage.path(), &[]);
    let prometheus = Prometheus::start(&prometheus_3(), daemon.address(), "");
    let (_, rules) = daemon.get("/api/v1/rules");
    let rules: serde_json::Value = serde_json::from_str(&rules).unwrap();
    let groups = rules["data"]["groups"].as_array().unwrap();
    let rules: Vec<_> =
        groups.iter().flat_map(|group| group["rules"].as_array().unwrap()).collect();
    assert!(rules.len() >= 10, "{rules:#?}");
    for rule in rules {
        let expr = rule["query"].as_str().unwrap();
        // `or vector(1)` turns an empty result into one sample, and keeps an error an error.
        let answer = prometheus.query(&format!("count({expr}) or vector(1)"));
        assert_eq!(answer.len(), 1, "{}: {expr}", rule["name"]);
    }
}
