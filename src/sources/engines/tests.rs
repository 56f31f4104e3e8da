use std::fs;
use std::time::Duration;

use super::scan::Scanner;
use crate::model::ProcessId;

/// A `/proc/PID/stat` of process 77, which the kernel started at tick 1234.
fn stat(state: char) -> String {
    let fields = ["0"; 30].join(" ");
    format!("77 (vllm) {state} 1 77 77 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 1234 {fields}\n")
}

#[test]
fn a_server_that_ends_during_a_scan_has_died_and_not_left_its_engine() {
    let procfs = tempfile::tempdir().unwrap();
    let folder = procfs.path().join("77");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("stat"), stat('S')).unwrap();
    fs::write(folder.join("cmdline"), "vllm\0serve\0/models/tiny\0").unwrap();
    let mut scanner = Scanner::new(procfs.path().to_owned(), Vec::new());
    let readings = scanner.scan(Duration::ZERO, false).unwrap();
    assert_eq!(readings.engines.len(), 1);
    let server = readings.engines[0].server;
    assert_eq!(server, ProcessId { pid: 77, start_ticks: 1234 });
    assert!(!scanner.has_turned(server), "it is the server of an engine");
    let mut other = Scanner::new(procfs.path().to_owned(), Vec::new());
    assert!(other.has_turned(server), "it lives and belongs to no engine");
    fs::write(folder.join("stat"), stat('Z')).unwrap();
    assert!(!other.has_turned(server), "it has ended and waits for its parent");
    fs::remove_dir_all(&folder).unwrap();
    assert!(!other.has_turned(server), "it is gone");
    assert!(other.scan(Duration::ZERO, false).unwrap().turned.is_empty());
}
