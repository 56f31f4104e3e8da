//! `kill -9` of umawarden and of the engine in the middle of reading ahead leaves nothing behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::enabled;
use super::settings::{Before, readahead_of};
use crate::daemon::{Daemon, meminfo_bytes};
use crate::dice::rounds;
use crate::evict::{Bench, Reader, cached};

/// Kills at random moments of loads.
const KILLS: u64 = 2;
const NIGHTLY_KILLS: u64 = 6;

/// The size of a shard in MiB.
const SHARD: u64 = 512;

/// An argument of the engine, by which it is found.
const NAME: &str = "umawarden-killed-reader";

/// With the shipped rule that tracks loads.
const RULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/rules/engines.yaml");

const PREFETCHED: &str = "uma_prefetched_bytes_total";

/// Processes whose command line names that folder.
fn of_folder(folder: &Path) -> Vec<u32> {
    let folder = folder.display().to_string();
    let all = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let names = |pid: &u32| {
        // It may have ended.
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&command).contains(&folder)
    };
    pids.filter(names).collect()
}

fn forget(shards: &[PathBuf]) {
    for shard in shards {
        let shard = fs::File::open(shard).unwrap();
        rustix::fs::fadvise(&shard, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    }
}

fn cached_mib(shards: &[PathBuf]) -> u64 {
    shards.iter().map(|shard| cached(shard, 0, SHARD)).sum()
}

fn start(folder: &Path) -> Daemon {
    let storage = folder.join("data");
    let config = format!("--config.file={}", folder.join("umawarden.yaml").display());
    Daemon::start(&storage, &[&config])
}

#[test]
fn real_kill_nine_in_the_middle_of_reading_ahead_leaves_nothing_behind() {
    if !enabled() {
        return;
    }
    let Some(bench) = Bench::new() else { return };
    let shards: Vec<PathBuf> = (1..=3)
        .map(|number| bench.file(&format!("model-0000{number}-of-00003.safetensors"), SHARD))
        .collect();
    let folder = shards[0].parent().unwrap().to_owned();
    let config = format!(
        "mode: enforce\nrule_files: [\"{RULES}\"]\nengines:\n- name: killed\n  \
         match: {{cmdline: \"* {NAME}*\"}}\n  model_files: [\"{}/model*.safetensors\"]\n",
        folder.display()
    );
    fs::write(folder.join("umawarden.yaml"), config).unwrap();
    // What is read ahead is a share of what is free.
    fs::write("/proc/sys/vm/drop_caches", "1").unwrap();
    let sysctls = ["swappiness", "vfs_cache_pressure", "min_free_kbytes"];
    let sysctls = sysctls.map(|name| Path::new("/proc/sys/vm").join(name));
    let before = Before::of(sysctls.into_iter().chain(readahead_of(&folder)));
    let locked = ["Mlocked", "Unevictable"].map(meminfo_bytes);
    let mut ahead_mib = 0;
    let kills = rounds(KILLS, NIGHTLY_KILLS);
    for round in 0..kills {
        forget(&shards);
        let command = std::process::Command::new(std::env::current_exe().unwrap());
        let mut engine = Reader::run(command, &[NAME]);
        let daemon = start(&folder);
        engine.maps(&shards[0]);
        let mut position = 0;
        while daemon.count(PREFETCHED) == 0.0 && position < SHARD {
            engine.does(&format!("touch {position} {}", position + 16));
            position += 16;
            std::thread::sleep(Duration::from_millis(200));
        }
        std::thread::sleep(Duration::from_millis(fastrand::u64(0..300)));
        // In turns, who is killed first.
        if round % 2 == 0 {
            daemon.kill();
            drop(engine);
        } else {
            drop(engine);
            daemon.kill();
        }
        ahead_mib += cached_mib(&shards).saturating_sub(position);
        let left = of_folder(&folder);
        assert!(left.is_empty(), "round {round}: {left:?} run on");
        assert_eq!(before.changed(), [], "round {round}");
        // What is cached is nobody's: clean, and neither mapped nor locked.
        forget(&shards);
        assert_eq!(cached_mib(&shards), 0, "round {round}");
        let now = ["Mlocked", "Unevictable"].map(meminfo_bytes);
        for (now, before) in now.iter().zip(locked) {
            assert!(*now <= before + 16e6, "round {round}: {now} of {before} bytes before");
        }
    }
    println!("{kills} kills, {ahead_mib} MiB were read ahead at the time");
    assert!(ahead_mib > 0, "no kill came while something was read ahead: the test shows nothing");
    let daemon = start(&folder);
    assert!(!daemon.metrics().keys().any(|series| series.starts_with("uma_engine_evicting")));
    daemon.terminate();
    assert_eq!(before.changed(), []);
}
