//! Writes the configuration file.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};

use super::plan::PromotionPlan;
use crate::cli::config::remarks_of;
use crate::cli::replace::Replacement;
use crate::config::flags::LoadFlags;
use crate::config::reader::read_text;

/// What was written.
#[derive(Debug)]
pub(super) enum WriteResult {
    /// The configuration file, with what changed in it.
    File {
        path: PathBuf,
        diff: Vec<String>,
        /// Remarks that `config check` did not have before.
        remarks: Vec<String>,
    },
    /// A file with lines to add by hand, and why.
    Snippet { path: PathBuf, file: PathBuf, text: String, why: String },
}

/// Changes the configuration file, or else writes the lines to add beside it.
///
/// # Errors
/// A file cannot be read or written, the result has mistakes, or the file was changed meanwhile.
pub(super) fn write(
    flags: &LoadFlags,
    file: &Path,
    plan: &PromotionPlan,
) -> anyhow::Result<WriteResult> {
    // A link stays one.
    let path = fs::canonicalize(file).with_context(|| cannot("read", file))?;
    let source = read_text(&path)?;
    let text = match plan.changes.apply(&source) {
        Ok(text) => text,
        Err(why) => return snippet(&path, plan, why.to_string()),
    };
    let new = Replacement::write_as_it_is(&path, text.as_bytes())
        .with_context(|| cannot("write beside", &path))?;
    let before = remarks_under(flags, &path);
    let before = before.unwrap_or_default();
    let checked = remarks_under(flags, new.path());
    // It is named as it will be.
    let named =
        |text: String| text.replace(&new.path().display().to_string(), &path.display().to_string());
    let remarks = checked.map_err(|mistakes| {
        let mistakes = named(mistakes);
        let mistakes = mistakes.trim_end();
        anyhow!("nothing is written: `umawarden config check` would refuse it: {mistakes}")
    })?;
    let remarks: Vec<String> = remarks.into_iter().map(named).collect();
    if read_text(&path)?.text != source.text {
        bail!("{} was changed meanwhile: nothing is written; try again", path.display());
    }
    let diff = diff(&source.text, &text);
    new.take_place().with_context(|| cannot("replace", &path))?;
    let remarks = remarks.into_iter().filter(|remark| !before.contains(remark)).collect();
    Ok(WriteResult::File { path, diff, remarks })
}

fn cannot(what: &str, path: &Path) -> String {
    format!("cannot {what} {}; run as the owner of the file or as root", path.display())
}

/// Begins every snippet: such a file is replaced.
const MARK: &str = "# Written by umawarden promote";

fn snippet(file: &Path, plan: &PromotionPlan, why: String) -> anyhow::Result<WriteResult> {
    let mut name = file.as_os_str().to_owned();
    name.push(".promote");
    let path = PathBuf::from(name);
    if fs::symlink_metadata(&path).is_ok() && !read_text(&path)?.text.starts_with(MARK) {
        bail!(
            "{} cannot be changed safely ({why}), and {} is there already: move it away",
            file.display(),
            path.display()
        );
    }
    let text = plan.changes.snippet();
    let whole = format!("{MARK}: add these lines to {}.\n{text}", file.display());
    Replacement::write(&path, whole.as_bytes(), 0o644)
        .and_then(Replacement::take_place)
        .with_context(|| cannot("write", &path))?;
    Ok(WriteResult::Snippet { path, file: file.to_owned(), text, why })
}

/// Lines that differ and are not empty, with their numbers in the old or the new text: `-12: …`,
/// `+13: …`. Both texts are equal but for lines that were added or changed.
fn diff(old: &str, new: &str) -> Vec<String> {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let (mut a, mut b) = (0, 0);
    let mut found = Vec::new();
    while a < old.len() || b < new.len() {
        match (old.get(a), new.get(b)) {
            (Some(before), Some(after)) if before == after => (a, b) = (a + 1, b + 1),
            // An old line that comes later: lines were added before it.
            (Some(before), Some(_)) if new[b..].contains(before) => {
                found.push(format!("+{}: {}", b + 1, new[b]));
                b += 1;
            }
            (Some(before), after) => {
                found.push(format!("-{}: {before}", a + 1));
                a += 1;
                if let Some(after) = after.filter(|after| !old[a..].contains(after)) {
                    found.push(format!("+{}: {after}", b + 1));
                    b += 1;
                }
            }
            (None, Some(after)) => {
                found.push(format!("+{}: {after}", b + 1));
                b += 1;
            }
            (None, None) => break,
        }
    }
    let has_text = |line: &String| line.split_once(": ").is_some_and(|(_, text)| !text.is_empty());
    found.retain(has_text);
    found
}

/// What `config check` says of a configuration file with these flags.
fn remarks_under(flags: &LoadFlags, file: &Path) -> Result<Vec<String>, String> {
    let flags = LoadFlags { config_file: Some(file.to_owned()), ..flags.clone() };
    remarks_of(&flags.into())
}

/// The file that is changed: that of the flags, else the package's.
///
/// # Errors
/// There is none.
pub(super) fn file(flags: &LoadFlags, packaged: Option<&Path>) -> anyhow::Result<PathBuf> {
    flags.config_file.as_deref().or(packaged).map(Path::to_owned).ok_or_else(|| {
        anyhow!("there is no configuration file: name the one of the daemon by --config.file")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Grade, Mode};

    fn plan(grades: &[Grade]) -> PromotionPlan {
        let mut plan = PromotionPlan::default();
        plan.changes.modes.insert("memory/PageCacheEatsReserve".to_owned(), Mode::Enforce);
        plan.changes.grades = grades.to_vec();
        plan
    }

    fn written(folder: &Path, text: &str, grades: &[Grade]) -> anyhow::Result<WriteResult> {
        let file = folder.join("umawarden.yaml");
        fs::write(&file, text).unwrap();
        write(&LoadFlags::default(), &file, &plan(grades))
    }

    #[test]
    fn the_file_is_changed_in_place_with_its_mode_and_the_difference_is_named() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("umawarden.yaml");
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        let text = "# mine\nenforce: [notice]   # at first\nlog: {level: info}\n";
        let found = written(folder.path(), text, &[Grade::Drop]).unwrap();
        let WriteResult::File { diff, .. } = found else { panic!("{found:?}") };
        assert_eq!(
            diff,
            [
                "-2: enforce: [notice]   # at first",
                "+2: enforce: [notice, drop]   # at first",
                "+5: rules:",
                "+6:   memory/PageCacheEatsReserve: {mode: enforce}",
            ]
        );
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left behind");
    }

    #[test]
    fn a_file_that_cannot_be_changed_safely_stays_and_a_snippet_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let text = "{log: {level: info}}\n";
        let found = written(folder.path(), text, &[]).unwrap();
        let WriteResult::Snippet { path, why, .. } = found else { panic!("{found:?}") };
        assert!(why.contains("{…}"), "{why}");
        assert_eq!(fs::read_to_string(folder.path().join("umawarden.yaml")).unwrap(), text);
        let snippet = fs::read_to_string(&path).unwrap();
        assert!(snippet.ends_with("rules:\n  memory/PageCacheEatsReserve: {mode: enforce}\n"));
        // A second time it is replaced; a file of somebody else is not.
        written(folder.path(), text, &[]).unwrap();
        fs::write(&path, "mine").unwrap();
        let error = written(folder.path(), text, &[]).unwrap_err().to_string();
        assert!(error.contains("move it away"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    }

    #[test]
    fn a_result_with_mistakes_is_not_written() {
        let folder = tempfile::tempdir().unwrap();
        // The rules of that file have no such rule.
        let text = "rule_files: []\n";
        let error = written(folder.path(), text, &[]).unwrap_err().to_string();
        assert!(error.contains("config check") && error.contains("nothing is written"), "{error}");
        assert_eq!(fs::read_to_string(folder.path().join("umawarden.yaml")).unwrap(), text);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_link_stays_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let (real, link) = (folder.path().join("real.yaml"), folder.path().join("umawarden.yaml"));
        fs::write(&real, "").unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        write(&LoadFlags::default(), &link, &plan(&[])).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert!(fs::read_to_string(&real).unwrap().contains("mode: enforce"));
    }
}
