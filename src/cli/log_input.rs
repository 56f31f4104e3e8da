//! Reads kernel logs as files and streams: lines of any length, JSON on one line, wall times
//! without zone or year, and arbitrary bytes.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, Read};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use rustix::fs::OFlags;

use crate::cli::output::errln;
use kernel_faults::dmesg::{JsonRecords, LogText, Message, begins_with_records, line_separator};
use kernel_faults::kmsg;

pub(super) const STANDARD_INPUT: &str = "standard input";

/// Longer lines are truncated.
const LONGEST_LINE: usize = 64 * 1024;

/// The file system of anonymous pipes (linux/magic.h).
const PIPEFS_MAGIC: rustix::fs::FsWord = 0x5049_5045;

/// A text has at most one byte in this many that is invalid in text.
const ODD_BYTE_IN: u64 = 10;

/// How long the writer of a FIFO has to open it.
const WRITER_TIMEOUT: Duration = Duration::from_secs(2);
const WRITER_POLL: Duration = Duration::from_millis(50);

/// Opens a log: a file, a pipe with a writer, or standard input.
///
/// # Errors
/// It cannot be opened, is a folder or a device, or is a FIFO without a writer.
pub(super) fn open_log(path: &Path) -> io::Result<impl Read + use<>> {
    let kind = fs::metadata(path)?.file_type();
    let is_input = ["/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"].map(Path::new).contains(&path);
    if (kind.is_char_device() || kind.is_block_device()) && !is_input {
        let text = "a device: save its content, for example with `dmesg > FILE`";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    if kind.is_dir() {
        let text = "a folder: name a file in it; `journalctl -k -D FOLDER` reads a journal's";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let flags = if kind.is_fifo() { OFlags::NONBLOCK } else { OFlags::empty() };
    let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    let begin = if kind.is_fifo() { first_of_pipe(&file)? } else { Vec::new() };
    Ok(io::Cursor::new(begin).chain(file))
}

/// The first bytes of a pipe, if there are any yet.
fn first_of_pipe(mut pipe: &File) -> io::Result<Vec<u8>> {
    let mut begin = vec![0; 4096];
    // The writer of an anonymous pipe exists already.
    let is_named = rustix::fs::fstatfs(pipe)?.f_type != PIPEFS_MAGIC;
    let mut waited = Duration::ZERO;
    loop {
        match pipe.read(&mut begin) {
            Ok(0) if is_named && waited < WRITER_TIMEOUT => {
                std::thread::sleep(WRITER_POLL);
                waited += WRITER_POLL;
            }
            Ok(0) if is_named => {
                let text = "a FIFO (named pipe) without a writer: name a file";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
            }
            Ok(length) => {
                begin.truncate(length);
                break;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                begin.clear();
                break;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    rustix::fs::fcntl_setfl(pipe, rustix::fs::fcntl_getfl(pipe)? - OFlags::NONBLOCK)?;
    Ok(begin)
}

/// A log to read.
pub(super) struct LogInput<R> {
    input: R,
    /// Its name in messages.
    name: String,
    /// The newest possible time of its messages.
    newest: Timestamp,
    /// The local time zone. `None` if TZ is invalid.
    zone: Option<TimeZone>,
}

/// The kind of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadAs {
    /// A log, since a line has a stamp.
    Log,
    /// Text. Whether it is a log is unknown.
    Text,
    /// No line has a log's stamp, and much is not text.
    Bytes,
}

/// The source of a wall time without a zone in the log.
pub(super) fn utc_from(message: &Message) -> Option<&'static str> {
    let local = message.local.as_ref().filter(|_| message.utc.is_some())?;
    Some(if local.year_is_known() { "local_time" } else { "local_time_without_year" })
}

/// The error for bytes that gave nothing and are not text.
pub(super) fn not_a_log(name: &str) -> anyhow::Error {
    anyhow::anyhow!(
        "{name} is not a kernel log: no line has a stamp and much of it is not text; give the \
         output of `dmesg` or `journalctl -k` prints; `umawarden replay` reads recordings too"
    )
}

impl<R: BufRead> LogInput<R> {
    /// A log without messages newer than `newest`, or else than now.
    pub(super) fn new(input: R, name: &str, newest: Option<SystemTime>) -> Self {
        let newest = newest.and_then(|time| Timestamp::try_from(time).ok());
        let newest = newest.unwrap_or_else(Timestamp::now);
        Self { input, name: name.to_owned(), newest, zone: own_zone() }
    }

    /// Gives each message, with its wall time if it can be determined.
    pub(super) fn read(
        mut self,
        reader_of_text: &str,
        take: &mut dyn FnMut(Message) -> anyhow::Result<()>,
    ) -> anyhow::Result<ReadAs> {
        self.refuse_other_formats(reader_of_text)?;
        let Self { input, name, newest, zone } = self;
        let mut take = |mut message: Message| {
            if message.utc.is_none()
                && let (Some(local), Some(zone)) = (&message.local, &zone)
            {
                message.utc = local.resolve(zone, newest);
            }
            take(message)
        };
        let mut log = LogText::new();
        let (mut lines, mut bytes, mut odd) = (0, 0, 0);
        each_line(input, &name, |piece| {
            let line = match piece {
                InputPiece::Line(line) => line,
                // Its form is not read; the words of faults in it must not go unnoticed.
                InputPiece::Rest(rest) => {
                    let text = kmsg::printable(rest).into_owned();
                    return take(Message { line: lines, text, ..Message::default() });
                }
            };
            lines += 1;
            bytes += line.len() as u64;
            odd += odd_bytes(line);
            let mut complete = log.feed(line);
            while let Some(message) = complete {
                take(message)?;
                complete = log.more();
            }
            Ok(())
        })?;
        let mut is_log = log.has_stamps();
        for message in log.finish() {
            is_log |= !message.stamp.is_empty();
            take(message)?;
        }
        let is_text = odd.saturating_mul(ODD_BYTE_IN) <= bytes;
        Ok(match (is_log, is_text) {
            (true, _) => ReadAs::Log,
            (false, true) => ReadAs::Text,
            (false, false) => ReadAs::Bytes,
        })
    }

    fn refuse_other_formats(&mut self, reader_of_text: &str) -> anyhow::Result<()> {
        let name = &self.name;
        let head = self.input.fill_buf().with_context(|| format!("cannot read {name}"))?;
        if let Some((what, reader)) = no_text(head) {
            if name == STANDARD_INPUT {
                anyhow::bail!("{name} is {what}: pipe it through `{reader}` first");
            }
            anyhow::bail!("{name} is {what}: give it as `{reader} {name} | {reader_of_text} -`");
        }
        anyhow::ensure!(
            !is_quoted_printable(head),
            "{name} is quoted-printable text of a mail: give what the mail program shows"
        );
        if let Some(form) = journal_fields(head) {
            anyhow::bail!(
                "{name} is in the journal's {form} form: write it with `-o json` instead"
            );
        }
        Ok(())
    }
}

/// The time zone of this machine: UTC if unset, as in the C library.
fn own_zone() -> Option<TimeZone> {
    match TimeZone::try_system() {
        Ok(zone) => Some(zone),
        Err(_) if std::env::var_os("TZ").is_none_or(|zone| zone.is_empty()) => Some(TimeZone::UTC),
        Err(error) => {
            errln!("umawarden: cannot convert times without a zone to UTC: TZ: {error}");
            None
        }
    }
}

/// The modification time of a file, which is after all its messages.
pub(super) fn written(path: &Path) -> Option<SystemTime> {
    let metadata = path.metadata().ok().filter(fs::Metadata::is_file)?;
    metadata.modified().ok()
}

/// Bytes that are invalid in text.
fn odd_bytes(line: &[u8]) -> u64 {
    let odd = |byte: &u8| matches!(byte, 0..=8 | 0x0b | 0x0e..=0x1a | 0x1c..=0x1f | 0x7f);
    let mut count = 0;
    for chunk in line.utf8_chunks() {
        let controls = chunk.valid().as_bytes().iter().filter(|byte| odd(byte)).count();
        count += (controls + chunk.invalid().len()) as u64;
    }
    count
}

#[derive(Debug, PartialEq)]
enum InputPiece<'a> {
    /// A line without its end, or a record of a JSON document on one line.
    Line(&'a [u8]),
    /// Bytes of the last line beyond [`LONGEST_LINE`].
    Rest(&'a [u8]),
}

/// Gives each line, in bounded memory.
fn each_line(
    mut input: impl BufRead,
    name: &str,
    mut take: impl FnMut(InputPiece<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let cannot_read = || format!("cannot read {name}");
    let separator = line_separator(input.fill_buf().with_context(cannot_read)?);
    let mut line = Vec::new();
    loop {
        line.clear();
        let limit = u64::try_from(LONGEST_LINE).unwrap_or(u64::MAX);
        let read = input.by_ref().take(limit).read_until(separator, &mut line);
        if read.with_context(cannot_read)? == 0 {
            return Ok(());
        }
        let is_whole = line.last() == Some(&separator);
        if begins_with_records(&line) {
            let mut records = JsonRecords::new();
            let mut rest = RestOfLine { input: &mut input, separator, is_over: is_whole };
            while !line.is_empty() {
                for record in line.drain(..).filter_map(|byte| records.push(byte)) {
                    take(InputPiece::Line(&record))?;
                }
                rest.read(&mut line).with_context(cannot_read)?;
            }
            records.finish().map_or(Ok(()), |record| take(InputPiece::Line(&record)))?;
            continue;
        }
        if is_whole {
            line.pop();
        }
        let is_over = is_whole || line.len() < LONGEST_LINE;
        // A log of carriage returns ends with a newline all the same.
        take(InputPiece::Line(line.strip_suffix(b"\n").unwrap_or(&line)))?;
        let mut rest = RestOfLine { input: &mut input, separator, is_over };
        line.clear();
        rest.read(&mut line).with_context(cannot_read)?;
        while !line.is_empty() {
            take(InputPiece::Rest(&line))?;
            line.clear();
            rest.read(&mut line).with_context(cannot_read)?;
        }
    }
}

struct RestOfLine<'i, R> {
    input: &'i mut R,
    separator: u8,
    is_over: bool,
}

impl<R: BufRead> RestOfLine<'_, R> {
    /// The next piece; empty at the end of the line.
    fn read(&mut self, line: &mut Vec<u8>) -> io::Result<()> {
        if !self.is_over {
            let limit = u64::try_from(LONGEST_LINE).unwrap_or(u64::MAX);
            let read = self.input.by_ref().take(limit).read_until(self.separator, line)?;
            self.is_over = read == 0 || line.last() == Some(&self.separator);
        }
        Ok(())
    }
}

/// The format of a file that is not text, and the command that converts it. Read as text it would
/// look like a log without findings.
fn no_text(head: &[u8]) -> Option<(&'static str, &'static str)> {
    const FORMS: [(&[u8], &str, &str); 6] = [
        (b"\x1f\x8b", "compressed by gzip", "zcat"),
        (b"\xfd7zXZ\0", "compressed by xz", "xzcat"),
        (b"\x28\xb5\x2f\xfd", "compressed by zstd", "zstdcat"),
        (b"\x04\x22\x4d\x18", "compressed by lz4", "lz4cat"),
        (b"LPKSHHRH", "a binary journal", "journalctl --file"),
        (b"BZh", "compressed by bzip2", "bzcat"),
    ];
    // PowerShell writes UTF-16 when it redirects. Other invalid UTF-8 is a damaged log.
    if matches!(head, [0xff, 0xfe, _, 0, ..] | [0xfe, 0xff, 0, _, ..]) {
        return Some(("UTF-16", "iconv -f UTF-16 -t UTF-8"));
    }
    let (magic, what, reader) = FORMS.iter().find(|(magic, _, _)| head.starts_with(magic))?;
    let chance = magic == b"BZh" && head.get(4..10) != Some(b"1AY&SY");
    (!chance).then_some((what, reader))
}

/// Whether a mail's text was broken after at most 76 bytes, and each `=` replaced (RFC 2045).
/// Lines would be read without their ends.
fn is_quoted_printable(head: &[u8]) -> bool {
    let is_broken = |line: &[u8]| (72..=76).contains(&line.len()) && line.ends_with(b"=");
    let mut lines = head.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_end);
    lines.any(is_broken) && head.windows(3).any(|three| three == b"=3D")
}

/// A journal format with one field per line. A message may imitate fields, so that it cannot be
/// parsed by lines.
fn journal_fields(head: &[u8]) -> Option<&'static str> {
    if head.starts_with(b"__CURSOR=") || head.starts_with(b"__REALTIME_TIMESTAMP=") {
        return Some("export");
    }
    let mut lines = head.split(|byte| *byte == b'\n').filter(|line| !line.starts_with(b"-- "));
    let first = lines.next()?;
    first.windows(4).any(|four| four == b" [s=").then_some("verbose")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &[u8]) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        each_line(text, "x", |piece| {
            if let InputPiece::Line(line) = piece {
                found.push(line.to_vec());
            }
            Ok(())
        })
        .unwrap();
        found
    }

    #[test]
    fn a_document_on_one_line_of_any_length_is_taken_apart() {
        let record = format!("{{\"msg\":\"{}\"}}", "x".repeat(1000));
        let text = format!("a\n[{}]\nb\n", vec![record.as_str(); 500].join(","));
        let found = lines(text.as_bytes());
        assert_eq!(found.len(), 502);
        assert!(found[1..501].iter().all(|line| line == record.as_bytes()));
        assert_eq!((&*found[0], &*found[501]), (&b"a"[..], &b"b"[..]));
    }

    #[test]
    fn carriage_returns_or_nul_may_separate_the_lines() {
        for separator in ["\r", "\0"] {
            let text = ["[    1.000001] a", "[    2.000001] b", "c", "\n"].join(separator);
            assert_eq!(
                lines(text.as_bytes())[..3],
                [&b"[    1.000001] a"[..], b"[    2.000001] b", b"c"]
            );
        }
        assert_eq!(lines(b"[    1.000001] a\r\n[    2.000001] b\r\n").len(), 2);
    }

    #[test]
    fn overlong_lines_are_cut_and_the_next_is_complete() {
        let text = [vec![b'x'; 3 * LONGEST_LINE], b"\nnext".to_vec()].concat();
        let found = lines(&text);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].len(), &*found[1]), (LONGEST_LINE, &b"next"[..]));
    }

    #[test]
    fn the_rest_of_an_overlong_line_is_given_in_pieces() {
        let text = [vec![b'x'; 2 * LONGEST_LINE], b"y\nnext\n".to_vec()].concat();
        let mut rest = Vec::new();
        each_line(&*text, "x", |piece| {
            if let InputPiece::Rest(piece) = piece {
                assert!(piece.len() <= LONGEST_LINE);
                rest.extend_from_slice(piece);
            }
            Ok(())
        })
        .unwrap();
        assert_eq!(rest, [vec![b'x'; LONGEST_LINE], b"y\n".to_vec()].concat());
    }

    #[test]
    fn text_of_any_language_is_text() {
        assert_eq!(odd_bytes("[Пн сен 14] 月 ü\t\u{1b}[32m\r".as_bytes()), 0);
        assert_eq!(odd_bytes(b"\0\x01a\xff\xfe\x7f"), 5);
    }
}
