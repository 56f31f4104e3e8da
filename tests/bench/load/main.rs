//! A checkpoint loads while the page cache is full: the effect of each policy on this machine.
//!
//! `cargo bench --bench load -- --directory DIR` as root, with as much space in DIR as the machine
//! has memory. A simulated engine reads the checkpoint while it takes "weights" and then a "KV
//! cache" as 2 MiB pages from the kernel's hugetlb pool, which allocates them as the NVIDIA driver
//! does: unmovable, with direct reclaim, without the OOM killer. Policies take turns (A B C A B C),
//! so that noise of the machine hits all of them. Meanwhile another model is served through its
//! mapping, and a bystander uses files of its own. `-- --help` lists the options.
#![expect(clippy::unwrap_used, reason = "a measurement ends where anything fails")]

#[path = "../arguments.rs"]
mod arguments;
mod bystander;
mod checkpoint;
mod content;
mod damon;
mod engine;
mod measure;
mod options;
mod policy;
mod pool;
mod reaction;
mod read_limit;
mod restore;
#[expect(dead_code, reason = "the benchmark of the brake uses the rest")]
mod served;
mod table;
mod volume;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::ExitCode;

use checkpoint::Checkpoint;
use measure::Watch;
use options::Options;
use pool::Pool;
use read_limit::ReadLimit;
use table::{Run, Table};
use volume::Volume;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("engine") => return engine::run(&arguments[1..]),
        Some("served") => return served::run(&arguments[1..]),
        Some("flood") => return reaction::run(&arguments[1..]),
        Some("bystander") => return bystander::run(&arguments[1..]),
        _ => {}
    }
    // `cargo test --benches` passes no --bench: there is nothing to test here.
    if !arguments.iter().any(|argument| argument == "--bench") {
        return ExitCode::SUCCESS;
    }
    let options = match Options::parse(&arguments) {
        Ok(Some(options)) => options,
        Ok(None) => return ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    restore::after(|| prepare(&options), || measure_all(&options))
}

/// The file system and the limit of a measurement; both are removed when dropped.
struct Prepared {
    _limit: Option<ReadLimit>,
    _volume: Option<Volume>,
}

fn prepare(options: &Options) -> Result<Prepared, String> {
    let mount = |filesystem| Volume::mount(filesystem, options.volume_bytes());
    let volume = options.filesystem.map(mount).transpose()?;
    let limit = |bytes| {
        let directory = &options.directory;
        let device = match &volume {
            Some(volume) => volume.device(),
            None => fs::create_dir_all(directory)
                .and_then(|()| directory.metadata())
                .map_err(|error| format!("{}: {error}", directory.display()))?
                .dev(),
        };
        ReadLimit::set(device, bytes)
    };
    let limit = options.read_limit_bytes.map(limit).transpose()?;
    Ok(Prepared { _limit: limit, _volume: volume })
}

fn measure_all(options: &Options) {
    if options.read_limit_bytes.is_some() {
        read_limit::enter().unwrap();
    }
    let pool = Pool::take_over().unwrap();
    let _damon = damon::pause();
    if options.floods > 0 {
        fs::create_dir_all(&options.directory).unwrap();
        println!("{}", measure::machine());
        return reaction::measure_all(options, &pool, options.floods);
    }
    let checkpoint = Checkpoint::prepare(&options.directory, options.checkpoint_bytes).unwrap();
    let idle = content::file(&options.directory, "bystander", options.bystander_bytes).unwrap();
    let weights = content::file(&options.directory, "served", options.served_bytes).unwrap();
    println!("{}", measure::machine());
    println!(
        "checkpoint {:.1} GiB in {} shards, weights {:.1} GiB, KV cache {:.1} GiB",
        gib(checkpoint.bytes()),
        checkpoint.shards().len(),
        gib(options.weights_bytes),
        gib(options.cache_bytes)
    );
    println!("a served model of {:.1} GiB", gib(options.served_bytes));
    for loader in &options.loaders {
        let mut table = Table::new(*loader);
        for round in 0..options.runs {
            for policy in &options.policies {
                eprintln!("{loader}, {policy}, run {} of {}", round + 1, options.runs);
                measure::settle(&pool);
                let served = served::start(&weights);
                let bystander = bystander::start(&idle);
                let in_force = policy::start(*policy, &checkpoint, &served, options.floor_bytes);
                let before = in_force.used();
                let watch = Watch::start();
                let load = engine::start(*loader, options, &checkpoint);
                let impact = watch.end();
                let used = in_force.used().since(before);
                drop(in_force);
                let (bystander_faults, bystander_bytes) = bystander.end();
                let served_faults = served.end();
                let run =
                    Run { load, impact, bystander_faults, bystander_bytes, served_faults, used };
                eprintln!("{run:?}");
                table.add(*policy, run);
            }
        }
        println!("{table}");
    }
}

/// Bytes in GiB.
fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}
