//! The containers that `umawarden adopt` has taken over, in a file below the journal's folder. A
//! label cannot be given to a container that is there, so that this is what the daemon reads.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// A longer file is none of ours.
const MAX_BYTES: u64 = 1 << 20;

/// Its name below the journal's folder.
const NAME: &str = "adopted.json";

/// What the file says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adopted {
    /// The version of its format.
    #[serde(default)]
    pub version: u32,
    /// By their ids.
    #[serde(default)]
    pub containers: BTreeMap<String, AdoptedContainer>,
}

/// A container that was taken over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdoptedContainer {
    /// Its name then.
    pub name: String,
    /// How much memory it needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub need_bytes: Option<u64>,
    /// How much of it in large blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contiguous_bytes: Option<u64>,
    /// Docker's restart policy before.
    pub restart_policy: String,
    /// How often `on-failure` tried.
    #[serde(default)]
    pub restart_most: i64,
    /// When it was taken over.
    pub since: Timestamp,
    /// By whom.
    pub author: String,
}

/// The file, and what it said when it was read last.
#[derive(Clone, Debug)]
pub struct AdoptedFile {
    path: PathBuf,
    known: Adopted,
    stamp: Option<(SystemTime, u64)>,
}

impl AdoptedFile {
    /// Below the journal's folder.
    pub fn path_in(storage: &Path) -> PathBuf {
        storage.join(NAME)
    }

    /// That file, not read yet.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), known: Adopted::default(), stamp: None }
    }

    /// What it says now. Where there is none, nothing was taken over.
    ///
    /// # Errors
    /// It cannot be read, or makes no sense.
    pub fn read(&mut self) -> io::Result<&Adopted> {
        let found = match fs::metadata(&self.path) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                (self.known, self.stamp) = (Adopted::default(), None);
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

    /// Writes it anew, in one go, and to the disk.
    ///
    /// # Errors
    /// It cannot be written; then it is as before.
    pub fn write(&mut self, adopted: &Adopted) -> io::Result<()> {
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
