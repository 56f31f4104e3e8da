//! Incidents: the recording before and after a rule fired, copied from the ring.

use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::FILE_ENDING;
use super::entry::{RecordingEntry, SegmentBegin};
use super::ring::{RecordingRing, create, create_folder, remove, segment_files};
use super::segment::{AddOutcome, SegmentReader, SegmentWriter, write_block};
use crate::files::open_regular;
use crate::model::{AlertState, Moment, RuleId};

/// The limits of incidents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IncidentLimits {
    /// The recorded time before.
    pub before: Duration,
    /// The recorded time after.
    pub after: Duration,
    /// An incident begins with the start of its process up to this size.
    pub from_start_bytes: u64,
    /// The size limit of one file.
    pub file_bytes: u64,
    /// The size limit of all files.
    pub total_bytes: u64,
    /// The most files.
    pub files: usize,
}

impl IncidentLimits {
    /// The limits of the daemon, within a total size.
    pub fn within(total_bytes: u64) -> Self {
        Self {
            before: Duration::from_secs(5 * 60),
            after: Duration::from_secs(2 * 60),
            from_start_bytes: (total_bytes / 16).min(4 << 20),
            file_bytes: (total_bytes / 4).min(16 << 20),
            total_bytes,
            files: 50,
        }
    }
}

/// Writes incident files into a folder.
#[derive(Debug)]
pub struct Incidents {
    folder: PathBuf,
    limits: IncidentLimits,
    open: Option<OpenIncident>,
    begun: u64,
    /// Bytes in the incidents before the open one.
    written_bytes: u64,
}

#[derive(Debug)]
struct OpenIncident {
    file: File,
    writer: SegmentWriter,
    bytes: u64,
    until: Duration,
}

impl Incidents {
    /// Incidents in a folder.
    pub fn new(folder: &Path, limits: IncidentLimits) -> Self {
        Self { folder: folder.to_owned(), limits, open: None, begun: 0, written_bytes: 0 }
    }

    /// Adds an entry that the ring has just taken. Returns the file of an incident that begins with
    /// it.
    pub fn add(
        &mut self,
        entry: &RecordingEntry,
        ring: &mut RecordingRing,
    ) -> io::Result<Option<PathBuf>> {
        let fired = match entry {
            RecordingEntry::Step(step) => {
                step.said.alerts.iter().find(|change| change.to == AlertState::Firing)
            }
            _ => None,
        };
        if self.open.is_some() {
            if let (Some(open), Some(change)) = (&mut self.open, fired) {
                open.until = change.at.uptime.saturating_add(self.limits.after);
            }
            self.write(entry)?;
            return Ok(None);
        }
        let Some(change) = fired else { return Ok(None) };
        // The ring reports its own failures; the incident only records them.
        let is_whole = ring.flush().is_ok() && ring.lost() == 0;
        let path = self.begin(&change.rule, change.at, ring)?;
        if !is_whole {
            self.write(&RecordingEntry::Gap { steps: 0 })?;
        }
        Ok(Some(path))
    }

    /// The number of incidents.
    pub fn begun(&self) -> u64 {
        self.begun
    }

    /// Bytes written since the program began, those of the open incident too.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes + self.open.as_ref().map_or(0, |open| open.bytes)
    }

    /// Ends the incident that is being written, if any.
    pub fn end(&mut self) -> io::Result<()> {
        let Some(mut open) = self.open.take() else { return Ok(()) };
        self.written_bytes += open.bytes;
        self.written_bytes += write_block(&mut open.writer, &mut open.file)?;
        self.trim(0);
        Ok(())
    }

    fn write(&mut self, entry: &RecordingEntry) -> io::Result<()> {
        let Some(open) = &mut self.open else { return Ok(()) };
        let ended = match entry.at() {
            Some(at) if at.uptime > open.until => true,
            _ => match open.put(entry, self.limits.file_bytes) {
                Ok(is_full) => is_full,
                Err(error) => {
                    self.written_bytes += open.bytes;
                    self.open = None;
                    return Err(error);
                }
            },
        };
        if ended { self.end() } else { Ok(()) }
    }

    fn begin(&mut self, rule: &RuleId, at: Moment, ring: &RecordingRing) -> io::Result<PathBuf> {
        create_folder(&self.folder)?;
        self.trim(self.limits.file_bytes);
        let segments = ring.own_segments();
        let whole: u64 = segments.iter().map(|(_, bytes)| bytes).sum();
        let from = if whole <= self.limits.from_start_bytes {
            Duration::ZERO
        } else {
            at.uptime.saturating_sub(self.limits.before)
        };
        let (path, file) = self.create(rule, at)?;
        let cut =
            IncidentCut { from, until: at.uptime.saturating_add(self.limits.after), begun: None };
        let cut = cut.copy(&segments, ring.here(), file, self.limits.file_bytes);
        self.open = Some(cut.inspect_err(|_| remove(&path))?);
        self.begun += 1;
        Ok(path)
    }

    fn create(&self, rule: &RuleId, at: Moment) -> io::Result<(PathBuf, File)> {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        let rule: String = rule.alert.chars().map(plain).take(64).collect();
        let time = at.utc.strftime("%Y%m%dT%H%M%SZ");
        for number in 1..100 {
            let again = if number == 1 { String::new() } else { format!("-{number}") };
            let path = self.folder.join(format!("{time}-{rule}{again}.{FILE_ENDING}"));
            match create(&path) {
                Ok(file) => return Ok((path, file)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Deletes the oldest incidents until one more file of a size fits.
    fn trim(&self, more: u64) {
        let mut files: Vec<(PathBuf, u64)> = segment_files(&self.folder)
            .into_iter()
            .map(|path| {
                let bytes = fs::metadata(&path).map_or(0, |meta| meta.len());
                (path, bytes)
            })
            .collect();
        files.reverse();
        let one_more = usize::from(more > 0);
        let is_over = |files: &[(PathBuf, u64)]| {
            let total: u64 = files.iter().map(|(_, bytes)| bytes).sum();
            files.len() + one_more > self.limits.files || total + more > self.limits.total_bytes
        };
        while is_over(&files) {
            let Some((path, _)) = files.pop() else { return };
            remove(&path);
        }
    }
}

impl OpenIncident {
    /// Takes in an entry. Returns true when the file is full.
    fn put(&mut self, entry: &RecordingEntry, most: u64) -> io::Result<bool> {
        if self.writer.take(entry) != AddOutcome::Yes {
            return Ok(true);
        }
        if self.writer.is_due() {
            self.bytes += write_block(&mut self.writer, &mut self.file)?;
        }
        Ok(self.bytes >= most)
    }
}

/// The part of a ring that goes into an incident.
struct IncidentCut {
    from: Duration,
    until: Duration,
    begun: Option<OpenIncident>,
}

impl IncidentCut {
    fn copy(
        mut self,
        segments: &[(PathBuf, u64)],
        here: &SegmentBegin,
        file: File,
        most: u64,
    ) -> io::Result<OpenIncident> {
        let mut file = Some(file);
        let mut state: Option<SegmentBegin> = None;
        let first = self.first(segments).max(newest(segments, most / 2));
        for (path, _) in segments.get(first..).unwrap_or_default() {
            let Ok(mut reader) = SegmentReader::open(BufReader::new(open_regular(path)?)) else {
                state = None;
                continue;
            };
            while let Some(entry) = reader.next_entry()? {
                if let RecordingEntry::Begin(begin) = &entry {
                    self.copy_segment(begin, state.as_ref(), most)?;
                    state = Some((**begin).clone());
                    continue;
                }
                let Some(known) = &mut state else { continue };
                let reached = entry.at().is_some_and(|at| at.uptime >= self.from);
                if self.begun.is_none()
                    && reached
                    && let Some(file) = file.take()
                {
                    self.begun = Some(Self::open(known, file, self.until)?);
                }
                if let Some(begun) = &mut self.begun {
                    begun.put(&entry, most)?;
                }
                // The number stays that of the segment.
                let segment = known.segment;
                known.pass(&entry);
                known.segment = segment;
                known.is_start = false;
            }
            if reader.torn().is_some() {
                state = None;
            }
        }
        match (self.begun, file) {
            (Some(begun), _) => Ok(begun),
            // Nothing of this process is left on disk: the incident begins now.
            (None, Some(file)) => Self::open(here, file, self.until),
            (None, None) => Err(io::Error::other("the incident could not be begun")),
        }
    }

    /// The first segment that is needed.
    fn first(&self, segments: &[(PathBuf, u64)]) -> usize {
        let begins_early = |(path, _): &(PathBuf, u64)| {
            let reader = open_regular(path).map(BufReader::new).map(SegmentReader::open);
            let first = reader.ok().and_then(Result::ok).and_then(|mut r| r.next_entry().ok()?);
            first.and_then(|entry| entry.at()).is_some_and(|at| at.uptime <= self.from)
        };
        segments.iter().rposition(begins_early).unwrap_or(0)
    }

    fn open(begin: &SegmentBegin, mut file: File, until: Duration) -> io::Result<OpenIncident> {
        let mut begin = begin.clone();
        begin.goes_on_from = None;
        if !begin.is_start {
            begin.already_counted.clear();
            begin.earlier_acts.clear();
            begin.awaits_past = false;
        }
        let (writer, head) = SegmentWriter::new(&begin)?;
        io::Write::write_all(&mut file, &head)?;
        Ok(OpenIncident { file, writer, bytes: head.len() as u64, until })
    }

    /// A segment that does not continue the one before leaves a gap.
    fn copy_segment(
        &mut self,
        begin: &SegmentBegin,
        before: Option<&SegmentBegin>,
        most: u64,
    ) -> io::Result<()> {
        let goes_on = before.is_some_and(|before| begin.goes_on_from == Some(before.segment));
        match &mut self.begun {
            Some(begun) if !goes_on => begun.put(&RecordingEntry::Gap { steps: 0 }, most).map(drop),
            _ => Ok(()),
        }
    }
}

/// The first of the newest segments that together have no more than so many bytes, or of the last
/// one alone: of a storm, its end matters most.
fn newest(segments: &[(PathBuf, u64)], most: u64) -> usize {
    let mut first = segments.len();
    let mut total = 0;
    for (position, (_, bytes)) in segments.iter().enumerate().rev() {
        total += bytes;
        if total > most && first < segments.len() {
            break;
        }
        first = position;
    }
    first
}
