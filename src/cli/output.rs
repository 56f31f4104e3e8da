//! Output of commands, to standard output and standard error.
//!
//! A reader that has closed its end, like `| head`, ends the output and does not change the exit
//! code. Any other failure of standard output is an error of the command.

use std::fmt;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::Exit;
use super::text::lines_within;

/// Whether the reader of standard output has closed its end.
static READER_GONE: AtomicBool = AtomicBool::new(false);

/// Whether the terminal at standard error has a line that is not final, see [`draw_line`].
static HAS_LINE: AtomicBool = AtomicBool::new(false);

/// Whether the last text on standard output has not ended its line.
static IS_MID_LINE: AtomicBool = AtomicBool::new(false);

/// Columns and lines of a terminal that does not report them.
const COLUMNS: usize = 80;
const LINES: usize = 24;

/// The first failure to write to standard output, except a closed reader.
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

/// Prints a line on standard error, wrapped if that is a terminal.
macro_rules! errln {
    () => { $crate::cli::output::print_error("\n") };
    ($($argument:tt)*) => {{
        let mut text = format!($($argument)*);
        text.push('\n');
        $crate::cli::output::print_fitted_error(&text)
    }};
}

pub(crate) use {errln, outln};

/// Standard output. Writes succeed without effect once the reader has closed its end.
#[derive(Debug)]
pub(crate) struct Stdout;

/// The reader of standard output has closed its end, and the rest does not change the exit code.
#[derive(Debug, thiserror::Error)]
#[error("the reader of the output is gone")]
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

/// The columns of the terminal at standard output; `None` if it is no terminal.
pub(crate) fn width() -> Option<usize> {
    is_terminal().then(|| columns(io::stdout().as_fd()))
}

/// The lines of the terminal at standard output; `None` if it is no terminal.
pub(crate) fn height() -> Option<usize> {
    let size = || rustix::termios::tcgetwinsize(io::stdout().as_fd()).map(|size| size.ws_row);
    is_terminal().then(|| size().ok().filter(|lines| *lines > 0).map_or(LINES, usize::from))
}

/// The columns of the terminal at standard error.
pub(crate) fn error_width() -> usize {
    columns(io::stderr().as_fd())
}

fn columns(of: BorrowedFd<'_>) -> usize {
    let size = rustix::termios::tcgetwinsize(of).map(|size| size.ws_col);
    size.ok().filter(|columns| *columns > 0).map_or(COLUMNS, usize::from)
}

/// Draws a line on the terminal at standard error in place of the one before. Other output removes
/// it first. Nothing is drawn into the middle of a line of standard output.
pub(crate) fn draw_line(text: &str) {
    if IS_MID_LINE.load(Ordering::Relaxed) && is_terminal() {
        return;
    }
    let cut: String = text.chars().take(error_width().saturating_sub(1)).collect();
    // Without standard error there is nothing to draw on.
    let _ = pass_on(format!("\r\x1b[K{cut}").as_bytes(), true);
    HAS_LINE.store(true, Ordering::Relaxed);
}

/// Removes the line of [`draw_line`].
pub(crate) fn clear_line() {
    if HAS_LINE.swap(false, Ordering::Relaxed) {
        // As in `draw_line`.
        let _ = pass_on(b"\r\x1b[K", true);
    }
}

/// Whether a write has shown that the reader has closed its end.
pub(crate) fn is_reader_gone() -> bool {
    READER_GONE.load(Ordering::Relaxed)
}

/// Prints on standard output. A failure is stored for [`end`].
pub(crate) fn print(text: &str) {
    // `end` reports it.
    let _ = Stdout.write_all(text.as_bytes());
}

/// Prints on standard error. A failure is ignored, since it could not be reported.
pub(crate) fn print_error(text: &str) {
    clear_line();
    let _ = pass_on(text.as_bytes(), true);
}

/// Prints lines on standard error, each wrapped if that is a terminal.
pub(crate) fn print_fitted_error(text: &str) {
    print_error(&lines_within(text, is_error_terminal().then(error_width)));
}

/// Passes on what another program wrote to its standard error or output.
///
/// # Errors
/// Nobody reads it, or it cannot be written.
pub(crate) fn pass_on(bytes: &[u8], is_error: bool) -> io::Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let written = match is_error {
            true => write(io::stderr().as_fd(), rest),
            false => write(io::stdout().as_fd(), rest),
        };
        match written? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => rest = &rest[written..],
        }
    }
    Ok(())
}

/// Prints the help, the version or the error of the argument parser.
pub(crate) fn print_usage(usage: &clap::Error) {
    let terminal = if usage.use_stderr() { is_error_terminal() } else { is_terminal() };
    let text = usage.render();
    let text = if colours_wanted(terminal) { text.ansi().to_string() } else { text.to_string() };
    if usage.use_stderr() { print_error(&text) } else { print(&text) }
}

/// Whether to use colours: on a terminal that has them, and whose user has not disabled them,
/// <https://no-color.org>.
pub(crate) fn colours_wanted(terminal: bool) -> bool {
    terminal && !is_dumb() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Whether the terminal can neither move its cursor nor show colours.
pub(crate) fn is_dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|name| name == "dumb")
}

/// Ends the command: prints its error, or that its output is incomplete.
pub(crate) fn end(ended: anyhow::Result<ExitCode>) -> ExitCode {
    let failure = FAILURE.lock().unwrap_or_else(PoisonError::into_inner).take();
    match (ended, failure) {
        (Err(error), _) => errln!("umawarden: {error:#}"),
        (Ok(_), Some(failure)) => errln!("umawarden: {}", StdoutError(&failure)),
        (Ok(code), None) => return code,
    }
    Exit::Unusable.into()
}

/// The error of standard output.
struct StdoutError<'a>(&'a io::Error);

impl fmt::Display for StdoutError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot write to standard output: {}; the output is incomplete", self.0)
    }
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if is_reader_gone() {
            return Ok(bytes.len());
        }
        clear_line();
        IS_MID_LINE.store(!bytes.ends_with(b"\n"), Ordering::Relaxed);
        match write(io::stdout().as_fd(), bytes) {
            Err(Errno::PIPE) => {
                READER_GONE.store(true, Ordering::Relaxed);
                Ok(bytes.len())
            }
            Err(errno) => {
                let error = io::Error::from(errno);
                let failure = io::Error::new(error.kind(), StdoutError(&error).to_string());
                FAILURE.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                Err(failure)
            }
            Ok(written) => Ok(written),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a part of it. Waits for a non-blocking descriptor.
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
