//! The time of `umawarden explain` beside a running daemon: the whole process, as a person waits
//! for it.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::processes::Program;
use super::row;

const RUNS: usize = 50;
const RULE: &str = "PageCacheEatsReserve";

/// The daemon has recorded its rules by then, from which the command has the condition.
const RECORDED_WITHIN: Duration = Duration::from_secs(60);

/// What a run is to take at most.
const AT_MOST_MS: f64 = 100.0;

pub fn measure() {
    let storage = tempfile::tempdir().unwrap();
    let program = Program::umawarden(storage.path(), 19_945, &[]);
    let began = Instant::now();
    while !explained(storage.path()).contains("\"source\":\"daemon\"") {
        assert!(began.elapsed() < RECORDED_WITHIN, "the daemon explains nothing");
        std::thread::sleep(Duration::from_millis(200));
    }
    let run = |_| {
        let began = Instant::now();
        let explained = explained(storage.path());
        let took = began.elapsed().as_secs_f64() * 1000.0;
        assert!(explained.contains("\"source\":\"daemon\""), "{explained}");
        took
    };
    let times: Vec<f64> = (0..RUNS).map(run).collect();
    let late = times.iter().filter(|took| **took > AT_MOST_MS).count();
    row("umawarden explain of a rule, from the daemon", "ms", times);
    println!("{late} of {RUNS} runs took more than {AT_MOST_MS} ms");
    drop(program);
}

/// What the command prints.
fn explained(storage: &Path) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_umawarden"));
    command.args(["explain", RULE, "--json", "--storage.path"]).arg(storage);
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}
