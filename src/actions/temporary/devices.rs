//! The disks below device names and paths.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor, stat, statfs};

use super::setting::Setting;

/// The disk below a name or a path is unknown.
#[derive(Debug, thiserror::Error)]
pub(super) enum DeviceError {
    /// There is no such device.
    #[error("there is no block device {name} in {}: {error}: `lsblk` lists them", folder.display())]
    UnknownDevice {
        /// The name or path in the rule.
        name: String,
        /// The searched folder.
        folder: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// The path cannot be read.
    #[error(
        "reading {path} failed: {error}: does it exist here, outside of the engine's container?"
    )]
    UnreadablePath {
        /// The name or path in the rule.
        path: String,
        /// The error of the system.
        error: io::Error,
    },
    /// The file system is on no single disk.
    #[error(
        "{path} is on {kind}, which is on no block device of its own: name the disks below it \
         (devices: [nvme0n1]) where there are any"
    )]
    NoDisk {
        /// The name or path in the rule.
        path: String,
        /// The file system.
        kind: String,
    },
}

/// The readahead of these disks and of those below these paths, each once.
pub(super) fn resolve(
    sysfs: &Path,
    devices: &[String],
    of: &[String],
) -> Result<Vec<Setting>, DeviceError> {
    let mut settings: Vec<Setting> = Vec::new();
    let named = devices.iter().map(|name| of_name(sysfs, name));
    for setting in named.chain(of.iter().map(|path| of_path(sysfs, path))) {
        let setting = setting?;
        if !settings.contains(&setting) {
            settings.push(setting);
        }
    }
    Ok(settings)
}

fn of_name(sysfs: &Path, name: &str) -> Result<Setting, DeviceError> {
    let folder = sysfs.join("class/block");
    let failed =
        |error| DeviceError::UnknownDevice { name: name.to_owned(), folder: folder.clone(), error };
    // A name comes from a rule file, which was checked; it is still only a name.
    if name.contains('/') || name == ".." {
        return Err(failed(io::Error::from(io::ErrorKind::InvalidInput)));
    }
    disk_of(&folder.join(name)).map_err(failed)
}

fn of_path(sysfs: &Path, path: &str) -> Result<Setting, DeviceError> {
    let failed = |error: rustix::io::Errno| DeviceError::UnreadablePath {
        path: path.to_owned(),
        error: error.into(),
    };
    let device = stat(path).map_err(failed)?.st_dev;
    let device = (major(device), minor(device));
    let disk = disk_of(&sysfs.join(format!("dev/block/{}:{}", device.0, device.1)));
    disk.or_else(|_| {
        let magic = statfs(path).map_err(failed)?.f_type;
        Err(DeviceError::NoDisk { path: path.to_owned(), kind: file_system(magic) })
    })
}

/// Readahead is a setting of whole disks: a partition has that of its disk. A mapped device (LVM,
/// dm-crypt, md) has its own, which applies to file systems on it instead of those of the disks
/// below.
fn disk_of(device: &Path) -> io::Result<Setting> {
    let mut folder = fs::canonicalize(device)?;
    if folder.join("partition").exists() {
        folder.pop();
    }
    let numbers = fs::read_to_string(folder.join("dev"))?;
    if !folder.join("queue/read_ahead_kb").exists() {
        return Err(io::Error::from(io::ErrorKind::NotFound));
    }
    let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Setting::ReadAhead { device: numbers.trim().to_owned(), name })
}

/// The name of a file system (statfs(2)) that has no block device, or several.
fn file_system(magic: impl TryInto<i64>) -> String {
    let magic = magic.try_into().unwrap_or_default();
    let known = match magic {
        0x794c_7630 => "overlayfs",
        0x6969 => "NFS",
        0x9123_683e => "btrfs",
        0x2fc1_2fc1 => "ZFS",
        0x6573_5546 => "FUSE",
        0x0102_1994 => "tmpfs",
        0x0102_1997 => "9p",
        0x00c3_6400 => "Ceph",
        0x0bd0_0bd0 => "Lustre",
        0xff53_4d42 | 0xfe53_4d42 => "CIFS",
        _ => return format!("a file system of type {magic:#x}"),
    };
    known.to_owned()
}
