use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, getrlimit, setrlimit};
use tempfile::TempDir;

use super::{MemorySource, has_pressure};
use crate::model::Reading::{self, Failed, Unsupported, Value};
use crate::model::{METRICS, Metric, Observation, Readings, Source, metric};

const SOURCES: [Source; 8] = [
    Source::Pci,
    Source::Sysctl,
    Source::Numa,
    Source::Vmstat,
    Source::Buddyinfo,
    Source::Pressure,
    Source::Zoneinfo,
    Source::Meminfo,
];

/// A copy of a fixture that a test may change, with a clock that it turns.
struct Node {
    folder: TempDir,
    source: MemorySource,
    now: Cell<Duration>,
    /// By how much the clock moves each time it is read.
    tick: Cell<Duration>,
}

impl Node {
    fn like(fixture: &str, page_size: u64) -> Self {
        let folder = TempDir::new().unwrap();
        copy(&fixtures().join(fixture), folder.path());
        Self::at(folder, page_size)
    }

    fn empty() -> Self {
        Self::at(TempDir::new().unwrap(), 4096)
    }

    fn at(folder: TempDir, page_size: u64) -> Self {
        let (procfs, sysfs) = (folder.path().join("proc"), folder.path().join("sys"));
        let source = MemorySource::with_page_size(&procfs, &sysfs, page_size);
        let now = Cell::new(Duration::from_secs(1000));
        Self { folder, source, now, tick: Cell::new(Duration::ZERO) }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        fs::create_dir_all(self.path(path).parent().unwrap()).unwrap();
        fs::write(self.path(path), text).unwrap();
    }

    fn wait(&self, pause: Duration) {
        self.now.set(self.now.get() + pause);
    }

    fn read_due(&mut self) -> BTreeMap<Source, Readings> {
        let (now, tick) = (&self.now, &self.tick);
        let clock = || now.replace(now.get() + tick.get());
        let mut out = Vec::new();
        self.source.read(&clock, &mut out);
        by_source(out)
    }

    fn read_all(&mut self) -> BTreeMap<Source, Readings> {
        let now = self.now.get();
        let mut out = Vec::new();
        self.source.read_all(&|| now, &mut out);
        by_source(out)
    }

    /// Everything read now, series by series.
    fn values(&mut self) -> BTreeMap<String, Reading<f64>> {
        let all = self.read_all();
        assert_eq!(all.len(), SOURCES.len());
        all.values()
            .flat_map(|run| {
                run.schema.series.iter().map(ToString::to_string).zip(run.values.clone())
            })
            .collect()
    }
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/proc")
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn by_source(out: Vec<Observation>) -> BTreeMap<Source, Readings> {
    let runs = out.into_iter().map(|observation| match observation {
        Observation::Readings(readings) => readings,
        other => panic!("unexpected {other:?}"),
    });
    runs.map(|run| {
        assert_eq!(run.values.len(), run.schema.series.len(), "{:?}", run.source);
        (run.source, run)
    })
    .collect()
}

fn sources(runs: &BTreeMap<Source, Readings>) -> Vec<Source> {
    runs.keys().copied().collect()
}

#[test]
fn every_series_is_in_the_table_and_every_metric_of_the_table_is_reported() {
    let mut node = Node::like("gh200", 65536);
    let mut reported = BTreeSet::new();
    for (source, run) in node.read_all() {
        let mut keys = BTreeSet::new();
        for key in &run.schema.series {
            let metric = metric(&key.name).unwrap_or_else(|| panic!("{key} is not in the table"));
            let labels: Vec<&str> = key.labels.iter().map(|(name, _)| &**name).collect();
            assert_eq!((metric.source, metric.labels), (source, labels.as_slice()), "{key}");
            assert!(keys.insert(key), "{key} twice");
            reported.insert(metric.name);
        }
    }
    // Pools follow in the policy.
    let is_read = |metric: &&Metric| {
        SOURCES.contains(&metric.source) && !metric.name.starts_with("uma_pool_")
    };
    for metric in METRICS.iter().filter(is_read) {
        assert!(reported.contains(metric.name), "{} is never reported", metric.name);
    }
}

#[test]
fn a_gb10_is_read_completely() {
    let mut node = Node::like("gb10-4k", 4096);
    for (source, run) in node.read_all() {
        assert_eq!(run.error, None, "{source:?}");
    }
    let values = node.values();
    let get = |series: &str| values[series];
    let (low, lists) = (20_875.0 * 4096.0, 20.0 * 6100.0 * 4096.0);
    assert_eq!(get("uma_memory_reserve_bytes"), Value(67_584.0 * 1024.0));
    assert_eq!(get(r#"uma_memory_watermark_bytes{watermark="low"}"#), Value(low));
    assert_eq!(get("uma_memory_headroom_bytes"), Value(4_194_304.0 * 1024.0 - low));
    assert_eq!(get("uma_memory_watermark_boost_bytes"), Value(4000.0 * 4096.0));
    assert_eq!(get(r#"uma_memory_contiguous_bytes{block="32MiB"}"#), Value(67_108_864.0));
    assert_eq!(get("uma_memory_per_cpu_lists_bytes"), Value(lists));
    let named = 4_194_304 + 310_416 + 31_457_280 + 2_883_584 + 1_507_328 + 262_144 + 98_304;
    let named = named + 16_384 + 81_920 + (720_896 - 655_360);
    let rest = f64::from(126_900_000 - named) * 1024.0 - lists;
    assert_eq!(get("uma_memory_unaccounted_bytes"), Value(rest));
    let stalled = r#"uma_pressure_stalled_seconds_total{resource="memory",share="some"}"#;
    assert_eq!(get(stalled), Value(81.234567));
    assert_eq!(get(r#"uma_pressure_ratio{resource="cpu",share="some",window="10s"}"#), Value(0.02));
    assert_eq!(get(r#"uma_sysctl{name="vm.watermark_boost_factor"}"#), Value(15_000.0));
    assert_eq!(get(r#"uma_sysctl{name="vm.zone_reclaim_mode"}"#), Unsupported);
}

#[test]
fn a_jetson_is_healthy_without_numa_and_without_pressure() {
    let mut node = Node::like("jetson", 4096);
    let runs = node.read_all();
    let down: Vec<Source> =
        runs.values().filter(|run| run.error.is_some()).map(|run| run.source).collect();
    assert!(down.is_empty(), "{down:?}");
    assert!(!has_pressure(&node.path("proc")));
    assert!(runs[&Source::Pressure].values.iter().all(|value| *value == Unsupported));
    assert!(runs[&Source::Numa].values.is_empty());
    let values = node.values();
    assert_eq!(values["uma_memory_nvmap_bytes"], Value(18.0 * f64::from(1 << 30)));
    assert_eq!(values[r#"uma_memory_contiguous_bytes{block="32MiB"}"#], Unsupported);
}

#[test]
fn everything_is_unsupported_and_rarely_retried_without_any_files() {
    let mut node = Node::empty();
    let runs = node.read_due();
    assert_eq!(runs.len(), SOURCES.len());
    for (source, run) in &runs {
        assert!(run.values.iter().all(|value| *value == Unsupported), "{source:?}");
        let has_none = matches!(source, Source::Numa | Source::Pci | Source::Pressure);
        assert_eq!(run.error.is_none(), has_none, "{source:?}");
    }
    node.write("proc/meminfo", "MemTotal: 5 kB\n");
    node.wait(Duration::from_secs(4));
    assert_eq!(sources(&node.read_due()), [Source::Numa]);
    node.wait(Duration::from_secs(1));
    assert_eq!(node.read_due()[&Source::Meminfo].error, None);
    assert_eq!(node.values()["uma_memory_total_bytes"], Value(5120.0));
    assert_eq!(node.values()["uma_memory_free_bytes"], Unsupported);
}

#[test]
fn a_malformed_file_fails_with_an_error_and_recovers() {
    let mut node = Node::like("gb10-4k", 4096);
    let healthy = node.values();
    let meminfo = fs::read(node.path("proc/meminfo")).unwrap();
    for bad in ["", "\0\u{1}\u{2}", "nothing known here\n"] {
        node.write("proc/meminfo", bad);
        let run = node.read_due().remove(&Source::Meminfo).unwrap();
        assert!(run.values.iter().all(|value| *value == Failed), "{bad:?}");
        assert!(run.error.unwrap().contains("proc/meminfo"));
    }
    fs::remove_file(node.path("proc/meminfo")).unwrap();
    let run = node.read_due().remove(&Source::Meminfo).unwrap();
    assert!(run.values.iter().all(|value| *value == Failed));
    assert!(run.error.unwrap().ends_with("has vanished"));
    node.write("proc/meminfo", meminfo);
    assert_eq!(node.read_due()[&Source::Meminfo].error, None);
    assert_eq!(node.values(), healthy);
}

#[test]
fn a_vanished_field_fails_and_a_field_never_present_is_unsupported() {
    let mut node = Node::empty();
    node.write("proc/meminfo", "MemTotal: 9 kB\nMemFree: 5 kB\n");
    assert_eq!(node.read_all()[&Source::Meminfo].error, None);
    node.write("proc/meminfo", "MemTotal: 9 kB\n");
    let error = node.read_all()[&Source::Meminfo].error.clone().unwrap();
    assert!(error.contains("uma_memory_free_bytes"), "{error}");
    assert_eq!(node.values()["uma_memory_free_bytes"], Failed);
    assert_eq!(node.values()["uma_memory_buffers_bytes"], Unsupported);
}

#[test]
fn files_replaced_by_rename_are_noticed() {
    let mut node = Node::empty();
    node.write("proc/meminfo", "MemFree: 5 kB\n");
    assert_eq!(node.values()["uma_memory_free_bytes"], Value(5120.0));
    node.write("proc/new", "MemFree: 6 kB\n");
    fs::rename(node.path("proc/new"), node.path("proc/meminfo")).unwrap();
    assert_eq!(node.values()["uma_memory_free_bytes"], Value(6144.0));
}

#[test]
fn headroom_fails_with_the_watermarks_although_free_memory_is_known() {
    let mut node = Node::like("gb10-4k", 4096);
    node.write("proc/zoneinfo", "garbage\n");
    let values = node.values();
    assert_eq!(values["uma_memory_headroom_bytes"], Failed);
    assert!(matches!(values["uma_memory_free_bytes"], Value(_)));
}

#[test]
fn one_bad_pressure_file_leaves_the_others_readable() {
    let mut node = Node::like("gb10-4k", 4096);
    node.write("proc/pressure/io", "");
    let run = node.read_all().remove(&Source::Pressure).unwrap();
    assert!(run.error.unwrap().contains("pressure/io"));
    let failed = run.values.iter().filter(|value| **value == Failed).count();
    assert_eq!((failed, run.values.len()), (4, 10));
}

#[test]
fn directories_fifos_and_endless_files_are_refused_without_hanging() {
    let mut node = Node::empty();
    fs::create_dir_all(node.path("proc/meminfo")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", node.path("proc/vmstat")).unwrap();
    let fifo = node.path("proc/buddyinfo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).unwrap();
    let runs = node.read_all();
    for source in [Source::Meminfo, Source::Vmstat, Source::Buddyinfo] {
        assert!(runs[&source].values.iter().all(|value| *value == Failed), "{source:?}");
        assert!(runs[&source].error.is_some(), "{source:?}");
    }
}

#[test]
fn schemas_stay_the_same_until_a_node_appears_and_its_series_outlive_it() {
    let mut node = Node::like("gh200", 65536);
    let gpu = "sys/devices/system/node/node1";
    let hidden = node.path("hidden");
    fs::rename(node.path(gpu), &hidden).unwrap();
    let first = node.read_all();
    let second = node.read_all();
    for source in SOURCES {
        assert!(Arc::ptr_eq(&first[&source].schema, &second[&source].schema), "{source:?}");
    }
    fs::rename(&hidden, node.path(gpu)).unwrap();
    let free = r#"uma_numa_memory_bytes{kind="free",node="1"}"#;
    let later: Vec<_> = (0..10).map(|_| node.values().get(free).copied()).collect();
    assert_eq!(later.iter().flatten().next(), Some(&Value(96_000_000.0 * 1024.0)));
    fs::rename(node.path(gpu), &hidden).unwrap();
    assert_eq!(node.values()[free], Failed, "it was there a moment ago");
    assert_eq!(node.values()[free], Unsupported, "it is gone");
    let third = node.read_all().remove(&Source::Numa).unwrap();
    assert_eq!((third.error, third.schema.series.len()), (None, 2 * 17));
}

#[test]
fn a_zone_that_loses_its_memory_keeps_its_series_without_a_value() {
    let mut node = Node::empty();
    let zone = |name: &str| format!("Node 0, zone {name}\n pages free 5\n low 5\n managed 9\n");
    node.write("proc/zoneinfo", zone("Normal"));
    let free = r#"uma_zone_free_bytes{node="0",zone="Movable"}"#;
    assert_eq!(node.values().get(free), None);
    node.write("proc/zoneinfo", zone("Normal") + &zone("Movable"));
    assert_eq!(node.values()[free], Value(20_480.0));
    node.write("proc/zoneinfo", zone("Normal"));
    let values = node.values();
    assert_eq!(values[free], Unsupported);
    assert_eq!(values[r#"uma_memory_watermark_bytes{watermark="low"}"#], Value(20_480.0));
}

#[test]
fn settings_and_nodes_are_read_once_a_second_and_the_rest_at_every_call() {
    let mut node = Node::like("gb10-4k", 4096);
    assert_eq!(node.read_due().len(), 8);
    for _ in 0..9 {
        node.wait(Duration::from_millis(100));
        let runs = sources(&node.read_due());
        assert_eq!(runs.len(), 5);
        assert!(!runs.contains(&Source::Sysctl) && !runs.contains(&Source::Numa));
    }
    node.wait(Duration::from_millis(99));
    assert_eq!(node.read_due().len(), 7);
}

#[test]
fn persistently_costly_files_are_read_less_often_but_every_second() {
    let mut node = Node::like("gb10-4k", 4096);
    let mut counts_in_100_calls = |cost| {
        node.tick.set(cost);
        let begun = node.now.get();
        let mut counts = BTreeMap::new();
        for _ in 0..100 {
            node.wait(Duration::from_millis(100));
            for source in node.read_due().into_keys() {
                *counts.entry(source).or_insert(0) += 1;
            }
        }
        let seconds = (node.now.get() - begun).as_secs();
        (counts[&Source::Meminfo], counts[&Source::Zoneinfo], seconds)
    };
    let (meminfo, zoneinfo, _) = counts_in_100_calls(Duration::from_micros(50));
    assert_eq!((meminfo, zoneinfo), (100, 100));
    let (meminfo, zoneinfo, _) = counts_in_100_calls(Duration::from_micros(300));
    assert_eq!(meminfo, 100);
    assert!((33..60).contains(&zoneinfo), "{zoneinfo}");
    counts_in_100_calls(Duration::from_millis(20));
    let (meminfo, zoneinfo, seconds) = counts_in_100_calls(Duration::from_millis(20));
    assert_eq!(meminfo, 100);
    assert!((seconds / 2..seconds + seconds / 5).contains(&zoneinfo), "{zoneinfo} in {seconds} s");
    assert_eq!(node.read_all().len(), SOURCES.len(), "asked for all, it reads all");
}

#[test]
fn a_single_slow_reading_delays_nothing() {
    let mut node = Node::like("gb10-4k", 4096);
    for took_us in [20, 20, 20, 20, 900_000, 20, 20] {
        node.tick.set(Duration::from_micros(took_us));
        node.wait(Duration::from_millis(100));
        assert!(node.read_due().contains_key(&Source::Zoneinfo));
    }
}

#[test]
fn this_machines_own_files_are_understood() {
    let mut source = MemorySource::open(Path::new("/proc"), Path::new("/sys"));
    for _ in 0..2 {
        let mut out = Vec::new();
        source.read_all(&|| Duration::ZERO, &mut out);
        for (source, run) in by_source(out) {
            assert!(!run.values.contains(&Failed), "{source:?}: {:?}", run.error);
        }
    }
}

#[test]
fn filled_pipes_are_unaccounted_memory() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    // Other tests fill and empty buffers of their own at the same time.
    let mut parts = Vec::new();
    while !parts.last().is_some_and(|part| (0.8..1.2).contains(part)) {
        assert!(parts.len() < 20, "{parts:?}");
        parts.push(part_of_filled_pipes_that_is_unaccounted());
    }
}

fn part_of_filled_pipes_that_is_unaccounted() -> f64 {
    const FILLED_BYTES: usize = 48 << 20;
    let before = unaccounted_now();
    let mut pipes = Vec::new();
    let mut filled = 0;
    while filled < FILLED_BYTES {
        let (reader, writer) = std::io::pipe().unwrap();
        rustix::fs::fcntl_setfl(&writer, rustix::fs::OFlags::NONBLOCK).unwrap();
        while let Ok(count) = rustix::io::write(&writer, &[7; 65536]) {
            filled += count;
        }
        pipes.push((reader, writer));
    }
    (unaccounted_now() - before) / filled as f64
}

fn unaccounted_now() -> f64 {
    let mut source = MemorySource::open(Path::new("/proc"), Path::new("/sys"));
    let mut out = Vec::new();
    source.read_all(&|| Duration::ZERO, &mut out);
    let run = by_source(out).remove(&Source::Meminfo).unwrap();
    let mut keys = run.schema.series.iter();
    let at = keys.position(|key| &*key.name == "uma_memory_unaccounted_bytes").unwrap();
    run.values[at].value().unwrap()
}
