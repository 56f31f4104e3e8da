//! The model files: which they are, and opening them.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use glob::{MatchOptions, Pattern};
use rustix::fs::{Advice, FileType, FsWord, OFlags, ResolveFlags, Stat, fadvise, fstat, fstatfs};
use rustix::io::Errno;

use super::Pulse;
use super::ledger::CHUNK_BYTES;
use super::open_files::{OpenFiles, Slot};
use crate::actions::cgroup::open_within;
use crate::files::open_regular;
use crate::sys::descriptors::is_out_of_descriptors;
use crate::sys::page_cache::{self, CachedPages};

/// Limit of model files of one engine.
pub(super) const MOST_FILES: usize = 4_096;

/// A pattern's `*` names no folder.
const MATCHING: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: false,
};

/// tmpfs, ramfs and hugetlbfs: `linux/magic.h`.
const IN_MEMORY_ALONE: [FsWord; 3] = [0x0102_1994, 0x8584_58f6, 0x9584_58f6];

/// Its files have no page cache of their own: `linux/magic.h`.
const OVERLAYFS: FsWord = 0x794c_7630;

/// What is evicted of such a file could only go to swap.
#[derive(Debug, thiserror::Error)]
#[error("it is in memory alone")]
struct InMemoryAlone;

/// The identity of a file, independent of its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FileIdentity {
    pub(super) device: u64,
    pub(super) inode: u64,
}

impl From<&Stat> for FileIdentity {
    #[expect(clippy::useless_conversion, reason = "the fields' sizes differ by architecture")]
    fn from(stat: &Stat) -> Self {
        Self { device: stat.st_dev.into(), inode: stat.st_ino.into() }
    }
}

/// A model file. It is open for reading while it is in use, and as long as others do not need its
/// descriptor.
#[derive(Debug)]
pub(super) struct ModelFile {
    pub(super) identity: FileIdentity,
    /// As the engine sees it; for order and for people.
    pub(super) path: PathBuf,
    length: Cell<u64>,
    is_on_overlayfs: bool,
    slot: Slot,
}

impl ModelFile {
    /// Opens what a descriptor that only names a file leads to, if that is a file on a disk.
    /// It can be opened again by its path below `root`; what has none there keeps its descriptor.
    pub(super) fn open(
        named: &OwnedFd,
        path: PathBuf,
        root: Option<&Arc<OwnedFd>>,
        open_files: &OpenFiles,
    ) -> io::Result<Self> {
        let (file, stat) = open_named(named)?;
        let is_on_overlayfs = fstatfs(&file)?.f_type == OVERLAYFS;
        let slot = match root {
            Some(root) => open_files.admit(file, Arc::clone(root)),
            None => open_files.pin(file)?,
        };
        let length = Cell::new(length_of(&stat));
        Ok(Self { identity: FileIdentity::from(&stat), path, length, is_on_overlayfs, slot })
    }

    /// Its length in bytes, as known without opening it again.
    pub(super) fn length(&self) -> u64 {
        if let Some(stat) = self.slot.opened().and_then(|file| fstat(&*file).ok()) {
            self.length.set(length_of(&stat));
        }
        self.length.get()
    }

    /// The open file. Where it must be opened again, it may be gone (`NotFound`) or leased
    /// (`WouldBlock`): see [`is_of_this_file_alone`].
    pub(super) fn handle(&self) -> io::Result<Arc<OwnedFd>> {
        self.slot.file(|root| {
            let (file, stat) = open_named(&name_below(root, &self.path)?)?;
            match FileIdentity::from(&stat) == self.identity {
                true => Ok(file),
                false => Err(io::ErrorKind::NotFound.into()),
            }
        })
    }

    /// The root below which its path leads to it.
    pub(super) fn root(&self) -> Option<&Arc<OwnedFd>> {
        self.slot.root()
    }

    fn with<T>(&self, act: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>) -> io::Result<T> {
        act(self.handle()?.as_fd())
    }

    pub(super) fn cached_bytes(&self) -> io::Result<u64> {
        let pages = self.pages(0, 0)?;
        Ok(pages.cached.saturating_mul(procfs::page_size()))
    }

    /// What of a chunk is cached, in bytes.
    pub(super) fn cached(&self, chunk: usize) -> io::Result<CachedPages> {
        let pages = self.pages(offset(chunk), CHUNK_BYTES)?;
        let bytes = |pages: u64| pages.saturating_mul(procfs::page_size());
        Ok(CachedPages {
            cached: bytes(pages.cached),
            dirty: bytes(pages.dirty),
            writeback: bytes(pages.writeback),
            evicted: bytes(pages.evicted),
            recently_evicted: bytes(pages.recently_evicted),
        })
    }

    /// On overlayfs no page counts as dirty: evicting one would begin to write it back.
    fn pages(&self, offset: u64, length: u64) -> io::Result<CachedPages> {
        self.with(|file| match self.is_on_overlayfs {
            true => page_cache::count_cached(file, offset, length),
            false => page_cache::cachestat(file, offset, length),
        })
    }

    /// Takes the clean pages of a chunk that nobody maps out of the cache.
    pub(super) fn drop_unmapped(&self, chunk: usize) -> io::Result<()> {
        let length = std::num::NonZeroU64::new(CHUNK_BYTES);
        self.with(|file| Ok(fadvise(file, offset(chunk), length, Advice::DontNeed)?))
    }

    /// The same for all bytes before an offset.
    pub(super) fn drop_unmapped_before(&self, end: u64) -> io::Result<()> {
        match std::num::NonZeroU64::new(end) {
            Some(length) => self.with(|file| Ok(fadvise(file, 0, Some(length), Advice::DontNeed)?)),
            None => Ok(()),
        }
    }

    /// The same for the whole file.
    pub(super) fn drop_all_unmapped(&self) -> io::Result<()> {
        self.with(|file| Ok(fadvise(file, 0, None, Advice::DontNeed)?))
    }
}

/// Whether an error says only that this file cannot be opened again now, and nothing about what the
/// kernel supports.
pub(super) fn is_of_this_file_alone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::WouldBlock)
        || is_out_of_descriptors(error)
}

/// Opens a file for reading, if it is a regular file on a disk. It never waits for the holder of a
/// lease on it (fcntl(2), F_SETLEASE): that is `WouldBlock`.
pub(super) fn open_named(named: &OwnedFd) -> io::Result<(OwnedFd, Stat)> {
    let is_regular = |stat: &Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let stat = fstat(named)?;
    if !is_regular(&stat) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    if IN_MEMORY_ALONE.contains(&fstatfs(named)?.f_type) {
        return Err(io::Error::new(io::ErrorKind::Unsupported, InMemoryAlone));
    }
    let link = format!("/proc/self/fd/{}", named.as_raw_fd());
    Ok((open_regular(Path::new(&link))?.into(), stat))
}

/// Names a file below a root, and does not open it. Links lead nowhere out of the root.
pub(super) fn name_below(root: &OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    open_within(root, path, OFlags::PATH, resolve)
}

fn length_of(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

/// Where a chunk begins.
pub(super) fn offset(chunk: usize) -> u64 {
    CHUNK_BYTES.saturating_mul(u64::try_from(chunk).unwrap_or(u64::MAX))
}

/// The patterns of the engine's model files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Patterns {
    /// As written; a path may contain the characters of a glob and mean itself.
    exact: BTreeSet<PathBuf>,
    globs: Vec<Pattern>,
}

impl Patterns {
    /// From absolute paths and globs; what is neither is left out.
    pub(super) fn new<T: AsRef<str>>(texts: &[T]) -> Self {
        let absolute = texts.iter().map(AsRef::as_ref).filter(|text| text.starts_with('/'));
        let globs = absolute.clone().filter(|text| text.contains(['*', '?', '[']));
        Self {
            globs: globs.filter_map(|text| Pattern::new(text).ok()).collect(),
            exact: absolute.map(PathBuf::from).collect(),
        }
    }

    /// Whether a path is one of them.
    pub(super) fn name(&self, path: &Path) -> bool {
        self.exact.contains(path)
            || self.globs.iter().any(|glob| glob.matches_path_with(path, MATCHING))
    }

    /// Opens all files below a root that they name. Links lead nowhere out of it.
    pub(super) fn open_below(&self, root: OwnedFd, found: &mut ModelFileSearch) {
        let root = Arc::new(root);
        for path in &self.exact {
            try_open(&root, path, found);
        }
        for glob in &self.globs {
            let (folder, names) = split_literal(glob.as_str());
            let folder = Path::new(folder);
            // Listed by its path, a link of the engine's would lead into our own root.
            let Some(listed) = try_name(&root, folder, found) else { continue };
            let prefix = format!("/proc/self/fd/{}/", listed.as_raw_fd());
            let Ok(paths) = glob::glob_with(&format!("{prefix}{names}"), MATCHING) else {
                continue;
            };
            for path in paths.filter_map(Result::ok) {
                if found.is_full() {
                    return;
                }
                let Ok(below) = path.strip_prefix(&prefix) else { continue };
                try_open(&root, &folder.join(below), found);
            }
        }
    }
}

/// The folder in which the names begin that a glob leaves open, and the rest of the glob.
fn split_literal(glob: &str) -> (&str, &str) {
    let literal = glob.split(['*', '?', '[']).next().unwrap_or_default();
    glob.split_at(literal.rfind('/').map_or(0, |slash| slash + 1))
}

/// Names what is there; notes why it cannot.
fn try_name(root: &OwnedFd, path: &Path, found: &mut ModelFileSearch) -> Option<OwnedFd> {
    found.pulse.beat();
    let named = name_below(root, path);
    named
        .map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::NOENT | Errno::NOTDIR) => {}
            _ => found.take(path, Err(error)),
        })
        .ok()
}

fn try_open(root: &Arc<OwnedFd>, path: &Path, found: &mut ModelFileSearch) {
    let Some(named) = try_name(root, path, found) else { return };
    let opened = ModelFile::open(&named, path.to_owned(), Some(root), &found.open_files);
    found.take(path, opened);
}

/// Model files found so far, each once.
#[derive(Debug, Default)]
pub(super) struct ModelFileSearch {
    pub(super) files: Vec<ModelFile>,
    /// The first one on which another process holds a lease.
    pub(super) leased: Option<String>,
    /// Those of all loads that are open.
    pub(super) open_files: OpenFiles,
    /// Shows that the search goes on.
    pub(super) pulse: Pulse,
    /// Why some that are there cannot be opened: the first reason.
    pub(super) refused: Option<String>,
    /// A right to open one is missing.
    pub(super) lacks_right: bool,
}

impl ModelFileSearch {
    pub(super) fn is_full(&self) -> bool {
        self.files.len() >= MOST_FILES
    }

    /// The index of a file, if it is among them.
    pub(super) fn index_of(&self, identity: FileIdentity) -> Option<usize> {
        self.files.iter().position(|file| file.identity == identity)
    }

    /// Which one has this inode number, and the name that it was found by.
    pub(super) fn called(&self, inode: u64, path: &Path) -> Option<FileIdentity> {
        let file = self.files.iter().find(|file| file.identity.inode == inode && file.path == path);
        file.map(|file| file.identity)
    }

    /// Takes one on, or the reason why it cannot be opened.
    pub(super) fn take(&mut self, path: &Path, opened: io::Result<ModelFile>) {
        match opened {
            Ok(file) if self.index_of(file.identity).is_none() && !self.is_full() => {
                self.files.push(file);
            }
            Ok(_) => {}
            Err(error) if error.get_ref().is_some_and(|error| error.is::<InMemoryAlone>()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.leased.get_or_insert_with(|| PrintablePath(path).to_string());
            }
            Err(error) => self.refuse(&PrintablePath(path), &error),
        }
    }

    /// Notes why something that is there cannot be opened.
    pub(super) fn refuse(&mut self, what: &dyn fmt::Display, error: &io::Error) {
        self.lacks_right |= error.kind() == io::ErrorKind::PermissionDenied;
        self.refused.get_or_insert_with(|| format!("{what}: {error}"));
    }
}

/// A path for people.
pub(super) struct PrintablePath<'a>(pub(super) &'a Path);

impl fmt::Display for PrintablePath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name: &OsStr = self.0.file_name().unwrap_or(self.0.as_os_str());
        name.as_bytes().escape_ascii().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use rustix::fs::{Mode, open};

    use super::*;

    fn root(path: &Path) -> OwnedFd {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        open(path, flags, Mode::empty()).unwrap()
    }

    #[test]
    fn files_are_found_once_and_links_stay_inside_the_root() {
        // /tmp may be a tmpfs.
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let inside = folder.path().join("root/models");
        fs::create_dir_all(inside.join("blobs")).unwrap();
        for outside in ["secret", "root/secret", "root/models/blobs/1", "root/models/a [x].gguf"] {
            fs::write(folder.path().join(outside), outside).unwrap();
        }
        symlink("blobs/1", inside.join("one.safetensors")).unwrap();
        symlink("one.safetensors", inside.join("again.safetensors")).unwrap();
        symlink("../../secret", inside.join("out.safetensors")).unwrap();
        symlink(folder.path().join("secret"), inside.join("absolute.safetensors")).unwrap();
        fs::create_dir(inside.join("folder.safetensors")).unwrap();
        let patterns = Patterns::new(&["/models/*.safetensors", "/models/a [x].gguf", "models/*"]);
        let mut found = ModelFileSearch::default();
        patterns.open_below(root(&folder.path().join("root")), &mut found);
        let mut lengths: Vec<u64> = found.files.iter().map(ModelFile::length).collect();
        lengths.sort_unstable();
        // `..` stops at the root, whose own secret is found; the one outside of it is not.
        let expected = ["root/secret", "root/models/blobs/1", "root/models/a [x].gguf"];
        assert_eq!(lengths, expected.map(|text| text.len() as u64));
        assert!(found.refused.unwrap().ends_with("it is no regular file"));
    }

    #[test]
    fn a_folder_that_is_a_link_leads_to_one_of_the_same_root() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let inside = folder.path().join("root");
        for (of, name) in [("root/data/v[1]", "a.gguf"), ("outside", "b.gguf")] {
            fs::create_dir_all(folder.path().join(of)).unwrap();
            fs::write(folder.path().join(of).join(name), name).unwrap();
        }
        symlink("/data", inside.join("models")).unwrap();
        symlink(folder.path().join("outside"), inside.join("out")).unwrap();
        for (pattern, expected) in [
            ("/models/*/*.gguf", Some("/models/v[1]/a.gguf")),
            ("/models/v[[]1[]]/*.gguf", Some("/models/v[1]/a.gguf")),
            ("/d*/v?1?/a.gguf", Some("/data/v[1]/a.gguf")),
            ("/out/*.gguf", None),
        ] {
            let mut found = ModelFileSearch::default();
            Patterns::new(&[pattern]).open_below(root(&inside), &mut found);
            let paths: Vec<&Path> = found.files.iter().map(|file| file.path.as_path()).collect();
            let expected: Vec<&Path> = expected.map(Path::new).into_iter().collect();
            assert_eq!(paths, expected, "{pattern}");
            assert_eq!(found.refused, None, "{pattern}");
        }
    }

    #[test]
    fn files_on_tmpfs_are_left_alone() {
        let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return };
        let file = folder.path().join("model.safetensors");
        fs::write(&file, "weights").unwrap();
        let named = open(&file, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let opened = ModelFile::open(&named, file.clone(), None, &OpenFiles::default());
        assert_eq!(opened.as_ref().unwrap_err().kind(), io::ErrorKind::Unsupported);
        let mut found = ModelFileSearch::default();
        found.take(&file, opened);
        assert!(found.files.is_empty() && found.refused.is_none());
        // As openat2(2) where a filter refuses it.
        found.take(&file, Err(io::Error::new(io::ErrorKind::Unsupported, "it is refused")));
        assert_eq!(found.refused.as_deref(), Some("model.safetensors: it is refused"));
    }

    #[test]
    fn a_star_matches_no_folder_and_two_stars_match_any() {
        let patterns = Patterns::new(&["/m/*.gguf", "/deep/**/x.bin", "relative/*"]);
        for (path, is) in [
            ("/m/a.gguf", true),
            ("/m/b/a.gguf", false),
            ("/deep/x.bin", true),
            ("/deep/a/b/x.bin", true),
            ("/m/*.gguf", true),
            ("relative/a", false),
        ] {
            assert_eq!(patterns.name(Path::new(path)), is, "{path}");
        }
    }
}
