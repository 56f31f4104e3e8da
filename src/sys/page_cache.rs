//! Queries the page cache of a file, and evicts mapped pages.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd as _, BorrowedFd};

/// Equal on all architectures of this program (include/uapi/asm-generic).
const SYS_CACHESTAT: libc::c_long = 451;

/// The most ranges of a call (UIO_MAXIOV).
pub const MOST_RANGES: usize = 1024;

/// The cache of a range of a file, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CachedPages {
    /// Pages in the page cache (`nr_cache` of cachestat).
    pub cached: u64,
    /// Pages not yet written back (`nr_dirty`).
    pub dirty: u64,
    /// In writeback.
    pub writeback: u64,
    /// Pages that were in the cache before (`nr_evicted`).
    pub evicted: u64,
    /// Evicted so recently that more memory would have kept them.
    pub recently_evicted: u64,
}

#[repr(C)]
struct CachestatRange {
    offset: u64,
    length: u64,
}

/// Queries the cache of `length` bytes from `offset` on; 0 is up to the file's end.
///
/// # Errors
///
/// ENOSYS before Linux 6.5, EPERM if the file is neither this user's nor writable, EOPNOTSUPP for
/// hugetlbfs.
pub fn cachestat(file: BorrowedFd<'_>, offset: u64, length: u64) -> io::Result<CachedPages> {
    let range = CachestatRange { offset, length };
    let mut pages = CachedPages::default();
    // SAFETY: both pointers are to live values of the documented layout. The kernel reads the
    // first, writes the second before it returns, and keeps neither.
    let answer = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            file.as_raw_fd(),
            std::ptr::from_ref(&range),
            std::ptr::from_mut(&mut pages),
            0_u32,
        )
    };
    if answer == 0 { Ok(pages) } else { Err(io::Error::last_os_error()) }
}

/// Evicts the pages of address ranges of another process. Returns the bytes of the processed
/// ranges. Pages that another process maps and dirty file pages stay. Memory contents do not
/// change: evicted pages return from their file.
///
/// # Errors
///
/// Nothing was processed: EPERM without CAP_SYS_NICE or the right to read the process, ENOMEM if
/// the first range is not mapped, EINVAL if it is locked.
pub fn page_out(process: BorrowedFd<'_>, ranges: &[Range<u64>]) -> io::Result<u64> {
    let vectors: Vec<libc::iovec> = ranges
        .iter()
        .take(MOST_RANGES)
        .filter_map(|range| {
            let length = usize::try_from(range.end.checked_sub(range.start)?).ok()?;
            let base = usize::try_from(range.start).ok()?;
            Some(libc::iovec { iov_base: std::ptr::without_provenance_mut(base), iov_len: length })
        })
        .collect();
    // SAFETY: the kernel reads the vectors, and not what they point to: addresses of another
    // process, whose memory keeps its content.
    let gone_through = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            process.as_raw_fd(),
            vectors.as_ptr(),
            vectors.len(),
            libc::MADV_PAGEOUT,
            0_u32,
        )
    };
    u64::try_from(gone_through).map_err(|_| io::Error::last_os_error())
}

/// Evicts a whole file, as the kernel does when memory is short.
#[cfg(test)]
pub fn reclaim_by_mapping(file: &std::fs::File) -> io::Result<()> {
    use std::os::fd::AsFd as _;

    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    use rustix::process::{PidfdFlags, getpid, pidfd_open};

    let length = usize::try_from(file.metadata()?.len()).unwrap();
    let flags = MapFlags::SHARED | MapFlags::POPULATE;
    // SAFETY: a new mapping at any address, which nothing reads or keeps.
    let mapped = unsafe { mmap(std::ptr::null_mut(), length, ProtFlags::READ, flags, file, 0) }?;
    let begin = mapped.addr() as u64;
    let this = pidfd_open(getpid(), PidfdFlags::empty())?;
    let gone = page_out(this.as_fd(), std::slice::from_ref(&(begin..begin + length as u64)));
    // SAFETY: mapped above, and unused.
    unsafe { munmap(mapped, length) }?;
    gone.map(drop)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::fd::AsFd as _;

    use rustix::process::{PidfdFlags, getpid, pidfd_open};

    use super::*;

    #[test]
    fn newly_written_pages_are_cached_and_dirty() {
        let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all(&vec![7; 1 << 20]).unwrap();
        let pages = match cachestat(file.as_fd(), 0, 0) {
            Ok(pages) => pages,
            Err(error) => return eprintln!("skipped: no cachestat here: {error}"),
        };
        assert_eq!(pages.cached * procfs::page_size(), 1 << 20);
        assert!(pages.dirty + pages.writeback <= pages.cached);
        assert_eq!(cachestat(file.as_fd(), 1 << 20, 0).unwrap(), CachedPages::default());
        file.read_exact(&mut [0; 1]).unwrap_err();
    }

    #[test]
    fn an_unmapped_range_is_an_error_and_no_range_is_none() {
        let this = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
        assert!(page_out(this.as_fd(), std::slice::from_ref(&(4096..8192))).is_err());
        assert_eq!(page_out(this.as_fd(), &[]).unwrap_or(0), 0);
    }
}
