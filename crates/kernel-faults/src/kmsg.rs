//! Records of `/dev/kmsg`.
//!
//! One record is `prio,seq,usec,flags[,…];text` and below it lines ` KEY=value`; see
//! Documentation/ABI/testing/dev-kmsg in the kernel's tree.

use std::borrow::Cow;
use std::fmt::Write;

#[cfg(test)]
mod tests;

/// One record, as the kernel wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Syslog facility; 0 is the kernel, everything else was written by user space.
    pub facility: u16,
    /// Syslog level, 0 (emergency) to 7 (debug).
    pub level: u8,
    /// The kernel's sequence number within this boot.
    pub seq: u64,
    /// The kernel's own clock, in microseconds.
    pub usec: u64,
    /// `-` a whole message, `c` the first part of one, `+` a further part.
    pub flags: Cow<'a, str>,
    /// The task (`T123`) or CPU (`C1`) that printed it, if the kernel reports it.
    pub caller: Option<&'a str>,
    /// The message; bytes outside printable ASCII are `\xNN`.
    pub text: Cow<'a, str>,
    /// The ` KEY=value` lines, without the leading space, newline-separated.
    pub dictionary: String,
}

/// Why bytes are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// No `;` ends the header.
    #[error("the record has no `;` between its header and its text")]
    NoText,
    /// The header is not text.
    #[error("the record's header is not ASCII")]
    HeaderNotAscii,
    /// A header field is absent.
    #[error("the record's header has no {0}")]
    Missing(&'static str),
    /// A header field is not a number in range.
    #[error("the record's {0} is not a number in range")]
    NotANumber(&'static str),
}

/// Parses one record.
///
/// Further comma-separated header fields, bytes that are not UTF-8 (they become `\xNN`), CRLF and a
/// missing last newline are accepted.
///
/// # Errors
/// [`RecordError`] names the malformed part of the header.
pub fn parse_record(bytes: &[u8]) -> Result<Record<'_>, RecordError> {
    let line_end = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    let semicolon =
        bytes[..line_end].iter().position(|byte| *byte == b';').ok_or(RecordError::NoText)?;
    let header = str::from_utf8(&bytes[..semicolon]).map_err(|_| RecordError::HeaderNotAscii)?;
    if !header.is_ascii() {
        return Err(RecordError::HeaderNotAscii);
    }
    let mut fields = header.split(',');
    let priority = number(fields.next(), "priority")?;
    let seq = number(fields.next(), "sequence number")?;
    let usec = number(fields.next(), "time")?;
    let flags = fields.next().ok_or(RecordError::Missing("flags"))?;
    let facility = u16::try_from(priority >> 3).map_err(|_| RecordError::NotANumber("priority"))?;
    let level = u8::try_from(priority & 7).map_err(|_| RecordError::NotANumber("priority"))?;
    let caller = fields.find_map(|field| field.strip_prefix("caller="));
    let text = bytes[semicolon + 1..line_end].strip_suffix(b"\r");
    Ok(Record {
        facility,
        level,
        seq,
        usec,
        flags: Cow::Borrowed(flags),
        caller,
        text: printable(text.unwrap_or(&bytes[semicolon + 1..line_end])),
        dictionary: dictionary(bytes.get(line_end + 1..).unwrap_or_default()),
    })
}

fn number(field: Option<&str>, name: &'static str) -> Result<u64, RecordError> {
    let field = field.ok_or(RecordError::Missing(name))?;
    if field.is_empty() || !field.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(RecordError::NotANumber(name));
    }
    field.parse().map_err(|_| RecordError::NotANumber(name))
}

fn dictionary(bytes: &[u8]) -> String {
    let mut lines = String::new();
    for line in bytes.split(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let Some(entry) = line.strip_prefix(b" ") else { continue };
        if !lines.is_empty() {
            lines.push('\n');
        }
        lines.push_str(&printable(entry));
    }
    lines
}

/// The bytes as text, with control characters and bytes that are not UTF-8 written as `\xNN`, as
/// the kernel writes them to `/dev/kmsg`. Tabs stay.
pub fn printable(bytes: &[u8]) -> Cow<'_, str> {
    let plain = |byte: &u8| (b' '..=b'~').contains(byte) || *byte == b'\t';
    if bytes.iter().all(plain)
        && let Ok(text) = str::from_utf8(bytes)
    {
        return Cow::Borrowed(text);
    }
    let mut text = String::with_capacity(bytes.len() + 16);
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            if character.is_control() && character != '\t' {
                escape(&mut text, character.encode_utf8(&mut [0; 4]).as_bytes());
            } else {
                text.push(character);
            }
        }
        escape(&mut text, chunk.invalid());
    }
    Cow::Owned(text)
}

fn escape(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(text, "\\x{byte:02x}");
    }
}
