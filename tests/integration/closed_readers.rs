//! Commands whose output pipe is closed early, or cannot be written.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use tempfile::TempDir;

use crate::daemon::{Daemon, binary};

const RULES: &str = "groups:
- name: g
  rules:
  - alert: Everyday
    expr: uma_memory_available_bytes >= 0
    labels: {severity: warning}
    remedy:
      aim: uma_memory_available_bytes < 0
      steps:
      - drop_caches: {what: pagecache}
      cooldown: 1h
";

/// All commands that end, on a fake node.
struct Commands {
    folder: TempDir,
    _daemon: Daemon,
}

impl Commands {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("rules.yaml"), RULES).unwrap();
        let mistaken = RULES.replace("uma_memory_available_bytes", "uma_memory_availible_bytes");
        fs::write(folder.path().join("mistaken.yaml"), mistaken).unwrap();
        let rules = format!("--rules={}", folder.path().join("rules.yaml").display());
        let data = folder.path().join("data");
        let daemon = Daemon::start(&data, &[&rules]);
        daemon.wait_until("a decision", |_| {
            let history = crate::daemon::history(&data);
            crate::daemon::of_kind(&history, "decision").next().is_some()
        });
        Self { folder, _daemon: daemon }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The arguments of every printing command, in the order of `umawarden --help`.
    fn all(&self) -> Vec<Vec<String>> {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let log = fixtures.join("kernel/oom-global-driver.log").display().to_string();
        let tests = fixtures.join("rules_test/good/ladder.yaml").display().to_string();
        let dir = format!("--storage.path={}", self.path("data").display());
        let rules = self.path("rules.yaml").display().to_string();
        let mistaken = self.path("mistaken.yaml").display().to_string();
        let data = self.path("data").display().to_string();
        let lines = [
            "--help".to_owned(),
            "--version".to_owned(),
            "help run".to_owned(),
            "history --no-such-flag".to_owned(),
            format!("dmesg {log}"),
            format!("dmesg --json {log}"),
            format!("config check --rules={rules}"),
            format!("config check --json --rules={rules}"),
            format!("config check --rules={mistaken}"),
            "token create --name=ci --role=read".to_owned(),
            format!("rules check {rules}"),
            format!("rules check {mistaken}"),
            format!("rules check --json {mistaken}"),
            format!("rules test {tests}"),
            "rules export".to_owned(),
            format!("rules report {dir}"),
            format!("promote {dir}"),
            format!("promote --json {dir}"),
            format!("history {dir}"),
            format!("history --json {dir}"),
            format!("history --rule=NoSuch {dir}"),
            format!("history --last-boot {dir}"),
            format!("top {dir}"),
            format!("status {dir}"),
            format!("status --json {dir}"),
            format!("cluster {dir}"),
            format!("query uma_memory_free_bytes {dir}"),
            format!("query --json uma_memory_free_bytes {dir}"),
            format!("engines {dir}"),
            format!("verdict {dir}"),
            format!("verdict --json {dir}"),
            format!("launch --name=x {dir} -- false"),
            "doctor".to_owned(),
            "doctor --json".to_owned(),
            format!("gate --need=1MiB --no-lease {dir}"),
            format!("gate --need=1MiB --no-lease --json {dir}"),
            format!("gate --need=900TiB {dir}"),
            format!("lease --need=900TiB {dir} -- true"),
            format!("loads {dir}"),
            format!("leases {dir}"),
            format!("fit --weights=1MiB {dir}"),
            format!("fit --weights=1MiB --json {dir}"),
            format!("adopt no-such-container {dir}"),
            format!("explain Everyday {dir}"),
            format!("explain Everyday --json {dir}"),
            format!("silence list {dir}"),
            format!("silence Everyday --for=1h {dir}"),
            format!("silence list {dir}"),
            format!("approve list {dir}"),
            format!("deny 7 {dir}"),
            format!("breaker list {dir}"),
            format!("reboot --status {dir}"),
            format!("pause status {dir}"),
            format!("resume {dir}"),
            format!("replay {log}"),
            format!("replay --json {data}"),
            "print unit".to_owned(),
            "tune".to_owned(),
            "tune --json".to_owned(),
        ];
        lines.iter().map(|line| line.split(' ').map(str::to_owned).collect()).collect()
    }
}

fn run(words: &[String], out: impl Into<Stdio>, error: impl Into<Stdio>) -> Output {
    let mut command = Command::new(binary());
    command.args(words).stdin(Stdio::null()).stdout(out).stderr(error).output().unwrap()
}

/// The write end of a pipe whose read end is closed.
fn closed() -> OwnedFd {
    let (_reader, writer) = rustix::pipe::pipe().unwrap();
    writer
}

fn exit_code(output: &Output) -> Option<i32> {
    output.status.code()
}

#[test]
fn a_closed_pipe_changes_no_exit_code_and_a_full_disk_is_an_error() {
    let commands = Commands::new();
    let mut faults = Vec::new();
    let mut printed = BTreeSet::new();
    for words in commands.all() {
        let open = run(&words, Stdio::piped(), Stdio::piped());
        let name = words.join(" ");
        let error = String::from_utf8_lossy(&open.stderr).into_owned();
        match open.stdout.is_empty() && open.stderr.is_empty() {
            true => faults.push(format!("`{name}` prints nothing")),
            false => _ = printed.insert(words[0].clone()),
        }
        let no_stdout = run(&words, closed(), Stdio::piped());
        let neither = run(&words, closed(), closed());
        let full = File::options().write(true).open("/dev/full").unwrap();
        let full = run(&words, full, Stdio::piped());
        for (which, output) in [("stdout", &no_stdout), ("stdout and stderr", &neither)] {
            if exit_code(output) != exit_code(&open) {
                let codes = (exit_code(&open), exit_code(output));
                faults.push(format!("`{name}` without a reader of {which}: {codes:?}; {error}"));
            }
        }
        let (closed, full_disk) =
            (String::from_utf8_lossy(&no_stdout.stderr), String::from_utf8_lossy(&full.stderr));
        if closed.contains("panicked") || full_disk.contains("panicked") {
            faults.push(format!("`{name}` panics: {closed}{full_disk}"));
        }
        let is_reported =
            full_disk.contains("cannot write to standard output: No space left on device");
        if !open.stdout.is_empty() && (exit_code(&full) != Some(2) || !is_reported) {
            faults.push(format!("`{name}` > /dev/full: {:?}, {full_disk}", exit_code(&full)));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert_eq!(unprinted(&printed), ["run"], "all other commands print");
}

/// The commands of the help that are not in `printed`.
fn unprinted(printed: &BTreeSet<String>) -> Vec<String> {
    let help = run(&["--help".to_owned()], Stdio::piped(), Stdio::null());
    let help = String::from_utf8(help.stdout).unwrap();
    let named = crate::commands::listed(&help).unwrap();
    named.into_iter().filter(|name| !printed.contains(name)).collect()
}

#[test]
fn output_to_a_non_blocking_pipe_is_complete() {
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    rustix::pipe::fcntl_setpipe_size(&writer, 4096).unwrap();
    fcntl_setfl(&writer, fcntl_getfl(&writer).unwrap() | OFlags::NONBLOCK).unwrap();
    let words = ["rules".to_owned(), "export".to_owned()];
    let whole = run(&words, Stdio::piped(), Stdio::piped());
    assert!(whole.stdout.len() > 8192, "{}", whole.stdout.len());
    let mut command = Command::new(binary());
    let mut child = command.args(&words).stdout(writer).stderr(Stdio::inherit()).spawn().unwrap();
    drop(command);
    std::thread::sleep(Duration::from_millis(300));
    let mut read = Vec::new();
    File::from(reader).read_to_end(&mut read).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(read == whole.stdout, "{} of {} bytes", read.len(), whole.stdout.len());
}

#[test]
fn a_growing_log_is_not_read_after_the_output_pipe_is_closed() {
    for command in ["dmesg", "replay"] {
        let (reader, mut log) = io::pipe().unwrap();
        let mut child = Command::new(binary())
            .args([command, "-"])
            .stdin(Stdio::from(reader))
            .stdout(closed())
            .spawn()
            .unwrap();
        let lines = (1..20_000).map(|second| {
            let text = format!("[{second:>5}.000000] NVRM: Xid (PCI:000f:01:00): 79, lost\n");
            log.write_all(text.as_bytes())
        });
        let refused = lines.filter_map(Result::err).next();
        let refused = refused.unwrap_or_else(|| panic!("{command} keeps on reading"));
        assert_eq!(refused.kind(), io::ErrorKind::BrokenPipe);
        let status = child.wait().unwrap();
        assert_eq!(status.code(), Some(i32::from(command == "dmesg")), "{command}");
    }
}
