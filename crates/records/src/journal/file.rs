//! The directory and the file: the lock, the format, and damaged files.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};

use crate::files::refuse_irregular;

/// Name of the database within the storage path.
pub const FILE_NAME: &str = "journal.sqlite3";
const LOCK_NAME: &str = "journal.lock";
/// "umaw": distinguishes our files from other databases.
pub(super) const APPLICATION_ID: i64 = 0x756d_6177;
/// The number of kept damaged journals, which must not fill a bad disk.
const MOST_SET_ASIDE: u32 = 8;

/// One script for each format, from nothing to the newest.
pub(super) const FORMATS: &[&str] = &[include_str!("format_1.sql")];

/// Why a step on the database failed, by the remedy.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DatabaseFailure {
    /// A later attempt may succeed: the disk is read-only or broken, or the file locked.
    Later(String),
    /// The disk is full. The open database stays valid.
    Full(String),
    /// The file is damaged.
    Damaged(String),
    /// The rows can never be stored.
    Refused(String),
}

impl DatabaseFailure {
    pub(super) fn new(doing: &str, error: &rusqlite::Error) -> Self {
        let text = format!("{doing}: {error}");
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Self::Damaged(text),
            Some(ErrorCode::ConstraintViolation | ErrorCode::TooBig | ErrorCode::TypeMismatch) => {
                Self::Refused(text)
            }
            Some(ErrorCode::DiskFull) => Self::Full(text),
            _ => Self::Later(text),
        }
    }

    pub(super) fn text(&self) -> &str {
        match self {
            Self::Later(text) | Self::Full(text) | Self::Damaged(text) | Self::Refused(text) => {
                text
            }
        }
    }
}

/// A locked file or folder. The lock ends with the process at the latest.
#[derive(Debug)]
pub(super) struct Locked(File);

impl Locked {
    pub(super) fn try_new(file: File) -> Result<Self, (File, TryLockError)> {
        match file.try_lock() {
            Ok(()) => Ok(Self(file)),
            Err(error) => Err((file, error)),
        }
    }
}

impl Drop for Locked {
    /// Closing alone is not enough: a process that is being started has a copy of every descriptor,
    /// and the lock with it, until it runs.
    fn drop(&mut self) {
        if let Err(error) = self.0.unlock() {
            tracing::debug!(%error, "cannot unlock");
        }
    }
}

/// The right to write in a directory; ends with the process at the latest.
#[derive(Debug)]
pub(super) struct DirectoryLock {
    _locked: Locked,
}

impl DirectoryLock {
    /// Creates the directory if it is missing, and locks it.
    pub(super) fn take(dir: &Path) -> Result<Self, DatabaseFailure> {
        DirBuilder::new().recursive(true).mode(0o750).create(dir).map_err(|error| {
            DatabaseFailure::Later(format!("making the directory {}: {error}", dir.display()))
        })?;
        let path = dir.join(LOCK_NAME);
        let failed = |doing: &str, error: std::io::Error| {
            DatabaseFailure::Later(format!("{doing} {}: {error}", path.display()))
        };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(|error| failed("opening", error))?;
        let locked = Locked::try_new(file).map_err(|(mut file, error)| match error {
            TryLockError::WouldBlock => held_by_another(&mut file, dir),
            TryLockError::Error(error) => failed("locking", error),
        })?;
        let mut file = &locked.0;
        // Only for people who find the lock taken: the lock does not need it.
        let written = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()));
        if let Err(error) = written {
            tracing::debug!(path = %path.display(), %error, "cannot write the process id");
        }
        Ok(Self { _locked: locked })
    }
}

fn held_by_another(file: &mut File, dir: &Path) -> DatabaseFailure {
    let mut text = String::new();
    let read = file.take(32).read_to_string(&mut text);
    let holder = match (read, text.trim().parse::<u32>()) {
        (Ok(_), Ok(pid)) => format!("process {pid}"),
        _ => "another process".to_owned(),
    };
    DatabaseFailure::Later(format!(
        "the journal in {} is held by {holder}: stop it, or give this one another --storage.path",
        dir.display()
    ))
}

/// Opens the database for writing: creates it if it is missing, and upgrades it to the newest
/// format.
pub(super) fn open(dir: &Path) -> Result<Connection, DatabaseFailure> {
    let path = dir.join(FILE_NAME);
    refuse_other_than_files(&path).map_err(|(path, error)| {
        DatabaseFailure::Later(format!("opening {}: {error}", path.display()))
    })?;
    let doing = format!("opening {}", path.display());
    let failed = |error: rusqlite::Error| DatabaseFailure::new(&doing, &error);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(&path, flags).map_err(failed)?;
    // Long enough for a reader that recovers the log, short enough for a stop within a second.
    connection.busy_timeout(Duration::from_millis(100)).map_err(failed)?;
    // Before any write: settings of a database are stored in it.
    refuse_foreign(&connection, &path)?;
    known_format(&connection, &path, FORMATS)?;
    // Before any other write: it cannot be switched on afterwards.
    connection.execute_batch("PRAGMA auto_vacuum = INCREMENTAL").map_err(failed)?;
    set_up(&connection, &path).map_err(failed)?;
    bring_to_format(&mut connection, &path, FORMATS)?;
    // A read-only or full disk is detected only by the first write.
    connection
        .execute_batch(
            "INSERT INTO meta (key, value) VALUES ('times_opened', 1)
             ON CONFLICT (key) DO UPDATE SET value = value + 1",
        )
        .map_err(failed)?;
    Ok(connection)
}

/// SQLite blocks forever on a FIFO with the name of one of its files.
pub(super) fn refuse_other_than_files(database: &Path) -> Result<(), (PathBuf, std::io::Error)> {
    for ending in ["", "-wal", "-shm", "-journal"] {
        let path = database.with_file_name(format!("{FILE_NAME}{ending}"));
        if let Err(error) = refuse_irregular(&path)
            && error.kind() == std::io::ErrorKind::InvalidInput
        {
            return Err((path, error));
        }
    }
    Ok(())
}

fn set_up(connection: &Connection, path: &Path) -> rusqlite::Result<()> {
    let mode: String =
        connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    if mode != "wal" {
        tracing::warn!(
            path = %path.display(), mode,
            "journal slower: file system without write-ahead logging"
        );
    }
    connection.execute_batch(
        "PRAGMA synchronous = FULL;
         PRAGMA cache_size = -256;
         PRAGMA mmap_size = 0;
         PRAGMA wal_autocheckpoint = 256;
         PRAGMA journal_size_limit = 1048576;
         PRAGMA trusted_schema = OFF;
         PRAGMA cell_size_check = ON",
    )
}

/// A foreign database must not be written to, nor taken for a damaged journal.
fn refuse_foreign(connection: &Connection, path: &Path) -> Result<(), DatabaseFailure> {
    let failed = |error: rusqlite::Error| {
        DatabaseFailure::new(&format!("reading {}", path.display()), &error)
    };
    let application: i64 = connection
        .query_row("SELECT application_id FROM pragma_application_id", [], |row| row.get(0))
        .map_err(failed)?;
    let tables: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(failed)?;
    if application == APPLICATION_ID || (application == 0 && tables == 0) {
        return Ok(());
    }
    Err(DatabaseFailure::Later(format!(
        "{} is another program's database: move it away, or choose another --storage.path",
        path.display()
    )))
}

/// The format of a database, which is 0 for an empty one. A newer one is refused.
fn known_format(
    connection: &Connection,
    path: &Path,
    formats: &[&str],
) -> Result<usize, DatabaseFailure> {
    let found: i64 = connection
        .query_row("SELECT user_version FROM pragma_user_version", [], |row| row.get(0))
        .map_err(|error| {
            DatabaseFailure::new(&format!("reading the format of {}", path.display()), &error)
        })?;
    if is_newer(found, formats) {
        let text = newer_format(connection, path, found, formats);
        return Err(DatabaseFailure::Later(text));
    }
    Ok(usize::try_from(found).unwrap_or(0))
}

/// Runs the missing upgrade scripts, all or none.
pub(super) fn bring_to_format(
    connection: &mut Connection,
    path: &Path,
    formats: &[&str],
) -> Result<(), DatabaseFailure> {
    let failed = |error: rusqlite::Error| {
        DatabaseFailure::new(&format!("bringing {} to the newest format", path.display()), &error)
    };
    let found = known_format(connection, path, formats)?;
    if found == formats.len() {
        return Ok(());
    }
    let transaction =
        connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
    for script in formats.iter().skip(found) {
        transaction.execute_batch(script).map_err(failed)?;
    }
    transaction
        .execute_batch(&format!(
            "PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {0};
             INSERT INTO meta (key, value) VALUES ('format', {0})
             ON CONFLICT (key) DO UPDATE SET value = excluded.value;
             INSERT INTO meta (key, value) VALUES ('format_written_by', 'umawarden {1}')
             ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            formats.len(),
            env!("CARGO_PKG_VERSION"),
        ))
        .map_err(failed)?;
    transaction.commit().map_err(failed)?;
    // Identifies the database even if its log cannot be read.
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).map_err(failed)
}

/// Whether a format number is unknown, for example negative.
pub(super) fn is_newer(found: i64, formats: &[&str]) -> bool {
    usize::try_from(found).map_or(true, |found| found > formats.len())
}

/// Why a database is refused, with the program that can read it.
pub(super) fn newer_format(
    connection: &Connection,
    path: &Path,
    found: i64,
    formats: &[&str],
) -> String {
    // In a newer format this may be anything, or missing.
    let written_by = "SELECT value FROM meta WHERE key = 'format_written_by'";
    let writer: Option<String> = connection.query_row(written_by, [], |row| row.get(0)).ok();
    let is_plain = |text: &String| {
        text.len() <= 64 && text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic())
    };
    let writer = writer.filter(is_plain).unwrap_or_else(|| "the newer umawarden".to_owned());
    format!(
        "{} has format {found}, and this umawarden knows only up to {}: use {writer}, which wrote \
         it, or move the file away",
        path.display(),
        formats.len()
    )
}

/// Renames a damaged database and its other files. Returns the new name.
pub(super) fn set_aside(dir: &Path) -> Result<PathBuf, DatabaseFailure> {
    let path = dir.join(FILE_NAME);
    let with_suffix =
        |number: u32, part: &str| dir.join(format!("{FILE_NAME}.damaged-{number}{part}"));
    let Some(number) =
        (1..=MOST_SET_ASIDE).find(|number| with_suffix(*number, "").symlink_metadata().is_err())
    else {
        return Err(DatabaseFailure::Later(format!(
            "{} is damaged, and {MOST_SET_ASIDE} damaged journals are there already: check the \
             disk, then move them away",
            path.display()
        )));
    };
    // The log first: without its database it would become the log of the next one.
    for part in ["-wal", "-shm", ""] {
        let from = dir.join(format!("{FILE_NAME}{part}"));
        match std::fs::rename(&from, with_suffix(number, part)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                let text = format!("setting the damaged {} aside: {error}", from.display());
                return Err(DatabaseFailure::Later(text));
            }
            _ => {}
        }
    }
    Ok(with_suffix(number, ""))
}

/// The number of times that this database was opened for writing.
pub(super) fn times_opened(connection: &Connection) -> Result<i64, DatabaseFailure> {
    let sql = "SELECT value FROM meta WHERE key = 'times_opened'";
    let read = connection.query_row(sql, [], |row| row.get(0));
    read.map_err(|error| DatabaseFailure::new("reading how often the journal was opened", &error))
}

/// The device and inode of the database. `Ok(None)`: there is none.
pub(super) fn identity(dir: &Path) -> std::io::Result<Option<(u64, u64)>> {
    match std::fs::metadata(dir.join(FILE_NAME)) {
        Ok(found) => Ok(Some((found.dev(), found.ino()))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Size of the database and its log, in bytes; `None`: there is no database.
pub(super) fn size_bytes(dir: &Path) -> Option<u64> {
    let size = |part| std::fs::metadata(dir.join(format!("{FILE_NAME}{part}"))).map(|m| m.len());
    Some(size("").ok()? + size("-wal").unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_released_although_a_starting_process_has_a_copy() {
        let folder = tempfile::tempdir().unwrap();
        let locked = || Locked::try_new(File::open(folder.path()).unwrap());
        let held = locked().unwrap();
        assert!(matches!(locked(), Err((_, TryLockError::WouldBlock))));
        let _copy = held.0.try_clone().unwrap();
        drop(held);
        locked().unwrap();
    }
}
