//! The allocator's cache of freed memory.

use std::hint::black_box;

/// The arenas of all threads together.
const ARENAS: usize = 2;

/// Freed memory that an arena keeps, at the end of its heap.
const KEPT_BYTES: i32 = 2 << 20;

/// Memory that [`reserve`] has each arena keep. Fifty scrapes and API requests took 0.9 MiB.
const RESERVED_BLOCKS: usize = 16;
/// Below the size at which each block is a mapping of its own.
const BLOCK_BYTES: usize = 64 << 10;

/// Limits the allocator to two arenas, instead of one per thread that each keep their peak. With
/// two, a thread that waits for a page during an allocation does not block all others. Must be
/// called before threads are started.
pub fn share_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: each sets a number under the allocator's lock.
    unsafe {
        // Fails only if this libc lacks the parameter; then each thread has an arena.
        libc::mallopt(libc::M_ARENA_MAX, ARENAS as i32);
        // Without it a thread returns what it frees beyond 128 KiB at once.
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES);
    }
}

/// Has each arena keep a MiB of pages, so that requests in a shortage take none from the kernel,
/// which would look for a victim then. An arena is shared: new threads use them in turn.
pub fn reserve() {
    std::thread::scope(|scope| {
        for _ in 0..ARENAS {
            // Without another thread less is reserved.
            let _ = std::thread::Builder::new().spawn_scoped(scope, || {
                let blocks = (0..RESERVED_BLOCKS).map(|_| vec![1_u8; BLOCK_BYTES]);
                drop(black_box(blocks.collect::<Vec<_>>()));
            });
        }
    });
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

    /// Pages that the kernel gives this thread for half of a reserve.
    fn pages_taken() -> u64 {
        let faults = || {
            let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            let behind_name = stat.rsplit_once(") ").unwrap().1;
            behind_name.split(' ').nth(7).unwrap().parse::<u64>().unwrap()
        };
        let before = faults();
        let blocks = (0..RESERVED_BLOCKS / 2).map(|_| vec![1_u8; BLOCK_BYTES]);
        drop(black_box(blocks.collect::<Vec<_>>()));
        faults() - before
    }

    /// Tests of other threads share the heap: this one runs again, in a process of its own.
    #[test]
    fn allocations_after_a_reserve_take_hardly_a_page() {
        const ALONE: &str = "UMAWARDEN_TEST_ALONE";
        if std::env::var_os(ALONE).is_none() {
            let name = "sys::heap::tests::allocations_after_a_reserve_take_hardly_a_page";
            let mut own = std::process::Command::new(std::env::current_exe().unwrap());
            own.args(["--exact", name, "--test-threads=1"]).env(ALONE, "1");
            let output = own.output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            return assert!(output.status.success() && text.contains("1 passed"), "{text}");
        }
        share_freed_memory();
        give_freed_memory_back();
        let without = pages_taken();
        give_freed_memory_back();
        reserve();
        let with = pages_taken();
        assert!(without > 4 * with.max(1), "{without} pages without the reserve, {with} with it");
    }
}
