//! `umawarden gate` and `umawarden fit`, on fake `/proc` and `/sys` files and on this machine's
//! kernel.

mod auto;
mod fit;
mod gangs;
mod leases;
mod peers;
mod pools;

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::daemon::{Daemon, binary};
use crate::terminal::Terminal;

const MIB_IN_KIB: u64 = 1 << 10;
const GIB_IN_KIB: u64 = 1 << 20;

/// A fake node of 120 GiB with a kernel reserve of 2 GiB.
struct Node {
    folder: tempfile::TempDir,
}

/// Memory of the node in KiB; no counter shows the remainder.
#[derive(Clone, Copy, Debug, Default)]
struct Memory {
    free: u64,
    cached: u64,
    dirty: u64,
    shmem: u64,
    anonymous: u64,
}

impl Memory {
    /// `gib` free; no counter shows the remainder.
    fn free(gib: u64) -> Self {
        Self { free: gib * GIB_IN_KIB, ..Self::default() }
    }
}

impl Node {
    fn new(memory: Memory) -> Self {
        let node = Self { folder: tempfile::tempdir().unwrap() };
        fs::create_dir_all(node.path("proc/sys/vm")).unwrap();
        fs::create_dir_all(node.path("sys")).unwrap();
        fs::write(node.path("proc/sys/vm/min_free_kbytes"), "90112\n").unwrap();
        fs::write(node.path("proc/sys/vm/drop_caches"), "").unwrap();
        fs::write(node.path("proc/sys/vm/compact_memory"), "").unwrap();
        let low = 2 * GIB_IN_KIB / (procfs_page() >> 10);
        let zone = format!(
            "Node 0, zone   Normal\n  pages free     1000\n        min      10\n        low      \
             {low}\n        high     {low}\n        managed  30000000\n"
        );
        fs::write(node.path("proc/zoneinfo"), zone).unwrap();
        node.set_blocks(10);
        node.set(memory);
        node
    }

    fn path(&self, below: &str) -> PathBuf {
        self.folder.path().join(below)
    }

    fn set(&self, memory: Memory) {
        let Memory { free, cached, dirty, shmem, anonymous } = memory;
        let file = cached.saturating_sub(shmem);
        let text = format!(
            "MemTotal: {} kB\nMemFree: {free} kB\nMemAvailable: {free} kB\nBuffers: 0 kB\n\
             Cached: {cached} kB\nSwapCached: 0 kB\nActive(file): 0 kB\nInactive(file): {file} kB\n\
             Dirty: {dirty} kB\nWriteback: 0 kB\nAnonPages: {anonymous} kB\nMapped: 0 kB\n\
             Shmem: {shmem} kB\nSlab: 0 kB\nSReclaimable: 0 kB\nKernelStack: 0 kB\n\
             PageTables: 0 kB\nVmallocUsed: 0 kB\nPercpu: 0 kB\n",
            120 * GIB_IN_KIB
        );
        replace(&self.path("proc/meminfo"), &text);
    }

    /// `gib` of free memory are in blocks of 4 MiB.
    fn set_blocks(&self, gib: u64) {
        let blocks = gib * GIB_IN_KIB / (procfs_page() >> 10 << 10);
        let text = format!("Node 0, zone   Normal 0 0 0 0 0 0 0 0 0 0 {blocks}\n");
        replace(&self.path("proc/buddyinfo"), &text);
    }

    /// A process with the GPU open: a worker of vLLM, or a parent of one.
    fn add_process(&self, pid: u32, parent: u32, comm: &str, program: &str, anonymous_mib: u64) {
        let folder = self.path("proc").join(pid.to_string());
        fs::create_dir_all(folder.join("fd")).unwrap();
        let stat = format!(
            "{pid} ({comm}) S {parent} 1 1 0 -1 4194304 0 0 0 0 10 5 0 0 20 0 1 0 {pid} 1 2 3\n"
        );
        fs::write(folder.join("stat"), stat).unwrap();
        fs::write(folder.join("cmdline"), format!("{comm}\0")).unwrap();
        fs::write(folder.join("cgroup"), "0::/user.slice\n").unwrap();
        let anonymous = anonymous_mib * MIB_IN_KIB;
        let status = format!("RssAnon: {anonymous} kB\nRssFile: 0 kB\nRssShmem: 0 kB\n");
        fs::write(folder.join("status"), status).unwrap();
        fs::write(folder.join("maps"), "").unwrap();
        std::os::unix::fs::symlink(program, folder.join("exe")).unwrap();
        std::os::unix::fs::symlink("/dev/nvidia-uvm", folder.join("fd/7")).unwrap();
    }

    fn gate(&self, arguments: &[&str]) -> Command {
        self.command("gate", arguments)
    }

    fn command(&self, name: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command
            .arg(name)
            .arg(format!("--path.procfs={}", self.path("proc").display()))
            .arg(format!("--path.sysfs={}", self.path("sys").display()))
            // The last may be a command behind `--`.
            .args(arguments)
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }
}

fn procfs_page() -> u64 {
    rustix::param::page_size() as u64
}

/// Replaces the file atomically, as a kernel file changes.
fn replace(file: &Path, text: &str) {
    let new = file.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(new, file).unwrap();
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Output of the child and the time of its end; kills it after 30 s.
fn wait(mut child: Child) -> (Output, Instant) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("the command does not end: {:?}", child.wait_with_output());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let ended = Instant::now();
    (child.wait_with_output().unwrap(), ended)
}

/// As a script with `free` and sleeps does it: 70 GB, for up to 300 s.
#[test]
fn a_start_waits_for_70_gb_up_to_300_s() {
    let node = Node::new(Memory::free(40));
    let child = node.gate(&["--need=70GB", "--timeout=300s"]).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    // 70 GB are 65.2 GiB.
    node.set(Memory::free(70));
    let (output, _) = wait(child);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("65.2 GiB needed"), "{}", stdout(&output));
    assert!(stderr(&output).contains("closed for 0s of 5m"), "{}", stderr(&output));
}

#[test]
fn the_gate_waits_for_a_release_and_opens_within_a_second_of_its_end() {
    let node = Node::new(Memory::free(20));
    let child = node.gate(&["--need=90GiB", "--timeout=25s"]).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    // Memory comes back in steps without a pause; the gate opens only after the last one.
    for free in (20..=118).step_by(7) {
        node.set(Memory::free(free));
        std::thread::sleep(Duration::from_millis(150));
    }
    let released = Instant::now();
    let (output, ended) = wait(child);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(ended.saturating_duration_since(released) < Duration::from_secs(1));
    assert!(stdout(&output).starts_with("open after "), "{}", stdout(&output));
    let printed = stderr(&output);
    let first = printed.lines().next().unwrap();
    assert!(
        first.contains("closed for 0s of 25s") && first.contains("18.0 GiB available, 90.0"),
        "{printed}"
    );
    assert!(printed.contains("memory is still being given back"), "{printed}");
    assert!(printed.contains("GiB/s more: "), "the rate of the release: {printed}");
}

#[test]
fn on_a_terminal_a_bar_shows_how_much_of_the_need_is_there() {
    let node = Node::new(Memory::free(60));
    let terminal = Terminal::new(200);
    let mut command = node.gate(&["--need=100GiB", "--timeout=3s"]);
    command.env("TERM", "xterm").stderr(terminal.side());
    let mut child = command.spawn().unwrap();
    drop(command);
    let written = terminal.read();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{written:?}");
    // 58 of 100 GiB are eleven of twenty cells.
    let line = "\r\x1b[K[###########---------] closed for ";
    assert!(written.contains(line), "{written:?}");
    assert!(written.contains("58.0 GiB available, 100.0 GiB needed"), "{written:?}");
    let (_, end) = written.rsplit_once("\r\x1b[K").unwrap();
    assert!(end.starts_with("umawarden: not open after 3"), "it is removed: {written:?}");
}

#[test]
fn a_timeout_is_reported_with_its_reasons_and_exit_code_1() {
    let node =
        Node::new(Memory { cached: 30 * GIB_IN_KIB, dirty: 9 * GIB_IN_KIB, ..Memory::free(40) });
    let began = Instant::now();
    let output = node.gate(&["--need=90GiB", "--contiguous=12GiB", "--timeout=1500ms"]).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!((1.5..4.0).contains(&began.elapsed().as_secs_f64()));
    let printed = stderr(&output);
    for text in [
        "not open after 1.5s:",
        "59.0 GiB available, 90.0 GiB needed: 38.0 GiB free above the reserve, 21.0 GiB in caches",
        "10.0 GiB of 12.0 GiB are in free blocks of 2 MiB and more (compact memory",
        "note: 9.0 GiB of page cache do not count, since they must be written first (sync)",
        "are in no counter of the kernel, and stay",
    ] {
        assert!(printed.contains(text), "{text}: {printed}");
    }
    assert_eq!(stdout(&output), "");
    let output = node.gate(&["--need=90GiB", "--timeout=0", "--json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["open"], &report["ended"]), (&false.into(), &"timed_out".into()));
    assert_eq!(report["need_bytes"], 90_u64 << 30);
    assert_eq!(report["reasons"][0]["kind"], "too_little");
    assert!(report["reasons"][0]["text"].as_str().unwrap().contains("59.0 GiB available, 90.0"));
    assert_eq!(report["memory"]["unaccounted_baseline"]["is_learned"], false);
    assert_eq!(report["memory"]["motion"]["shmem"]["bytes_per_second"], 0.0);
}

#[test]
fn reclaimable_caches_open_the_gate_with_a_note() {
    let node = Node::new(Memory { cached: 60 * GIB_IN_KIB, ..Memory::free(40) });
    let output = node.gate(&["--need=90GiB", "--timeout=0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let printed = stdout(&output);
    assert!(printed.contains("98.0 GiB available, 90.0 GiB needed"), "{printed}");
    assert!(printed.contains("note: 52.0 GiB of it must be taken from caches"), "{printed}");
}

#[test]
fn an_impossible_need_and_invalid_flags_are_refused_at_once() {
    let node = Node::new(Memory::free(110));
    let began = Instant::now();
    let output = node.gate(&["--need=200GiB", "--timeout=1h"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("there is never 200.0 GiB"), "{}", stderr(&output));
    assert!(!stderr(&output).contains("not known yet"), "{}", stderr(&output));
    for invalid in [
        &["--need=much"][..],
        &["--need=0"],
        &[],
        &["--need=1GiB", "--timeout=99d"],
        &["--need=1GiB", "--peers"],
        &["--need=1GiB", "--config.file=/nowhere.yaml"],
    ] {
        let output = node.gate(invalid).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{invalid:?}: {}", stderr(&output));
        assert!(!output.stderr.is_empty());
    }
    assert!(began.elapsed() < Duration::from_secs(20));
}

#[test]
fn an_orphaned_worker_is_named_until_it_ends() {
    let node = Node::new(Memory { anonymous: 5 * GIB_IN_KIB, ..Memory::free(110) });
    node.add_process(1, 0, "systemd", "/usr/lib/systemd/systemd", 10);
    node.add_process(4242, 1, "VLLM::EngineCor", "/usr/bin/python3.12", 5 * 1024);
    // A worker whose server is alive is no orphan.
    node.add_process(50, 1, "python3", "/usr/bin/python3.12", 10);
    node.add_process(51, 50, "VLLM::EngineCor", "/usr/bin/python3.12", 10);
    let child = node.gate(&["--need=50GiB", "--timeout=20s"]).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(2500));
    fs::remove_dir_all(node.path("proc/4242")).unwrap();
    let removed = Instant::now();
    let (output, ended) = wait(child);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(ended.saturating_duration_since(removed) < Duration::from_millis(2500));
    let printed = stderr(&output);
    assert!(printed.contains("VLLM::EngineCor (pid 4242), left behind by"), "{printed}");
    assert!(printed.contains("holds 5.0 GiB and has the GPU open"), "{printed}");
    assert!(!printed.contains("pid 51"), "{printed}");
    node.add_process(4242, 1, "VLLM::EngineCor", "/usr/bin/python3.12", 5 * 1024);
    let output = node.gate(&["--need=50GiB", "--timeout=0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("(end it: kill 4242"), "{}", stderr(&output));
}

#[test]
fn an_unreadable_meminfo_keeps_the_gate_closed() {
    let node = Node::new(Memory::free(110));
    fs::remove_file(node.path("proc/meminfo")).unwrap();
    let output = node.gate(&["--need=1GiB", "--timeout=0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let printed = stderr(&output);
    assert!(printed.contains("MemFree cannot be read (check --path.procfs"), "{printed}");
}

#[test]
fn a_signal_ends_the_wait_at_once() {
    let node = Node::new(Memory::free(10));
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let child = node.gate(&["--need=90GiB", "--timeout=1h"]).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(1200));
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
        let sent = Instant::now();
        let (output, ended) = wait(child);
        assert_eq!(output.status.code(), Some(code));
        assert!(ended - sent < Duration::from_millis(500));
    }
}

#[test]
fn memory_is_prepared_only_if_needed_and_sufficient() {
    let done =
        |node: &Node, name: &str| fs::read_to_string(node.path("proc/sys/vm").join(name)).unwrap();
    // Enough memory is free: nothing is done.
    let node = Node::new(Memory { cached: 10 * GIB_IN_KIB, ..Memory::free(100) });
    let output = node.gate(&["--need=90GiB", "--timeout=3s", "--prepare"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!((done(&node, "drop_caches"), done(&node, "compact_memory")), Default::default());
    // Caches are needed and dropped; the fake meminfo does not change.
    let node = Node::new(Memory { cached: 60 * GIB_IN_KIB, ..Memory::free(40) });
    let output = node.gate(&["--need=90GiB", "--timeout=3s", "--prepare"]).output().unwrap();
    assert_eq!(
        output.status.code(),
        Some(0),
        "reclaimable caches open the gate: {}",
        stderr(&output)
    );
    assert_eq!((done(&node, "drop_caches").as_str(), &*done(&node, "compact_memory")), ("3", ""));
    assert!(stderr(&output).contains("dropped caches: 0 B freed"), "{}", stderr(&output));
    // All caches together do not suffice: they are kept.
    let node = Node::new(Memory {
        cached: 20 * GIB_IN_KIB,
        anonymous: 60 * GIB_IN_KIB,
        ..Memory::free(39)
    });
    let output = node.gate(&["--need=90GiB", "--timeout=1s", "--prepare"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(done(&node, "drop_caches"), "");
    // Free memory is fragmented: it is only compacted.
    node.set(Memory::free(110));
    let arguments = ["--need=9GiB", "--contiguous=12GiB", "--timeout=1s", "--prepare"];
    let output = node.gate(&arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!((done(&node, "drop_caches").as_str(), &*done(&node, "compact_memory")), ("", "1"));
    assert!(stderr(&output).contains("compacted memory: 0 B freed"), "{}", stderr(&output));
    // A failed compaction is reported, and the gate waits.
    fs::remove_file(node.path("proc/sys/vm/compact_memory")).unwrap();
    let output = node.gate(&arguments).output().unwrap();
    assert!(stderr(&output).contains("not compacted memory: writing 1 to"), "{}", stderr(&output));
}

#[test]
fn a_running_daemon_supplies_its_baseline_and_journals_the_preparation() {
    let node = Node::new(Memory {
        cached: 60 * GIB_IN_KIB,
        anonymous: 18 * GIB_IN_KIB,
        ..Memory::free(40)
    });
    let storage = node.path("data");
    let model = node.path("old.safetensors");
    fs::write(&model, vec![7; 4 << 20]).unwrap();
    fs::File::open(&model).unwrap().sync_all().unwrap();
    fs::write(node.path("kmsg"), "").unwrap();
    let config = format!(
        "storage: {{path: {}}}\npath: {{procfs: {}, sysfs: {}, kmsg: {}}}\n\
         engines: [{{name: old, match: {{comm: none}}, model_files: [{}]}}]\n",
        storage.display(),
        node.path("proc").display(),
        node.path("sys").display(),
        node.path("kmsg").display(),
        model.display()
    );
    fs::write(node.path("umawarden.yaml"), config).unwrap();
    let config = format!("--config.file={}", node.path("umawarden.yaml").display());
    let daemon = Daemon::start(&storage, &[&config]);
    let gate = |arguments: &[&str]| {
        Command::new(binary()).arg("gate").args(arguments).arg(&config).output().unwrap()
    };
    let has_baseline = |_: &Daemon| {
        let output = gate(&["--need=1GiB", "--timeout=0", "--json"]);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let baseline = &report["memory"]["unaccounted_baseline"];
        baseline["is_learned"] == true && baseline["bytes"] == 2_u64 << 30
    };
    daemon.wait_until("a baseline", has_baseline);
    // The baseline of this boot outlives a restart.
    drop(daemon);
    let began = Instant::now();
    let daemon = Daemon::start(&storage, &[&config]);
    daemon.wait_until("the baseline again", has_baseline);
    assert!(began.elapsed() < Duration::from_secs(9), "the baseline was learned again");
    let (status, body) = daemon.get("/api/v1/gate?need=90GiB");
    assert_eq!(status, 200, "{body}");
    assert_eq!(daemon.get("/api/v1/gate?need=99GiB").0, 503);
    // Another test can drop the caches of this machine between the reading and the eviction.
    let prepare = || {
        fs::read(&model).unwrap();
        let output = gate(&["--need=90GiB", "--timeout=5s", "--prepare"]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        stderr(&output)
    };
    let mut printed = prepare();
    for _ in 0..20 {
        if printed.contains("iB of 1 model files out of the page cache") {
            break;
        }
        printed = prepare();
    }
    assert!(printed.contains("iB of 1 model files out of the page cache"), "{printed}");
    assert!(
        printed.contains("dropped caches") && !printed.contains("not recorded in the journal"),
        "{printed}"
    );
    let history = || {
        let output = Command::new(binary()).args(["history", "--kind=note", &config]).output();
        stdout(&output.unwrap())
    };
    daemon.wait_until("notes", |_| history().contains("dropped caches: 0 B freed"));
    let printed = history();
    assert!(printed.contains("umawarden gate --prepare (root, uid 0): took "), "{printed}");
    assert!(printed.contains("iB of 1 model files out of the page cache"), "{printed}");
}

#[test]
fn the_gate_opens_on_this_machine_for_a_small_need() {
    let began = Instant::now();
    let mut child = Command::new(binary())
        .args(["gate", "--need=16MiB", "--timeout=20s", "--no-lease"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut printed = String::new();
    child.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
    let (output, _) = wait(child);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(printed.contains(" needed") && began.elapsed() < Duration::from_secs(20), "{printed}");
}

const PAGE: &str = include_str!("../../docs/src/tasks/gate.md");

/// The lines of the page with that prefix, without it.
fn lines_of_page(prefix: &str) -> Vec<&'static str> {
    let lines = PAGE.lines().flat_map(|line| line.split('`'));
    lines.filter_map(|line| line.trim_start().strip_prefix(prefix)).collect()
}

#[test]
fn the_systemd_lines_of_the_book_work() {
    let open = Node::new(Memory { anonymous: 10 * GIB_IN_KIB, ..Memory::free(108) });
    let closed = Node::new(Memory::free(20));
    let mut lines = lines_of_page("ExecStartPre=/usr/bin/umawarden gate ");
    assert_eq!(lines.len(), 1);
    lines.extend(lines_of_page("ExecCondition=/usr/bin/umawarden gate "));
    assert_eq!(lines.len(), 2);
    for line in &lines {
        let arguments: Vec<&str> = line.split(' ').collect();
        let output = open.gate(&arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{line}: {}", stderr(&output));
    }
    // systemd skips the unit at 1 to 254, and without a failure.
    let condition: Vec<&str> = lines[1].split(' ').collect();
    assert_eq!(closed.gate(&condition).output().unwrap().status.code(), Some(1));
    let unit = PAGE.split("```ini\n").nth(1).unwrap().split("```").next().unwrap();
    let unit = unit.replace("/usr/bin/umawarden", &binary().display().to_string());
    let unit = unit.replace("/usr/local/bin/serve-model", "/bin/true");
    let file = open.path("model.service");
    fs::write(&file, unit).unwrap();
    match Command::new("systemd-analyze").arg("verify").arg("--man=no").arg(&file).output() {
        Err(error) => eprintln!("not verified, there is no systemd-analyze: {error}"),
        Ok(output) => {
            let printed = stderr(&output);
            assert!(!printed.contains("model.service"), "{printed}");
        }
    }
}

#[test]
fn the_init_container_of_the_book_waits_and_ends() {
    if Command::new("wget").arg("--version").output().is_err() {
        return eprintln!("skipped: there is no wget");
    }
    let script = lines_of_page("- until wget ");
    let [script] = script.as_slice() else { panic!("{script:?}") };
    let node = Node::new(Memory::free(20));
    fs::write(node.path("kmsg"), "").unwrap();
    let flag = |flag: &str, name: &str| format!("--path.{flag}={}", node.path(name).display());
    let paths = [flag("procfs", "proc"), flag("sysfs", "sys"), flag("kmsg", "kmsg")];
    let daemon = Daemon::start(&node.path("data"), &paths.each_ref().map(String::as_str));
    let (host, port) = daemon.address().rsplit_once(':').unwrap();
    let script = format!("until wget {}", script.replace(":9942", &format!(":{port}")));
    let child = Command::new("sh").args(["-c", &script]).env("NODE", host).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(3));
    node.set(Memory { anonymous: 10 * GIB_IN_KIB, ..Memory::free(108) });
    let (output, _) = wait(child);
    assert_eq!(output.status.code(), Some(0));
}
