//! Declared engines, compiled for comparison with processes.

use std::sync::Arc;

use glob::{MatchOptions, Pattern};

use crate::model::DeclaredEngine;
use crate::parse::container::Container;

/// The shortest unambiguous prefix of a container id.
const SHORTEST_ID: usize = 12;

const PATHS: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: false,
};

#[derive(Debug)]
pub(super) struct Matcher {
    pub(super) declared: DeclaredEngine,
    comm: Option<Pattern>,
    cmdline: Option<Pattern>,
    unit: Option<Pattern>,
    container: Option<Pattern>,
    namespace: Option<Pattern>,
    labels: Vec<(Arc<str>, Pattern)>,
    files: Vec<Pattern>,
}

/// The properties of a process that are compared.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ProcessTraits<'a> {
    pub(super) comm: &'a str,
    pub(super) arguments: &'a [String],
    pub(super) unit: Option<&'a str>,
    /// The confirmed container id.
    pub(super) container: Option<&'a str>,
    /// That container as Docker reports it.
    pub(super) reported: Option<&'a Container>,
}

fn compiled(text: Option<&Arc<str>>) -> Option<Pattern> {
    // The configuration rejects invalid patterns; one that fails here is taken literally.
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
            namespace: compiled(matches.namespace.as_ref()),
            labels: matches
                .labels
                .iter()
                .filter_map(|(key, value)| Some((Arc::clone(key), compiled(Some(value))?)))
                .collect(),
            files: declared.model_files.iter().filter_map(|f| compiled(Some(f))).collect(),
            declared,
        }
    }

    /// Whether the control group is needed.
    pub(super) fn needs_cgroup(&self) -> bool {
        self.unit.is_some() || self.needs_docker()
    }

    /// Whether a runtime is needed: for membership in a container, its name, labels and pod.
    pub(super) fn needs_docker(&self) -> bool {
        !self.labels.is_empty() || self.container.is_some() || self.namespace.is_some()
    }

    /// Compares all given properties with the process. Returns the property that matched.
    pub(super) fn matches(&self, process: ProcessTraits<'_>) -> Option<String> {
        let line = || process.arguments.join(" ");
        let holds = |pattern: &Option<Pattern>, text: Option<&str>| {
            pattern.as_ref().is_none_or(|pattern| text.is_some_and(|text| pattern.matches(text)))
        };
        let namespace = process.reported.and_then(|reported| reported.pod.as_ref());
        let namespace = namespace.map(|pod| &*pod.namespace);
        // The command line of a launch or a gate contains that of its engine.
        let is_own = self.comm.is_none() && process.comm == env!("CARGO_PKG_NAME");
        let all = holds(&self.comm, Some(process.comm))
            && self.is_container(process)
            && self.has_labels(process.reported)
            && holds(&self.namespace, namespace)
            && holds(&self.unit, process.unit)
            && (self.cmdline.is_none() || !is_own && holds(&self.cmdline, Some(&line())));
        all.then(|| match (self, process.reported) {
            (Self { comm: Some(_), .. }, _) => "comm".to_owned(),
            (Self { cmdline: Some(_), .. }, _) => "cmdline".to_owned(),
            (Self { unit: Some(_), .. }, _) => "unit".to_owned(),
            (Self { namespace: Some(_), .. }, Some(Container { pod: Some(pod), name, .. })) => {
                format!("container {name} of {pod}")
            }
            (Self { container: None, labels, .. }, Some(reported)) => {
                let keys: Vec<&str> = labels.iter().map(|(key, _)| &**key).collect();
                format!("label {} of container {}", keys.join(", "), reported.name)
            }
            (_, Some(reported)) => format!("container {}", reported.name),
            (_, None) => "container".to_owned(),
        })
    }

    /// Compares the name, the id or a prefix of the id.
    fn is_container(&self, process: ProcessTraits<'_>) -> bool {
        self.container.as_ref().is_none_or(|pattern| {
            let is_start = |id: &str| {
                pattern.as_str().len() >= SHORTEST_ID && id.starts_with(pattern.as_str())
            };
            process.container.is_some_and(|id| pattern.matches(id) || is_start(id))
                || process.reported.is_some_and(|reported| pattern.matches(&reported.name))
        })
    }

    fn has_labels(&self, reported: Option<&Container>) -> bool {
        let value = |key: &str| reported.and_then(|reported| reported.labels.get(key));
        self.labels
            .iter()
            .all(|(key, pattern)| value(key).is_some_and(|value| pattern.matches(value)))
    }

    /// Whether a file is declared as a model file; `None` if no pattern is declared.
    pub(super) fn is_model_file(&self, path: &str) -> Option<bool> {
        let is_one = || self.files.iter().any(|pattern| pattern.matches_with(path, PATHS));
        (!self.files.is_empty()).then(is_one)
    }
}
