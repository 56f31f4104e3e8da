//! The gate on the real kernel, with real memory that no counter names: pages in pipes.

use std::fs;
use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Write, pipe};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use super::docker::Dockerd;
use super::{enabled, enabled_nightly};
use crate::daemon::{Daemon, binary, once_journalled};

const GIB: u64 = 1 << 30;
const HELD: u64 = 3 * GIB;
/// The most that root may put into one pipe with the kernel's default settings.
const PIPE: usize = 1 << 20;
const VARIABLE: &str = "UMAWARDEN_FILL_PIPES";
const NAME: &str = "real::gate::fill_pipes";
const FILLED: &str = "all pipes are filled";

fn meminfo(field: &str) -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find(|line| line.split(':').next() == Some(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

fn filled(bytes: u64) -> Vec<(PipeReader, PipeWriter)> {
    let block = vec![7; PIPE];
    let fill = |_| {
        let (reader, mut writer) = pipe().unwrap();
        assert!(rustix::pipe::fcntl_setpipe_size(&writer, PIPE).unwrap() >= PIPE);
        writer.write_all(&block).unwrap();
        (reader, writer)
    };
    (0..bytes / PIPE as u64).map(fill).collect()
}

/// Not a test: the process of [`Holder`]. Each line of its input is the number of pipes to release,
/// one every 4 ms.
#[test]
fn fill_pipes() {
    let Some(bytes) = std::env::var_os(VARIABLE) else { return };
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    let limit = rustix::process::Rlimit { current: most, maximum: most };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    // As an engine it is found before it takes memory.
    std::thread::sleep(Duration::from_millis(2500));
    let mut pipes = filled(bytes.to_str().unwrap().parse().unwrap());
    println!("{FILLED}");
    for line in std::io::stdin().lines() {
        let number: usize = line.unwrap().parse().unwrap();
        for pipe in pipes.drain(..number) {
            drop(pipe);
            std::thread::sleep(Duration::from_millis(4));
        }
    }
}

/// Lets a user fill pipes without a limit; put back when dropped.
struct NoLimit {
    before: String,
}

const LIMIT: &str = "/proc/sys/fs/pipe-user-pages-soft";

impl NoLimit {
    fn set() -> Self {
        let before = fs::read_to_string(LIMIT).unwrap();
        fs::write(LIMIT, "0").unwrap();
        Self { before }
    }
}

impl Drop for NoLimit {
    fn drop(&mut self) {
        fs::write(LIMIT, &self.before).unwrap();
    }
}

/// A process that holds memory in pipes; killed when dropped.
pub(super) struct Holder {
    child: Child,
    orders: ChildStdin,
    _no_limit: NoLimit,
}

impl Holder {
    pub(super) fn start() -> Self {
        Self::of(HELD)
    }

    pub(super) fn of(bytes: u64) -> Self {
        let no_limit = NoLimit::set();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([NAME, "--exact", "--nocapture", "--test-threads=1"])
            .env(VARIABLE, bytes.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let printed = BufReader::new(child.stdout.take().unwrap());
        let orders = child.stdin.take().unwrap();
        let holder = Self { child, orders, _no_limit: no_limit };
        let is_filled = printed.lines().map_while(Result::ok).any(|line| line.contains(FILLED));
        assert!(is_filled, "the pipes cannot be filled");
        holder
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Releases that many bytes, up to 250 MiB in a second.
    pub(super) fn release(&mut self, bytes: u64) {
        writeln!(self.orders, "{}", bytes / PIPE as u64).unwrap();
    }

    pub(super) fn kill(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        self.child.wait().unwrap();
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.kill();
    }
}

#[test]
fn gate_waits_for_memory_in_no_counter_and_opens_within_a_second_of_its_release() {
    if !enabled() {
        return;
    }
    let mut holder = Holder::start();
    // Clean caches count as available memory: leftovers of builds would open the gate at once.
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
    // Available memory without the holder, less one GiB.
    let need = meminfo("MemFree") + HELD - GIB;
    let gate = Command::new(binary())
        .args(["gate", &format!("--need={need}"), "--timeout=60s", "--no-lease"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_secs(5));
    // The rest may be back within a tenth of a second, which no sample sees.
    holder.release(600 << 20);
    std::thread::sleep(Duration::from_secs(3));
    holder.kill();
    let killed = Instant::now();
    while meminfo("MemFree") < need + GIB / 2 {
        assert!(killed.elapsed() < Duration::from_secs(30), "the memory does not come back");
        std::thread::sleep(Duration::from_millis(2));
    }
    let back = Instant::now();
    let output = gate.wait_with_output().unwrap();
    let opened = back.elapsed();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(opened < Duration::from_secs(1), "it opened {opened:?} after the release");
    assert!(stderr.contains("closed for 0s of 1m") && stderr.contains("are missing"), "{stderr}");
    assert!(stderr.contains("in no counter of the kernel"), "{stderr}");
    eprintln!("back {:?} after the end, open {opened:?} later: {stderr}", back - killed);
}

#[test]
fn an_engines_release_is_measured_and_journalled_with_its_curve() {
    if !enabled_nightly() {
        return;
    }
    let storage = tempfile::tempdir().unwrap();
    let config = storage.path().join("umawarden.yaml");
    fs::write(&config, format!("engines: [{{name: pipes, match: {{cmdline: \"* {NAME} *\"}}}}]\n"))
        .unwrap();
    let config = format!("--config.file={}", config.display());
    let daemon = Daemon::start(storage.path(), &[&config]);
    // The kernel-log flood of an earlier test is read first.
    std::thread::sleep(Duration::from_secs(2));
    let mut holder = Holder::start();
    daemon.wait_until("the engine", |daemon| {
        let metrics = daemon.metrics();
        metrics.keys().any(|key| key.starts_with("uma_engine_info{engine=\"pipes\""))
    });
    // Engines are scanned once a second.
    std::thread::sleep(Duration::from_millis(2500));
    holder.kill();
    daemon.wait_until("the release", |daemon| {
        daemon.count("uma_engine_release_seconds_count") >= 1.0
    });
    let metrics = daemon.metrics();
    let entries = once_journalled(storage.path(), "engine_release");
    let [event] = entries.as_slice() else { panic!("{entries:#?}") };
    let bytes = metrics["uma_engine_owned_bytes{engine=\"pipes\",type=\"unaccounted\"}"];
    assert!((bytes / HELD as f64 - 1.0).abs() < 0.05, "{bytes}: {event}");
    assert!(metrics["uma_engine_release_seconds_sum"] < 5.0);
    assert_eq!(metrics["uma_engine_releases_total{end=\"returned\"}"], 1.0);
    assert_eq!((&event["engine"], &event["end"]), (&"pipes".into(), &"returned".into()));
    let curve = event["curve"].as_array().unwrap();
    assert!((2..=64).contains(&curve.len()), "{curve:?}");
    eprintln!("{event}");
}

/// Containers with the ledger of the host: in its PID namespace, and in one of their own.
#[test]
fn real_starts_in_containers_go_one_after_the_other() {
    if !enabled() {
        return;
    }
    let dockerd = Dockerd::start();
    dockerd.import_busybox();
    for (count, of_host) in [(2, true), (4, false), (16, true)] {
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        let path = folder.path().display().to_string();
        fs::write(folder.path().join("c.yaml"), format!("starts: {{folder: {path}/run}}\n"))
            .unwrap();
        // The host's files, with the program and its libraries, and that folder.
        let mounts = ["/:/host:ro".to_owned(), format!("{path}:/host{path}")];
        let script = format!("echo begin >> {path}/notes; sleep 0.3; echo end >> {path}/notes");
        let binary = binary().display().to_string();
        for number in 0..count {
            let name = format!("--name=start-{number}");
            let config = format!("--config.file={path}/c.yaml");
            let mut arguments = vec!["run", "-d", "--network=none"];
            arguments.extend(of_host.then_some("--pid=host"));
            arguments.extend(mounts.iter().flat_map(|mount| ["-v", mount]));
            arguments.extend(["busybox", "/bin/busybox", "chroot", "/host", &binary, "lease"]);
            arguments.extend([&*config, &name, "--need=2GiB", "--timeout=60s", "--"]);
            arguments.extend(["sh", "-c", &script]);
            let started = dockerd.docker(&arguments);
            assert!(started.status.success(), "{}", String::from_utf8_lossy(&started.stderr));
        }
        let notes = || fs::read_to_string(folder.path().join("notes")).unwrap_or_default();
        let deadline = Instant::now() + Duration::from_secs(90);
        while notes().matches("end").count() < count {
            let logs = || dockerd.docker(&["ps", "-a", "--format", "{{.Status}}"]);
            assert!(Instant::now() < deadline, "{:?} {}", logs(), notes());
            std::thread::sleep(Duration::from_millis(100));
        }
        assert_eq!(notes(), "begin\nend\n".repeat(count), "{count}, in the host's: {of_host}");
    }
}
