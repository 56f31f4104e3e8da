//! Restarts that wait for memory, which is really taken and released at once.

mod for_start;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::{LABEL, Node, deaths, dies_once, reason, starts, state_of, wait_for};
use crate::daemon::{meminfo_bytes, of_kind};
use crate::real::{Started, enabled};

fn gib(count: u64) -> u64 {
    count << 30
}

/// Roughly the memory that an engine could get now: the gate counts a little less.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes")]
fn available() -> u64 {
    meminfo_bytes("MemAvailable") as u64
}

/// Fills pipes until it reads a line. No counter of the kernel names their memory.
const FILL: &str = "
import fcntl, os, resource, sys
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
left, pipes = int(sys.argv[1]), []
size = 1 << 20
while left > 0:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, 1031, size)
    os.set_blocking(writer, False)
    page = bytes(1 << 20)
    try:
        while left > 0:
            left -= os.write(writer, page)
    except BlockingIOError:
        pass
    pipes.append((reader, writer))
print('filled', flush=True)
sys.stdin.readline()
";

/// A process that keeps filled pipes.
struct FilledPipes(Started);

impl FilledPipes {
    fn hold(bytes: u64) -> Self {
        let mut child = Command::new("python3")
            .args(["-c", FILL, &bytes.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "filled\n");
        Self(Started(child))
    }

    /// Releases all of it; returns the time when that was done.
    fn release(mut self) -> Timestamp {
        // It may have ended.
        let _ = self.0.0.stdin.take().unwrap().write_all(b"\n");
        self.0.0.wait().unwrap();
        Timestamp::now()
    }
}

/// It was started once, and the request reached Docker within a second of the release: before its
/// end where enough memory was free by then. The time that Docker takes from there depends on the
/// disk.
fn started_in_time(node: &Node, name: &str, released: Timestamp) {
    let requests = starts(&node.history(), name);
    let [requested] = requests.as_slice() else { panic!("{requests:?}") };
    let waited = requested.duration_since(released).as_secs_f64();
    let took = node.started(name).duration_since(*requested).as_secs_f64();
    println!("requested {waited:.3} s after the release, started {took:.3} s later");
    assert!(waited <= 1.0, "{waited}");
    assert!((0.0..=10.0).contains(&took), "{took}");
}

#[test]
fn real_restart_of_an_oom_killed_container_waits_for_memory_and_happens_once() {
    if !enabled() {
        return;
    }
    let node = Node::new("rule_files: []");
    let daemon = node.daemon();
    let hog = FilledPipes::hold(gib(2));
    let need = (available() + gib(1)).to_string();
    let need = format!("umawarden.restart.need={need}");
    let script = dies_once("exec /bin/busybox tail /dev/zero");
    let limits = ["--memory", "30m", "--label", LABEL, "--label", &need];
    let id = node.run("llm", &script, &limits);
    wait_for("it waits", 20, &daemon, || state_of(&daemon, "llm") == "waiting");
    wait_for("it waits for memory", 10, &daemon, || reason(&daemon, "llm").contains("missing"));
    std::thread::sleep(Duration::from_secs(3));
    assert!(!node.is_running("llm"), "{}", reason(&daemon, "llm"));
    let (ended, released) = (node.ended("llm"), hog.release());
    wait_for("it is started", 10, &daemon, || node.is_running("llm"));
    started_in_time(&node, "llm", released);
    assert!(node.started("llm").duration_since(ended).as_secs_f64() >= 3.0);
    std::thread::sleep(Duration::from_secs(5));
    let history = node.history();
    assert_eq!(starts(&history, "llm").len(), 1);
    let kills: Vec<_> =
        of_kind(&history, "oom_kill").filter(|event| event["container"] == id).collect();
    assert_eq!(kills.len(), 1);
    let deaths = deaths(&history, "llm");
    let [death] = deaths.as_slice() else { panic!("{deaths:#?}") };
    let report = &death["report"];
    assert_eq!(report["who"]["container"], id);
    assert_eq!(report["who"]["container_name"], "llm");
    assert_eq!(report["killer"]["by"], "kernel_oom", "{report:#}");
    assert_eq!(report["exit"]["code"], 137);
    assert_eq!(report["is_failure"], true);
    let (code, printed) = node.umawarden(&["engines"]);
    assert_eq!(code, 0, "{printed}");
    assert!(printed.contains("container with a deferred restart"), "{printed}");
    daemon.terminate();
}

#[test]
fn real_restart_waits_for_memory_that_lingers_and_comes_within_a_second_of_its_release() {
    if !enabled() {
        return;
    }
    let node = Node::new("rule_files: []");
    let daemon = node.daemon();
    // As memory that a driver keeps for a while: no counter of the kernel names it.
    let hog = FilledPipes::hold(gib(2));
    let need = format!("umawarden.restart.need={}", available() + gib(1));
    let script = dies_once("exit 1");
    node.run("llm", &script, &["--label", LABEL, "--label", &need]);
    wait_for("it waits", 20, &daemon, || state_of(&daemon, "llm") == "waiting");
    let lingers = Instant::now();
    while lingers.elapsed() < Duration::from_secs(10) {
        assert!(!node.is_running("llm"), "{}", reason(&daemon, "llm"));
        std::thread::sleep(Duration::from_millis(500));
    }
    let released = hog.release();
    wait_for("it is started", 10, &daemon, || node.is_running("llm"));
    started_in_time(&node, "llm", released);
    daemon.terminate();
}
