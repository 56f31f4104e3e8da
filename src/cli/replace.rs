//! Replaces files: the new text takes the file's name once it is on the disk.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

/// A new text of a file, in a file beside it. It is removed unless it takes the name.
#[derive(Debug)]
pub(super) struct Replacement {
    target: PathBuf,
    new: PathBuf,
}

impl Replacement {
    /// Writes the text of a file with that mode.
    ///
    /// # Errors
    /// The folder cannot be written, or the disk is full.
    pub(super) fn write(target: &Path, text: &[u8], mode: u32) -> io::Result<Self> {
        let mut name = OsString::from(target);
        name.push(format!(".{}.new", std::process::id()));
        let new = PathBuf::from(name);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
        let replacement = Self { target: target.to_owned(), new };
        file.write_all(text)?;
        file.sync_all()?;
        Ok(replacement)
    }

    /// Writes the text with the owner and the mode that the file has.
    ///
    /// # Errors
    /// The same, or this user may not give the file to its owner.
    pub(super) fn write_as_it_is(target: &Path, text: &[u8]) -> io::Result<Self> {
        let found = fs::metadata(target)?;
        // Until it has its owner, nobody else reads it.
        let replacement = Self::write(target, text, 0o600)?;
        let own = fs::metadata(&replacement.new)?;
        if (own.uid(), own.gid()) != (found.uid(), found.gid()) {
            chown(&replacement.new, Some(found.uid()), Some(found.gid()))?;
        }
        fs::set_permissions(&replacement.new, Permissions::from_mode(found.mode() & 0o7777))?;
        Ok(replacement)
    }

    /// Where the new text is.
    pub(super) fn path(&self) -> &Path {
        &self.new
    }

    /// Takes the place of the file.
    ///
    /// # Errors
    /// The file cannot be replaced.
    pub(super) fn take_place(self) -> io::Result<()> {
        fs::rename(&self.new, &self.target)?;
        // Makes the new name survive a power cut, where the file system can.
        let folder = self.target.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = File::open(folder.unwrap_or(Path::new(".")));
        // Not every file system can sync a folder.
        let _ = folder.and_then(|folder| folder.sync_all());
        Ok(())
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        // After it has taken the place there is no such file.
        let _ = fs::remove_file(&self.new);
    }
}
