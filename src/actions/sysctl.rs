//! Writes files below `/proc/sys`.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, PROC_SUPER_MAGIC, fstatfs};
use rustix::io::Errno;

/// A sysctl could not be written.
#[derive(Debug, thiserror::Error)]
#[error("writing {value} to {} failed: {error}: {}", path.display(), remedy(error))]
pub(super) struct SysctlError {
    path: PathBuf,
    value: &'static str,
    error: io::Error,
}

/// A file below `/proc/sys` that may be kept open, so that writing it needs no memory.
#[derive(Debug)]
pub(super) struct Sysctl {
    path: PathBuf,
    kept: Option<File>,
}

impl Sysctl {
    /// `<procfs>/sys/<name>`; nothing is opened yet.
    pub(super) fn new(procfs: &Path, name: &str) -> Self {
        Self { path: procfs.join("sys").join(name), kept: None }
    }

    /// Opens the file beforehand, if possible and not done yet. Only a file of a proc file system
    /// is kept: it is always the same one, and any other may be replaced.
    pub(super) fn open(&mut self) {
        let is_of_proc =
            |file: &File| fstatfs(file).is_ok_and(|system| system.f_type == PROC_SUPER_MAGIC);
        if self.kept.is_none() {
            // A pipe at this path would block.
            let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
            let opened = rustix::fs::open(&self.path, flags, Mode::empty());
            self.kept = opened.ok().map(File::from).filter(is_of_proc);
        }
    }

    /// Writes `value`, in one write; never creates or truncates a file.
    pub(super) fn write(&mut self, value: &'static str) -> Result<(), SysctlError> {
        if let Some(file) = &self.kept {
            // The kernel ignores writes at any other offset than 0.
            if file.write_all_at(value.as_bytes(), 0).is_ok() {
                return Ok(());
            }
            self.kept = None;
        }
        let opened = OpenOptions::new().write(true).open(&self.path);
        opened.and_then(|mut file| file.write_all(value.as_bytes())).map_err(|error| SysctlError {
            path: self.path.clone(),
            value,
            error,
        })
    }
}

/// The remedy of an error. The kernel compares the writer's effective uid with 0 of the initial
/// user namespace and asks for no capability (`test_perm` in fs/proc/proc_sysctl.c), so
/// CAP_SYS_ADMIN and CAP_DAC_OVERRIDE are of no use, and none is needed.
fn remedy(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::ACCESS | Errno::PERM) => {
            "run as uid 0 of the host (no capability replaces it, and root in a user \
             namespace is not enough)"
        }
        Some(Errno::ROFS) => {
            "/proc/sys is mounted read-only: with the packaged unit `umawarden print drop-in \
             memory`; in a container run privileged, or mount the host's /proc and name it with \
             --path.procfs"
        }
        Some(Errno::NOENT) => {
            "this kernel does not offer it (compact_memory needs CONFIG_COMPACTION), or \
             --path.procfs does not name a procfs"
        }
        _ => "check the file and --path.procfs",
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_kernel_file_is_kept_open_and_written_from_its_start() {
        // Names this process' first thread, and nothing else.
        let mut name = Sysctl::new(Path::new("/proc"), "../self/comm");
        name.open();
        assert!(name.kept.is_some());
        for value in ["kept-open-one", "kept-two"] {
            name.write(value).unwrap();
            assert_eq!(fs::read_to_string("/proc/self/comm").unwrap().trim(), value);
        }
    }

    #[test]
    fn a_kept_file_is_reopened_after_a_failed_write() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("sys")).unwrap();
        fs::write(folder.path().join("sys/name"), "").unwrap();
        let mut name = Sysctl::new(folder.path(), "name");
        // Open for reading only.
        name.kept = Some(File::open(folder.path().join("sys/name")).unwrap());
        name.write("1").unwrap();
        assert!(name.kept.is_none());
        assert_eq!(fs::read_to_string(folder.path().join("sys/name")).unwrap(), "1");
    }
}
