//! Memory of processes that they do not return by themselves.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, StatxFlags, statx};
use rustix::io::Errno;
use rustix::net::{AddressFamily, sockopt};
use rustix::param::page_size;
use rustix::pipe::fcntl_getpipe_size;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::model::{ProcessId, ProcessMemory, Reading};
use crate::parse::proc::sockstat;
use crate::parse::process::{Stat, resident};
use crate::sources::bounded::read_file;
use crate::sys::descriptors::with_reserve;
use crate::sys::socket_queue;

/// Longer files are truncated.
const MAX_SOCKSTAT_BYTES: u64 = 4 << 10;
const MAX_MEMINFO_BYTES: u64 = 64 << 10;

/// A process with less is not listed.
const LEAST_LISTED: u64 = 64 << 20;

/// The entry for all processes that are not listed.
const SMALLER: &str = "smaller ones";

/// The most processes that are listed, largest first.
const MOST_LISTED: usize = 128;

/// A pipe holds at most 1 MiB unless root has raised that (pipe(7)), and a TCP socket 10 MiB by
/// default (tcp(7)). Fewer of one process are examined only while memory falls.
const MANY: usize = 64;

/// Bytes in pipes and sockets of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct QueuedBytes {
    /// Readable bytes in its pipes.
    pub(super) pipe_bytes: u64,
    /// The size of its non-empty pipes, which is the most that they take. A packet of one byte
    /// takes a page (pipe(2), `O_DIRECT`).
    pub(super) pipe_size_bytes: u64,
    pub(super) socket_bytes: u64,
}

/// The pipes and sockets that a process has open: descriptors, with their inodes.
#[derive(Debug, Default)]
pub(super) struct Queues {
    pub(super) pipes: Vec<(u32, u64)>,
    pub(super) sockets: Vec<(u32, u64)>,
}

impl Queues {
    pub(super) fn is_empty(&self) -> bool {
        self.pipes.is_empty() && self.sockets.is_empty()
    }

    pub(super) fn has_many(&self) -> bool {
        self.pipes.len() >= MANY || self.sockets.len() >= MANY
    }

    /// The bytes in them, which no counter of the kernel has. `None` without permission. May block
    /// as long as the process likes: a descriptor may now be that of a file whose server (FUSE)
    /// never responds.
    pub(super) fn queued(&self, pid: u32) -> Option<QueuedBytes> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
        let open = || Ok(pidfd_open(pid, PidfdFlags::empty())?);
        let process = with_reserve(open).ok()?;
        let mut queued = QueuedBytes::default();
        for_each(&process, &self.pipes, |pipe| {
            let bytes = rustix::io::ioctl_fionread(pipe).unwrap_or(0);
            queued.pipe_bytes = queued.pipe_bytes.saturating_add(bytes);
            let size = fcntl_getpipe_size(pipe).map_or(0, |size| size as u64);
            let size = if bytes > 0 { size } else { 0 };
            queued.pipe_size_bytes = queued.pipe_size_bytes.saturating_add(size);
        })?;
        for_each(&process, &self.sockets, |socket| {
            queued.socket_bytes = queued.socket_bytes.saturating_add(in_socket(socket));
        })?;
        Some(queued)
    }
}

/// Borrows each descriptor for a moment, an inode once. `None` if one cannot be borrowed.
fn for_each(process: &OwnedFd, open: &[(u32, u64)], mut act: impl FnMut(&OwnedFd)) -> Option<()> {
    let mut seen = BTreeSet::new();
    for (number, inode) in open.iter().filter(|(_, inode)| seen.insert(*inode)) {
        let Ok(number) = i32::try_from(*number) else { continue };
        let borrow = || Ok(pidfd_getfd(process, number, PidfdGetfdFlags::empty())?);
        match with_reserve(borrow) {
            // The inode shows whether it is still the same.
            Ok(borrowed) if inode_of(&borrowed) == Some(*inode) => act(&borrowed),
            Ok(_) => {}
            Err(error) => match Errno::from_io_error(&error) {
                // It was closed, or its process has ended.
                Some(Errno::BADF | Errno::SRCH) => {}
                _ => return None,
            },
        }
    }
    Some(())
}

fn inode_of(file: &OwnedFd) -> Option<u64> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    statx(file, "", flags, StatxFlags::INO).ok().map(|about| about.stx_ino)
}

fn in_socket(socket: &OwnedFd) -> u64 {
    let Ok((unread, unsent)) = socket_queue::queued(socket) else { return 0 };
    match sockopt::socket_domain(socket) {
        // Bytes sent by one end are those that the other has not read.
        Ok(AddressFamily::UNIX) => unsent,
        _ => unread.saturating_add(unsent),
    }
}

/// The memory of all processes at one scan.
#[derive(Debug)]
pub(super) struct MemoryTally {
    has_huge_pages: bool,
    listed: Vec<ProcessMemory>,
    /// The total of processes that are not listed.
    smaller: ProcessMemory,
}

impl MemoryTally {
    pub(super) fn begin(procfs: &Path) -> Self {
        // Huge pages are in no resident size, so that each process must be examined.
        let text = read_file(&procfs.join("meminfo"), MAX_MEMINFO_BYTES).unwrap_or_default();
        let has_none = text.split(|byte| *byte == b'\n').any(|line| {
            let value = line.strip_prefix(b"Hugetlb:").map(<[u8]>::trim_ascii);
            value.is_some_and(|value| value == b"0 kB")
        });
        let smaller = ProcessMemory { comm: Arc::from(SMALLER), ..ProcessMemory::default() };
        Self { has_huge_pages: !has_none, listed: Vec::new(), smaller }
    }

    /// The memory of a process; zero below the listed size.
    pub(super) fn of(
        &self,
        pid: u32,
        stat: &Stat,
        read: impl Fn(&str) -> Option<Vec<u8>>,
    ) -> ProcessMemory {
        let id = ProcessId { pid, start_ticks: stat.start_ticks };
        let none = ProcessMemory { id, comm: Arc::from(&*stat.comm), ..ProcessMemory::default() };
        let pages = read("statm").and_then(|text| resident_pages(&text)).unwrap_or(u64::MAX);
        let is_large = pages.saturating_mul(page_size() as u64) >= LEAST_LISTED;
        if !is_large && !self.has_huge_pages {
            return none;
        }
        let Some(text) = read("status") else { return none };
        let resident = resident(&text);
        ProcessMemory {
            anon_bytes: resident.anon.unwrap_or(0),
            shmem_bytes: resident.shmem.unwrap_or(0),
            hugetlb_bytes: resident.hugetlb.unwrap_or(0),
            ..none
        }
    }

    pub(super) fn add(&mut self, memory: ProcessMemory) {
        if memory.sum_bytes() >= LEAST_LISTED {
            self.listed.push(memory);
        } else {
            self.smaller.add(&memory);
        }
    }

    /// The largest processes, by pid. All others are process 0.
    pub(super) fn end(mut self) -> Vec<ProcessMemory> {
        self.listed.sort_by_key(|memory| (std::cmp::Reverse(memory.sum_bytes()), memory.id));
        for memory in self.listed.split_off(self.listed.len().min(MOST_LISTED)) {
            self.smaller.add(&memory);
        }
        if self.smaller.sum_bytes() > 0 {
            self.listed.push(self.smaller);
        }
        self.listed.sort_by_key(|memory| memory.id);
        self.listed
    }
}

/// The second number of `/proc/PID/statm`.
fn resident_pages(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// The memory of TCP and UDP sockets in bytes, which the kernel counts over all network namespaces.
pub(super) fn sockets(procfs: &Path) -> Reading<u64> {
    match read_file(&procfs.join("net/sockstat"), MAX_SOCKSTAT_BYTES) {
        Ok(text) => sockstat::memory_pages(&text).map_or(Reading::Failed, |pages| {
            Reading::Value(pages.saturating_mul(page_size() as u64))
        }),
        Err(error) if error.kind() == ErrorKind::NotFound => Reading::Unsupported,
        Err(_) => Reading::Failed,
    }
}
