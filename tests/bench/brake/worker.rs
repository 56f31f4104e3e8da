//! Worker processes: they wait for their start and never outlive this program.

use std::io::{self, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Signal, set_parent_process_death_signal};

/// A worker process, killed when dropped.
pub struct Worker {
    child: Child,
}

/// How a worker has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Killed by a signal.
    Stopped,
    /// Ended by itself.
    Done,
}

impl Worker {
    /// Starts this program with the arguments of a worker, and waits until it is ready.
    pub fn start(arguments: &[String]) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        Self { child }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Lets the worker begin; returns the time.
    pub fn go(&mut self) -> Instant {
        let began = Instant::now();
        self.child.stdin.as_mut().unwrap().write_all(b"!").unwrap();
        began
    }

    /// Waits until the worker has taken its memory.
    pub fn wait_for_signal(&mut self) {
        self.child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    }

    /// How the worker has ended, if it has.
    pub fn ended(&mut self) -> Option<Ended> {
        let status = self.child.try_wait().unwrap()?;
        Some(if status.signal().is_some() { Ended::Stopped } else { Ended::Done })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In the worker: ends it with its parent, and makes the OOM killer prefer it to foreign processes.
/// Among the processes of this program the OOM killer's choice does not change.
pub fn end_with_parent() {
    std::fs::write("/proc/self/oom_score_adj", "300").unwrap();
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
}

/// In the worker: reports that it is ready, or that it has taken its memory.
pub fn signal() {
    io::stdout().write_all(b"!").unwrap();
    io::stdout().flush().unwrap();
}

/// In the worker: waits for the start; ends if the parent has closed the pipe.
pub fn await_start() {
    if io::stdin().read_exact(&mut [0]).is_err() {
        std::process::exit(0);
    }
}

/// Whether the condition becomes true within that time.
pub fn holds_within(within: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + within;
    while Instant::now() < deadline {
        if holds() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}
