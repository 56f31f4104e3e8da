//! What a process was given open by who started it.

/// Standard input, output and error.
const FIRST_OTHER: libc::c_uint = 3;

/// Closes everything but standard input, output and error. To be called before anything else has
/// opened a file.
pub fn close_inherited_descriptors() {
    // SAFETY: no value in this process owns a descriptor yet, since nothing has opened one. Where
    // the kernel has no such call (before Linux 5.9) they stay open, as they were.
    unsafe {
        libc::syscall(libc::SYS_close_range, FIRST_OTHER, libc::c_uint::MAX, 0 as libc::c_uint);
    }
}
