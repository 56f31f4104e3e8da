//! Tests on the real kernel, with real Docker and Prometheus. They run as root when
//! `UMAWARDEN_REAL` is set, one test at a time, but for [`servers`]; `tests/run` ensures both.

mod bare;
mod black_box;
mod containers;
#[path = "../../bench/load/damon.rs"]
mod damon;
mod docker;
mod doctor;
mod flood;
mod forged;
mod gate;
mod hanging;
mod hogs;
mod identity;
mod installed;
mod kill_nine;
mod killed_reader;
mod kubernetes;
mod launch;
mod leak;
mod leased;
mod mapped;
mod oom;
mod overlay;
mod page;
mod page_cache;
mod podman;
mod pods;
mod prefetch;
mod pressure;
mod restarts;
mod rootless;
mod servers;
mod services;
mod settings;
mod shutdown;
mod starvation;
mod stop;
mod top;
mod verdict;

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::dice::is_nightly;

/// Whether these tests run; prints a note if not.
fn enabled() -> bool {
    let enabled = std::env::var_os("UMAWARDEN_REAL").is_some();
    if !enabled {
        eprintln!("skipped: touches the real kernel; the test command tests/run runs it");
    }
    enabled
}

/// Whether those of them run that wait for minutes; prints a note if not.
fn enabled_nightly() -> bool {
    enabled() && {
        if !is_nightly() {
            eprintln!("skipped: waits for minutes; tests/soak runs it");
        }
        is_nightly()
    }
}

/// A program that a test has started; killed when dropped.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A memory cgroup with a limit, on cgroup v1 or v2; removed when dropped.
struct LimitedCgroup {
    folder: PathBuf,
}

impl LimitedCgroup {
    fn new(name: &str, limit_bytes: u64) -> Self {
        let v1 = Path::new("/sys/fs/cgroup/memory");
        let root = if v1.is_dir() { v1 } else { Path::new("/sys/fs/cgroup") };
        let folder = root.join(format!("umawarden-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let limit = if v1.is_dir() { "memory.limit_in_bytes" } else { "memory.max" };
        fs::write(folder.join(limit), limit_bytes.to_string()).unwrap();
        Self { folder }
    }

    /// The path that the kernel prints.
    fn path(&self) -> String {
        format!("/{}", self.folder.file_name().unwrap().to_string_lossy())
    }

    /// Starts a command inside.
    fn spawn(&self, program: &str, arguments: &[&str]) -> Child {
        let procs = self.folder.join("cgroup.procs");
        let script = format!("echo $$ >{} && exec \"$0\" \"$@\"", procs.display());
        Command::new("/bin/sh")
            .arg0("sh")
            .args(["-c", &script, program])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// Has the limit kill a process, and returns its pid.
    fn oom_kill(&self) -> u32 {
        let mut child = self.spawn("tail", &["/dev/zero"]);
        let pid = child.id();
        let status = child.wait().unwrap();
        assert!(!status.success(), "the limit did not kill it");
        pid
    }
}

impl Drop for LimitedCgroup {
    fn drop(&mut self) {
        // A process that is still being torn down keeps the folder busy for a moment.
        for _ in 0..100 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}
