//! Pages in a process's page tables, found by the kernel.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd as _, BorrowedFd};

/// `PAGEMAP_SCAN` of linux/fs.h (kernel 6.7): `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: u64 = (3 << 30) | ((size_of::<PagemapScan>() as u64) << 16) | (0x66 << 8) | 16;

/// `PAGE_IS_FILE` and `PAGE_IS_PRESENT`: a resident page of a file, and no private copy.
const PRESENT_OF_FILE: u64 = 1 << 2 | 1 << 3;

/// The most ranges that one call returns.
const MOST_FOUND: usize = 32;

/// `struct pm_scan_arg`.
#[repr(C)]
#[derive(Debug, Default)]
struct PagemapScan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    found: u64,
    found_length: u64,
    most_pages: u64,
    inverted: u64,
    all_of: u64,
    any_of: u64,
    returned: u64,
}

/// `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// The address ranges of resident file pages, in order. `pagemap` is an open `/proc/PID/pagemap`;
/// after an exec of the process there are none. `addresses` are multiples of a page.
///
/// # Errors
///
/// ENOTTY before Linux 6.7, EINVAL if the addresses are not multiples of a page, EFAULT if no
/// process can have them.
pub fn present_of_file(
    pagemap: BorrowedFd<'_>,
    addresses: Range<u64>,
) -> io::Result<Vec<Range<u64>>> {
    let mut found: Vec<Range<u64>> = Vec::new();
    let mut start = addresses.start;
    while start < addresses.end {
        let mut regions = [Region::default(); MOST_FOUND];
        let mut scan = PagemapScan {
            size: size_of::<PagemapScan>() as u64,
            start,
            end: addresses.end,
            found: regions.as_mut_ptr().expose_provenance() as u64,
            found_length: MOST_FOUND as u64,
            all_of: PRESENT_OF_FILE,
            returned: PRESENT_OF_FILE,
            ..PagemapScan::default()
        };
        // SAFETY: the request has the structure's length. The kernel writes the structure and as
        // many regions as it says before it returns, and keeps neither.
        let count = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN as _, &raw mut scan) };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        for Region { start, end, .. } in regions.into_iter().take(count) {
            match found.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => found.push(start..end),
            }
        }
        if scan.walk_end <= start {
            break;
        }
        start = scan.walk_end;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write as _;
    use std::os::fd::AsFd as _;

    use procfs::page_size;
    use rustix::io::Errno;
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

    use super::*;

    #[test]
    fn touched_pages_of_a_file_are_found_beyond_the_ranges_of_one_call() {
        let pages = 4 * MOST_FOUND as u64;
        let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all(&vec![7; usize::try_from(pages * page_size()).unwrap()]).unwrap();
        let length = usize::try_from(pages * page_size()).unwrap();
        let flags = MapFlags::PRIVATE;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, used within its bounds.
        let mapped =
            unsafe { mmap(std::ptr::null_mut(), length, protection, flags, &file, 0) }.unwrap();
        let at = mapped.expose_provenance() as u64;
        let page = |number: u64| at + number * page_size();
        // A written page becomes a private copy: every other page, so that the rest are ranges.
        for number in 0..pages {
            let offset = usize::try_from(number * page_size()).unwrap();
            // SAFETY: within the mapping.
            let byte = unsafe { mapped.cast::<u8>().add(offset) };
            // SAFETY: the same.
            let first = unsafe { byte.read_volatile() };
            assert_eq!(first, 7);
            if number % 2 == 1 {
                // SAFETY: the same; it is writable.
                unsafe { byte.write_volatile(8) };
            }
        }
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        let found = match present_of_file(pagemap.as_fd(), page(0)..page(pages)) {
            Ok(found) => found,
            Err(error) => return eprintln!("skipped: no PAGEMAP_SCAN here: {error}"),
        };
        let expected: Vec<_> =
            (0..pages).step_by(2).map(|number| page(number)..page(number + 1)).collect();
        assert_eq!(found, expected);
        let error = present_of_file(pagemap.as_fd(), at + 1..page(2)).unwrap_err();
        assert_eq!(Errno::from_io_error(&error), Some(Errno::INVAL));
        assert!(present_of_file(pagemap.as_fd(), page(2)..page(2)).unwrap().is_empty());
        // SAFETY: mapped above, and nothing points to it any more.
        unsafe { munmap(mapped, length) }.unwrap();
        assert!(present_of_file(pagemap.as_fd(), page(0)..page(pages)).unwrap().is_empty());
    }

    #[test]
    fn a_file_other_than_a_pagemap_is_refused() {
        let file = tempfile::tempfile().unwrap();
        assert!(present_of_file(file.as_fd(), 0..page_size()).is_err());
    }
}
