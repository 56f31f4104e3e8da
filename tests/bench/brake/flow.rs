//! A child that waits for its word, and never outlives this program.

use std::io::{self, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Signal, set_parent_process_death_signal};

/// A child; killed when dropped.
pub struct Flow {
    child: Child,
}

/// How a child has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Somebody has killed it.
    Stopped,
    /// By itself.
    Done,
}

impl Flow {
    /// Starts this program as something else, and waits until it says that it is ready.
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

    /// Gives it its word; returns when that was.
    pub fn go(&mut self) -> Instant {
        let began = Instant::now();
        self.child.stdin.as_mut().unwrap().write_all(b"!").unwrap();
        began
    }

    /// Waits until it has said that it is where it wanted to be.
    pub fn arrived(&mut self) {
        self.child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    }

    /// How it has ended, if it has.
    pub fn ended(&mut self) -> Option<Ended> {
        let status = self.child.try_wait().unwrap()?;
        Some(if status.signal().is_some() { Ended::Stopped } else { Ended::Done })
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        let _already_dead = self.child.kill();
        let _already_reaped = self.child.wait();
    }
}

/// In the child: it dies with its parent, and is shot rather than anybody who happens to run here: an
/// OOM killer's choice among those of this program stays as it is.
pub fn die_with_parent() {
    std::fs::write("/proc/self/oom_score_adj", "300").unwrap();
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
}

/// In the child: says that it is ready, or where it wanted to be.
pub fn tell() {
    io::stdout().write_all(b"!").unwrap();
    io::stdout().flush().unwrap();
}

/// In the child: waits for its word. Without one it ends.
pub fn await_word() {
    if io::stdin().read_exact(&mut [0]).is_err() {
        std::process::exit(0);
    }
}

/// Waits for something, and says whether it has come in time.
pub fn comes_true(within: Duration, mut is_true: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + within;
    while Instant::now() < deadline {
        if is_true() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}
