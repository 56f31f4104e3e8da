//! `umawarden top` in a real tmux.

mod ssh;

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use super::enabled;
use crate::daemon::{Daemon, binary};
use crate::run::Node;
use crate::terminal::{answer, picture, picture_server};

/// A session of tmux with one window, which ends when this is dropped.
struct Tmux {
    socket: tempfile::TempDir,
}

impl Tmux {
    /// Runs a shell command in a window of that size. What follows it shows its exit code.
    fn start(columns: u16, rows: u16, command: &str) -> Self {
        let tmux = Self { socket: tempfile::tempdir().unwrap() };
        let (columns, rows) = (columns.to_string(), rows.to_string());
        let script = format!("stty -echo; {command}; echo ended with $?; exec cat");
        let size = ["-x", &columns, "-y", &rows];
        // Locale and colours are those of a usual terminal.
        let mut start = tmux.command();
        start.env("LC_ALL", "C.UTF-8").env_remove("NO_COLOR");
        start.args(["-f", "/dev/null", "new-session", "-d"]).args(size);
        assert!(start.args(["sh", "-c", &script]).status().unwrap().success());
        tmux
    }

    fn command(&self) -> Command {
        let mut command = Command::new("tmux");
        command.arg("-S").arg(self.socket.path().join("s"));
        command
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let output = self.command().args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    fn keys(&self, keys: &str) {
        self.tmux(&["send-keys", keys]);
    }

    /// Waits until the screen has this.
    fn wait_for(&self, what: &str) -> String {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let screen = self.screen();
            if screen.contains(what) {
                return screen;
            }
            assert!(Instant::now() < deadline, "no {what:?} in\n{screen}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits for the end of the command, after which the screen is as it was, and the cursor there.
    fn ended_with(&self, code: i32) {
        let screen = self.wait_for("ended with ");
        assert!(screen.contains(&format!("ended with {code}")), "{screen}");
        assert!(!screen.contains("memory:"), "the other screen is left\n{screen}");
        let flags = self.tmux(&["display-message", "-p", "#{alternate_on} #{cursor_flag}"]);
        assert_eq!(flags.trim(), "0 1", "alternate screen and cursor");
    }

    /// The process of `top`.
    fn pid(&self) -> rustix::process::Pid {
        let shell = self.tmux(&["display-message", "-p", "#{pane_pid}"]);
        let children = format!("/proc/{0}/task/{0}/children", shell.trim());
        let children = std::fs::read_to_string(children).unwrap();
        let pid = children.split_whitespace().next().unwrap().parse().unwrap();
        rustix::process::Pid::from_raw(pid).unwrap()
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.command().arg("kill-server").output();
    }
}

fn is_there() -> bool {
    let has_tmux = Command::new("tmux").arg("-V").output().is_ok();
    if !has_tmux {
        eprintln!("skipped: tmux is not installed");
    }
    has_tmux && enabled()
}

fn top(storage: &Path, more: &str) -> String {
    format!("{} top --storage.path {} {more}", binary().display(), storage.display())
}

fn started() -> (Node, Daemon) {
    let node = Node::new("gb10-4k");
    let own = node.arguments();
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    let daemon = Daemon::start(&node.storage(), &own);
    (node, daemon)
}

#[test]
fn it_shows_a_daemon_and_follows_the_size_of_the_terminal() {
    if !is_there() {
        return;
    }
    let (node, daemon) = started();
    node.put_engine();
    let tmux = Tmux::start(80, 24, &top(&node.storage(), ""));
    let screen = tmux.wait_for("vllm");
    assert!(screen.contains(" available of 121.0 GiB"), "{screen}");
    assert!(screen.contains("q ends"), "{screen}");
    assert!(screen.lines().all(|line| line.chars().count() <= 80), "{screen}");
    tmux.tmux(&["resize-window", "-x", "120", "-y", "45"]);
    let deadline = Instant::now() + Duration::from_secs(10);
    while tmux.screen().lines().map(|line| line.chars().count()).max() < Some(110) {
        assert!(Instant::now() < deadline, "{}", tmux.screen());
        std::thread::sleep(Duration::from_millis(50));
    }
    tmux.tmux(&["resize-window", "-x", "30", "-y", "8"]);
    std::thread::sleep(Duration::from_millis(500));
    tmux.keys("q");
    tmux.ended_with(0);
    drop(daemon);
}

#[test]
fn keys_and_signals_end_it_and_leave_the_terminal_as_it_was() {
    if !is_there() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    picture_server(&folder.path().join("control.sock"), &picture("well"));
    let command = top(folder.path(), "");
    for (key, code) in [("q", 0), ("C-c", 0)] {
        let tmux = Tmux::start(80, 24, &command);
        tmux.wait_for("spark-1: well");
        tmux.keys(key);
        tmux.ended_with(code);
    }
    let tmux = Tmux::start(80, 24, &command);
    tmux.wait_for("spark-1: well");
    rustix::process::kill_process(tmux.pid(), rustix::process::Signal::TERM).unwrap();
    tmux.ended_with(143);
}

/// A node that answers over the network unless it is away.
fn far_node(name: &str) -> (String, Arc<AtomicBool>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let is_away = Arc::new(AtomicBool::new(false));
    let mut picture = picture("well");
    picture["node"] = name.into();
    let away = Arc::clone(&is_away);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            if !away.load(Ordering::Relaxed) {
                answer(stream, &picture);
            }
        }
    });
    (address, is_away)
}

#[test]
fn a_node_that_is_away_is_reported_and_queried_again() {
    if !is_there() {
        return;
    }
    let (address, is_away) = far_node("spark-7");
    let tmux = Tmux::start(80, 24, &top(Path::new("/nowhere"), &format!("--node {address}")));
    tmux.wait_for("spark-7: well");
    is_away.store(true, Ordering::Relaxed);
    let screen = tmux.wait_for("not of now: no answer for ");
    assert!(screen.contains("spark-7: unknown, was well"), "the last picture stays\n{screen}");
    is_away.store(false, Ordering::Relaxed);
    let deadline = Instant::now() + Duration::from_secs(10);
    while tmux.screen().contains("not of now") {
        assert!(Instant::now() < deadline, "{}", tmux.screen());
        std::thread::sleep(Duration::from_millis(50));
    }
    tmux.keys("q");
    tmux.ended_with(0);
}

#[test]
fn a_key_shows_another_node() {
    if !is_there() {
        return;
    }
    let ((first, _), (second, _)) = (far_node("spark-7"), far_node("spark-8"));
    let nodes = format!("--node {first},{second},127.0.0.1:1");
    let tmux = Tmux::start(100, 30, &top(Path::new("/nowhere"), &nodes));
    assert!(tmux.wait_for("1 of 3").contains("spark-7: well"));
    tmux.keys("2");
    assert!(tmux.wait_for("2 of 3").contains("spark-8: well"));
    tmux.keys("Tab");
    tmux.wait_for("no answer for ");
    assert!(tmux.wait_for("127.0.0.1:1").contains("Connection refused"));
    tmux.keys("Tab");
    tmux.wait_for("1 of 3");
    tmux.keys("q");
    tmux.ended_with(0);
}

#[test]
fn colours_are_left_out_where_they_are_not_wanted() {
    if !is_there() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut warning = picture("warning");
    warning["approvals"] = json!([{"decision": 3, "rule": "g/R", "what": "stop engine qwen",
        "why": "memory is low", "lapses": "2026-11-27T10:05:00Z"}]);
    picture_server(&folder.path().join("control.sock"), &warning);
    for (variables, has_colours) in [("", true), ("NO_COLOR=1", false)] {
        let tmux = Tmux::start(80, 24, &format!("{variables} {}", top(folder.path(), "")));
        tmux.wait_for("umawarden approve 3");
        let with_sequences = tmux.tmux(&["capture-pane", "-p", "-e"]);
        assert_eq!(with_sequences.contains("\x1b[38;5;3m"), has_colours, "{with_sequences:?}");
        tmux.keys("q");
        tmux.ended_with(0);
    }
    let tmux = Tmux::start(80, 24, &format!("TERM=dumb {}", top(folder.path(), "")));
    tmux.wait_for("ended with 0");
    assert!(tmux.screen().contains("spark-1: warning"), "one picture as text");
}
