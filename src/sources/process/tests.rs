use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::ProcessSource;
use crate::model::{METRICS, Observation, Readings, Source};

fn readings() -> Readings {
    let mut out = Vec::new();
    ProcessSource::default().read(&|| Duration::ZERO, &mut out);
    match out.pop() {
        Some(Observation::Readings(readings)) => readings,
        other => panic!("unexpected {other:?}"),
    }
}

fn figures() -> BTreeMap<String, f64> {
    let run = readings();
    assert_eq!(run.error, None);
    let names = run.schema.series.iter().map(ToString::to_string);
    names.zip(run.values.iter().map(|value| value.value().unwrap())).collect()
}

#[test]
fn all_metrics_of_the_process_are_reported() {
    let run = readings();
    let reported: Vec<&str> = run.schema.series.iter().map(|key| &*key.name).collect();
    let table = METRICS.iter().filter(|metric| metric.source == Source::Process);
    assert_eq!(reported, table.map(|metric| metric.name).collect::<Vec<_>>());
}

#[test]
fn figures_are_those_of_this_process() {
    let before = figures();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let age = now - before["process_start_time_seconds"];
    assert!((-2.0..3600.0).contains(&age), "{age}");
    let pages = before["process_resident_memory_bytes"] / procfs::page_size() as f64;
    assert!(pages >= 1.0 && pages.fract() == 0.0, "{pages}");
    assert!(before["process_virtual_memory_bytes"] > before["process_resident_memory_bytes"]);
    assert!(before["process_threads"] >= 1.0);
    assert!(before["process_open_fds"] <= before["process_max_fds"]);
    assert!(figures()["process_cpu_seconds_total"] >= before["process_cpu_seconds_total"]);
}
