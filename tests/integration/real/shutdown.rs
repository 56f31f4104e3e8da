//! SIGTERM ends the daemon within a second, with the journal closed.

use std::time::Duration;

use super::enabled;
use crate::daemon::{Daemon, history, of_kind};

#[test]
fn real_sigterm_ends_the_daemon_within_a_second_with_the_journal_closed() {
    if !enabled() {
        return;
    }
    let storage = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(storage.path(), &[]);
    // A client that keeps its connection open must not delay the shutdown.
    let idle = std::net::TcpStream::connect(daemon.address()).unwrap();
    let (took, log) = daemon.terminate();
    drop(idle);
    println!("ended in {took:?}");
    assert!(took < Duration::from_secs(1), "{took:?}:\n{log}");
    let left: Vec<_> = std::fs::read_dir(storage.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with("-wal"))
        .collect();
    assert!(left.is_empty(), "the journal was not closed: {left:?}");
    let history = history(storage.path());
    let notes: Vec<_> = of_kind(&history, "note").map(|note| note["text"].to_string()).collect();
    assert!(notes.iter().any(|note| note.contains("stopped")), "{notes:?}");
}
