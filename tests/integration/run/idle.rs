//! What a scrape of an idle node costs its Prometheus: a GB10 with the shipped rules.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::Node;
use crate::daemon::{Daemon, http_client};
use crate::gpu::Library;

/// Bounds of a scrape. A Prometheus keeps each sample, and a thousand nodes are scraped as one is.
const MOST_SAMPLES: usize = 400;
const MOST_BYTES: usize = 40_000;

const TEXT: &str = "text/plain;version=0.0.4";
const OPENMETRICS: &str = "application/openmetrics-text;version=1.0.0";

/// Counters of alerts that are there only with what they count.
const WITHOUT_ZERO: [&str; 1] = ["uma_received_alerts_ignored_total"];

fn scrape(daemon: &Daemon, accept: &str) -> String {
    let url = format!("http://{}/metrics", daemon.address());
    let client = http_client().build().unwrap();
    client.get(url).header("accept", accept).send().unwrap().text().unwrap()
}

fn start(node: &Node, library: &Library) -> Daemon {
    // Without any process the files of processes count as unreadable.
    let own = std::process::id().to_string();
    symlink(Path::new("/proc").join(&own), node.path("proc").join(own)).unwrap();
    let flag = |flag: &str, path: &Path| format!("--{flag}={}", path.display());
    let arguments = [
        flag("path.procfs", &node.path("proc")),
        flag("path.sysfs", &node.path("sys")),
        flag("path.kmsg", &node.path("kmsg")),
        flag("path.docker-socket", &node.path("no-docker.sock")),
        flag("gpu.library", &library.path()),
    ];
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let daemon = Daemon::start(&node.storage(), &arguments);
    daemon.wait_until("complete", |daemon| {
        let metrics = daemon.metrics();
        let is_there = |name: &str| metrics.keys().any(|series| series.starts_with(name));
        daemon.count("uma_rules{state=\"inactive\"}") > 40.0
            && ["uma_engines", "uma_gpu_info", "uma_driver_holders", "uma_black_box_records_total"]
                .into_iter()
                .all(is_there)
    });
    daemon
}

/// Each name with its number of samples and of bytes, the largest first.
fn by_name(text: &str) -> Vec<(usize, usize, &str)> {
    let mut names: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for line in text.lines() {
        let is_sample = !line.starts_with('#');
        let name = match is_sample {
            true => line.split(['{', ' ']).next(),
            false => line.split(' ').nth(2),
        };
        let entry = names.entry(name.unwrap_or_default()).or_default();
        *entry = (entry.0 + usize::from(is_sample), entry.1 + line.len() + 1);
    }
    let mut names: Vec<_> =
        names.into_iter().map(|(name, (samples, bytes))| (bytes, samples, name)).collect();
    names.sort_unstable_by(|one, other| other.cmp(one));
    names
}

#[test]
fn a_scrape_of_an_idle_node_is_small_in_both_forms() {
    let Some(library) = Library::new("machine gb10") else { return };
    let node = Node::new("gb10-4k");
    let daemon = start(&node, &library);
    for accept in [TEXT, OPENMETRICS] {
        let text = scrape(&daemon, accept);
        let samples = text.lines().filter(|line| !line.starts_with('#')).count();
        eprintln!("{accept}: {samples} samples, {} bytes", text.len());
        let largest = by_name(&text);
        let largest = &largest[..40];
        assert!(text.ends_with("# EOF\n") == (accept == OPENMETRICS), "{accept}");
        assert!((200..=MOST_SAMPLES).contains(&samples), "{accept}: {samples}: {largest:#?}");
        assert!(text.len() <= MOST_BYTES, "{accept}: {} bytes: {largest:#?}", text.len());
    }
    daemon.terminate();
}

/// The names of the counters whose increase or rate an alert reads.
fn counted(alerts: &str) -> BTreeSet<&str> {
    let after = |function: &'static str| alerts.split(function).skip(1);
    let names = after("increase(").chain(after("rate("));
    names.filter_map(|rest| rest.split(['{', '[', ')']).next()).collect()
}

/// A counter that appears at 1 has not increased.
#[test]
fn what_a_shipped_alert_counts_is_there_before_it_happens() {
    let Some(library) = Library::new("machine gb10") else { return };
    let node = Node::new("gb10-4k");
    let daemon = start(&node, &library);
    let metrics = daemon.metrics();
    let is_there = |name: &str| metrics.keys().any(|series| series.starts_with(name));
    for file in ["umawarden", "cluster", "agents"] {
        let path = format!("alerts/{file}.yaml");
        let alerts = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
        for name in counted(&alerts).into_iter().filter(|name| !WITHOUT_ZERO.contains(name)) {
            assert!(name.starts_with("uma_") && is_there(name), "{file}: {name}");
        }
    }
    for series in [
        "uma_actions_total{action=\"drop_caches\",outcome=\"done\"}",
        "uma_decisions_total{decision=\"act\",rule=\"MemoryCollapse\"}",
        "uma_decisions_total{decision=\"hold\",rule=\"MemoryCollapse\"}",
        "uma_engine_failures_total{killer=\"signal\",when=\"in_service\"}",
        "uma_kernel_events_total{event=\"hung_task\"}",
        "uma_kernel_oom_kills_total{bound=\"cgroup\"}",
        "uma_kernel_xids_total{class=\"device_lost\"}",
    ] {
        assert_eq!(metrics.get(series), Some(&0.0), "{series}");
    }
    for without_value in [
        "uma_event_last_timestamp_seconds",
        "uma_holds_total",
        "uma_kernel_claimed_events_total",
        "uma_remedy_breaker_open",
        "uma_temporary_settings{",
    ] {
        assert!(!is_there(without_value), "{without_value}");
    }
    daemon.terminate();
}
