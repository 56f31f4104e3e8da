//! The parts before a message: facility, priority, identifier, caller; and records as text.

use std::borrow::Cow;
use std::time::Duration;

use super::Message;
use super::stamp::{self, Clock};
use crate::kmsg;

/// Characters before each line of a log that was indented, quoted or made a list.
pub(super) const MARGIN: [char; 11] = [' ', '\t', '>', '-', '+', '*', '|', '#', '`', '•', '│'];

/// Whether a line begins with the stamp of a kernel log, or is a record of it.
pub(super) fn is_stamped(text: &str) -> bool {
    record(text).is_some() || broadcast(text).is_some() || has_stamp(text)
}

/// Whether a line begins with a stamp, perhaps after its facility.
pub(super) fn has_stamp(text: &str) -> bool {
    let (_, rest) = facility(text);
    rfc5424(rest).is_some() || stamp::parse(rest, &mut Clock::default()).is_some()
}

/// A record of `/dev/kmsg`, also as netconsole sends it, with the kernel's release before it
/// (Documentation/networking/netconsole.rst).
pub(super) fn record(text: &str) -> Option<kmsg::Record<'_>> {
    if let Ok(record) = kmsg::parse_record(text.as_bytes()) {
        return Some(record);
    }
    let (release, rest) = text.split_once(',')?;
    let is_release = release.starts_with(|first: char| first.is_ascii_digit())
        && release.contains('.')
        && release.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_+~".contains(&byte));
    if is_release { kmsg::parse_record(rest.as_bytes()).ok() } else { None }
}

/// A record as a message.
pub(super) fn from_record(record: &kmsg::Record<'_>) -> Message {
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

/// `kernel:[   12.345678] text`, which rsyslog sends to terminals, or with a space. Returns the
/// text from the stamp on.
pub(super) fn broadcast(text: &str) -> Option<&str> {
    let rest = text.strip_prefix("kernel:")?.trim_start();
    stamp::boot_seconds(rest).is_some().then_some(rest)
}

/// Whether a stamp has its microseconds.
pub(super) fn is_exact(stamp: &str) -> bool {
    stamp.split_once('.').is_some_and(|(_, fraction)| fraction.len() >= 6)
}

/// `name[123]: text` or `name: text`.
pub(super) fn identifier(text: &str) -> Option<(&str, bool, &str)> {
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

/// `kern.warn `, which some syslog daemons write before the identifier: its facility, and the text
/// after it.
pub(super) fn priority(text: &str) -> Option<(u16, &str)> {
    let (word, rest) = text.split_once(' ')?;
    let (name, level) = word.split_once('.')?;
    let facility = facility_number(name)?;
    LEVELS.contains(&level).then_some((facility, rest))
}

/// `1 2026-11-21T02:31:07+00:00 host app procid msgid [data] text`, as RFC 5424 has it after the
/// priority.
pub(super) fn rfc5424(text: &str) -> Option<Message> {
    let (stamp, rest) = stamp::parse(text.strip_prefix("1 ")?, &mut Clock::default())?;
    let mut words = rest.trim_start().splitn(5, ' ');
    let (host, app) = (words.next()?, words.next()?);
    let (procid, _msgid, rest) = (words.next()?, words.next()?, words.next()?);
    let text = structured_data(rest)?;
    let text = text.strip_prefix(' ').unwrap_or(text);
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    // A pid is klogd's, or of a program that calls itself so.
    let from_kernel = app == "kernel" && procid == "-";
    let stamped = if from_kernel { kernel_stamp(text) } else { KernelStamp::none(text) };
    Some(Message {
        utc: stamp.utc,
        local: stamp.local,
        boot_clock: stamped.at,
        position: stamped.at.or(Some(stamp.position)),
        exact: stamped.at.is_some(),
        stamp: stamp.printed,
        host: (host != "-").then(|| host.to_owned()),
        from_kernel,
        identifier: Some(app.to_owned()),
        caller: stamped.caller.map(str::to_owned),
        text: stamped.text.to_owned(),
        ..Message::default()
    })
}

/// The text after `-` or `[id key="value"][…]`.
fn structured_data(text: &str) -> Option<&str> {
    if let Some(rest) = text.strip_prefix('-') {
        return Some(rest);
    }
    let mut rest = text;
    while let Some(element) = rest.strip_prefix('[') {
        let (mut in_string, mut escaped) = (false, false);
        let end = element.bytes().position(|byte| {
            let is_quote = byte == b'"' && !escaped;
            in_string ^= is_quote;
            escaped = byte == b'\\' && !escaped;
            byte == b']' && !in_string
        })?;
        rest = element.get(end + 1..)?;
    }
    (rest.len() < text.len()).then_some(rest)
}

/// `[ T123]` or `[C1]`, perhaps after a space.
pub(super) fn caller(text: &str) -> (Option<&str>, &str) {
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
/// The names of syslog.h, the deprecated ones too. Talos writes `warning`.
const LEVELS: [&str; 11] = [
    "emerg", "alert", "crit", "err", "warn", "notice", "info", "debug", "panic", "error", "warning",
];

fn facility_number(name: &str) -> Option<u16> {
    let number = FACILITIES.iter().position(|known| *known == name).or_else(|| {
        let local: usize = name.strip_prefix("local")?.parse().ok()?;
        (local < 8).then_some(16 + local)
    });
    u16::try_from(number?).ok()
}

/// `<6>`, `kern  :info  : ` (dmesg -x) or `kern:    info: ` (`talosctl dmesg`: `%s: %7s: [%s]: %s`
/// in its v1alpha1_server.go) before the stamp.
pub(super) fn facility(text: &str) -> (Option<u16>, &str) {
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
    match (facility_number(name.trim_end()), rest.strip_prefix(' ')) {
        (Some(number), Some(rest)) if LEVELS.contains(&level.trim()) => (Some(number), rest),
        _ => (None, text),
    }
}

/// Lines of journalctl itself: `-- Boot … --`, `-- Logs begin at …`.
pub(super) fn is_journal_notice(text: &str) -> bool {
    ["-- Boot ", "-- Reboot --", "-- Logs begin ", "-- Journal begins ", "-- No entries --"]
        .iter()
        .any(|start| text.starts_with(start))
}

/// The bytes without the colour sequences of dmesg and journalctl.
pub(super) fn without_colours(bytes: &[u8]) -> Cow<'_, [u8]> {
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

/// The kernel's own stamp before a text, which syslog daemons leave there.
#[derive(Debug)]
pub(super) struct KernelStamp<'a> {
    pub at: Option<Duration>,
    pub caller: Option<&'a str>,
    pub text: &'a str,
}

impl<'a> KernelStamp<'a> {
    fn none(text: &'a str) -> Self {
        Self { at: None, caller: None, text }
    }
}

/// Reads `[   12.345678][ T123] text`, or a text without any stamp.
pub(super) fn kernel_stamp(text: &str) -> KernelStamp<'_> {
    match stamp::boot_seconds(text.trim_start()) {
        Some((at, rest)) => {
            let (caller, rest) = caller(rest);
            let text = rest.strip_prefix(' ').unwrap_or(rest);
            KernelStamp { at: Some(at), caller, text }
        }
        None => KernelStamp::none(text),
    }
}
