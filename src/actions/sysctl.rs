//! Writing a file below `/proc/sys`.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// A sysctl could not be written.
#[derive(Debug, thiserror::Error)]
#[error("writing {value} to {} failed: {error}: {}", path.display(), remedy(error))]
pub(super) struct SysctlError {
    path: PathBuf,
    value: &'static str,
    error: io::Error,
}

/// Writes `value` to `<procfs>/sys/<name>`, in one write; never creates or truncates a file.
pub(super) fn write(procfs: &Path, name: &str, value: &'static str) -> Result<(), SysctlError> {
    let path = procfs.join("sys").join(name);
    let written = OpenOptions::new()
        .write(true)
        .open(&path)
        .and_then(|mut file| file.write_all(value.as_bytes()));
    written.map_err(|error| SysctlError { path, value, error })
}

/// What to do about it. The kernel compares the writer's effective uid with 0 of the initial user
/// namespace and asks for no capability (`test_perm` in fs/proc/proc_sysctl.c), so CAP_SYS_ADMIN
/// and CAP_DAC_OVERRIDE are of no use, and none is needed.
fn remedy(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::ACCESS | Errno::PERM) => {
            "run as uid 0 of the host (no capability stands in for it, and root in a user \
             namespace is not enough)"
        }
        Some(Errno::ROFS) => {
            "/proc is mounted read-only, as containers do: run privileged, or mount the host's \
             /proc and name it with --path.procfs"
        }
        Some(Errno::NOENT) => {
            "this kernel does not offer it (compact_memory needs CONFIG_COMPACTION), or \
             --path.procfs does not name a procfs"
        }
        _ => "look at the file, and at what --path.procfs names",
    }
}
