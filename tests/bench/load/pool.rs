//! 2 MiB pages from the kernel's hugetlb pool, which stand for a driver's memory.
//!
//! Growing the pool allocates as the driver does: `GFP_KERNEL | __GFP_RETRY_MAYFAIL`, no OOM killer,
//! and less than asked for where the kernel finds no more. The pages are in nobody's RSS.

use std::{fs, io};

/// The size of the pool, in pages.
pub const SIZE: &str = "/proc/sys/vm/nr_hugepages";

/// Bytes of one page.
pub const PAGE_BYTES: u64 = 2 << 20;

/// The pool; it has its old size again when this ends.
#[derive(Debug)]
pub struct Pool {
    before: u64,
}

impl Pool {
    /// Remembers its size.
    pub fn take_over() -> io::Result<Self> {
        let before = pages()?;
        fs::write(SIZE, before.to_string()).map_err(|error| {
            io::Error::new(error.kind(), format!("{SIZE}: {error}; run this as root"))
        })?;
        Ok(Self { before })
    }

    /// Gives back what an engine has taken.
    pub fn give_back(&self) {
        fs::write(SIZE, self.before.to_string()).unwrap();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // At the end of everything there is nobody left to tell.
        let _not_given_back = fs::write(SIZE, self.before.to_string());
    }
}

/// Asks for `wanted` pages in all; returns how many there are then.
pub fn grow_to(wanted: u64) -> io::Result<u64> {
    let have = pages()?;
    if wanted <= have {
        return Ok(have);
    }
    // Refused outright where not one page more was found, which is an answer too.
    let _refused = fs::write(SIZE, wanted.to_string());
    pages()
}

/// Pages in the pool.
pub fn pages() -> io::Result<u64> {
    let text = fs::read_to_string(SIZE)?;
    text.trim().parse().map_err(io::Error::other)
}
