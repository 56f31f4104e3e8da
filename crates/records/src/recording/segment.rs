//! One file of a recording.

use std::io::{self, Read, Write};
use std::time::Duration;

use super::block::{self, BlockError, Inflater};
use super::decode::Decoder;
use super::encode::{EncodeRefusal, Encoder};
use super::entry::{RecordingEntry, SegmentBegin};
use super::wire::Bytes;
use super::{BLOCK_BYTES, MAGIC, MAX_BLOCK_BYTES, VERSION};

/// The age at which a block is written. A crash loses at most these entries, and those that the
/// kernel has not written.
const BLOCK_AGE: Duration = Duration::from_secs(5);

/// The result of adding an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddOutcome {
    /// The entry is pending.
    Yes,
    /// The segment is full of schemas: a new one is needed.
    Full,
    /// The entry is beyond every bound.
    TooLarge,
}

/// Gathers entries into blocks. It writes no file: [`SegmentWriter::block`] returns the next bytes
/// of the file.
#[derive(Debug)]
pub struct SegmentWriter {
    encoder: Encoder,
    pending: Vec<u8>,
    /// The time of the oldest pending entry.
    since: Option<Duration>,
    last: Option<Duration>,
    urgent: bool,
}

impl SegmentWriter {
    /// A segment, and the first bytes of its file.
    pub fn new(begin: &SegmentBegin) -> io::Result<(Self, Vec<u8>)> {
        let mut writer = Self {
            encoder: Encoder::default(),
            pending: Vec::new(),
            since: None,
            last: None,
            urgent: false,
        };
        writer.take(&RecordingEntry::Begin(Box::new(begin.clone())));
        let mut head = MAGIC.to_vec();
        head.extend_from_slice(&VERSION.to_le_bytes());
        head.extend(writer.block()?.unwrap_or_default());
        Ok((writer, head))
    }

    /// Adds an entry.
    pub fn take(&mut self, entry: &RecordingEntry) -> AddOutcome {
        let before = self.pending.len();
        match self.encoder.entry(entry, &mut self.pending) {
            Ok(()) if self.pending.len() > MAX_BLOCK_BYTES => {
                // The state of the encoder is not in the file: no entry may follow here.
                self.pending.truncate(before);
                return if before > 0 { AddOutcome::Full } else { AddOutcome::TooLarge };
            }
            Ok(()) => {}
            Err(EncodeRefusal::Full) => return AddOutcome::Full,
            Err(EncodeRefusal::TooLarge) => return AddOutcome::TooLarge,
        }
        if let Some(at) = entry.at() {
            self.since.get_or_insert(at.uptime);
            self.last = Some(at.uptime);
        }
        self.urgent |= match entry {
            RecordingEntry::Step(step) => !step.said.is_empty(),
            RecordingEntry::Begin(_)
            | RecordingEntry::Reload { .. }
            | RecordingEntry::Gap { .. } => true,
        };
        AddOutcome::Yes
    }

    /// Whether the pending entries should go to the file now: they are many, old, or matter.
    pub fn is_due(&self) -> bool {
        let age = self.last.zip(self.since).map(|(last, since)| last.saturating_sub(since));
        self.urgent || self.pending.len() >= BLOCK_BYTES || age.is_some_and(|age| age >= BLOCK_AGE)
    }

    /// The pending entries as bytes for the file; `None` if there are none.
    pub fn block(&mut self) -> io::Result<Option<Vec<u8>>> {
        self.since = None;
        self.urgent = false;
        if self.pending.is_empty() {
            return Ok(None);
        }
        let block = block::deflate(&self.pending);
        self.pending.clear();
        block.map(Some)
    }
}

/// Why a file cannot be read as a recording.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file has no header of a recording.
    #[error("it is not a recording")]
    NotARecording,
    /// The file is of a newer version.
    #[error(
        "its format {0} is newer than {VERSION}, which this build reads: use a newer umawarden"
    )]
    Newer(u16),
    /// Reading failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A truncation or damage of a recording.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cut at byte {byte}: {why}")]
pub struct Truncation {
    /// The first byte that could not be used.
    pub byte: u64,
    /// The reason.
    pub why: String,
}

/// Reads a segment, block by block, in bounded memory.
#[derive(Debug)]
pub struct SegmentReader<R> {
    from: R,
    inflater: Inflater,
    decoder: Decoder,
    block: Vec<u8>,
    used: usize,
    /// Where the current block begins, and where it ends.
    offsets: (u64, u64),
    torn: Option<Truncation>,
}

impl<R: Read> SegmentReader<R> {
    /// Begins to read.
    pub fn open(mut from: R) -> Result<Self, OpenError> {
        let mut head = Vec::new();
        let size = MAGIC.len() + 2;
        from.by_ref().take(size as u64).read_to_end(&mut head)?;
        let version = match head.strip_prefix(&MAGIC) {
            Some([low, high]) => u16::from_le_bytes([*low, *high]),
            _ => return Err(OpenError::NotARecording),
        };
        match version {
            VERSION => {}
            0 => return Err(OpenError::NotARecording),
            newer => return Err(OpenError::Newer(newer)),
        }
        let offsets = (size as u64, size as u64);
        Ok(Self {
            from,
            inflater: Inflater::default(),
            decoder: Decoder::default(),
            block: Vec::new(),
            used: 0,
            offsets,
            torn: None,
        })
    }

    /// The next entry; `None` at the end, which may come too early: see [`Self::torn`].
    pub fn next_entry(&mut self) -> io::Result<Option<RecordingEntry>> {
        if self.torn.is_some() {
            return Ok(None);
        }
        while self.used >= self.block.len() {
            match block::read(&mut self.from, &mut self.inflater) {
                Ok(Some((block, size))) => {
                    (self.block, self.used) = (block, 0);
                    self.offsets = (self.offsets.1, self.offsets.1 + size);
                }
                Ok(None) => return Ok(None),
                Err(BlockError::Io(error)) => return Err(error),
                Err(BlockError::Torn(why)) => {
                    self.torn = Some(Truncation { byte: self.offsets.1, why: why.to_owned() });
                    return Ok(None);
                }
            }
        }
        let rest = self.block.get(self.used..).unwrap_or_default();
        let mut bytes = Bytes(rest);
        match self.decoder.entry(&mut bytes) {
            Ok(entry) => {
                self.used = self.block.len() - bytes.0.len();
                Ok(Some(entry))
            }
            Err(error) => {
                self.torn = Some(Truncation { byte: self.offsets.0, why: error.to_string() });
                Ok(None)
            }
        }
    }

    /// The truncation or damage that ended the reading.
    pub fn torn(&self) -> Option<&Truncation> {
        self.torn.as_ref()
    }
}

/// Writes the pending entries of a segment to its file; returns the size of what was written.
pub(super) fn write_block(segment: &mut SegmentWriter, to: &mut impl Write) -> io::Result<u64> {
    let Some(block) = segment.block()? else { return Ok(0) };
    to.write_all(&block)?;
    Ok(block.len() as u64)
}
