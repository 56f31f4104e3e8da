//! A folder of segments of bounded size.

use std::collections::VecDeque;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::FILE_ENDING;
use super::entry::{RecordingEntry, SegmentBegin};
use super::segment::{AddOutcome, SegmentWriter};
use crate::model::counted;

/// The approximate number of segments of a ring; the oldest one is deleted as a whole.
const SEGMENTS: u64 = 16;

const LARGEST_SEGMENT_BYTES: u64 = 8 << 20;

/// The time until a retry after a disk failure.
const RETRY_AFTER: Duration = Duration::from_secs(30);

/// Why entries were lost.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot {step} {}: {error}; lost: {}; tried again in 30 s",
    .path.display(),
    counted(*.lost, "step")
)]
pub struct RingError {
    /// The failed step.
    pub step: &'static str,
    /// The file.
    pub path: PathBuf,
    /// The error of the system.
    pub error: io::Error,
    /// The number of lost steps.
    pub lost: u64,
}

/// The ring of one process. Entries are written at the latest with the one that makes a block five
/// seconds old.
#[derive(Debug)]
pub struct RecordingRing {
    folder: PathBuf,
    max_bytes: u64,
    segment_bytes: u64,
    /// The first entry of a segment that would begin now.
    here: SegmentBegin,
    current: Option<CurrentSegment>,
    older: VecDeque<(PathBuf, u64)>,
    next_number: u64,
    /// The number of this process' first segment.
    first_number: u64,
    begun: bool,
    /// Lost steps that no file records yet.
    lost: u64,
    tally: RingTally,
    retry_at: Option<Duration>,
}

/// The counters of a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingTally {
    /// Written bytes.
    pub written_bytes: u64,
    /// Steps that are in no file.
    pub lost_steps: u64,
    /// Failures of the folder or a file.
    pub write_errors: u64,
}

#[derive(Debug)]
struct CurrentSegment {
    path: PathBuf,
    file: File,
    bytes: u64,
    writer: SegmentWriter,
    /// The steps in the pending block.
    pending: LostSteps,
}

impl RecordingRing {
    /// A ring in a folder, of at most `max_bytes`. Nothing is written before the first entry.
    pub fn new(folder: &Path, max_bytes: u64, begin: SegmentBegin) -> Self {
        let older: VecDeque<(PathBuf, u64)> = segment_files(folder)
            .into_iter()
            .filter(|path| number_of(path).is_some())
            .map(|path| {
                let bytes = fs::metadata(&path).map_or(0, |meta| meta.len());
                (path, bytes)
            })
            .collect();
        let last = older.iter().filter_map(|(path, _)| number_of(path)).max();
        let next_number = last.map_or(0, |last| last.saturating_add(1));
        Self {
            folder: folder.to_owned(),
            max_bytes,
            segment_bytes: (max_bytes / SEGMENTS).min(LARGEST_SEGMENT_BYTES),
            here: begin,
            current: None,
            older,
            next_number,
            first_number: next_number,
            begun: false,
            lost: 0,
            tally: RingTally::default(),
            retry_at: None,
        }
    }

    /// Takes an entry. An error names the loss; the ring continues nevertheless.
    pub fn take(&mut self, entry: &RecordingEntry) -> Result<(), RingError> {
        let taken = self.try_take(entry);
        self.here.pass(entry);
        self.here.is_start = false;
        taken
    }

    /// Writes what is pending.
    pub fn flush(&mut self) -> Result<(), RingError> {
        self.write_pending()
    }

    /// The first entry of a segment that would begin now.
    pub fn here(&self) -> &SegmentBegin {
        &self.here
    }

    /// Lost steps that no file records yet.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// The counters.
    pub fn tally(&self) -> RingTally {
        self.tally
    }

    /// This process' segments, the oldest first.
    pub fn own_segments(&self) -> Vec<(PathBuf, u64)> {
        let current = self.current.iter().map(|current| (current.path.clone(), current.bytes));
        let all = self.older.iter().cloned().chain(current);
        all.filter(|(path, _)| number_of(path).is_some_and(|number| number >= self.first_number))
            .collect()
    }

    fn try_take(&mut self, entry: &RecordingEntry) -> Result<(), RingError> {
        let at = entry.at().map_or(self.here.at.uptime, |at| at.uptime);
        if self.retry_at.is_some_and(|retry_at| at < retry_at) {
            self.lose(LostSteps::with(entry));
            return Ok(());
        }
        // A schema that does not fit into this segment fits into a new one.
        for _ in 0..2 {
            self.open_if_needed(at)?;
            let Some(current) = &mut self.current else { return Ok(()) };
            match current.writer.take(entry) {
                AddOutcome::Yes => {
                    current.pending.add(LostSteps::with(entry));
                    if current.writer.is_due() {
                        self.write_pending()?;
                    }
                    return Ok(());
                }
                AddOutcome::Full => self.end_segment()?,
                AddOutcome::TooLarge => break,
            }
        }
        self.lose(LostSteps::with(entry));
        self.end_segment()
    }

    fn lose(&mut self, lost: LostSteps) {
        self.lost += lost.steps;
        self.tally.lost_steps += lost.fresh;
    }

    fn end_segment(&mut self) -> Result<(), RingError> {
        self.write_pending()?;
        if let Some(current) = self.current.take() {
            self.older.push_back((current.path, current.bytes));
        }
        Ok(())
    }

    fn open_if_needed(&mut self, at: Duration) -> Result<(), RingError> {
        if self.current.is_some() {
            return Ok(());
        }
        self.retry_at = None;
        let begin = self.next_begin();
        let path = self.folder.join(format!("{:010}.{FILE_ENDING}", begin.segment));
        let opened = self.open(&begin, &path);
        match opened {
            Ok((writer, file, bytes)) => {
                let mut current =
                    CurrentSegment { path, file, bytes, writer, pending: LostSteps::default() };
                if self.lost > 0 {
                    current.writer.take(&RecordingEntry::Gap { steps: self.lost });
                    self.lost = 0;
                }
                self.begun = true;
                self.current = Some(current);
                self.tally.written_bytes += bytes;
                Ok(())
            }
            Err(error) => {
                self.retry_at = Some(at + RETRY_AFTER);
                self.tally.write_errors += 1;
                self.lose(LostSteps { steps: 1, fresh: 1 });
                Err(RingError { step: "begin the recording", path, error, lost: self.lost })
            }
        }
    }

    fn next_begin(&mut self) -> SegmentBegin {
        let number = self.next_number;
        self.next_number += 1;
        let is_start = !self.begun && self.here.is_start && self.lost == 0;
        let last = self.older.back().and_then(|(path, _)| number_of(path));
        let goes_on_from = last.filter(|last| self.begun && self.lost == 0 && last + 1 == number);
        let mut begin = self.here.clone();
        if !is_start {
            begin.already_counted.clear();
            begin.earlier_acts.clear();
            begin.awaits_past = false;
        }
        begin.is_start = is_start;
        begin.goes_on_from = goes_on_from;
        begin.segment = number;
        begin
    }

    fn open(
        &mut self,
        begin: &SegmentBegin,
        path: &Path,
    ) -> io::Result<(SegmentWriter, File, u64)> {
        create_folder(&self.folder)?;
        let (writer, head) = SegmentWriter::new(begin)?;
        let bytes = head.len() as u64;
        if !self.free_space(bytes) {
            return Err(io::Error::other("the rules alone are larger than the recording may be"));
        }
        let mut file = create(path)?;
        file.write_all(&head).inspect_err(|_| remove(path))?;
        Ok((writer, file, bytes))
    }

    /// Deletes the oldest segments until `more` bytes fit. Returns whether they do.
    fn free_space(&mut self, more: u64) -> bool {
        let current = self.current.as_ref().map_or(0, |current| current.bytes);
        let mut total: u64 = self.older.iter().map(|(_, bytes)| bytes).sum::<u64>() + current;
        while total + more > self.max_bytes {
            let Some((path, bytes)) = self.older.pop_front() else { return false };
            remove(&path);
            total -= bytes;
        }
        true
    }

    fn write_pending(&mut self) -> Result<(), RingError> {
        let Some(current) = &mut self.current else { return Ok(()) };
        let pending = std::mem::take(&mut current.pending);
        let (at, path) = (self.here.at.uptime, current.path.clone());
        let written = match current.writer.block() {
            Ok(None) => return Ok(()),
            Ok(Some(block)) => self.write(&block),
            Err(error) => Err(error),
        };
        match written {
            Ok(()) => {
                let is_full = self.current.as_ref().is_some_and(|c| c.bytes >= self.segment_bytes);
                if is_full && let Some(current) = self.current.take() {
                    self.older.push_back((current.path, current.bytes));
                }
                Ok(())
            }
            Err(error) => {
                self.tally.write_errors += 1;
                self.lose(pending);
                self.retry_at = Some(at + RETRY_AFTER);
                if let Some(current) = self.current.take() {
                    self.older.push_back((current.path, current.bytes));
                }
                Err(RingError { step: "write", path, error, lost: self.lost })
            }
        }
    }

    fn write(&mut self, block: &[u8]) -> io::Result<()> {
        let bytes = block.len() as u64;
        if !self.free_space(bytes) {
            return Err(io::Error::other("a block is larger than the recording may be"));
        }
        let Some(current) = &mut self.current else { return Ok(()) };
        if let Err(error) = current.file.write_all(block) {
            // Half a block is harmless, but takes space that is not counted.
            let _ = current.file.set_len(current.bytes);
            return Err(error);
        }
        current.bytes += bytes;
        self.tally.written_bytes += bytes;
        Ok(())
    }
}

/// Steps that go with entries.
#[derive(Clone, Copy, Debug, Default)]
struct LostSteps {
    /// All of them, including those that only a gap records.
    steps: u64,
    /// Those that were not lost before.
    fresh: u64,
}

impl LostSteps {
    fn with(entry: &RecordingEntry) -> Self {
        match entry {
            RecordingEntry::Step(_) | RecordingEntry::Reload { .. } => Self { steps: 1, fresh: 1 },
            RecordingEntry::Gap { steps } => Self { steps: *steps, fresh: 0 },
            RecordingEntry::Begin(_) => Self::default(),
        }
    }

    fn add(&mut self, more: Self) {
        self.steps += more.steps;
        self.fresh += more.fresh;
    }
}

/// Kernel text may contain private data.
pub(super) fn create_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o750).create(folder)
}

/// Creates a new file; an existing one is an error.
pub(super) fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o640).open(path)
}

/// A file that cannot be removed is gone already, or its owner will retry.
pub(super) fn remove(path: &Path) {
    let _ = fs::remove_file(path);
}

fn number_of(path: &Path) -> Option<u64> {
    let stem = path.file_stem()?.to_str()?;
    let digits = stem.len() == 10 && stem.bytes().all(|byte| byte.is_ascii_digit());
    if digits { stem.parse().ok() } else { None }
}

/// The recordings right in a folder, by name.
pub fn segment_files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let is_file = entry.file_type().ok()?.is_file();
            let path = entry.path();
            let fits = path.extension().is_some_and(|ending| ending == FILE_ENDING);
            (is_file && fits).then_some(path)
        })
        .collect();
    files.sort();
    files
}
