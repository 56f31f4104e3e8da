//! What the configuration declares, ready to be compared with processes.

use std::sync::Arc;

use glob::{MatchOptions, Pattern};

use crate::model::DeclaredEngine;

const PATHS: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: false,
};

/// One declared engine.
#[derive(Debug)]
pub(super) struct Matcher {
    pub(super) declared: DeclaredEngine,
    comm: Option<Pattern>,
    cmdline: Option<Pattern>,
    unit: Option<Pattern>,
    container: Option<Pattern>,
    files: Vec<Pattern>,
}

/// What a process is compared by.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Traits<'a> {
    pub(super) comm: &'a str,
    pub(super) arguments: &'a [String],
    pub(super) unit: Option<&'a str>,
    pub(super) container: Option<&'a str>,
}

fn compiled(text: Option<&Arc<str>>) -> Option<Pattern> {
    // The configuration has let no other through: what is none stands for itself.
    text.map(|text| Pattern::new(text).unwrap_or_else(|_| literal(text)))
}

fn literal(text: &str) -> Pattern {
    Pattern::new(&Pattern::escape(text)).unwrap_or_default()
}

impl Matcher {
    pub(super) fn new(declared: DeclaredEngine) -> Self {
        let matches = &declared.matches;
        Self {
            comm: compiled(matches.comm.as_ref()),
            cmdline: compiled(matches.cmdline.as_ref()),
            unit: compiled(matches.unit.as_ref()),
            container: compiled(matches.container.as_ref()),
            files: declared.model_files.iter().filter_map(|f| compiled(Some(f))).collect(),
            declared,
        }
    }

    /// Whether the control group must be known to tell.
    pub(super) fn needs_cgroup(&self) -> bool {
        self.unit.is_some() || self.container.is_some()
    }

    /// Whether all that is written holds of that process; what it was, if so.
    pub(super) fn matches(&self, process: Traits<'_>) -> Option<&'static str> {
        let line = || process.arguments.join(" ");
        let holds = |pattern: &Option<Pattern>, text: Option<&str>| {
            pattern.as_ref().is_none_or(|pattern| text.is_some_and(|text| pattern.matches(text)))
        };
        // The start of a container's id is as good as all of it.
        let container = self.container.as_ref().is_none_or(|pattern| {
            let is_start =
                |id: &str| pattern.as_str().len() >= 12 && id.starts_with(pattern.as_str());
            process.container.is_some_and(|id| pattern.matches(id) || is_start(id))
        });
        let all = holds(&self.comm, Some(process.comm))
            && container
            && holds(&self.unit, process.unit)
            && (self.cmdline.is_none() || holds(&self.cmdline, Some(&line())));
        all.then_some(match self {
            Self { comm: Some(_), .. } => "comm",
            Self { cmdline: Some(_), .. } => "cmdline",
            Self { unit: Some(_), .. } => "unit",
            _ => "container",
        })
    }

    /// Whether a file is declared as one of its model; `None` where none is.
    pub(super) fn is_model_file(&self, path: &str) -> Option<bool> {
        let is_one = || self.files.iter().any(|pattern| pattern.matches_with(path, PATHS));
        (!self.files.is_empty()).then(is_one)
    }
}
