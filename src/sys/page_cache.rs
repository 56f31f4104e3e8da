//! Queries the page cache of a file, and evicts mapped pages.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Equal on all architectures of this program (include/uapi/asm-generic).
const SYS_CACHESTAT: libc::c_long = 451;

/// The most ranges of a call (UIO_MAXIOV).
pub const MOST_RANGES: usize = 1024;

/// A file is mapped in parts of this size to count its pages: one byte of the answer for each.
const COUNTED_BYTES: u64 = 16 << 20;

/// What of a file is counted at most. A sparse file may have any length, and each part costs three
/// system calls.
const MOST_COUNTED_BYTES: u64 = 1 << 40;

/// So far behind the end of a file, no page of it is cached.
const FAR_BEHIND_BYTES: u64 = 1 << 30;

/// The cache of a range of a file, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CachedPages {
    /// Pages in the page cache (`nr_cache` of cachestat).
    pub cached: u64,
    /// Pages not yet written back (`nr_dirty`).
    pub dirty: u64,
    /// Pages in writeback (`nr_writeback`).
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

/// Counts the cached pages of `length` bytes from `offset` on through a mapping, by mincore(2); a
/// length of 0 is up to the file's end, and 1 TiB is the most. Files of overlayfs have no pages of
/// their own: cachestat(2) finds none, and a mapping leads to the file below. Dirty and evicted
/// pages remain unknown.
///
/// # Errors
///
/// EPERM if the file is neither this user's nor writable.
pub fn count_cached(file: BorrowedFd<'_>, offset: u64, length: u64) -> io::Result<CachedPages> {
    let page_size = procfs::page_size();
    let size = u64::try_from(fstat(file)?.st_size).unwrap_or(0);
    let Range { start: mut at, end } = counted(size, offset, length);
    let (mut pages, mut cached) = (0, 0);
    while at < end {
        let bytes = (end - at).min(COUNTED_BYTES);
        pages += bytes.div_ceil(page_size);
        cached += mincore(file, at, bytes)?;
        at += bytes;
    }
    // Without the right to know, every page is said to be cached.
    if cached > 0 && cached == pages {
        let behind = size.next_multiple_of(page_size).saturating_add(FAR_BEHIND_BYTES);
        if mincore(file, behind, page_size)? > 0 {
            return Err(Errno::PERM.into());
        }
    }
    Ok(CachedPages { cached, ..CachedPages::default() })
}

/// The part of a file of that size that is counted, from the beginning of a page on.
fn counted(size: u64, offset: u64, length: u64) -> Range<u64> {
    let length = if length == 0 { MOST_COUNTED_BYTES } else { length.min(MOST_COUNTED_BYTES) };
    offset - offset % procfs::page_size()..size.min(offset.saturating_add(length))
}

/// The cached pages of a part of a file, which begins on a page.
fn mincore(file: BorrowedFd<'_>, offset: u64, bytes: u64) -> io::Result<u64> {
    let length = usize::try_from(bytes).map_err(io::Error::other)?;
    let pages = bytes.div_ceil(procfs::page_size());
    let mut found = vec![0_u8; usize::try_from(pages).map_err(io::Error::other)?];
    let (access, flags) = (ProtFlags::empty(), MapFlags::SHARED);
    // SAFETY: a new mapping at any address, which allows no access.
    let mapped = unsafe { mmap(std::ptr::null_mut(), length, access, flags, file, offset) }?;
    // SAFETY: mapped above; the kernel writes one byte for each page before it returns.
    let answer = unsafe { libc::mincore(mapped, length, found.as_mut_ptr()) };
    let failed = io::Error::last_os_error();
    // SAFETY: mapped above, and nothing refers to it.
    unsafe { munmap(mapped, length) }?;
    if answer != 0 {
        return Err(failed);
    }
    // The other bits are reserved.
    Ok(found.iter().map(|page| u64::from(page & 1)).sum())
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
    use std::os::unix::fs::FileExt as _;

    use rustix::process::{PidfdFlags, getpid, pidfd_open};

    use super::*;

    const MIB: u64 = 1 << 20;

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
    fn both_ways_count_the_same_pages() {
        let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let bytes = usize::try_from(COUNTED_BYTES + MIB + 1).unwrap();
        file.write_all(&vec![7; bytes]).unwrap();
        file.sync_all().unwrap();
        if let Err(error) = cachestat(file.as_fd(), 0, 0) {
            return eprintln!("skipped: no cachestat here: {error}");
        }
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        file.read_exact_at(&mut [0; 1], 8 * MIB).unwrap();
        for (offset, length) in [(0, 0), (0, 4 * MIB), (4 * MIB, 8 * MIB), (16 * MIB, 0), (MIB, 1)]
        {
            let exact = cachestat(file.as_fd(), offset, length).unwrap().cached;
            let counted = count_cached(file.as_fd(), offset, length).unwrap().cached;
            assert_eq!(counted, exact, "{length} bytes from {offset}");
        }
        assert!(count_cached(file.as_fd(), 0, 0).unwrap().cached > 0);
        assert_eq!(count_cached(file.as_fd(), 1 << 40, 0).unwrap(), CachedPages::default());
    }

    #[test]
    fn of_a_sparse_file_of_any_length_a_bounded_part_is_counted() {
        let (page, longest) = (procfs::page_size(), i64::MAX.cast_unsigned());
        assert_eq!(counted(longest, 0, 0), 0..MOST_COUNTED_BYTES);
        assert_eq!(counted(longest, page + 1, u64::MAX), page..page + 1 + MOST_COUNTED_BYTES);
        assert_eq!(counted(MIB, 0, 0), 0..MIB);
        assert_eq!(counted(MIB, page, page), page..2 * page);
    }

    #[test]
    fn an_unmapped_range_is_an_error_and_no_range_is_none() {
        let this = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
        assert!(page_out(this.as_fd(), std::slice::from_ref(&(4096..8192))).is_err());
        assert_eq!(page_out(this.as_fd(), &[]).unwrap_or(0), 0);
    }
}
