//! Priorities and locked memory of the program, so that it runs while memory is short.

use std::collections::BTreeMap;
use std::fs;

use super::Node;
use crate::daemon::Daemon;

/// The nice value of each thread by its name.
fn nice(daemon: &Daemon) -> BTreeMap<String, i64> {
    let threads = fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap();
    let of_thread = |thread: std::io::Result<fs::DirEntry>| {
        let stat = fs::read_to_string(thread.unwrap().path().join("stat")).unwrap();
        let (name, rest) = stat.rsplit_once(") ").unwrap();
        let name = name.split_once('(').unwrap().1.to_owned();
        // The 19th field of all, the 17th behind the name.
        (name, rest.split(' ').nth(16).unwrap().parse().unwrap())
    };
    threads.map(of_thread).collect()
}

fn status_kib(daemon: &Daemon, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn sampling_and_acting_threads_are_locked_in_memory_and_have_priority() {
    let node = Node::new("gb10-4k");
    // Without a black box as well.
    let daemon = node.start(&["--recording.black-box=0"]);
    let log = daemon.log();
    // The grant depends on the user of the test; its report must match.
    let locked_kib = status_kib(&daemon, "VmLck");
    if log.contains("not locked in memory") {
        assert_eq!(locked_kib, 0);
    } else {
        assert!(log.contains("locked in memory"), "{log}");
        assert!(locked_kib > status_kib(&daemon, "VmRSS"), "pages that come later too");
    }
    let score = fs::read_to_string(format!("/proc/{}/oom_score_adj", daemon.pid())).unwrap();
    let refused = log.contains("oom_score_adj not lowered");
    assert_eq!(refused, score.trim().parse::<i64>().unwrap() > -900, "{log}");
    let nice = nice(&daemon);
    let refused = log.contains("priority not raised");
    for raised in ["umawarden", "act", "act-watch"] {
        assert_eq!(refused, nice[raised] > -10, "{raised}: {nice:?}");
    }
    for other in ["journal", "recorder", "samples", "log", "http"] {
        assert_eq!(nice[other], i64::from(own_nice()), "{other}: {nice:?}");
    }
    daemon.terminate();
}

/// The value of this test, which the program inherits.
fn own_nice() -> i32 {
    rustix::process::getpriority_process(None).unwrap()
}
