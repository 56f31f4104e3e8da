//! `memory.reclaim` of a control group (Documentation/admin-guide/cgroup-v2.rst), and on cgroup v1
//! `memory.force_empty`.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::cgroup::open_below;
use crate::model::Target;

/// Memory could not be reclaimed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReclaimError {
    /// The target is no path of a control group.
    #[error("{0:?} names no control group: it must begin with / and must not lead out")]
    NotAGroup(String),
    /// No hierarchy has the memory controller.
    #[error(
        "no memory controller below {}: mount the host's /sys and give --path.sysfs",
        .0.display()
    )]
    NoController(PathBuf),
    /// The file could not be opened or written.
    #[error("{doing} {} failed: {error}: {}", path.display(), remedy(error))]
    Failed {
        /// The step, for the text.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// The kernel reclaimed less than requested.
    #[error("less than {bytes} bytes could be reclaimed: the rest is in use, or needs swap")]
    Less {
        /// The requested bytes.
        bytes: u64,
    },
}

/// Reclaims memory of a control group and the groups below it. On cgroup v1 the kernel takes no
/// amount: it reclaims all that it can.
pub(super) fn perform(sysfs: &Path, cgroup: &str, bytes: u64) -> Result<(), ReclaimError> {
    if !Target::is_cgroup_path(cgroup) {
        return Err(ReclaimError::NotAGroup(cgroup.to_owned()));
    }
    let root = sysfs.join("fs/cgroup");
    // Only the root of a v2 hierarchy lists its controllers.
    let (root, name) = if root.join("cgroup.controllers").exists() {
        (root, "memory.reclaim")
    } else if root.join("memory").is_dir() {
        (root.join("memory"), "memory.force_empty")
    } else {
        return Err(ReclaimError::NoController(root));
    };
    let below = Path::new(cgroup.trim_start_matches('/')).join(name);
    let path = root.join(&below);
    let failed =
        |doing, error: io::Error| ReclaimError::Failed { doing, path: path.clone(), error };
    let mut file =
        open_below(&root, &below, OFlags::WRONLY).map_err(|error| failed("opening", error))?;
    let value = if name == "memory.reclaim" { bytes.to_string() } else { "0".to_owned() };
    // One write: a second one would request as much again.
    match file.write(value.as_bytes()) {
        Ok(_) => Ok(()),
        Err(error) if Errno::from_io_error(&error) == Some(Errno::AGAIN) => {
            Err(ReclaimError::Less { bytes })
        }
        Err(error) => Err(failed("writing", error)),
    }
}

fn remedy(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::NOENT) => {
            "the control group has gone, or the kernel is older than 5.19 and has no memory.reclaim"
        }
        Some(Errno::ACCESS | Errno::PERM) => "run as uid 0 of the host",
        Some(Errno::ROFS) => "mount the host's /sys/fs/cgroup writable",
        Some(Errno::INVAL) => "the kernel does not do that for this control group",
        Some(Errno::LOOP | Errno::XDEV) => "the path leads out of the hierarchy",
        _ => "check the file and --path.sysfs",
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;

    /// A hierarchy with one control group, `/a.slice/b.service`, and its file.
    fn hierarchy(v2: bool) -> (TempDir, PathBuf) {
        let sysfs = TempDir::new().unwrap();
        let root = sysfs.path().join("fs/cgroup");
        let (root, name) = if v2 {
            fs::create_dir_all(&root).unwrap();
            fs::write(root.join("cgroup.controllers"), "memory").unwrap();
            (root, "memory.reclaim")
        } else {
            (root.join("memory"), "memory.force_empty")
        };
        let folder = root.join("a.slice/b.service");
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join(name);
        fs::write(&file, "").unwrap();
        (sysfs, file)
    }

    #[test]
    fn the_amount_is_written_where_the_kernel_takes_one() {
        for (v2, written) in [(true, "1048576"), (false, "0")] {
            let (sysfs, file) = hierarchy(v2);
            perform(sysfs.path(), "/a.slice/b.service", 1 << 20).unwrap();
            assert_eq!(fs::read_to_string(file).unwrap(), written);
        }
    }

    #[test]
    fn nothing_outside_the_hierarchy_is_written() {
        let (sysfs, file) = hierarchy(true);
        let outside = sysfs.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("memory.reclaim"), "").unwrap();
        let link = sysfs.path().join("fs/cgroup/link");
        std::os::unix::fs::symlink(&outside, &link).unwrap();
        for hostile in ["/../../outside", "../outside", "/a.slice/../../outside", "/link", "", "x"]
        {
            let error = perform(sysfs.path(), hostile, 1).unwrap_err().to_string();
            assert!(error.contains("control group") || error.contains("leads out"), "{error}");
        }
        assert_eq!(fs::read_to_string(outside.join("memory.reclaim")).unwrap(), "");
        assert_eq!(fs::read_to_string(file).unwrap(), "");
    }

    #[test]
    fn a_missing_control_group_is_an_error_and_is_not_created() {
        let (sysfs, _) = hierarchy(true);
        let error = perform(sysfs.path(), "/gone.service", 1).unwrap_err().to_string();
        assert!(
            error.contains("gone.service/memory.reclaim") && error.contains("has gone"),
            "{error}"
        );
        assert!(!sysfs.path().join("fs/cgroup/gone.service").exists());
        let nothing = TempDir::new().unwrap();
        let error = perform(nothing.path(), "/a", 1).unwrap_err().to_string();
        assert!(error.contains("no memory controller"), "{error}");
    }
}
