//! Evicts the model files of engines that are gone, as a whole.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, open};

use super::LEASED;
use super::files::{ModelFile, ModelFileSearch, Patterns};

/// The result of an unload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnloadResult {
    /// Files of which at least one page was evicted.
    pub files: usize,
    /// Evicted bytes.
    pub bytes: u64,
    /// The first reason why a file could not be opened or sampled.
    pub refused: Option<String>,
}

/// Evicts files, by absolute paths and globs of this mount namespace, until `is_enough`. Dirty and
/// mapped pages stay.
///
/// # Errors
/// Nothing can be opened at all.
pub fn unload<T: AsRef<str>>(
    patterns: &[T],
    is_enough: &dyn Fn() -> bool,
) -> Result<UnloadResult, String> {
    let patterns: Vec<Arc<str>> = patterns.iter().map(|text| Arc::from(text.as_ref())).collect();
    let root = open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let root: OwnedFd = root.map_err(|error| format!("opening / failed: {error}"))?;
    let mut found = ModelFileSearch::default();
    Patterns::new(&patterns).open_below(root, &mut found);
    found.files.sort_by(|one, other| one.path.cmp(&other.path));
    let leased = found.leased.take().map(|name| format!("{name}: {LEASED}"));
    let refused = found.refused.take().or(leased);
    let mut unloaded = UnloadResult { refused, ..UnloadResult::default() };
    for file in &found.files {
        if is_enough() {
            break;
        }
        match unload_one(file) {
            Ok(0) => {}
            Ok(bytes) => {
                unloaded.files += 1;
                unloaded.bytes = unloaded.bytes.saturating_add(bytes);
            }
            Err(error) => {
                let text = || format!("{}: {error}", file.path.display());
                unloaded.refused.get_or_insert_with(text);
            }
        }
    }
    Ok(unloaded)
}

/// How much of it has gone.
fn unload_one(file: &ModelFile) -> std::io::Result<u64> {
    let before = file.cached_bytes()?;
    if before == 0 {
        return Ok(0);
    }
    file.drop_all_unmapped()?;
    Ok(before.saturating_sub(file.cached_bytes()?))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::Write as _;

    use super::*;

    fn cached(folder: &std::path::Path, name: &str) {
        let mut file = File::create(folder.join(name)).unwrap();
        file.write_all(&vec![7; 4 << 20]).unwrap();
        file.sync_all().unwrap();
    }

    #[test]
    fn whole_files_are_evicted_until_the_target_is_met() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        cached(folder.path(), "a.safetensors");
        cached(folder.path(), "b.safetensors");
        let pattern = [format!("{}/*.safetensors", folder.path().display())];
        assert_eq!(unload(&pattern, &|| true).unwrap(), UnloadResult::default());
        let gone = unload(&pattern, &|| false).unwrap();
        if gone.refused.is_some() {
            return eprintln!("skipped: {gone:?}");
        }
        assert_eq!((gone.files, gone.bytes), (2, 8 << 20));
        assert_eq!(unload(&pattern, &|| false).unwrap().files, 0, "nothing is left");
        assert_eq!(fs::read(folder.path().join("a.safetensors")).unwrap().len(), 4 << 20);
    }
}
