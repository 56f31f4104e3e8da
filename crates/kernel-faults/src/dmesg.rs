//! The text formats of a kernel log: dmesg, journalctl, syslog files, raw kmsg, JSON, bare lines.
//! The form is detected line by line, so a file may mix them. A prefix that a tool puts before each
//! line is detected at the first stamp.

mod columns;
mod container;
mod forwarded;
mod header;
mod json;
mod lines;
mod local;
mod prefix;
mod records;
mod stamp;
mod tags;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use jiff::Timestamp;

use super::KernelLine;
use super::faults::TALOS;
use super::kmsg;

pub use local::LocalTime;
pub use records::{JsonRecords, begins_with_records, line_separator};

use lines::Lines;
use prefix::Shape;

/// The most names in prefixes that are kept apart.
const MOST_ORIGINS: usize = 256;

/// The length limit of a line, in bytes.
const LONGEST_LINE: usize = 64 * 1024;

/// One message of the log.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Message {
    /// Number of its first line, from 1.
    pub line: u64,
    /// What the prefix of its lines names: a host, a pod, a file.
    pub origin: Option<String>,
    /// The host that the form itself names.
    pub host: Option<String>,
    /// The record's sequence number, in raw kmsg.
    pub seq: Option<u64>,
    /// Wall time, if the text has it with its zone.
    pub utc: Option<Timestamp>,
    /// Wall time without an unambiguous zone, if the text has that instead.
    pub local: Option<LocalTime>,
    /// The kernel's own clock, which begins at the boot and stops in suspend.
    pub boot_clock: Option<Duration>,
    /// The time as in the text, for people.
    pub stamp: String,
    /// Position in time, on the clock of the text.
    pub position: Option<Duration>,
    /// Whether the position is that of the record, to the microsecond.
    pub exact: bool,
    /// Whether the kernel wrote it, as far as known.
    pub from_kernel: bool,
    /// Syslog facility, where visible.
    pub facility: Option<u16>,
    /// The program that wrote it, in journal text and syslog files.
    pub identifier: Option<String>,
    /// The task or CPU that printed it.
    pub caller: Option<String>,
    /// The message; unprintable bytes are `\xNN`.
    pub text: String,
    /// The line after its stamp, if words before the text were taken for a host or a program.
    pub whole: Option<String>,
}

impl Message {
    /// A record of `/dev/kmsg`.
    pub fn of_record(record: &kmsg::Record<'_>) -> Self {
        header::from_record(record)
    }

    /// The message as input of the assembler.
    pub fn kernel_line(&self) -> KernelLine<'_> {
        let is_of_talos = !self.from_kernel && self.text.starts_with(TALOS);
        let identifier = self.identifier.as_deref().or(is_of_talos.then_some(TALOS));
        KernelLine {
            seq: self.seq,
            utc: self.utc,
            uptime: self.position,
            from_kernel: self.from_kernel,
            identifier,
            caller: self.caller.as_deref(),
            text: &self.text,
        }
    }
}

/// Whether the lines of a log have a prefix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Prefix {
    /// No stamp has been seen yet.
    #[default]
    Unknown,
    /// A stamp began its line.
    None,
    /// The first stamp followed this.
    Has(Shape),
}

/// Splits the text of a log into messages, line by line, in bounded memory.
#[derive(Debug, Default)]
pub struct LogText {
    lines: u64,
    prefix: Prefix,
    /// Lines without a prefix.
    plain: Lines,
    /// Lines with a prefix, by what it names.
    origins: BTreeMap<String, Lines>,
    /// Lines whose prefix names something that is not kept apart.
    others: Lines,
    /// Complete messages that were not returned.
    ready: VecDeque<Message>,
}

impl LogText {
    /// A parser without any input.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes one line, without its newline. Returns a message that is now complete, mostly the one
    /// before it of the same origin; [`Self::more`] returns the others.
    pub fn feed(&mut self, bytes: &[u8]) -> Option<Message> {
        let complete = self.feed_line(bytes);
        self.ready.extend(complete);
        self.more()
    }

    /// The next message that is complete.
    pub fn more(&mut self) -> Option<Message> {
        self.ready.pop_front()
    }

    fn feed_line(&mut self, bytes: &[u8]) -> Option<Message> {
        self.lines += 1;
        let bytes = bytes.get(..LONGEST_LINE).unwrap_or(bytes);
        let end = bytes.iter().rposition(|byte| *byte != b'\r').map_or(0, |last| last + 1);
        let bytes = bytes.get(..end).unwrap_or_default();
        let bytes = match self.lines {
            1 => bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes),
            _ => bytes,
        };
        let bytes = header::without_sequences(bytes);
        let text = header::with_plain_blanks(kmsg::printable(header::without_noise(&bytes)));
        match self.prefix {
            Prefix::Unknown => self.prefix = prefix_of(&text),
            // The first line was only the rest of a message, or other text.
            Prefix::Has(_) if header::is_stamped(&text) => self.prefix = Prefix::None,
            Prefix::Has(_) | Prefix::None => {}
        }
        let Prefix::Has(shape) = self.prefix else {
            let message = self.plain.feed(self.lines, None, &text);
            self.ready.append(&mut self.plain.earlier);
            if self.plain.has_stamps() {
                self.prefix = Prefix::None;
            }
            return message;
        };
        match self.without_prefix(&text, shape) {
            // The first line of a name has a stamp, or the name is none.
            Some((name, rest)) if self.origins.contains_key(name) || prefix::is_stamped(rest) => {
                let (name, rest) = (name.to_owned(), rest.to_owned());
                let origin = (!name.is_empty()).then_some(&*name);
                let number = self.lines;
                let reader = self.reader(&name);
                let message = reader.feed(number, origin, &rest);
                let mut earlier = std::mem::take(&mut reader.earlier);
                self.ready.append(&mut earlier);
                message
            }
            None if text.is_empty() => None,
            _ => self.plain.feed_foreign(self.lines, &text),
        }
    }

    /// The name in the prefix of a line, and its text.
    fn without_prefix<'a>(&'a self, text: &'a str, shape: Shape) -> Option<(&'a str, &'a str)> {
        let beside = || {
            let mut names = self.origins.keys();
            names.find_map(|name| Some((&**name, prefix::beside(text, shape, name)?)))
        };
        beside().or_else(|| prefix::split(text, shape))
    }

    fn reader(&mut self, name: &str) -> &mut Lines {
        if !self.origins.contains_key(name) {
            if self.origins.len() >= MOST_ORIGINS {
                return &mut self.others;
            }
            self.origins.insert(name.to_owned(), Lines::default());
        }
        self.origins.get_mut(name).unwrap_or(&mut self.others)
    }

    /// Whether any line so far had a stamp of a kernel log.
    pub fn has_stamps(&self) -> bool {
        self.prefix != Prefix::Unknown
    }

    /// The last messages, in the order of their lines.
    pub fn finish(&mut self) -> Vec<Message> {
        let readers = self.origins.values_mut().chain([&mut self.plain, &mut self.others]);
        let mut last: Vec<Message> = readers.flat_map(Lines::finish).collect();
        last.extend(self.ready.drain(..));
        last.sort_by_key(|message| message.line);
        last
    }
}

/// Whether the first stamp of a log follows a prefix.
fn prefix_of(text: &str) -> Prefix {
    if header::is_stamped(text.trim_start_matches(header::MARGIN)) || text.starts_with("kernel: ") {
        return Prefix::None;
    }
    prefix::find(text).map_or(Prefix::Unknown, Prefix::Has)
}
