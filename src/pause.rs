//! The panic switch: a file. While it is there, nothing is done.
//!
//! It works without the daemon and while the daemon hangs, and it outlives restarts and reboots. An
//! empty file made by `touch` counts as much as one of [`PauseFile::write`], and so does whatever
//! cannot be looked at: only a file that is certainly not there lets anything be done.

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

/// More of the file is not read.
const MOST_BYTES: u64 = 16 * 1024;
/// Longer words of people are cut.
const MOST_CHARS: usize = 1024;

/// Where the switch is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PauseFile {
    path: PathBuf,
}

/// What tells one state of the file from another, without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

/// What a look at the file gave.
#[derive(Debug)]
pub enum Look {
    /// It is not there.
    Absent,
    /// It is there.
    Present(Metadata),
    /// That cannot be told, which counts as there.
    Doubtful(io::Error),
}

impl Look {
    /// What this state is known by; `None` where there is none.
    pub fn stamp(&self) -> Option<Stamp> {
        let Self::Present(metadata) = self else { return None };
        Some(Stamp {
            inode: metadata.ino(),
            size: metadata.size(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }
}

/// What the file says, where it says anything.
#[derive(Default, Serialize, Deserialize)]
struct Written {
    #[serde(default)]
    author: String,
    #[serde(default)]
    comment: String,
    #[serde(default)]
    since: Option<Timestamp>,
}

impl PauseFile {
    /// The switch at that path.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Looks whether it is there; a link that leads nowhere is.
    pub fn look(&self) -> Look {
        match fs::symlink_metadata(&self.path) {
            Ok(metadata) => Look::Present(metadata),
            Err(error) if is_absence(&error) => Look::Absent,
            Err(error) => Look::Doubtful(error),
        }
    }

    /// Whether nothing may be done, and on whose word.
    pub fn read(&self) -> Option<Pause> {
        let look = self.look();
        self.tell(&look)
    }

    /// What a look at it means.
    pub fn tell(&self, look: &Look) -> Option<Pause> {
        match look {
            Look::Absent => None,
            Look::Present(metadata) => Some(self.told_by(metadata)),
            Look::Doubtful(error) => Some(Pause {
                author: "doubt".to_owned(),
                comment: format!(
                    "whether {} is there cannot be told: {error}",
                    self.path.display()
                ),
                since: None,
            }),
        }
    }

    fn told_by(&self, metadata: &Metadata) -> Pause {
        let written = if metadata.is_file() { self.contents() } else { Written::default() };
        let author = match written.author.as_str() {
            "" => format!("the owner of {}, uid {}", self.path.display(), metadata.uid()),
            author => cut(author),
        };
        let made = Timestamp::new(metadata.mtime(), 0).ok();
        Pause { author, comment: cut(&written.comment), since: written.since.or(made) }
    }

    /// Whatever is no description of a pause is an empty one.
    fn contents(&self) -> Written {
        let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened =
            OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(&self.path);
        let mut bytes = Vec::new();
        match opened.and_then(|file| file.take(MOST_BYTES).read_to_end(&mut bytes)) {
            Ok(_) => serde_json::from_slice(&bytes).unwrap_or_default(),
            Err(_) => Written::default(),
        }
    }

    /// Makes it, in one go, and returns when it will survive a power cut. One that is there already
    /// is replaced.
    ///
    /// # Errors
    /// The folder is missing, or cannot be written.
    pub fn write(&self, pause: &Pause) -> io::Result<()> {
        let written = Written {
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
            // Whoever is stopped by it may read why, whatever the umask.
            file.set_permissions(Permissions::from_mode(0o644))?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&new, &self.path)
        };
        // What an earlier process of this number has left.
        let _mostly_absent = fs::remove_file(&new);
        put().inspect_err(|_| {
            let _mostly_absent = fs::remove_file(&new);
        })?;
        self.sync_folder()
    }

    /// Removes it; whether it was there.
    ///
    /// # Errors
    /// It is there and cannot be removed.
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

/// Only these two answers mean that nothing has that name.
fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

fn cut(text: &str) -> String {
    text.chars().take(MOST_CHARS).collect()
}
