//! JSON objects in which shippers carry a log: Vector, Filebeat, Fluent Bit, Loki.

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::json::text;
use super::{Message, header};

/// Members deeper than this are not read.
const DEEPEST: usize = 4;

/// What an object carries.
pub(super) enum Carried {
    /// A message whose sender the object names, or nobody's.
    Message(Box<Message>),
    /// A line of a log, which names its sender itself.
    Line(String),
}

/// Reads an object with its text in `message`, `log` or `line`.
pub(super) fn read(entry: &Map<String, Value>) -> Option<Carried> {
    let printed = ["message", "log", "line"].iter().find_map(|key| text(entry.get(*key)?))?;
    let printed = printed.strip_suffix("\\x0a").unwrap_or(&printed);
    let mut sender = Sender::default();
    sender.read(entry, 0);
    if !sender.is_named && !sender.is_program && header::is_stamped(printed) {
        return Some(Carried::Line(printed.to_owned()));
    }
    let utc = ["@timestamp", "timestamp", "time"]
        .iter()
        .find_map(|key| entry.get(*key)?.as_str()?.parse::<Timestamp>().ok());
    let stamped = header::kernel_stamp(printed);
    Some(Carried::Message(Box::new(Message {
        utc,
        boot_clock: stamped.at,
        position: stamped.at,
        stamp: utc.map(|utc| utc.to_string()).unwrap_or_default(),
        host: sender.host.clone(),
        from_kernel: sender.is_kernel(),
        identifier: sender.identifier.clone(),
        caller: stamped.caller.map(str::to_owned),
        text: stamped.text.to_owned(),
        ..Message::default()
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
        match &*key {
            "transport" | "journal_transport" => self.note(words == "kernel"),
            "syslog_identifier" | "identifier" | "appname" | "app_name" | "ident" | "program"
            | "programname" => {
                self.identifier = Some(words.to_owned());
                self.note(words == "kernel");
            }
            "syslog_facility" | "facility" => self.facility(value),
            "host" | "hostname" => self.host = text(value),
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
