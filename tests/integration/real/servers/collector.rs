//! A foreign collector of telemetry accepts metrics and traces, and prints them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use umawarden::model::metric;

use super::free_address;
use crate::daemon::Daemon;
use crate::real::{Started, enabled};

const RULES: &str = "groups:
- name: telemetry
  interval: 250ms
  rules:
  - alert: Always
    expr: uma_memory_free_bytes > 0
    labels: {severity: warning}
    remedy:
      aim: uma_memory_free_bytes < 0
      steps:
      - compact_memory: {}
      cooldown: 1h
";

/// rotel, which prints everything that it receives.
struct Collector {
    _server: Started,
    endpoint: String,
    log: PathBuf,
}

impl Collector {
    fn start(folder: &Path) -> Self {
        let program = std::env::var("UMAWARDEN_ROTEL").expect(
            "UMAWARDEN_ROTEL names a collector: UMAWARDEN_ROTEL=$(tests/tools/rotel target/rotel)",
        );
        let (http, log) = (free_address(), folder.join("collector.log"));
        let of = |name: &str| folder.join(name).display().to_string();
        let child = Command::new(program)
            .args(["start", "--exporter=blackhole", "--debug-log-verbosity=detailed"])
            .args(["--debug-log=metrics", "--debug-log=traces"])
            .args(["--otlp-http-endpoint", &http, "--otlp-grpc-endpoint", &free_address()])
            .args(["--pid-file", &of("collector.pid"), "--log-file", &of("unused.log")])
            .stdin(Stdio::null())
            .stdout(fs::File::create(&log).unwrap())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { _server: Started(child), endpoint: format!("http://{http}"), log }
    }

    /// Its output for the last request but one of that kind, which is complete.
    fn last(&self, begin: &str) -> Option<String> {
        let log = self.log();
        let mut requests: Vec<&str> = log.split(begin).skip(1).collect();
        requests.pop();
        requests.pop().map(str::to_owned)
    }

    fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap()).into_owned()
    }
}

fn text_of(value: &str) -> &str {
    value.strip_prefix("Str(").and_then(|value| value.strip_suffix(')')).unwrap_or(value)
}

/// A point while its lines are read.
#[derive(Default)]
struct Point<'r> {
    name: &'r str,
    kind: &'r str,
    labels: BTreeMap<&'r str, &'r str>,
}

impl Point<'_> {
    fn series(&self) -> String {
        let labels = self.labels.iter().map(|(label, value)| format!("{label}={value:?}"));
        let labels: Vec<_> = labels.collect();
        let labels =
            if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        format!("{}{labels}", self.name)
    }
}

/// The points of one request: as `name{label="value"}`, with the kind of metric of each.
fn points(request: &str) -> BTreeMap<String, String> {
    let mut points = BTreeMap::new();
    let (mut point, mut is_point, mut has_labels) = (Point::default(), false, false);
    for line in request.lines().chain(["Metric #"]) {
        let begins_point = line.contains("DataPoints #");
        if begins_point || line.starts_with("Metric #") {
            if is_point {
                points.insert(point.series(), point.kind.to_owned());
            }
            point.labels.clear();
            (is_point, has_labels) = (begins_point, false);
        } else if line == "Data point attributes:" {
            has_labels = true;
        } else if let Some(pair) = line.strip_prefix("     -> ") {
            match pair.split_once(": ") {
                Some((label, value)) if has_labels => {
                    point.labels.insert(label, text_of(value));
                }
                Some(("Name", name)) => point.name = name,
                Some(("DataType", kind)) => point.kind = kind,
                _ => {}
            }
        } else {
            has_labels = false;
        }
    }
    points
}

/// The name of a series of `/metrics` as a point; a histogram is one point.
fn as_point(series: &str, points: &BTreeMap<String, String>) -> String {
    let (name, labels) = series.split_once('{').unwrap_or((series, ""));
    let base = ["_bucket", "_count", "_sum"].iter().find_map(|end| name.strip_suffix(end));
    let is_histogram = |base: &&str| {
        let mut of_name = points.range((*base).to_owned()..);
        of_name.next().is_some_and(|(point, kind)| {
            point.split('{').next() == Some(base) && kind == "Histogram"
        })
    };
    let name = base.filter(is_histogram).unwrap_or(name);
    let labels = labels.trim_end_matches('}').split_inclusive("\",").map(|label| {
        let label = label.trim_end_matches(',');
        (!label.is_empty() && !label.starts_with("le=\"")).then_some(label)
    });
    let mut labels: Vec<_> = labels.flatten().collect();
    labels.sort_unstable();
    if labels.is_empty() { name.to_owned() } else { format!("{name}{{{}}}", labels.join(",")) }
}

#[test]
fn real_collector_accepts_metrics_and_the_trace_of_a_remedy() {
    if !enabled() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::start(folder.path());
    let (config, rules) = (folder.path().join("umawarden.yaml"), folder.path().join("rules.yaml"));
    fs::write(&config, format!("otlp: {{endpoint: '{}', interval: 1s}}\n", collector.endpoint))
        .unwrap();
    fs::write(&rules, RULES).unwrap();
    let of = |path: &Path| path.display().to_string();
    let (config, rules) = (of(&config), of(&rules));
    let flags = ["--config.file", &config, "--rules", &rules, "--mode", "enforce"];
    let daemon = Daemon::start(&folder.path().join("data"), &flags);
    let sent =
        |signal: &str| format!("uma_otlp_exports_total{{result=\"success\",signal=\"{signal}\"}}");
    daemon.wait_until("a trace was taken", |daemon| daemon.metric(&sent("traces")) > 0.0);
    let until = daemon.metric(&sent("metrics")) + 3.0;
    daemon.wait_until("metrics were taken", |daemon| daemon.metric(&sent("metrics")) > until);
    daemon.wait_until("two requests are written", |_| {
        collector.last("ResourceMetrics #").is_some_and(|request| !points(&request).is_empty())
    });

    let points = points(&collector.last("ResourceMetrics #").unwrap());
    let shown: BTreeSet<_> =
        daemon.metrics().keys().map(|series| as_point(series, &points)).collect();
    let missing: Vec<_> = shown.iter().filter(|series| !points.contains_key(*series)).collect();
    // A collector gets the zeros that a scrape of everything leaves out.
    let is_left_out = |point: &str| {
        let name = point.split('{').next().unwrap();
        // A histogram has several series.
        let of_table = metric(name).or_else(|| metric(&format!("{name}_count")));
        of_table.is_some_and(|metric| metric.hides_zero)
    };
    let unknown = points.keys().filter(|point| !shown.contains(*point) && !is_left_out(point));
    let unknown: Vec<_> = unknown.collect();
    assert!(missing.is_empty() && unknown.is_empty(), "not sent: {missing:?}; only: {unknown:?}");
    assert!(points.len() > 300, "{} points", points.len());
    let (_, shown) = daemon.get("/metrics");
    let types = shown.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let types: BTreeMap<_, _> = types.collect();
    for (point, kind) in &points {
        let name = point.split('{').next().unwrap();
        let expected = match types.get(name) {
            None if is_left_out(name) => continue,
            Some(&"counter") => "Sum",
            Some(&"histogram") => "Histogram",
            _ => "Gauge",
        };
        assert_eq!(kind, expected, "{point}");
    }

    let traces = collector.log();
    for name in ["remedy Always", "alert Always", "decision act", "step compact_memory", "aim"] {
        assert!(traces.contains(&format!("    Name           : {name}\n")), "no span {name}");
    }
    assert!(traces.contains("     -> umawarden.outcome: Str(done)\n"));
    daemon.terminate();
}
