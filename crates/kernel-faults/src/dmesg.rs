//! The text formats of a kernel log: dmesg, journalctl, syslog files, raw kmsg, JSON, bare lines.
//! The form is detected line by line, so a file may mix them.

mod json;
mod local;
mod records;
mod stamp;

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::time::Duration;

use jiff::Timestamp;

use super::KernelLine;
use super::faults::TALOS;
use super::kmsg;

pub use local::LocalTime;
pub use records::{JsonRecords, begins_with_records};

use stamp::{Clock, Stamp};

/// The length limit of a line, in bytes.
const LONGEST_LINE: usize = 64 * 1024;

/// One message of the log.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Message {
    /// Number of its first line, from 1.
    pub line: u64,
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
}

impl Message {
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

/// The format of the last line, which decides whether a line without a stamp continues it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Form {
    /// No stamp has been seen yet.
    #[default]
    Bare,
    /// `6,123,456,-;text`.
    Kmsg,
    /// Any format with a stamp on each message.
    Stamped,
}

/// Whether `[   12.345678] ` is followed by a host and an identifier, as journalctl prints it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Monotonic {
    #[default]
    Undecided,
    Dmesg,
    /// journalctl --no-hostname.
    JournalWithoutHost,
    Journal {
        host: String,
    },
}

/// Splits the text of a log into messages, line by line, in bounded memory.
#[derive(Debug, Default)]
pub struct LogText {
    lines: u64,
    form: Form,
    monotonic: Monotonic,
    clock: Clock,
    json: json::DmesgJson,
    pretty: json::PrettyJson,
    /// Prefix of every line of a log that was quoted or indented.
    margin: String,
    pending: Option<Message>,
}

impl LogText {
    /// A parser without any input.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes one line, without its newline. Returns the message before it, which is now complete.
    pub fn feed(&mut self, bytes: &[u8]) -> Option<Message> {
        self.lines += 1;
        let bytes = bytes.get(..LONGEST_LINE).unwrap_or(bytes);
        let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        let bytes = if self.lines == 1 {
            bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes)
        } else {
            bytes
        };
        let bytes = without_colours(bytes);
        let bytes = self.without_margin(&bytes);
        let text = kmsg::printable(bytes);
        if let Some(found) = self.feed_json(&text) {
            return found.and_then(|message| self.replace(message));
        }
        if text.starts_with('{')
            && let Some(printed) = json::container(&text)
        {
            return self.feed_text(&printed);
        }
        if let Ok(record) = kmsg::parse_record(bytes) {
            self.form = Form::Kmsg;
            let message = from_record(&record);
            return self.replace(message);
        }
        self.feed_text(&text)
    }

    fn feed_text(&mut self, text: &str) -> Option<Message> {
        if is_journal_notice(text) {
            return self.pending.take();
        }
        match self.stamped(text) {
            Some(message) => {
                self.form = Form::Stamped;
                self.replace(message)
            }
            None => self.unstamped(text),
        }
    }

    /// `None`: the line is no JSON of a log; else the message that it ends, if any.
    fn feed_json(&mut self, text: &str) -> Option<Option<Message>> {
        if json::is_bracket(text) && !self.json.is_inside() {
            return Some(None);
        }
        if let Some(found) = self.json.feed(text) {
            self.pretty.forget();
            return Some(found);
        }
        if let Some(found) = self.pretty.feed(text) {
            self.form = if found.is_some() { Form::Stamped } else { self.form };
            return Some(found);
        }
        // `data: {…}` is -o json-sse, and a record separator before it -o json-seq.
        let entry = text.strip_prefix("data: ").or_else(|| text.strip_prefix("\\x1e"));
        let entry = entry.unwrap_or(text).trim_start();
        let message = entry.starts_with('{').then(|| json::record(entry))??;
        self.form = Form::Stamped;
        Some(Some(message))
    }

    /// The line without the common prefix of a quoted or indented log. Only the first stamp of a
    /// log shows the prefix: later it would be the text of another message.
    fn without_margin<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        if self.form == Form::Bare && self.margin.is_empty() {
            let width = bytes.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'>')).count();
            let (margin, rest) = bytes.split_at(width);
            let text = kmsg::printable(rest);
            let stamped = kmsg::parse_record(rest).is_ok()
                || stamp::parse(facility(&text).1, &mut Clock::default()).is_some();
            if stamped && let Ok(margin) = std::str::from_utf8(margin) {
                margin.clone_into(&mut self.margin);
            }
        }
        bytes.strip_prefix(self.margin.as_bytes()).unwrap_or(bytes)
    }

    /// Whether any line so far had a stamp of a kernel log.
    pub fn has_stamps(&self) -> bool {
        self.form != Form::Bare
    }

    /// The last message.
    pub fn finish(&mut self) -> Option<Message> {
        self.pending.take()
    }

    fn replace(&mut self, message: Message) -> Option<Message> {
        self.pending.replace(Message { line: self.lines, ..message })
    }

    /// A line without a stamp: a message of its own, or one more line of the message before it.
    fn unstamped(&mut self, text: &str) -> Option<Message> {
        let indented = text.starts_with([' ', '\t']);
        match self.form {
            Form::Kmsg if indented => return None,
            Form::Stamped if text.is_empty() => return None,
            Form::Stamped => {
                if let Some(pending) = &mut self.pending
                    && (indented || !pending.from_kernel)
                {
                    if pending.text.len() + text.len() < LONGEST_LINE {
                        pending.text.push_str("\\x0a");
                        pending.text.push_str(text.trim_start());
                    }
                    return None;
                }
            }
            Form::Bare | Form::Kmsg => {}
        }
        let text = match self.form {
            // Without stamp and host, only the identifier may be left.
            Form::Bare => text.trim().strip_prefix("kernel: ").unwrap_or(text.trim()),
            Form::Kmsg | Form::Stamped => text,
        };
        self.replace(Message { from_kernel: true, text: text.to_owned(), ..Message::default() })
    }

    fn stamped(&mut self, text: &str) -> Option<Message> {
        let (facility, rest) = facility(text);
        if facility.is_some()
            && let Some(message) = rest.strip_prefix("1 ").and_then(|rest| self.rfc5424(rest))
        {
            let from_kernel = message.from_kernel && facility == Some(0);
            return Some(Message { facility, from_kernel, ..message });
        }
        let Some((stamp, rest)) = stamp::parse(rest, &mut self.clock) else {
            facility?;
            return Some(Message {
                from_kernel: facility == Some(0),
                facility,
                text: rest.to_owned(),
                ..Message::default()
            });
        };
        let Stamp { utc, local, position, printed, journal, boot_clock } = stamp;
        let mut message = Message {
            utc,
            local,
            boot_clock: boot_clock.then_some(position),
            position: Some(position),
            exact: boot_clock && is_exact(&printed),
            stamp: printed,
            facility,
            from_kernel: facility.is_none_or(|facility| facility == 0),
            ..Message::default()
        };
        if journal {
            // The log of a container has its own stamp before those of its programs.
            if let Some(inner) = printed_in_container(rest)
                && let Some(inner) = self.stamped(inner)
            {
                return Some(Message { utc: inner.utc.or(utc), local: None, ..inner });
            }
            self.journal(&mut message, rest);
            return Some(message);
        }
        let (caller, rest) = caller(rest);
        message.caller = caller.map(str::to_owned);
        let rest = rest.strip_prefix(' ').unwrap_or(rest);
        if boot_clock && message.caller.is_none() && facility.is_none() && self.is_monotonic(rest) {
            self.journal(&mut message, rest);
        } else {
            message.text = rest.to_owned();
        }
        Some(message)
    }

    /// `2026-11-21T02:31:07+00:00 host app procid msgid [data] text`, after the version.
    fn rfc5424(&mut self, text: &str) -> Option<Message> {
        let (stamp, rest) = stamp::parse(text, &mut self.clock)?;
        let mut words = rest.trim_start().splitn(5, ' ');
        let (_host, app) = (words.next()?, words.next()?);
        let (_procid, _msgid, rest) = (words.next()?, words.next()?, words.next()?);
        let text = match rest.strip_prefix('-') {
            Some(text) => text,
            None => rest.strip_prefix('[')?.split_once(']')?.1,
        };
        Some(Message {
            utc: stamp.utc,
            local: stamp.local,
            position: Some(stamp.position),
            stamp: stamp.printed,
            from_kernel: app == "kernel",
            identifier: Some(app.to_owned()),
            text: text.strip_prefix(' ').unwrap_or(text).to_owned(),
            ..Message::default()
        })
    }

    /// Whether `host kernel: text` follows, in a log that has had this form from its start.
    fn is_monotonic(&mut self, rest: &str) -> bool {
        if self.monotonic == Monotonic::Undecided && rest.starts_with("kernel: ") {
            self.monotonic = Monotonic::JournalWithoutHost;
            return true;
        }
        if self.monotonic == Monotonic::JournalWithoutHost {
            // Without a pid it may be the kernel's own text: `NVRM: …`.
            return rest.starts_with("kernel: ")
                || identifier(rest).is_some_and(|(_, has_pid, _)| has_pid);
        }
        if let Monotonic::Journal { host } = &self.monotonic {
            return rest.strip_prefix(host.as_str()).is_some_and(|rest| rest.starts_with(' '));
        }
        if self.monotonic == Monotonic::Dmesg {
            return false;
        }
        let split = rest
            .split_once(' ')
            .filter(|(host, _)| !host.is_empty() && !host.contains([':', '[', '(', '=']));
        let Some((host, (name, has_pid, _))) =
            split.and_then(|(host, rest)| Some((host, identifier(rest)?)))
        else {
            self.monotonic = Monotonic::Dmesg;
            return false;
        };
        let sure = name == "kernel" || has_pid;
        if sure {
            self.monotonic = Monotonic::Journal { host: host.to_owned() };
        }
        sure
    }

    /// `host identifier[pid]: text`; the host may be left out.
    fn journal(&mut self, message: &mut Message, rest: &str) {
        let after_host = rest.split_once(' ').map(|(host, rest)| (host.ends_with(':'), rest));
        let rest = match after_host {
            Some((false, rest)) => rest.trim_start(),
            _ => rest,
        };
        let rest = without_priority(rest);
        let Some((name, has_pid, text)) = identifier(rest) else {
            message.from_kernel = false;
            message.text = rest.to_owned();
            return;
        };
        message.from_kernel &= name == "kernel" && !has_pid;
        message.identifier = Some(name.to_owned());
        message.text = text.to_owned();
        if !message.from_kernel {
            return;
        }
        // Syslog daemons leave the kernel's own stamp in the text.
        if let Some((inner, rest)) = stamp::boot_seconds(text) {
            let (caller, rest) = caller(rest);
            message.caller = caller.map(str::to_owned);
            message.position = Some(inner);
            message.boot_clock = Some(inner);
            message.exact = true;
            message.text = rest.strip_prefix(' ').unwrap_or(rest).to_owned();
        }
    }
}

/// Whether a stamp has its microseconds.
fn is_exact(stamp: &str) -> bool {
    stamp.split_once('.').is_some_and(|(_, fraction)| fraction.len() >= 6)
}

/// `name[123]: text` or `name: text`.
fn identifier(text: &str) -> Option<(&str, bool, &str)> {
    let (head, rest) = text.split_once(": ").or_else(|| Some((text.strip_suffix(':')?, "")))?;
    let pid = head.strip_suffix(']').and_then(|head| head.rsplit_once('['));
    match pid {
        Some((name, pid)) if !pid.is_empty() && pid.bytes().all(|b| b.is_ascii_digit()) => {
            Some((name, true, rest))
        }
        _ if head.is_empty() || head.contains(' ') => None,
        _ => Some((head, false, rest)),
    }
}

/// The text without the `kern.warn ` that some syslog daemons write before the identifier.
fn without_priority(text: &str) -> &str {
    let after = text.split_once(' ').and_then(|(word, rest)| {
        let (name, level) = word.split_once('.')?;
        (FACILITIES.contains(&name) && LEVELS.contains(&level)).then_some(rest)
    });
    after.unwrap_or(text)
}

/// `[   12.345678] text` right after a container log's stamp, with CRI's `stdout F ` between.
fn printed_in_container(rest: &str) -> Option<&str> {
    let rest =
        rest.strip_prefix("stdout F ").or_else(|| rest.strip_prefix("stderr F ")).unwrap_or(rest);
    rest.starts_with('[').then_some(rest)
}

/// `[ T123]` or `[C1]`, perhaps after a space.
fn caller(text: &str) -> (Option<&str>, &str) {
    let inner = text.strip_prefix(' ').unwrap_or(text).strip_prefix('[');
    let Some((caller, rest)) = inner.and_then(|inner| inner.split_once(']')) else {
        return (None, text);
    };
    let caller = caller.trim();
    let number = caller.strip_prefix(['T', 'C']);
    match number {
        Some(number) if !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) => {
            (Some(caller), rest)
        }
        _ => (None, text),
    }
}

const FACILITIES: [&str; 12] = [
    "kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv",
    "ftp",
];
const LEVELS: [&str; 8] = ["emerg", "alert", "crit", "err", "warn", "notice", "info", "debug"];

/// `<6>` or `kern  :info  : ` before the stamp.
fn facility(text: &str) -> (Option<u16>, &str) {
    if let Some((priority, rest)) = text.strip_prefix('<').and_then(|rest| rest.split_once('>'))
        && priority.len() <= 5
        && let Ok(priority) = priority.parse::<u16>()
    {
        return (Some(priority >> 3), rest);
    }
    let mut parts = text.splitn(3, ':');
    let (Some(name), Some(level), Some(rest)) = (parts.next(), parts.next(), parts.next()) else {
        return (None, text);
    };
    let (name, level) = (name.trim_end(), level.trim_end());
    let number = FACILITIES.iter().position(|known| *known == name).or_else(|| {
        let local: usize = name.strip_prefix("local")?.parse().ok()?;
        (local < 8).then_some(16 + local)
    });
    match (number.and_then(|number| u16::try_from(number).ok()), rest.strip_prefix(' ')) {
        (Some(number), Some(rest)) if LEVELS.contains(&level) => (Some(number), rest),
        _ => (None, text),
    }
}

fn from_record(record: &kmsg::Record<'_>) -> Message {
    let position = Duration::from_micros(record.usec);
    Message {
        seq: Some(record.seq),
        position: Some(position),
        boot_clock: Some(position),
        stamp: format!("{:.6}", position.as_secs_f64()),
        from_kernel: record.facility == 0,
        facility: Some(record.facility),
        caller: record.caller.map(str::to_owned),
        text: record.text.clone().into_owned(),
        ..Message::default()
    }
}

/// Lines of journalctl itself: `-- Boot … --`, `-- Logs begin at …`.
fn is_journal_notice(text: &str) -> bool {
    ["-- Boot ", "-- Reboot --", "-- Logs begin ", "-- Journal begins ", "-- No entries --"]
        .iter()
        .any(|start| text.starts_with(start))
}

/// The bytes without the colour sequences of dmesg and journalctl.
fn without_colours(bytes: &[u8]) -> Cow<'_, [u8]> {
    if !bytes.contains(&0x1b) {
        return Cow::Borrowed(bytes);
    }
    let mut plain = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != 0x1b {
            plain.push(*first);
            continue;
        }
        let Some(parameters) = after.strip_prefix(b"[") else { continue };
        let end = parameters.iter().position(|byte| !matches!(byte, b'0'..=b'9' | b';'));
        match end.map(|end| parameters.split_at(end)) {
            Some((_, after)) if after.starts_with(b"m") || after.starts_with(b"K") => {
                rest = after.get(1..).unwrap_or_default();
            }
            _ => {}
        }
    }
    Cow::Owned(plain)
}
