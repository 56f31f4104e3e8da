//! Finds the daemon's storage folder, the same way for all commands.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::config::flags::{LoadFlags, RunFlags};
use crate::config::reader::{environment, load_settings};
use crate::config::settings::{Environment, Settings};
use crate::files::open_regular;
use crate::journal::FILE_NAME;

/// The folder of packaged daemons.
const USUAL_FOLDER: &str = "/var/lib/umawarden";

/// The daemon's storage.
#[derive(Clone, Debug, Default, Args)]
pub struct StorageArguments {
    /// The daemon's storage folder [default: that of the configuration file, else systemd's state
    /// directory, else ./data, else /var/lib/umawarden].
    #[arg(long = "storage.path", value_name = "FOLDER")]
    pub storage_path: Option<PathBuf>,

    /// The daemon's configuration file [default: /etc/umawarden/umawarden.yaml if it exists].
    #[arg(long = "config.file", value_name = "FILE")]
    pub config_file: Option<PathBuf>,
}

impl StorageArguments {
    /// The folder.
    ///
    /// # Errors
    /// The configuration file cannot be used.
    pub(super) fn folder(&self) -> anyhow::Result<PathBuf> {
        Ok(self.settings(RunFlags::default())?.storage.path)
    }

    /// The daemon's settings with these flags. If nothing names a folder and there is none here,
    /// those of a packaged daemon.
    ///
    /// # Errors
    /// The configuration file cannot be used.
    pub(super) fn settings(&self, flags: RunFlags) -> anyhow::Result<Settings> {
        self.settings_in(flags, &environment(), Path::new(USUAL_FOLDER))
    }

    fn settings_in(
        &self,
        flags: RunFlags,
        environment: &Environment,
        usual: &Path,
    ) -> anyhow::Result<Settings> {
        let mut flags = RunFlags {
            load: LoadFlags { config_file: self.config_file.clone(), ..flags.load },
            storage_path: self.storage_path.clone(),
            ..flags
        };
        let settings = load_settings(&flags, environment)?;
        let is_default = self.storage_path.is_none()
            && environment.state_directory.is_none()
            && settings.storage.path == Path::new("data");
        if is_default && !settings.storage.path.exists() && usual.exists() {
            flags.storage_path = Some(usual.to_owned());
            return Ok(load_settings(&flags, environment)?);
        }
        Ok(settings)
    }
}

/// Checks that this user may read the folder. Other errors show later.
///
/// # Errors
/// Permission denied, with the remedy.
pub(super) fn may_be_read(folder: &Path) -> anyhow::Result<()> {
    let path = folder.join(FILE_NAME);
    match open_regular(&path) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Err(forbidden(&path, &error)),
        _ => Ok(()),
    }
}

/// The error for a file of the daemon that this user may not read.
pub(super) fn forbidden(path: &Path, error: &std::io::Error) -> anyhow::Error {
    anyhow::anyhow!(
        "cannot read {}: {error}; the daemon makes its directory for its own user and group (mode \
         0750), so use sudo, or join the directory's group",
        path.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_storage_path_comes_from_flag_file_environment_or_default_in_this_order() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("umawarden.yaml");
        std::fs::write(&file, "storage: {path: state}\n").unwrap();
        let found = |flag: Option<&str>, file: Option<&Path>, environment: Option<&str>| {
            let arguments = StorageArguments {
                storage_path: flag.map(PathBuf::from),
                config_file: file.map(Path::to_owned),
            };
            let environment = Environment {
                state_directory: environment.map(PathBuf::from),
                ..Environment::default()
            };
            let flags = RunFlags::default();
            arguments.settings_in(flags, &environment, folder.path()).unwrap().storage.path
        };
        assert_eq!(found(Some("/flag"), Some(&file), Some("/unit")), Path::new("/flag"));
        assert_eq!(found(None, Some(&file), Some("/unit")), folder.path().join("state"));
        assert_eq!(found(None, None, Some("/unit")), Path::new("/unit"));
        // Tests run in the repository, which has no ./data.
        assert_eq!(found(None, None, None), folder.path());
        assert_eq!(found(Some("data"), None, None), Path::new("data"), "what is named stays");
    }
}
