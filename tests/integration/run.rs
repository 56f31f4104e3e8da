//! `umawarden run` from outside, on fixture trees and kernel logs of the tests.

mod acting;
mod alertmanager;
mod announced;
mod black_box;
pub mod brake;
mod empty_cache;
mod engines;
mod environment;
mod idle;
mod idle_clients;
mod kernel_log;
mod kill_nine;
mod ladder;
mod node;
mod nvsentinel;
mod operator;
mod otlp;
mod priority;
mod promote;
mod query;
mod reload;
mod restarts;
mod sampling;
mod signals;
mod start;
mod storage;
mod temporary;

use std::fs;
use std::path::{Path, PathBuf};

use crate::daemon::Daemon;

/// A node of its own: proc tree, kernel log, rules and journal in a folder.
pub struct Node {
    folder: tempfile::TempDir,
}

impl Node {
    /// A copy of that fixture, with an empty kernel log, no rules, and the files that actions
    /// write.
    pub fn new(fixture: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/proc").join(fixture);
        copy(&root, folder.path());
        let node = Self { folder };
        fs::create_dir_all(node.path("sys")).unwrap();
        fs::write(node.drop_caches(), "").unwrap();
        fs::write(node.path("proc/sys/vm/compact_memory"), "").unwrap();
        fs::write(node.path("kmsg"), "").unwrap();
        node.write_rules("groups: []\n");
        node
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn storage(&self) -> PathBuf {
        self.path("data")
    }

    fn drop_caches(&self) -> PathBuf {
        self.path("proc/sys/vm/drop_caches")
    }

    pub fn write_rules(&self, text: &str) {
        fs::write(self.path("rules.yaml"), text).unwrap();
    }

    /// Arguments for everything but the journal and the address.
    pub fn arguments(&self) -> Vec<String> {
        let flag = |flag: &str, name: &str| format!("--{flag}={}", self.path(name).display());
        vec![
            flag("path.procfs", "proc"),
            flag("path.sysfs", "sys"),
            flag("path.kmsg", "kmsg"),
            flag("rules", "rules.yaml"),
        ]
    }

    fn start(&self, more: &[&str]) -> Daemon {
        self.start_with_storage(&self.storage(), more)
    }

    fn start_with_storage(&self, storage: &Path, more: &[&str]) -> Daemon {
        let own = self.arguments();
        let arguments: Vec<&str> = own.iter().map(String::as_str).chain(more.to_vec()).collect();
        Daemon::start(storage, &arguments)
    }

    /// Changes a field of meminfo.
    pub fn set_meminfo(&self, field: &str, kib: u64) {
        let file = self.path("proc/meminfo");
        let text = fs::read_to_string(&file).unwrap();
        let lines = text.lines().map(|line| match line.split(':').next() {
            Some(name) if name == field => format!("{field}: {kib} kB\n"),
            _ => format!("{line}\n"),
        });
        replace(&file, &lines.collect::<String>());
    }
}

/// Replaces a file atomically, as a kernel's file changes.
fn replace(file: &Path, text: &str) {
    let new = file.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(new, file).unwrap();
}

fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            fs::create_dir_all(&target).unwrap();
            copy(&entry.path(), &target);
        } else {
            fs::write(target, fs::read(entry.path()).unwrap()).unwrap();
        }
    }
}

fn make_fifo(path: &Path) {
    // It may be absent.
    let _ = fs::remove_file(path);
    let status = std::process::Command::new("mkfifo").arg(path).status().unwrap();
    assert!(status.success());
}

/// A kernel record, in the form of /dev/kmsg.
fn record(seq: u64, text: &str) -> String {
    format!("4,{seq},{},-;{text}\n", seq * 1000)
}

const XID: &str = "NVRM: Xid (PCI:000f:01:00): 31, pid=7, name=VLLM::EngineCor, Ch 00000008";
const XIDS: &str = "uma_kernel_events_total{event=\"xid\"}";

/// A rule that always fires and whose aim is never met.
const ALWAYS: &str = "
groups:
- name: g
  rules:
  - alert: Always
    expr: uma_memory_free_bytes >= 0
    labels: {severity: warning}
    remedy:
      aim: uma_memory_free_bytes < 0
      steps:
      - drop_caches: {what: pagecache}
      - compact_memory: {}
      cooldown: 1h
";

fn outcomes(action: &str, outcome: &str) -> String {
    format!("uma_actions_total{{action=\"{action}\",outcome=\"{outcome}\"}}")
}
