//! The one way out: what commands print goes through here, to standard output or standard error.
//!
//! A reader that has closed its end, as `| head` does, ends the output and nothing else: the
//! command keeps its exit code. Any other failure of standard output is an error of the command.

use std::fmt;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::Exit;

/// Whether the reader of standard output has closed its end.
static READER_GONE: AtomicBool = AtomicBool::new(false);

/// The first failure to write to standard output, other than that.
static FAILURE: Mutex<Option<io::Error>> = Mutex::new(None);

/// Prints a line on standard output.
macro_rules! outln {
    () => { $crate::cli::output::print("\n") };
    ($($argument:tt)*) => {{
        let mut text = format!($($argument)*);
        text.push('\n');
        $crate::cli::output::print(&text)
    }};
}

/// Prints a line on standard error.
macro_rules! errln {
    () => { $crate::cli::output::print_error("\n") };
    ($($argument:tt)*) => {{
        let mut text = format!($($argument)*);
        text.push('\n');
        $crate::cli::output::print_error(&text)
    }};
}

pub(crate) use {errln, outln};

/// Standard output. A write to a reader that is gone succeeds and does nothing.
#[derive(Debug)]
pub(crate) struct Stdout;

/// The reader of standard output is gone, and the exit code does not depend on what is left.
#[derive(Debug, thiserror::Error)]
#[error("nobody reads the output any more")]
pub(crate) struct ReaderGone;

/// Standard output with a buffer, which the caller flushes.
pub(crate) fn stdout() -> BufWriter<Stdout> {
    BufWriter::new(Stdout)
}

/// Whether standard output is a terminal.
pub(crate) fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Whether standard error is a terminal.
pub(crate) fn is_error_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Whether the reader of standard output has closed its end, as far as a write has shown it.
pub(crate) fn is_reader_gone() -> bool {
    READER_GONE.load(Ordering::Relaxed)
}

/// Prints on standard output. A failure is kept for [`end`].
pub(crate) fn print(text: &str) {
    // `end` reports it.
    let _ = Stdout.write_all(text.as_bytes());
}

/// Prints on standard error. A failure is nobody's to know: this is where it would be told.
pub(crate) fn print_error(text: &str) {
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        match write(io::stderr().as_fd(), rest) {
            Ok(written) if written > 0 => rest = &rest[written..],
            _ => return,
        }
    }
}

/// Prints the help, the version or the mistake that the argument parser has found.
pub(crate) fn print_usage(usage: &clap::Error) {
    let terminal = if usage.use_stderr() { is_error_terminal() } else { is_terminal() };
    let text = usage.render();
    let text = if colours_wanted(terminal) { text.ansi().to_string() } else { text.to_string() };
    if usage.use_stderr() { print_error(&text) } else { print(&text) }
}

/// Colours are for terminals whose user has not declined them: <https://no-color.org>.
pub(crate) fn colours_wanted(terminal: bool) -> bool {
    terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Ends the command: prints its error, or that its output is incomplete.
pub(crate) fn end(ended: anyhow::Result<ExitCode>) -> ExitCode {
    let failure = FAILURE.lock().unwrap_or_else(PoisonError::into_inner).take();
    match (ended, failure) {
        (Err(error), _) => errln!("umawarden: {error:#}"),
        (Ok(_), Some(failure)) => errln!("umawarden: {}", Failed(&failure)),
        (Ok(code), None) => return code,
    }
    Exit::Unusable.into()
}

/// The sentence about a failure of standard output.
struct Failed<'a>(&'a io::Error);

impl fmt::Display for Failed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot write to standard output: {}; the output is incomplete", self.0)
    }
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if is_reader_gone() {
            return Ok(bytes.len());
        }
        match write(io::stdout().as_fd(), bytes) {
            Err(Errno::PIPE) => {
                READER_GONE.store(true, Ordering::Relaxed);
                Ok(bytes.len())
            }
            Err(errno) => {
                let error = io::Error::from(errno);
                let told = io::Error::new(error.kind(), Failed(&error).to_string());
                FAILURE.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                Err(told)
            }
            Ok(written) => Ok(written),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes some of it; waits for a descriptor that somebody has made non-blocking.
fn write(to: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
    loop {
        match rustix::io::write(to, bytes) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => match poll(&mut [PollFd::new(&to, PollFlags::OUT)], None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            },
            written => return written,
        }
    }
}
