//! `label_replace` and `label_join`.

use std::sync::Arc;

use regex::Regex;

use super::super::Sample;
use super::super::matcher::NAME_LABEL;
use super::super::syntax::Node;
use super::super::typing;
use super::{label, unique};

/// The longest value that a label may be given, in bytes: each of nested calls could otherwise
/// multiply it.
const MAX_VALUE: usize = 4096;

pub(super) fn replace(
    mut samples: Vec<Sample>,
    arguments: &[Node],
    pattern: &Regex,
) -> Result<Vec<Sample>, String> {
    let text = |position| typing::text(arguments, position).map_or("", |(text, _)| text);
    let (target, replacement, source) = (text(1), text(2), text(3));
    for sample in &mut samples {
        let value = label(sample, source).to_owned();
        if let Some(captures) = pattern.captures(&value) {
            let mut expanded = String::new();
            captures.expand(replacement, &mut expanded);
            check_length(target, &expanded)?;
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
        check_length(target, &joined)?;
        set(sample, target, &joined);
    }
    unique(samples)
}

fn check_length(name: &str, value: &str) -> Result<(), String> {
    match value.len() {
        ..=MAX_VALUE => Ok(()),
        _ => Err(format!("the label \"{name}\" would have more than {MAX_VALUE} bytes")),
    }
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
