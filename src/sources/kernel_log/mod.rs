//! The kernel log: `/dev/kmsg`, a file or FIFO of the same format, or the syslog(2) ring.
//!
//! Nothing here blocks. The loop polls [`KernelLogSource::poll_fd`] where a descriptor can be
//! polled. Other sources are read at the interval of the loop.

mod device;
mod intake;
mod stream;
mod syslog;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{OFlags, PROC_SUPER_MAGIC};

use crate::model::{Moment, Observation};
use crate::sys::descriptors::with_reserve;
use device::Device;
use intake::Intake;
use stream::Stream;
#[cfg(feature = "fuzzing")]
pub use stream::pieces;
use syslog::Syslog;

/// Interval between two attempts to open the log, while it is unavailable or replaced by a
/// substitute.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// `/dev/kmsg`'s device number, the same on every Linux (Documentation/admin-guide/devices.txt).
const KMSG_DEVICE: (u32, u32) = (1, 11);

/// The position at which to continue after a restart within the same boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResumeFrom {
    /// The first unhandled sequence number: one more than the last handled one.
    pub seq: u64,
}

/// The clocks at one read of the log, taken together right after the wakeup.
#[derive(Clone, Copy, Debug)]
pub struct ReadClock {
    /// Uptime and wall clock.
    pub at: Moment,
    /// `CLOCK_MONOTONIC`, which stops in suspend like the clock of the kernel's time stamps.
    pub monotonic: Duration,
}

/// The consequence of reading syslog(2) instead.
const ONLY_CLAIMS: &str = "reading the syslog(2) ring instead, in which local users can \
    forge lines: they are shown, and feed no rule that acts";

/// The reader in use, by its kind of log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelLogReader {
    /// `/dev/kmsg`.
    Kmsg,
    /// The syslog(2) ring: polled once a second; overruns go unnoticed.
    Syslog,
    /// A regular file or a FIFO.
    File,
    /// None: the kernel log is not read.
    None,
}

impl KernelLogReader {
    /// All variants, for labels.
    pub const ALL: [Self; 4] = [Self::Kmsg, Self::Syslog, Self::File, Self::None];

    /// The name in labels, logs and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kmsg => "kmsg",
            Self::Syslog => "syslog",
            Self::File => "file",
            Self::None => "none",
        }
    }
}

/// Whether a read left records behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadEnd {
    /// All available records have been read.
    Drained,
    /// The limit was reached first: read again.
    More,
}

/// The kernel log as a source.
#[derive(Debug)]
pub struct KernelLogSource {
    path: PathBuf,
    /// Whether the syslog(2) ring replaces an unavailable log.
    falls_back: bool,
    intake: Intake,
    input: Input,
    /// Why the reader is not the preferred one, or why there is none.
    reason: Option<Arc<str>>,
    /// Uptime of the next attempt, while there is no reader or a substitute.
    retry_at: Option<Duration>,
    drained_once: bool,
}

#[derive(Debug)]
enum Input {
    Device(Device),
    Stream(Stream),
    Syslog(Syslog),
    Down,
}

impl KernelLogSource {
    /// Opens the log at `path` (`/dev/kmsg`, a regular file or a FIFO), from the start or from
    /// `resume`. Never fails: if `path` cannot be opened, the source is down and retries every ten
    /// seconds.
    pub fn open(path: &Path, resume: Option<ResumeFrom>) -> Self {
        Self::begin(path, resume, false)
    }

    /// Like [`Self::open`], for the log of this kernel: if `path` cannot be opened, the syslog(2)
    /// ring is read. A path that can never be a kernel log (a directory, another device) leaves the
    /// source down.
    pub fn open_or_syslog(path: &Path, resume: Option<ResumeFrom>) -> Self {
        Self::begin(path, resume, true)
    }

    fn begin(path: &Path, resume: Option<ResumeFrom>, falls_back: bool) -> Self {
        let mut source = Self {
            path: path.to_owned(),
            falls_back,
            intake: Intake::new(resume),
            input: Input::Down,
            reason: None,
            retry_at: None,
            drained_once: false,
        };
        source.start();
        source.log_change();
        source
    }

    /// The reader in use.
    pub fn reader(&self) -> KernelLogReader {
        match self.input {
            Input::Device(_) => KernelLogReader::Kmsg,
            Input::Stream(_) => KernelLogReader::File,
            Input::Syslog(_) => KernelLogReader::Syslog,
            Input::Down => KernelLogReader::None,
        }
    }

    /// Why the log is not read, or not from the preferred reader.
    pub fn reason(&self) -> Option<&Arc<str>> {
        self.reason.as_ref()
    }

    /// Whether the backlog of the start has been read; true also if nothing was readable. Later
    /// records are live.
    pub fn drained_once(&self) -> bool {
        self.drained_once
    }

    /// The descriptor to poll for input; `None`: read at every tick. `/dev/kmsg` reports POLLERR in
    /// addition to POLLIN after an overrun of the ring, which [`Self::read`] handles.
    pub fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.input {
            Input::Device(device) => Some(device.fd()),
            Input::Stream(stream) => stream.poll_fd(),
            Input::Syslog(_) | Input::Down => None,
        }
    }

    /// Appends new records to `out` without blocking, at most `at_most`.
    pub fn read(&mut self, at: ReadClock, out: &mut Vec<Observation>, at_most: usize) -> ReadEnd {
        self.retry(at.at.uptime);
        let read = match &mut self.input {
            Input::Device(device) => device.read(&mut self.intake, &at, out, at_most),
            Input::Stream(stream) => stream.read(&mut self.intake, &at, out, at_most),
            Input::Syslog(syslog) => syslog.read(&mut self.intake, &at, out, at_most),
            Input::Down => Ok(ReadEnd::Drained),
        };
        let end = read.unwrap_or_else(|reason| {
            self.go_down(reason, at.at.uptime);
            ReadEnd::Drained
        });
        let waiting = matches!(&self.input, Input::Syslog(syslog) if !syslog.has_polled());
        if end == ReadEnd::Drained && !waiting {
            self.drained_once = true;
            self.intake.backlog_ended();
        }
        end
    }

    fn retry(&mut self, uptime: Duration) {
        if !matches!(self.input, Input::Down | Input::Syslog(_)) {
            return;
        }
        if uptime < *self.retry_at.get_or_insert(uptime + RETRY_AFTER) {
            return;
        }
        self.retry_at = Some(uptime + RETRY_AFTER);
        if matches!(self.input, Input::Syslog(_)) {
            if let Ok(input) = open_path(&self.path) {
                self.intake.interrupted();
                self.read_from(input);
                self.log_change();
            }
            return;
        }
        let before = self.reason.take();
        self.start();
        if self.reader() != KernelLogReader::None || self.reason != before {
            self.log_change();
        }
    }

    fn start(&mut self) {
        match open_path(&self.path) {
            Ok(input) => self.read_from(input),
            Err(OpenError::NotALog(reason)) => self.reason = Some(reason.into()),
            Err(OpenError::Denied(denied)) if !self.falls_back => self.reason = Some(denied.into()),
            Err(OpenError::Denied(denied)) => match Syslog::start(self.intake.resume_point()) {
                Ok(syslog) => {
                    self.input = Input::Syslog(syslog);
                    let reason = format!("{denied}; {ONLY_CLAIMS}");
                    self.reason = Some(reason.into());
                }
                Err(also) => self.reason = Some(format!("{denied}; {also}").into()),
            },
        }
    }

    fn read_from(&mut self, input: Input) {
        self.intake.begin(matches!(input, Input::Device(_)));
        self.input = input;
        self.reason = None;
    }

    fn go_down(&mut self, reason: String, uptime: Duration) {
        self.intake.interrupted();
        self.input = Input::Down;
        self.retry_at = Some(uptime + RETRY_AFTER);
        self.reason = Some(reason.into());
        self.log_change();
    }

    fn log_change(&self) {
        let reader = self.reader().name();
        let path = self.path.display();
        match (&self.reason, self.reader()) {
            // It is no news at the start.
            (None, _) if self.retry_at.is_none() => {
                tracing::debug!(reader, %path, "reading the kernel log");
            }
            (None, _) => tracing::info!(reader, %path, "reading the kernel log"),
            (Some(reason), KernelLogReader::None) => {
                tracing::warn!(reader, %path, %reason, "the kernel log is not being read");
            }
            (Some(reason), _) => {
                tracing::warn!(reader, %path, %reason, "reading a substitute of the kernel log");
            }
        }
    }
}

enum OpenError {
    /// The path can never be a kernel log.
    NotALog(String),
    /// The path may be a kernel log, but this user cannot open it now.
    Denied(String),
}

fn open_path(path: &Path) -> Result<Input, OpenError> {
    let denied = |error: io::Error| OpenError::Denied(describe_open(path, &error));
    // The type is checked first: opening an unknown device may have side effects.
    let metadata = std::fs::metadata(path).map_err(denied)?;
    let kind = metadata.file_type();
    if kind.is_char_device() {
        let number = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
        if number != KMSG_DEVICE {
            return Err(OpenError::NotALog(format!(
                "{} is character device {}:{}, not the kernel log, which is 1:11: \
                 give --path.kmsg the container's real /dev/kmsg, a file or a FIFO",
                path.display(),
                number.0,
                number.1
            )));
        }
        let file = open_file(path, false).map_err(denied)?;
        return Ok(Input::Device(Device::new(file)));
    }
    if kind.is_fifo() {
        // A FIFO that is open for writing too does not end when a writer exits.
        let (file, keeps_open) = match open_file(path, true) {
            Ok(file) => (file, true),
            Err(_) => (open_file(path, false).map_err(denied)?, false),
        };
        return Ok(Input::Stream(Stream::fifo(file, keeps_open)));
    }
    if kind.is_file() {
        let file = open_file(path, false).map_err(denied)?;
        // Files of procfs have no size, so that their growth is invisible.
        if rustix::fs::fstatfs(&file).is_ok_and(|fs| fs.f_type == PROC_SUPER_MAGIC) {
            return Err(OpenError::NotALog(format!(
                "{} is of procfs, whose log has another form: give --path.kmsg /dev/kmsg",
                path.display()
            )));
        }
        return Ok(Input::Stream(Stream::file(path, file, &metadata)));
    }
    let what = if kind.is_dir() { "a directory" } else { "neither a device, a file nor a FIFO" };
    Err(OpenError::NotALog(format!(
        "{} is {what}: give --path.kmsg /dev/kmsg, a file or a FIFO",
        path.display()
    )))
}

fn open_file(path: &Path, write: bool) -> io::Result<File> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits();
    let flags = i32::try_from(flags).map_err(io::Error::other)?;
    let mut options = OpenOptions::new();
    options.read(true).write(write).custom_flags(flags);
    with_reserve(|| options.open(path))
}

fn describe_open(path: &Path, error: &io::Error) -> String {
    let path = path.display();
    let remedy = match error.kind() {
        io::ErrorKind::NotFound => "in a container, pass the device in (--device=/dev/kmsg)",
        io::ErrorKind::PermissionDenied => {
            "needs root or CAP_SYSLOG, and in a container the device (--device=/dev/kmsg)"
        }
        _ => "check the path",
    };
    format!("cannot open {path}: {error}: {remedy}")
}

#[cfg(test)]
mod tests;
