//! Huge pages that no process maps or has open: a file in a hugetlbfs.
//!
//! The kernel allocates them on demand, beyond the pool (`nr_overcommit_hugepages`).

use std::fs::{self, OpenOptions};
use std::io;
use std::process::{Command, Stdio};

use rustix::fs::{FallocateFlags, fallocate};

const FOLDER: &str = "/tmp/umawarden-bench-huge-pages";
const FILE: &str = "/tmp/umawarden-bench-huge-pages/taken";

/// How many pages may be taken beyond the pool.
const BEYOND: &str = "/proc/sys/vm/nr_overcommit_hugepages";

/// Mounts the hugetlbfs, without files of an earlier run. Returns the argument for [`unmount`].
pub fn mount() -> String {
    let before = fs::read_to_string(BEYOND).unwrap().trim().to_owned();
    unmount(&before);
    fs::write(BEYOND, "1000000").unwrap();
    fs::create_dir_all(FOLDER).unwrap();
    let mounted = Command::new("mount").args(["-t", "hugetlbfs", "none", FOLDER]).status();
    assert!(mounted.unwrap().success(), "hugetlbfs cannot be mounted; run this as root");
    before
}

/// Frees the pages and restores all settings.
pub fn unmount(before: &str) {
    clear();
    fs::write(BEYOND, before).unwrap();
    // It may not be there.
    let _ = Command::new("umount").args(["-q", "--lazy", FOLDER]).stderr(Stdio::null()).status();
    let _ = fs::remove_dir(FOLDER);
}

/// Frees the pages of the file.
pub fn clear() {
    // It may not be there.
    let _ = fs::remove_file(FILE);
}

/// Extends the file to that size.
pub fn extend_to(bytes: u64) -> io::Result<()> {
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(FILE)?;
    Ok(fallocate(&file, FallocateFlags::empty(), 0, bytes)?)
}
