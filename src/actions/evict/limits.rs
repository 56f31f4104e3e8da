//! What limits an eviction, and why.

use std::io;

use rustix::io::Errno;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct EvictionLimits {
    /// Why the page cache of the files cannot be read.
    pub(super) sight: Option<String>,
    /// Why mapped pages cannot be evicted.
    pub(super) page_out: Option<String>,
}

/// Why the page cache cannot be read.
pub(super) fn blind(error: &io::Error) -> String {
    let why = match Errno::from_io_error(error) {
        Some(Errno::NOSYS) => "the kernel is older than 6.5",
        Some(Errno::PERM | Errno::ACCESS) => "the files belong to another user: run as root",
        _ => "check the file system",
    };
    format!("what is cached cannot be seen (cachestat, on overlayfs mincore: {error}: {why})")
}

/// Why mapped pages cannot be evicted.
pub(super) fn unable(error: &io::Error) -> String {
    let why = match Errno::from_io_error(error) {
        Some(Errno::NOSYS) => "the kernel is older than 5.10",
        Some(Errno::PERM | Errno::ACCESS) => {
            "run as root, or with CAP_SYS_NICE, CAP_SYS_PTRACE and CAP_FOWNER"
        }
        _ => "the kernel does not do that",
    };
    format!("mapped pages stay (process_madvise: {error}: {why})")
}
