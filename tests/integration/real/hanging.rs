//! A process of user `nobody` whose command line blocks every reader, through its own file system.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use super::enabled;
use crate::daemon::Daemon;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/integration/real/hanging.py");
const NOBODY: u32 = 65_534;

/// The process and its starter; both end when this is dropped.
struct Hanging {
    starter: Child,
    pid: u32,
}

impl Hanging {
    fn start(folder: &Path) -> Self {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
        let (device, mount) = (folder.join("fuse"), folder.join("mount"));
        // As udev makes it: for all users.
        let mode = Mode::from_raw_mode(0o666);
        mknodat(CWD, &device, FileType::CharacterDevice, mode, makedev(10, 229)).unwrap();
        fs::set_permissions(&device, fs::Permissions::from_mode(0o666)).unwrap();
        fs::create_dir(&mount).unwrap();
        chown(&mount, Some(NOBODY), Some(NOBODY)).unwrap();
        fs::copy(SCRIPT, folder.join("hanging.py")).unwrap();
        let mut starter = Command::new("setpriv")
            .args([&format!("--reuid={NOBODY}"), &format!("--regid={NOBODY}"), "--clear-groups"])
            .args(["unshare", "--user", "--map-root-user", "--mount", "/usr/bin/python3"])
            .args([&folder.join("hanging.py"), &device, &mount])
            .arg("vllm")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(starter.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let pid = line.trim().parse().expect("it has started");
        Self { starter, pid }
    }

    /// Whether a reader of its command line hangs, which this test needs.
    fn hangs(&self) -> bool {
        let line = format!("/proc/{}/cmdline", self.pid);
        let read = Command::new("timeout").args(["1", "cat", &line]).stdout(Stdio::null()).status();
        read.unwrap().code() == Some(124)
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        drop(self.starter.stdin.take());
        // It may be reaped already.
        let _ = self.starter.wait();
    }
}

#[test]
fn an_unreadable_process_is_skipped_and_delays_no_shutdown() {
    if !enabled() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let hanging = Hanging::start(folder.path());
    assert!(hanging.hangs());
    let daemon = Daemon::start(&folder.path().join("data"), &[]);
    daemon.wait_until("reporting the process", |daemon| {
        daemon.metrics().get("uma_engine_scan_silent_processes") == Some(&1.0)
    });
    let field = format!("pid={}", hanging.pid);
    assert!(daemon.log().lines().any(|line| line.contains(&field) && line.contains("uid=65534")));
    // A scan that takes 10 s counts as a failed source.
    let until = Instant::now() + Duration::from_secs(15);
    while Instant::now() < until {
        assert_eq!(
            daemon.metric("uma_scrape_collector_success{collector=\"engines\"}"),
            1.0,
            "{}",
            daemon.log()
        );
        assert_eq!(
            daemon.metric("uma_scrape_collector_success{collector=\"holders\"}"),
            1.0,
            "{}",
            daemon.log()
        );
        std::thread::sleep(Duration::from_millis(500));
    }
    assert!(hanging.hangs(), "it hangs still");
    let (took, _) = daemon.terminate();
    assert!(took < Duration::from_secs(3), "{took:?}");
}
