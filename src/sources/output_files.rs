//! The files that a process writes its output to, as with `vllm serve … >log 2>&1`.
//!
//! A file is opened while the process lives and has it as its standard output or error: the process
//! could read it itself, and neither a rename nor another file of that name changes what is read.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use crate::engines::last_words;
use crate::files::open_regular;
use crate::model::WorkloadLog;
use crate::parse::container::output_end;

/// So much of each output is read, from its end, in bytes.
pub const MAX_BYTES: usize = 64 << 10;

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
        let mut found: Vec<((u64, u64), Output)> = Vec::new();
        for number in ["1", "2"] {
            let Ok(file) = open_regular(&folder.join(number)) else { continue };
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
