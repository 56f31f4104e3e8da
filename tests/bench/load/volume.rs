//! A file system of its own for the checkpoint, in an image below a loop device.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

/// The images and where they are mounted.
const FOLDER: &str = "target/bench";

/// What is measured.
const MOUNTED: &str = "mounted";

/// The file system below overlayfs.
const BELOW: &str = "below";

/// Attempts to unmount, 100 ms apart: killed engines end meanwhile.
const ATTEMPTS: usize = 100;

/// A file system that is made for a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filesystem {
    Ext4,
    Xfs,
    /// Its page cache has no large folios.
    Btrfs,
    /// On ext4; as in a container's own file system.
    Overlay,
}

impl Filesystem {
    pub const ALL: [Self; 4] = [Self::Ext4, Self::Xfs, Self::Btrfs, Self::Overlay];

    pub fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
            Self::Overlay => "overlay",
        }
    }

    /// The file system of the image.
    fn of_image(self) -> &'static str {
        match self {
            Self::Overlay => "ext4",
            other => other.name(),
        }
    }

    fn folder(self) -> PathBuf {
        Path::new(FOLDER).join(self.name())
    }

    /// Where it is mounted.
    pub fn directory(self) -> PathBuf {
        self.folder().join(MOUNTED)
    }
}

/// A mounted image; unmounted and removed when dropped.
#[derive(Debug)]
pub struct Volume {
    folder: PathBuf,
    /// The number of the loop device.
    device: u64,
}

impl Volume {
    /// Mounts a new image of that size.
    pub fn mount(filesystem: Filesystem, bytes: u64) -> Result<Self, String> {
        let folder = filesystem.folder();
        // What a run left that was killed with SIGKILL.
        clear(&folder);
        // Cleared also after a step that fails.
        let mut volume = Self { folder, device: 0 };
        volume.device = volume.make(filesystem, bytes)?;
        Ok(volume)
    }

    pub fn device(&self) -> u64 {
        self.device
    }

    /// Returns the number of the loop device.
    fn make(&self, filesystem: Filesystem, bytes: u64) -> Result<u64, String> {
        let image = self.folder.join("image");
        let [below, mounted] = [BELOW, MOUNTED].map(|name| self.folder.join(name));
        let failed = |error: io::Error| format!("{}: {error}", image.display());
        fs::create_dir_all(&below).map_err(failed)?;
        fs::create_dir_all(&mounted).map_err(failed)?;
        File::create(&image).and_then(|file| file.set_len(bytes)).map_err(failed)?;
        let kind = filesystem.of_image();
        run(Command::new(format!("mkfs.{kind}")).arg("-q").arg(&image))?;
        // Otherwise the image would be cached, too.
        let attach = ["--find", "--show", "--direct-io=on"];
        let device = run(Command::new("losetup").args(attach).arg(&image))?;
        let at = if filesystem == Filesystem::Overlay { &below } else { &mounted };
        let is_mounted = run(Command::new("mount").args(["-t", kind, &device]).arg(at));
        // A mounted device goes once it is unmounted.
        run(Command::new("losetup").args(["--detach", &device]))?;
        is_mounted?;
        if filesystem == Filesystem::Overlay {
            let layers = ["lower", "upper", "work"].map(|name| below.join(name));
            layers.iter().try_for_each(fs::create_dir).map_err(failed)?;
            let [lower, upper, work] = layers.each_ref().map(|layer| layer.display());
            let layers = format!("lowerdir={lower},upperdir={upper},workdir={work}");
            let options = ["-t", "overlay", "overlay", "-o", &layers];
            run(Command::new("mount").args(options).arg(&mounted))?;
        }
        Ok(fs::metadata(&device).map_err(failed)?.rdev())
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        clear(&self.folder);
    }
}

/// Runs a command; returns its output.
fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{command:?}: {}", error.trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn clear(folder: &Path) {
    let is_unmounted = unmount(&folder.join(MOUNTED)) && unmount(&folder.join(BELOW));
    if is_unmounted
        && folder.exists()
        && let Err(error) = fs::remove_dir_all(folder)
    {
        eprintln!("{} stays: {error}", folder.display());
    }
}

/// Whether nothing is mounted there any more.
fn unmount(folder: &Path) -> bool {
    for _ in 0..ATTEMPTS {
        if !is_mount_point(folder) {
            return true;
        }
        // It is tried again.
        let _ = Command::new("umount").arg(folder).stderr(Stdio::null()).status();
        sleep(Duration::from_millis(100));
    }
    eprintln!("{} stays mounted: unmount it", folder.display());
    false
}

fn is_mount_point(folder: &Path) -> bool {
    let device = |path: &Path| fs::metadata(path).map(|found| found.dev());
    let (Ok(inside), Some(Ok(outside))) = (device(folder), folder.parent().map(device)) else {
        return false;
    };
    inside != outside
}
