//! System calls without a safe wrapper: the only unsafe code. Free memory is here too, since
//! several modules read it without /proc.
#![expect(unsafe_code, reason = "each call says why it is sound")]

mod heap;

pub use heap::{give_freed_memory_back, reserve, share_freed_memory};

pub mod descriptors;

pub mod free_memory;

pub mod io_priority;

pub mod nvml;

pub mod page_cache;

pub mod page_tables;

pub mod process_end;

pub mod signals;

pub mod socket_queue;

use std::io;

use procfs::process::{MMPermissions, MMapPath, MemoryMap, Process};
use rustix::mm::{Advice, madvise};

/// The size of parts of code mappings: small enough that unused code stays out, large enough that 1
/// MiB of code has 64 mappings.
const PART_BYTES: usize = 16 << 10;

/// Drops clean file pages of this process, code above all, from its resident memory. They return
/// from the page cache on use. Afterwards locking memory locks little.
///
/// # Errors
///
/// The mappings cannot be read, or the kernel refuses, as it does while memory is locked. Running
/// code is not affected.
pub fn forget_files() -> io::Result<()> {
    let maps = Process::myself().and_then(|process| process.smaps()).map_err(io::Error::other)?;
    for map in maps.into_iter().filter(holds_what_its_file_holds) {
        let (from, to) = map.address;
        let from = usize::try_from(from).map_err(io::Error::other)?;
        let to = usize::try_from(to).map_err(io::Error::other)?;
        // SAFETY: a private read-only file mapping without pages of its own equals the file, so
        // that a
        // dropped page returns unchanged. Pages that the loader has written before it removed the
        // right
        // to write are the process's own.
        unsafe {
            madvise(std::ptr::without_provenance_mut(from), to - from, Advice::LinuxDontNeed)?;
        }
        if map.perms.contains(MMPermissions::EXECUTE) {
            part(from, to)?;
        }
    }
    Ok(())
}

/// Splits a mapping, so that the use of one page does not map sixteen around it (do_fault_around,
/// mm/memory.c). Scattered use would otherwise make nearly all code resident. Parts are separate
/// mappings as long as they differ: every second one by its address, so that a second call changes
/// nothing.
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
        // SAFETY: only excludes pages of a file from core dumps.
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
    fn the_program_goes_on_after_its_code_was_dropped_from_memory() {
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
        // Split once, and again.
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
