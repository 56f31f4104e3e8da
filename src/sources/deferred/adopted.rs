//! The containers that `umawarden adopt` has taken over, in a file in the storage folder. Labels of
//! an existing container cannot be changed, so that the daemon reads this file.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::StartNeed;

/// A longer file is not ours.
const MAX_BYTES: u64 = 1 << 20;

/// Its name in the storage folder.
const NAME: &str = "adopted.json";

/// The content of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdoptedContainers {
    /// The version of its format.
    #[serde(default)]
    pub version: u32,
    /// By container id.
    #[serde(default)]
    pub containers: BTreeMap<String, AdoptedContainer>,
}

/// A container whose restarts were taken over from Docker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdoptedContainer {
    /// Its name at the time.
    pub name: String,
    /// Memory that it needs.
    #[serde(flatten)]
    pub need: StartNeed,
    /// Docker's previous restart policy.
    pub restart_policy: String,
    /// The previous number of retries of `on-failure`.
    #[serde(default)]
    pub restart_most: i64,
    /// When it was adopted.
    pub since: Timestamp,
    /// The user who adopted it.
    pub author: String,
}

/// The file, and its last content.
#[derive(Clone, Debug)]
pub struct AdoptedFile {
    path: PathBuf,
    known: AdoptedContainers,
    stamp: Option<(SystemTime, u64)>,
}

impl AdoptedFile {
    /// In the storage folder.
    pub fn path_in(storage: &Path) -> PathBuf {
        storage.join(NAME)
    }

    /// The file, not read yet.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), known: AdoptedContainers::default(), stamp: None }
    }

    /// Reads the file. Without a file no container is adopted.
    ///
    /// # Errors
    /// It cannot be read or parsed.
    pub fn read(&mut self) -> io::Result<&AdoptedContainers> {
        let found = match fs::metadata(&self.path) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                (self.known, self.stamp) = (AdoptedContainers::default(), None);
                return Ok(&self.known);
            }
            Err(error) => return Err(self.failed(&error)),
        };
        let stamp = (found.modified()?, found.len());
        if self.stamp != Some(stamp) {
            let mut text = Vec::new();
            let file = File::open(&self.path).map_err(|error| self.failed(&error))?;
            file.take(MAX_BYTES).read_to_end(&mut text).map_err(|error| self.failed(&error))?;
            let known = serde_json::from_slice(&text)
                .map_err(|error| self.failed(&io::Error::other(error)))?;
            (self.known, self.stamp) = (known, Some(stamp));
        }
        Ok(&self.known)
    }

    /// Replaces the file atomically, and syncs it to disk.
    ///
    /// # Errors
    /// It cannot be written, and is unchanged.
    pub fn write(&mut self, adopted: &AdoptedContainers) -> io::Result<()> {
        let new = self.path.with_extension("json.new");
        let text = serde_json::to_vec_pretty(adopted).map_err(io::Error::other)?;
        let write = || -> io::Result<()> {
            let mut file = File::create(&new)?;
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&new, &self.path)?;
            match self.path.parent() {
                Some(folder) => File::open(folder)?.sync_all(),
                None => Ok(()),
            }
        };
        write().map_err(|error| self.failed(&error))?;
        (self.known, self.stamp) = (adopted.clone(), None);
        Ok(())
    }

    fn failed(&self, error: &io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("{}: {error}", self.path.display()))
    }
}
