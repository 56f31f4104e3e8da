//! The whole program, from an order or an alert to the next boot: a fake `/proc` gives the boot,
//! and the services that reboot are fake too.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use umawarden::model::Reading;
use umawarden::parse::proc::derived::unaccounted;
use umawarden::parse::proc::meminfo::Meminfo;

use super::fake_bus::{FakeBus, Session};
use super::fake_lock::FakeLock;
use super::logged_in::terminal;
use crate::daemon::{Daemon, binary, history, of_kind, once_journalled};
use crate::run::Node;

const BOOTS: [&str; 2] =
    ["11111111-2222-3333-4444-555555555555", "99999999-2222-3333-4444-555555555555"];

/// This machine may be younger than `reboot.minimum_uptime`, and that is not tested here.
pub(super) const SOON: [&str; 6] =
    ["reboot", "--why", "33 GiB are leaked", "--delay=1s", "--force", "uptime"];

/// A node that could be rebooted, if it were one.
pub(super) struct World {
    pub(super) node: Node,
    pub(super) bus: FakeBus,
}

impl World {
    pub(super) fn new(config: &str) -> Self {
        let node = Node::new("gb10-4k");
        // Its memory is fine.
        let meminfo = fs::read_to_string(node.path("proc/meminfo")).unwrap();
        let parsed = Meminfo::parse(meminfo.as_bytes()).unwrap();
        let Reading::Value(unaccounted_bytes) = unaccounted(&parsed, Reading::Unsupported) else {
            panic!()
        };
        let free = meminfo.lines().find(|line| line.starts_with("MemFree:")).unwrap();
        let kib: i64 = free.split_whitespace().nth(1).unwrap().parse().unwrap();
        let calm = format!("MemFree: {} kB", kib + unaccounted_bytes / 1024);
        fs::write(node.path("proc/meminfo"), meminfo.replace(free, &calm)).unwrap();
        fs::create_dir_all(node.path("proc/sys/kernel/random")).unwrap();
        fs::write(node.path("proc/sysrq-trigger"), "").unwrap();
        // Without visible processes the engines would be unknown.
        let own = std::process::id();
        symlink(format!("/proc/{own}"), node.path(&format!("proc/{own}"))).unwrap();
        fs::write(node.path("umawarden.yaml"), config).unwrap();
        let world = Self { bus: FakeBus::start(&node.path("bus")), node };
        world.boots(BOOTS[0]);
        world
    }

    /// Sets the boot id and clears the kernel log.
    fn boots(&self, boot_id: &str) {
        fs::write(self.node.path("proc/sys/kernel/random/boot_id"), format!("{boot_id}\n"))
            .unwrap();
        fs::write(self.node.path("kmsg"), "").unwrap();
    }

    pub(super) fn start(&self) -> Daemon {
        let mut command = Command::new(binary());
        command
            .args(["run", "--mode=enforce", "--web.listen-address", "127.0.0.1:0"])
            .arg(format!("--config.file={}", self.node.path("umawarden.yaml").display()))
            .arg(format!("--storage.path={}", self.node.storage().display()))
            .args(["--gpu.interval=off"])
            .args(self.node.arguments())
            .env("DBUS_SYSTEM_BUS_ADDRESS", format!("unix:path={}", self.path("bus").display()));
        let daemon = Daemon::from_command(&mut command);
        daemon.wait_until("ready", |daemon| daemon.get("/-/ready").0 == 200);
        daemon
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.node.path(name)
    }

    /// An order: its exit code and its output.
    pub(super) fn order(&self, arguments: &[&str]) -> (i32, String) {
        let output = Command::new(binary())
            .args(arguments)
            .arg(format!("--storage.path={}", self.node.storage().display()))
            .output()
            .unwrap();
        let printed = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap(), String::from_utf8_lossy(&printed).into_owned())
    }

    /// An order that must succeed, once it is known that no engine runs.
    pub(super) fn ordered(&self, arguments: &[&str]) -> String {
        let deadline = Instant::now() + Duration::from_secs(15);
        loop {
            let (code, printed) = self.order(arguments);
            if code == 0 {
                return printed;
            }
            let is_new = printed.contains("it is not known whether an engine runs");
            assert!(is_new && Instant::now() < deadline, "{arguments:?}: {printed}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Acts in the journal, `action: result`, oldest first.
    pub(super) fn acts(&self) -> Vec<String> {
        let entries = history(&self.node.storage());
        let mut acts: Vec<&Value> = of_kind(&entries, "outcome").collect();
        acts.sort_by_key(|outcome| outcome["decision"].as_u64());
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        acts.iter()
            .map(|act| format!("{}: {}", text(&act["action"]), text(&act["result"])))
            .collect()
    }

    /// The kernel's report of a stuck driver.
    fn wedges(&self) {
        // The kernel names a thread of its own, which waits by /proc (PF_KTHREAD, state D).
        let zeros = " 0".repeat(30);
        let stat = format!("374 (nvidia-modeset) D 2 0 0 0 -1 2129984{zeros}\n");
        fs::create_dir_all(self.path("proc/374")).unwrap();
        fs::write(self.path("proc/374/stat"), stat).unwrap();
        let mut kmsg = File::options().append(true).open(self.path("kmsg")).unwrap();
        let lines = "4,1,1000,-;NVRM: Xid (PCI:000f:01:00): 79, pid='<unknown>', name=<unknown>, \
                     GPU has fallen off the bus.\n3,2,2000,-;INFO: task nvidia-modeset:374 blocked \
                     for more than 122 seconds.\n";
        kmsg.write_all(lines.as_bytes()).unwrap();
    }
}

pub(super) fn status(daemon: &Daemon) -> Value {
    let (code, body) = daemon.get("/api/v1/reboot");
    let body: Value = serde_json::from_str(&body).unwrap_or_default();
    if code == 200 { body["data"]["reboot"].clone() } else { Value::Null }
}

pub(super) fn stage(daemon: &Daemon) -> String {
    status(daemon)["stage"].as_str().unwrap_or_default().to_owned()
}

pub(super) fn waits_for(daemon: &Daemon) -> String {
    status(daemon)["waits_for"].as_str().unwrap_or_default().to_owned()
}

/// Waits longer than others: a lock is requested again after 30 s, and sysrq comes after a minute.
pub(super) fn until(daemon: &Daemon, what: &str, seconds: u64, mut is_so: impl FnMut() -> bool) {
    // Other tests may keep the machine busy.
    let seconds = seconds.max(60);
    let deadline = Instant::now() + Duration::from_secs(seconds);
    while !is_so() {
        let (now, log) = (status(daemon), daemon.log());
        assert!(Instant::now() < deadline, "not {what} in {seconds} s: {now:#}\n{log}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

const DUE: &str = "uma_reboot_scheduled_timestamp_seconds";

#[test]
fn a_scheduled_reboot_is_shown_everywhere_and_can_be_cancelled() {
    let world = World::new("");
    let (master, terminal) = terminal();
    world.bus.state().sessions = vec![Session::at("anna", &terminal)];
    let daemon = world.start();
    assert!(!daemon.metrics().contains_key(DUE));
    let order = ["reboot", "--why=33 GiB are leaked", "--delay=3s", "--force=uptime"];
    world.ordered(&order);
    until(&daemon, "scheduled", 10, || stage(&daemon) == "scheduled");
    let due = daemon.metric(DUE);
    let now = jiff::Timestamp::now().as_second() as f64;
    assert!((due - now).abs() < 10.0, "{due} {now}");
    let response = status(&daemon);
    assert!(!response.to_string().contains("nanos"), "{response:#}");
    assert_eq!(
        (&response["budget"][0]["per_seconds"], response["budget"][0]["left"].as_u64()),
        (&serde_json::json!(21_600.0), Some(1))
    );
    let plan = &response["scheduled"]["plan"];
    let shown_due: jiff::Timestamp = plan["due"].as_str().unwrap().parse().unwrap();
    assert_eq!(shown_due.as_millisecond() / 10, (due * 100.0) as i64);
    assert!(plan["due_uptime_seconds"].as_f64().is_some_and(|due| due > 0.0), "{plan}");
    let (_, shown) = world.order(&["reboot", "--status", "--json"]);
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["budget"], response["budget"]);
    let shown = world.ordered(&["reboot", "--status"]);
    assert!(shown.contains("a reboot is scheduled") && shown.contains("33 GiB"), "{shown}");
    assert_eq!(world.order(&order).0, 1, "there is one already");
    world.ordered(&["reboot", "--cancel", "--why=not now"]);
    until(&daemon, "cancelled", 10, || stage(&daemon) == "none");
    until(&daemon, "no due time", 10, || !daemon.metrics().contains_key(DUE));
    assert!(status(&daemon)["called_off"].as_str().unwrap().contains("not now"));
    assert_eq!(world.order(&["reboot", "--cancel"]).0, 1, "nothing is scheduled");
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(world.bus.reboots(), 0);
    until(&daemon, "reported", 10, || world.acts().len() == 2);
    assert_eq!(world.acts(), ["reboot: done", "call_off_reboot: done"]);
    let mut bytes = [0; 4096];
    let length = File::from(master).read(&mut bytes).unwrap();
    let message = String::from_utf8_lossy(&bytes[..length]).into_owned();
    assert!(message.contains("umawarden will reboot this machine at"), "{message}");
    assert!(message.contains("does not reboot this machine after all"), "{message}");
    daemon.terminate();
}

fn a_scheduled_reboot_survives_a_restart_of_the_daemon_and_is_assessed_in_the_next_boot() {
    let world = World::new("reboot: {check_after: 10s, at_most: {times: 1, per: 7d}}");
    let daemon = world.start();
    let order = ["reboot", "--why=33 GiB are leaked", "--delay=4s", "--force=uptime"];
    world.ordered(&order);
    // The outcome is on disk a moment later.
    until(&daemon, "scheduled", 10, || world.acts() == ["reboot: done"]);
    assert_eq!(stage(&daemon), "scheduled");
    daemon.kill();
    let daemon = world.start();
    assert_eq!(stage(&daemon), "scheduled");
    until(&daemon, "handed over", 20, || stage(&daemon) == "handed_over");
    assert_eq!(world.bus.reboots(), 1);
    until(&daemon, "done", 10, || world.acts() == ["reboot: done", "perform_reboot: done"]);
    assert_eq!(daemon.metric("uma_reboot_budget_left"), 0.0);
    let entries = history(&world.node.storage());
    let act =
        of_kind(&entries, "outcome").find(|entry| entry["action"] == "perform_reboot").unwrap();
    assert_eq!(act["effect"], "logind reboots the machine");
    // The machine goes down.
    daemon.kill();
    world.boots(BOOTS[1]);
    let daemon = world.start();
    let helped = "uma_reboots_total{result=\"helped\"}";
    until(&daemon, "assessed", 100, || daemon.metric(helped) == 1.0);
    let checked = once_journalled(&world.node.storage(), "reboot_checked");
    assert_eq!((checked.len(), &checked[0]["result"]), (1, &"helped".into()));
    assert_eq!(checked[0]["ended_boot_id"], BOOTS[0]);
    // It is neither repeated nor scheduled soon.
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!((world.bus.reboots(), &*stage(&daemon)), (1, "none"));
    let (code, printed) = world.order(&SOON);
    assert_eq!(code, 1, "{printed}");
    assert!(
        printed.contains("at_most is used up") && printed.contains("--force budget"),
        "{printed}"
    );
    daemon.terminate();
}

#[test]
fn a_reboot_begun_before_the_daemon_died_counts_and_is_not_repeated() {
    let world = World::new("reboot: {at_most: {times: 1, per: 7d}}");
    world.bus.state().hangs.insert("CanReboot");
    let daemon = world.start();
    world.ordered(&SOON);
    let is_called = || world.bus.calls().iter().any(|call| call == "logind.CanReboot");
    until(&daemon, "called", 20, is_called);
    // Its intent is on disk; logind got no request.
    daemon.kill();
    world.bus.state().hangs.clear();
    assert_eq!(world.acts(), ["reboot: done"]);
    let daemon = world.start();
    let left = || daemon.metrics().get("uma_reboot_budget_left").copied();
    until(&daemon, "counted", 10, || left() == Some(0.0));
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(world.bus.reboots(), 0, "and is not done by itself");
    assert_eq!(world.order(&SOON).0, 1);
    daemon.terminate();
}

#[test]
fn a_reboot_waits_for_logged_in_users_and_while_they_are_unknown() {
    let world = World::new("");
    world.bus.state().sessions = vec![Session::at("anna", "pts/4000000")];
    let daemon = world.start();
    world.ordered(&SOON);
    until(&daemon, "held", 20, || waits_for(&daemon).contains("logged in: anna on pts/4000000"));
    assert_eq!(stage(&daemon), "waiting");
    world.bus.state().hangs.insert("ListSessions");
    world.bus.state().sessions.clear();
    until(&daemon, "waiting for the users", 30, || waits_for(&daemon).contains("has not answered"));
    assert_eq!(world.bus.reboots(), 0);
    world.bus.state().hangs.clear();
    until(&daemon, "done", 30, || world.bus.reboots() == 1);
    let metrics = daemon.metrics();
    assert!(metrics.keys().all(|series| !series.contains("anna")), "no names of people");
    daemon.terminate();
}

fn a_reboot_waits_for_the_clusters_slot_and_releases_it_when_the_node_is_well() {
    let server = FakeLock::start(1);
    server.holders().insert("gpu".to_owned(), vec!["other".to_owned()]);
    let lock = format!("{{url: \"{}\", group: gpu, id: this-node}}", server.url());
    let world = World::new(&format!("reboot: {{check_after: 10s, lock: {lock}}}"));
    let daemon = world.start();
    world.ordered(&SOON);
    until(&daemon, "refused", 20, || {
        waits_for(&daemon).contains("the cluster's lock has given no slot: the lock server refuses")
    });
    server.holders().get_mut("gpu").unwrap().clear();
    until(&daemon, "done", 60, || world.bus.reboots() == 1);
    assert_eq!(server.holders()["gpu"], ["this-node"]);
    until(&daemon, "handed over", 10, || stage(&daemon) == "handed_over");
    daemon.kill();
    // The slot is not released in the same boot.
    let daemon = world.start();
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(server.holders()["gpu"], ["this-node"]);
    daemon.kill();
    world.boots(BOOTS[1]);
    let daemon = world.start();
    until(&daemon, "released", 100, || server.holders()["gpu"].is_empty());
    until(&daemon, "known", 10, || status(&daemon)["holds_slot"] == false);
    daemon.terminate();
}

/// A stuck driver leads to a reboot by rule.
const WEDGED: &str = "
groups:
- name: leak
  interval: 1s
  rules:
  - alert: DriverWedged
    expr: uma_memory_verdict{verdict=\"wedged\"} == 1
    remedy:
      steps:
      - reboot: {why: the driver is stuck}
      cooldown: 1h
";

/// Uptime in minutes that a rule must wait for on this machine.
fn is_too_young() -> bool {
    let text = fs::read_to_string("/proc/uptime").unwrap();
    let uptime: f64 = text.split(' ').next().unwrap().parse().unwrap();
    if uptime < 330.0 {
        eprintln!("SKIPPED: this machine has booted less than reboot.minimum_uptime ago");
    }
    uptime < 330.0
}

fn a_rule_reboots_by_the_kernel_where_allowed_and_the_orderly_way_hangs() {
    if is_too_young() {
        return;
    }
    let world = World::new(
        "reboot: {delay: 10s, minimum_uptime: 5m, sysrq: allowed, sysrq_after: 1m, \
         check_after: 10s, at_most: {times: 3, per: 7d}}",
    );
    world.node.write_rules(WEDGED);
    world.bus.state().hangs.insert("Reboot");
    let daemon = world.start();
    daemon.wait_until("clean", |daemon| {
        daemon.metrics().get("uma_memory_verdict{verdict=\"clean\"}") == Some(&1.0)
    });
    world.wedges();
    until(&daemon, "scheduled", 30, || stage(&daemon) == "scheduled");
    assert_eq!(status(&daemon)["scheduled"]["plan"]["verdict"], "wedged");
    until(&daemon, "called", 30, || world.bus.reboots() == 1);
    let trigger = || fs::read_to_string(world.path("proc/sysrq-trigger")).unwrap();
    assert_eq!(trigger(), "");
    let called = Instant::now();
    until(&daemon, "rebooted by the kernel", 120, || trigger() == "sub");
    assert!(called.elapsed() > Duration::from_secs(60), "{:?}", called.elapsed());
    let expected = ["reboot: done", "perform_reboot: timed_out", "perform_reboot: done"];
    until(&daemon, "reported", 10, || world.acts() == expected);
    assert_eq!(world.bus.reboots(), 1);
    daemon.kill();
    world.bus.state().hangs.clear();
    world.boots(BOOTS[1]);
    let daemon = world.start();
    // Two methods, one reboot.
    until(&daemon, "assessed", 100, || {
        daemon.metric("uma_reboots_total{result=\"helped\"}") == 1.0
    });
    let budget = status(&daemon)["budget"].clone();
    assert_eq!(budget[0]["left"], 2, "{budget}");
    assert_eq!((world.bus.reboots(), &*trigger()), (1, "sub"));
    daemon.terminate();
}

#[test]
fn observe_mode_never_reboots() {
    if is_too_young() {
        return;
    }
    let world = World::new("{mode: observe, reboot: {delay: 10s, minimum_uptime: 5m}}");
    world.node.write_rules(WEDGED);
    let mut command = Command::new(binary());
    command
        .args(["run", "--web.listen-address", "127.0.0.1:0", "--gpu.interval=off"])
        .arg(format!("--config.file={}", world.path("umawarden.yaml").display()))
        .arg(format!("--storage.path={}", world.node.storage().display()))
        .args(world.node.arguments())
        .env("DBUS_SYSTEM_BUS_ADDRESS", format!("unix:path={}", world.path("bus").display()));
    let daemon = Daemon::from_command(&mut command);
    daemon.wait_until("clean", |daemon| {
        daemon.metrics().get("uma_memory_verdict{verdict=\"clean\"}") == Some(&1.0)
    });
    world.wedges();
    until(&daemon, "would reboot", 30, || daemon.log().contains("would act"));
    assert_eq!(world.order(&SOON).0, 1, "not even when it is ordered");
    // Nothing is pending, so nothing falls due: the policy's own test waits for that time.
    until(&daemon, "skipped", 30, || !world.acts().is_empty());
    assert_eq!((&*world.acts().concat(), &*stage(&daemon)), ("reboot: skipped", "none"));
    assert!(!daemon.metrics().contains_key(DUE));
    assert_eq!(world.bus.reboots(), 0);
    assert_eq!(fs::read_to_string(world.path("proc/sysrq-trigger")).unwrap(), "");
    daemon.terminate();
}

/// In parallel: a lock is requested again after 30 s, and sysrq comes after a minute.
#[test]
fn slow_reboots_succeed_in_parallel() {
    if std::env::var_os("UMAWARDEN_REAL").is_none() {
        eprintln!("skipped: it takes two minutes; the test command tests/run runs it");
        return;
    }
    let all = [
        a_scheduled_reboot_survives_a_restart_of_the_daemon_and_is_assessed_in_the_next_boot,
        a_reboot_waits_for_the_clusters_slot_and_releases_it_when_the_node_is_well,
        a_rule_reboots_by_the_kernel_where_allowed_and_the_orderly_way_hangs,
    ];
    let all = all.map(std::thread::spawn);
    // All of them report before one fails this test.
    let failed = all.map(|test| test.join().is_err()).into_iter().filter(|is_so| *is_so).count();
    assert_eq!(failed, 0, "see above");
}
