//! The journal's folder, missing, replaced and unwritable.

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;

use super::{ALWAYS, Node, outcomes};
use crate::daemon::{Daemon, binary, history, of_kind};

#[test]
fn a_daemon_without_a_journal_samples_and_exports_and_does_not_act() {
    let node = Node::new("gb10-4k");
    node.write_rules(ALWAYS);
    fs::write(node.path("file"), "").unwrap();
    for storage in [node.path("file"), "/proc/umawarden".into()] {
        let daemon = node.start_with_storage(&storage, &["--mode=enforce"]);
        daemon.wait_until("down", |daemon| daemon.metrics().get("uma_journal_up") == Some(&0.0));
        assert_eq!(daemon.metric("uma_memory_total_bytes"), 129_945_600_000.0);
        daemon.wait_until("held", |daemon| holds(daemon, "journal_unreadable") > 0.0);
        assert_eq!(daemon.metric("uma_guard_rails_restored"), 0.0);
        for outcome in ["done", "failed", "skipped"] {
            assert_eq!(daemon.count(&outcomes("drop_caches", outcome)), 0.0, "{outcome}");
        }
        assert_eq!(fs::read_to_string(node.drop_caches()).unwrap(), "");
        let (status, _) = daemon.get("/api/v1/events");
        assert!([500, 503].contains(&status), "{status}");
        let (_, log) = daemon.terminate();
        // The second attempt may fail for another reason than the first.
        let attempts = log.matches("cannot read the acts of earlier runs").count();
        assert!((1..=2).contains(&attempts), "{log}");
        for line in [
            "the journal is down",
            "nothing will be acted on",
            "or name another with --storage.path",
            "lacks its newest entries",
        ] {
            assert!(log.contains(line), "{line}: {log}");
        }
    }
}

#[test]
fn remedies_act_once_the_journal_becomes_readable() {
    let node = Node::new("gb10-4k");
    node.write_rules(ALWAYS);
    let storage = node.path("file");
    fs::write(&storage, "").unwrap();
    let daemon = node.start_with_storage(&storage, &["--mode=enforce"]);
    daemon.wait_until("held", |daemon| holds(daemon, "journal_unreadable") > 0.0);
    fs::remove_file(&storage).unwrap();
    daemon.wait_until("done", |daemon| daemon.count(&outcomes("drop_caches", "done")) > 0.0);
    assert_eq!(daemon.metric("uma_guard_rails_restored"), 1.0);
    daemon.terminate();
    assert_eq!(fs::read_to_string(node.drop_caches()).unwrap(), "1");
}

/// The newer version has left a journal that this one cannot read, and later takes it up again.
#[test]
fn an_older_version_neither_acts_on_nor_changes_a_newer_journal() {
    let node = Node::new("gb10-4k");
    let daemon = node.start(&[]);
    daemon.wait_until("up", is_up);
    daemon.terminate();
    let file = node.path("data/journal.sqlite3");
    let change = |statements: &str| {
        rusqlite::Connection::open(&file).unwrap().execute_batch(statements).unwrap();
    };
    change(
        "PRAGMA user_version = 99;
         UPDATE meta SET value = 'umawarden 9.8.7' WHERE key = 'format_written_by'",
    );
    let before = fs::read(&file).unwrap();

    node.write_rules(ALWAYS);
    let older = node.start(&["--mode=enforce"]);
    older.wait_until("held", |daemon| holds(daemon, "journal_unreadable") > 0.0);
    assert!(!is_up(&older) && older.metric("uma_memory_total_bytes") > 0.0);
    let (_, log) = older.terminate();
    let reason = "has format 99, and this umawarden knows only up to 1: use umawarden 9.8.7";
    assert!(log.contains(reason), "{log}");
    assert_eq!(fs::read_to_string(node.drop_caches()).unwrap(), "");
    let shown = Command::new(binary())
        .args(["history", "--storage.path"])
        .arg(node.storage())
        .output()
        .unwrap();
    assert_eq!(shown.status.code(), Some(2), "{shown:?}");
    assert!(String::from_utf8_lossy(&shown.stderr).contains(reason), "{shown:?}");
    assert!(fs::read(&file).unwrap() == before, "the older version changed the journal");

    change("PRAGMA user_version = 1");
    let newer = node.start(&["--mode=enforce"]);
    newer.wait_until("done", |daemon| daemon.count(&outcomes("drop_caches", "done")) > 0.0);
    newer.terminate();
    let notes = texts(&node.storage());
    assert_eq!(notes.iter().filter(|note| note.starts_with("started")).count(), 2, "{notes:?}");
}

/// How often the rule was held for that reason.
fn holds(daemon: &Daemon, reason: &str) -> f64 {
    let metrics = daemon.metrics().into_iter();
    let wanted = format!("reason=\"{reason}\"");
    let holds = metrics
        .filter(|(series, _)| series.starts_with("uma_holds_total") && series.contains(&wanted));
    holds.map(|(_, value)| value).sum()
}

#[test]
fn a_vanished_folder_is_created_again() {
    let node = Node::new("gb10-4k");
    let daemon = node.start(&[]);
    daemon.wait_until("up", |daemon| daemon.metrics().get("uma_journal_up") == Some(&1.0));
    fs::remove_dir_all(node.storage()).unwrap();
    daemon.wait_until("back", |daemon| {
        // The control socket has gone with the folder.
        daemon.signal(Signal::HUP);
        fs::read_dir(node.storage()).is_ok_and(|mut files| files.next().is_some())
            && daemon.get("/api/v1/decisions").0 == 200
    });
    daemon.terminate();
    assert!(of_kind(&history(&node.storage()), "note").count() > 0);
}

fn texts(storage: &Path) -> Vec<String> {
    let history = history(storage);
    of_kind(&history, "note").map(|note| note["text"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn history_can_be_read_while_the_daemon_runs() {
    let node = Node::new("gb10-4k");
    let daemon = node.start(&[]);
    daemon.wait_until("noted", |_| {
        node.storage().is_dir() && texts(&node.storage()).iter().any(|t| t.starts_with("started"))
    });
    daemon.terminate();
    assert_eq!(texts(&node.storage()).last().unwrap(), "stopped");
}

fn is_up(daemon: &Daemon) -> bool {
    daemon.metrics().get("uma_journal_up") == Some(&1.0)
}

#[test]
fn the_second_daemon_on_a_folder_waits_for_the_first() {
    let node = Node::new("gb10-4k");
    let first = node.start(&[]);
    first.wait_until("up", is_up);
    let second = node.start(&[]);
    second.wait_until("reported", |daemon| daemon.log().contains("the journal is down"));
    assert!(!is_up(&second));
    assert!(second.metric("uma_memory_total_bytes") > 0.0);
    first.terminate();
    second.wait_until("up", is_up);
    second.terminate();
    let notes = texts(&node.storage());
    assert_eq!(notes.iter().filter(|note| note.starts_with("started")).count(), 2, "{notes:?}");
    assert_eq!(notes.iter().filter(|note| *note == "stopped").count(), 2, "{notes:?}");
}

#[test]
fn the_recorder_exports_its_own_series() {
    let node = Node::new("gb10-4k");
    node.write_rules(ALWAYS);
    let daemon = node.start(&[]);
    daemon.wait_until("an incident", |daemon| {
        daemon.metric("uma_recorder_incidents_total") == 1.0
            && daemon.metric("uma_recorder_written_bytes_total") > 0.0
    });
    assert_eq!(daemon.metric("uma_recorder_dropped_steps_total"), 0.0);
    daemon.terminate();
    fs::remove_dir_all(node.path("data/recording")).unwrap();
    fs::write(node.path("data/recording"), "a file where the folder should be").unwrap();
    let daemon = node.start(&[]);
    daemon.wait_until("lost steps", |daemon| {
        daemon.metric("uma_recorder_dropped_steps_total") > 0.0
            && daemon.metric("uma_recorder_write_errors_total") > 0.0
    });
    daemon.terminate();
    let daemon = node.start(&["--recording.size=0"]);
    assert!(!daemon.metrics().contains_key("uma_recorder_written_bytes_total"));
    daemon.terminate();
}
