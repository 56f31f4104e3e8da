//! System calls that no library wraps, or not as they are needed here: the only unsafe code. How
//! much memory is free is here too, since several rooms ask it of the kernel without /proc.
#![expect(unsafe_code, reason = "each call says why it is sound")]

mod heap;

pub use heap::{give_freed_memory_back, share_freed_memory};

pub mod descriptors;

pub mod free_memory;

pub mod nvml;

pub mod page_cache;

pub mod page_tables;

pub mod process_end;

pub mod signals;

pub mod socket_queue;

use std::io;

use procfs::process::{MMPermissions, MMapPath, MemoryMap, Process};
use rustix::mm::{Advice, madvise};

/// What the kernel brings in of code at a time: little enough that what is not used stays out, and
/// enough that a mebibyte of code is 64 mappings.
const PART_BYTES: usize = 16 << 10;

/// Takes what is as it is in its file, code above all, out of this process's resident memory. What
/// is used comes back from the page cache when it is next used; what only a start needs does not.
/// Afterwards locking memory locks little.
///
/// # Errors
///
/// The mappings cannot be read, or the kernel refuses, as it does while memory is locked; nothing
/// has changed for what runs then.
pub fn forget_files() -> io::Result<()> {
    let maps = Process::myself().and_then(|process| process.smaps()).map_err(io::Error::other)?;
    for map in maps.into_iter().filter(holds_what_its_file_holds) {
        let (from, to) = map.address;
        let from = usize::try_from(from).map_err(io::Error::other)?;
        let to = usize::try_from(to).map_err(io::Error::other)?;
        // SAFETY: a private mapping of a file that cannot be written to and has no page of its own
        // holds what the file holds, so a page that is dropped is the same when it comes back. What
        // the loader has written to before it took the right to write away has pages of its own.
        unsafe {
            madvise(std::ptr::without_provenance_mut(from), to - from, Advice::LinuxDontNeed)?;
        }
        if map.perms.contains(MMPermissions::EXECUTE) {
            part(from, to)?;
        }
    }
    Ok(())
}

/// Parts a mapping, so that one page that is used does not bring in the sixteen around it, which is
/// what the kernel does within a mapping (do_fault_around, mm/memory.c): of code that is used here
/// and there, nearly all would be resident. Two parts are two mappings as long as they differ:
/// every second one by its address, so that what is parted already stays as it is.
fn part(from: usize, to: usize) -> io::Result<()> {
    if procfs::page_size() >= PART_BYTES as u64 {
        return Ok(());
    }
    let first = from - from % (2 * PART_BYTES);
    for start in (first..to).step_by(2 * PART_BYTES) {
        let (start, end) = (start.max(from), to.min(start + PART_BYTES));
        if start >= end {
            continue;
        }
        // SAFETY: says only that a core dump need not hold these pages, which are in the file.
        unsafe {
            madvise(std::ptr::without_provenance_mut(start), end - start, Advice::LinuxDontDump)?;
        }
    }
    Ok(())
}

fn holds_what_its_file_holds(map: &MemoryMap) -> bool {
    matches!(map.pathname, MMapPath::Path(_))
        && map.perms.contains(MMPermissions::READ | MMPermissions::PRIVATE)
        && !map.perms.contains(MMPermissions::WRITE)
        && map.extension.map.get("Anonymous") == Some(&0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_goes_on_running_without_its_code_in_memory() {
        for _ in 0..10 {
            forget_files().unwrap();
            assert_eq!("umawarden".chars().rev().collect::<String>(), "nedrawamu");
        }
    }

    #[test]
    fn code_is_mapped_in_parts() {
        if procfs::page_size() >= PART_BYTES as u64 {
            return;
        }
        // Parted once, and again.
        forget_files().unwrap();
        forget_files().unwrap();
        let maps = Process::myself().unwrap().maps().unwrap();
        let of_files = maps.into_iter().filter(|map| {
            matches!(map.pathname, MMapPath::Path(_)) && map.perms.contains(MMPermissions::EXECUTE)
        });
        let lengths: Vec<u64> = of_files.map(|map| map.address.1 - map.address.0).collect();
        assert!(lengths.iter().all(|length| *length <= PART_BYTES as u64), "{lengths:?}");
    }
}
