//! The changes that must be undone, on disk before they are made.
//!
//! Each entry is a line: a CRC-32 in eight hexadecimal digits, a space, JSON. Lines are only
//! appended, and a line torn by a crash is cut off at the end. The file is emptied once every
//! change is undone. The first line has the version.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::setting::Setting;
use crate::model::{DecisionId, RuleId, UndoResult};

/// The file's name below `storage.path`.
const FILE_NAME: &str = "undo.log";

const HEADER: &[u8] = b"umawarden undo log 1\n";

/// The length from which a log without open changes is emptied.
const EMPTIED_FROM_BYTES: u64 = 64 << 10;

/// Hundreds of times the size of all possible changes: a longer file is foreign.
const MOST_BYTES: u64 = 64 << 20;

/// The undo log cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum UndoLogError {
    /// A step of opening, reading or writing has failed.
    #[error(
        "{doing} the undo log {} failed: {error}: check the disk, its space and the permissions \
         of its folder",
        path.display()
    )]
    Failed {
        /// The step, for the text.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// Another process has it open.
    #[error(
        "the undo log {} is in use by another umawarden: end that, or give this one a \
         --storage.path of its own",
        .0.display()
    )]
    InUse(PathBuf),
    /// The file has another header.
    #[error(
        "{} is no undo log that this version can read: put the settings back that it names, then \
         move it away",
        .0.display()
    )]
    Foreign(PathBuf),
}

/// A setting that was changed, or is about to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SettingChange {
    /// Its number within the file.
    pub(super) number: u64,
    /// The setting that changes, with its device or engine.
    pub(super) setting: Setting,
    /// Its value before.
    pub(super) old: String,
    /// The new value.
    pub(super) new: String,
    pub(super) boot_id: String,
    /// The id of the decision that changes it.
    pub(super) decision: DecisionId,
    /// The rule that made the decision.
    pub(super) rule: RuleId,
    /// The time of the change.
    pub(super) at: Timestamp,
    /// The latest time of its undo.
    pub(super) until: Timestamp,
}

/// The end of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct UndoneChange {
    number: u64,
    /// `None`: of an earlier boot.
    result: Option<UndoResult>,
    /// The value before the undo, if it was readable.
    found: Option<String>,
    at: Timestamp,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Record {
    Set(SettingChange),
    Undone(UndoneChange),
}

/// The content of an opened log.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct LoggedChanges {
    /// Open changes, in the order of their setting.
    pub(super) open: Vec<SettingChange>,
    /// The numbers of unreadable lines before the end.
    pub(super) damaged: Vec<usize>,
    /// Bytes that were cut off at the end.
    pub(super) torn_bytes: u64,
}

/// The open file, locked.
#[derive(Debug)]
pub(super) struct UndoLog {
    path: PathBuf,
    file: File,
    length: u64,
    next_number: u64,
}

impl UndoLog {
    /// Whether the folder has a log, or cannot be read.
    pub(super) fn is_there(folder: &Path) -> bool {
        folder.join(FILE_NAME).try_exists().unwrap_or(true)
    }

    /// Opens the log in a folder, or creates one. Returns its content.
    pub(super) fn open(folder: &Path) -> Result<(Self, LoggedChanges), UndoLogError> {
        let path = folder.join(FILE_NAME);
        let failed = |doing, error| UndoLogError::Failed { doing, path: path.clone(), error };
        DirBuilder::new()
            .recursive(true)
            .mode(0o750)
            .create(folder)
            .map_err(|error| failed("making the folder of", error))?;
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true).mode(0o600);
        let mut file = options.open(&path).map_err(|error| failed("opening", error))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(UndoLogError::InUse(path)),
            Err(TryLockError::Error(error)) => return Err(failed("locking", error)),
        }
        let mut text = Vec::new();
        let read = (&mut file).take(MOST_BYTES + 1).read_to_end(&mut text);
        read.map_err(|error| failed("reading", error))?;
        let is_torn_header = HEADER.starts_with(&text);
        if text.len() as u64 > MOST_BYTES || !is_torn_header && !text.starts_with(HEADER) {
            return Err(UndoLogError::Foreign(path));
        }
        if is_torn_header {
            text.clear();
            begin(&mut file, folder).map_err(|error| failed("beginning", error))?;
        }
        let parsed = Parsed::of(text.get(HEADER.len()..).unwrap_or_default());
        let length = HEADER.len() as u64 + parsed.whole_bytes;
        let mut log = Self { path, file, length, next_number: parsed.next_number };
        if parsed.found.torn_bytes > 0 {
            log.cut("cutting the torn end of")?;
        }
        Ok((log, parsed.found))
    }

    /// The number of the next change.
    pub(super) fn next_number(&mut self) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        number
    }

    /// Records changes that are about to be made. They are on disk at the return.
    pub(super) fn begin(&mut self, changes: &[SettingChange]) -> Result<(), UndoLogError> {
        self.append(changes.iter().cloned().map(Record::Set))
    }

    /// Records the end of a change; no result: of an earlier boot.
    pub(super) fn end(
        &mut self,
        number: u64,
        result: Option<UndoResult>,
        found: Option<String>,
        at: Timestamp,
    ) -> Result<(), UndoLogError> {
        self.append([Record::Undone(UndoneChange { number, result, found, at })])
    }

    /// Empties a long log without open changes.
    pub(super) fn tidy(&mut self) -> Result<(), UndoLogError> {
        if self.length < EMPTIED_FROM_BYTES {
            return Ok(());
        }
        self.length = HEADER.len() as u64;
        self.cut("emptying")
    }

    fn append(&mut self, records: impl IntoIterator<Item = Record>) -> Result<(), UndoLogError> {
        let mut lines = Vec::new();
        for record in records {
            let json = serde_json::to_string(&record)
                .map_err(|error| self.failed("writing", io::Error::other(error)))?;
            lines.extend(format!("{:08x} {json}\n", crc32fast::hash(json.as_bytes())).bytes());
        }
        let written = self.file.write_all(&lines).and_then(|()| self.file.sync_data());
        match written {
            Ok(()) => {
                self.length += lines.len() as u64;
                Ok(())
            }
            Err(error) => {
                let failed = self.failed("writing", error);
                // The written part would count as a change.
                self.cut("cutting the torn end of")?;
                Err(failed)
            }
        }
    }

    fn cut(&mut self, doing: &'static str) -> Result<(), UndoLogError> {
        let cut = self.file.set_len(self.length).and_then(|()| self.file.sync_data());
        cut.map_err(|error| self.failed(doing, error))
    }

    fn failed(&self, doing: &'static str, error: io::Error) -> UndoLogError {
        UndoLogError::Failed { doing, path: self.path.clone(), error }
    }
}

impl Drop for UndoLog {
    /// Closing alone is not enough: a process that is being started has a copy of every descriptor,
    /// and the lock with it, until it runs.
    fn drop(&mut self) {
        if let Err(error) = self.file.unlock() {
            tracing::debug!(path = %self.path.display(), %error, "cannot unlock");
        }
    }
}

/// Makes a new file survive a power cut.
fn begin(file: &mut File, folder: &Path) -> io::Result<()> {
    file.set_len(0)?;
    file.seek(SeekFrom::Start(0))?;
    file.write_all(HEADER)?;
    file.sync_all()?;
    File::open(folder)?.sync_all()
}

#[derive(Debug, Default)]
struct Parsed {
    found: LoggedChanges,
    next_number: u64,
    /// The lines without a torn one at the end.
    whole_bytes: u64,
}

impl Parsed {
    fn of(text: &[u8]) -> Self {
        let mut parsed = Self { next_number: 1, ..Self::default() };
        let mut unreadable: Vec<usize> = Vec::new();
        let mut bytes = 0_u64;
        for (number, line) in (2..).zip(text.split_inclusive(|byte| *byte == b'\n')) {
            bytes += line.len() as u64;
            let Some(record) = read_line(line) else {
                unreadable.push(number);
                continue;
            };
            // A readable line after it proves that it was not torn by a crash.
            parsed.found.damaged.append(&mut unreadable);
            parsed.whole_bytes = bytes;
            parsed.take(record);
        }
        parsed.found.torn_bytes = text.len() as u64 - parsed.whole_bytes;
        parsed
    }

    fn take(&mut self, record: Record) {
        match record {
            Record::Set(change) => {
                self.next_number = self.next_number.max(change.number.saturating_add(1));
                self.found.open.push(change);
            }
            Record::Undone(undone) => {
                self.found.open.retain(|change| change.number != undone.number);
            }
        }
    }
}

fn read_line(line: &[u8]) -> Option<Record> {
    let line = line.strip_suffix(b"\n")?;
    let (crc, json) = (line.get(..8)?, line.get(9..)?);
    let crc = u32::from_str_radix(str::from_utf8(crc).ok()?, 16).ok()?;
    if crc != crc32fast::hash(json) {
        return None;
    }
    serde_json::from_slice(json).ok()
}

#[cfg(test)]
mod tests;
