//! A slow disk: a control group that limits what the measured processes read from it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

const NAME: &str = "umawarden-bench-load";

/// The controller of cgroup v1; where it is missing, that of cgroup v2 is used.
const V1: &str = "/sys/fs/cgroup/blkio";
const V2: &str = "/sys/fs/cgroup";

/// Attempts to remove the group, 100 ms apart: killed processes end meanwhile.
const ATTEMPTS: usize = 100;

/// The control group with the limit; removed when dropped.
#[derive(Debug)]
pub struct ReadLimit {
    folder: PathBuf,
}

fn is_v1() -> bool {
    Path::new(V1).is_dir()
}

fn folder() -> PathBuf {
    Path::new(if is_v1() { V1 } else { V2 }).join(NAME)
}

/// Moves this process into the control group, and with it those that it starts.
pub fn enter() -> io::Result<()> {
    fs::write(folder().join("cgroup.procs"), "0")
}

impl ReadLimit {
    /// Limits reads from a block device to so many bytes a second.
    pub fn set(device: u64, bytes: u64) -> Result<Self, String> {
        let disk = disk_of(device)?;
        let folder = folder();
        let failed = |error: io::Error| format!("{}: {error}", folder.display());
        let (file, limit) = if is_v1() {
            ("blkio.throttle.read_bps_device", format!("{disk} {bytes}"))
        } else {
            let controllers = Path::new(V2).join("cgroup.subtree_control");
            fs::write(controllers, "+io").map_err(failed)?;
            ("io.max", format!("{disk} rbps={bytes}"))
        };
        fs::create_dir_all(&folder).map_err(failed)?;
        // Removed also if the limit is refused.
        let made = Self { folder: folder.clone() };
        fs::write(folder.join(file), limit).map_err(failed)?;
        Ok(made)
    }
}

impl Drop for ReadLimit {
    fn drop(&mut self) {
        for _ in 0..ATTEMPTS {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            sleep(Duration::from_millis(100));
        }
        eprintln!("{} stays: remove it", self.folder.display());
    }
}

/// The numbers of the disk that has this partition, or is this device: limits are of whole disks.
fn disk_of(device: u64) -> Result<String, String> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let mut folder = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).map_err(|_| {
        "the directory is on no block device of its own, which --read-limit needs: use --filesystem"
    })?;
    if folder.join("partition").exists() {
        folder.pop();
    }
    let numbers = fs::read_to_string(folder.join("dev"));
    let numbers = numbers.map_err(|error| format!("{}/dev: {error}", folder.display()))?;
    Ok(numbers.trim().to_owned())
}
