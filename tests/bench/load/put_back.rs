//! What the benchmark changes on this machine is put back, however it ends.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::signal::unix::{SignalKind, signal};

use crate::{damon, pool};

/// Tells the one that measures that somebody puts back after it.
const IS_FOLLOWED: &str = "UMAWARDEN_BENCH_IS_FOLLOWED";

/// Runs `measure` in a process of its own. When that ends, by itself, by a signal to either, or by a
/// failure, so does all that it has started, and the settings are as they were before.
pub fn after(measure: impl FnOnce()) -> ExitCode {
    if std::env::var_os(IS_FOLLOWED).is_some() {
        measure();
        return ExitCode::SUCCESS;
    }
    let before = settings();
    let ended = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(measured_elsewhere());
    for (setting, value) in before {
        if fs::read_to_string(&setting).is_ok_and(|now| now != value) {
            eprintln!("{} is {} again", setting.display(), value.trim());
            fs::write(&setting, value.trim()).unwrap();
        }
    }
    ended
}

async fn measured_elsewhere() -> ExitCode {
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let [mut interrupted, mut terminated, mut hung_up] = kinds.map(|kind| signal(kind).unwrap());
    let mut ended = signal(SignalKind::child()).unwrap();
    // A group of its own: keys on the terminal reach this process alone.
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(std::env::args_os().skip(1)).env(IS_FOLLOWED, "1").process_group(0);
    let mut child = command.spawn().unwrap();
    let group = Pid::from_child(&child);
    let status = loop {
        tokio::select! {
            _ = ended.recv() => if let Some(status) = child.try_wait().unwrap() {
                break status.code();
            },
            _ = interrupted.recv() => break None,
            _ = terminated.recv() => break None,
            _ = hung_up.recv() => break None,
        }
    };
    // Engines hold memory, and a loop would go on for ever.
    let _all_have_ended = kill_process_group(group, Signal::KILL);
    child.wait().unwrap();
    match status {
        Some(0) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// All that a load may change, as it is now.
fn settings() -> BTreeMap<PathBuf, String> {
    let devices = fs::read_dir("/sys/class/block").into_iter().flatten().flatten();
    let readahead = devices.map(|device| device.path().join("queue/read_ahead_kb"));
    let files = readahead.chain(damon::states()).chain([PathBuf::from(pool::SIZE)]);
    files.filter_map(|file| Some((file.clone(), fs::read_to_string(file).ok()?))).collect()
}
