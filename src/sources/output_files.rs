//! The files that a process writes its output to, as with `vllm serve … >log 2>&1`.
//!
//! A file is opened while the process lives and has it open, through its descriptor: the process
//! could read it itself, and neither a rename nor another file of that name changes what is read.
//! No path is resolved below the root of a container.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use crate::engines::last_words;
use crate::files::open_regular;
use crate::model::WorkloadLog;
use crate::parse::container::output_end;

/// So much of each output is read, from its end, in bytes.
pub const MAX_BYTES: usize = 64 << 10;

/// The most open files of a process that are examined.
const MAX_OPEN: usize = 4096;

/// The most files of a process that are kept open.
const MAX_FILES: usize = 4;

/// Open files of one process, each once.
#[derive(Debug, Default)]
pub struct OutputFiles(Vec<Output>);

#[derive(Debug)]
struct Output {
    file: File,
    /// Its length when it was opened: earlier lines may be of another run.
    from: u64,
}

impl OutputFiles {
    /// Opens the regular files among the standard output and error in a folder of descriptors,
    /// `/proc/PID/fd`.
    pub fn open(folder: &Path) -> Self {
        Self::open_each(["1", "2"].map(|number| folder.join(number)))
    }

    /// Opens the regular files with such paths in a folder of descriptors. An unreadable folder has
    /// none.
    pub fn open_named(folder: &Path, is_one: fn(&str) -> bool) -> Self {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten().take(MAX_OPEN);
        Self::open_each(entries.map(|entry| entry.path()).filter(|path| {
            let target = fs::read_link(path).ok();
            target.is_some_and(|target| target.to_str().is_some_and(is_one))
        }))
    }

    fn open_each(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        let mut found: Vec<((u64, u64), Output)> = Vec::new();
        for path in paths {
            if found.len() >= MAX_FILES {
                break;
            }
            let Ok(file) = open_regular(&path) else { continue };
            let Ok(about) = file.metadata() else { continue };
            let id = (about.dev(), about.ino());
            if found.iter().all(|(known, _)| *known != id) {
                found.push((id, Output { file, from: about.len() }));
            }
        }
        Self(found.into_iter().map(|(_, output)| output).collect())
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
        self.0.iter().map(Output::end).collect()
    }
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
    fn end(&self) -> io::Result<Vec<u8>> {
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
        if start > from {
            let line = text.iter().position(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            text.drain(..line);
        }
        Ok(text)
    }
}
