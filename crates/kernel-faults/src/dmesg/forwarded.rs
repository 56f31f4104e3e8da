//! JSON objects in which shippers and log services carry a log.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value};

use super::json::{self, text};
use super::{Message, header};

/// Members deeper than this are not read.
const DEEPEST: usize = 4;

/// What an object carries.
pub(super) enum Carried {
    /// A message whose sender the object names, or nobody's.
    Message(Box<Message>),
    /// A line of a log, which names its sender itself, as the text of a message with the time and
    /// the host of the object.
    Line(Box<Message>),
    /// Several of them.
    Many(Vec<Carried>),
}

/// Members with the text: of Vector, Filebeat and most others, Docker and Fluent Bit, Promtail,
/// Talos, Cloud Logging, Graylog, Azure, VictoriaLogs, Splunk, and syslog-ng.
const TEXTS: [&str; 10] = [
    "message",
    "log",
    "line",
    "msg",
    "textPayload",
    "short_message",
    "SyslogMessage",
    "_msg",
    "_raw",
    "MESSAGE",
];
/// Members with the object that has the text: of Cloud Logging, Elasticsearch, Splunk, and
/// Datadog in two versions.
const PAYLOADS: [&str; 5] = ["jsonPayload", "_source", "result", "content", "attributes"];
/// Members with the time.
const TIMES: [&str; 7] =
    ["@timestamp", "timestamp", "time", "talos-time", "_time", "TimeGenerated", "EventTime"];

/// Reads an object with its text in one of [`TEXTS`], or a response of Loki.
pub(super) fn read(entry: &Map<String, Value>) -> Option<Carried> {
    one(entry).or_else(|| streams(entry))
}

/// A response of Loki, or one of its streams:
/// `{"data": {"result": [{"stream": {labels}, "values": [["time", "line"]]}]}}`.
fn streams(entry: &Map<String, Value>) -> Option<Carried> {
    let result = entry.get("data").and_then(|data| data.get("result")).and_then(Value::as_array);
    let many = match result {
        Some(result) => result.iter().filter_map(|stream| streams(stream.as_object()?)).collect(),
        None => {
            let labels = entry.get("stream")?.as_object()?;
            entry.get("values")?.as_array()?.iter().filter_map(|pair| value(labels, pair)).collect()
        }
    };
    Some(Carried::Many(many))
}

/// One line of a stream, and its time in nanoseconds.
fn value(labels: &Map<String, Value>, pair: &Value) -> Option<Carried> {
    let (nanos, line) = (pair.get(0)?.as_str()?.parse().ok()?, pair.get(1)?.clone());
    let at = Timestamp::from_nanosecond(nanos).ok()?;
    let mut entry = labels.clone();
    entry.insert("line".to_owned(), line);
    entry.insert("timestamp".to_owned(), Value::String(at.to_string()));
    one(&entry)
}

/// The values of members, those of the first object first.
fn members<'e>(objects: &[&'e Map<String, Value>], keys: &[&str]) -> Vec<&'e Value> {
    let of = |object: &&'e Map<String, Value>| -> Vec<&'e Value> {
        keys.iter().filter_map(|key| object.get(*key)).collect()
    };
    objects.iter().flat_map(of).collect()
}

/// A time as text, or as a number since 1970 in seconds or a part of them. What is smaller than any
/// time of this century is of another clock.
fn time(value: &Value) -> Option<Timestamp> {
    const FIRST: f64 = 1e9;
    if let Some(time) = value.as_str().and_then(|text| text.parse().ok()) {
        return Some(time);
    }
    let number = value.as_f64().or_else(|| value.as_str()?.parse().ok())?;
    let unit = [1.0, 1e3, 1e6, 1e9].into_iter().find(|unit| number / unit < 100.0 * FIRST)?;
    let since = Duration::try_from_secs_f64(number / unit).ok()?;
    let since = (number >= FIRST).then(|| SignedDuration::try_from(since).ok())??;
    Timestamp::from_duration(since).ok()
}

fn one(entry: &Map<String, Value>) -> Option<Carried> {
    let payloads = PAYLOADS.iter().filter_map(|key| entry.get(*key)?.as_object());
    let objects: Vec<&Map<String, Value>> = [entry].into_iter().chain(payloads).collect();
    let printed = members(&objects, &TEXTS).into_iter().find_map(text)?;
    let printed = printed.strip_suffix("\\x0a").unwrap_or(&printed);
    let mut sender = Sender::default();
    sender.read(entry, 0);
    let utc = members(&objects, &TIMES).into_iter().find_map(time);
    let message = Message {
        utc,
        stamp: utc.map(|utc| utc.to_string()).unwrap_or_default(),
        host: sender.host.clone(),
        ..Message::default()
    };
    // What a container printed names its sender itself, as does an object in an object's text.
    let is_printed = entry.get("stream").is_some_and(Value::is_string);
    let is_line = || json::is_record(printed) || (!sender.is_named && header::is_stamped(printed));
    if is_printed || (!sender.is_program && is_line()) {
        return Some(Carried::Line(Box::new(Message { text: printed.to_owned(), ..message })));
    }
    let stamped = header::kernel_stamp(printed);
    Some(Carried::Message(Box::new(Message {
        boot_clock: stamped.at,
        position: stamped.at,
        from_kernel: sender.is_kernel(),
        identifier: sender.identifier.clone(),
        caller: stamped.caller.map(str::to_owned),
        text: stamped.text.to_owned(),
        ..message
    })))
}

/// Who wrote a message, by the members of its object or by its labels.
#[derive(Debug, Default)]
pub(super) struct Sender {
    /// A member names the kernel.
    is_named: bool,
    /// A member names another sender.
    is_program: bool,
    identifier: Option<String>,
    host: Option<String>,
}

impl Sender {
    /// Whether the kernel is named, and nothing else.
    pub(super) fn is_kernel(&self) -> bool {
        self.is_named && !self.is_program
    }

    /// Whether another sender is named.
    pub(super) fn is_program(&self) -> bool {
        self.is_program
    }

    /// The host that is named.
    pub(super) fn host(&self) -> Option<String> {
        self.host.clone()
    }

    fn read(&mut self, entry: &Map<String, Value>, depth: usize) {
        for (key, value) in entry {
            match value {
                Value::Object(inner) if depth < DEEPEST => match &**key {
                    "process" => self.process(inner),
                    "host" => self.host = inner.get("name").and_then(text),
                    "facility" => self.facility(inner.get("code").unwrap_or(&Value::Null)),
                    _ => self.read(inner, depth + 1),
                },
                _ => self.member(key, value),
            }
        }
    }

    /// `process.name` and `process.pid` of the Elastic Common Schema.
    fn process(&mut self, process: &Map<String, Value>) {
        if let Some(name) = process.get("name") {
            self.member("ident", name);
        }
        self.is_program |= process.contains_key("pid");
    }

    /// One member or label.
    pub(super) fn member(&mut self, key: &str, value: &Value) {
        let key = key.trim_start_matches('_').to_ascii_lowercase();
        let words = value.as_str().unwrap_or_default();
        if value.as_str().is_some_and(str::is_empty) {
            return;
        }
        match &*key {
            "transport" | "journal_transport" => self.note(words == "kernel"),
            "syslog_identifier" | "identifier" | "appname" | "app_name" | "application_name"
            | "ident" | "processname" | "program" | "programname" => {
                self.identifier = Some(words.to_owned());
                self.note(words == "kernel");
            }
            // Datadog has the journal's identifier there.
            "service" if words == "kernel" => self.note(true),
            "syslog_facility" | "facility" => self.facility(value),
            "host" | "hostname" | "computer" => self.host = text(value),
            "pid" | "syslog_pid" | "comm" | "exe" | "unit" | "systemd_unit" | "uid" => {
                self.is_program = true;
            }
            _ => {}
        }
    }

    fn facility(&mut self, value: &Value) {
        let is_kernel = value.as_u64() == Some(0)
            || value.as_str().is_some_and(|words| matches!(words, "0" | "kern" | "kernel"));
        self.note(is_kernel);
    }

    fn note(&mut self, is_kernel: bool) {
        self.is_named |= is_kernel;
        self.is_program |= !is_kernel;
    }
}

/// `{job="kern", transport="kernel"} text`: labels as Loki's logcli prints them, and the text.
pub(super) fn labelled(text: &str) -> Option<(Sender, &str)> {
    let mut sender = Sender::default();
    let mut rest = text.strip_prefix('{')?;
    loop {
        rest = rest.trim_start_matches([' ', ',']);
        if let Some(rest) = rest.strip_prefix('}') {
            return Some((sender, rest.trim_start_matches([' ', '\t'])));
        }
        let (name, after) = rest.split_once("=\"")?;
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        name.bytes().all(fits).then_some(())?;
        let end = end_of_string(after)?;
        let value: String = serde_json::from_str(&format!("\"{}\"", after.get(..end)?)).ok()?;
        sender.member(name, &Value::String(value));
        rest = after.get(end + 1..)?;
    }
}

/// The position of the quote that ends a string.
fn end_of_string(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })
}
