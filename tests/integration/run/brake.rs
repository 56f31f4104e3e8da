//! Memory collapses on a node of the test, and a real process is stopped.

use std::os::unix::fs::{FileTypeExt as _, symlink};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::Node;
use crate::daemon::{Daemon, history, of_kind};

pub const GIB: u64 = 1 << 20;

/// Text in the command lines of the engine's processes, and of no other process.
pub const ENGINE: &str = "86399.125";

/// A process that is killed when the test ends, if not before.
pub struct Process(pub Child);

impl Process {
    fn sleeping(name: &str) -> Self {
        Self(Command::new("sleep").arg(name).stdin(Stdio::null()).spawn().unwrap())
    }

    /// A process that uses some processor time, as an engine that takes memory does.
    fn working(name: &str) -> Self {
        Self::working_as(Command::new("sh"), name)
    }

    /// The same by a command that runs `sh`.
    pub fn working_as(mut shell: Command, name: &str) -> Self {
        let script =
            "while :; do i=0; while [ $i -lt 2000 ]; do i=$((i+1)); done; sleep 0.05; done";
        shell.args(["-c", script, name]).stdin(Stdio::null());
        Self(shell.spawn().unwrap())
    }

    pub fn signal(&mut self) -> Option<i32> {
        self.0.try_wait().unwrap().and_then(|status| status.signal())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Node {
    /// Adds a real process to this node.
    pub fn adopt(&self, pid: u32) {
        let pid = pid.to_string();
        symlink(format!("/proc/{pid}"), self.path("proc").join(pid)).unwrap();
    }

    /// The same with the driver open: its descriptors name the device.
    pub fn adopt_user(&self, pid: u32) {
        let own = self.path("proc").join(pid.to_string());
        std::fs::create_dir(&own).unwrap();
        for entry in std::fs::read_dir(format!("/proc/{pid}")).unwrap().flatten() {
            if entry.file_name() != "fd" {
                symlink(entry.path(), own.join(entry.file_name())).unwrap();
            }
        }
        std::fs::create_dir(own.join("fd")).unwrap();
        symlink("/dev/nvidia0", own.join("fd/3")).unwrap();
    }

    /// An idle machine of 121 GiB with the shipped rules and an engine that is declared.
    fn with_engine(mode: &str, engine: &Process, other: &Process) -> (Self, Daemon) {
        let node = Self::new("gb10-4k");
        let daemon = node.start_with_engine(mode, engine, other, &[]);
        (node, daemon)
    }

    /// The same on an existing node; optionally with these files instead of the shipped rules.
    fn start_with_engine(
        &self,
        mode: &str,
        engine: &Process,
        other: &Process,
        rules: &[&str],
    ) -> Daemon {
        let node = self;
        let declared = format!("engines: [{{name: loads, match: {{cmdline: \"*{ENGINE}\"}}}}]\n");
        std::fs::write(node.path("umawarden.yaml"), format!("mode: {mode}\n{declared}")).unwrap();
        node.set_meminfo("Cached", 4 * GIB);
        node.leave(16 * GIB);
        node.adopt_user(engine.0.id());
        node.adopt(other.0.id());
        let mut arguments = node.arguments();
        arguments.retain(|argument| !argument.starts_with("--rules"));
        arguments.extend(rules.iter().map(|path| format!("--rules={path}")));
        arguments.push(format!("--config.file={}", node.path("umawarden.yaml").display()));
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let daemon = Daemon::start(&node.storage(), &arguments);
        // The scanning process is one of them.
        symlink(daemon.pid().to_string(), node.path("proc/self")).unwrap();
        node.adopt(daemon.pid());
        daemon.wait_until("reporting the engine", |daemon| {
            daemon.metrics().contains_key("uma_engine_growth_bytes{engine=\"loads\"}")
        });
        daemon
    }

    pub fn leave(&self, free_kib: u64) {
        self.set_meminfo("MemFree", free_kib);
        self.set_meminfo("MemAvailable", free_kib + GIB / 2);
    }

    /// Available memory falls by 8 GiB a second, down to that.
    pub fn collapse(&self, to_kib: u64) {
        let began = Instant::now();
        loop {
            let taken = (began.elapsed().as_secs_f64() * 8.0 * GIB as f64) as u64;
            let free = (16 * GIB).saturating_sub(taken).max(to_kib);
            self.leave(free);
            if free == to_kib {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn decisions(node: &Node) -> Vec<serde_json::Value> {
    let all = history(&node.storage());
    let decisions = of_kind(&all, "decision");
    decisions.filter(|decision| decision["rule"]["alert"] == "MemoryCollapse").cloned().collect()
}

#[test]
fn the_growing_engine_alone_is_stopped_when_memory_collapses() {
    let (mut engine, mut other) = (Process::working(ENGINE), Process::sleeping("86399.25"));
    let (node, daemon) = Node::with_engine("enforce", &engine, &other);
    node.collapse(GIB);
    let deadline = Instant::now() + Duration::from_secs(20);
    while engine.signal().is_none() {
        assert!(Instant::now() < deadline, "{}", daemon.log());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(engine.signal(), Some(9));
    daemon.wait_until("done", |daemon| {
        daemon.count("uma_actions_total{action=\"stop_engine\",outcome=\"done\"}") == 1.0
    });
    assert!(other.0.try_wait().unwrap().is_none(), "the other one goes on");
    daemon.terminate();
    let stops = decisions(&node);
    let stop = stops.iter().find(|decision| decision["decision"] == "act").unwrap();
    assert!(stop.to_string().contains("\"loads\""), "{stop}");
}

#[test]
fn a_short_dip_stops_no_engine() {
    let (mut engine, other) = (Process::working(ENGINE), Process::sleeping("86399.25"));
    let (node, daemon) = Node::with_engine("enforce", &engine, &other);
    node.collapse(4 * GIB);
    std::thread::sleep(Duration::from_millis(500));
    node.leave(16 * GIB);
    std::thread::sleep(Duration::from_millis(500));
    assert!(engine.0.try_wait().unwrap().is_none(), "{}", daemon.log());
    daemon.terminate();
    assert!(decisions(&node).is_empty(), "{:?}", decisions(&node));
    assert_eq!(engine.signal(), None);
}

#[test]
fn observe_mode_reports_the_engine_that_it_would_stop() {
    let (mut engine, other) = (Process::working(ENGINE), Process::sleeping("86399.25"));
    let (node, daemon) = Node::with_engine("observe", &engine, &other);
    node.collapse(GIB);
    daemon.wait_until("reported", |daemon| {
        daemon.count("uma_actions_total{action=\"stop_engine\",outcome=\"skipped\"}") >= 1.0
    });
    daemon.terminate();
    assert!(decisions(&node)[0].to_string().contains("\"loads\""));
    assert_eq!(engine.signal(), None);
}

/// Drops the page cache long before the brake is needed.
const EARLY: &str = "
groups:
- name: early
  interval: 20ms
  rules:
  - alert: Early
    expr: uma_memory_free_bytes < 14 * 1024^3
    remedy: {steps: [{drop_caches: {}}], cooldown: 1h}
";

#[test]
fn a_hanging_cache_drop_delays_neither_the_brake_nor_the_loop_nor_the_shutdown() {
    let (mut engine, mut other) = (Process::working(ENGINE), Process::sleeping("86399.25"));
    let node = Node::new("gb10-4k");
    // Opening a pipe for writing waits for a reader, and none comes.
    std::fs::remove_file(node.drop_caches()).unwrap();
    assert!(Command::new("mkfifo").arg(node.drop_caches()).status().unwrap().success());
    node.write_rules(EARLY);
    let early = node.path("rules.yaml").display().to_string();
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/rules/memory.yaml");
    let daemon = node.start_with_engine("enforce", &engine, &other, &[&early, shipped]);
    node.collapse(GIB);
    let collapsed = Instant::now();
    while engine.signal().is_none() {
        assert!(collapsed.elapsed() < Duration::from_secs(5), "{}", daemon.log());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(engine.signal(), Some(9));
    daemon.wait_until("done", |daemon| {
        daemon.count("uma_actions_total{action=\"stop_engine\",outcome=\"done\"}") == 1.0
    });
    // The drop still hangs, and the loop continues: it reads the new files.
    assert_eq!(daemon.count("uma_actions_total{action=\"drop_caches\",outcome=\"done\"}"), 0.0);
    node.leave(17 * GIB);
    daemon.wait_until("sampling", |daemon| {
        daemon.metric("uma_memory_free_bytes") == (17 * GIB * 1024) as f64
    });
    assert!(std::fs::metadata(node.drop_caches()).unwrap().file_type().is_fifo());
    assert!(other.0.try_wait().unwrap().is_none(), "the other one goes on");
    // 0.9 s for the work under way; nothing that can be undone is waited for.
    let (took, log) = daemon.terminate();
    assert!(took < Duration::from_secs(5), "{took:?}\n{log}");
    let all = history(&node.storage());
    let ended: Vec<_> = of_kind(&all, "outcome").map(ToString::to_string).collect();
    let of = |action: &str, result: &str| {
        ended.iter().any(|text| text.contains(action) && text.contains(result))
    };
    assert!(of("\"drop_caches\"", "timed_out") && of("\"stop_engine\"", "done"), "{ended:#?}");
}
