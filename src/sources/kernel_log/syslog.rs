//! The kernel log through syslog(2), for machines where `/dev/kmsg` cannot be opened.
//!
//! Its lines may be forged. A newline within a record begins a line that looks like one of the
//! kernel; users can write such a record by a mount option in their own namespace. Records from
//! here are recognised by their numbers, and no action follows from them.
//!
//! The ring has no sequence numbers, so that an overrun goes unnoticed, and each poll copies the
//! whole ring. A separate thread polls it: the call allocates in the kernel, and may wait there
//! when memory is short.
//!
//! Only the raw call of `rmesg` is used. Its parser rejects the whole ring at the first facility
//! above 11 or byte outside UTF-8, and user space may write both.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::thread;
use std::time::Duration;

use rmesg::error::RMesgError;
use rmesg::klogctl::{KLogType, safely_wrapped_klogctl};

use super::intake::{Intake, SYSLOG_SEQ_PER_USEC, time_of};
use super::{ReadClock, ReadEnd};
use crate::model::{KernelRecord, Observation, SYSLOG_SEQ_BASE};

const POLL_EVERY: Duration = Duration::from_secs(1);

/// Fits rings of up to 32 MiB; of a larger one, the kernel returns the newest lines.
const RING_BYTES_AT_MOST: usize = 64 << 20;

#[derive(Debug)]
pub(super) struct Syslog {
    polls: Receiver<Result<Vec<SyslogLine>, String>>,
    /// Dropping it ends the thread.
    _stop: SyncSender<()>,
    pending: VecDeque<SyslogLine>,
    polled: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct SyslogLine {
    /// See [`SYSLOG_SEQ_BASE`].
    seq: u64,
    /// `None` where the line cannot be parsed.
    content: Option<SyslogContent>,
}

#[derive(Debug, PartialEq, Eq)]
struct SyslogContent {
    facility: u16,
    level: u8,
    usec: u64,
    text: String,
}

impl Syslog {
    /// Starts to poll, if this process may. `resume` is the first wanted number. A number of
    /// `/dev/kmsg` has no meaning in this ring: its backlog is then skipped, since it may have been
    /// counted before.
    pub(super) fn start(resume: Option<u64>) -> Result<Self, String> {
        ring_bytes()?;
        let (send, polls) = sync_channel(1);
        let (stop, stopped) = sync_channel::<()>(0);
        let mut view = SyslogPosition::new(resume);
        thread::Builder::new()
            .name("syslog-ring".into())
            .spawn(move || {
                loop {
                    let poll = read_ring().and_then(|ring| view.lines(&ring));
                    let failed = poll.is_err();
                    if send.send(poll).is_err() || failed {
                        return;
                    }
                    if stopped.recv_timeout(POLL_EVERY) != Err(RecvTimeoutError::Timeout) {
                        return;
                    }
                }
            })
            .map_err(|error| format!("cannot start the thread that polls syslog(2): {error}"))?;
        Ok(Self { polls, _stop: stop, pending: VecDeque::new(), polled: false })
    }

    /// Whether the ring has been read.
    pub(super) fn has_polled(&self) -> bool {
        self.polled
    }

    pub(super) fn read(
        &mut self,
        intake: &mut Intake,
        clock: &ReadClock,
        out: &mut Vec<Observation>,
        at_most: usize,
    ) -> Result<ReadEnd, String> {
        for _ in 0..at_most {
            while self.pending.is_empty() {
                match self.polls.try_recv() {
                    Ok(poll) => {
                        self.pending.extend(poll?);
                        self.polled = true;
                    }
                    Err(TryRecvError::Empty) => return Ok(ReadEnd::Drained),
                    Err(TryRecvError::Disconnected) => {
                        return Err("the thread that polls syslog(2) has ended".into());
                    }
                }
            }
            if let Some(line) = self.pending.pop_front() {
                let seq = line.seq;
                let record = line.content.map(|content| content.into_record(seq, clock));
                intake.take_unnumbered(seq, record, out);
            }
        }
        Ok(ReadEnd::More)
    }
}

impl SyslogContent {
    fn into_record(self, seq: u64, clock: &ReadClock) -> KernelRecord {
        KernelRecord {
            seq,
            facility: self.facility,
            level: self.level,
            usec: self.usec,
            caller: None,
            utc: time_of(self.usec, clock),
            text: self.text,
            dictionary: String::new(),
        }
    }
}

fn ring_bytes() -> Result<usize, String> {
    safely_wrapped_klogctl(KLogType::SyslogActionSizeBuffer, &mut []).map_err(|error| match error {
        RMesgError::OperationNotPermitted(_) => {
            "syslog(2) is denied: needs root or CAP_SYSLOG, or kernel.dmesg_restrict=0".into()
        }
        error => format!("syslog(2) failed: {error}"),
    })
}

fn read_ring() -> Result<Vec<u8>, String> {
    // The text has prefixes that the size of the ring does not include.
    let mut ring = vec![0; ring_bytes()?.saturating_mul(2).min(RING_BYTES_AT_MOST)];
    let length = safely_wrapped_klogctl(KLogType::SyslogActionReadAll, &mut ring)
        .map_err(|error| format!("reading the ring through syslog(2) failed: {error}"))?;
    ring.truncate(length);
    Ok(ring)
}

/// The read position in the ring.
#[derive(Debug)]
struct SyslogPosition {
    /// The first number that is still wanted.
    wanted: u64,
    skip_backlog: bool,
}

impl SyslogPosition {
    fn new(resume: Option<u64>) -> Self {
        let wanted = resume.unwrap_or(0);
        Self { wanted, skip_backlog: resume.is_some_and(|seq| seq < SYSLOG_SEQ_BASE) }
    }

    /// Lines that no earlier poll has returned. Numbers are assigned over the whole ring. They grow
    /// even if time stamps do not: processors stamp their lines before they queue them.
    fn lines(&mut self, ring: &[u8]) -> Result<Vec<SyslogLine>, String> {
        let mut lines = Vec::new();
        let mut next = SYSLOG_SEQ_BASE;
        let mut stamped = false;
        for bytes in ring.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
            let parts = split_line(bytes);
            if let Some(parts) = &parts {
                stamped = true;
                let of_stamp = parts.usec.saturating_mul(SYSLOG_SEQ_PER_USEC);
                next = next.max(SYSLOG_SEQ_BASE.saturating_add(of_stamp));
            }
            let seq = next;
            next = next.saturating_add(1);
            if seq >= self.wanted && !self.skip_backlog {
                lines.push(SyslogLine { seq, content: parts.map(Parts::into_content) });
            }
        }
        if !stamped && !ring.is_empty() {
            return Err(
                "lines of the syslog(2) ring have no time stamp, which distinguishes new from old \
                 ones: echo Y > /sys/module/printk/parameters/time"
                    .into(),
            );
        }
        self.wanted = self.wanted.max(next);
        self.skip_backlog = false;
        Ok(lines)
    }
}

/// The parts of a line in the ring.
#[derive(Debug, PartialEq, Eq)]
struct Parts<'a> {
    priority: u16,
    usec: u64,
    text: &'a [u8],
}

impl Parts<'_> {
    fn into_content(self) -> SyslogContent {
        SyslogContent {
            facility: self.priority >> 3,
            level: u8::try_from(self.priority & 7).unwrap_or(7),
            usec: self.usec,
            text: escape(self.text),
        }
    }
}

/// `<6>[   12.345678] text`, or `<6>[   12.345678][    T1] text` with CONFIG_PRINTK_CALLER.
fn split_line(line: &[u8]) -> Option<Parts<'_>> {
    let (priority, rest) = bracketed(line, b'<', b'>')?;
    let (stamp, rest) = bracketed(rest, b'[', b']')?;
    let (seconds, micros) = stamp.trim_ascii_start().split_once('.')?;
    if micros.len() != 6 || !micros.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let usec = seconds.parse::<u64>().ok()?.checked_mul(1_000_000)?;
    let usec = usec.checked_add(micros.parse().ok()?)?;
    let rest = match bracketed(rest, b'[', b']') {
        Some((_, rest)) => rest,
        None => rest,
    };
    let text = rest.strip_prefix(b" ").unwrap_or(rest);
    Some(Parts { priority: priority.parse().ok()?, usec, text })
}

fn bracketed(text: &[u8], open: u8, close: u8) -> Option<(&str, &[u8])> {
    let inner = text.strip_prefix(&[open])?;
    let end = inner.iter().take(32).position(|&byte| byte == close)?;
    Some((std::str::from_utf8(&inner[..end]).ok()?, &inner[end + 1..]))
}

/// Escapes text like `/dev/kmsg` (`msg_add_ext_text` in kernel/printk/printk.c).
fn escape(text: &[u8]) -> String {
    let mut escaped = String::with_capacity(text.len());
    for &byte in text {
        if (b' '..127).contains(&byte) && byte != b'\\' {
            escaped.push(char::from(byte));
        } else {
            let _ = write!(escaped, "\\x{byte:02x}");
        }
    }
    escaped
}

#[cfg(test)]
mod tests;
