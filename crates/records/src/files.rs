//! Opens regular files by path, and no other type of file.

use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::OFlags;

/// Opens a regular file to read. Never waits: a FIFO without a writer would keep its reader.
///
/// # Errors
/// The path is no regular file, or cannot be opened.
pub fn open_regular(path: &Path) -> io::Result<File> {
    // The type is checked first: opening an unknown device may have effects.
    refuse_irregular(path)?;
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    check(file.metadata()?.file_type())?;
    Ok(file)
}

/// Refuses a path that is not a regular file. A missing one is accepted.
///
/// # Errors
/// The path is no regular file, or cannot be inspected.
pub fn refuse_irregular(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(found) => check(found.file_type()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Whether a file may be a log: a regular file, and of that user where a user's own program has
/// named its path, which may lead to a file of others.
pub fn is_log_of(found: &Metadata, user: Option<u32>) -> bool {
    found.is_file() && user.is_none_or(|user| found.uid() == user)
}

fn check(kind: FileType) -> io::Result<()> {
    if kind.is_file() {
        return Ok(());
    }
    let what = if kind.is_dir() {
        "a folder"
    } else if kind.is_fifo() {
        "a FIFO (a named pipe)"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    };
    let text = format!("it is {what}; a regular file is needed: move it away, or name another");
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn only_regular_files_are_opened_and_nothing_waits() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("file"), "text").unwrap();
        symlink("file", path("link")).unwrap();
        mknodat(CWD, path("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        symlink("fifo", path("link-to-fifo")).unwrap();
        let _listener = UnixListener::bind(path("socket")).unwrap();
        for name in ["file", "link"] {
            let mut text = String::new();
            open_regular(&path(name)).unwrap().read_to_string(&mut text).unwrap();
            assert_eq!(text, "text");
        }
        for (name, what) in [
            ("fifo", "a FIFO"),
            ("link-to-fifo", "a FIFO"),
            ("socket", "a socket"),
            (".", "a folder"),
            ("/dev/zero", "a device"),
        ] {
            let error = open_regular(&path(name)).unwrap_err().to_string();
            assert!(error.starts_with(&format!("it is {what}")), "{name}: {error}");
            refuse_irregular(&path(name)).unwrap_err();
        }
        assert_eq!(open_regular(&path("nothing")).unwrap_err().kind(), io::ErrorKind::NotFound);
        refuse_irregular(&path("nothing")).unwrap();
    }
}
