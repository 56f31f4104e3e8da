//! The states of a node at regular times of a recording.

use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::Replayer;
use crate::files::open_regular;
use crate::model::Moment;
use crate::policy::status::Status;
use crate::recording::{RecordingEntry, SegmentBegin, SegmentReader};

/// A replay begins so long before the requested time: sources are read every ten seconds at most,
/// and the policy knows their series then.
const WARM_UP: SignedDuration = SignedDuration::from_secs(60);

/// At the start of a process sources appear one after the other, and states are visited more often.
const STARTS: Duration = Duration::from_secs(10);
const WHILE_STARTING: Duration = Duration::from_secs(1);

/// The most remarks about one recording.
const MOST_REMARKS: usize = 20;

/// A part of a recording.
#[derive(Clone, Copy, Debug)]
pub struct Excerpt {
    /// Its begin; `None`: that of the recording.
    pub from: Option<Timestamp>,
    /// Its end; `None`: that of the recording.
    pub until: Option<Timestamp>,
    /// The least time between two states.
    pub interval: Duration,
}

/// Replays segments, which are in the order of their times, and visits the state of the node at
/// most once in each interval, or each second at the start of a process, until `visit` returns
/// false. Damaged and missing parts are skipped.
/// Returns a remark on each.
pub fn replay(
    files: &[PathBuf],
    excerpt: &Excerpt,
    visit: &mut dyn FnMut(&Status) -> bool,
) -> Vec<String> {
    let mut remarks = Vec::new();
    let mut begins = Vec::new();
    for path in files {
        match begin_of(path) {
            Ok(begin) => begins.push((path, begin)),
            Err(why) => remarks.push(format!("{}: {why}", path.display())),
        }
    }
    let needed = excerpt.from.and_then(|from| from.checked_sub(WARM_UP).ok());
    let first =
        needed.and_then(|needed| begins.iter().rposition(|(_, begin)| begin.at.utc <= needed));
    let mut replay = ExcerptReplay {
        replayer: Replayer::under_recorded_rules(),
        excerpt,
        status: None,
        started: Duration::ZERO,
        last: None,
        visit,
    };
    let last = begins.last().map(|(path, _)| *path);
    for (path, _) in begins.iter().skip(first.unwrap_or(0)) {
        match replay.file(path, last == Some(*path)) {
            Ok(true) => {}
            Ok(false) => break,
            Err(why) => {
                replay.replayer.cut();
                remarks.push(format!("{}: {why:#}", path.display()));
            }
        }
    }
    remarks.truncate(MOST_REMARKS);
    remarks
}

/// The first entry of a segment.
fn begin_of(path: &Path) -> anyhow::Result<SegmentBegin> {
    let mut reader = SegmentReader::open(BufReader::new(open_regular(path)?))?;
    match reader.next_entry()? {
        Some(RecordingEntry::Begin(begin)) => Ok(*begin),
        _ => anyhow::bail!("it does not begin like a recording"),
    }
}

struct ExcerptReplay<'r> {
    replayer: Replayer,
    excerpt: &'r Excerpt,
    status: Option<Status>,
    /// When the process started.
    started: Duration,
    /// The time of the last visit.
    last: Option<Timestamp>,
    visit: &'r mut dyn FnMut(&Status) -> bool,
}

impl ExcerptReplay<'_> {
    /// Returns whether more is wanted. The newest block of the last file may not be on disk yet.
    fn file(&mut self, path: &Path, is_last: bool) -> anyhow::Result<bool> {
        let mut reader = SegmentReader::open(BufReader::new(open_regular(path)?))?;
        while let Some(entry) = reader.next_entry()? {
            let at = entry.at().map(|at| at.utc);
            if at.zip(self.excerpt.until).is_some_and(|(at, until)| at > until) {
                return Ok(false);
            }
            self.replayer.take(&entry)?;
            if let RecordingEntry::Begin(begin) = &entry {
                self.started = begin.started.uptime;
                self.status = None;
            }
            if let RecordingEntry::Step(step) = &entry
                && self.is_due(step.at)
            {
                self.last = Some(step.at.utc);
                self.replayer.draw(step.at, &mut self.status);
                if self.status.as_ref().is_some_and(|status| !(self.visit)(status)) {
                    return Ok(false);
                }
            }
        }
        match reader.torn() {
            Some(torn) if !is_last => anyhow::bail!("{torn}"),
            _ => Ok(true),
        }
    }

    fn is_due(&self, at: Moment) -> bool {
        let is_within = self.excerpt.from.is_none_or(|from| at.utc >= from);
        let is_starting = at.uptime.saturating_sub(self.started) < STARTS;
        let interval = self.excerpt.interval;
        let interval = if is_starting { interval.min(WHILE_STARTING) } else { interval };
        let interval = SignedDuration::try_from(interval).unwrap_or_default();
        let since = self.last.map(|last| at.utc.duration_since(last));
        // A clock that was set back begins anew.
        is_within && since.is_none_or(|since| since >= interval || since.is_negative())
    }
}

/// The time of the last step in a file, if there is one.
pub fn last_step(path: &Path) -> Option<Timestamp> {
    let mut reader = SegmentReader::open(BufReader::new(open_regular(path).ok()?)).ok()?;
    let mut last = None;
    while let Ok(Some(entry)) = reader.next_entry() {
        if let RecordingEntry::Step(step) = entry {
            last = Some(step.at.utc);
        }
    }
    last
}
