//! Engines that are stopped in order before the machine is rebooted: real processes, real signals.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::fake_lock::FakeLock;
use super::program::{SOON, World, stage, until, waits_for};
use crate::daemon::Daemon;

const DRAINS: &str = "reboot: {engines: drain}";

/// A process that is an engine by its arguments, and runs a command on SIGTERM.
struct Engine {
    pid: u32,
    ended: Arc<Mutex<Option<Instant>>>,
    reaper: Option<JoinHandle<()>>,
}

impl Engine {
    fn start(world: &World, on_term: &str) -> Self {
        let script = world.path("vllm");
        let signals = world.path("signals").display().to_string();
        let text = format!(
            "trap '{}' TERM\nwhile :; do sleep 0.1; done\n",
            on_term.replace("SIGNALS", &signals)
        );
        fs::write(&script, text).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        let mut command = Command::new("/bin/sh");
        command.arg(&script).args(["serve", "/models/tiny", "--port", "1"]);
        let child = command.spawn().unwrap();
        let pid = child.id();
        symlink(format!("/proc/{pid}"), world.path(&format!("proc/{pid}"))).unwrap();
        let ended = Arc::default();
        let reaper = Some(reap(child, Arc::clone(&ended)));
        Self { pid, ended, reaper }
    }

    fn has_ended(&self) -> bool {
        self.ended.lock().unwrap().is_some()
    }
}

fn reap(mut child: Child, ended: Arc<Mutex<Option<Instant>>>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        child.wait().unwrap();
        *ended.lock().unwrap() = Some(Instant::now());
    })
}

impl Drop for Engine {
    fn drop(&mut self) {
        if !self.has_ended() {
            // It may have ended.
            let _ = Command::new("kill").args(["-KILL", &self.pid.to_string()]).status();
        }
        if let Some(reaper) = self.reaper.take() {
            // A failed thread has reported itself.
            let _ = reaper.join();
        }
    }
}

/// Starts it, and waits until it has found the engine. Its own entry in procfs names the processes
/// that it may not stop.
fn start(world: &World) -> Daemon {
    let daemon = world.start();
    let pid = daemon.pid();
    symlink(format!("/proc/{pid}"), world.path(&format!("proc/{pid}"))).unwrap();
    symlink(pid.to_string(), world.path("proc/self")).unwrap();
    let is_engine = |key: &String| key.contains("engine=\"vllm-1\"");
    until(&daemon, "reporting the process", 15, || daemon.metrics().keys().any(is_engine));
    daemon
}

#[test]
fn an_engine_is_terminated_before_the_machine_is_rebooted() {
    let world = World::new(DRAINS);
    let engine = Engine::start(&world, "echo ended >SIGNALS; exit 0");
    let daemon = start(&world);
    world.ordered(&SOON);
    until(&daemon, "done", 30, || world.bus.reboots() == 1);
    assert!(engine.has_ended());
    assert_eq!(fs::read_to_string(world.path("signals")).unwrap(), "ended\n", "in its own way");
    let expected = ["reboot: done", "stop_engine: done", "perform_reboot: done"];
    until(&daemon, "reported", 10, || world.acts() == expected);
    daemon.terminate();
}

#[test]
fn an_engine_that_does_not_end_in_time_is_killed_and_the_reboot_continues() {
    let world = World::new(DRAINS);
    let engine = Engine::start(&world, "echo TERM >>SIGNALS");
    let daemon = start(&world);
    world.ordered(&SOON);
    until(&daemon, "draining", 20, || stage(&daemon) == "draining");
    let began = Instant::now();
    until(&daemon, "done", 60, || world.bus.reboots() == 1);
    let ended = engine.ended.lock().unwrap().expect("it has ended");
    let took = ended - began;
    assert!(took > Duration::from_secs(15) && took < Duration::from_secs(30), "{took:?}");
    assert_eq!(fs::read_to_string(world.path("signals")).unwrap(), "TERM\n", "once");
    let expected = ["reboot: done", "stop_engine: done", "perform_reboot: done"];
    until(&daemon, "reported", 10, || world.acts() == expected);
    daemon.terminate();
}

#[test]
fn an_engine_that_never_ends_blocks_the_reboot_and_is_named() {
    let world = World::new(DRAINS);
    // It is found, but no such process exists: signals to it do not arrive.
    let folder = world.path("proc/3999999");
    fs::create_dir_all(folder.join("fd")).unwrap();
    let stat = "3999999 (vllm) D 1 1 1 0 -1 4194304 0 0 0 0 10 5 0 0 20 0 1 0 77 1 2 3\n";
    for (name, text) in [
        ("cmdline", "python\0vllm\0serve\0/m\0--port\u{0}1\0"),
        ("cgroup", "0::/system.slice/vllm.service\n"),
        ("status", "RssAnon: 1024 kB\nRssFile: 512 kB\nRssShmem: 0 kB\n"),
        ("io", "rchar: 9\nread_bytes: 4096\n"),
        ("maps", ""),
        ("stat", stat),
    ] {
        fs::write(folder.join(name), text).unwrap();
    }
    let daemon = start(&world);
    world.ordered(&SOON);
    until(&daemon, "held", 60, || waits_for(&daemon).contains("was asked to end 3 times and runs"));
    assert!(waits_for(&daemon).starts_with("engine vllm-1 "), "{}", waits_for(&daemon));
    assert_eq!(stage(&daemon), "waiting");
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(world.bus.reboots(), 0);
    let stops = world.acts().iter().filter(|act| act.starts_with("stop_engine")).count();
    assert_eq!(stops, 3);
    let shown = world.ordered(&["reboot", "--status"]);
    assert!(shown.contains("waits: engine vllm-1 was asked to end 3 times"), "{shown}");
    fs::remove_dir_all(&folder).unwrap();
    until(&daemon, "done", 30, || world.bus.reboots() == 1);
    daemon.terminate();
}

/// For a cluster whose lock has one slot.
fn of_cluster(server: &FakeLock) -> World {
    let lock = format!("{{url: \"{}\", group: gpu, id: this-node}}", server.url());
    World::new(&format!("reboot: {{engines: drain, lock: {lock}}}"))
}

#[test]
fn no_engine_is_terminated_before_the_cluster_grants_its_slot() {
    let server = FakeLock::start(1);
    server.holders().insert("gpu".to_owned(), vec!["other".to_owned()]);
    let world = of_cluster(&server);
    let engine = Engine::start(&world, "echo ended >SIGNALS; exit 0");
    let daemon = start(&world);
    world.ordered(&SOON);
    until(&daemon, "refused", 20, || waits_for(&daemon).contains("has given no slot"));
    std::thread::sleep(Duration::from_secs(3));
    assert!(!engine.has_ended() && !world.path("signals").exists(), "it serves");
    server.holders().get_mut("gpu").unwrap().clear();
    until(&daemon, "done", 60, || world.bus.reboots() == 1);
    assert!(engine.has_ended());
    assert_eq!(server.holders()["gpu"], ["this-node"]);
    let expected = [
        "reboot: done",
        "take_reboot_slot: failed",
        "take_reboot_slot: done",
        "stop_engine: done",
        "take_reboot_slot: done",
        "perform_reboot: done",
    ];
    until(&daemon, "reported", 10, || world.acts() == expected);
    daemon.terminate();
}

#[test]
fn the_slot_of_a_cancelled_reboot_is_released_although_the_daemon_died_meanwhile() {
    let server = FakeLock::start(1);
    let world = of_cluster(&server);
    let engine = Engine::start(&world, "echo TERM >>SIGNALS");
    let daemon = start(&world);
    world.ordered(&SOON);
    until(&daemon, "draining", 20, || stage(&daemon) == "draining");
    assert_eq!(server.holders()["gpu"], ["this-node"]);
    daemon.kill();
    // Its own entry in procfs is another now: every process may be stopped.
    let daemon = world.start();
    until(&daemon, "requested again", 20, || server.requests().len() >= 2);
    world.ordered(&["reboot", "--cancel", "--why=not now"]);
    until(&daemon, "released", 20, || server.holders()["gpu"].is_empty());
    assert_eq!(server.requests().last().unwrap().path, "/v1/steady-state");
    until(&daemon, "known", 10, || stage(&daemon) == "none");
    assert_eq!(world.bus.reboots(), 0);
    assert!(!engine.has_ended());
    daemon.terminate();
}
