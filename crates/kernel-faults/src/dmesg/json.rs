//! `dmesg --json` and `journalctl -o json`, a member a line or an entry a line.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::Message;
use super::forwarded::{self, Carried};
use super::stamp::{self, Clock};
use crate::kmsg;

/// The size limit of an entry, in bytes.
const LONGEST_ENTRY: usize = 256 * 1024;

/// Reads the JSON of dmesg, which it prints a member a line.
#[derive(Debug, Default)]
pub(super) struct DmesgJson {
    inside: bool,
    /// The array is closed, and its object not yet.
    closing: bool,
    message: Message,
    has_text: bool,
}

impl DmesgJson {
    /// Whether the document has begun.
    pub(super) fn is_inside(&self) -> bool {
        self.inside
    }

    /// `None`: the line is not of such a document; else the message that it ends, if any.
    pub(super) fn feed(&mut self, line: &str) -> Option<Option<Message>> {
        let line = line.trim();
        if std::mem::take(&mut self.closing) && line == "}" {
            return Some(None);
        }
        if !self.inside {
            if line.starts_with("\"dmesg\": [") {
                self.inside = true;
                return Some(None);
            }
            return None;
        }
        if line.starts_with('}') {
            let message = std::mem::take(&mut self.message);
            return Some(std::mem::take(&mut self.has_text).then_some(message));
        }
        if line == "]" {
            (self.inside, self.closing) = (false, true);
            return Some(None);
        }
        if line == "{" || line.is_empty() {
            return Some(None);
        }
        let member = line.strip_suffix(',').unwrap_or(line);
        let Ok(Value::Object(member)) = serde_json::from_str(&format!("{{{member}}}")) else {
            // The document was truncated; other text follows.
            self.inside = false;
            return None;
        };
        for (key, value) in member {
            self.member(&key, &value);
        }
        Some(None)
    }

    /// The message of a record whose end is missing, at the end of the document.
    pub(super) fn truncated(&mut self) -> Option<Message> {
        std::mem::take(&mut self.has_text).then(|| std::mem::take(&mut self.message))
    }

    fn member(&mut self, key: &str, value: &Value) {
        self.has_text |= key == "msg";
        member(&mut self.message, key, value);
    }
}

/// One member of a record of dmesg.
fn member(message: &mut Message, key: &str, value: &Value) {
    match key {
        "pri" => {
            let facility = value.as_u64().and_then(|pri| u16::try_from(pri >> 3).ok());
            message.facility = message.facility.or(facility);
        }
        "fac" => message.facility = Some(u16::from(value.as_str() != Some("kern"))),
        "time" => time(message, value),
        "caller" => message.caller = value.as_str().map(|text| text.trim().to_owned()),
        "msg" => message.text = text(value).unwrap_or_default(),
        _ => {}
    }
    message.from_kernel = message.facility.unwrap_or(0) == 0;
}

/// Seconds since boot as a number; text or a date with some options of dmesg.
fn time(message: &mut Message, value: &Value) {
    let Some(text) = value.as_str() else {
        message.position = value.as_f64().and_then(|time| Duration::try_from_secs_f64(time).ok());
        message.boot_clock = message.position;
        message.stamp = value.to_string();
        return;
    };
    let text = text.trim();
    message.stamp = text.to_owned();
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    for line in [format!("{bare} "), format!("[{bare}] ")] {
        if let Some((stamp, _)) = stamp::parse(&line, &mut Clock::default()) {
            message.position = Some(stamp.position);
            message.boot_clock = stamp.boot_clock.then_some(stamp.position);
            (message.utc, message.local) = (stamp.utc, stamp.local);
            return;
        }
    }
}

/// The members of a record of dmesg, and of Fluent Bit's kmsg input.
const DMESG: [&str; 11] =
    ["pri", "fac", "lev", "time", "caller", "msg", "date", "priority", "sequence", "sec", "usec"];

/// One record of dmesg in one piece.
fn dmesg(entry: &Map<String, Value>) -> Option<Message> {
    (entry.contains_key("msg") && entry.keys().all(|key| DMESG.contains(&&**key))).then_some(())?;
    let mut message = Message::default();
    for (key, value) in entry {
        member(&mut message, key, value);
    }
    Some(message)
}

/// What a line is of an object that is printed a member a line.
#[derive(Debug)]
pub(super) enum Pretty {
    /// It is of none.
    Other,
    /// The object goes on.
    Inside,
    /// The whole object.
    Entry(String),
    /// The lines before this one were of none.
    Lost(String),
}

/// `journalctl -o json-pretty` and `jq`, which print a member a line.
#[derive(Debug, Default)]
pub(super) struct PrettyJson {
    entry: Option<String>,
    /// Objects that are open within the entry.
    depth: usize,
}

impl PrettyJson {
    /// Takes a line.
    pub(super) fn feed(&mut self, line: &str) -> Pretty {
        let line = line.trim();
        let Some(entry) = &mut self.entry else {
            if line == "{" {
                self.begin();
                return Pretty::Inside;
            }
            return Pretty::Other;
        };
        if line == "{" && entry.ends_with('[') {
            // Mostly the object only holds a list of entries: `{"events": [`.
            let lost = self.forget().filter(|entry| entry.contains(','));
            self.begin();
            return lost.map_or(Pretty::Inside, Pretty::Lost);
        }
        let element = line.strip_suffix(',').unwrap_or(line);
        let is_member = line.starts_with('"')
            || matches!(element, "[" | "]")
            || element.bytes().all(|byte| byte.is_ascii_digit());
        let ends = element == "}";
        if !(is_member || ends) || entry.len() + line.len() > LONGEST_ENTRY {
            // No entry, or a truncated one; other text follows.
            return self.forget().map_or(Pretty::Other, Pretty::Lost);
        }
        if ends && self.depth == 0 {
            entry.push_str(element);
            return self.forget().map_or(Pretty::Other, Pretty::Entry);
        }
        entry.push_str(line);
        self.depth -= usize::from(ends);
        self.depth += usize::from(line.starts_with('"') && line.ends_with('{'));
        Pretty::Inside
    }

    /// Whether an object goes on.
    pub(super) fn is_inside(&self) -> bool {
        self.entry.is_some()
    }

    fn begin(&mut self) {
        (self.entry, self.depth) = (Some("{".to_owned()), 0);
    }

    /// The entry belongs to another document, or is over.
    pub(super) fn forget(&mut self) -> Option<String> {
        self.entry.take()
    }
}

/// Whether the line is an opening or closing bracket of records with one line each.
pub(super) fn is_bracket(line: &str) -> bool {
    let bare: String =
        line.chars().filter(|letter| !letter.is_ascii_whitespace()).take(16).collect();
    matches!(&*bare, "[" | "]" | "]}" | "{\"dmesg\":[" | "{\"dmesg\":[]}")
}

/// The JSON object on a line: of json-sse (`data: {…}`), json-seq (after a record separator),
/// Fluent Bit's standard output, or as it is.
pub(super) fn on_one_line(text: &str) -> Option<&str> {
    let entry = text.strip_prefix("data: ").or_else(|| text.strip_prefix("\\x1e"));
    let entry = entry.or_else(|| of_fluent_bit(text)).unwrap_or(text).trim_start();
    entry.starts_with('{').then_some(entry)
}

/// The record in `[0] tag: [1790506800.1, {…}]`, as Fluent Bit prints it to its standard output.
/// Newer versions have metadata beside the time: `[0] tag: [[1790506800.1, {}], {…}]`.
fn of_fluent_bit(text: &str) -> Option<&str> {
    let (number, rest) = text.strip_prefix('[')?.split_once("] ")?;
    let (tag, rest) = rest.split_once(": [")?;
    let is_one = number.bytes().all(|byte| byte.is_ascii_digit()) && !tag.contains(' ');
    let record = rest.get(rest.find(", {\"")? + 2..)?.trim_end().strip_suffix(']')?;
    is_one.then_some(record)
}

/// The object after `tag<tab>`, as Fluentd writes it to files, or after `tag: `, as it writes it to
/// its standard output behind a stamp of its own: `2026-11-21 02:31:07.000000000 +0000`.
/// `stamp`: without the zone, if the log has one.
pub(super) fn tagged<'a>(stamp: Option<&str>, rest: &'a str) -> Option<&'a str> {
    let is_of_output = stamp.is_some_and(|stamp| {
        stamp.as_bytes().get(10) == Some(&b' ')
            && stamp.bytes().all(|byte| byte.is_ascii_digit() || b"-:. ".contains(&byte))
    });
    let of_output = rest.split_once(": ").filter(|(tag, _)| is_of_output && !tag.contains('['));
    let (tag, entry) = rest.split_once('\t').or(of_output)?;
    (entry.starts_with('{') && !tag.contains(' ')).then_some(entry)
}

/// Reads one record of `dmesg --json`, one entry of `journalctl -o json`, or one message of a
/// shipper, perhaps with the comma before the next one.
pub(super) fn carried(line: &str) -> Option<Carried> {
    let line = line.trim_end();
    let line = line.strip_suffix(',').unwrap_or(line);
    let Ok(Value::Object(entry)) = serde_json::from_str(line) else { return None };
    let message = || journal(&entry).or_else(|| dmesg(&entry));
    message().map(|message| Carried::Message(Box::new(message))).or_else(|| forwarded::read(&entry))
}

/// Whether a line is a record, an entry or a message of a shipper, by itself.
pub(super) fn is_record(line: &str) -> bool {
    line.starts_with('{') && matches!(carried(line), Some(Carried::Message(_)))
}

/// The fields of `journalctl --output-fields=MESSAGE`, none of which is about the sender.
const ANONYMOUS: [&str; 8] = [
    "MESSAGE",
    "PRIORITY",
    "_BOOT_ID",
    "_MACHINE_ID",
    "_RUNTIME_SCOPE",
    "_SOURCE_REALTIME_TIMESTAMP",
    "_SOURCE_MONOTONIC_TIMESTAMP",
    "_SOURCE_BOOTTIME_TIMESTAMP",
];

/// Whether an entry is as good as a line without anything: its sender was left out.
fn is_anonymous(entry: &Map<String, Value>) -> bool {
    entry.keys().all(|key| key.starts_with("__") || ANONYMOUS.contains(&&**key))
}

fn journal(entry: &Map<String, Value>) -> Option<Message> {
    let text = text(entry.get("MESSAGE")?)?;
    // syslog-ng has a member of the same name.
    entry.get("PROGRAM").is_none().then_some(())?;
    let field = |name: &str| entry.get(name).and_then(Value::as_str);
    let micros = |name: &str| field(name).and_then(|text| text.parse::<u64>().ok());
    let realtime = micros("__REALTIME_TIMESTAMP");
    let utc = realtime
        .and_then(|micros| i64::try_from(micros).ok())
        .and_then(|micros| Timestamp::from_microsecond(micros).ok());
    let identifier = field("SYSLOG_IDENTIFIER").map(str::to_owned);
    let facility = field("SYSLOG_FACILITY").and_then(|text| text.parse().ok());
    // Users cannot set `_TRANSPORT`. Records of user space in the kernel log have their facility.
    let is_named = match identifier.as_deref() {
        Some(identifier) => identifier == "kernel",
        None => field("_TRANSPORT").is_some() || is_anonymous(entry),
    };
    let from_kernel = is_named
        && field("_TRANSPORT").is_none_or(|transport| transport == "kernel")
        && facility.is_none_or(|facility: u16| facility == 0);
    let boot_clock = micros("_SOURCE_MONOTONIC_TIMESTAMP").or(micros("__MONOTONIC_TIMESTAMP"));
    Some(Message {
        utc,
        boot_clock: boot_clock.map(Duration::from_micros),
        position: boot_clock.or(realtime).map(Duration::from_micros),
        stamp: utc.map(|utc| utc.to_string()).unwrap_or_default(),
        host: field("_HOSTNAME").map(str::to_owned),
        from_kernel,
        facility,
        identifier,
        text,
        ..Message::default()
    })
}

/// A text, or the bytes of one that is not UTF-8.
pub(super) fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(kmsg::printable(text.as_bytes()).into_owned()),
        Value::Array(bytes) => {
            let bytes: Option<Vec<u8>> = bytes
                .iter()
                .map(|byte| byte.as_u64().and_then(|byte| u8::try_from(byte).ok()))
                .collect();
            Some(kmsg::printable(&bytes?).into_owned())
        }
        _ => None,
    }
}
