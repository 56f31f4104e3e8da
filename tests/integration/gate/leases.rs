//! Starts that reserve memory: on this machine's own memory, in a ledger of their own.
//!
//! What other tests take at the same time counts as taken by the leases: they are far larger.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::daemon::{Daemon, binary};

/// A ledger, and the file in which starts note their begin and end.
struct Ledger {
    folder: tempfile::TempDir,
}

impl Ledger {
    fn new(at_once: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = format!(
            "starts: {{at_once: {at_once}, folder: {}}}\nstorage: {{path: {}}}\n",
            folder.path().join("run").display(),
            folder.path().join("data").display()
        );
        fs::write(folder.path().join("umawarden.yaml"), config).unwrap();
        Self { folder }
    }

    fn path(&self, below: &str) -> PathBuf {
        self.folder.path().join(below)
    }

    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(binary());
        command.arg(name).arg(format!("--config.file={}", self.path("umawarden.yaml").display()));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Starts something that notes when it runs, for so many seconds.
    fn start(&self, command: &str, arguments: &[&str], seconds: &str) -> Child {
        let notes = self.path("notes");
        let script = format!(
            "echo begin >> {notes}; sleep {seconds}; echo end >> {notes}",
            notes = notes.display()
        );
        let mut own = self.command(command);
        own.args(arguments).args(["--timeout=60s", "--", "sh", "-c", &script]);
        own.spawn().unwrap()
    }

    /// The most starts that ran at the same time, and how many ran.
    fn most_at_once(&self) -> (usize, usize) {
        let notes = fs::read_to_string(self.path("notes")).unwrap_or_default();
        let (mut now, mut most, mut all) = (0_usize, 0, 0);
        for note in notes.lines() {
            match note {
                "begin" => (now, all) = (now + 1, all + 1),
                _ => now = now.saturating_sub(1),
            }
            most = most.max(now);
        }
        (most, all)
    }

    fn leases(&self) -> Value {
        let output = self.command("leases").arg("--json").output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn wait_until(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let began = Instant::now();
        loop {
            let leases = self.leases();
            if is_so(&leases) {
                return leases;
            }
            assert!(began.elapsed() < Duration::from_secs(30), "never {what}: {leases}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn names(leases: &Value, state: &str) -> Vec<String> {
    let all = leases["leases"].as_array().unwrap().iter();
    let own = all.filter(|lease| lease["state"] == state);
    own.map(|lease| lease["who"].as_str().unwrap().to_owned()).collect()
}

fn available() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find(|line| line.starts_with("MemAvailable:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn starts_that_come_together_go_one_after_the_other() {
    for count in [2, 4, 16] {
        let ledger = Ledger::new(1);
        let mut starts: Vec<Child> = (0..count)
            .map(|number| {
                let name = format!("--name=start-{number}");
                let command = if number % 2 == 0 { "lease" } else { "launch" };
                ledger.start(command, &["--need=4GiB", &name], "0.2")
            })
            .collect();
        for start in &mut starts {
            assert_eq!(start.wait().unwrap().code(), Some(0));
        }
        assert_eq!(ledger.most_at_once(), (1, count), "{count}");
        ledger.wait_until("empty", |leases| leases["reserved"].as_array().unwrap().is_empty());
    }
}

#[test]
fn memory_that_is_reserved_is_not_given_twice() {
    let ledger = Ledger::new(16);
    let need = format!("--need={}", available() / 5 * 2);
    let mut starts: Vec<Child> =
        (0..4).map(|_| ledger.start("lease", &[&need, "--name=half"], "1")).collect();
    for start in &mut starts {
        assert_eq!(start.wait().unwrap().code(), Some(0));
    }
    let (most, all) = ledger.most_at_once();
    assert_eq!(all, 4);
    assert!(most <= 2, "two fifths of memory each, {most} at once");
}

#[test]
fn who_waits_says_behind_whom_and_a_killed_start_leaves_nothing() {
    let ledger = Ledger::new(1);
    let mut first = ledger.start("launch", &["--need=4GiB", "--name=first"], "60");
    ledger.wait_until("granted", |leases| names(leases, "granted") == ["first"]);
    let mut low = ledger.start("lease", &["--need=4GiB", "--name=low"], "0.1");
    ledger.wait_until("one waits", |leases| names(leases, "waiting") == ["low"]);
    let mut high = ledger.start("lease", &["--need=4GiB", "--name=high", "--priority=5"], "0.1");
    let leases =
        ledger.wait_until("both wait", |leases| names(leases, "waiting") == ["high", "low"]);
    let waiting = &leases["leases"][1];
    assert_eq!(waiting["behind"][0], "first", "{leases}");
    assert_eq!(waiting["reasons"][0], "it waits its turn: first is starting");
    let text = ledger.command("leases").output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.starts_with("first: 4.0 GiB granted"), "{text}");
    let none = ledger.command("leases").arg("--end=nobody").output().unwrap();
    assert_eq!(none.status.code(), Some(1));
    let killed = Instant::now();
    kill_process(Pid::from_child(&first), Signal::KILL).unwrap();
    first.wait().unwrap();
    assert_eq!(high.wait().unwrap().code(), Some(0));
    assert_eq!(low.wait().unwrap().code(), Some(0));
    assert!(killed.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_ledger_that_cannot_be_used_is_reported_and_keeps_nothing_down() {
    let ledger = Ledger::new(1);
    fs::write(ledger.path("run"), "a file").unwrap();
    let mut start = ledger.command("lease");
    start.args(["--need=64MiB", "--", "echo", "ran"]);
    let output = start.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), &*output.stdout), (Some(0), &b"ran\n"[..]), "{printed}");
    assert!(printed.contains("nothing is reserved for this start: cannot "), "{printed}");
    let output = ledger.command("lease").args(["--need=1PiB", "--", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(124));
    let none = ledger.command("lease").args(["--need=1MiB", "--", "/nowhere"]).output().unwrap();
    assert_eq!(none.status.code(), Some(127));
}

#[test]
fn the_daemon_reports_leases_and_keeps_them_in_the_journal() {
    let ledger = Ledger::new(1);
    let config = format!("--config.file={}", ledger.path("umawarden.yaml").display());
    let daemon = Daemon::start(&ledger.path("data"), &[&config]);
    daemon.wait_until("the first report", |daemon| {
        daemon.get("/metrics").1.contains("uma_leases{state=\"granted\"} 0")
    });
    let mut start = ledger.start("launch", &["--need=2GiB", "--name=held"], "60");
    daemon.wait_until("the lease", |daemon| {
        daemon.get("/metrics").1.contains("uma_leases{state=\"granted\"} 1")
    });
    let (_, body) = daemon.get("/api/v1/leases");
    let leases: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(leases["data"]["leases"][0]["who"], "held", "{body}");
    let mut other = ledger.start("lease", &["--need=2GiB", "--name=<i>next"], "0.1");
    daemon.wait_until("both on the page", |daemon| {
        let (_, page) = daemon.get("/");
        page.contains("2.0 GiB of host are reserved for held")
            && page.contains("<th scope=row>&lt;i&gt;next <small>start</small>")
            && page.contains("it waits its turn: held is starting")
    });
    other.kill().unwrap();
    other.wait().unwrap();
    // A daemon that is killed changes nothing.
    daemon.kill();
    let daemon = Daemon::start(&ledger.path("data"), &[&config]);
    daemon.wait_until("the lease of before", |daemon| {
        daemon.get("/metrics").1.contains("uma_leases{state=\"granted\"} 1")
    });
    // It counts for everybody who asks.
    let total = available();
    let (status, body) = daemon.get(&format!("/api/v1/gate?need={total}"));
    assert!(status == 503 && body.contains("are reserved for held"), "{body}");
    kill_process(Pid::from_child(&start), Signal::KILL).unwrap();
    start.wait().unwrap();
    let history = || {
        let output = ledger.command("history").arg("--kind=lease").output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    daemon.wait_until("the end in the journal", |_| {
        let history = history();
        history.contains("2.0 GiB are reserved for held")
            && history.contains("no longer reserved for held: its process has ended")
    });
}

/// Requests of the kind that people have made: wait for so much, engines one after the other.
#[test]
fn a_gate_reserves_what_it_was_asked_for_and_says_so() {
    let ledger = Ledger::new(1);
    let gate = |arguments: &[&str]| {
        let mut command = ledger.command("gate");
        command.env_remove("INVOCATION_ID").args(arguments).args(["--timeout=20s"]);
        command.output().unwrap()
    };
    let output = gate(&["--need=4GiB"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("note: reserved for at most 10m, or until process "), "{text}");
    // The next one waits until the first is over.
    let output = ledger.command("gate").args(["--need=4GiB", "--timeout=1s"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    let looks = ["--need=4GiB", "--no-lease"];
    assert_eq!(gate(&looks).status.code(), Some(0), "looking takes nothing");
    let ended = ledger.command("leases").arg("--end=gate").output().unwrap();
    assert_eq!(ended.status.code(), Some(0));
    assert_eq!(gate(&["--need=4GiB"]).status.code(), Some(0));
    let without_a_unit = gate(&["--need=90"]);
    let text = String::from_utf8_lossy(&without_a_unit.stderr).into_owned();
    assert!(
        without_a_unit.status.code() == Some(2) && text.contains("Write --need 90GiB"),
        "{text}"
    );
}

/// A gate in a script, and then the launcher.
#[test]
fn a_launch_takes_over_what_its_gate_has_reserved() {
    for (names, is_its) in [(["chat", "chat"], true), (["chat", "code"], false)] {
        let ledger = Ledger::new(1);
        let start = |command: &str, name: &str, timeout: &str| {
            let mut own = ledger.command(command);
            own.arg(format!("--name={name}")).args(["--need=4GiB", timeout]);
            own.env_remove("INVOCATION_ID");
            own
        };
        let gate = start("gate", names[0], "--timeout=20s").output().unwrap();
        assert_eq!(gate.status.code(), Some(0), "{}", String::from_utf8_lossy(&gate.stderr));
        let mut launch = start("launch", names[1], "--timeout=3s");
        let launched = launch.args(["--", "true"]).output().unwrap();
        let expected = if is_its { 0 } else { 124 };
        let text = String::from_utf8_lossy(&launched.stderr);
        assert_eq!(launched.status.code(), Some(expected), "{names:?}: {text}");
    }
}

/// As in a container: with its own procfs, and with that of the host.
#[test]
fn a_start_in_another_pid_namespace_keeps_its_memory() {
    let can = Command::new("unshare").args(["--pid", "--fork", "--mount-proc", "true"]).status();
    if !can.is_ok_and(|status| status.success()) {
        return eprintln!("skipped: needs unshare --pid");
    }
    for procfs in [None, Some("--mount-proc")] {
        let ledger = Ledger::new(1);
        let mut inside = Command::new("unshare");
        inside.args(["--pid", "--fork", "--kill-child"]).args(procfs).arg(binary());
        inside
            .arg("lease")
            .arg(format!("--config.file={}", ledger.path("umawarden.yaml").display()));
        inside.args(["--need=4GiB", "--name=inside", "--timeout=20s", "--", "sleep", "60"]);
        let mut inside = inside.stdin(Stdio::null()).spawn().unwrap();
        ledger.wait_until("granted", |leases| names(leases, "granted") == ["inside"]);
        let gate = |timeout: &str| {
            let mut gate = ledger.command("gate");
            gate.args(["--need=4GiB", &format!("--timeout={timeout}")]);
            gate.output().unwrap().status.code()
        };
        assert_eq!(gate("2s"), Some(1), "it lives, whatever number it has there");
        kill_process(Pid::from_child(&inside), Signal::KILL).unwrap();
        inside.wait().unwrap();
        assert_eq!(gate("20s"), Some(0), "{procfs:?}");
    }
}
