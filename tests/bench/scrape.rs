//! Processor time of a scrape, idle cost and memory, compared with node_exporter.

use std::time::{Duration, Instant};

use super::processes::{Program, get};
use super::row;

const ROUNDS: usize = 15;
const SCRAPES: usize = 40;

/// The headers of Prometheus 3.
const HEADERS: &str = "Accept: application/openmetrics-text;version=1.0.0;q=0.6,\
    text/plain;version=0.0.4;q=0.3,*/*;q=0.1\r\nAccept-Encoding: gzip\r\n";

/// The cost of concurrent sampling is subtracted: umawarden samples all the time, node_exporter
/// only when scraped.
pub fn measure() {
    let storage = tempfile::tempdir().unwrap();
    let ours = Program::umawarden(storage.path(), 19_942, &[]);
    let theirs = Program::start(
        "prometheus-node-exporter",
        &[
            "--web.listen-address=127.0.0.1:19100",
            "--collector.disable-defaults",
            "--collector.meminfo",
            "--collector.vmstat",
            "--collector.pressure",
            "--web.disable-exporter-metrics",
        ],
        "127.0.0.1:19100",
    );
    std::thread::sleep(Duration::from_secs(2));
    let idle = idle_share(&ours, Duration::from_secs(5));
    let (mut ours_ms, mut theirs_ms) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours_ms.push(scrape_ms(&ours, idle));
        theirs_ms.extend(theirs.as_ref().map(|theirs| scrape_ms(theirs, 0.0)));
    }
    row("CPU of a scrape, umawarden", "ms", ours_ms);
    if theirs.is_some() {
        row("CPU of a scrape, node_exporter (memory collectors only)", "ms", theirs_ms);
    }
}

fn scrape_ms(program: &Program, idle: f64) -> f64 {
    let mut stream = program.connect();
    let (cpu, began) = (program.cpu_seconds(), Instant::now());
    for _ in 0..SCRAPES {
        get(&mut stream, "/metrics", HEADERS);
    }
    let used = program.cpu_seconds() - cpu - idle * began.elapsed().as_secs_f64();
    used.max(0.0) * 1000.0 / SCRAPES as f64
}

/// Processor time as a share of one core.
fn idle_share(program: &Program, time: Duration) -> f64 {
    let (cpu, began) = (program.cpu_seconds(), Instant::now());
    std::thread::sleep(time);
    (program.cpu_seconds() - cpu) / began.elapsed().as_secs_f64()
}

/// The idle cost: sampling at the adaptive interval and ten times a second, with a scrape every
/// 15 s.
pub fn measure_idle(time: Duration) {
    let (storage, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let fixed = ["--sampling-interval", "100ms"];
    let ours = Program::umawarden(storage.path(), 19_943, &fixed);
    let calm = Program::umawarden(other.path(), 19_944, &[]);
    // The start is over by then, and its memory given back.
    std::thread::sleep(Duration::from_secs(70));
    let slices = time.as_secs().div_ceil(15).max(1);
    let (mut share, mut resident, mut calm_share) = (Vec::new(), Vec::new(), Vec::new());
    let (mut recorder, mut black_box) = (Vec::new(), Vec::new());
    for _ in 0..slices {
        let (cpu, began) = (ours.cpu_seconds_of_thread("black-box"), Instant::now());
        let recorded = ours.cpu_seconds_of_thread("recorder");
        let calm_cpu = calm.cpu_seconds();
        share.push(idle_share(&ours, Duration::from_secs(15)) * 100.0);
        let elapsed = began.elapsed().as_secs_f64();
        calm_share.push((calm.cpu_seconds() - calm_cpu) / elapsed * 100.0);
        recorder.push((ours.cpu_seconds_of_thread("recorder") - recorded) / elapsed * 100.0);
        resident.push(ours.resident_mib());
        black_box.push((ours.cpu_seconds_of_thread("black-box") - cpu) / elapsed * 100.0);
        for program in [&ours, &calm] {
            get(&mut program.connect(), "/metrics", HEADERS);
        }
    }
    row("idle, sampling at its own pace (250 ms): share of one core", "%", calm_share);
    row("idle, sampling every 100 ms: share of one core", "%", share);
    row("of that, the flight recorder", "%", recorder);
    row("of that, the black box: a record a second", "%", black_box);
    row(&format!("resident memory over {} s of sampling", time.as_secs()), "MiB", resident);
}
