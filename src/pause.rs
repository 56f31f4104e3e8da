//! The panic switch is a file. While it exists, nothing is done.
//!
//! It works while the daemon is down or hangs, and survives restarts and reboots. An empty file
//! from `touch` suffices. A file that cannot be checked counts as existing.

#[cfg(test)]
mod tests;

use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::model::Pause;

/// The rest of a longer file is ignored.
const MOST_BYTES: u64 = 16 * 1024;
/// Longer texts of people are truncated.
const MOST_CHARS: usize = 1024;

/// The pause file, which exists while umawarden is paused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PauseFile {
    path: PathBuf,
}

/// Identifies a state of the file without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStamp {
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

/// The result of a check.
#[derive(Debug)]
pub enum PauseFileState {
    /// It does not exist.
    Absent,
    /// A file of any type.
    Present(Metadata),
    /// Unknown, which counts as existing.
    Doubtful(io::Error),
}

impl PauseFileState {
    /// The identity of the state. `None` without one.
    pub fn stamp(&self) -> Option<FileStamp> {
        let Self::Present(metadata) = self else { return None };
        Some(FileStamp {
            inode: metadata.ino(),
            size: metadata.size(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }
}

/// The content of the file, all optional.
#[derive(Default, Serialize, Deserialize)]
struct PauseContent {
    #[serde(default)]
    author: String,
    #[serde(default)]
    comment: String,
    #[serde(default)]
    since: Option<Timestamp>,
}

impl PauseFile {
    /// The pause file, which exists while umawarden is paused.at this path.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// The path of the switch, which need not exist.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks whether it exists. A dangling link does.
    pub fn check(&self) -> PauseFileState {
        match fs::symlink_metadata(&self.path) {
            Ok(metadata) => PauseFileState::Present(metadata),
            Err(error) if is_absence(&error) => PauseFileState::Absent,
            Err(error) => PauseFileState::Doubtful(error),
        }
    }

    /// The pause, if there is one.
    pub fn read(&self) -> Option<Pause> {
        let state = self.check();
        self.describe(&state)
    }

    /// The pause that a check has found.
    pub fn describe(&self, state: &PauseFileState) -> Option<Pause> {
        match state {
            PauseFileState::Absent => None,
            PauseFileState::Present(metadata) => Some(self.pause_of(metadata)),
            PauseFileState::Doubtful(error) => Some(Pause {
                author: "doubt".to_owned(),
                comment: format!("cannot check {}: {error}", self.path.display()),
                since: None,
            }),
        }
    }

    fn pause_of(&self, metadata: &Metadata) -> Pause {
        let written = if metadata.is_file() { self.contents() } else { PauseContent::default() };
        let author = match written.author.as_str() {
            "" => format!("the owner of {}, uid {}", self.path.display(), metadata.uid()),
            author => cut(author),
        };
        let made = Timestamp::new(metadata.mtime(), 0).ok();
        Pause { author, comment: cut(&written.comment), since: written.since.or(made) }
    }

    /// Content that is not a pause counts as empty.
    fn contents(&self) -> PauseContent {
        let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened =
            OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(&self.path);
        let mut bytes = Vec::new();
        match opened.and_then(|file| file.take(MOST_BYTES).read_to_end(&mut bytes)) {
            Ok(_) => serde_json::from_slice(&bytes).unwrap_or_default(),
            Err(_) => PauseContent::default(),
        }
    }

    /// Writes it atomically, and returns once it survives a power cut. An existing one is replaced.
    ///
    /// # Errors
    /// The folder is missing, or cannot be written.
    pub fn write(&self, pause: &Pause) -> io::Result<()> {
        let written = PauseContent {
            author: pause.author.clone(),
            comment: pause.comment.clone(),
            since: pause.since,
        };
        let mut text = serde_json::to_string(&written).map_err(io::Error::other)?;
        text.push('\n');
        let mut new = self.path.clone().into_os_string();
        new.push(format!(".new-{}", std::process::id()));
        let put = || {
            let mut file =
                OpenOptions::new().write(true).create_new(true).mode(0o644).open(&new)?;
            // Readable by all, under any umask.
            file.set_permissions(Permissions::from_mode(0o644))?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&new, &self.path)
        };
        // Left by an earlier process with this pid.
        let _ = fs::remove_file(&new);
        put().inspect_err(|_| {
            // It mostly does not exist.
            let _ = fs::remove_file(&new);
        })?;
        self.sync_folder()
    }

    /// Removes it. Returns whether it existed.
    ///
    /// # Errors
    /// A file of any type.and cannot be removed.
    pub fn remove(&self) -> io::Result<bool> {
        match fs::remove_file(&self.path) {
            Ok(()) => self.sync_folder().map(|()| true),
            Err(error) if is_absence(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn sync_folder(&self) -> io::Result<()> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all())
    }
}

/// Only these errors mean that no file has this name.
fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

fn cut(text: &str) -> String {
    text.chars().take(MOST_CHARS).collect()
}
