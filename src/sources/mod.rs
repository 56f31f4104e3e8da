//! Readers of the machine: a file for each observed thing.

mod bounded;
pub mod cluster;
pub mod deferred;
pub mod engines;
pub mod gpu;
pub mod holders;
pub mod kernel_log;
pub mod logged_in;
pub mod machine;
pub mod memory;
pub mod output_files;
pub mod process;

use std::path::Path;

use rustix::fs::{PROC_SUPER_MAGIC, statfs};

/// Whether a folder is a procfs: only then do other interfaces of this kernel belong to it.
pub fn is_procfs(folder: &Path) -> bool {
    statfs(folder).is_ok_and(|about| about.f_type == PROC_SUPER_MAGIC)
}
