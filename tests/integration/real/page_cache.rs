//! A real flood of the page cache: observe changes nothing, enforce drops, and the numbers are
//! true.

use std::fs;
use std::io::Write;
use std::path::Path;

use super::{damon, enabled};
use crate::daemon::{Daemon, history, meminfo_bytes, of_kind};

const GIB: f64 = 1024.0 * 1024.0 * 1024.0;
const CLEAN: &str = "uma_memory_page_cache_bytes{state=\"clean\"}";

/// Fires when clean page cache is a GiB larger than now and has stopped growing.
fn rules(folder: &Path, threshold_bytes: f64) -> String {
    let file = folder.join("flood.yaml");
    let text = format!(
        "groups:\n\
         - name: flood\n  interval: 100ms\n  rules:\n\
         \x20 - alert: Flood\n\
         \x20   expr: {CLEAN} > {threshold_bytes:.0} and abs(delta({CLEAN}[1s])) < 1e8\n\
         \x20   for: 1s\n\
         \x20   remedy:\n\
         \x20     aim: {CLEAN} < {threshold_bytes:.0}\n\
         \x20     steps:\n\
         \x20     - drop_caches: {{what: pagecache, sync: true}}\n\
         \x20     cooldown: 1h\n"
    );
    fs::write(&file, text).unwrap();
    file.display().to_string()
}

/// Fills the page cache by writing a file of 2 GiB and reading it back.
fn flood(folder: &Path) {
    let file = folder.join("checkpoint");
    let mut out = fs::File::create(&file).unwrap();
    let block = vec![1u8; 4 << 20];
    for _ in 0..512 {
        out.write_all(&block).unwrap();
    }
    out.sync_all().unwrap();
    std::io::copy(&mut fs::File::open(&file).unwrap(), &mut std::io::sink()).unwrap();
}

/// Results of one flood in that mode.
struct Flood {
    decision: serde_json::Value,
    /// Measurements after the action, in enforce mode.
    aim_check: Option<serde_json::Value>,
    /// Page cache in bytes, from /proc: full, and at the end.
    full: f64,
    end: f64,
}

fn decide(mode: &str) -> Flood {
    let storage = tempfile::tempdir().unwrap();
    // On the disk, and not on a tmpfs.
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let _damon_paused = damon::pause();
    fs::write("/proc/sys/vm/drop_caches", "1").unwrap();
    let probe = Daemon::start(storage.path(), &[]);
    let threshold = probe.metric(CLEAN) + GIB;
    probe.terminate();
    let rules = rules(scratch.path(), threshold);
    let daemon = Daemon::start(storage.path(), &["--rules", &rules, "--mode", mode]);
    flood(scratch.path());
    let full = meminfo_bytes("Cached");
    daemon.wait_until("decided", |daemon| {
        let act = ["rule=\"Flood\"", "decision=\"act\""];
        daemon
            .metrics()
            .iter()
            .any(|(series, value)| act.iter().all(|label| series.contains(label)) && *value > 0.0)
    });
    let outcome = if mode == "observe" { "skipped" } else { "done" };
    let done = format!("uma_actions_total{{action=\"drop_caches\",outcome=\"{outcome}\"}}");
    daemon.wait_until("done", |daemon| daemon.count(&done) > 0.0);
    std::thread::sleep(std::time::Duration::from_millis(500));
    let end = meminfo_bytes("Cached");
    daemon.terminate();
    let history = history(storage.path());
    let decision = of_kind(&history, "decision").find(|decision| {
        decision["decision"] == "act" && decision["rule"].to_string().contains("Flood")
    });
    let decision = decision.unwrap_or_else(|| panic!("{history:#?}")).clone();
    let outcomes = of_kind(&history, "outcome").map(|outcome| outcome["aim_check"].clone());
    let aim_check = outcomes.into_iter().find(|aim_check| !aim_check.is_null());
    println!("{mode}: page cache {full} → {end}");
    Flood { decision, aim_check, full, end }
}

#[test]
fn real_page_cache_flood_is_only_reported_in_observe_mode() {
    if !enabled() {
        return;
    }
    let flood = decide("observe");
    assert_eq!(flood.decision["mode"], "observe");
    assert!(flood.aim_check.is_none(), "nothing was done, so there is nothing to measure");
    assert!(flood.end > flood.full - 0.25 * GIB, "observe mode dropped caches");
}

#[test]
fn real_page_cache_flood_is_dropped_in_enforce_mode_with_true_numbers() {
    if !enabled() {
        return;
    }
    let flood = decide("enforce");
    assert_eq!(flood.decision["mode"], "enforce");
    assert!(flood.end < flood.full - 1.5 * GIB, "caches were not dropped");
    let aim_check = flood.aim_check.unwrap();
    assert_eq!(aim_check["aim_met"], true, "{aim_check:#}");
    let value = |when: &str| {
        let signals = aim_check[when].as_array().unwrap();
        let signal = signals.iter().find(|signal| signal["series"] == CLEAN).unwrap();
        signal["value"].as_f64().unwrap()
    };
    // Clean cache is Cached and Buffers less what is shared, dirty or mapped.
    assert!((value("before") - flood.full).abs() < 0.5 * GIB, "{aim_check:#}");
    assert!((value("after") - flood.end).abs() < 0.5 * GIB, "{aim_check:#}");
}
