//! The files that the door is made of: read whole and bounded, and watched for change.

use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open};

/// Larger files are neither configuration nor certificates.
const MOST_BYTES: u64 = 1 << 20;

/// Which state a file was in: another one is another content.
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

    /// `None` where there is no file that could be looked at.
    fn of(path: &Path) -> Option<Self> {
        fs::metadata(path).ok().as_ref().map(Self::new)
    }
}

/// The files that were read, as they were.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Files(Vec<(PathBuf, Option<Fingerprint>)>);

/// A file's content, and who else may read or write it.
pub(super) struct Opened {
    pub(super) bytes: Vec<u8>,
    permissions: u32,
    owner: u32,
}

impl Files {
    /// Reads a file; an error says what is wrong with it, without its name.
    pub(super) fn read(&mut self, path: &Path) -> Result<Opened, String> {
        // As it was before: what is written meanwhile shows as a change.
        self.0.push((path.to_owned(), Fingerprint::of(path)));
        read(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => "there is no such file".to_owned(),
            io::ErrorKind::PermissionDenied => {
                "permission denied; make it readable for this user".to_owned()
            }
            _ => error.to_string(),
        })
    }

    /// Whether any of them is another one by now.
    pub(super) fn have_changed(&self) -> bool {
        self.0.iter().any(|(path, known)| Fingerprint::of(path) != *known)
    }
}

fn read(path: &Path) -> io::Result<Opened> {
    // A pipe in its place must not hold anybody up.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(open(path, flags, Mode::empty())?);
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let mut bytes = Vec::new();
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(io::Error::other("it is larger than 1 MiB"));
    }
    Ok(Opened { bytes, permissions: found.mode() & 0o7777, owner: found.uid() })
}

impl Opened {
    /// Whether nobody but its owner, who is this user or root, can put anything into it.
    ///
    /// # Errors
    /// Says who can, and what to do.
    pub(super) fn only_owner_writes(&self, path: &Path) -> Result<(), String> {
        if self.permissions & 0o022 != 0 {
            return Err(format!(
                "others than its owner may write it (mode {:04o}), and so let themselves in: \
                 chmod go-w {}",
                self.permissions,
                path.display()
            ));
        }
        let own = rustix::process::geteuid().as_raw();
        if self.owner != 0 && self.owner != own {
            return Err(format!(
                "it belongs to another user (uid {}), who can let themselves in: chown {own} {}",
                self.owner,
                path.display()
            ));
        }
        Ok(())
    }

    /// Whether not everybody on this machine can put anything into it.
    ///
    /// # Errors
    /// Says so, and what to do.
    pub(super) fn not_everybody_writes(&self, path: &Path) -> Result<(), String> {
        if self.permissions & 0o002 == 0 {
            return Ok(());
        }
        Err(format!(
            "everybody on this machine may write it (mode {:04o}), and so let themselves in: \
             chmod o-w {}",
            self.permissions,
            path.display()
        ))
    }

    /// Whether it is no secret to everybody on this machine that is in it.
    ///
    /// # Errors
    /// Says so, and what to do.
    pub(super) fn not_everybody_reads(&self, path: &Path) -> Result<(), String> {
        if self.permissions & 0o004 == 0 {
            return Ok(());
        }
        Err(format!(
            "everybody on this machine may read it (mode {:04o}): chmod o-rwx {}",
            self.permissions,
            path.display()
        ))
    }
}
