//! Files that are read repeatedly into buffers that stay.

use std::fmt;
use std::fs::File;
use std::io::ErrorKind;
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, RawDir};
use rustix::io::Errno;

use crate::model::Reading;

/// The initial size; a buffer grows until the file fits.
const BUFFER_BYTES: usize = 1 << 10;

/// No file of the kernel comes near this size.
const BUFFER_BYTES_MAX: usize = 4 << 20;

/// `f_type` of procfs and sysfs, from the kernel's `magic.h`.
const KERNEL_FILESYSTEMS: [u64; 2] = [0x9fa0, 0x6265_6572];

/// Calls back with the name of each entry of a folder, `.` and `..` too, without an allocation.
pub(super) fn each_entry(folder: &Path, mut call: impl FnMut(&str)) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(folder, flags, Mode::empty())?;
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut entries = RawDir::new(folder, &mut buffer);
    while let Some(entry) = entries.next() {
        if let Ok(name) = entry?.file_name().to_str() {
            call(name);
        }
    }
    Ok(())
}

/// Why a file has no content.
#[derive(Debug)]
pub(super) enum FileFault {
    /// The file has never existed.
    Absent(String),
    /// The file existed before, or cannot be read.
    Failed(String),
}

impl FileFault {
    /// The reading in place of a value.
    pub(super) fn reading<T>(&self) -> Reading<T> {
        match self {
            Self::Absent(_) => Reading::Unsupported,
            Self::Failed(_) => Reading::Failed,
        }
    }
}

/// A file that stays open and is read from its start each time. A file of procfs or sysfs is opened
/// once. Any other file is reopened for each read, since it may have been replaced.
#[derive(Debug)]
pub(super) struct KeptFile {
    path: PathBuf,
    kept: Option<File>,
    read_before: bool,
    buffer: Vec<u8>,
}

impl KeptFile {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, kept: None, read_before: false, buffer: Vec::new() }
    }

    /// The present content.
    pub(super) fn read(&mut self) -> Result<&[u8], FileFault> {
        match self.read_whole() {
            Ok(length) => {
                self.read_before = true;
                Ok(&self.buffer[..length])
            }
            Err(error) => {
                self.kept = None;
                Err(self.fault(&error))
            }
        }
    }

    /// A fault of this file, with its path.
    pub(super) fn failed(&self, why: impl fmt::Display) -> FileFault {
        FileFault::Failed(format!("{}: {why}", self.path.display()))
    }

    fn fault(&self, error: &std::io::Error) -> FileFault {
        let path = self.path.display();
        // Of a file of a feature that is switched off.
        if !self.read_before && Errno::from_io_error(error) == Some(Errno::OPNOTSUPP) {
            return FileFault::Absent(format!("{path} is switched off"));
        }
        match (error.kind(), self.read_before) {
            (ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::Unsupported, false) => {
                FileFault::Absent(format!("{path} is not there"))
            }
            (ErrorKind::NotFound | ErrorKind::NotADirectory, true) => {
                FileFault::Failed(format!("{path} has vanished"))
            }
            (ErrorKind::PermissionDenied, _) => {
                FileFault::Failed(format!("{path} may not be read by this user: {error}"))
            }
            _ => FileFault::Failed(format!("cannot read {path}: {error}")),
        }
    }

    fn read_whole(&mut self) -> std::io::Result<usize> {
        if self.buffer.is_empty() {
            self.buffer.resize(BUFFER_BYTES, 0);
        }
        if let Some(file) = &self.kept {
            // A kept file of a device that disappeared and returned fails on every read.
            if let Ok(length) = read_to_end(file, &mut self.buffer) {
                return Ok(length);
            }
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = File::from(rustix::fs::open(&self.path, flags, Mode::empty())?);
        let length = read_to_end(&file, &mut self.buffer)?;
        self.kept = is_of_the_kernel(&file)?.then_some(file);
        Ok(length)
    }
}

pub(super) fn is_of_the_kernel(file: &File) -> Result<bool, Errno> {
    let kind = rustix::fs::fstatfs(file)?.f_type;
    Ok(KERNEL_FILESYSTEMS.iter().any(|&magic| u64::try_from(kind) == Ok(magic)))
}

fn read_to_end(file: &File, buffer: &mut Vec<u8>) -> std::io::Result<usize> {
    let mut length = 0;
    loop {
        if length == buffer.len() {
            if length >= BUFFER_BYTES_MAX {
                return Err(std::io::Error::other(format!("more than {BUFFER_BYTES_MAX} bytes")));
            }
            buffer.resize(2 * length, 0);
        }
        match file.read_at(&mut buffer[length..], length as u64) {
            Ok(0) => return Ok(length),
            Ok(count) => length += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_a_feature_that_is_switched_off_is_absent() {
        let error = std::io::Error::from(Errno::OPNOTSUPP);
        let mut file = KeptFile::new("/proc/pressure/memory".into());
        assert!(matches!(file.fault(&error), FileFault::Absent(_)));
        file.read_before = true;
        assert!(matches!(file.fault(&error), FileFault::Failed(_)));
    }
}
