//! The allocator's cache of freed memory.

/// Limits the allocator to two arenas, instead of one per thread that each keep their peak. With
/// two, a thread that waits for a page during an allocation does not block all others. Must be
/// called before threads are started.
pub fn share_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: sets a number under the allocator's lock.
    unsafe {
        // Fails only if this libc lacks the parameter; then each thread has an arena.
        libc::mallopt(libc::M_ARENA_MAX, 2);
    }
}

/// Returns freed memory to the kernel.
pub fn give_freed_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the allocator returns only unused pages, under its own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocated_memory_survives_the_return_of_freed_memory() {
        let kept: Vec<Box<[u8; 5000]>> = (0..200).map(|_| Box::new([7; 5000])).collect();
        let freed: Vec<Box<[u8; 5000]>> = (0..200).map(|_| Box::new([8; 5000])).collect();
        drop(freed);
        give_freed_memory_back();
        assert!(kept.iter().all(|block| block.iter().all(|byte| *byte == 7)));
    }
}
