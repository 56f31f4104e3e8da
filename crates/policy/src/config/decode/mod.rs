//! Trees into typed values, every mistake noted rather than the first one thrown.

use std::collections::BTreeSet;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use std::time::Duration;

use promql_rules::did_you_mean;

use super::measure::duration_within;
use super::mistake::{Mistake, SourceText};
use super::yaml::{Content, YamlNode};

#[cfg(test)]
mod tests;

/// After so many mistakes, reading stops. Each shown mistake costs a walk through the file.
const MOST_SHOWN: usize = 100;

/// The mistakes found in one file so far.
pub struct Findings<'s> {
    source: &'s SourceText,
    mistakes: Vec<Mistake>,
    /// Positions and messages: a value that several aliases use is reported once.
    known: BTreeSet<(usize, String)>,
    more: bool,
}

impl<'s> Findings<'s> {
    /// No mistakes yet.
    pub fn new(source: &'s SourceText) -> Self {
        Self { source, mistakes: Vec::new(), known: BTreeSet::new(), more: false }
    }

    /// The file that is read.
    pub fn source(&self) -> &'s SourceText {
        self.source
    }

    /// Adds a mistake at a range of the file. The caller may add a hint.
    pub fn add(&mut self, span: Range<usize>, message: impl Into<String>) -> AddedMistake<'_> {
        let message = message.into();
        if self.known.contains(&(span.start, message.clone())) {
            return AddedMistake(None);
        }
        if self.is_full() {
            self.more = true;
            return AddedMistake(None);
        }
        self.known.insert((span.start, message.clone()));
        self.mistakes.push(self.source.mistake(span, message));
        AddedMistake(self.mistakes.last_mut())
    }

    /// Adds a prepared mistake.
    pub fn adopt(&mut self, mistake: Mistake) {
        if self.is_full() {
            self.more = true;
        } else {
            self.mistakes.push(mistake);
        }
    }

    /// Whether nothing is wrong so far.
    pub fn is_empty(&self) -> bool {
        self.mistakes.is_empty()
    }

    /// Whether the limit is reached, so that the search for mistakes can end.
    pub fn is_full(&self) -> bool {
        self.mistakes.len() >= MOST_SHOWN
    }

    /// All of them, in file order.
    pub fn into_mistakes(mut self) -> Vec<Mistake> {
        self.mistakes.sort_by_key(|mistake| (mistake.line, mistake.column));
        if let (Some(last), true) = (self.mistakes.last_mut(), self.more) {
            let more =
                format!("this file has more than {MOST_SHOWN} mistakes; the rest are not shown");
            last.hint = Some(match last.hint.take() {
                Some(hint) => format!("{hint}; {more}"),
                None => more,
            });
        }
        self.mistakes
    }
}

/// A mistake that was added.
pub struct AddedMistake<'m>(Option<&'m mut Mistake>);

impl AddedMistake<'_> {
    /// Adds the advice.
    pub fn hint(self, hint: impl Into<String>) {
        if let Some(mistake) = self.0 {
            mistake.hint = Some(hint.into());
        }
    }
}

/// What [`wrong_kind`] calls the kind that has keys.
pub const MAPPING: &str = "a mapping of keys and values";

/// Keys that belong elsewhere or have another name here, and the advice.
pub type Advice = (&'static [&'static str], &'static str);

/// A mapping whose keys have been checked.
pub struct Table<'n> {
    /// The mapping itself.
    pub node: &'n YamlNode,
    entries: Vec<(&'n str, &'n YamlNode, &'n YamlNode)>,
}

impl<'n> Table<'n> {
    /// The mapping `node`, with duplicate and unknown keys noted. `what` names it for people.
    pub fn read(
        node: &'n YamlNode,
        what: &str,
        known: &[&str],
        findings: &mut Findings<'_>,
    ) -> Option<Self> {
        Self::read_advised(node, what, known, &[], findings)
    }

    /// The same with advice for keys that people are known to write there.
    pub fn read_advised(
        node: &'n YamlNode,
        what: &str,
        known: &[&str],
        advice: &[Advice],
        findings: &mut Findings<'_>,
    ) -> Option<Self> {
        if !matches!(node.content, Content::Map(_)) {
            wrong_kind(node, what, MAPPING, findings)
                .hint(format!("its keys: {}", known.join(", ")));
            return None;
        }
        let entries = pairs(node, what, findings)?;
        for (key, at, _) in entries.iter().filter(|(key, ..)| !known.contains(key)) {
            if findings.is_full() {
                findings.more = true;
                break;
            }
            let advised = advice.iter().find(|(keys, _)| keys.contains(key));
            let hint = advised
                .map(|(_, advice)| (*advice).to_owned())
                .or_else(|| did_you_mean(key, known.iter().copied()))
                .unwrap_or_else(|| format!("known keys: {}", known.join(", ")));
            findings.add(at.span.clone(), format!("unknown key \"{key}\" in {what}")).hint(hint);
        }
        Some(Self { node, entries })
    }

    /// The value of a key; a key without a value is as good as none.
    pub fn get(&self, key: &str) -> Option<&'n YamlNode> {
        let found = self.entries.iter().find(|(name, ..)| *name == key).map(|(.., value)| *value);
        found.filter(|value| !matches!(value.content, Content::Null))
    }

    /// The value of a key, read by `read`, or `default` where the key has no value.
    pub fn read_or<T>(
        &self,
        key: &str,
        default: T,
        read: impl FnOnce(&'n YamlNode, &mut Findings<'_>) -> Option<T>,
        findings: &mut Findings<'_>,
    ) -> Option<T> {
        self.get(key).map_or(Some(default), |node| read(node, findings))
    }

    /// As [`Self::read_or`]; `Some(None)` where the key has no value.
    pub fn read_optional<T>(
        &self,
        key: &str,
        read: impl FnOnce(&'n YamlNode, &mut Findings<'_>) -> Option<T>,
        findings: &mut Findings<'_>,
    ) -> Option<Option<T>> {
        self.read_or(key, None, |node, findings| read(node, findings).map(Some), findings)
    }

    /// The text of a key, read by `read` (see [`value`]), or `default` where the key has no value.
    pub fn value_or<T>(
        &self,
        key: &str,
        default: T,
        read: impl FnOnce(&str) -> Result<T, String>,
        findings: &mut Findings<'_>,
    ) -> Option<T> {
        self.read_or(key, default, |node, findings| value(node, key, read, findings), findings)
    }

    /// As [`Self::value_or`]; `Some(None)` where the key has no value.
    pub fn value_optional<T>(
        &self,
        key: &str,
        read: impl FnOnce(&str) -> Result<T, String>,
        findings: &mut Findings<'_>,
    ) -> Option<Option<T>> {
        self.read_optional(key, |node, findings| value(node, key, read, findings), findings)
    }

    /// One of some names (see [`choice`]), or `default` where the key has no value.
    pub fn choice_or<T: Copy>(
        &self,
        key: &str,
        default: T,
        choices: &[(&str, T)],
        findings: &mut Findings<'_>,
    ) -> Option<T> {
        self.read_or(key, default, |node, findings| choice(node, key, choices, findings), findings)
    }

    /// As [`Self::choice_or`]; `Some(None)` where the key has no value.
    pub fn choice_optional<T: Copy>(
        &self,
        key: &str,
        choices: &[(&str, T)],
        findings: &mut Findings<'_>,
    ) -> Option<Option<T>> {
        self.read_optional(key, |node, findings| choice(node, key, choices, findings), findings)
    }

    /// A duration within bounds, or `default` where the key has no value.
    pub fn duration_or(
        &self,
        key: &str,
        default: Duration,
        bounds: RangeInclusive<Duration>,
        findings: &mut Findings<'_>,
    ) -> Option<Duration> {
        let read = |text: &str| duration_within(text, *bounds.start(), *bounds.end());
        self.value_or(key, default, read, findings)
    }

    /// The node of a key, with a value or without.
    pub fn key(&self, key: &str) -> Option<&'n YamlNode> {
        self.entries.iter().find(|(name, ..)| *name == key).map(|(_, at, _)| *at)
    }

    /// The range that represents the whole table: its first key.
    pub fn span(&self) -> Range<usize> {
        self.entries.first().map_or(self.node.span.clone(), |(_, key, _)| key.span.clone())
    }
}

/// Keys with their nodes and values. Duplicates are reported and left out.
pub fn pairs<'n>(
    node: &'n YamlNode,
    what: &str,
    findings: &mut Findings<'_>,
) -> Option<Vec<(&'n str, &'n YamlNode, &'n YamlNode)>> {
    let Content::Map(written) = &node.content else {
        wrong_kind(node, what, MAPPING, findings);
        return None;
    };
    let mut entries: Vec<(&str, &YamlNode, &YamlNode)> = Vec::with_capacity(written.len());
    let mut seen = BTreeSet::new();
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
                .add(key.span.clone(), format!("key \"{name}\" is given twice in {what}"))
                .hint("remove one of the two"),
            Some(name) => entries.push((name, key, value)),
        }
    }
    Some(entries)
}

/// Notes that a value is of the wrong kind.
pub fn wrong_kind<'f>(
    node: &YamlNode,
    what: &str,
    wanted: &str,
    findings: &'f mut Findings<'_>,
) -> AddedMistake<'f> {
    let message = format!("{what} must be {wanted}, but this is {}", node.kind());
    findings.add(first_token(node), message)
}

/// A block collection is shown by its first part.
fn first_token(node: &YamlNode) -> Range<usize> {
    match &node.content {
        Content::Map(pairs) => pairs.first().map_or(node.span.clone(), |(key, _)| key.span.clone()),
        _ => node.span.clone(),
    }
}

/// Text, as written.
pub fn text<'n>(node: &'n YamlNode, what: &str, findings: &mut Findings<'_>) -> Option<&'n str> {
    let text = node.text();
    if text.is_none() {
        wrong_kind(node, what, "text", findings);
    }
    text
}

/// A value that `read` understands; its error is noted at the value.
pub fn value<T>(
    node: &YamlNode,
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
pub fn duration(node: &YamlNode, what: &str, findings: &mut Findings<'_>) -> Option<Duration> {
    value(node, what, super::measure::duration, findings)
}

/// true or false.
pub fn boolean(node: &YamlNode, what: &str, findings: &mut Findings<'_>) -> Option<bool> {
    let read = |text: &str| match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" => Ok(true),
        "false" | "no" | "off" => Ok(false),
        _ => Err(format!("\"{text}\" is neither true nor false")),
    };
    value(node, what, read, findings)
}

/// One of some names.
pub fn choice<T: Copy>(
    node: &YamlNode,
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
    node: &'n YamlNode,
    what: &str,
    findings: &mut Findings<'_>,
) -> Option<&'n [Arc<YamlNode>]> {
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
pub fn each<'s, T>(
    entries: &[Arc<YamlNode>],
    findings: &mut Findings<'s>,
    mut read: impl FnMut(&YamlNode, &mut Findings<'s>) -> Option<T>,
) -> Option<Vec<T>> {
    let mut found = Some(Vec::with_capacity(entries.len()));
    for entry in entries {
        if findings.is_full() {
            findings.more = true;
            return None;
        }
        match (read(entry, findings), &mut found) {
            (Some(one), Some(found)) => found.push(one),
            _ => found = None,
        }
    }
    found
}
