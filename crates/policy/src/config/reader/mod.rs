//! Files and the environment, read; everything else about configuration is pure.

use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{OFlags, major, minor};

use super::flags::RunFlags;
use super::ladder::broken_ladders;
use super::mistake::{Mistake, Mistakes, SourceText};
use super::overrides;
use super::rules::{parse_rules, parse_rules_under};
use super::settings::{
    Environment, FileSettings, RuleEntry, RuleSource, Settings, SystemPaths, parse_settings,
};
use super::shipped::{shipped_off, shipped_rules};
use crate::policy::rule::RuleSet;

#[cfg(test)]
mod tests;

/// The configuration file of packages.
const PACKAGED_FILE: &str = "/etc/umawarden/umawarden.yaml";

/// Largest configuration file.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Most rule files: more mean a wrong folder or glob.
const MAX_RULE_FILES: usize = 1_000;

/// Settings and rules, ready to run.
#[derive(Clone, Debug)]
pub struct LoadedConfig {
    /// Flags, file, environment and defaults, merged.
    pub settings: Settings,
    /// The checked rules.
    pub rules: RuleSet,
    /// The rules as written.
    pub texts: Vec<SourceText>,
    /// Lines worth a warning in the log, such as a glob that matches nothing.
    pub remarks: Vec<String>,
}

/// Why nothing was loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Files that cannot be read.
    #[error("{}", list(.0))]
    Unreadable(Vec<UnreadablePath>),
    /// Files that were read and have mistakes.
    #[error("the configuration has mistakes\n{0}")]
    Settings(Mistakes),
    /// Rule files that were read and have mistakes.
    #[error("the rules have mistakes\n{0}")]
    Rules(Mistakes),
}

fn list(unreadable: &[UnreadablePath]) -> String {
    unreadable.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// A path that cannot be read, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot read {}: {why}", .path.display())]
pub struct UnreadablePath {
    /// As given.
    pub path: PathBuf,
    /// The reason, and what to do.
    pub why: String,
}

impl UnreadablePath {
    fn new(path: &Path, why: impl Into<String>) -> Self {
        Self { path: path.to_owned(), why: why.into() }
    }

    /// A folder or a glob without rule files, where some are needed.
    pub fn empty(path: PathBuf) -> Self {
        Self { path, why: "it holds no rule files".to_owned() }
    }

    fn from_io(path: &Path, error: &io::Error) -> Self {
        Self::new(path, error_in_words(error))
    }
}

fn error_in_words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "there is no such file".to_owned(),
        io::ErrorKind::PermissionDenied => {
            "permission denied; make it readable for this user".to_owned()
        }
        _ => error.to_string(),
    }
}

/// What this process' environment says.
pub fn environment() -> Environment {
    let first = std::env::var_os("STATE_DIRECTORY").and_then(|value| {
        // Several state directories are separated by colons.
        std::env::split_paths(&value).find(|path| !path.as_os_str().is_empty())
    });
    // Where it cannot be examined, reading it reports why.
    let is_there = Path::new(PACKAGED_FILE).try_exists().unwrap_or(true);
    let config_file = is_there.then(|| PathBuf::from(PACKAGED_FILE));
    Environment { state_directory: first, config_file }
}

/// Settings and rules from flags, files and the environment. Called again at each reload.
pub fn load(flags: &RunFlags, environment: &Environment) -> Result<LoadedConfig, LoadError> {
    load_under(load_settings(flags, environment)?)
}

/// The rules that these settings name, with their overrides.
pub fn load_under(settings: Settings) -> Result<LoadedConfig, LoadError> {
    let (texts, mut remarks) = read_rules(&settings.rules)?;
    let under = settings.guard_rails.clone();
    let mut rules =
        parse_rules_under(&texts, settings.evaluation_interval, under).map_err(LoadError::Rules)?;
    rules.shipped_off = shipped_off(&rules).into();
    check_named_alerts(&settings, &rules)?;
    let idle = overrides::apply(&settings.overrides, &mut rules)
        .map_err(|mistakes| LoadError::Settings(Mistakes(mistakes)))?;
    remarks.extend(idle.iter().map(Mistake::line_text));
    let nvsentinel = settings.nvsentinel.as_ref();
    if let Some(mistake) = nvsentinel.and_then(|known| known.check(&rules, settings.mode)) {
        return Err(LoadError::Settings(Mistakes(vec![mistake])));
    }
    remark_on(&rules, &mut remarks);
    let ladders = broken_ladders(&rules, settings.mode).into_iter();
    remarks.extend(ladders.map(|ladder| format!("{ladder}; {}", ladder.remedy())));
    Ok(LoadedConfig { settings, rules, texts, remarks })
}

/// The configuration file that is read: that of the flags, else that of the package.
pub fn config_file<'a>(flags: &'a RunFlags, environment: &'a Environment) -> Option<&'a Path> {
    flags.load.config_file.as_deref().or(environment.config_file.as_deref())
}

/// The settings alone.
pub fn load_settings(flags: &RunFlags, environment: &Environment) -> Result<Settings, LoadError> {
    let Some(path) = config_file(flags, environment) else {
        return Ok(Settings::merge(flags, FileSettings::default(), Path::new(""), environment));
    };
    let source = read_text(path).map_err(|error| LoadError::Unreadable(vec![error]))?;
    let file = parse_settings(&source).map_err(LoadError::Settings)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    Ok(Settings::merge(flags, file, folder, environment))
}

/// Checks that configured paths of the kernel's files exist. A wrong path would otherwise look like
/// a node without memory or without a kernel log.
pub fn check_paths(paths: &SystemPaths) -> Result<(), LoadError> {
    let folder = |key: &str, path: &Path, usual: &str| {
        let wrong = match fs::metadata(path) {
            Ok(meta) if meta.is_dir() => return None,
            Ok(_) => "it is no folder".to_owned(),
            Err(error) => error_in_words(&error),
        };
        let why = format!("{wrong}; --path.{key} (path: {{{key}: …}}) is where {usual} is mounted");
        Some(UnreadablePath::new(path, why)).filter(|_| path != Path::new(usual))
    };
    let kmsg = || {
        let path = &paths.kmsg;
        let wrong = match fs::metadata(path) {
            Ok(meta) if !meta.is_dir() => return None,
            Ok(_) => "it is a folder".to_owned(),
            Err(error) => error_in_words(&error),
        };
        let why = format!("{wrong}; --path.kmsg (path: {{kmsg: …}}) is a device, a file or a pipe");
        Some(UnreadablePath::new(path, why)).filter(|_| path != Path::new("/dev/kmsg"))
    };
    let wrong = [folder("procfs", &paths.procfs, "/proc"), folder("sysfs", &paths.sysfs, "/sys")];
    let wrong: Vec<UnreadablePath> = wrong.into_iter().chain([kmsg()]).flatten().collect();
    if wrong.is_empty() { Ok(()) } else { Err(LoadError::Unreadable(wrong)) }
}

/// The rules alone, and remarks on their paths.
pub fn load_rules(
    source: &RuleSource,
    evaluation_interval: Duration,
) -> Result<(RuleSet, Vec<String>), LoadError> {
    let (texts, mut remarks) = read_rules(source)?;
    let rules = parse_rules(&texts, evaluation_interval).map_err(LoadError::Rules)?;
    remark_on(&rules, &mut remarks);
    Ok((rules, remarks))
}

/// The rules as written, and remarks on their paths.
pub fn read_rules(source: &RuleSource) -> Result<(Vec<SourceText>, Vec<String>), LoadError> {
    let mut found = find_rule_files(source);
    let texts = found.read();
    if !found.unreadable.is_empty() {
        return Err(LoadError::Unreadable(found.unreadable));
    }
    let empty = found.empty.iter();
    let remarks = empty.map(|path| format!("{} holds no rule files", path.display()));
    Ok((texts, remarks.collect()))
}

/// The configuration may name only alerts that there are.
fn check_named_alerts(settings: &Settings, rules: &RuleSet) -> Result<(), LoadError> {
    let unknown = unknown_alerts(settings, rules);
    if unknown.is_empty() { Ok(()) } else { Err(LoadError::Settings(Mistakes(unknown))) }
}

/// Alerts that the configuration names and no rule has.
pub fn unknown_alerts(settings: &Settings, rules: &RuleSet) -> Vec<Mistake> {
    let all = rules.groups.iter().flat_map(|group| &group.rules);
    let alerts = all.map(|rule| &*rule.id.alert);
    settings.named_alerts.iter().filter_map(|named| named.check(alerts.clone())).collect()
}

fn remark_on(rules: &RuleSet, remarks: &mut Vec<String>) {
    if rules.groups.iter().all(|group| group.rules.is_empty()) {
        remarks.push("no rules are loaded: nothing will be decided".to_owned());
    }
}

/// A whole file of at most 1 MiB of UTF-8.
pub fn read_text(path: &Path) -> Result<SourceText, UnreadablePath> {
    let from_io = |error: io::Error| UnreadablePath::from_io(path, &error);
    let found = fs::metadata(path).map_err(from_io)?;
    let kind = found.file_type();
    if kind.is_dir() {
        return Err(UnreadablePath::new(path, "it is a folder; a file is needed"));
    }
    if kind.is_fifo() || kind.is_socket() {
        let why = "it is a pipe or a socket; a file is needed, since it is read at each reload";
        return Err(UnreadablePath::new(path, why));
    }
    if kind.is_block_device() || kind.is_char_device() && !is_null(&found) {
        return Err(UnreadablePath::new(path, "it is a device; a file is needed"));
    }
    let mut bytes = Vec::new();
    // A file that has become a pipe reads as empty and does not block.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(from_io)?;
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(from_io)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        let why = "it is larger than 1 MiB; split it into several files";
        return Err(UnreadablePath::new(path, why));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = good.iter().filter(|byte| **byte == b'\n').count() + 1;
        UnreadablePath::new(path, format!("line {line} is not UTF-8; save it as UTF-8"))
    })?;
    Ok(SourceText::new(path.display().to_string(), text))
}

/// Whether that device is /dev/null, which reads as an empty file.
fn is_null(found: &fs::Metadata) -> bool {
    (major(found.rdev()), minor(found.rdev())) == (1, 3)
}

/// The rule files that paths, folders and globs name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleFiles {
    /// What to read, each once, in the order given; within a folder or glob by name.
    pub files: Vec<RuleEntry>,
    /// Paths that cannot be read.
    pub unreadable: Vec<UnreadablePath>,
    /// Folders and globs that hold nothing.
    pub empty: Vec<PathBuf>,
}

/// Resolves files, folders of `*.yaml` and `*.yml`, and globs.
pub fn find_rule_files(source: &RuleSource) -> RuleFiles {
    let mut found = RuleFiles::default();
    for entry in &source.0 {
        let RuleEntry::Path(path) = entry else {
            found.add(RuleEntry::Shipped);
            continue;
        };
        match fs::metadata(path) {
            Ok(meta) if meta.is_dir() => found.add_all(path, in_folder(path)),
            Ok(_) => found.add(entry.clone()),
            Err(_) if is_pattern(path) => found.add_all(path, matching(path)),
            Err(error) => found.unreadable.push(UnreadablePath::from_io(path, &error)),
        }
    }
    if found.files.len() > MAX_RULE_FILES {
        let excess = found.files.split_off(MAX_RULE_FILES);
        let why = format!("more than {MAX_RULE_FILES} rule files; is this the right folder?");
        let first = excess.iter().find_map(|entry| match entry {
            RuleEntry::Path(path) => Some(UnreadablePath::new(path, why.as_str())),
            RuleEntry::Shipped => None,
        });
        found.unreadable.extend(first);
    }
    found
}

impl RuleFiles {
    /// All of them as written; what cannot be read is added to `unreadable`.
    pub fn read(&mut self) -> Vec<SourceText> {
        let mut texts = Vec::new();
        for entry in &self.files {
            match entry {
                RuleEntry::Shipped => texts.extend(shipped_rules()),
                RuleEntry::Path(path) => match read_text(path) {
                    Ok(text) => texts.push(text),
                    Err(error) => self.unreadable.push(error),
                },
            }
        }
        texts
    }

    fn add(&mut self, entry: RuleEntry) {
        if self.files.len() <= MAX_RULE_FILES && !self.files.contains(&entry) {
            self.files.push(entry);
        }
    }

    fn add_all(&mut self, given: &Path, files: Result<Vec<PathBuf>, UnreadablePath>) {
        match files {
            Ok(files) if files.is_empty() => {
                self.empty.push(given.to_owned());
            }
            Ok(files) => files.into_iter().for_each(|file| self.add(RuleEntry::Path(file))),
            Err(error) => self.unreadable.push(error),
        }
    }
}

/// Resolves one entry of a test file's `rule_files` as promtool does. Folders, hidden files and
/// tests count like other files; a missing file is none.
pub fn find_as_promtool(path: &Path) -> Result<Vec<PathBuf>, UnreadablePath> {
    let Some(text) = path.to_str().filter(|_| is_pattern(path)) else {
        return Ok(path.symlink_metadata().map(|_| path.to_owned()).into_iter().collect());
    };
    let mut text = text.replace("[^", "[!");
    while text.contains("**") {
        text = text.replace("**", "*");
    }
    let options =
        glob::MatchOptions { require_literal_separator: true, ..glob::MatchOptions::new() };
    let paths = glob::glob_with(&text, options)
        .map_err(|error| UnreadablePath::new(path, format!("not a glob: {error}")))?;
    let files: Vec<PathBuf> = paths.flatten().take(MAX_RULE_FILES + 1).collect();
    if files.len() > MAX_RULE_FILES {
        let why = format!("more than {MAX_RULE_FILES} rule files; is this the right folder?");
        return Err(UnreadablePath::new(path, why));
    }
    Ok(files)
}

/// Whether a file's name is that of a rule test. Such a file may be in the folder of the rules.
pub fn is_test_file(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.ends_with("_test.yaml") || name.ends_with("_test.yml")
}

fn is_pattern(path: &Path) -> bool {
    path.to_str().is_some_and(|text| text.contains(['*', '?', '[']))
}

/// Rule files right in a folder, by name; hidden ones are editors' and mounts' own.
fn in_folder(folder: &Path) -> Result<Vec<PathBuf>, UnreadablePath> {
    let from_io = |error: io::Error| UnreadablePath::from_io(folder, &error);
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(from_io)? {
        let path = entry.map_err(from_io)?.path();
        let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        let yaml =
            path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
        if yaml && !hidden && !is_test_file(&path) && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn matching(pattern: &Path) -> Result<Vec<PathBuf>, UnreadablePath> {
    let options = glob::MatchOptions {
        require_literal_separator: true,
        require_literal_leading_dot: true,
        ..glob::MatchOptions::new()
    };
    let text = pattern.to_string_lossy();
    let pattern_names_tests = text.contains("_test");
    let paths = glob::glob_with(&text, options)
        .map_err(|error| UnreadablePath::new(pattern, format!("not a glob: {error}")))?;
    let mut files = Vec::new();
    for path in paths {
        let path = path.map_err(|error| UnreadablePath::from_io(error.path(), error.error()))?;
        if !path.is_dir() && (!is_test_file(&path) || pattern_names_tests) {
            files.push(path);
        }
    }
    Ok(files)
}
