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
    if let Some((facility, rest)) = numbered(text) {
        return (Some(facility), rest);
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

/// `<6>`: a facility and a level.
pub(super) fn numbered(text: &str) -> Option<(u16, &str)> {
    let (priority, rest) = text.strip_prefix('<')?.split_once('>')?;
    (priority.len() <= 5).then_some(())?;
    Some((priority.parse::<u16>().ok()? >> 3, rest))
}

/// Lines of journalctl itself: `-- Boot … --`, `-- Logs begin at …`.
pub(super) fn is_journal_notice(text: &str) -> bool {
    ["-- Boot ", "-- Reboot --", "-- Logs begin ", "-- Journal begins ", "-- No entries --"]
        .iter()
        .any(|start| text.starts_with(start))
}

/// A terminal's escape as `cat -v`, rsyslog and less write it.
const ESCAPES: [&[u8]; 3] = [b"^[", b"#033", b"ESC"];

/// The bytes without the sequences of a terminal: colours of dmesg and journalctl, titles, and
/// moves of the cursor.
pub(super) fn without_sequences(bytes: &[u8]) -> Cow<'_, [u8]> {
    if !bytes.iter().any(|byte| matches!(byte, 0x1b | b'^' | b'#' | b'E')) {
        return Cow::Borrowed(bytes);
    }
    let mut plain = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((first, after)) = rest.split_first() {
        rest = match after_sequence(rest) {
            Some(after) => after,
            None => {
                plain.push(*first);
                after
            }
        };
    }
    Cow::Owned(plain)
}

/// The bytes after the sequence of a terminal that begins them, or after an escape alone.
fn after_sequence(bytes: &[u8]) -> Option<&[u8]> {
    if let Some(after) = bytes.strip_prefix(b"\x1b") {
        return Some(after_control(after).unwrap_or(after));
    }
    let after = ESCAPES.iter().find_map(|escape| bytes.strip_prefix(*escape))?;
    // Of what is written out, only colours are sure to be no text.
    let parameters = after.strip_prefix(b"[")?;
    let end = parameters.iter().position(|byte| !matches!(byte, b'0'..=b'9' | b';'))?;
    parameters.get(end..)?.strip_prefix(b"m")
}

/// The bytes after a control function, whose escape precedes them (ECMA-48).
fn after_control(bytes: &[u8]) -> Option<&[u8]> {
    let (kind, rest) = bytes.split_first()?;
    match kind {
        b'[' => {
            let end = rest.iter().position(|byte| !matches!(byte, b'0'..=b'?'))?;
            let (last, rest) = rest.get(end..)?.split_first()?;
            last.is_ascii_alphabetic().then_some(rest)
        }
        // A title, up to BEL or the next escape.
        b']' => {
            let end = rest.iter().position(|byte| matches!(byte, 0x07 | 0x1b))?;
            let end = if rest.get(end) == Some(&0x07) { end + 1 } else { end };
            rest.get(end..)
        }
        b'(' | b')' => rest.get(1..),
        b'\\' => Some(rest),
        _ => None,
    }
}

/// The bytes without what a serial line or a terminal puts before a line. Tabs stay, and the
/// separator of JSON records.
pub(super) fn without_noise(bytes: &[u8]) -> &[u8] {
    let is_noise = |byte: &u8| matches!(byte, 0..=8 | 0x0b..=0x1a | 0x7f);
    let begin = bytes.iter().position(|byte| !is_noise(byte)).unwrap_or(bytes.len());
    bytes.get(begin..).unwrap_or_default()
}

/// The text with plain blanks: web pages and chats have others, some without a width.
pub(super) fn with_plain_blanks(text: Cow<'_, str>) -> Cow<'_, str> {
    const BLANKS: [char; 2] = ['\u{a0}', '\u{202f}'];
    const WITHOUT_WIDTH: [char; 3] = ['\u{200b}', '\u{2060}', '\u{feff}'];
    if text.is_ascii() || !(text.contains(BLANKS) || text.contains(WITHOUT_WIDTH)) {
        return text;
    }
    Cow::Owned(text.replace(BLANKS, " ").replace(WITHOUT_WIDTH, ""))
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
            let text = rest.strip_prefix([' ', '\t']).unwrap_or(rest);
            KernelStamp { at: Some(at), caller, text }
        }
        None => KernelStamp::none(text),
    }
}
