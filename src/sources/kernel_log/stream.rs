//! A regular file or a FIFO with records in the format of `/dev/kmsg`.

use std::fs::{File, Metadata};
use std::io::{Seek, SeekFrom};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::intake::Intake;
use super::{ReadClock, ReadEnd, open_file};
use crate::model::Observation;

/// A longer line is malformed, and so is a longer record with its continuation lines.
pub(super) const RECORD_BYTES: usize = 8192;

/// Bytes read at once. The buffer always fits an open record and an unfinished line.
const BUFFER_BYTES: usize = 8 * RECORD_BYTES;

#[derive(Debug)]
pub(super) struct Stream {
    file: File,
    origin: StreamOrigin,
    lines: RecordBuffer,
}

#[derive(Debug)]
enum StreamOrigin {
    /// `keeps_open`: also opened for writing, so that it does not end when a writer exits.
    Fifo { keeps_open: bool },
    /// A regular file, tracked as it grows.
    File { path: PathBuf, identity: (u64, u64), offset: u64 },
}

impl Stream {
    pub(super) fn fifo(file: File, keeps_open: bool) -> Self {
        Self { file, origin: StreamOrigin::Fifo { keeps_open }, lines: RecordBuffer::new() }
    }

    pub(super) fn file(path: &Path, file: File, metadata: &Metadata) -> Self {
        let origin =
            StreamOrigin::File { path: path.to_owned(), identity: identity(metadata), offset: 0 };
        Self { file, origin, lines: RecordBuffer::new() }
    }

    /// A FIFO without a writer would wake its poller forever, unless it is also open for writing
    /// here.
    pub(super) fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        matches!(self.origin, StreamOrigin::Fifo { keeps_open: true }).then(|| self.file.as_fd())
    }

    pub(super) fn read(
        &mut self,
        intake: &mut Intake,
        clock: &ReadClock,
        out: &mut Vec<Observation>,
        at_most: usize,
    ) -> Result<ReadEnd, String> {
        let mut taken = 0;
        while taken < at_most {
            match self.lines.next() {
                Some(StreamPiece::Record(raw)) => {
                    intake.take(raw, clock, out);
                    taken += 1;
                }
                Some(StreamPiece::Overlong) => {
                    intake.malformed(out);
                    taken += 1;
                }
                None => {
                    let filled = self.fill()?;
                    if filled == FillResult::Bytes {
                        continue;
                    }
                    if let Some(raw) = self.lines.close() {
                        intake.take(raw, clock, out);
                        taken += 1;
                    }
                    if filled == FillResult::Nothing || !self.check_file(intake, out)? {
                        return Ok(ReadEnd::Drained);
                    }
                }
            }
        }
        Ok(ReadEnd::More)
    }

    fn fill(&mut self) -> Result<FillResult, String> {
        loop {
            match rustix::io::read(&self.file, self.lines.free_space()) {
                Ok(0) => return Ok(FillResult::End),
                Ok(length) => {
                    self.lines.filled(length);
                    if let StreamOrigin::File { offset, .. } = &mut self.origin {
                        *offset += length as u64;
                    }
                    return Ok(FillResult::Bytes);
                }
                Err(Errno::AGAIN) => return Ok(FillResult::Nothing),
                Err(Errno::INTR) => {}
                Err(error) => return Err(format!("reading the kernel log failed: {error}")),
            }
        }
    }

    /// Checks at the end of a regular file whether it was truncated or replaced, also before this
    /// run. If so, restarts at its beginning.
    fn check_file(
        &mut self,
        intake: &mut Intake,
        out: &mut Vec<Observation>,
    ) -> Result<bool, String> {
        let StreamOrigin::File { path, identity: known, offset } = &mut self.origin else {
            return Ok(false);
        };
        let failed = |error: std::io::Error| format!("watching {}: {error}", path.display());
        // The name may be missing for a moment during a rotation.
        let named = std::fs::metadata(&*path).ok().filter(|named| identity(named) != *known);
        if let Some(named) = named {
            if !named.is_file() {
                return Err(format!("{} is no longer a regular file", path.display()));
            }
            self.file = open_file(path, false).map_err(failed)?;
            *known = identity(&self.file.metadata().map_err(failed)?);
        } else if intake.is_another_log() || self.file.metadata().map_err(failed)?.len() < *offset {
            self.file.seek(SeekFrom::Start(0)).map_err(failed)?;
        } else {
            return Ok(false);
        }
        *offset = 0;
        // The unfinished line stays incomplete.
        if self.lines.abandon() {
            intake.malformed(out);
        }
        intake.restart();
        Ok(true)
    }
}

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FillResult {
    Bytes,
    /// No bytes yet.
    Nothing,
    /// The present end of the file.
    End,
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// The next part of a stream of bytes.
#[derive(Debug, PartialEq, Eq)]
enum StreamPiece<'a> {
    /// A record with its continuation lines.
    Record(&'a [u8]),
    /// A line above the size limit.
    Overlong,
}

/// Bytes in order of arrival, split into records.
#[derive(Debug)]
struct RecordBuffer {
    buffer: Box<[u8]>,
    /// End of the received bytes.
    end: usize,
    /// Start of the first unprocessed line.
    line: usize,
    /// No newline between `line` and this position.
    scanned: usize,
    /// The record that may get more continuation lines; it ends before `line`.
    record: Option<Range<usize>>,
    /// Skip to the next newline.
    skipping: bool,
    /// Report an overlong line after the preceding record.
    overlong: bool,
}

impl RecordBuffer {
    fn new() -> Self {
        Self {
            buffer: vec![0; BUFFER_BYTES].into(),
            end: 0,
            line: 0,
            scanned: 0,
            record: None,
            skipping: false,
            overlong: false,
        }
    }

    /// Free space for more bytes. Never empty after [`Self::next`] returned `None`, since the open
    /// record and the unfinished line are bounded.
    fn free_space(&mut self) -> &mut [u8] {
        let keep = self.record.as_ref().map_or(self.line, |record| record.start);
        self.buffer.copy_within(keep..self.end, 0);
        self.end -= keep;
        self.line -= keep;
        self.scanned -= keep;
        self.record = self.record.take().map(|record| 0..record.end - keep);
        &mut self.buffer[self.end..]
    }

    fn filled(&mut self, length: usize) {
        self.end += length;
    }

    /// The next complete piece.
    fn next(&mut self) -> Option<StreamPiece<'_>> {
        while !self.overlong {
            let unseen = &self.buffer[self.scanned..self.end];
            let Some(newline) = unseen.iter().position(|&byte| byte == b'\n') else {
                self.scanned = self.end;
                if !self.skipping && self.end - self.line <= RECORD_BYTES {
                    return None;
                }
                self.line = self.end;
                if self.skipping {
                    return None;
                }
                self.skipping = true;
                self.overlong = true;
                break;
            };
            let line = self.line..self.scanned + newline;
            self.line = line.end + 1;
            self.scanned = self.line;
            if let Some(record) = self.process(line) {
                return Some(StreamPiece::Record(&self.buffer[record]));
            }
        }
        if let Some(record) = self.record.take() {
            return Some(StreamPiece::Record(&self.buffer[record]));
        }
        self.overlong = false;
        Some(StreamPiece::Overlong)
    }

    /// Processes one whole line; returns the record that it ends, if any.
    fn process(&mut self, line: Range<usize>) -> Option<Range<usize>> {
        if std::mem::take(&mut self.skipping) || line.is_empty() {
            return self.record.take();
        }
        if line.len() > RECORD_BYTES {
            self.overlong = true;
            return self.record.take();
        }
        if self.buffer[line.start] != b' ' {
            return self.record.replace(line.start..line.end + 1);
        }
        // A continuation line without a preceding record came too late, and is dropped.
        let record = self.record.take()?;
        if line.end + 1 - record.start > RECORD_BYTES {
            return Some(record);
        }
        self.record = Some(record.start..line.end + 1);
        None
    }

    /// Returns the record that was open for continuation lines.
    fn close(&mut self) -> Option<&[u8]> {
        self.record.take().map(|record| &self.buffer[record])
    }

    /// Drops all bytes; returns whether an unfinished line was among them.
    fn abandon(&mut self) -> bool {
        let unfinished = !self.skipping && self.line < self.end;
        (self.end, self.line, self.scanned) = (0, 0, 0);
        (self.record, self.skipping, self.overlong) = (None, false, false);
        unfinished
    }
}

/// The records of `bytes` that arrive in chunks of `chunk` bytes; `None` is an overlong line. With
/// `close_between`, every chunk is followed by a silence.
#[cfg(any(test, feature = "fuzzing"))]
pub fn pieces(bytes: &[u8], chunk: usize, close_between: bool) -> Vec<Option<Vec<u8>>> {
    let mut lines = RecordBuffer::new();
    let mut pieces = Vec::new();
    for chunk in bytes.chunks(chunk) {
        let space = lines.free_space();
        space[..chunk.len()].copy_from_slice(chunk);
        lines.filled(chunk.len());
        while let Some(piece) = lines.next() {
            pieces.push(match piece {
                StreamPiece::Record(raw) => Some(raw.to_owned()),
                StreamPiece::Overlong => None,
            });
        }
        if close_between {
            pieces.extend(lines.close().map(|raw| Some(raw.to_owned())));
        }
    }
    pieces.extend(lines.close().map(|raw| Some(raw.to_owned())));
    pieces
}

#[cfg(test)]
mod tests;
