//! `label_replace` and `label_join`.

use std::sync::Arc;

use super::super::Sample;
use super::super::matcher::{self, NAME_LABEL};
use super::super::syntax::Node;
use super::super::typing;
use super::{label, unique};

pub(super) fn replace(mut samples: Vec<Sample>, arguments: &[Node]) -> Result<Vec<Sample>, String> {
    let text = |position| typing::text(arguments, position).map_or("", |(text, _)| text);
    let (target, replacement, source) = (text(1), text(2), text(3));
    let regex = matcher::compile(text(4))?;
    for sample in &mut samples {
        let value = label(sample, source).to_owned();
        if let Some(captures) = regex.captures(&value) {
            let mut expanded = String::new();
            captures.expand(replacement, &mut expanded);
            set(sample, target, &expanded);
        }
    }
    unique(samples)
}

pub(super) fn join(mut samples: Vec<Sample>, arguments: &[Node]) -> Result<Vec<Sample>, String> {
    let text = |position| typing::text(arguments, position).map_or("", |(text, _)| text);
    let (target, separator) = (text(1), text(2));
    let sources: Vec<&str> = (3..arguments.len()).map(text).collect();
    for sample in &mut samples {
        let values: Vec<&str> = sources.iter().map(|source| label(sample, source)).collect();
        let joined = values.join(separator);
        set(sample, target, &joined);
    }
    unique(samples)
}

/// Sets a label, or removes it if the value is empty.
pub(super) fn set(sample: &mut Sample, name: &str, value: &str) {
    if name == NAME_LABEL {
        sample.name = (!value.is_empty()).then(|| Arc::from(value));
        return;
    }
    let mut labels: Vec<(Arc<str>, Arc<str>)> =
        sample.labels.iter().filter(|(label, _)| &**label != name).cloned().collect();
    if !value.is_empty() {
        labels.push((Arc::from(name), Arc::from(value)));
        labels.sort();
    }
    sample.labels = labels.into();
}
