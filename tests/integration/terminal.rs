//! What commands write to a terminal: colours, lines that fit, progress. In a pipe there is none of
//! it.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::json;

use crate::daemon::{Daemon, binary};
use crate::run::Node;

/// A terminal of that many columns.
pub struct Terminal {
    master: OwnedFd,
    name: String,
}

impl Terminal {
    pub fn new(columns: u16) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&master, size).unwrap();
        Self { master, name }
    }

    pub fn side(&self) -> File {
        File::options().read(true).write(true).open(&self.name).unwrap()
    }

    /// All that is written until no process has it open any more.
    pub fn read(self) -> String {
        let mut written = Vec::new();
        let mut master = File::from(self.master);
        let mut buffer = [0; 4096];
        // At its end a terminal gives EIO.
        while let Ok(read @ 1..) = master.read(&mut buffer) {
            written.extend_from_slice(&buffer[..read]);
        }
        String::from_utf8(written).unwrap().replace("\r\n", "\n")
    }
}

/// Runs a command on a terminal of 80 columns, and returns what it writes to standard output.
fn on_terminal(arguments: &[&str], variables: &[(&str, &str)]) -> String {
    on_terminals(arguments, variables).0
}

/// Runs a command whose standard output and standard error are terminals of 80 columns each, and
/// returns what it writes to either.
fn on_terminals(arguments: &[&str], variables: &[(&str, &str)]) -> (String, String) {
    let (terminal, errors) = (Terminal::new(80), Terminal::new(80));
    let mut command = Command::new(binary());
    command.args(arguments).env_remove("NO_COLOR").env("TERM", "xterm-256color");
    command.envs(variables.iter().copied());
    command.stdin(Stdio::null()).stdout(terminal.side()).stderr(errors.side());
    let mut child = command.spawn().unwrap();
    drop(command);
    let errors = std::thread::spawn(|| errors.read());
    let written = terminal.read();
    child.wait().unwrap();
    (written, errors.join().unwrap())
}

/// Fails if a line is wider than 80 columns.
fn assert_fits(text: &str, arguments: &[&str]) {
    // A line that is drawn again begins with a carriage return.
    for line in plain(text).split(['\n', '\r']) {
        // A path or an expression stays whole, so that it can be copied.
        let is_one_word = !line.trim().contains(' ');
        assert!(line.chars().count() <= 80 || is_one_word, "{arguments:?}: {line}");
    }
}

fn in_a_pipe(arguments: &[&str]) -> String {
    let output = Command::new(binary()).args(arguments).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Without colours.
fn plain(text: &str) -> String {
    let mut parts = text.split("\x1b[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |all, part| {
        let begins = part.find(|letter: char| letter.is_ascii_alphabetic()).map_or(0, |at| at + 1);
        all + &part[begins..]
    })
}

fn node() -> (Node, Daemon, String) {
    let node = Node::new("gb10-4k");
    node.write_rules(
        "groups:
- name: g
  rules:
  - alert: AnAlertWithAnUncommonlyLongNameOfItsOwn
    expr: uma_memory_available_bytes >= 0 and uma_memory_total_bytes >= 0
    labels: {severity: warning}
    remedy:
      steps: [{drop_caches: {what: pagecache}}]
      cooldown: 1h
",
    );
    let own = node.arguments();
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    let daemon = Daemon::start(&node.storage(), &own);
    daemon.wait_until("journalled", |_| {
        crate::daemon::of_kind(&crate::daemon::history(&node.storage()), "decision").count() > 0
    });
    node.put_engine();
    daemon.wait_until("found", |daemon| daemon.get("/api/v1/engines").1.contains("vllm"));
    let storage = format!("--storage.path={}", node.storage().display());
    (node, daemon, storage)
}

#[test]
fn lines_fit_80_columns_and_have_colours_on_a_terminal_alone() {
    let (node, _daemon, storage) = node();
    let procfs = format!("--path.procfs={}", node.path("proc").display());
    let sysfs = format!("--path.sysfs={}", node.path("sys").display());
    let kmsg = format!("--path.kmsg={}", node.path("kmsg").display());
    let rule = "AnAlertWithAnUncommonlyLongNameOfItsOwn";
    for (arguments, has_colours) in [
        (vec!["--help"], true),
        (vec!["history", &storage], true),
        (vec!["verdict", &storage], true),
        (vec!["doctor", "--all", &storage, &procfs, &sysfs, &kmsg], true),
        (vec!["explain", rule, &storage], false),
        (vec!["engines", &storage], true),
        (vec!["status", &storage], true),
        (vec!["top", "--once", &storage], true),
        (vec!["leases", &storage], false),
        (vec!["rules", "report", &storage], false),
        (vec!["promote", &storage], false),
        (vec!["loads", &storage], false),
    ] {
        let (written, errors) = on_terminals(&arguments, &[]);
        assert!(!has_colours || !written.is_empty(), "{arguments:?}");
        assert_fits(&written, &arguments);
        assert_fits(&errors, &arguments);
        assert!(!has_colours || written.contains("\x1b["), "{arguments:?}: {written}");
        for variable in [("NO_COLOR", "1"), ("TERM", "dumb")] {
            let written = on_terminal(&arguments, &[variable]);
            assert!(!written.contains('\x1b'), "{arguments:?} {variable:?}: {written:?}");
        }
        assert!(!in_a_pipe(&arguments).contains('\x1b'), "{arguments:?}");
    }
}

#[test]
fn results_and_errors_of_other_commands_fit_80_columns() {
    let (node, _daemon, storage) = node();
    let procfs = format!("--path.procfs={}", node.path("proc").display());
    let sysfs = format!("--path.sysfs={}", node.path("sys").display());
    let log = node.path("kernel.log");
    let xid = "[   12.000000] NVRM: Xid (PCI:000f:01:00): 31, pid=7, name=x, Ch 00000008\n";
    fs::write(&log, xid).unwrap();
    let (log, rules) = (log.display().to_string(), node.path("rules.yaml").display().to_string());
    let nowhere = node.path("nowhere").display().to_string();
    let without_daemon = format!("--storage.path={nowhere}");
    for (arguments, part) in [
        (vec!["dmesg", &log], "local users can forge lines"),
        (vec!["dmesg", &nowhere], "umawarden: cannot open"),
        (vec!["tune", "--profile=dgx-spark", &procfs, &sysfs], "Profile dgx-spark"),
        (vec!["rules", "check", &rules], "by group: "),
        (vec!["gate", "--need=900TiB", "--timeout=0", &storage, &procfs, &sysfs], "never"),
        (vec!["query", "uma_memory_free_bytes", &storage], "uma_memory_free_bytes"),
        (vec!["query", "uma_memory_free_bytes + )", &storage], "umawarden: "),
        (vec!["cluster", &storage], "no cluster is configured"),
        (vec!["breaker", "list", &storage], ""),
        (vec!["silence", "list", &storage], "No silence"),
        (vec!["silence", "list", &without_daemon], "umawarden: no daemon"),
        (vec!["loads", &storage], "has no load"),
        // Without the id of this boot, each boot counts as an earlier one.
        (vec!["history", "--last-boot", "--path.procfs=/nowhere", &storage], "boot"),
        (vec!["history", "--last-boot", &without_daemon], "there is no black box"),
    ] {
        let (written, errors) = on_terminals(&arguments, &[]);
        assert_fits(&written, &arguments);
        assert_fits(&errors, &arguments);
        // A line may end between any two words.
        let words = plain(&(written + &errors));
        let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(part.trim_end()), "{arguments:?}: {words}");
    }
    // A pipe has each of them in one line.
    let output = Command::new(binary()).args(["cluster", &storage]).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(error.len() > 80, "{error}");
}

#[test]
fn a_running_daemon_explains_its_rules_itself_and_expressions_stay_whole() {
    let (node, daemon, storage) = node();
    let rule = "AnAlertWithAnUncommonlyLongNameOfItsOwn";
    let json = || -> serde_json::Value {
        serde_json::from_str(&in_a_pipe(&["explain", rule, "--json", &storage])).unwrap_or_default()
    };
    // It has recorded its rules within some seconds.
    daemon.wait_until("explaining", |_| json()["source"] == "daemon");
    let live = json();
    let text = in_a_pipe(&["explain", rule, &storage]);
    assert!(text.contains("from the daemon"), "{text}");
    daemon.terminate();
    let recorded = json();
    assert_eq!(recorded["source"], "recording");
    // All but the values, which are of another time.
    for key in ["rule", "state", "mode", "idle", "overridden"] {
        assert_eq!(live[key], recorded[key], "{key}");
    }
    let shape = |condition: &serde_json::Value| {
        let parts = condition["parts"].as_array().unwrap();
        parts.iter().map(|part| part["expr"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(shape(&live["condition"]), shape(&recorded["condition"]));
    assert_eq!(live["remedy"]["steps"], recorded["remedy"]["steps"]);
    let rails = |json: &serde_json::Value| {
        let rails = json["remedy"]["guard_rails"].as_array().unwrap();
        rails.iter().map(|rail| rail["reason"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(rails(&live), rails(&recorded));
    let since = |json: &serde_json::Value| json["alerts"][0]["active_since"]["utc"].clone();
    assert_eq!(since(&live), since(&recorded));
    for explained in [text, in_a_pipe(&["explain", rule, &storage])] {
        assert!(!explained.contains('…'), "{explained}");
    }
    drop(node);
}

#[test]
fn slow_work_shows_its_progress_on_a_terminal_alone() {
    let terminal = Terminal::new(80);
    let mut command = Command::new(binary());
    command.args(["dmesg", "-"]).env("TERM", "xterm").stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(terminal.side());
    let mut child = command.spawn().unwrap();
    drop(command);
    let mut input = child.stdin.take().unwrap();
    for second in 0..16 {
        let line = format!("[{second:5}.000000] usb 1-1: new high-speed USB device number 2\n");
        input.write_all(line.as_bytes()).unwrap();
        std::thread::sleep(Duration::from_millis(200));
    }
    drop(input);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let written = terminal.read();
    assert!(written.contains("dmesg: ") && written.contains(" in 2s"), "{written:?}");
    assert!(written.ends_with("\r\x1b[K"), "it is removed at the end: {written:?}");
}

#[test]
fn a_large_log_shows_the_time_left() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("kernel.log");
    let xid = |second: u32| {
        format!("[{second:5}.000000] NVRM: Xid (PCI:000f:01:00): 31, pid={second}, name=x, Ch 08\n")
    };
    fs::write(&log, (1..4000).map(xid).collect::<String>()).unwrap();
    for name in ["dmesg", "replay"] {
        let terminal = Terminal::new(80);
        let mut command = Command::new(binary());
        command.arg(name).arg(&log).env("TERM", "xterm").stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(terminal.side());
        let mut child = command.spawn().unwrap();
        drop(command);
        let terminal = std::thread::spawn(|| terminal.read());
        // On any machine it has not read all of the log by then: its output is full.
        std::thread::sleep(Duration::from_millis(2_300));
        let mut printed = String::new();
        child.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
        child.wait().unwrap();
        assert!(printed.len() > 200_000, "{name}: more than a pipe takes");
        let written = terminal.join().unwrap();
        let lines: Vec<&str> = written.split(['\r', '\n']).collect();
        let line = lines.iter().find(|line| line.contains(&format!("] {name}: ")));
        let line = plain(line.unwrap_or_else(|| panic!("{name}: {written:?}")));
        let (_, amounts) = line.split_once(": ").unwrap();
        assert!(line.starts_with('[') && amounts.contains(" KiB of 276.2 KiB"), "{name}: {line:?}");
        assert!(amounts.contains(", about ") && amounts.ends_with("s left"), "{name}: {line:?}");
        assert!(written.ends_with("\r\x1b[K"), "it is removed at the end: {written:?}");
    }
}

#[test]
fn an_observation_of_seconds_shows_its_progress() {
    let terminal = Terminal::new(80);
    let mut command = Command::new(binary());
    command.args(["rules", "check", "--now", "tests/fixtures/rules/good/page-cache.yaml"]);
    command.env("TERM", "xterm").stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(terminal.side());
    let mut child = command.spawn().unwrap();
    drop(command);
    let written = terminal.read();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{written:?}");
    assert!(written.contains("] rules check: "), "{written:?}");
    assert!(written.contains(" of 3 seconds"), "{written:?}");
    assert!(written.ends_with("\r\x1b[K"), "it is removed at the end: {written:?}");
}

#[test]
fn a_gate_without_a_unit_asks_whether_bytes_were_meant() {
    let output = Command::new(binary()).args(["gate", "--need", "10"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("Write --need 10GiB, or --need 10B if they are"), "{error}");
}

#[test]
fn history_follows_the_journal() {
    let (node, daemon, storage) = node();
    let mut child = Command::new(binary())
        .args(["history", "--follow", "--json", "--kind=xid", &storage])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // It has opened the journal by then, or prints the event among the earlier ones.
    std::thread::sleep(Duration::from_millis(700));
    let xid = "NVRM: Xid (PCI:000f:01:00): 31, pid=7, name=VLLM::EngineCor, Ch 00000008";
    let mut kmsg = File::options().append(true).open(node.path("kmsg")).unwrap();
    for seq in 1..=2 {
        kmsg.write_all(format!("4,{seq},{seq}000,-;{xid}\n").as_bytes()).unwrap();
        std::thread::sleep(Duration::from_millis(700));
    }
    let lines = lines_of(child.stdout.take().unwrap(), 2);
    assert!(lines.iter().all(|line| line.contains("\"xid\"")), "{lines:#?}");
    // The end of the reader ends it, with the next entry.
    kmsg.write_all(format!("4,3,3000,-;{xid}\n").as_bytes()).unwrap();
    assert_eq!(wait(&mut child), Some(0));
    drop(daemon);
}

/// The first lines of a pipe, which is then closed.
fn lines_of(pipe: impl Read, count: usize) -> Vec<String> {
    use std::io::BufRead as _;
    std::io::BufReader::new(pipe).lines().take(count).map(Result::unwrap).collect()
}

fn wait(child: &mut std::process::Child) -> Option<i32> {
    for _ in 0..200 {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    child.kill().unwrap();
    panic!("it has not ended");
}

#[test]
fn a_start_says_in_three_lines_what_matters() {
    let node = Node::new("gb10-4k");
    fs::write(
        node.path("rules.yaml"),
        "groups:
- name: g
  rules:
  - alert: Leaked
    expr: uma_memory_verdict{verdict=\"leaked\"} == 1
",
    )
    .unwrap();
    let record = "4,1,1000,-;NVRM: Xid (PCI:000f:01:00): 31, pid=7, name=x, Ch 00000008\n";
    fs::write(node.path("kmsg"), record).unwrap();
    let dmi = node.path("sys/class/dmi/id");
    fs::create_dir_all(&dmi).unwrap();
    fs::write(dmi.join("product_name"), "NVIDIA DGX Spark\n").unwrap();
    let mut command = Command::new(binary());
    // Those of the test command are no settings, and each has a line.
    let set = std::env::vars_os().map(|(name, _)| name);
    set.filter(|name| name.to_string_lossy().starts_with("UMAWARDEN_")).for_each(|name| {
        command.env_remove(name);
    });
    let mut child = command
        .args(["run", "--web.listen-address=127.0.0.1:0", "--storage.path"])
        .arg(node.storage())
        .args(node.arguments())
        .env("NO_COLOR", "1")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(9_000));
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&child),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    let mut log = String::new();
    child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    child.wait().unwrap();
    // What this node lacks, which is no machine, is no part of it.
    let of_node = ["INFO end", "shipped_rules_off", "no memory pressure alarm", "source down"];
    let lines = log.lines().filter(|line| !of_node.iter().any(|text| line.contains(text)));
    let lines: Vec<&str> = lines.collect();
    let [found, does, shown, earlier] = lines[..] else { panic!("{log}") };
    assert!(earlier.contains("events from before this start") && earlier.contains("xid 1"));
    assert!(found.contains("found: NVIDIA DGX Spark, 121.0 GiB of memory, "), "{found}");
    assert!(found.contains("no inference engine"), "{found}");
    assert!(does.contains("does: 1 rule in 1 group, mode observe"), "{does}");
    assert!(does.contains("nothing is changed"), "{does}");
    assert!(shown.contains("shown: http://127.0.0.1:") && shown.contains("umawarden top"));
    assert!(!log.contains("rule unknown"), "{log}");
}

/// A daemon that answers every request for a picture with this one.
pub fn picture_server(socket: &Path, picture: &serde_json::Value) {
    let listener = std::os::unix::net::UnixListener::bind(socket).unwrap();
    let picture = picture.clone();
    std::thread::spawn(move || {
        listener.incoming().map_while(Result::ok).for_each(|stream| answer(stream, &picture));
    });
}

/// Answers one request.
pub fn answer(mut stream: impl Read + Write, picture: &serde_json::Value) {
    let body = json!({"status": "success", "data": picture}).to_string();
    let mut request = [0; 4096];
    let read = stream.read(&mut request).unwrap_or(0);
    let is_picture = request[..read].starts_with(b"GET /api/v1/picture ");
    let (status, body) =
        if is_picture { ("200 OK", body.as_str()) } else { ("404 Not Found", "{}") };
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n");
    // The client may be gone.
    let _ = stream.write_all(format!("{head}{body}").as_bytes());
}

pub fn picture(level: &str) -> serde_json::Value {
    json!({
        "node": "spark-1", "version": "0.1.0", "mode": "observe", "mode_text": "observe",
        "at": "2026-11-27T10:00:00Z", "uptime_seconds": 60.0,
        "well": {"level": level, "reasons": if level == "well" { vec![] } else { vec!["x fires"] }},
        "machine": {"model": "NVIDIA DGX Spark"},
        "memory": {
            "total_bytes": 1 << 30, "available_bytes": 1 << 29, "reserve_bytes": 1 << 20,
            "parts": [{"name": "qwen", "kind": "engine", "bytes": 1 << 29},
                      {"name": "free", "kind": "free", "bytes": 1 << 29}],
        },
        "engines": [{"name": "qwen", "kind": "vllm", "phase": "serving",
                     "since": "2026-11-27T09:00:00Z", "memory_bytes": 1 << 29}],
        "happened": [], "waiting": [], "nodes": [], "approvals": [],
    })
}

/// A name that is longer than a terminal is wide.
const LONG: &str =
    "stop engine with-a-name-that-is-so-long-that-no-terminal-of-eighty-columns-has-it";

/// A picture whose lists are longer than a terminal is high.
fn full_picture() -> serde_json::Value {
    let mut full = picture("warning");
    let at = "2026-11-27T09:59:00Z";
    full["well"]["reasons"] = (0..6).map(|number| format!("reason {number}")).collect();
    full["approvals"] = json!([{"decision": 12, "rule": "g/R", "what": LONG, "why": "low",
        "lapses": "2026-11-27T10:05:00Z"}]);
    full["happened"] = (0..20)
        .map(|number| {
            json!({"at": at, "kind": "event", "level": "info",
        "text": format!("it happened {number}")})
        })
        .collect();
    full["nodes"] = (2..8)
        .map(|number| {
            json!({"name": format!("spark-{number}"),
        "state": "answers", "weakest": false})
        })
        .collect();
    full["waiting"] = json!([{"who": "deepseek", "since": at, "kind": "start"}]);
    full
}

#[test]
fn status_and_top_print_one_screen_whose_exit_code_says_whether_it_is_well() {
    for (level, code) in [("well", 0), ("warning", 1), ("unknown", 1), ("critical", 3)] {
        let folder = tempfile::tempdir().unwrap();
        picture_server(&folder.path().join("control.sock"), &picture(level));
        let run = |arguments: &[&str]| {
            let mut command = Command::new(binary());
            command.args(arguments).arg("--storage.path").arg(folder.path());
            let output = command.env("LANG", "C.UTF-8").env_remove("LC_ALL").output().unwrap();
            (output.status.code(), String::from_utf8(output.stdout).unwrap())
        };
        let (ended, printed) = run(&["status"]);
        assert_eq!(ended, Some(code), "{level}: {printed}");
        assert!(printed.to_lowercase().contains(&format!("spark-1: {level}")), "{printed}");
        assert!(printed.lines().count() <= 24, "{printed}");
        assert!(printed.lines().all(|line| line.chars().count() <= 80), "{printed}");
        let (ended, json) = run(&["status", "--json"]);
        assert_eq!(ended, Some(code));
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&json).unwrap()["well"]["level"],
            level
        );
        for arguments in [&["top"][..], &["top", "--once"]] {
            assert_eq!(run(arguments), (Some(0), printed.clone()), "{arguments:?}");
        }
    }
    let folder = tempfile::tempdir().unwrap();
    picture_server(&folder.path().join("control.sock"), &full_picture());
    let storage = folder.path().to_str().unwrap();
    let whole = in_a_pipe(&["status", "--storage.path", storage]);
    assert!(whole.lines().count() > 24, "{whole}");
    assert!(whole.contains(&format!("umawarden approve 12  lapses in 5m: {LONG}; g/R: low\n")));
    assert!(whole.contains("\n  reason 5\n"), "{whole}");
    for command in [&["status"][..], &["top", "--once"]] {
        let arguments = [command, &["--storage.path", storage]].concat();
        let written = on_terminal(&arguments, &[("LC_ALL", "C.UTF-8")]);
        let written = plain(&written);
        assert!((20..24).contains(&written.lines().count()), "{arguments:?}: {written}");
        assert!(written.lines().all(|line| line.chars().count() <= 80), "{written}");
        for part in ["umawarden approve 12", "qwen", "spark-2", "deepseek", "it happened 0"] {
            assert!(written.contains(part), "{part}: {written}");
        }
    }

    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(binary());
    let output = command.args(["status", "--storage.path"]).arg(folder.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("start `umawarden run`"));
}

#[test]
fn watched_engines_are_printed_again_when_they_change() {
    let node = Node::new("gb10-4k");
    let own = node.arguments();
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    let daemon = Daemon::start(&node.storage(), &own);
    node.put_engine();
    daemon.wait_until("found", |daemon| daemon.get("/api/v1/engines").1.contains("vllm"));
    let mut child = Command::new(binary())
        .args(["engines", "--watch", "--storage.path"])
        .arg(node.storage())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(1_500));
    fs::remove_dir_all(node.path("proc/10")).unwrap();
    fs::remove_dir_all(node.path("proc/11")).unwrap();
    let lines = lines_of(child.stdout.take().unwrap(), 2);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!lines[0].contains(" gone ") && lines[1].contains(" gone "), "{lines:#?}");
}
