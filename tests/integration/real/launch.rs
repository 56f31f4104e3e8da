//! A launched command that the kernel kills for memory.

use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::{LimitedCgroup, enabled};
use crate::daemon::binary;

/// The limit kills one of its processes, and the parent reports success.
#[test]
fn an_oom_killed_worker_is_reported_with_its_control_group() {
    if !enabled() {
        return;
    }
    let storage = tempfile::tempdir().unwrap();
    let cgroup = LimitedCgroup::new("launch", 30 << 20);
    // Only the worker enters the group, as in a container of its own.
    let script = format!(
        "sh -c 'echo $$ >{}/cgroup.procs; sleep 0.5; exec tail /dev/zero'; sleep 0.2; exit 0",
        cgroup.folder.display()
    );
    let launch = || {
        let output = Command::new(binary())
            .args(["launch", "--json", "--name", "chat", "--storage.path"])
            .arg(storage.path())
            .args(["--", "sh", "-c", &script])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let complained = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(79), "{complained}");
        let report = complained.lines().find_map(|line| serde_json::from_str(line).ok());
        report.unwrap()
    };
    let mut report: Value = launch();
    // Of more than ten kills in 5 s the kernel prints only the last line (oom_kill_process).
    for _ in 0..3 {
        if report["killer"]["cgroup"].is_null() {
            std::thread::sleep(Duration::from_secs(6));
            report = launch();
        }
    }
    let killer = &report["killer"];
    assert_eq!(killer["by"], "kernel_oom", "{report:#}");
    assert_eq!(killer["constraint"], "memcg", "{report:#}");
    assert_eq!(killer["cgroup"], cgroup.path(), "{report:#}");
    assert_eq!(report["killed_workers"][0]["comm"], "tail", "{report:#}");
    let proof = &report["proofs"][0]["event"];
    assert_eq!(proof["kind"], "oom_kill", "{report:#}");
    assert_eq!(proof["pid"], report["killed_workers"][0]["pid"], "{report:#}");
    assert_eq!(report["exit"]["code"], 0);
}

/// As under `docker exec`: the session leader has no number in the namespace.
#[test]
fn signals_are_passed_on_with_a_session_leader_in_another_pid_namespace() {
    if !enabled() {
        return;
    }
    let storage = tempfile::tempdir().unwrap();
    let script = format!(
        "{} launch --json --storage.path {} -- sleep 1000 & \
         while ! pgrep -x sleep >/dev/null; do :; done; kill -TERM $!; wait $!",
        binary().display(),
        storage.path().display()
    );
    let output = Command::new("unshare")
        .args(["--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", &script])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let complained = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(143), "{complained}");
    assert!(complained.contains("by way of umawarden launch"), "{complained}");
}
