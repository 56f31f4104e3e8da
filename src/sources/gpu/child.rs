//! The process that asks the driver, as its parent has it: pipes that never block, and no waiting
//! for its end.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child as Process, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::parse::gpu::{MAX_ANSWER_BYTES, Question, VERSION};
use crate::parse::process::printable;
use crate::sys::descriptors::restore_limit_of;

/// What it says beside its answers is kept so far: its last words.
const LAST_WORDS_BYTES: usize = 300;

/// How the loader is told where libraries are.
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

/// One that runs.
#[derive(Debug)]
pub(super) struct Child {
    process: Process,
    questions: ChildStdin,
    answers: ChildStdout,
    complaints: Option<ChildStderr>,
    line: Vec<u8>,
    last_words: Vec<u8>,
}

/// What came from it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// Nothing more for now.
    Nothing,
    /// A line.
    Line(Vec<u8>),
    /// More than any answer has.
    TooMuch,
    /// It says no more.
    End,
}

impl Child {
    /// Starts it, with nothing of ours but the three pipes: descriptors of this program are all
    /// closed at exec(2), and its environment may hold secrets.
    pub(super) fn start(program: &Path, library: Option<&Path>) -> io::Result<Self> {
        let mut command = Command::new(program);
        command.arg("nvml-child").env_clear();
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
        let (Some(questions), Some(answers), Some(complaints)) = taken else {
            return Err(io::Error::other("it has no pipes"));
        };
        never_block(&questions)?;
        never_block(&answers)?;
        never_block(&complaints)?;
        Ok(Self {
            process,
            questions,
            answers,
            complaints: Some(complaints),
            line: Vec::new(),
            last_words: Vec::new(),
        })
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Asks. A question is shorter than a pipe, and there is never a second one in it.
    pub(super) fn ask(&mut self, number: u64) -> io::Result<()> {
        let mut line = serde_json::to_vec(&Question { version: VERSION, number })?;
        line.push(b'\n');
        self.questions.write_all(&line)
    }

    /// Waits until it says something, at most so long.
    pub(super) fn wait(&self, at_most: Duration) {
        let timeout = Timespec {
            tv_sec: i64::try_from(at_most.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(at_most.subsec_nanos()),
        };
        let answers = self.answers.as_fd();
        let complaints = self.complaints.as_ref().map_or(answers, AsFd::as_fd);
        let mut watched = [
            PollFd::from_borrowed_fd(answers, PollFlags::IN),
            PollFd::from_borrowed_fd(complaints, PollFlags::IN),
        ];
        // An interrupted wait is a short one.
        let _interrupted = poll(&mut watched, Some(&timeout));
    }

    /// What it has said since. Never waits.
    pub(super) fn hear(&mut self) -> Heard {
        self.hear_complaints();
        loop {
            if let Some(end) = self.line.iter().position(|byte| *byte == b'\n') {
                let rest = self.line.split_off(end + 1);
                let mut line = std::mem::replace(&mut self.line, rest);
                line.pop();
                return Heard::Line(line);
            }
            if self.line.len() > MAX_ANSWER_BYTES {
                return Heard::TooMuch;
            }
            let mut part = [0; 4 << 10];
            match self.answers.read(&mut part) {
                Ok(0) => return Heard::End,
                Ok(length) => self.line.extend(part.iter().take(length)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Heard::Nothing,
                Err(_) => return Heard::End,
            }
        }
    }

    /// Takes what stands in the pipe, so that it never fills up.
    fn hear_complaints(&mut self) {
        // Whoever complains without end is heard for a while.
        for _ in 0..64 {
            let Some(complaints) = &mut self.complaints else { return };
            let mut part = [0; 4 << 10];
            match complaints.read(&mut part) {
                Ok(length @ 1..) => {
                    self.last_words.extend(part.iter().take(length));
                    let excess = self.last_words.len().saturating_sub(LAST_WORDS_BYTES);
                    self.last_words.drain(..excess);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Ok(_) | Err(_) => self.complaints = None,
            }
        }
    }

    /// What it said last beside its answers, printable.
    pub(super) fn last_words(&self) -> String {
        let text = self.last_words.trim_ascii();
        printable(text.rsplit(|byte| *byte == b'\n').next().unwrap_or_default())
    }

    /// What it does, as `/proc/PID/stat` has it. Of our own children this is to be read under our
    /// own procfs.
    pub(super) fn state(&self) -> Option<char> {
        let stat = fs::read(format!("/proc/{}/stat", self.pid())).ok()?;
        crate::parse::process::stat(&stat).map(|stat| stat.state)
    }

    /// Sends it SIGKILL, which one that hangs in the kernel gets when it comes back.
    pub(super) fn kill(&mut self) {
        // It may have ended.
        let _gone = self.process.kill();
    }

    /// Lets go of it: it is told to end by the end of its input.
    pub(super) fn leave(self) -> Process {
        self.process
    }
}

fn never_block(pipe: impl AsFd) -> io::Result<()> {
    let flags = fcntl_getfl(&pipe)?;
    Ok(fcntl_setfl(&pipe, flags | OFlags::NONBLOCK)?)
}
