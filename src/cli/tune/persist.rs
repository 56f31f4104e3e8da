//! The file that is read at each boot.

use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use super::ProfileComparison;
use super::node::advice;
use crate::cli::replace::Replacement;
use crate::tune::SettingRow;

/// Begins every file of umawarden, followed by the checksum of the rest.
const MARK: &str =
    "# Written by umawarden tune; changed by hand, it is replaced only with --force. ";

/// The result.
#[derive(Debug)]
pub(super) struct PersistedSettings {
    pub(super) path: PathBuf,
    /// The backup of a file that umawarden had not written.
    pub(super) kept: Option<PathBuf>,
}

/// Writes the file atomically.
pub(super) fn write(
    path: &Path,
    force: bool,
    compared: &ProfileComparison<'_>,
) -> anyhow::Result<PersistedSettings> {
    let text = text(compared);
    let kept = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(failed(error, "reading", path)),
        Ok(found) if !found.is_file() && !found.is_symlink() => {
            bail!("{} is no file: nothing is written", path.display())
        }
        Ok(found) => {
            let old = fs::read(path).map_err(|error| failed(error, "reading", path))?;
            if found.is_file() && is_ours(&old) {
                None
            } else if force {
                Some(keep(path, &old)?)
            } else {
                bail!(
                    "{} was not written by umawarden, or was changed since: nothing is written; \
                     --force replaces it and keeps a copy, --file names another",
                    path.display()
                );
            }
        }
    };
    replace(path, text.as_bytes())?;
    Ok(PersistedSettings { path: path.to_owned(), kept })
}

/// Whether umawarden wrote the file and nobody changed it.
fn is_ours(text: &[u8]) -> bool {
    let Some(rest) = text.strip_prefix(MARK.as_bytes()) else { return false };
    let Some(end) = rest.iter().position(|byte| *byte == b'\n') else { return false };
    rest[..end] == *checksum(&rest[end + 1..]).as_bytes()
}

fn checksum(text: &[u8]) -> String {
    format!("crc32 {:08x}", crc32fast::hash(text))
}

fn text(compared: &ProfileComparison<'_>) -> String {
    let mut body = format!("# Profile {}: {}.\n", compared.profile.name, compared.profile.title);
    for row in &compared.rows {
        let Some(value) = row.wanted() else { continue };
        let advice = row.advice;
        let source = advice.source.name();
        body += &format!(
            "\n# {} ({source}).\n# It costs: {}.\n{} = {value}\n",
            advice.why, advice.trades, advice.name
        );
    }
    format!("{MARK}{}\n{body}", checksum(body.as_bytes()))
}

/// The backup is not named `*.conf`, so that nothing reads it.
fn keep(path: &Path, old: &[u8]) -> anyhow::Result<PathBuf> {
    let mut name = OsString::from(path);
    name.push(".before-umawarden");
    let kept = PathBuf::from(name);
    if fs::symlink_metadata(&kept).is_ok() {
        bail!("{} is there already: move it away first; nothing is written", kept.display());
    }
    replace(&kept, old)?;
    Ok(kept)
}

fn replace(path: &Path, text: &[u8]) -> anyhow::Result<()> {
    let written = Replacement::write(path, text, 0o644);
    written.and_then(Replacement::take_place).map_err(|error| failed(error, "writing", path))
}

fn failed(error: io::Error, doing: &str, path: &Path) -> anyhow::Error {
    let advice = advice(&error);
    anyhow::Error::new(error).context(format!("{doing} {} failed{advice}", path.display()))
}

/// Files that are read later and set the same: their value wins.
pub(super) fn overruled_by(path: &Path, rows: &[SettingRow<'_>]) -> Vec<String> {
    let (Some(folder), Some(own)) = (path.parent(), path.file_name()) else { return Vec::new() };
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut later: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "conf"))
        .filter(|path| path.file_name().is_some_and(|name| name > own))
        .collect();
    later.sort();
    let mut warnings = Vec::new();
    for path in later {
        let Ok(text) = fs::read_to_string(&path).context("unreadable") else { continue };
        for row in rows {
            let name = row.advice.name;
            if let Some(value) = set_in(&text, name.name())
                && row.wanted().is_some_and(|wanted| wanted.to_string() != value)
            {
                warnings.push(format!(
                    "{} is read later and sets {name} to {value}: remove it there",
                    path.display()
                ));
            }
        }
    }
    warnings
}

/// The value of a setting in a file of sysctl.d: `vm.x = 1`, `-vm/x=1`.
fn set_in(text: &str, name: &str) -> Option<String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';']));
    let settings = lines.filter_map(|line| line.trim_start_matches('-').split_once('='));
    let mut own = settings.filter(|(key, _)| key.trim().replace('/', ".") == name);
    own.next_back().map(|(_, value)| value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generated_file_is_recognised_until_a_byte_changes() {
        let text = format!("{MARK}{}\nvm.swappiness = 10\n", checksum(b"vm.swappiness = 10\n"));
        assert!(is_ours(text.as_bytes()));
        assert!(!is_ours(text.replace("10", "11").as_bytes()));
        assert!(!is_ours(format!("{text}\n").as_bytes()));
        for other in ["", "vm.swappiness = 10\n", MARK, &format!("{MARK}crc32 00000000\nx\n")] {
            assert!(!is_ours(other.as_bytes()), "{other:?}");
        }
    }

    #[test]
    fn a_sysctl_file_is_read_as_sysctl_reads_it() {
        let text = "# vm.swappiness=1\n; vm.swappiness=2\n vm.swappiness = 3 \n-vm/swappiness=4\n";
        assert_eq!(set_in(text, "vm.swappiness").as_deref(), Some("4"));
        assert_eq!(set_in(text, "vm.dirty_ratio"), None);
    }
}
