//! `umawarden launch` with real processes: signals and streams of the command, and reports of its
//! end.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::Value;

use crate::daemon::{Daemon, binary, history, of_kind};

/// A folder for the output of a command, and a program with the name of an engine's worker.
struct Fixture {
    folder: tempfile::TempDir,
}

/// Resets signals that were ignored when the tests were started: a shell cannot trap those.
fn with_default_signals() -> Command {
    let mut command = Command::new("env");
    command.arg("--default-signal=HUP,INT,QUIT,TERM,USR1,USR2,WINCH");
    command
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::copy("/bin/sleep", folder.path().join("VLLM::EngineCor")).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn launch(&self, options: &[&str], script: &str) -> Command {
        let mut command = with_default_signals();
        command
            .arg(binary())
            .arg("launch")
            .arg("--json")
            .arg("--storage.path")
            .arg(self.path("data"))
            .args(options)
            .args(["--", "sh", "-c", script])
            .current_dir(self.folder.path())
            .env_remove("STATE_DIRECTORY")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn ended(&self, options: &[&str], script: &str) -> Ended {
        Ended::new(self.launch(options, script).output().unwrap())
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    fn wait_for(&self, name: &str, text: &str) {
        wait_until(&format!("{text:?} in {name}"), || self.read(name).contains(text));
    }

    fn pid(&self, name: &str) -> Pid {
        wait_until(name, || self.read(name).ends_with('\n'));
        Pid::from_raw(self.read(name).trim().parse().unwrap()).unwrap()
    }
}

fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < deadline, "not within 30 s: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Exit code and output of the launcher.
struct Ended {
    code: i32,
    stdout: String,
    stderr: String,
    report: Value,
}

impl Ended {
    fn new(output: Output) -> Self {
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let report = stderr.lines().find_map(|line| serde_json::from_str(line).ok());
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr,
            report: report.unwrap_or_default(),
        }
    }

    fn not_known(&self) -> String {
        self.report["not_known"].to_string()
    }
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_child(child)
}

#[test]
fn launch_exits_with_the_code_of_its_command() {
    let fixture = Fixture::new();
    for (script, code, ended_by, is_failure) in [
        ("exit 0", 0, "code", false),
        ("exit 3", 3, "code", true),
        ("kill -TERM $$", 143, "signal", true),
        ("kill -KILL $$", 137, "signal", true),
        ("kill -SEGV $$", 139, "signal", true),
    ] {
        let ended = fixture.ended(&[], script);
        assert_eq!(ended.code, code, "{script}: {}", ended.stderr);
        assert_eq!(ended.report["exit"]["ended_by"], ended_by, "{script}");
        assert_eq!(ended.report["is_failure"], is_failure, "{script}");
    }
    let run = |command: &[&str]| {
        let mut launch = Command::new(binary());
        launch.args(["launch", "--storage.path"]).arg(fixture.path("data")).arg("--");
        let output = launch.args(command).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, why) = run(&["/no/such/program"]);
    assert!(code == 127 && why.contains("there is no such command"), "{why}");
    let (code, why) = run(&["/etc/passwd"]);
    assert!(code == 126 && why.contains("cannot be executed"), "{why}");
    assert_eq!(run(&[]).0, 2, "no command at all");
}

#[test]
fn standard_input_and_output_belong_to_the_command() {
    let fixture = Fixture::new();
    let mut command = fixture.launch(&[], "read line; echo \"got $line\"");
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"hello\n").unwrap();
    let ended = Ended::new(child.wait_with_output().unwrap());
    assert_eq!((ended.code, &*ended.stdout), (0, "got hello\n"));
    assert_eq!(ended.not_known().matches("no daemon runs here").count(), 1, "{}", ended.report);
}

/// Records every signal; the shell handles them between two short sleeps.
const TRAPS: &str = "for s in HUP INT QUIT USR1 USR2 WINCH; do trap \"echo $s >>signals\" $s; done; \
                     trap 'echo TERM >>signals; exit 0' TERM; echo ready >>signals; \
                     while :; do sleep 0.05; done";

#[test]
fn signals_are_passed_on_once_and_the_sender_is_reported() {
    let fixture = Fixture::new();
    let child = fixture.launch(&[], TRAPS).spawn().unwrap();
    fixture.wait_for("signals", "ready");
    let mut expected = "ready\n".to_owned();
    for (signal, name) in [
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
        (Signal::WINCH, "WINCH"),
        (Signal::HUP, "HUP"),
        (Signal::INT, "INT"),
        (Signal::QUIT, "QUIT"),
        (Signal::TERM, "TERM"),
    ] {
        kill_process(pid_of(&child), signal).unwrap();
        fixture.wait_for("signals", name);
        expected.push_str(&format!("{name}\n"));
    }
    let ended = Ended::new(child.wait_with_output().unwrap());
    assert_eq!(fixture.read("signals"), expected);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let killer = &ended.report["killer"];
    // The first signal that could have ended it.
    assert_eq!((&killer["by"], &killer["signal"]), (&"signal".into(), &1.into()), "{killer}");
    let own = format!("(pid {})", std::process::id());
    assert!(killer["sender"].as_str().unwrap().contains(&own), "{killer}");
    assert_eq!(ended.report["is_failure"], false);
}

#[test]
fn a_signal_before_the_start_of_the_command_reaches_it() {
    let fixture = Fixture::new();
    // The signal ends it at any moment, and no process is left.
    for delay in [0, 1, 2, 4, 8, 16] {
        let child = fixture.launch(&[], "exec sleep 1000").spawn().unwrap();
        std::thread::sleep(Duration::from_millis(delay));
        kill_process(pid_of(&child), Signal::TERM).unwrap();
        let output = child.wait_with_output().unwrap();
        let by_signal = std::os::unix::process::ExitStatusExt::signal(&output.status);
        // Before its signal handlers are installed it dies of the signal as any program does.
        assert!(output.status.code() == Some(143) || by_signal == Some(15), "{output:?}");
    }
}

/// `script` provides the terminal, and bash is the shell that stops and continues jobs.
#[test]
fn a_key_on_the_terminal_reaches_the_command_once_and_job_control_works() {
    let fixture = Fixture::new();
    let launch = format!(
        "{} launch --storage.path data -- sh -c 'echo $PPID >launcher; echo $$ >own; {}'",
        binary().display(),
        TRAPS.replace('\'', "'\\''")
    );
    let job = format!("{launch}\necho stopped >>signals\nfg\n");
    fs::write(fixture.path("job.sh"), job).unwrap();
    let mut terminal = with_default_signals()
        .args(["script", "-qec", "bash -m job.sh", "/dev/null"])
        .current_dir(fixture.folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut keys = terminal.stdin.take().unwrap();
    let mut press = |key: u8| {
        keys.write_all(&[key]).unwrap();
        keys.flush().unwrap();
    };
    fixture.wait_for("signals", "ready");
    press(3);
    fixture.wait_for("signals", "INT");
    press(28);
    fixture.wait_for("signals", "QUIT");
    // Long enough for a second signal to arrive.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(fixture.read("signals"), "ready\nINT\nQUIT\n");
    let [launcher, own] = ["launcher", "own"].map(|name| fixture.pid(name));
    let is_stopped = |pid: Pid| state(pid.as_raw_nonzero().get()) == Some('T');
    press(26);
    // The shell owns its terminal again, and continues both.
    fixture.wait_for("signals", "stopped");
    wait_until("both continued", || !is_stopped(launcher) && !is_stopped(own));
    kill_process(launcher, Signal::TERM).unwrap();
    fixture.wait_for("signals", "TERM");
    terminal.wait().unwrap();
    assert_eq!(fixture.read("signals"), "ready\nINT\nQUIT\nstopped\nTERM\n");
}

fn state(pid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

#[test]
fn orphans_are_reaped_as_soon_as_they_exit() {
    let fixture = Fixture::new();
    let script = "for i in 1 2 3 4 5 6 7 8; do (sleep 0.1 & echo $! >>orphans); done; \
                  echo ready >>signals; read line";
    let mut child = fixture.launch(&[], script).stdin(Stdio::piped()).spawn().unwrap();
    fixture.wait_for("signals", "ready");
    let orphans: Vec<i32> =
        fixture.read("orphans").lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(orphans.len(), 8);
    // An orphan without a reaper stays a zombie for as long as its parent lives.
    wait_until("all reaped", || orphans.iter().all(|pid| state(*pid).is_none()));
    assert_eq!(state(pid_of(&child).as_raw_nonzero().get()), Some('S'));
    drop(child.stdin.take());
    let ended = Ended::new(child.wait_with_output().unwrap());
    assert_eq!(ended.report["orphans"], Value::Null, "{}", ended.stderr);
}

#[test]
fn a_process_that_outlives_the_command_is_named_and_killed_on_request() {
    let fixture = Fixture::new();
    // A process that keeps standard output open keeps the test waiting.
    let script = "./VLLM::EngineCor 1000 >/dev/null 2>&1 & echo $! >worker; sleep 0.5";
    let ended = fixture.ended(&["--grace", "200ms"], script);
    let worker = fixture.pid("worker");
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let orphan = &ended.report["orphans"][0];
    assert_eq!(orphan["pid"], worker.as_raw_nonzero().get());
    assert_eq!(orphan["comm"], "VLLM::EngineCor");
    assert!(orphan["bytes"].as_u64().unwrap() > 0, "{orphan}");
    test_kill_process(worker).unwrap();
    kill_process(worker, Signal::KILL).unwrap();

    let bystander = Command::new(fixture.path("VLLM::EngineCor")).arg("1000").spawn().unwrap();
    fs::remove_file(fixture.path("worker")).unwrap();
    let ended = fixture.ended(&["--grace", "200ms", "--kill-orphans"], script);
    let worker = fixture.pid("worker");
    assert_eq!(ended.report["orphans"][0]["is_killed"], true, "{}", ended.stderr);
    assert!(test_kill_process(worker).is_err(), "it is still there");
    test_kill_process(pid_of(&bystander)).unwrap();
    end(bystander);
}

fn end(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// As with `vllm serve`: its EngineCore is killed, and it exits with 0.
const WORKER_KILLED: &str = "./VLLM::EngineCor 1000 & echo $! >worker; wait $!; sleep 0.2; exit 0";

#[test]
fn a_killed_worker_is_a_failure_although_the_command_exits_0() {
    let fixture = Fixture::new();
    for (options, code) in [(&[][..], 79), (&["--pass-exit-code"][..], 0)] {
        // It may be absent.
        let _ = fs::remove_file(fixture.path("worker"));
        let child = fixture.launch(options, WORKER_KILLED).spawn().unwrap();
        let worker = fixture.pid("worker");
        // It lives long enough for a scan to find it.
        std::thread::sleep(Duration::from_millis(500));
        kill_process(worker, Signal::KILL).unwrap();
        let ended = Ended::new(child.wait_with_output().unwrap());
        assert_eq!(ended.code, code, "{}", ended.stderr);
        let report = &ended.report;
        assert_eq!(report["is_failure"], true, "{report}");
        assert_eq!(report["exit"]["code"], 0);
        let killed = &report["killed_workers"][0];
        assert_eq!(killed["pid"], worker.as_raw_nonzero().get(), "{report}");
        assert_eq!(killed["comm"], "VLLM::EngineCor");
        assert_eq!(killed["status"]["signal"], 9);
        assert_eq!(
            (&report["killer"]["by"], &report["killer"]["signal"]),
            (&"signal".into(), &9.into())
        );
        assert!(report["memory"]["total_bytes"].as_u64().unwrap() > 0);
    }
}

#[test]
fn workers_that_end_after_a_requested_stop_are_no_failure() {
    let fixture = Fixture::new();
    let script = "./VLLM::EngineCor 1000 & echo $! >worker; \
                  trap 'kill -KILL $(cat worker); wait; exit 0' TERM; \
                  echo ready >>signals; while :; do sleep 0.05; done";
    let child = fixture.launch(&[], script).spawn().unwrap();
    fixture.wait_for("signals", "ready");
    std::thread::sleep(Duration::from_millis(500));
    kill_process(pid_of(&child), Signal::TERM).unwrap();
    let ended = Ended::new(child.wait_with_output().unwrap());
    assert_eq!((ended.code, &ended.report["is_failure"]), (0, &false.into()), "{}", ended.report);
}

#[test]
fn the_command_survives_a_killed_launcher() {
    let fixture = Fixture::new();
    let mut child = fixture.launch(&[], "echo $$ >own; exec sleep 1000").spawn().unwrap();
    let own = fixture.pid("own");
    child.kill().unwrap();
    child.wait().unwrap();
    std::thread::sleep(Duration::from_millis(200));
    test_kill_process(own).unwrap();
    kill_process(own, Signal::KILL).unwrap();
}

#[test]
fn the_daemon_reports_a_launched_engine_as_loading_and_journals_its_death() {
    let fixture = Fixture::new();
    let storage = fixture.path("data");
    let rules = fixture.path("rules.yaml");
    fs::write(&rules, "groups: []\n").unwrap();
    let kmsg = fixture.path("kmsg");
    fs::write(&kmsg, "").unwrap();
    let rules = format!("--rules={}", rules.display());
    let daemon = Daemon::start(&storage, &[&rules, &format!("--path.kmsg={}", kmsg.display())]);
    let child = fixture.launch(&["--name", "chat"], WORKER_KILLED).spawn().unwrap();
    let worker = fixture.pid("worker");
    let engine = |daemon: &Daemon| {
        let (_, body) = daemon.get("/api/v1/engines");
        let answer: Value = serde_json::from_str(&body).unwrap();
        let engines = answer["data"]["engines"].as_array().unwrap().clone();
        engines.into_iter().find(|engine| engine["name"] == "chat").unwrap_or_default()
    };
    daemon.wait_until("loading", |daemon| engine(daemon)["phase"] == "loading");
    let found = engine(&daemon);
    assert_eq!(found["reason"], "umawarden launch has started it", "{found}");
    let pids = |daemon: &Daemon| -> Vec<i64> {
        let processes = engine(daemon)["processes"].as_array().cloned().unwrap_or_default();
        processes.iter().map(|process| process["pid"].as_i64().unwrap()).collect()
    };
    let worker_pid = i64::from(worker.as_raw_nonzero().get());
    daemon.wait_until("its worker", |daemon| pids(daemon).contains(&worker_pid));
    assert!(!pids(&daemon).contains(&i64::from(child.id())), "the launcher is none of it");
    // The launcher gets the phase with its next message.
    std::thread::sleep(Duration::from_millis(2500));
    kill_process(worker, Signal::KILL).unwrap();
    let ended = Ended::new(child.wait_with_output().unwrap());
    assert_eq!(ended.code, 79, "{}", ended.stderr);
    assert_eq!(ended.report["phase"], "loading", "{}", ended.report);
    assert!(!ended.stderr.contains("in no journal"), "{}", ended.stderr);
    daemon.wait_until("journalled", |daemon| {
        daemon.get("/api/v1/events?kind=engine_died").1.contains("\"chat\"")
    });
    drop(daemon);
    let history = history(&storage);
    // Engines of other tests die meanwhile, and are recorded too.
    let is_its = |died: &&Value| died["report"]["who"]["name"] == "chat";
    let died: Vec<_> = of_kind(&history, "engine_died").filter(is_its).collect();
    let [died] = died.as_slice() else { panic!("{died:#?}") };
    assert!(died.to_string().contains("VLLM::EngineCor"), "{died:#?}");
    assert_eq!(died["report"]["killed_workers"], ended.report["killed_workers"]);
}

#[test]
fn the_report_goes_to_the_named_file_without_a_daemon() {
    let fixture = Fixture::new();
    let file = fixture.path("deaths.jsonl");
    for _ in 0..2 {
        let ended = fixture.ended(&["--report-file", file.to_str().unwrap()], "exit 1");
        assert!(ended.stderr.contains("it is in "), "{}", ended.stderr);
    }
    let lines = fs::read_to_string(&file).unwrap();
    let reports: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(reports.len(), 2);
    assert_eq!(reports[1]["exit"]["code"], 1);
    let ended = fixture.ended(&["--report-file", "/no/such/folder/file"], "exit 1");
    assert!(ended.stderr.contains("kept nowhere"), "{}", ended.stderr);
    assert_eq!(ended.code, 1);
}

#[test]
fn an_unreadable_kernel_log_is_reported() {
    let fixture = Fixture::new();
    let folder = Path::new("--path.kmsg=/");
    let ended = fixture.ended(&[folder.to_str().unwrap()], "kill -KILL $$");
    assert_eq!(ended.report["killer"]["by"], "unknown", "{}", ended.report);
    assert!(ended.not_known().contains("OOM kills are not seen"), "{}", ended.report);
}

#[test]
fn a_launched_engine_that_is_declared_by_its_command_line_is_one_engine() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("c.yaml");
    let text = format!(
        "storage: {{path: {}}}\nengines: [{{name: one, match: {{cmdline: \"*sleep 31{}7\"}}}}]\n",
        folder.path().join("data").display(),
        std::process::id()
    );
    fs::write(&config, text).unwrap();
    let config = format!("--config.file={}", config.display());
    let daemon = Daemon::start(&folder.path().join("data"), &[&config]);
    let mut launch = Command::new(binary());
    launch.args(["launch", &config, "--name=one", "--", "sleep"]);
    let mut launch = launch.arg(format!("31{}7", std::process::id())).spawn().unwrap();
    let names = || {
        let (_, body) = daemon.get("/api/v1/engines");
        let body: Value = serde_json::from_str(&body).unwrap();
        let engines = body["data"]["engines"].as_array().unwrap().clone();
        let name = |one: &Value| one["name"].as_str().unwrap().to_owned();
        engines.iter().map(name).filter(|name| name.starts_with("one")).collect::<Vec<_>>()
    };
    daemon.wait_until("found", |_| !names().is_empty());
    std::thread::sleep(Duration::from_secs(3));
    let found = names();
    kill_process(Pid::from_child(&launch), Signal::TERM).unwrap();
    launch.wait().unwrap();
    assert_eq!(found, ["one"]);
}

/// Has an engine die of a reason that only its log shows.
fn dies_with_a_reason(fixture: &Fixture, options: &[&str], mut to: Command) -> Output {
    let script = "echo loads; echo torch.OutOfMemoryError: CUDA out of memory. >&2; exit 1";
    let launch = fixture.launch(options, script);
    to.args([launch.get_program()]).args(launch.get_args());
    to.output().unwrap()
}

fn reported(text: &[u8]) -> Value {
    let text = String::from_utf8_lossy(text);
    let line = text.lines().find(|line| line.starts_with('{'));
    serde_json::from_str(line.unwrap_or_else(|| panic!("{text}"))).unwrap()
}

#[test]
fn what_the_command_writes_last_is_reported_from_a_file_or_with_tee() {
    let fixture = Fixture::new();
    let mut to_file = Command::new("sh");
    let log = fixture.path("log");
    fs::write(&log, "of an earlier run\n").unwrap();
    to_file.args(["-c", "exec \"$@\" >>$0"]).arg(&log);
    let done = dies_with_a_reason(&fixture, &[], to_file);
    assert_eq!(reported(&done.stderr)["last_lines"], serde_json::json!(["loads"]));
    let done = dies_with_a_reason(&fixture, &["--tee"], Command::new("env"));
    assert_eq!((done.status.code(), &*done.stdout), (Some(1), &b"loads\n"[..]));
    let report = reported(&done.stderr);
    assert!(done.stderr.starts_with(b"torch.OutOfMemoryError"), "it is passed through");
    let lines = serde_json::json!(["loads", "torch.OutOfMemoryError: CUDA out of memory."]);
    assert_eq!(report["last_lines"], lines, "{report:#}");
    assert!(report["cause"].as_str().unwrap().contains("memory"), "{report:#}");
    let done = dies_with_a_reason(&fixture, &[], Command::new("env"));
    assert!(reported(&done.stderr)["last_lines"].is_null(), "not with pipes of others");
}

#[test]
fn with_tee_much_output_is_passed_through_and_a_closed_pipe_ends_the_command() {
    let fixture = Fixture::new();
    let script = "head -c 3000000 /dev/zero | tr '\\0' x; printf 'the end'";
    let done = fixture.launch(&["--tee"], script).output().unwrap();
    assert_eq!(done.stdout.len(), 3_000_007);
    assert!(done.stdout.ends_with(b"the end"));
    let mut launch = fixture.launch(&["--tee", "--grace=0s"], "while :; do echo text; done");
    let mut child = launch.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    drop(child.stdout.take());
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(began.elapsed() < Duration::from_secs(20), "it writes on");
        std::thread::sleep(Duration::from_millis(20));
    }
}
