//! The cost of the daemon, compared with its peers, on this machine, in one run.
//!
//! `cargo bench --bench daemon` as root takes about ten minutes; `-- --minutes 60` watches the idle
//! daemon for an hour; `-- scrape idle` measures only these parts. The parts are `rules`, `replay`,
//! `kernel_log`, `scrape`, `gate`, `explain`, `pages` and `idle`. Without node_exporter (Debian:
//! prometheus-node-exporter) its rows are left out. The numbers of a noisy machine are noisy:
//! compare the rows of one run.
#![expect(clippy::unwrap_used, reason = "a measurement ends where anything fails")]

mod explain;
mod gate;
mod kernel_log;
mod pages;
mod processes;
mod replay;
mod rules;
mod scrape;

use std::time::Duration;

/// How long the idle daemon is watched without `--minutes`.
const IDLE: Duration = Duration::from_secs(60);

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    // `cargo test --benches` passes no --bench: there is nothing to test here.
    if !arguments.iter().any(|argument| argument == "--bench") {
        return;
    }
    let minutes = arguments.iter().position(|argument| argument == "--minutes");
    let minutes = minutes.and_then(|position| arguments.get(position + 1)?.parse().ok());
    let idle = minutes.map_or(IDLE, |minutes: u64| Duration::from_secs(60 * minutes));

    let parts: [(&str, &dyn Fn()); 8] = [
        ("rules", &rules::measure),
        ("replay", &replay::measure),
        ("kernel_log", &kernel_log::measure),
        ("scrape", &scrape::measure),
        ("gate", &gate::measure),
        ("explain", &explain::measure),
        ("pages", &pages::measure),
        ("idle", &|| scrape::measure_idle(idle)),
    ];
    let is_named = |name: &str| arguments.iter().any(|argument| argument == name);
    let all = !parts.iter().any(|(name, _)| is_named(name));
    println!("{}", processes::machine());
    for (_, measure) in parts.iter().filter(|(name, _)| all || is_named(name)) {
        measure();
    }
}

/// Processor time of this thread, without other programs on the core.
fn processor_time() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(used.tv_sec.unsigned_abs(), used.tv_nsec.unsigned_abs() as u32)
}

/// Prints one row: name, unit, minimum, median, 99th percentile, maximum.
fn row(what: &str, unit: &str, mut values: Vec<f64>) {
    values.sort_by(f64::total_cmp);
    let at = |share: f64| values[((values.len() - 1) as f64 * share).round() as usize];
    println!(
        "{what:<58} {unit:>6}  min {:>8.3}  median {:>8.3}  p99 {:>8.3}  max {:>8.3}",
        at(0.0),
        at(0.5),
        at(0.99),
        at(1.0)
    );
}
