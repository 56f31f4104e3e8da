//! What processes have taken that they do not give back by themselves.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{AddressFamily, sockopt};
use rustix::param::page_size;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::model::{ProcessId, ProcessMemory, Reading};
use crate::parse::proc::sockstat;
use crate::parse::process::{Stat, resident};
use crate::sys::socket_queue;

/// A process with less is not listed.
const LEAST_LISTED: u64 = 64 << 20;

/// Processes that are listed, of those that have most.
const MOST_LISTED: usize = 128;

/// A pipe holds at most 1 MiB unless root has raised that (pipe(7)), and the queues of a TCP socket
/// 10 MiB by default (tcp(7)): fewer of one process are not examined.
const MANY: usize = 64;

/// Bytes in pipes and sockets of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Queued {
    pub(super) pipe_bytes: u64,
    pub(super) socket_bytes: u64,
}

/// The pipes and sockets that a process has open: descriptors, with their inodes.
#[derive(Debug, Default)]
pub(super) struct Queues {
    pub(super) pipes: Vec<(u32, u64)>,
    pub(super) sockets: Vec<(u32, u64)>,
}

impl Queues {
    pub(super) fn has_many(&self) -> bool {
        self.pipes.len() >= MANY || self.sockets.len() >= MANY
    }

    /// What is in them: the kernel counts it nowhere. `None` where this program may not look.
    pub(super) fn queued(&self, pid: u32) -> Option<Queued> {
        if !self.has_many() {
            return Some(Queued::default());
        }
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
        let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        Some(Queued {
            pipe_bytes: sum(&process, &self.pipes, |pipe| {
                rustix::io::ioctl_fionread(pipe).unwrap_or(0)
            })?,
            socket_bytes: sum(&process, &self.sockets, in_socket)?,
        })
    }
}

/// What is in each of these, an inode counted once. `None` where one cannot be borrowed.
fn sum(process: &OwnedFd, open: &[(u32, u64)], of: impl Fn(&OwnedFd) -> u64) -> Option<u64> {
    let inodes: BTreeSet<u64> = open.iter().map(|(_, inode)| *inode).collect();
    if inodes.len() < MANY {
        return Some(0);
    }
    let mut seen = BTreeSet::new();
    let mut bytes = 0_u64;
    for (number, inode) in open.iter().filter(|(_, inode)| seen.insert(*inode)) {
        let Ok(number) = i32::try_from(*number) else { continue };
        match pidfd_getfd(process, number, PidfdGetfdFlags::empty()) {
            Ok(borrowed) => {
                // Whether it is the one that was meant, its inode tells.
                let is_it = rustix::fs::fstat(&borrowed).is_ok_and(|about| about.st_ino == *inode);
                bytes = bytes.saturating_add(if is_it { of(&borrowed) } else { 0 });
            }
            // It was closed, or its process has ended.
            Err(Errno::BADF | Errno::SRCH) => {}
            Err(_) => return None,
        }
    }
    Some(bytes)
}

fn in_socket(socket: &OwnedFd) -> u64 {
    let Ok((unread, unsent)) = socket_queue::queued(socket) else { return 0 };
    match sockopt::socket_domain(socket) {
        // What one end has sent is what the other has not read.
        Ok(AddressFamily::UNIX) => unsent,
        _ => unread.saturating_add(unsent),
    }
}

/// The memory of all processes at one scan.
#[derive(Debug)]
pub(super) struct Tally {
    has_huge_pages: bool,
    listed: Vec<ProcessMemory>,
}

impl Tally {
    pub(super) fn begin(procfs: &Path) -> Self {
        // In a huge page pool memory is in no resident size, so that each process must be examined.
        let text = fs::read(procfs.join("meminfo")).unwrap_or_default();
        let has_none = text.split(|byte| *byte == b'\n').any(|line| {
            let value = line.strip_prefix(b"Hugetlb:").map(<[u8]>::trim_ascii);
            value.is_some_and(|value| value == b"0 kB")
        });
        Self { has_huge_pages: !has_none, listed: Vec::new() }
    }

    /// What a process has, as far as it is worth a word.
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
        }
    }

    /// Those that have most, by number.
    pub(super) fn end(mut self) -> Vec<ProcessMemory> {
        self.listed.sort_by_key(|memory| (std::cmp::Reverse(memory.sum_bytes()), memory.id));
        self.listed.truncate(MOST_LISTED);
        self.listed.sort_by_key(|memory| memory.id);
        self.listed
    }
}

/// The second number of `/proc/PID/statm`.
fn resident_pages(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// The memory of TCP and UDP sockets, in bytes: the kernel counts it over all network namespaces.
pub(super) fn sockets(procfs: &Path) -> Reading<u64> {
    match fs::read(procfs.join("net/sockstat")) {
        Ok(text) => sockstat::memory_pages(&text).map_or(Reading::Failed, |pages| {
            Reading::Value(pages.saturating_mul(page_size() as u64))
        }),
        Err(_) => Reading::Unsupported,
    }
}
