//! Trees into typed values, every mistake noted rather than the first one thrown.

use std::ops::Range;
use std::time::Duration;

use super::mistake::{Mistake, SourceText};
use super::yaml::{Content, Node};
use crate::policy::promql::did_you_mean;

#[cfg(test)]
mod tests;

/// Further mistakes in one file are counted only: nobody reads more, and showing one costs a walk
/// through the file.
const MOST_SHOWN: usize = 100;

/// What was found wrong in one file so far.
pub struct Findings<'s> {
    source: &'s SourceText,
    mistakes: Vec<Mistake>,
    not_shown: usize,
}

impl<'s> Findings<'s> {
    /// None yet.
    pub fn new(source: &'s SourceText) -> Self {
        Self { source, mistakes: Vec::new(), not_shown: 0 }
    }

    /// The file.
    pub fn source(&self) -> &'s SourceText {
        self.source
    }

    /// Notes a mistake at a place; to be completed with a hint.
    pub fn add(&mut self, span: Range<usize>, message: impl Into<String>) -> Noted<'_> {
        if self.mistakes.len() == MOST_SHOWN {
            self.not_shown += 1;
            return Noted(None);
        }
        let mistake = self.source.mistake(span, message);
        // A value that several aliases use is wrong once.
        let same = |known: &Mistake| {
            (known.line, known.column) == (mistake.line, mistake.column)
                && known.message == mistake.message
        };
        if !self.mistakes.iter().any(same) {
            self.mistakes.push(mistake);
            return Noted(self.mistakes.last_mut());
        }
        Noted(None)
    }

    /// Whether nothing is wrong so far.
    pub fn is_empty(&self) -> bool {
        self.mistakes.is_empty()
    }

    /// All of them, in file order.
    pub fn into_mistakes(mut self) -> Vec<Mistake> {
        self.mistakes.sort_by_key(|mistake| (mistake.line, mistake.column));
        if let (Some(last), 1..) = (self.mistakes.last_mut(), self.not_shown) {
            let more = format!("this file has {} more mistakes, not shown", self.not_shown);
            last.hint =
                Some(last.hint.take().map_or(more.clone(), |hint| format!("{hint}; {more}")));
        }
        self.mistakes
    }
}

/// A mistake that has been noted.
pub struct Noted<'m>(Option<&'m mut Mistake>);

impl Noted<'_> {
    /// Adds what to do about it.
    pub fn hint(self, hint: impl Into<String>) {
        if let Some(mistake) = self.0 {
            mistake.hint = Some(hint.into());
        }
    }
}

/// A mapping whose keys have been checked.
pub struct Table<'n> {
    /// The mapping itself.
    pub node: &'n Node,
    entries: Vec<(&'n str, &'n Node, &'n Node)>,
}

impl<'n> Table<'n> {
    /// The mapping `node`, with duplicate and unknown keys noted. `what` names it for people.
    pub fn read(
        node: &'n Node,
        what: &str,
        known: &[&str],
        findings: &mut Findings<'_>,
    ) -> Option<Self> {
        let entries = pairs(node, what, findings)?;
        for (key, at, _) in entries.iter().filter(|(key, ..)| !known.contains(key)) {
            let hint = did_you_mean(key, known.iter().copied())
                .unwrap_or_else(|| format!("known keys: {}", known.join(", ")));
            findings.add(at.span.clone(), format!("unknown key \"{key}\" in {what}")).hint(hint);
        }
        Some(Self { node, entries })
    }

    /// The value of a key; a key without a value is as good as none.
    pub fn get(&self, key: &str) -> Option<&'n Node> {
        let found = self.entries.iter().find(|(name, ..)| *name == key).map(|(.., value)| *value);
        found.filter(|value| !matches!(value.content, Content::Null))
    }

    /// The place of a key, with a value or without.
    pub fn key(&self, key: &str) -> Option<&'n Node> {
        self.entries.iter().find(|(name, ..)| *name == key).map(|(_, at, _)| *at)
    }

    /// The place that stands for the whole: its first key.
    pub fn place(&self) -> Range<usize> {
        self.entries.first().map_or(self.node.span.clone(), |(_, key, _)| key.span.clone())
    }
}

/// Keys with their places and values, duplicates noted and left out.
pub fn pairs<'n>(
    node: &'n Node,
    what: &str,
    findings: &mut Findings<'_>,
) -> Option<Vec<(&'n str, &'n Node, &'n Node)>> {
    let Content::Map(written) = &node.content else {
        wrong_kind(node, what, "a mapping of keys and values", findings);
        return None;
    };
    let mut entries: Vec<(&str, &Node, &Node)> = Vec::with_capacity(written.len());
    let mut seen = std::collections::BTreeSet::new();
    for (key, value) in written {
        match key.text() {
            None => {
                let message = format!("a key must be text, but this is {}", key.kind());
                findings.add(key.span.clone(), message);
            }
            Some("<<") => findings
                .add(key.span.clone(), "merge keys (<<) are not supported")
                .hint("write the keys out"),
            Some(name) if !seen.insert(name) => findings
                .add(key.span.clone(), format!("key \"{name}\" stands twice in {what}"))
                .hint("remove one of the two"),
            Some(name) => entries.push((name, key, value)),
        }
    }
    Some(entries)
}

/// Notes that a value is of the wrong kind.
pub fn wrong_kind(node: &Node, what: &str, wanted: &str, findings: &mut Findings<'_>) {
    let message = format!("{what} must be {wanted}, but this is {}", node.kind());
    findings.add(first_token(node), message);
}

/// A block collection is shown by its first part.
fn first_token(node: &Node) -> Range<usize> {
    match &node.content {
        Content::Map(pairs) => pairs.first().map_or(node.span.clone(), |(key, _)| key.span.clone()),
        _ => node.span.clone(),
    }
}

/// Text, as written.
pub fn text<'n>(node: &'n Node, what: &str, findings: &mut Findings<'_>) -> Option<&'n str> {
    let text = node.text();
    if text.is_none() {
        wrong_kind(node, what, "text", findings);
    }
    text
}

/// A value that `read` understands; its error is noted at the value.
pub fn value<T>(
    node: &Node,
    what: &str,
    read: impl FnOnce(&str) -> Result<T, String>,
    findings: &mut Findings<'_>,
) -> Option<T> {
    let written = text(node, what, findings)?;
    match read(written) {
        Ok(found) => Some(found),
        Err(message) => {
            findings.add(node.span.clone(), format!("{what}: {message}"));
            None
        }
    }
}

/// A duration as Prometheus writes it.
pub fn duration(node: &Node, what: &str, findings: &mut Findings<'_>) -> Option<Duration> {
    value(node, what, super::measure::duration, findings)
}

/// true or false.
pub fn boolean(node: &Node, what: &str, findings: &mut Findings<'_>) -> Option<bool> {
    let read = |text: &str| match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" => Ok(true),
        "false" | "no" | "off" => Ok(false),
        _ => Err(format!("\"{text}\" is neither true nor false")),
    };
    value(node, what, read, findings)
}

/// One of some names.
pub fn choice<T: Copy>(
    node: &Node,
    what: &str,
    choices: &[(&str, T)],
    findings: &mut Findings<'_>,
) -> Option<T> {
    let written = text(node, what, findings)?;
    if let Some((_, found)) = choices.iter().find(|(name, _)| *name == written) {
        return Some(*found);
    }
    let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
    let hint = did_you_mean(written, names.iter().copied())
        .unwrap_or_else(|| format!("write one of: {}", names.join(", ")));
    findings.add(node.span.clone(), format!("{what} cannot be \"{written}\"")).hint(hint);
    None
}

/// The entries of a list; nothing at all is an empty list.
pub fn list<'n>(
    node: &'n Node,
    what: &str,
    findings: &mut Findings<'_>,
) -> Option<&'n [std::sync::Arc<Node>]> {
    match &node.content {
        Content::List(entries) => Some(entries),
        Content::Null => Some(&[]),
        Content::Scalar(_) | Content::Map(_) => {
            wrong_kind(node, what, "a list", findings);
            None
        }
    }
}

/// Reads every entry, so that each one's mistakes are found; `None` if any had one.
pub fn each<T>(
    entries: &[std::sync::Arc<Node>],
    mut read: impl FnMut(&Node) -> Option<T>,
) -> Option<Vec<T>> {
    let found: Vec<Option<T>> = entries.iter().map(|entry| read(entry)).collect();
    found.into_iter().collect()
}
