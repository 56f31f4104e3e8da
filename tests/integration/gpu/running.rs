//! The daemon with a driver that works, fails, hangs and crashes: it keeps on sampling, exporting
//! and deciding, and ends in time.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use super::{Library, is_alive};
use crate::daemon::{Daemon, Notifications, binary};

/// Bound for the end of a daemon, even while the driver hangs.
const MAX_SHUTDOWN: Duration = Duration::from_secs(2);

const RULES: &str = "\
groups:
- name: gpu
  rules:
  - alert: DriverSilent
    expr: uma_gpu_driver_responsive == 0
    remedy:
      steps: [notify: {message: \"the driver is silent\"}]
";

struct Node {
    folder: tempfile::TempDir,
    library: Library,
}

impl Node {
    fn new(script: &str) -> Option<Self> {
        let node = Self { folder: tempfile::tempdir().unwrap(), library: Library::new(script)? };
        fs::write(node.folder.path().join("rules.yaml"), RULES).unwrap();
        fs::write(node.folder.path().join("kmsg"), "").unwrap();
        Some(node)
    }

    fn start(&self, more: &[&str]) -> Daemon {
        let folder = self.folder.path();
        let rules = format!("--rules={}", folder.join("rules.yaml").display());
        let kmsg = format!("--path.kmsg={}", folder.join("kmsg").display());
        let library = format!("--gpu.library={}", self.library.path().display());
        let interval = if more.is_empty() { "--gpu.interval=200ms" } else { more[0] };
        let arguments = [interval, &*rules, &*kmsg, &*library];
        Daemon::start(&folder.join("data"), &arguments)
    }
}

/// The children of a process, by `/proc`.
fn children(pid: u32) -> Vec<u32> {
    let all = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let stat = umawarden::parse::process::stat(&fs::read(format!("/proc/{pid}/stat")).ok()?)?;
        Some((pid, stat))
    });
    all.filter(|(_, stat)| stat.parent == pid && stat.state != 'Z').map(|(pid, _)| pid).collect()
}

fn has_value(daemon: &Daemon, series: &str, value: f64) -> bool {
    daemon.metrics().get(series).is_some_and(|found| (found - value).abs() < 1e-9)
}

fn is_exported(daemon: &Daemon, name: &str) -> bool {
    daemon.metrics().keys().any(|series| series.starts_with(name))
}

const RESPONSIVE: &str = "uma_gpu_driver_responsive";
const UP: &str = "uma_scrape_collector_success{collector=\"gpu\"}";

#[test]
fn gb10_discrete_and_mig_machines_are_exported() {
    let Some(node) = Node::new("machine gb10\nprocess 4000000 64424509440") else { return };
    let daemon = node.start(&[]);
    daemon.wait_until("responsive", |daemon| {
        has_value(daemon, RESPONSIVE, 1.0) && has_value(daemon, UP, 1.0)
    });
    daemon.wait_until("exported", |daemon| is_exported(daemon, "uma_gpu_info"));
    assert!(has_value(&daemon, "uma_gpu_other_memory_bytes{gpu=\"0\"}", 64424509440.0));
    assert!(has_value(&daemon, "uma_gpu_temperature_celsius{gpu=\"0\"}", 52.0));
    for lacking in ["uma_gpu_memory_", "uma_gpu_mig", "uma_gpu_engine", "uma_gpu_uncorrected"] {
        assert!(!is_exported(&daemon, lacking), "{lacking}");
    }
    let info = "uma_gpu_info{compute_mode=\"default\",driver_version=\"580.95.05\",gpu=\"0\",\
                name=\"NVIDIA GB10\",nvml_version=\"13.580.95.05\",\
                pci_address=\"000f:01:00.0\",uuid=\"GPU-00000000-0000-0000-0000-000000000000\"}";
    assert!(has_value(&daemon, info, 1.0), "{:#?}", daemon.metrics());
    node.library.set_script("machine discrete");
    let used = |gpu: u32| format!("uma_gpu_memory_used_bytes{{gpu=\"{gpu}\"}}");
    daemon.wait_until("two GPUs exported", |daemon| is_exported(daemon, &used(1)));
    assert!(
        has_value(&daemon, &used(0), 3_221_225_472.0)
            && has_value(&daemon, &used(1), 4_294_967_296.0)
    );
    assert!(has_value(&daemon, "uma_gpu_repair_pending{gpu=\"1\"}", 1.0));
    // The driver reports no process that has any of it.
    let unowned = |gpu: u32| format!("uma_gpu_memory_unowned_bytes{{gpu=\"{gpu}\"}}");
    assert!(
        has_value(&daemon, &unowned(0), 3_221_225_472.0)
            && has_value(&daemon, &unowned(1), 4_294_967_296.0)
    );
    node.library.set_script("machine mig");
    let part = "uma_gpu_instance_memory_total_bytes{compute_instance=\"0\",gpu=\"0\",\
                gpu_instance=\"7\"}";
    daemon.wait_until("MIG instances exported", |daemon| {
        is_exported(daemon, part) && !is_exported(daemon, &used(1))
    });
    assert!(
        !is_exported(&daemon, "uma_gpu_memory_unowned"),
        "MIG instances have processes of their own"
    );
    daemon.terminate();
}

#[test]
fn a_hanging_driver_is_reported_and_blocks_nothing() {
    let Some(node) = Node::new("machine discrete") else { return };
    let daemon = node.start(&[]);
    daemon.wait_until("responsive", |daemon| is_exported(daemon, "uma_gpu_memory_used_bytes"));
    let child = *children(daemon.pid()).first().unwrap();
    node.library.set_script("machine discrete\nstuck nvmlDeviceGetCount_v2");
    daemon.wait_until("silent", |daemon| {
        has_value(daemon, RESPONSIVE, 0.0) && has_value(daemon, UP, 0.0)
    });
    assert!(!is_exported(&daemon, "uma_gpu_memory_used_bytes"), "the value is unknown");
    assert!(daemon.metric("uma_gpu_last_answer_age_seconds") >= 5.0);
    daemon.wait_until("decided", |daemon| {
        let metrics = daemon.metrics();
        let mut acted = metrics.iter().filter(|(series, _)| series.starts_with("uma_decisions"));
        acted.any(|(series, count)| series.contains("DriverSilent") && *count > 0.0)
    });
    // Sampling continues meanwhile.
    let samples = |daemon: &Daemon| daemon.metric("uma_loop_reaction_seconds_count");
    let before = samples(&daemon);
    daemon.wait_until("sampled", |daemon| samples(daemon) > before + 5.0);
    let began = Instant::now();
    assert!(is_exported(&daemon, "uma_memory_free_bytes"));
    assert!(began.elapsed() < Duration::from_secs(1));
    assert!(daemon.log().contains("does not respond"), "{}", daemon.log());
    node.library.set_script("machine discrete");
    daemon.wait_until("back", |daemon| {
        has_value(daemon, RESPONSIVE, 1.0) && has_value(daemon, UP, 1.0)
    });
    assert_eq!(children(daemon.pid()), [child], "the same one");
    node.library.set_script("machine discrete\nstuck nvmlDeviceGetCount_v2");
    daemon.wait_until("silent", |daemon| has_value(daemon, RESPONSIVE, 0.0));
    let (took, log) = daemon.terminate();
    assert!(took < MAX_SHUTDOWN, "{took:?}: {log}");
    node.library.set_script("machine discrete");
}

#[test]
fn a_hanging_driver_does_not_silence_the_watchdog_of_systemd() {
    let Some(node) = Node::new("machine discrete") else { return };
    let folder = node.folder.path();
    let patience = Duration::from_secs(3);
    let notifications = Notifications::listen(folder);
    let mut command = Command::new(binary());
    command
        .args(["run", "--web.listen-address=127.0.0.1:0", "--gpu.interval=200ms"])
        .arg(format!("--storage.path={}", folder.join("data").display()))
        .arg(format!("--path.kmsg={}", folder.join("kmsg").display()))
        .arg(format!("--gpu.library={}", node.library.path().display()));
    notifications.watch(&mut command, patience);
    let daemon = Daemon::from_command(&mut command);
    daemon.wait_until("responsive", |daemon| is_exported(daemon, "uma_gpu_memory_used_bytes"));
    node.library.set_script("machine discrete\nstuck nvmlDeviceGetCount_v2");
    let hung = Instant::now();
    daemon.wait_until("silent", |daemon| has_value(daemon, RESPONSIVE, 0.0));
    std::thread::sleep((2 * patience).saturating_sub(hung.elapsed()));
    let silence = notifications.longest_silence(hung);
    assert!(silence < patience, "systemd would have ended it after {silence:?}");
    daemon.terminate();
    node.library.set_script("machine discrete");
}

#[test]
fn the_daemon_survives_every_failure_of_the_nvml_child_and_ends_in_time() {
    for script in [
        "machine gb10\ncrash nvmlInit_v2",
        "machine gb10\nhang nvmlInit_v2",
        "machine gb10\ngarbage\nnoise",
        "machine gb10\nslow nvmlDeviceGetCount_v2 700",
        "error nvmlInit_v2 18",
        "error nvmlDeviceGetCount_v2 999",
    ] {
        let Some(node) = Node::new(script) else { return };
        let daemon = node.start(&[]);
        daemon.wait_until("queried", |_| node.library.calls("nvmlInit_v2") > 0);
        std::thread::sleep(Duration::from_millis(500));
        assert!(is_exported(&daemon, "uma_memory_free_bytes"), "{script}");
        let children_of_daemon = children(daemon.pid());
        let (took, log) = daemon.terminate();
        assert!(took < MAX_SHUTDOWN, "{script}: {took:?}: {log}");
        let deadline = Instant::now() + Duration::from_secs(10);
        while children_of_daemon.iter().any(|child| is_alive(*child)) {
            assert!(Instant::now() < deadline, "{script}: the child outlives the daemon");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn the_nvml_child_inherits_nothing_of_the_daemon_and_ends_with_it() {
    let Some(node) = Node::new("machine gb10") else { return };
    let daemon = node.start(&[]);
    daemon.wait_until("responsive", |daemon| has_value(daemon, RESPONSIVE, 1.0));
    let child = *children(daemon.pid()).first().unwrap();
    let read = |name: &str| fs::read_to_string(format!("/proc/{child}/{name}")).unwrap();
    assert_eq!(read("comm").trim(), "umawarden-nvml");
    assert_eq!(read("oom_score_adj").trim(), "0");
    let status = read("status");
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(&format!("{name}:"))).unwrap();
        line.split_whitespace().nth(1).unwrap().to_owned()
    };
    assert_eq!((&*field("VmLck"), &*field("NoNewPrivs")), ("0", "1"));
    let capabilities = u64::from_str_radix(&field("CapEff"), 16).unwrap();
    assert_eq!(capabilities & !(1 << 21), 0, "none but CAP_SYS_ADMIN: {status}");
    let stat = read("stat");
    let nice = stat.rsplit(')').next().unwrap().split_whitespace().nth(16).unwrap();
    assert_eq!(nice, "0");
    let environment = fs::read(format!("/proc/{child}/environ")).unwrap();
    let environment = String::from_utf8_lossy(&environment);
    let variables = environment.split('\0').filter(|variable| !variable.is_empty());
    assert!(
        variables.clone().all(|variable| variable.starts_with("LD_LIBRARY_PATH=")),
        "{environment}"
    );
    // Its three pipes, one of them twice.
    let open = fs::read_dir(format!("/proc/{child}/fd"))
        .unwrap()
        .map(|entry| fs::read_link(entry.unwrap().path()).unwrap().display().to_string());
    let open: Vec<String> = open.collect();
    assert!(open.len() <= 5 && open.iter().all(|path| path.starts_with("pipe:")), "{open:?}");
    let maps = fs::read_to_string(format!("/proc/{}/maps", daemon.pid())).unwrap();
    assert!(!maps.contains("nvml.so") && read("maps").contains("nvml.so"));
    daemon.kill();
    let deadline = Instant::now() + Duration::from_secs(10);
    while is_alive(child) {
        assert!(Instant::now() < deadline, "the child outlives the daemon");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_driver_is_not_queried_if_disabled_or_absent() {
    let Some(node) = Node::new("machine gb10") else { return };
    let daemon = node.start(&["--gpu.interval=off"]);
    std::thread::sleep(Duration::from_millis(700));
    assert!(!is_exported(&daemon, "uma_gpu_") && !is_exported(&daemon, UP));
    assert_eq!((children(daemon.pid()).len(), node.library.calls("nvmlInit_v2")), (0, 0));
    drop(daemon);
    let missing = format!("--gpu.library={}", node.folder.path().join("missing.so").display());
    let folder = node.folder.path().join("other");
    let daemon = Daemon::start(&folder, &[&missing, "--recording.size=0"]);
    daemon.wait_until("down", |daemon| has_value(daemon, UP, 0.0));
    assert!(!is_exported(&daemon, RESPONSIVE), "the value is unknown");
    daemon.wait_until("child ended", |daemon| children(daemon.pid()).is_empty());
    assert!(daemon.log().contains("name its file in gpu.library"), "{}", daemon.log());
}
