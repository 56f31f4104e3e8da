//! System calls that no library wraps safely: the only unsafe code.
#![expect(unsafe_code, reason = "each call says why it is sound")]

mod heap;

pub use heap::{give_freed_memory_back, share_freed_memory};

use std::io;

use procfs::process::{MMPermissions, MMapPath, Process};
use rustix::mm::{Advice, madvise};

/// Takes all code out of this process's resident memory. What is used comes back from the page
/// cache when it is next run; what only a start needs does not. Afterwards locking memory locks
/// little.
///
/// # Errors
///
/// The mappings cannot be read, or the kernel refuses; nothing has changed for what runs then.
pub fn forget_code() -> io::Result<()> {
    let maps = Process::myself().and_then(|process| process.maps()).map_err(io::Error::other)?;
    for map in maps {
        let is_file = matches!(map.pathname, MMapPath::Path(_));
        let is_code = map.perms.contains(MMPermissions::EXECUTE | MMPermissions::PRIVATE)
            && !map.perms.contains(MMPermissions::WRITE);
        if !is_file || !is_code {
            continue;
        }
        let (from, to) = map.address;
        let address = usize::try_from(from).map_err(io::Error::other)?;
        let length = usize::try_from(to - from).map_err(io::Error::other)?;
        // SAFETY: a private mapping of a file that is not writable holds what the file holds, so a
        // page that is dropped is the same when it comes back; relocations never touch code here.
        unsafe {
            madvise(std::ptr::without_provenance_mut(address), length, Advice::LinuxDontNeed)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_goes_on_running_without_its_code_in_memory() {
        for _ in 0..10 {
            forget_code().unwrap();
            assert_eq!("umawarden".chars().rev().collect::<String>(), "nedrawamu");
        }
    }
}
