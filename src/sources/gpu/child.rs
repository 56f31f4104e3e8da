//! The child process that queries the NVIDIA driver, seen from its parent: pipes never block, and
//! the parent never waits for its exit.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child as Process, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::parse::gpu::{GpuRequest, MAX_RESPONSE_BYTES, VERSION};
use crate::parse::process::printable;
use crate::sys::descriptors::restore_limit_of;

/// The command of this program that the child runs.
pub const HELPER: &str = "nvml-child";

/// The last bytes of its stderr that are kept.
const LAST_STDERR_BYTES: usize = 300;

/// The loader's search path for libraries.
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

#[derive(Debug)]
pub(super) struct Child {
    process: Process,
    requests: ChildStdin,
    answers: ChildStdout,
    stderr: Option<ChildStderr>,
    line: Vec<u8>,
    last_stderr: Vec<u8>,
}

/// The result of one read from the child.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ChildOutput {
    /// No complete line yet.
    Nothing,
    Line(Vec<u8>),
    /// A line above the size limit.
    TooMuch,
    /// The output is closed.
    End,
}

impl Child {
    /// Starts the child with nothing but three pipes. Other descriptors are closed at exec(2). The
    /// environment is cleared, since it may hold secrets.
    pub(super) fn start(program: &Path, library: Option<&Path>) -> io::Result<Self> {
        let mut command = Command::new(program);
        command.arg(HELPER).env_clear();
        if let Some(path) = std::env::var_os(LIBRARY_PATH) {
            command.env(LIBRARY_PATH, path);
        }
        if let Some(library) = library {
            command.args([OsStr::new("--library"), library.as_os_str()]);
        }
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = pipes.spawn()?;
        restore_limit_of(process.id());
        let taken = (process.stdin.take(), process.stdout.take(), process.stderr.take());
        let (Some(requests), Some(answers), Some(stderr)) = taken else {
            return Err(io::Error::other("it has no pipes"));
        };
        set_nonblocking(&requests)?;
        set_nonblocking(&answers)?;
        set_nonblocking(&stderr)?;
        Ok(Self {
            process,
            requests,
            answers,
            stderr: Some(stderr),
            line: Vec::new(),
            last_stderr: Vec::new(),
        })
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Sends a request. A request is shorter than a pipe, and at most one is open.
    pub(super) fn send(&mut self, number: u64) -> io::Result<()> {
        let mut line = serde_json::to_vec(&GpuRequest { version: VERSION, number })?;
        line.push(b'\n');
        self.requests.write_all(&line)
    }

    /// Waits for output, at most `at_most`.
    pub(super) fn wait(&self, at_most: Duration) {
        let timeout = Timespec {
            tv_sec: i64::try_from(at_most.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(at_most.subsec_nanos()),
        };
        let answers = self.answers.as_fd();
        let stderr = self.stderr.as_ref().map_or(answers, AsFd::as_fd);
        let mut watched = [
            PollFd::from_borrowed_fd(answers, PollFlags::IN),
            PollFd::from_borrowed_fd(stderr, PollFlags::IN),
        ];
        // An interrupted wait only ends early.
        let _ = poll(&mut watched, Some(&timeout));
    }

    /// Reads the next line without waiting.
    pub(super) fn receive(&mut self) -> ChildOutput {
        self.drain_stderr();
        loop {
            if let Some(end) = self.line.iter().position(|byte| *byte == b'\n') {
                let rest = self.line.split_off(end + 1);
                let mut line = std::mem::replace(&mut self.line, rest);
                line.pop();
                return ChildOutput::Line(line);
            }
            if self.line.len() > MAX_RESPONSE_BYTES {
                return ChildOutput::TooMuch;
            }
            let mut part = [0; 4 << 10];
            match self.answers.read(&mut part) {
                Ok(0) => return ChildOutput::End,
                Ok(length) => self.line.extend(part.iter().take(length)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return ChildOutput::Nothing,
                Err(_) => return ChildOutput::End,
            }
        }
    }

    /// Drains stderr, so that the pipe never fills up.
    fn drain_stderr(&mut self) {
        // Bounded: a child may write to stderr without end.
        for _ in 0..64 {
            let Some(stderr) = &mut self.stderr else { return };
            let mut part = [0; 4 << 10];
            match stderr.read(&mut part) {
                Ok(length @ 1..) => {
                    self.last_stderr.extend(part.iter().take(length));
                    let excess = self.last_stderr.len().saturating_sub(LAST_STDERR_BYTES);
                    self.last_stderr.drain(..excess);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Ok(_) | Err(_) => self.stderr = None,
            }
        }
    }

    /// The last line of its stderr, printable.
    pub(super) fn last_stderr(&self) -> String {
        let text = self.last_stderr.trim_ascii();
        printable(text.rsplit(|byte| *byte == b'\n').next().unwrap_or_default())
    }

    /// The process state in `/proc/PID/stat`. Children of this process are always in its own
    /// procfs.
    pub(super) fn state(&self) -> Option<char> {
        let stat = fs::read(format!("/proc/{}/stat", self.pid())).ok()?;
        crate::parse::process::stat(&stat).map(|stat| stat.state)
    }

    /// Sends SIGKILL. A process that hangs in the kernel dies once it leaves the kernel.
    pub(super) fn kill(&mut self) {
        // An error means that it has already exited.
        let _ = self.process.kill();
    }

    /// Closes the pipes. The child exits at the end of its input.
    pub(super) fn release(self) -> Process {
        self.process
    }
}

fn set_nonblocking(pipe: impl AsFd) -> io::Result<()> {
    let flags = fcntl_getfl(&pipe)?;
    Ok(fcntl_setfl(&pipe, flags | OFlags::NONBLOCK)?)
}
