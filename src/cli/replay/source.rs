//! Reads entries from files, folders and streams.

use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::Context;

use super::{SourceItem, log_text};
use crate::cli::log_input::{LogInput, STANDARD_INPUT, open_log, written};
use crate::cli::progress::{Progress, ProgressReader};
use crate::cli::storage::forbidden;
use crate::files::open_regular;
use crate::recording::{MAGIC, OpenError, SegmentReader, segment_files};

/// Takes the entries in their order.
pub(super) type Sink<'s> = &'s mut dyn FnMut(SourceItem) -> anyhow::Result<()>;

/// Reads a file of any kind.
pub(super) fn read(path: &Path, sink: Sink<'_>) -> anyhow::Result<()> {
    if path.as_os_str() == "-" {
        let mut progress = Progress::bytes("replay", None);
        let watched = ProgressReader::new(io::stdin(), &mut progress);
        return read_stream(BufReader::new(watched), STANDARD_INPUT, None, sink);
    }
    let name = path.display().to_string();
    let cannot_read = || format!("cannot read {name}");
    let found = fs::metadata(path).map_err(|error| absent(&name, &error))?;
    if found.is_dir() {
        return read_folder(path, sink);
    }
    let file = open_log(path).with_context(cannot_read)?;
    let mut progress = Progress::bytes("replay", size(path));
    let watched = ProgressReader::new(file, &mut progress);
    read_stream(BufReader::new(watched), &name, written(path), sink)
}

/// A path that cannot be examined, and what to give instead.
fn absent(name: &str, error: &io::Error) -> anyhow::Error {
    anyhow::anyhow!(
        "cannot read {name}: {error}: give an incident file, the storage folder of a daemon, or \
         the text of a kernel log"
    )
}

/// The size of a file; `None` of a pipe.
fn size(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|metadata| metadata.len())
}

fn read_folder(folder: &Path, sink: Sink<'_>) -> anyhow::Result<()> {
    let mut files = segments(folder)?;
    if files.is_empty() {
        files = segments(&folder.join("recording"))?;
    }
    if files.is_empty() {
        anyhow::bail!("{} has no recording (*.umarec)", folder.display());
    }
    let bytes = files.iter().filter_map(|path| size(path)).sum();
    let mut progress = Progress::bytes("replay", Some(bytes));
    for path in &files {
        read_segment_of_folder(path, &mut progress, sink)?;
    }
    Ok(())
}

// An unreadable folder is not an empty one.
fn segments(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Err(forbidden(folder, &error))
        }
        _ => Ok(segment_files(folder)),
    }
}

/// An unusable or deleted segment leaves a gap; others may be usable.
fn read_segment_of_folder(
    path: &Path,
    progress: &mut Progress,
    sink: Sink<'_>,
) -> anyhow::Result<()> {
    let name = path.display().to_string();
    let file = match open_regular(path) {
        Ok(file) => file,
        Err(error) => return sink(SourceItem::Cut(format!("{name} cannot be read: {error}"))),
    };
    match SegmentReader::open(BufReader::new(ProgressReader::new(file, progress))) {
        Ok(reader) => read_segment(reader, &name, sink),
        Err(OpenError::NotARecording) => {
            sink(SourceItem::Cut(format!("{name} is not a recording, or cut off at its start")))
        }
        Err(error) => Err(anyhow::Error::new(error).context(format!("cannot use {name}"))),
    }
}

fn read_stream(
    mut input: impl BufRead,
    name: &str,
    newest: Option<SystemTime>,
    sink: Sink<'_>,
) -> anyhow::Result<()> {
    let start = input.fill_buf().with_context(|| format!("cannot read {name}"))?;
    if start.starts_with(&MAGIC) {
        let reader = SegmentReader::open(input).with_context(|| format!("cannot use {name}"))?;
        return read_segment(reader, name, sink);
    }
    log_text::read(LogInput::new(input, name, newest), name, sink)
}

fn read_segment<R: Read>(
    mut reader: SegmentReader<R>,
    name: &str,
    sink: Sink<'_>,
) -> anyhow::Result<()> {
    while let Some(entry) = reader.next_entry().with_context(|| format!("cannot read {name}"))? {
        sink(SourceItem::Entry(Box::new(entry)))?;
    }
    match reader.torn() {
        Some(torn) => sink(SourceItem::Cut(format!("{name} is {torn}"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_is_reported_with_what_to_give_instead() {
        let error = read(Path::new("/nowhere"), &mut |_| Ok(())).unwrap_err().to_string();
        assert!(error.contains("give an incident file"), "{error}");
    }
}
