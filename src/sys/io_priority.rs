//! The priority of a thread's disk requests.

use std::io;

/// `IOPRIO_WHO_PROCESS` of linux/ioprio.h; with the number 0 it is the calling thread.
const OF_THREAD: libc::c_int = 1;

/// `IOPRIO_PRIO_VALUE(IOPRIO_CLASS_BE, 7)`: the last of those that are served at all times. The
/// idle class would never be served beside a busy engine.
const LOWEST_BEST_EFFORT: libc::c_int = (2 << 13) | 7;

/// Serves the disk requests of the calling thread after those of all others of the best-effort
/// class, where the disk's scheduler has priorities (bfq, mq-deadline).
///
/// # Errors
///
/// A kernel without ioprio_set(2).
pub fn lower() -> io::Result<()> {
    // SAFETY: three numbers.
    let answer = unsafe { libc::syscall(libc::SYS_ioprio_set, OF_THREAD, 0, LOWEST_BEST_EFFORT) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threads_priority_is_lowered_and_no_others() {
        // SAFETY: two numbers.
        let now = || unsafe { libc::syscall(libc::SYS_ioprio_get, OF_THREAD, 0) };
        let before = now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                lower().unwrap();
                assert_eq!(now(), i64::from(LOWEST_BEST_EFFORT));
            });
        });
        assert_eq!(now(), before);
    }
}
