//! The lines of one source: a log without a prefix before its lines.

use std::collections::VecDeque;

use super::columns::Columns;
use super::container::{self, Parts};
use super::forwarded::{self, Carried};
use super::header;
use super::stamp::{self, Clock, Stamp};
use super::tags::{self, Tags};
use super::{LONGEST_LINE, Message, json};
use crate::kmsg;

/// The most stamps of other logs around the line of a log.
const MOST_STAMPS: usize = 2;

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
    Journal,
}

/// Splits the text of one source into messages, line by line, in bounded memory.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// Number of the current line.
    number: u64,
    /// What the prefix of the current line names.
    origin: Option<String>,
    form: Form,
    /// Lines are strings of a JSON array, as Ansible prints them.
    quoted: bool,
    /// Lines begin with `kernel:`, as rsyslog writes to terminals.
    broadcast: bool,
    monotonic: Monotonic,
    tags: Tags,
    /// The names of streams precede lines of other logs.
    has_streams: bool,
    clock: Clock,
    json: json::DmesgJson,
    pretty: json::PrettyJson,
    /// Number of the first line of its object.
    pretty_from: u64,
    /// The pending message is of a text form, which indents its further lines.
    is_text: bool,
    /// Prefix of every line of a log that was quoted or indented.
    margin: String,
    pending: Option<Message>,
    parts: Parts,
    columns: Columns,
    /// Complete messages before the one that [`Self::feed`] returns.
    pub(super) earlier: VecDeque<Message>,
}

impl Lines {
    /// Takes one line, printable and without its prefix. Returns the message before it, which is
    /// now complete.
    pub(super) fn feed(
        &mut self,
        number: u64,
        origin: Option<&str>,
        text: &str,
    ) -> Option<Message> {
        self.number = number;
        self.origin = origin.map(str::to_owned);
        let (lost, text) = self.parts.join(text);
        if let Some(lost) = lost {
            let complete = self.feed_whole(&lost);
            self.earlier.extend(complete);
        }
        text.and_then(|text| self.feed_whole(&text))
    }

    fn feed_whole(&mut self, text: &str) -> Option<Message> {
        let text = self.without_margin(text);
        if self.is_rest(text) {
            return None;
        }
        if let Some(found) = self.feed_json(text) {
            return found;
        }
        if let Some(line) = self.unquoted(text) {
            return self.feed_text(&line);
        }
        if let Some(record) = header::record(text) {
            self.form = Form::Kmsg;
            let message = header::from_record(&record);
            return self.replace(message);
        }
        self.feed_text(text)
    }

    /// Whether the line is the rest of the one before it, which a terminal or a runner of jobs has
    /// broken. It is then added to its message.
    fn is_rest(&mut self, text: &str) -> bool {
        let glue = self.columns.feed(text);
        let rest = match (container::rest_of_line(text), glue) {
            (Some(rest), _) => rest,
            (None, Some(glue)) if self.may_be_broken(text) => {
                self.columns.is_known = true;
                &format!("{glue}{text}")
            }
            (None, _) => return false,
        };
        let has_room = |pending: &&mut Message| pending.text.len() + rest.len() < LONGEST_LINE;
        match self.pending.as_mut().filter(has_room) {
            Some(pending) => pending.text.push_str(rest),
            None => return false,
        }
        true
    }

    /// Whether the message before the line may go on in it, as it begins no other one. Forms that
    /// indent the lines of a message do so by more than a blank, but for the fields of a record.
    fn may_be_broken(&self, text: &str) -> bool {
        let is_indented = match self.form {
            Form::Bare => return false,
            Form::Kmsg => text.starts_with([' ', '\t']),
            Form::Stamped if !self.is_text => return false,
            Form::Stamped => text.starts_with("  ") || text.starts_with('\t'),
        };
        let is_json = self.quoted || json::on_one_line(text).is_some();
        !is_indented && !is_json && !text.is_empty() && !header::is_stamped(text)
    }

    /// Takes a line that has not the prefix of its log: nothing is known of its sender.
    pub(super) fn feed_foreign(&mut self, number: u64, text: &str) -> Option<Message> {
        (self.number, self.origin) = (number, None);
        self.replace(Message { text: text.to_owned(), ..Message::default() })
    }

    /// A line within a JSON array. Only the first stamp of a log may be within one: later it would
    /// be the text of another message.
    fn unquoted(&mut self, text: &str) -> Option<String> {
        (self.quoted || self.form == Form::Bare).then_some(())?;
        let string = text.trim_start_matches(header::MARGIN).trim_end();
        let string = string.strip_suffix(',').unwrap_or(string);
        string.starts_with('"').then_some(())?;
        let line: String = serde_json::from_str(string).ok()?;
        let line = kmsg::printable(line.as_bytes()).into_owned();
        header::is_stamped(&line).then_some(())?;
        self.quoted = true;
        Some(line)
    }

    /// The lines in a JSON array of strings, with the same limit.
    fn strings(&mut self, text: &str) -> Option<Carried> {
        (self.quoted || self.form == Form::Bare).then_some(())?;
        text.starts_with("[\"").then_some(())?;
        let lines: Vec<String> = serde_json::from_str(text.trim_end()).ok()?;
        let lines = lines.iter().map(|line| kmsg::printable(line.as_bytes()).into_owned());
        let lines: Vec<String> = lines.collect();
        header::is_stamped(lines.first()?).then_some(())?;
        self.quoted = true;
        let line = |text| Carried::Line(Box::new(Message { text, ..Message::default() }));
        Some(Carried::Many(lines.into_iter().map(line).collect()))
    }

    fn feed_text(&mut self, text: &str) -> Option<Message> {
        if header::is_journal_notice(text) {
            return self.pending.take();
        }
        if self.form == Form::Bare || self.broadcast {
            let after = header::broadcast(text);
            self.broadcast |= after.is_some();
            if let Some(message) = after.and_then(|after| self.stamped(after, 0)) {
                self.form = Form::Stamped;
                return self.replace(message);
            }
        }
        match self.stamped(text, 0) {
            Some(message) => {
                self.form = Form::Stamped;
                self.is_text = true;
                self.replace(message)
            }
            None => self.unstamped(text),
        }
    }

    /// `None`: the line is no JSON of a log; else the message that is complete now, if any.
    fn feed_json(&mut self, text: &str) -> Option<Option<Message>> {
        // It belongs to the message before it, whose program may have written anything.
        if self.is_text && text.starts_with([' ', '\t']) {
            return None;
        }
        if json::is_bracket(text) && !self.json.is_inside() {
            self.is_text = false;
            return Some(None);
        }
        if let Some(found) = self.json.feed(text) {
            self.pretty.forget();
            self.is_text = false;
            return Some(found.and_then(|message| self.replace(message)));
        }
        if let Some(truncated) = self.json.truncated() {
            let complete = self.replace(truncated);
            self.earlier.extend(complete);
        }
        let entry = match self.pretty.feed(text) {
            json::Pretty::Inside => {
                if text.trim() == "{" {
                    self.pretty_from = self.number;
                }
                self.is_text = false;
                return Some(None);
            }
            json::Pretty::Entry(entry) => entry,
            json::Pretty::Lost(lost) => {
                let complete = self.feed_lost(&lost);
                if self.pretty.is_inside() {
                    self.pretty_from = self.number;
                    return Some(complete);
                }
                self.earlier.extend(complete);
                return None;
            }
            json::Pretty::Other => match json::on_one_line(text) {
                Some(entry) => entry.to_owned(),
                None => {
                    let lines = self.strings(text)?;
                    return Some(self.feed_carried(lines));
                }
            },
        };
        match json::carried(&entry) {
            Some(carried) => {
                let complete = self.feed_carried(carried);
                // The next object of a document is indented, and no further line of this message.
                self.is_text &= entry.len() <= text.len();
                Some(complete)
            }
            None if entry.len() < text.len() || text.starts_with('{') => None,
            None => Some(self.feed_lost(&entry)),
        }
    }

    /// Takes an object over several lines that is no entry of a log.
    fn feed_lost(&mut self, object: &str) -> Option<Message> {
        let (number, origin) = (self.number, self.origin.take());
        let complete = self.feed_foreign(self.pretty_from, object);
        (self.number, self.origin) = (number, origin);
        complete
    }

    /// Takes what a JSON object carries.
    fn feed_carried(&mut self, carried: Carried) -> Option<Message> {
        let frame = match carried {
            Carried::Message(message) => {
                (self.form, self.is_text) = (Form::Stamped, false);
                return self.replace(*message);
            }
            Carried::Line(frame) => frame,
            Carried::Many(mut many) => {
                let last = many.pop();
                for carried in many {
                    let complete = self.feed_carried(carried);
                    self.earlier.extend(complete);
                }
                return last.and_then(|last| self.feed_carried(last));
            }
        };
        match self.carried(&frame.text, 1) {
            Some(message) => {
                (self.form, self.is_text) = (Form::Stamped, true);
                self.replace(framed(message, &frame))
            }
            None => self.feed_text(&frame.text),
        }
    }

    /// The message in a text that another log carries. `depth`: such logs around it.
    fn carried(&mut self, text: &str, depth: usize) -> Option<Message> {
        if let Some(record) = header::record(text) {
            return Some(header::from_record(&record));
        }
        if text.starts_with('{')
            && let Some(carried) = json::carried(text)
        {
            return match carried {
                Carried::Message(message) => Some(*message),
                Carried::Many(_) => None,
                Carried::Line(_) if depth >= MOST_STAMPS => None,
                Carried::Line(frame) => Some(framed(self.carried(&frame.text, depth + 1)?, &frame)),
            };
        }
        let begins = header::has_stamp(text) || header::facility(text).0.is_some();
        begins.then(|| self.stamped(text, depth))?
    }

    /// The line without the common prefix of a quoted or indented log. Only the first stamp of a
    /// log shows the prefix: later it would be the text of another message.
    fn without_margin<'a>(&mut self, text: &'a str) -> &'a str {
        if self.form == Form::Bare && self.margin.is_empty() {
            let rest = text.trim_start_matches(header::MARGIN);
            let margin = text.strip_suffix(rest).unwrap_or_default();
            if header::is_stamped(rest) {
                margin.clone_into(&mut self.margin);
            }
        } else if self.lacks_frame(text) {
            // The first line was only the rest of a message.
            self.margin.clear();
            (self.broadcast, self.quoted) = (false, false);
        }
        text.strip_prefix(&*self.margin).unwrap_or(text)
    }

    /// Whether the prefix of the other lines of the log is missing around a line with a stamp.
    fn lacks_frame(&self, text: &str) -> bool {
        let is_framed = self.broadcast || self.quoted || !self.margin.is_empty();
        let is_without = self.margin.is_empty() || !text.starts_with(&*self.margin);
        is_framed && is_without && header::broadcast(text).is_none() && header::is_stamped(text)
    }

    /// Whether any line so far had a stamp of a kernel log.
    pub(super) fn has_stamps(&self) -> bool {
        self.form != Form::Bare
    }

    /// The last messages.
    pub(super) fn finish(&mut self) -> Vec<Message> {
        let lost = self.parts.finish();
        let before = lost.and_then(|lost| self.feed_whole(&lost));
        self.earlier.extend(before);
        let before = self.json.truncated().and_then(|message| self.replace(message));
        self.earlier.extend(before);
        let entry = self.pretty.forget();
        let before = entry.and_then(|entry| self.feed_lost(&entry));
        self.earlier.extend(before);
        self.earlier.drain(..).chain(self.pending.take()).collect()
    }

    fn replace(&mut self, message: Message) -> Option<Message> {
        let origin = self.origin.clone();
        self.pending.replace(Message { line: self.number, origin, ..message })
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

    /// A line with a stamp. `depth`: stamps of other logs around it.
    fn stamped(&mut self, text: &str, depth: usize) -> Option<Message> {
        let (facility, rest) = header::facility(text);
        if let Some(message) = header::rfc5424(rest) {
            let from_kernel = message.from_kernel && facility.is_none_or(|facility| facility == 0);
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
            exact: boot_clock && header::is_exact(&printed),
            stamp: printed,
            facility,
            from_kernel: facility.is_none_or(|facility| facility == 0),
            ..Message::default()
        };
        if journal {
            match self.wrapped(&message, rest, depth) {
                Some(inner) => return Some(inner),
                None => self.journal(&mut message, rest),
            }
            return Some(message);
        }
        let (caller, rest) = header::caller(rest);
        message.caller = caller.map(str::to_owned);
        let rest = rest.strip_prefix([' ', '\t']).unwrap_or(rest);
        if boot_clock && message.caller.is_none() && facility.is_none() && self.is_monotonic(rest) {
            self.tags = Tags::Named;
            self.journal(&mut message, rest);
        } else {
            message.text = rest.to_owned();
        }
        Some(message)
    }

    /// The line of a log that another log carries: of a container, of Loki, of CloudWatch. The
    /// outer log has its own stamp before those of its programs.
    fn wrapped(&mut self, outer: &Message, rest: &str, depth: usize) -> Option<Message> {
        (depth < MOST_STAMPS).then_some(())?;
        let labelled = forwarded::labelled(rest);
        let line = match &labelled {
            Some((_, line)) => line,
            None => container::text(rest)
                .or_else(|| json::tagged(outer.utc.and(Some(&*outer.stamp)), rest))
                .or_else(|| self.of_stream(outer, rest))
                .unwrap_or(rest),
        };
        let (is_kernel, is_program, host) = match &labelled {
            Some((sender, _)) => (sender.is_kernel(), sender.is_program(), sender.host()),
            None => (false, false, None),
        };
        let host = host.or(outer.host.clone());
        if let Some(inner) = self.carried(line, depth + 1) {
            let from_kernel = inner.from_kernel && outer.from_kernel && !is_program;
            let facility = inner.facility.or(outer.facility);
            return Some(framed(
                Message { from_kernel, facility, ..inner },
                &Message { host, ..outer.clone() },
            ));
        }
        (line.len() < rest.len()).then_some(())?;
        let from_kernel = outer.from_kernel
            && !is_program
            && (is_kernel || self.tags.split(&outer.stamp, line) == Some((None, line)));
        Some(Message { from_kernel, host, text: line.to_owned(), ..outer.clone() })
    }

    /// The line of a stream, as `aws logs tail` prints it: the time, the stream's name, the line.
    /// The first line shows that, if it has a stamp of its own.
    fn of_stream<'a>(&mut self, outer: &Message, rest: &'a str) -> Option<&'a str> {
        let line = tags::behind_stream(rest);
        self.has_streams |= self.tags == Tags::Undecided && outer.utc.is_some() && line.is_some();
        line.filter(|_| self.has_streams)
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
                || header::identifier(rest).is_some_and(|(_, has_pid, _)| has_pid);
        }
        // A host may get its name during the boot, and a journal may be of several hosts.
        if self.monotonic == Monotonic::Journal {
            return true;
        }
        if self.monotonic == Monotonic::Dmesg {
            return false;
        }
        let split = rest
            .split_once(' ')
            .filter(|(host, _)| !host.is_empty() && !host.contains([':', '[', '(', '=']));
        let Some((name, has_pid, _)) = split.and_then(|(_, rest)| header::identifier(rest)) else {
            self.monotonic = Monotonic::Dmesg;
            return false;
        };
        let sure = name == "kernel" || has_pid;
        if sure {
            self.monotonic = Monotonic::Journal;
        }
        sure
    }

    /// `host identifier[pid]: text`; the host may be left out. Some logs have neither.
    fn journal(&mut self, message: &mut Message, rest: &str) {
        if message.from_kernel
            && let Some((host, text)) = self.tags.split(&message.stamp, rest)
        {
            message.host = host.map(str::to_owned);
            message.text = text.to_owned();
            return;
        }
        tagged(message, rest);
        if !message.from_kernel {
            message.whole = Some(rest.to_owned());
        }
    }
}

/// A message with what only the log around it knows.
fn framed(message: Message, frame: &Message) -> Message {
    let utc = message.utc.or(frame.utc);
    let local = if utc.is_some() { None } else { message.local.or(frame.local.clone()) };
    let host = message.host.or_else(|| frame.host.clone());
    Message { utc, local, host, ..message }
}

/// `host identifier[pid]: text`; the host may be left out.
fn tagged(message: &mut Message, rest: &str) {
    let rest = match rest.split_once(' ') {
        Some((host, after))
            if !host.ends_with(':')
                && header::priority(rest).is_none()
                && header::broadcast(rest).is_none() =>
        {
            message.host = Some(host.to_owned());
            after.trim_start()
        }
        _ => rest,
    };
    let rest = match header::priority(rest) {
        Some((facility, rest)) => {
            message.facility = message.facility.or(Some(facility));
            message.from_kernel &= facility == 0;
            rest
        }
        None => rest,
    };
    // Some templates of rsyslog have no space before the kernel's stamp.
    let named = header::broadcast(rest).map(|text| ("kernel", false, text));
    let Some((name, has_pid, text)) = named.or_else(|| header::identifier(rest)) else {
        message.from_kernel = false;
        message.text = rest.to_owned();
        return;
    };
    message.from_kernel &= name == "kernel" && !has_pid;
    message.identifier = Some(name.to_owned());
    if !message.from_kernel {
        message.text = text.to_owned();
        return;
    }
    // Some daemons leave the kernel's priority there.
    let text = match header::numbered(text) {
        Some((0, rest)) => rest,
        _ => text,
    };
    let stamped = header::kernel_stamp(text);
    message.text = stamped.text.to_owned();
    if stamped.at.is_some() {
        message.caller = stamped.caller.map(str::to_owned);
        (message.position, message.boot_clock) = (stamped.at, stamped.at);
        message.exact = true;
    }
}
