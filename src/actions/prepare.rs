//! Frees memory before an engine starts, for a gate that waits. No rule is involved.

use std::path::PathBuf;
use std::sync::Arc;

use super::evict::{UnloadResult, unload};
use super::{compact_memory, drop_caches};
use crate::model::{CacheKind, bytes_text};

/// Frees memory on this machine. Nothing has to be undone: what is dropped is read again.
#[derive(Clone, Debug)]
pub struct MemoryPreparer {
    /// Mount point of procfs.
    pub procfs: PathBuf,
}

impl MemoryPreparer {
    /// Evicts model files from the page cache, one after the other, until `is_enough`; dirty and
    /// mapped pages stay. Returns the evicted bytes in words.
    ///
    /// # Errors
    /// Why nothing was evicted.
    pub fn unload(
        &self,
        files: &[Arc<str>],
        is_enough: &dyn Fn() -> bool,
    ) -> Result<Option<String>, String> {
        let UnloadResult { files, bytes, refused } = unload(files, is_enough)?;
        if files == 0
            && let Some(refused) = refused
        {
            return Err(format!("{refused}: the right to read the model files is needed"));
        }
        let size = bytes_text(bytes);
        Ok((files > 0).then(|| format!("took {size} of {files} model files out of the page cache")))
    }

    /// Drops all clean caches; with `sync`, after dirty pages were written.
    ///
    /// # Errors
    /// The missing permission.
    pub fn drop_caches(&self, sync: bool) -> Result<(), String> {
        let mut file = drop_caches::file(&self.procfs);
        drop_caches::perform(&mut file, CacheKind::All, sync).map_err(|error| error.to_string())
    }

    /// Compacts memory, for larger free blocks.
    ///
    /// # Errors
    /// The missing permission.
    pub fn compact(&self) -> Result<(), String> {
        let mut file = compact_memory::file(&self.procfs);
        compact_memory::perform(&mut file).map_err(|error| error.to_string())
    }
}
