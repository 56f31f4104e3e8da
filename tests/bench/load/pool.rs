//! 2 MiB pages from the kernel's hugetlb pool, which stand for a driver's memory.
//!
//! Growing the pool allocates as the driver does: `GFP_KERNEL | __GFP_RETRY_MAYFAIL`, no OOM
//! killer, and less than requested if the kernel finds no more. The pages are in no process's RSS.

use std::{fs, io};

/// The size of the pool, in pages.
pub const SIZE: &str = "/proc/sys/vm/nr_hugepages";

/// Bytes of one page.
pub const PAGE_BYTES: u64 = 2 << 20;

/// The pool; dropping it restores its size.
#[derive(Debug)]
pub struct Pool {
    before: u64,
}

impl Pool {
    /// Stores the present size of the pool.
    pub fn take_over() -> io::Result<Self> {
        let before = pages()?;
        fs::write(SIZE, before.to_string()).map_err(|error| {
            io::Error::new(error.kind(), format!("{SIZE}: {error}; run this as root"))
        })?;
        Ok(Self { before })
    }

    /// Shrinks the pool to its stored size.
    pub fn give_back(&self) {
        fs::write(SIZE, self.before.to_string()).unwrap();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // A failure at the very end cannot be reported.
        let _ = fs::write(SIZE, self.before.to_string());
    }
}

/// Requests `wanted` pages in all; returns the resulting number of pages.
pub fn grow_to(wanted: u64) -> io::Result<u64> {
    let have = pages()?;
    if wanted <= have {
        return Ok(have);
    }
    // The write fails if the kernel finds no further page at all.
    let _ = fs::write(SIZE, wanted.to_string());
    pages()
}

/// Pages in the pool.
pub fn pages() -> io::Result<u64> {
    let text = fs::read_to_string(SIZE)?;
    text.trim().parse().map_err(io::Error::other)
}
