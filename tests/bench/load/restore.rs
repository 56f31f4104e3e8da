//! Restores the settings of the machine, however the benchmark ends.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::signal::unix::{SignalKind, signal};

use crate::{damon, pool};

/// Set in the measuring process, whose parent restores the settings.
const HAS_RESTORING_PARENT: &str = "UMAWARDEN_BENCH_CHILD";

/// Runs `measure` in a child process. However that ends, its process group is killed, the result of
/// `prepare` is dropped, and the settings are restored; a signal to this process ends both.
pub fn after<T>(prepare: impl FnOnce() -> Result<T, String>, measure: impl FnOnce()) -> ExitCode {
    if std::env::var_os(HAS_RESTORING_PARENT).is_some() {
        measure();
        return ExitCode::SUCCESS;
    }
    let before = settings();
    let ended = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(measured_elsewhere(prepare));
    for (setting, value) in before {
        if fs::read_to_string(&setting).is_ok_and(|now| now != value) {
            eprintln!("{} restored to {}", setting.display(), value.trim());
            fs::write(&setting, value.trim()).unwrap();
        }
    }
    ended
}

async fn measured_elsewhere<T>(prepare: impl FnOnce() -> Result<T, String>) -> ExitCode {
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let [mut interrupted, mut terminated, mut hung_up] = kinds.map(|kind| signal(kind).unwrap());
    let mut ended = signal(SignalKind::child()).unwrap();
    let _prepared = match prepare() {
        Ok(prepared) => prepared,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    // A process group of its own: keys on the terminal reach this process alone.
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(std::env::args_os().skip(1)).env(HAS_RESTORING_PARENT, "1").process_group(0);
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
    // Remaining engines would keep memory, and a loop would never end.
    let _ = kill_process_group(group, Signal::KILL);
    child.wait().unwrap();
    match status {
        Some(0) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// The present values of all settings that a load may change.
fn settings() -> BTreeMap<PathBuf, String> {
    let devices = fs::read_dir("/sys/class/block").into_iter().flatten().flatten();
    let readahead = devices.map(|device| device.path().join("queue/read_ahead_kb"));
    let files = readahead.chain(damon::states()).chain([PathBuf::from(pool::SIZE)]);
    files.filter_map(|file| Some((file.clone(), fs::read_to_string(file).ok()?))).collect()
}
