//! Every query of the dashboards returns data from a real Prometheus that has scraped real agents
//! through a real incident.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::prometheus::Prometheus;
use super::prometheus_3;
use crate::daemon::Daemon;
use crate::dashboards::{dashboards, queries};
use crate::gpu::Library;
use crate::real::{LimitedCgroup, Started, enabled};

/// Scrapes are a second apart here; Grafana makes it four of them.
const RATE_INTERVAL: &str = "5s";

/// An engine that loads: it reads its model's file again and again, and has the GPU.
fn engine(model: &Path) -> Started {
    let script = "while :; do cat \"$0\" >/dev/null; sleep 0.05; done 3<\"$0\"";
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]).arg(model);
    Started(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
}

fn agent(folder: &Path, mode: &str, library: &Library, model: &Path) -> Daemon {
    let config = folder.join(format!("{mode}.yaml"));
    let text = format!(
        "mode: {mode}\nengines:\n- name: toy\n  match: {{cmdline: \"*{0}\"}}\n  \
         model_files: [\"{0}\"]\ncluster: {{peers: [127.0.0.1:1]}}\n",
        model.display()
    );
    fs::write(&config, text).unwrap();
    let config = format!("--config.file={}", config.display());
    let library = format!("--gpu.library={}", library.path().display());
    Daemon::start(&folder.join(mode), &[&config, &library, "--gpu.interval=1s"])
}

/// The query as Grafana sends it for one node, without the 0 for missing series.
fn filled(expr: &str, instance: &str) -> String {
    expr.replace(" or vector(0)", "")
        .replace("$instance", instance)
        .replace("$cluster", ".*")
        .replace("$__rate_interval", RATE_INTERVAL)
}

/// Series that are there only while a breaker is open or an approval is pending.
const FLAGS: [&str; 2] = ["uma_remedy_breaker_open", "uma_remedy_approval_pending"];

#[test]
fn real_prometheus_has_data_for_every_query_of_the_dashboards() {
    if !enabled() {
        return;
    }
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let model = folder.path().join("model.safetensors");
    fs::write(&model, vec![7; 8 << 20]).unwrap();
    let started = engine(&model);
    let script = format!("machine gb10\nprocess {} 1073741824", started.0.id());
    let mut engine = Some(started);
    let other = "process 4000000 1073741824";
    let library = Library::new(&format!("{script}\n{other}")).expect("a compiler for C");
    let [observes, acts] =
        ["observe", "enforce"].map(|mode| agent(folder.path(), mode, &library, &model));
    let targets = format!("{}', '{}", observes.address(), acts.address());
    let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/alerts/recording.yaml");
    // In place of its interval of 30 s.
    let fast = fs::read_to_string(rules).unwrap().replace("interval: 30s", "interval: 2s");
    let rules = folder.path().join("recording.yaml");
    fs::write(&rules, fast).unwrap();
    let rules = format!("rule_files: ['{}']\n", rules.display());
    let prometheus = Prometheus::recording(&prometheus_3(), &targets, &rules);
    prometheus.wait_for("count(up == 1) == 2");
    // Counters grow from the value that Prometheus has seen before.
    std::thread::sleep(Duration::from_secs(3));
    let cgroup = LimitedCgroup::new("dashboards", 30 << 20);
    cgroup.oom_kill();
    // The second is suppressed: the first was reported a moment ago.
    std::thread::sleep(Duration::from_secs(4));
    cgroup.oom_kill();
    let mut left: Vec<(String, String)> = dashboards()
        .into_iter()
        .flat_map(|(name, dashboard)| {
            let queries = queries(&dashboard).into_iter();
            queries.map(move |(panel, expr)| (format!("{name}, {panel}"), expr))
        })
        .collect();
    assert!(left.len() > 100, "{}", left.len());
    assert!(!prometheus.has_had("uma_nothing_at_all"));
    let instances = [observes.address(), acts.address()];
    let deadline = Instant::now() + Duration::from_secs(90);
    while left.len() > FLAGS.len() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_secs(2));
        left.retain(|(_, expr)| {
            instances.iter().all(|instance| !prometheus.has_had(&filled(expr, instance)))
        });
        // Its death is the only event of the program's own in these seconds.
        if left.iter().all(|(_, expr)| expr.contains("uma_events_total")) {
            drop(engine.take());
        }
    }
    left.retain(|(_, expr)| !FLAGS.iter().any(|flag| expr.contains(flag)));
    assert!(left.is_empty(), "no data for {left:#?}\n{}", observes.log());
}
