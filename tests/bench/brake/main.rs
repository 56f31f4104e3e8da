//! Memory collapses: which process each policy stops and when, and that harmless scenarios stop
//! none.
//!
//! `cargo bench --bench brake` as root. A hog plays a loading engine: it has the driver's file
//! open and takes 2 MiB pages, requested as the driver does, for a file that no process maps. An
//! innocent process has much memory. The hog takes nearly all of the machine's memory, so nothing
//! else should run there: a watchdog kills the hog and frees the pages before the machine is lost.
//! `-- --help` lists the options.
#![expect(clippy::unwrap_used, reason = "a measurement ends where anything fails")]

#[path = "../arguments.rs"]
mod arguments;
#[path = "../load/content.rs"]
mod content;
mod driver;
mod hog;
mod huge_file;
mod innocent;
mod job;
mod kernel_log;
#[expect(dead_code, reason = "the benchmark of loads uses the rest")]
#[path = "../load/measure.rs"]
mod measure;
mod options;
mod policy;
#[path = "../load/pool.rs"]
mod pool;
#[expect(dead_code, reason = "the daemon's benchmark uses the rest")]
#[path = "../processes.rs"]
mod processes;
mod scenario;
#[path = "../load/served.rs"]
mod served;
mod table;
mod watchdog;
mod worker;

use std::process::ExitCode;

use driver::Device;
use options::Options;
use table::Table;
use watchdog::Watchdog;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("hog") => return hog::run(&arguments[1..]),
        Some("job") => return job::run(&arguments[1..]),
        Some("bystander") => return job::stand_by(&arguments[1..]),
        Some("innocent") => return innocent::run(&arguments[1..]),
        Some("keeper") => return watchdog::keep(&arguments[1..]),
        Some("served") => return served::run(&arguments[1..]),
        _ => {}
    }
    // `cargo test --benches` passes no --bench: there is nothing to test here.
    if !arguments.iter().any(|argument| argument == "--bench") {
        return ExitCode::SUCCESS;
    }
    match Options::parse(&arguments) {
        Ok(Some(options)) => measure_all(&options),
        Ok(None) => {}
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

fn measure_all(options: &Options) {
    let watchdog = Watchdog::start();
    let _device = Device::make();
    println!("{}", measure::machine());
    for scenario in &options.scenarios {
        let mut table = Table::new(*scenario);
        for round in 0..options.runs {
            for policy in scenario.policies(&options.policies) {
                eprintln!("{scenario}, {policy}, run {} of {}", round + 1, options.runs);
                let run = scenario::play(*scenario, policy, options, &watchdog);
                eprintln!("{run:?}");
                table.add(policy, run);
            }
        }
        println!("{table}");
    }
}

/// Bytes in GiB.
fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}
