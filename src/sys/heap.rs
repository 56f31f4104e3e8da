//! What the allocator keeps of memory that was freed.

/// Has threads share two places for freed memory, instead of one a thread that each keeps what its
/// busiest moment took. Two, so that one thread that waits for a page while it allocates does not
/// hold up all. To be called before there are threads.
pub fn share_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: sets a number under the allocator's own lock.
    unsafe {
        // Fails only for a parameter that this libc does not know: then there is one a thread.
        libc::mallopt(libc::M_ARENA_MAX, 2);
    }
}

/// Gives freed memory back to the kernel; what a start took is not needed again.
pub fn give_freed_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the allocator gives back only pages that hold nothing, under its own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_use_stays_when_freed_memory_is_given_back() {
        let kept: Vec<Box<[u8; 5000]>> = (0..200).map(|_| Box::new([7; 5000])).collect();
        let freed: Vec<Box<[u8; 5000]>> = (0..200).map(|_| Box::new([8; 5000])).collect();
        drop(freed);
        give_freed_memory_back();
        assert!(kept.iter().all(|block| block.iter().all(|byte| *byte == 7)));
    }
}
