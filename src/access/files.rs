//! The files of access control: read whole, with a size limit, and checked for changes.

use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open};

/// The largest file.
const MOST_BYTES: u64 = 1 << 20;

/// The state of a file. Another state means another content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fingerprint {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Fingerprint {
    fn new(found: &Metadata) -> Self {
        Self {
            device: found.dev(),
            inode: found.ino(),
            size: found.size(),
            modified: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        }
    }

    /// `None` if the file cannot be inspected.
    fn of(path: &Path) -> Option<Self> {
        fs::metadata(path).ok().as_ref().map(Self::new)
    }
}

/// The files that were read, with their state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Files(Vec<(PathBuf, Option<Fingerprint>)>);

/// A file's content, owner and mode.
pub(super) struct FileContent {
    pub(super) bytes: Vec<u8>,
    permissions: u32,
    owner: u32,
}

impl Files {
    /// Reads a file. The error does not name the file.
    pub(super) fn read(&mut self, path: &Path) -> Result<FileContent, String> {
        // The state before reading: a write meanwhile shows as a change.
        self.0.push((path.to_owned(), Fingerprint::of(path)));
        read(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => "there is no such file".to_owned(),
            io::ErrorKind::PermissionDenied => {
                "permission denied; make it readable for this user".to_owned()
            }
            _ => error.to_string(),
        })
    }

    /// Whether any file has changed.
    pub(super) fn have_changed(&self) -> bool {
        self.0.iter().any(|(path, known)| Fingerprint::of(path) != *known)
    }
}

fn read(path: &Path) -> io::Result<FileContent> {
    // A FIFO in its place must not block.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(open(path, flags, Mode::empty())?);
    let found = file.metadata()?;
    if !found.is_file() {
        let is_folder = found.is_dir();
        let what =
            if is_folder { "it is a folder; a file is needed" } else { "not a regular file" };
        return Err(io::Error::other(what));
    }
    let mut bytes = Vec::new();
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(io::Error::other("larger than 1 MiB"));
    }
    Ok(FileContent { bytes, permissions: found.mode() & 0o7777, owner: found.uid() })
}

impl FileContent {
    /// Checks that only its owner can write it, who is this user or root.
    ///
    /// # Errors
    /// Subject else can write it, and what to do.
    pub(super) fn only_owner_writes(&self, path: &Path) -> Result<(), String> {
        if self.permissions & 0o022 != 0 {
            return Err(format!(
                "others than its owner can write it (mode {:04o}), and grant themselves access: \
                 chmod go-w {}",
                self.permissions,
                path.display()
            ));
        }
        let own = rustix::process::geteuid().as_raw();
        if self.owner != 0 && self.owner != own {
            return Err(format!(
                "it belongs to another user (uid {}), who can grant access: chown {own} {}",
                self.owner,
                path.display()
            ));
        }
        Ok(())
    }

    /// Checks that it is not world-writable.
    ///
    /// # Errors
    /// The mode, and what to do.
    pub(super) fn not_everybody_writes(&self, path: &Path) -> Result<(), String> {
        if self.permissions & 0o002 == 0 {
            return Ok(());
        }
        Err(format!(
            "it is world-writable (mode {:04o}), so that any user can grant themselves access: \
             chmod o-w {}",
            self.permissions,
            path.display()
        ))
    }

    /// Checks that it is not world-readable.
    ///
    /// # Errors
    /// The mode, and what to do.
    pub(super) fn not_everybody_reads(&self, path: &Path) -> Result<(), String> {
        if self.permissions & 0o004 == 0 {
            return Ok(());
        }
        Err(format!(
            "it is world-readable (mode {:04o}): chmod o-rwx {}",
            self.permissions,
            path.display()
        ))
    }
}
