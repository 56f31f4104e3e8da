//! The model files that the engine maps and has open.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::files::{FileIdentity, ModelFile, ModelFileSearch, Patterns};
use super::process::{Mapped, OpenFile, TrackedProcess};
use super::shards::before_those_in_use;
use super::uses::FileUse;

/// Mappings and open files of all processes of the engine.
#[derive(Debug, Default)]
pub(super) struct Holdings {
    mapped: Vec<(usize, FileIdentity, Mapped)>,
    opened: Vec<(usize, OpenFile)>,
    /// Why the mappings or open files of a process cannot be read.
    pub(super) hidden: Option<String>,
}

impl Holdings {
    /// Scans all processes; new files that match the patterns are taken on.
    pub(super) fn scan(
        processes: &[TrackedProcess],
        patterns: &Patterns,
        files: &mut ModelFileSearch,
    ) -> Self {
        let mut found = Self::default();
        for (number, tracked) in processes.iter().enumerate().filter(|(_, tracked)| tracked.lives())
        {
            let inodes: BTreeSet<u64> =
                files.files.iter().map(|file| file.identity.inode).collect();
            let is_wanted =
                |inode: u64, path: &Path| inodes.contains(&inode) || patterns.name(path);
            let scanned = tracked.mapped(is_wanted).and_then(|mapped| {
                found.take_mapped((number, tracked), mapped, patterns, files);
                found.take_opened((number, tracked), tracked.open_files()?, patterns, files);
                Ok(())
            });
            if let Err(error) = scanned.map_err(|error| format!("process {}: {error}", tracked.id))
            {
                found.hidden.get_or_insert(error);
            }
        }
        found
    }

    fn take_mapped(
        &mut self,
        (number, tracked): (usize, &TrackedProcess),
        mapped: Vec<Mapped>,
        patterns: &Patterns,
        files: &mut ModelFileSearch,
    ) {
        for mapped in mapped {
            let link = mapped.link();
            let identity = match tracked.identity_of(&link) {
                Ok(identity) => identity,
                // Without the right to follow that link: by name and number.
                Err(_) => match files.called(mapped.inode, &mapped.path) {
                    Some(identity) => identity,
                    None => continue,
                },
            };
            if files.index_of(identity).is_none() {
                if !patterns.name(&mapped.path) {
                    continue;
                }
                let path = mapped.path.clone();
                let opened = tracked
                    .path_of(&link)
                    .and_then(|named| ModelFile::open(&named, path, None, &files.open_files));
                files.take(&mapped.path, opened);
            }
            self.mapped.push((number, identity, mapped));
        }
    }

    fn take_opened(
        &mut self,
        (number, tracked): (usize, &TrackedProcess),
        opened: Vec<OpenFile>,
        patterns: &Patterns,
        files: &mut ModelFileSearch,
    ) {
        for open in opened {
            if files.index_of(open.identity).is_none() {
                let name = open.path.as_os_str().as_bytes();
                let name = name.strip_suffix(b" (deleted)").unwrap_or(name);
                let path = Path::new(std::ffi::OsStr::from_bytes(name));
                if !patterns.name(path) {
                    continue;
                }
                let named = tracked.path_of(&format!("fd/{}", open.number));
                let file = named.and_then(|named| {
                    ModelFile::open(&named, path.to_owned(), None, &files.open_files)
                });
                // The number may be of another file by now.
                let is_same = |file: &ModelFile| file.identity == open.identity;
                match file {
                    Ok(file) if !is_same(&file) => continue,
                    file => files.take(path, file),
                }
            }
            let is_direct = tracked.reads_directly(open.number);
            self.opened.push((number, OpenFile { is_direct, ..open }));
        }
    }

    /// Records at each file which processes map it or have it open.
    pub(super) fn record(self, files: &ModelFileSearch, uses: &mut [FileUse]) {
        for used in &mut *uses {
            used.mapped.clear();
            used.opened.clear();
        }
        for (process, identity, mapped) in self.mapped {
            if let Some(used) = files.index_of(identity).and_then(|index| uses.get_mut(index)) {
                used.mapped.push((process, mapped));
            }
        }
        for (process, opened) in self.opened {
            let index = files.index_of(opened.identity);
            if let Some(used) = index.and_then(|index| uses.get_mut(index)) {
                used.opened.push((process, opened));
            }
        }
        let both = files.files.iter().zip(uses.iter());
        let in_use: Vec<_> =
            both.map(|(file, used)| (file.path.as_path(), used.is_in_use())).collect();
        let before_first = before_those_in_use(&in_use);
        for (used, is_before_first) in uses.iter_mut().zip(before_first) {
            used.was_used |= used.is_in_use();
            used.is_before_first |= is_before_first;
        }
    }
}
