//! The files that a process writes its output to, as with `vllm serve … >log 2>&1`.
//!
//! A file is opened while the process lives and has it open, through its descriptor: neither a
//! rename nor another file of that name changes what is read. A descriptor that only names a file
//! (`O_PATH`) does not count, since the process may be unable to open that file. No path is
//! resolved below the root of a container.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;

use super::bounded::read_file;
use crate::engines::last_words;
use crate::files::open_regular;
use crate::model::WorkloadLog;
use crate::parse::container::output_end;
use crate::parse::process::descriptor;

/// So much of each output is read, from its end, in bytes.
pub const MAX_BYTES: usize = 64 << 10;

/// The most open files of a process that are examined.
const MAX_OPEN: usize = 4096;

/// The most files of a process that are kept open.
const MAX_FILES: usize = 6;

/// A description of an open regular file is a few hundred bytes, with locks more.
const MAX_DESCRIPTION_BYTES: u64 = 64 << 10;

/// Open files of one process, each once.
#[derive(Debug, Default)]
pub struct OutputFiles(Vec<Output>);

/// Device and inode of a file, which no other file has while it is open.
pub type FileId = (u64, u64);

#[derive(Clone, Debug)]
struct Output {
    id: FileId,
    file: Arc<File>,
    /// Its length when it was opened: earlier lines may be of another run.
    from: u64,
}

/// The end of a file, without lines that were there before it was opened.
#[derive(Debug)]
pub struct Tail {
    /// The file.
    pub id: FileId,
    /// Where it begins in the file, in bytes.
    pub at: u64,
    /// The length of the file, in bytes.
    pub length: u64,
    /// The end, from the beginning of a line.
    pub text: Vec<u8>,
}

impl OutputFiles {
    /// Opens the regular files among the standard output and error in a folder of descriptors,
    /// `/proc/PID/fd`.
    pub fn open(folder: &Path) -> Self {
        Self::open_each(standard(folder))
    }

    /// The same, behind the open files with paths of one kind, and before those of another.
    pub fn open_with(folder: &Path, before: fn(&str) -> bool, after: fn(&str) -> bool) -> Self {
        let standard = standard(folder);
        Self::open_each(named(folder, before).chain(standard).chain(named(folder, after)))
    }

    /// Opens the regular files with such paths in a folder of descriptors. An unreadable folder has
    /// none.
    pub fn open_named(folder: &Path, is_one: fn(&str) -> bool) -> Self {
        Self::open_each(named(folder, is_one))
    }

    /// These files, and those with such paths that the process has opened since: a log that is
    /// rotated goes on in another file, and the process has begun it. Of too many, the ones that it
    /// has closed are left out first.
    #[must_use]
    pub fn renewed(&self, folder: &Path, is_one: fn(&str) -> bool) -> Self {
        let open = Self::open_named(folder, is_one).0;
        let is_in = |all: &[Output], one: &Output| all.iter().any(|other| other.id == one.id);
        let known = self.0.iter().cloned();
        let (still, mut all): (Vec<Output>, Vec<Output>) = known.partition(|one| is_in(&open, one));
        all.extend(still);
        for output in open.into_iter().filter(|one| !is_in(&self.0, one)) {
            let from = if self.is_empty() { output.from } else { 0 };
            all.push(Output { from, ..output });
        }
        all.drain(..all.len().saturating_sub(MAX_FILES));
        Self(all)
    }

    fn open_each(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        let mut found: Vec<Output> = Vec::new();
        for path in paths {
            if found.len() >= MAX_FILES {
                break;
            }
            let Some(file) = open_output(&path) else { continue };
            let Ok(about) = file.metadata() else { continue };
            let id = (about.dev(), about.ino());
            if found.iter().all(|known| known.id != id) {
                found.push(Output { id, file: Arc::new(file), from: about.len() });
            }
        }
        Self(found)
    }

    /// Whether its output goes elsewhere.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The end of each since it was opened, at most [`MAX_BYTES`].
    ///
    /// # Errors
    /// One cannot be read.
    pub fn ends(&self) -> io::Result<Vec<Vec<u8>>> {
        self.0.iter().map(|output| Ok(output.tail()?.text)).collect()
    }

    /// The same, with places in the files.
    ///
    /// # Errors
    /// One cannot be read.
    pub fn tails(&self) -> io::Result<Vec<Tail>> {
        self.0.iter().map(Output::tail).collect()
    }

    /// The length of each, in bytes.
    ///
    /// # Errors
    /// One cannot be inspected.
    pub fn lengths(&self) -> io::Result<BTreeMap<FileId, u64>> {
        self.0.iter().map(|output| Ok((output.id, output.file.metadata()?.len()))).collect()
    }
}

/// The standard output and error in a folder of descriptors.
fn standard(folder: &Path) -> [PathBuf; 2] {
    ["1", "2"].map(|number| folder.join(number))
}

/// The descriptors of files with such paths.
fn named(folder: &Path, is_one: fn(&str) -> bool) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().take(MAX_OPEN);
    entries.map(|entry| entry.path()).filter(move |path| {
        let target = fs::read_link(path).ok();
        target.is_some_and(|target| target.to_str().is_some_and(is_one))
    })
}

/// Opens the regular file behind a descriptor of a process, `/proc/PID/fd/N`, to read. `None`: it
/// is none, or cannot be read, or the process only names it.
pub fn open_output(path: &Path) -> Option<File> {
    let file = open_regular(path).ok()?;
    has_opened(path, &file).then_some(file)
}

/// Whether the descriptor of that path, `/proc/PID/fd/N`, is still of that file, and more than its
/// name: with `O_PATH` (open(2)) a process names a file that it may be unable to read, and root
/// would read it in its place. The file is compared as the kernel describes it, so that a process
/// gains nothing by exchanging its descriptor meanwhile.
fn has_opened(path: &Path, file: &File) -> bool {
    let described = |path: &Path| descriptor(&read_file(path, MAX_DESCRIPTION_BYTES).ok()?);
    let theirs = || {
        let process = path.parent()?.parent()?;
        described(&process.join("fdinfo").join(path.file_name()?))
    };
    let Some(theirs) = theirs() else { return false };
    let own = described(&Path::new("/proc/self/fdinfo").join(file.as_raw_fd().to_string()));
    theirs.flags & OFlags::PATH.bits() == 0 && own.is_some_and(|own| theirs.is_of_file_of(&own))
}

/// The last lines of these outputs, and earlier ones that show the reason of an end.
pub fn last_lines(outputs: io::Result<Vec<Vec<u8>>>) -> WorkloadLog {
    match outputs {
        Ok(texts) => WorkloadLog::Lines(output_end(&texts, |line| last_words(line).is_some())),
        Err(error) => WorkloadLog::Unknown(format!("its log cannot be read: {error}")),
    }
}

impl Output {
    /// Its end, without the lines that were there before.
    fn tail(&self) -> io::Result<Tail> {
        let length = self.file.metadata()?.len();
        // One that has become shorter was begun anew.
        let from = if length < self.from { 0 } else { self.from };
        let start = from.max(length.saturating_sub(MAX_BYTES as u64));
        let mut text = vec![0; usize::try_from(length - start).unwrap_or(0)];
        let mut read = 0;
        while read < text.len() {
            match self.file.read_at(&mut text[read..], start + read as u64)? {
                0 => break,
                more => read += more,
            }
        }
        text.truncate(read);
        let mut at = start;
        if start > from {
            let line = text.iter().position(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            text.drain(..line);
            at += line as u64;
        }
        Ok(Tail { id: self.id, at, length, text })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::{Mode, open};

    use super::*;

    /// Any process can name any file below folders that it may search.
    #[test]
    fn a_file_that_a_process_only_names_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        fs::write(&path, "").unwrap();
        for (flags, is_read) in
            [(OFlags::RDONLY, true), (OFlags::WRONLY, true), (OFlags::PATH, false)]
        {
            let opened = open(&path, flags, Mode::empty()).unwrap();
            let own = Path::new("/proc/self/fd").join(opened.as_raw_fd().to_string());
            assert_eq!(OutputFiles::open_each([own]).is_empty(), !is_read, "{flags:?}");
        }
    }

    #[test]
    fn a_descriptor_that_is_of_another_file_meanwhile_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let below = |name: &str| folder.path().join(name);
        fs::create_dir(below("fd")).unwrap();
        fs::create_dir(below("fdinfo")).unwrap();
        fs::write(below("log"), "").unwrap();
        symlink(below("log"), below("fd/1")).unwrap();
        let is_read = || !OutputFiles::open(&below("fd")).is_empty();
        assert!(!is_read(), "it is gone");
        for (rest, expected) in [("", true), ("ino:\t18446744073709551615\n", false)] {
            fs::write(below("fdinfo/1"), format!("pos:\t0\nflags:\t0100001\n{rest}")).unwrap();
            assert_eq!(is_read(), expected, "{rest}");
        }
    }
}
