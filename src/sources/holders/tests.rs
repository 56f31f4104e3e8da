//! Findings in real processes, and in a fake `/proc`.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::scan::HolderScan;
use crate::model::{HolderReadings, Reading};

/// `/proc/PID` of a process that sleeps.
fn process(proc: &Path, pid: u32, comm: &str, state: char, parent: u32) {
    let own = proc.join(pid.to_string());
    fs::create_dir_all(own.join("fd")).unwrap();
    let fields = format!("{pid} ({comm}) {state} {parent} {pid} {pid} 0 -1 4194304");
    let rest = "0 0 0 0 0 0 0 0 20 0 1 0 4711 0 0 18446744073709551615";
    fs::write(own.join("stat"), format!("{fields} {rest}\n")).unwrap();
    fs::write(own.join("maps"), "").unwrap();
    fs::write(own.join("cgroup"), "0::/\n").unwrap();
}

fn opens(proc: &Path, path: &str, target: &str) {
    let path = proc.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    symlink(target, path).unwrap();
}

/// A script that waits for its input once it has printed a line; it ends with this.
struct Python(Child);

impl Python {
    fn run(script: &str) -> Self {
        let mut python = Command::new("python3")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        python.stdout.as_mut().unwrap().read_exact(&mut [0; 4]).unwrap();
        Self(python)
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

fn scan(proc: &Path) -> HolderReadings {
    HolderScan::new(proc.to_owned(), proc.join("sys"), 1).run(Duration::from_secs(5), false)
}

#[test]
fn processes_with_the_driver_open_or_mapped_are_found_in_every_state() {
    let proc = tempfile::tempdir().unwrap();
    let proc = proc.path();
    process(proc, 10, "python3", 'S', 2);
    opens(proc, "10/fd/3", "/dev/nvidia-uvm");
    opens(proc, "10/fd/4", "/dev/nvidia0");
    fs::write(proc.join("10/cgroup"), "0::/system.slice/vllm.service\n").unwrap();
    process(proc, 11, "VLLM::EngineCor", 'D', 10);
    opens(proc, "11/fd/3", "/dev/nvidiactl");
    // Its mappings must not be read: this one would never end.
    fs::remove_file(proc.join("11/maps")).unwrap();
    process(proc, 12, "half dead", 'Z', 10);
    fs::create_dir_all(proc.join("12/task/12")).unwrap();
    opens(proc, "12/task/13/fd/5", "/dmabuf:");
    process(proc, 13, "mapper", 'S', 10);
    fs::write(
        proc.join("13/maps"),
        "7f0000000000-7f0000200000 rw-s 00000000 00:05 600        /dev/nvidia0\n",
    )
    .unwrap();
    process(proc, 14, "nvidia-persiste", 'S', 2);
    opens(proc, "14/fd/3", "/dev/nvidiactl");
    process(proc, 15, "bash", 'S', 2);
    opens(proc, "15/fd/0", "/dev/pts/0");
    // The process that queries the driver for this program, and the program itself.
    process(proc, 1, "umawarden", 'S', 2);
    process(proc, 16, "umawarden", 'S', 1);
    opens(proc, "16/fd/3", "/dev/nvidiactl");
    let found = scan(proc);
    let listed: Vec<String> = found.holders.iter().map(ToString::to_string).collect();
    assert_eq!(
        listed,
        [
            "python3 (pid 10, vllm.service) has the GPU open",
            "VLLM::EngineCor (pid 11, state D) has the GPU open",
            "half dead (pid 12, state Z) has 1 dma-buf open",
            "mapper (pid 13) has the GPU open",
            "nvidia-persiste (pid 14) has the GPU open",
        ]
    );
    let users = found.holders.iter().filter(|holder| holder.uses_driver()).count();
    assert_eq!((users, found.processes, found.unseen), (4, 6, 0));
    assert_eq!(found.is_driver_loaded, Reading::Value(false));
    fs::create_dir_all(proc.join("driver/nvidia")).unwrap();
    assert_eq!(scan(proc).is_driver_loaded, Reading::Value(true));
}

#[test]
fn a_driver_device_is_recognised_by_its_number_under_any_name() {
    let proc = tempfile::tempdir().unwrap();
    let proc = proc.path();
    process(proc, 10, "hides", 'S', 2);
    // Major 1 is that of /dev/null.
    opens(proc, "10/fd/3", "/dev/null");
    assert_eq!(scan(proc).holders, []);
    fs::write(proc.join("devices"), "Character devices:\n  1 nvidia\n").unwrap();
    let found = scan(proc);
    assert!(found.holders[0].uses_driver(), "{found:?}");
}

#[test]
fn unreadable_processes_are_counted_and_never_taken_for_none() {
    let proc = tempfile::tempdir().unwrap();
    let proc = proc.path();
    assert!(scan(proc).error.unwrap().contains("shows no process"));
    assert!(scan(&proc.join("none")).error.unwrap().contains("cannot list"));
    process(proc, 10, "python3", 'S', 2);
    fs::remove_dir(proc.join("10/fd")).unwrap();
    process(proc, 11, "python3", 'S', 2);
    fs::remove_file(proc.join("11/maps")).unwrap();
    let found = scan(proc);
    assert_eq!((found.processes, found.unseen, found.holders.len()), (2, 2, 0));
    assert!(super::blind(&found).unwrap().contains("2 of 2 processes"));
    // Ended between two scans, truncated, or invalid: not a process.
    process(proc, 12, "gone", 'S', 2);
    fs::write(proc.join("12/stat"), "12 (go").unwrap();
    assert_eq!(scan(proc).processes, 2);
}

/// On the real kernel: this process, as seen by another.
#[test]
fn pipes_and_files_without_a_name_are_measured() {
    let memfd = rustix::fs::memfd_create("tests", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::io::write(&memfd, &[1; 8192]).unwrap();
    let mut pipes: Vec<(OwnedFd, OwnedFd)> = Vec::new();
    for _ in 0..80 {
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        rustix::pipe::fcntl_setpipe_size(&write, 1 << 20).unwrap();
        while rustix::io::write(&write, &[1; 65_536]).is_ok() {}
        pipes.push((read, write));
    }
    let mut scan = HolderScan::new("/proc".into(), "/sys".into(), 0);
    let found = scan.run(Duration::ZERO, false);
    let own = std::process::id();
    let own = found.holders.iter().find(|holder| holder.id.pid == own).unwrap();
    assert!(own.memfds >= 1 && own.memfd_bytes >= 8192, "{own}");
    // A process without CAP_SYS_PTRACE may examine itself.
    assert!((70 << 20..=90 << 20).contains(&own.pipe_bytes), "{own}");
    let memory = found.memory.iter().find(|memory| memory.id == own.id).unwrap();
    assert!(memory.pipe_bytes >= 80 << 20, "{memory:?}");
    drop(pipes);
    let own = scan.run(Duration::ZERO, false);
    let own = own.holders.iter().find(|holder| holder.id.pid == std::process::id()).unwrap();
    assert_eq!(own.pipe_bytes, 0);
}

/// On the real kernel: 96 MiB in sockets that nobody reads.
#[test]
fn queued_bytes_in_sockets_are_measured() {
    crate::sys::descriptors::raise_limit().unwrap();
    let mut pairs = Vec::new();
    for _ in 0..960 {
        let (mut one, other) = std::os::unix::net::UnixStream::pair().unwrap();
        one.set_nonblocking(true).unwrap();
        while one.write(&[1; 16_384]).is_ok() {}
        pairs.push((one, other));
    }
    let found = HolderScan::new("/proc".into(), "/sys".into(), 0).run(Duration::ZERO, false);
    let own = std::process::id();
    let own = found.memory.iter().find(|memory| memory.id.pid == own).unwrap();
    assert!(own.socket_bytes >= 96 << 20, "{own:?}");
    assert!(matches!(found.socket_bytes, Reading::Value(_)), "{:?}", found.socket_bytes);
}

/// On the real kernel: one byte in each of 24 pipes takes a page of each, and is seen while memory
/// falls, however few they are.
#[test]
fn few_pipes_are_examined_while_memory_falls_and_count_by_their_size() {
    let script = "import os, fcntl
for _ in range(24):
    reads, writes = os.pipe()
    fcntl.fcntl(writes, 1031, 1 << 20)
    os.write(writes, b'x')
print('has', flush=True); input()";
    let _python = Python::run(script);
    let mut scan = HolderScan::new("/proc".into(), "/sys".into(), 0);
    let mut smaller = |is_urgent| {
        let found = scan.run(Duration::ZERO, is_urgent).memory;
        found.iter().find(|memory| memory.id.pid == 0).map_or(0, |memory| memory.pipe_bytes)
    };
    let (calm, urgent) = (smaller(false), smaller(true));
    assert!(urgent >= calm + (24 << 20), "{calm} {urgent}");
}

/// On the real kernel: a process that has touched 80 MiB.
#[test]
fn large_processes_are_listed_with_their_memory() {
    let script = "x = bytearray(80 << 20); print('has', flush=True); input()";
    let python = Python::run(script);
    let found = HolderScan::new("/proc".into(), "/sys".into(), 0).run(Duration::ZERO, false);
    let its = found.memory.iter().find(|memory| memory.id.pid == python.0.id()).unwrap();
    assert!((80 << 20..=120 << 20).contains(&its.anon_bytes), "{its:?}");
    assert!(found.memory.is_sorted_by_key(|memory| memory.id));
}

#[test]
fn a_process_without_driver_memory_is_rescanned_rarely_or_when_its_open_files_change() {
    let proc = tempfile::tempdir().unwrap();
    let proc = proc.path();
    process(proc, 10, "python3", 'S', 2);
    opens(proc, "10/fd/0", "/dev/null");
    let mut scan = HolderScan::new(proc.to_owned(), proc.join("sys"), 1);
    assert!(!scan.is_procfs && HolderScan::new("/proc".into(), "/sys".into(), 1).is_procfs);
    scan.is_procfs = true;
    let mut holders = |seconds| scan.run(Duration::from_secs(seconds), false).holders.len();
    let map = |text: &str| fs::write(proc.join("10/maps"), text).unwrap();
    const MAPPING: &str = "7f0000000000-7f0000200000 rw-s 00000000 00:05 600 /dev/nvidia0\n";
    assert_eq!(holders(0), 0);
    map(MAPPING);
    assert_eq!((holders(5), holders(30)), (0, 0), "what was seen counts for half a minute");
    assert_eq!(holders(35), 1);
    map("");
    assert_eq!(holders(40), 0, "a holder is scanned each time");
    map(MAPPING);
    assert_eq!(holders(45), 0);
    // Another process, of the same number.
    let stat = fs::read_to_string(proc.join("10/stat")).unwrap().replace("4711", "4712");
    fs::write(proc.join("10/stat"), stat).unwrap();
    assert_eq!(holders(50), 1);
}

/// A process of its own: in that of the tests others open and close files meanwhile, and as many
/// as before would be open.
#[test]
fn a_real_process_is_scanned_at_once_after_opening_a_file() {
    let memfd = rustix::fs::memfd_create("held", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let link = format!("/proc/{}/fd/{}", std::process::id(), memfd.as_raw_fd());
    let mut shell = Command::new("/bin/sh")
        .args(["-c", "read go && exec 5<\"$1\" && echo open && read go", "sh", &link])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = shell.id();
    let mut scan = HolderScan::new("/proc".into(), "/sys".into(), 0);
    let mut holds = |seconds| {
        let found = scan.run(Duration::from_secs(seconds), false);
        found.holders.iter().any(|holder| holder.id.pid == pid && holder.memfds > 0)
    };
    assert!(!holds(0));
    let mut stdin = shell.stdin.take().unwrap();
    stdin.write_all(b"go\n").unwrap();
    let mut answer = [0; 5];
    shell.stdout.take().unwrap().read_exact(&mut answer).unwrap();
    assert_eq!((&answer, holds(1)), (b"open\n", true));
    drop(stdin);
    shell.wait().unwrap();
}
