//! Signals whose default is to end a process, sent to one that watches.

use std::fs;
use std::process::Command;

use super::Node;

/// A set of signals of a process, as the kernel reports it.
fn signals(pid: u32, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    u64::from_str_radix(line.trim_start_matches(':').trim(), 16).unwrap()
}

const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

#[test]
fn stray_signals_are_logged_once_and_ignored() {
    let node = Node::new("gb10-4k");
    let daemon = node.start(&[]);
    let named = [
        ("SIGUSR1", libc::SIGUSR1),
        ("SIGUSR2", libc::SIGUSR2),
        ("SIGALRM", libc::SIGALRM),
        ("SIGVTALRM", libc::SIGVTALRM),
        ("SIGPROF", libc::SIGPROF),
        ("SIGIO", libc::SIGIO),
        ("SIGPWR", libc::SIGPWR),
        ("SIGSTKFLT", libc::SIGSTKFLT),
        ("SIGXFSZ", libc::SIGXFSZ),
        ("SIGRTMIN+0", libc::SIGRTMIN()),
        ("SIGRTMIN+3", libc::SIGRTMIN() + 3),
    ];
    for (name, number) in named {
        let line = format!("signal ignored signal=\"{name}\"");
        for _ in 0..3 {
            let sent = Command::new("kill")
                .args([format!("-{number}"), daemon.pid().to_string()])
                .status();
            assert!(sent.unwrap().success(), "{name}");
        }
        daemon.wait_until(name, |daemon| daemon.log().contains(&line));
        assert_eq!(daemon.get("/-/healthy").0, 200, "{name}");
        assert_eq!(daemon.log().matches(&line).count(), 1, "{}", daemon.log());
    }
    daemon.terminate();
}

/// Programs that the daemon starts get caught signals as usual; ignored and blocked ones are
/// inherited.
#[test]
fn only_sigpipe_is_ignored_and_no_signal_is_blocked() {
    let node = Node::new("gb10-4k");
    let daemon = node.start(&[]);
    // Signals that the test itself inherited are not set by the daemon.
    let given = |field| signals(std::process::id(), field);
    // 32 and 33 are the C library's own (nptl(7)).
    let of_library = bit(32) | bit(33);
    let own = |field| signals(daemon.pid(), field) & !given(field) & !of_library;
    assert_eq!(own("SigIgn") & !bit(libc::SIGPIPE), 0);
    assert_eq!(own("SigBlk"), 0);
    for signal in [libc::SIGUSR1, libc::SIGUSR2, libc::SIGHUP] {
        assert_ne!(signals(daemon.pid(), "SigCgt") & bit(signal), 0, "{signal}");
    }
    daemon.terminate();
}
