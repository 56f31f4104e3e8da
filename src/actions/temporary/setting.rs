//! One setting: its path, its value, and writing it.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::pause;
use crate::model::{ENGINE_PAUSE, EngineTarget, READ_AHEAD, Sysctl};

/// A setting that can be changed temporarily.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Setting {
    /// A sysctl below `/proc/sys`.
    Sysctl(Sysctl),
    /// The readahead of a disk.
    ReadAhead {
        /// The device numbers, `259:0`.
        device: String,
        /// The name, `nvme0n1`: numbers are reused for other disks.
        name: String,
    },
    /// The pause of an engine.
    EnginePause(Box<EngineTarget>),
}

/// A setting could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{doing} {setting} ({}) failed: {error}: {}", path.display(), remedy(error, setting))]
pub(super) struct SettingError {
    doing: String,
    setting: Setting,
    path: PathBuf,
    error: io::Error,
}

impl SettingError {
    /// Whether the setting no longer exists.
    pub(super) fn is_gone(&self) -> bool {
        self.error.kind() == io::ErrorKind::NotFound
    }
}

/// Mount points of procfs and sysfs.
#[derive(Clone, Debug)]
pub(super) struct SettingMounts {
    pub(super) procfs: PathBuf,
    pub(super) sysfs: PathBuf,
}

impl Setting {
    /// The `setting` label.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Sysctl(sysctl) => sysctl.name(),
            Self::ReadAhead { .. } => READ_AHEAD,
            Self::EnginePause(_) => ENGINE_PAUSE,
        }
    }

    fn path(&self, mounts: &SettingMounts) -> PathBuf {
        match self {
            Self::Sysctl(sysctl) => mounts.procfs.join("sys").join(sysctl.path()),
            Self::ReadAhead { device, .. } => {
                mounts.sysfs.join("dev/block").join(device).join("queue/read_ahead_kb")
            }
            Self::EnginePause(engine) => {
                PathBuf::from(engine.health_url.as_deref().unwrap_or_default())
            }
        }
    }

    /// The present value, without the line end.
    pub(super) fn read(&self, mounts: &SettingMounts) -> Result<String, SettingError> {
        let path = self.path(mounts);
        let read = match self {
            Self::EnginePause(engine) => pause::state(mounts, engine),
            _ => self.is_still_there(mounts).and_then(|()| fs::read_to_string(&path)),
        };
        let failed = |error| SettingError {
            doing: "reading".to_owned(),
            setting: self.clone(),
            path,
            error,
        };
        read.map(|text| text.trim().to_owned()).map_err(failed)
    }

    /// Writes a value, in one write; never creates or truncates a file.
    pub(super) fn write(&self, mounts: &SettingMounts, value: &str) -> Result<(), SettingError> {
        let path = self.path(mounts);
        let (written, doing) = match self {
            Self::EnginePause(engine) => (pause::resume(mounts, engine), "resuming it:".to_owned()),
            _ => {
                let file = OpenOptions::new().write(true).open(&path);
                let written = file.and_then(|mut file| file.write_all(value.as_bytes()));
                (written, format!("writing {value} to"))
            }
        };
        written.map_err(|error| SettingError { doing, setting: self.clone(), path, error })
    }

    fn is_still_there(&self, mounts: &SettingMounts) -> io::Result<()> {
        let Self::ReadAhead { device, name } = self else { return Ok(()) };
        let disk = fs::canonicalize(mounts.sysfs.join("dev/block").join(device))?;
        match disk.file_name().is_some_and(|found| found == Path::new(name)) {
            true => Ok(()),
            false => Err(io::Error::from(io::ErrorKind::NotFound)),
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sysctl(sysctl) => sysctl.fmt(f),
            Self::ReadAhead { name, .. } => write!(f, "{READ_AHEAD} of {name}"),
            Self::EnginePause(engine) => write!(f, "engine {}", engine.name),
        }
    }
}

fn remedy(error: &io::Error, setting: &Setting) -> &'static str {
    match (Errno::from_io_error(error), setting) {
        (_, Setting::EnginePause(_)) => {
            "the resume is retried, at the end and at the next start too; `curl -X POST \
             ORIGIN/continue_generation -H 'Content-Type: application/json' -d '{}'` does the same"
        }
        (Some(Errno::ACCESS | Errno::PERM), Setting::Sysctl(_)) => {
            "run as uid 0 of the host (no capability replaces it, and root in a user \
             namespace is not enough)"
        }
        (Some(Errno::ACCESS | Errno::PERM), Setting::ReadAhead { .. }) => {
            "run as uid 0 of the host"
        }
        (Some(Errno::ROFS), _) => {
            "it is mounted read-only: with the packaged unit `umawarden print drop-in memory`; in \
             a container run privileged, or mount the host's /proc and /sys and name them with \
             --path.procfs and --path.sysfs"
        }
        (Some(Errno::INVAL), _) => "this kernel does not take that value",
        (Some(Errno::NOENT), Setting::Sysctl(_)) => {
            "this kernel does not offer it, or --path.procfs does not name a procfs"
        }
        (Some(Errno::NOENT), Setting::ReadAhead { .. }) => {
            "the disk has gone, or --path.sysfs does not name a sysfs"
        }
        _ => "check the file, --path.procfs and --path.sysfs",
    }
}
