//! One process of the engine, by handles that never come to mean another one.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::io::{self, Read as _};
use std::ops::Range;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use procfs::FromRead as _;
use procfs::process::Stat;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, open, openat, readlinkat, statat};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::files::FileIdentity;
use crate::model::ProcessId;
use crate::parse::proc::colon_number;
use crate::parse::proc::maps::mappings;
use crate::parse::proc::pagemap::{ENTRY_BYTES, present_of_file};
use crate::sys::{page_cache, page_tables};

/// Limit of open files of one process.
const MOST_OPEN_FILES: usize = 65_536;

/// More of `/proc/PID/maps` is not read: the kernel allows 65,530 mappings by default.
const MOST_MAPS_BYTES: u64 = 64 << 20;

/// Limit of `fdinfo` files that are kept open.
const MOST_POSITIONS: usize = 64;

/// `/proc/PID/io` has seven short lines.
const MOST_IO_BYTES: u64 = 4_096;

/// The position and the flags are on the first two lines.
const POSITION_BYTES: usize = 64;

/// Why a process cannot be worked on.
#[derive(Debug, thiserror::Error)]
pub(super) enum TrackError {
    /// Its number is free, or another process has it by now.
    #[error("process {0} has ended")]
    Ended(ProcessId),
    /// What a pidfd leads to is not what procfs shows.
    #[error(
        "process {0} is in another PID namespace than this program: run it in the host's \
         (containers: --pid=host)"
    )]
    OtherNamespace(ProcessId),
    /// The kernel refuses.
    #[error("{step} of process {process} failed: {error}: {}", remedy(error))]
    Failed {
        /// The step, for the text.
        step: &'static str,
        /// Its number.
        process: ProcessId,
        /// The error of the system call.
        error: io::Error,
    },
}

/// A process, by a pidfd and its folder in procfs: both are dead once it is, whoever has its number
/// then.
#[derive(Debug)]
pub(super) struct TrackedProcess {
    pub(super) id: ProcessId,
    folder: OwnedFd,
    pidfd: OwnedFd,
    /// Stays open from one scan of the mappings to the next, since it is read often. After an
    /// execve(2) it is empty.
    pagemap: RefCell<Option<File>>,
    /// The `fdinfo` files with the positions, kept in the same way, by number.
    positions: RefCell<BTreeMap<u32, File>>,
    /// The kernel has no PAGEMAP_SCAN: it is older than 6.7.
    only_reads: Cell<bool>,
}

/// A part of a model file that a process maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mapped {
    pub(super) addresses: Range<u64>,
    pub(super) offset: u64,
    pub(super) inode: u64,
    pub(super) path: PathBuf,
}

impl Mapped {
    /// The link in the process's folder that leads to the file itself, whatever its names are.
    pub(super) fn link(&self) -> String {
        format!("map_files/{:x}-{:x}", self.addresses.start, self.addresses.end)
    }

    /// The part of the file that is mapped at these addresses.
    pub(super) fn part_at(&self, addresses: &Range<u64>) -> Range<u64> {
        let at =
            |address: u64| self.offset.saturating_add(address.saturating_sub(self.addresses.start));
        at(addresses.start)..at(addresses.end)
    }
}

/// A file that a process has open.
#[derive(Clone, Debug)]
pub(super) struct OpenFile {
    pub(super) number: u32,
    pub(super) identity: FileIdentity,
    pub(super) path: PathBuf,
    /// It is read past the page cache (O_DIRECT); known of model files alone.
    pub(super) is_direct: bool,
}

impl TrackedProcess {
    /// Opens the files of a process, and verifies its identity.
    pub(super) fn open(procfs: &Path, id: ProcessId) -> Result<Self, TrackError> {
        let failed = |step, error: Errno| match error {
            Errno::SRCH | Errno::NOENT => TrackError::Ended(id),
            error => TrackError::Failed { step, process: id, error: error.into() },
        };
        let pid =
            i32::try_from(id.pid).ok().and_then(Pid::from_raw).ok_or(TrackError::Ended(id))?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| match error {
            // A process that procfs shows and pidfd_open does not is one of another namespace.
            Errno::SRCH if procfs.join(id.to_string()).exists() => TrackError::OtherNamespace(id),
            error => failed("pidfd_open", error),
        })?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = open(procfs.join(id.to_string()), flags, Mode::empty())
            .map_err(|error| failed("opening the folder in procfs", error))?;
        let (pagemap, positions, only_reads) = Default::default();
        let tracked = Self { id, folder, pidfd, pagemap, positions, only_reads };
        tracked.verify(procfs)?;
        Ok(tracked)
    }

    fn verify(&self, procfs: &Path) -> Result<(), TrackError> {
        let id = self.id;
        let stat = self.file("stat").map_err(|_| TrackError::Ended(id))?;
        let stat = Stat::from_read(stat).map_err(|_| TrackError::Ended(id))?;
        if stat.starttime != id.start_ticks || !self.lives() {
            return Err(TrackError::Ended(id));
        }
        // The number that the pidfd's process has where this procfs was mounted.
        let shown = procfs.join("self/fdinfo").join(self.pidfd.as_raw_fd().to_string());
        let shown = std::fs::read(shown).ok();
        match shown.and_then(|text| colon_number(&text, b"Pid")) {
            Some(pid) if pid == u64::from(id.pid) => Ok(()),
            _ => Err(TrackError::OtherNamespace(id)),
        }
    }

    /// Whether it has not ended: a pidfd can be read once it has.
    pub(super) fn lives(&self) -> bool {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(0)
    }

    fn file(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(openat(&self.folder, name, flags, Mode::empty())?.into())
    }

    /// Bytes that it has had read from disks.
    pub(super) fn read_bytes(&self) -> io::Result<u64> {
        let mut text = Vec::new();
        self.file("io")?.take(MOST_IO_BYTES).read_to_end(&mut text)?;
        colon_number(&text, b"read_bytes").ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// What it sees as `/`.
    pub(super) fn root(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(openat(&self.folder, "root", flags, Mode::empty())?)
    }

    /// A file that it maps or has open, as a path only (O_PATH).
    pub(super) fn path_of(&self, link: &str) -> io::Result<OwnedFd> {
        Ok(openat(&self.folder, link, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// The identity of a file that it maps or has open.
    pub(super) fn identity_of(&self, link: &str) -> io::Result<FileIdentity> {
        Ok(FileIdentity::from(&statat(&self.folder, link, AtFlags::empty())?))
    }

    /// What it maps of files of which `is_wanted` says that they may be model files, by inode
    /// number and path.
    pub(super) fn mapped(&self, is_wanted: impl Fn(u64, &Path) -> bool) -> io::Result<Vec<Mapped>> {
        *self.pagemap.borrow_mut() = None;
        let mut text = Vec::new();
        self.file("maps")?.take(MOST_MAPS_BYTES).read_to_end(&mut text)?;
        let path = |bytes| Path::new(std::ffi::OsStr::from_bytes(bytes));
        let found = mappings(&text).filter(|mapping| is_wanted(mapping.inode, path(mapping.path)));
        let found = found.map(|mapping| Mapped {
            addresses: mapping.addresses.clone(),
            offset: mapping.offset,
            inode: mapping.inode,
            path: path(mapping.path).to_owned(),
        });
        Ok(found.collect())
    }

    /// Whether it maps that file there, at this moment.
    pub(super) fn still_maps(&self, mapped: &Mapped, identity: FileIdentity) -> bool {
        match self.identity_of(&mapped.link()) {
            Ok(found) => found == identity,
            // Without the right to follow that link: by what procfs shows to everybody.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => self
                .mapped(|inode, path| inode == mapped.inode && path == mapped.path)
                .is_ok_and(|found| found.contains(mapped)),
            Err(_) => false,
        }
    }

    /// The regular files that it has open.
    pub(super) fn open_files(&self) -> io::Result<Vec<OpenFile>> {
        self.positions.borrow_mut().clear();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = openat(&self.folder, "fd", flags, Mode::empty())?;
        let mut found = Vec::new();
        for entry in Dir::read_from(&folder)?.take(MOST_OPEN_FILES) {
            let entry = entry?;
            let name = entry.file_name();
            let Some(number) = name.to_str().ok().and_then(|name| name.parse().ok()) else {
                continue;
            };
            // It may have been closed since; it is never opened here, since it may be anything.
            let Ok(stat) = statat(&folder, name, AtFlags::empty()) else { continue };
            if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                continue;
            }
            let Ok(path) = readlinkat(&folder, name, Vec::new()) else { continue };
            let path = PathBuf::from(std::ffi::OsStr::from_bytes(path.as_bytes()));
            let (identity, is_direct) = (FileIdentity::from(&stat), false);
            found.push(OpenFile { number, identity, path, is_direct });
        }
        Ok(found)
    }

    /// Its position in an open file; reads at offsets of its own (pread) do not move it.
    pub(super) fn position(&self, number: u32) -> io::Result<u64> {
        let position = self.fdinfo(number, |text| colon_number(text, b"pos"))?;
        position.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Whether it reads an open file past the page cache.
    pub(super) fn reads_directly(&self, number: u32) -> bool {
        self.fdinfo(number, is_direct).unwrap_or(false)
    }

    /// What `find` finds on the first lines about an open file.
    fn fdinfo<T>(&self, number: u32, find: impl FnOnce(&[u8]) -> T) -> io::Result<T> {
        let mut kept = self.positions.borrow_mut();
        if kept.len() >= MOST_POSITIONS {
            kept.clear();
        }
        let file = match kept.entry(number) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => unknown.insert(self.file(&format!("fdinfo/{number}"))?),
        };
        let mut text = [0; POSITION_BYTES];
        let length = file.read_at(&mut text, 0)?;
        Ok(find(text.get(..length).unwrap_or_default()))
    }

    /// Which pages of a file's own, within addresses of a mapping, are in its page tables.
    pub(super) fn present(&self, addresses: Range<u64>) -> io::Result<Vec<Range<u64>>> {
        let mut kept = self.pagemap.borrow_mut();
        let pagemap = match &mut *kept {
            Some(pagemap) => pagemap,
            none => none.insert(self.file("pagemap")?),
        };
        if !self.only_reads.get() {
            match page_tables::present_of_file(pagemap.as_fd(), addresses.clone()) {
                Err(error) if Errno::from_io_error(&error) == Some(Errno::NOTTY) => {
                    self.only_reads.set(true);
                }
                found => return found,
            }
        }
        read_present(pagemap, addresses)
    }

    /// Takes address ranges out of its memory. Ranges that the kernel does not take (locked ones,
    /// and those unmapped by now) are passed over.
    pub(super) fn page_out(&self, mut ranges: &[Range<u64>]) -> io::Result<()> {
        while let Some(first) = ranges.first() {
            let given = &ranges[..ranges.len().min(page_cache::MOST_RANGES)];
            match page_cache::page_out(self.pidfd.as_fd(), given) {
                Ok(gone_through) => ranges = behind(given, gone_through, ranges),
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::INVAL | Errno::NOMEM) if !first.is_empty() => {
                        ranges = &ranges[1..];
                    }
                    _ => return Err(error),
                },
            }
        }
        Ok(())
    }
}

/// Whether `fdinfo` shows O_DIRECT. Its flags are octal (Documentation/filesystems/proc.rst).
fn is_direct(fdinfo: &[u8]) -> bool {
    let mut lines = fdinfo.split(|byte| *byte == b'\n');
    let flags = lines.find_map(|line| line.strip_prefix(b"flags:"));
    let flags = flags.and_then(|digits| std::str::from_utf8(digits).ok());
    let flags = flags.and_then(|digits| u32::from_str_radix(digits.trim(), 8).ok());
    flags.is_some_and(|flags| OFlags::from_bits_retain(flags).contains(OFlags::DIRECT))
}

/// The same from the entry of each page.
fn read_present(pagemap: &File, addresses: Range<u64>) -> io::Result<Vec<Range<u64>>> {
    let page_size = procfs::page_size();
    let from = addresses.start / page_size;
    let pages = (addresses.end - addresses.start).div_ceil(page_size);
    let bytes = usize::try_from(pages).map_err(io::Error::other)? * ENTRY_BYTES;
    let mut entries = vec![0; bytes];
    pagemap.read_exact_at(&mut entries, from * ENTRY_BYTES as u64)?;
    Ok(present_of_file(&entries, from * page_size, page_size).collect())
}

/// The ranges that are left after so many bytes: one that was begun counts as done.
fn behind<'a>(
    given: &[Range<u64>],
    mut gone_through: u64,
    ranges: &'a [Range<u64>],
) -> &'a [Range<u64>] {
    let mut done = 0;
    for range in given {
        if done > 0 && gone_through == 0 {
            break;
        }
        gone_through = gone_through.saturating_sub(range.end - range.start);
        done += 1;
    }
    &ranges[done..]
}

fn remedy(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::PERM | Errno::ACCESS) => {
            "run as root, or with CAP_SYS_PTRACE, CAP_SYS_NICE and CAP_SYS_ADMIN"
        }
        Some(Errno::NOSYS) => "the kernel is older than 5.10",
        Some(Errno::MFILE | Errno::NFILE) => "raise the limit on open files (LimitNOFILE=)",
        _ => "check --path.procfs",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn this() -> ProcessId {
        let stat = procfs::process::Process::myself().unwrap().stat().unwrap();
        ProcessId { pid: std::process::id(), start_ticks: stat.starttime }
    }

    #[test]
    fn a_reused_pid_is_refused() {
        let tracked = TrackedProcess::open(Path::new("/proc"), this()).unwrap();
        assert!(tracked.lives());
        let other = ProcessId { start_ticks: this().start_ticks + 1, ..this() };
        let error = TrackedProcess::open(Path::new("/proc"), other).unwrap_err();
        assert!(matches!(error, TrackError::Ended(_)), "{error}");
        for pid in [0, u32::MAX, 0x7fff_fff0] {
            let error =
                TrackedProcess::open(Path::new("/proc"), ProcessId { pid, ..this() }).unwrap_err();
            assert!(matches!(error, TrackError::Ended(_)), "{error}");
        }
    }

    #[test]
    fn a_process_behind_a_pidfd_is_dead_after_its_end_even_if_its_pid_is_reused() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let stat = procfs::process::Process::new(pid).unwrap().stat().unwrap();
        let id = ProcessId { pid: child.id(), start_ticks: stat.starttime };
        let tracked = TrackedProcess::open(Path::new("/proc"), id).unwrap();
        assert!(tracked.lives());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!tracked.lives());
        assert!(tracked.mapped(|_, _| true).is_err());
        assert!(
            page_cache::page_out(tracked.pidfd.as_fd(), std::slice::from_ref(&(0..4096))).is_err()
        );
    }

    #[test]
    fn finished_ranges_are_not_returned_again() {
        let ranges = [0..10, 20..30, 40..50];
        for (gone_through, left) in [(0, 2), (5, 2), (10, 2), (11, 1), (20, 1), (21, 0), (30, 0)] {
            assert_eq!(behind(&ranges, gone_through, &ranges).len(), left, "{gone_through}");
        }
    }

    #[test]
    fn flags_are_octal_and_behind_the_longest_position() {
        let of = |flags: OFlags| {
            let rest = "mnt_id:\t29\n".repeat(4);
            let text = format!("pos:\t{}\nflags:\t0{:o}\n{rest}", i64::MAX, flags.bits());
            is_direct(&text.as_bytes()[..POSITION_BYTES])
        };
        assert!(of(OFlags::DIRECT) && of(OFlags::DIRECT | OFlags::CLOEXEC | OFlags::RDWR));
        assert!(!of(OFlags::CLOEXEC | OFlags::NOATIME) && !is_direct(b"flags:\t0999\n"));
        assert!(!is_direct(b"pos:\t7\n"));
    }

    #[test]
    fn open_regular_files_are_found_with_their_position() {
        use std::io::{Seek as _, SeekFrom};
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.as_file_mut().set_len(100).unwrap();
        file.as_file_mut().seek(SeekFrom::Start(42)).unwrap();
        let tracked = TrackedProcess::open(Path::new("/proc"), this()).unwrap();
        let number = u32::try_from(file.as_file().as_raw_fd()).unwrap();
        let found = tracked.open_files().unwrap();
        let found = found.iter().find(|open| open.number == number).unwrap();
        assert_eq!(found.path, file.path().canonicalize().unwrap());
        assert_eq!(tracked.position(number).unwrap(), 42);
        assert!(!tracked.reads_directly(number) && !tracked.reads_directly(u32::MAX));
        assert_eq!(tracked.identity_of(&format!("fd/{number}")).unwrap(), found.identity);
    }
}
