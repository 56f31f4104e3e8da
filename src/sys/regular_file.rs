//! Opening files that belong to others, who may put something else in their place.

use std::fs::File;
use std::io;

use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::path::Arg;

/// Opens a regular file for reading. It waits for nobody: neither for the writer of a FIFO, nor for
/// whoever holds a lease on the file (fcntl(2), `F_SETLEASE`), which is
/// [`WouldBlock`](io::ErrorKind::WouldBlock).
///
/// # Errors
///
/// It cannot be opened now, or is something else.
pub fn open_regular(path: impl Arg) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(open(path, flags, Mode::empty())?);
    match FileType::from_raw_mode(fstat(&file)?.st_mode) {
        FileType::RegularFile => Ok(file),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_regular_file_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let (fifo, file) = (folder.path().join("fifo"), folder.path().join("file"));
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::RUSR, 0).unwrap();
        std::fs::write(&file, "text").unwrap();
        for other in [fifo.as_path(), folder.path(), std::path::Path::new("/dev/null")] {
            let error = open_regular(other).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{}", other.display());
        }
        assert_eq!(io::read_to_string(open_regular(&file).unwrap()).unwrap(), "text");
    }
}
