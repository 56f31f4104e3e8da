//! Changes the text of a configuration file: modes of rules, and grades.
//!
//! Comments, order and layout stay. The result is read again, and must say what the file said
//! before plus the changes, and nothing else. Otherwise there is no result.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use super::mistake::SourceText;
use super::yaml::{self, Content, YamlNode};
use crate::model::{Grade, Mode};

/// Changes of a configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Modes of rules, `GROUP/ALERT`.
    pub modes: BTreeMap<String, Mode>,
    /// Grades to add to `enforce`, which the file has.
    pub grades: Vec<Grade>,
}

/// Why the text cannot be changed safely.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unchangeable(String);

impl Unchangeable {
    fn new(why: &str) -> Self {
        Self(why.to_owned())
    }
}

impl Changes {
    /// Whether there is nothing to change.
    pub fn is_empty(&self) -> bool {
        self.modes.is_empty() && self.grades.is_empty()
    }

    /// The changes as lines of a configuration file, for a person to add.
    pub fn snippet(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        if !self.grades.is_empty() {
            let names: Vec<&str> = self.grades.iter().map(|grade| grade.name()).collect();
            let _ = writeln!(text, "# Add to enforce: {}", names.join(", "));
        }
        if !self.modes.is_empty() {
            text.push_str("rules:\n");
        }
        for (rule, mode) in &self.modes {
            let _ = writeln!(text, "  {}: {{mode: {}}}", key(rule), mode.name());
        }
        text
    }

    /// The text with these changes.
    ///
    /// # Errors
    /// The file is written in a way that cannot be changed without a risk.
    pub fn apply(&self, source: &SourceText) -> Result<String, Unchangeable> {
        let mut expected = PlainValue::read(source)?;
        let mut changed = source.clone();
        for grade in &self.grades {
            changed.text = add_grade(&changed, *grade)?;
            expected.add_grade(*grade)?;
        }
        for (rule, mode) in &self.modes {
            changed.text = set_mode(&changed, rule, *mode)?;
            expected.set_mode(rule, *mode)?;
        }
        match PlainValue::read(&changed)?.sorted() == expected.sorted() {
            true => Ok(changed.text),
            false => Err(Unchangeable::new("an alias or an unusual layout is in the way")),
        }
    }
}

/// A document without places and layout.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PlainValue {
    Null,
    Text(String),
    List(Vec<Self>),
    Map(Vec<(String, Self)>),
}

impl PlainValue {
    fn read(source: &SourceText) -> Result<Self, Unchangeable> {
        let root = yaml::parse(source)
            .map_err(|mistake| Unchangeable(format!("it is not valid: {}", mistake.line_text())))?;
        Self::of(&root)
    }

    fn of(node: &YamlNode) -> Result<Self, Unchangeable> {
        Ok(match &node.content {
            Content::Null => Self::Null,
            Content::Scalar(scalar) => Self::Text(scalar.text.clone()),
            Content::List(entries) => {
                Self::List(entries.iter().map(|entry| Self::of(entry)).collect::<Result<_, _>>()?)
            }
            Content::Map(pairs) => {
                let pair = |(key, value): &(Arc<YamlNode>, Arc<YamlNode>)| {
                    let key = key.text().ok_or_else(|| Unchangeable::new("a key is no text"))?;
                    Ok((key.to_owned(), Self::of(value)?))
                };
                Self::Map(pairs.iter().map(pair).collect::<Result<_, _>>()?)
            }
        })
    }

    fn sorted(self) -> Self {
        match self {
            Self::Map(mut pairs) => {
                pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
                Self::Map(pairs.into_iter().map(|(key, value)| (key, value.sorted())).collect())
            }
            Self::List(entries) => Self::List(entries.into_iter().map(Self::sorted).collect()),
            other => other,
        }
    }

    /// The value under a key of a mapping; what is empty becomes a mapping.
    fn entry(&mut self, key: &str) -> Result<&mut Self, Unchangeable> {
        if *self == Self::Null {
            *self = Self::Map(Vec::new());
        }
        let Self::Map(pairs) = self else {
            return Err(Unchangeable(format!("what {key} belongs to is no mapping")));
        };
        let place = match pairs.iter().position(|(name, _)| name == key) {
            Some(place) => place,
            None => {
                pairs.push((key.to_owned(), Self::Null));
                pairs.len() - 1
            }
        };
        Ok(&mut pairs[place].1)
    }

    fn set_mode(&mut self, rule: &str, mode: Mode) -> Result<(), Unchangeable> {
        let value = self.entry("rules")?.entry(rule)?.entry("mode")?;
        *value = Self::Text(mode.name().to_owned());
        Ok(())
    }

    fn add_grade(&mut self, grade: Grade) -> Result<(), Unchangeable> {
        match self.entry("enforce")? {
            Self::List(entries) => entries.push(Self::Text(grade.name().to_owned())),
            _ => return Err(Unchangeable::new("enforce is no list")),
        }
        Ok(())
    }
}

/// A name as a key: in quotes where a plain one might mean something else.
fn key(name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '/' | '.');
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic());
    if begins && name.contains('/') && name.chars().all(is_plain) {
        return name.to_owned();
    }
    // JSON's strings are YAML's double-quoted ones.
    serde_json::to_string(name).unwrap_or_else(|_| format!("'{}'", name.replace('\'', "''")))
}

fn set_mode(source: &SourceText, rule: &str, mode: Mode) -> Result<String, Unchangeable> {
    let root = parsed(source)?;
    let entry = format!("{}: {{mode: {}}}", key(rule), mode.name());
    let top = match &root.content {
        Content::Null => return Ok(append(source, "", &entry)),
        Content::Map(pairs) => pairs,
        _ => return Err(Unchangeable::new("the file is no mapping")),
    };
    if is_flow(source, &root) {
        return Err(Unchangeable::new("the whole file is one {…}"));
    }
    let Some((rules_key, rules)) = pair(top, "rules") else {
        let indent = top.first().map_or(Some(String::new()), |(key, _)| indent(source, key));
        let indent = indent.ok_or_else(|| Unchangeable::new("its first key has no line"))?;
        return Ok(append(source, &indent, &entry));
    };
    match &rules.content {
        Content::Null => below(source, rules_key, rules, &entry),
        Content::Map(pairs) => match pair(pairs, rule) {
            Some((rule_key, value)) => set_in(source, rule_key, value, mode),
            None => insert(source, rules, pairs, &entry),
        },
        _ => Err(Unchangeable::new("rules is no mapping")),
    }
}

/// Sets the mode in the entry of a rule.
fn set_in(
    source: &SourceText,
    key: &YamlNode,
    value: &YamlNode,
    mode: Mode,
) -> Result<String, Unchangeable> {
    let entry = format!("mode: {}", mode.name());
    let pairs = match &value.content {
        Content::Null => return below(source, key, value, &entry),
        Content::Map(pairs) => pairs,
        _ => return Err(Unchangeable::new("the entry of a rule is no mapping")),
    };
    match pair(pairs, "mode") {
        Some((_, old)) if old.text().is_some() => {
            Ok(replaced(source, old.span.start, old.span.end, mode.name()))
        }
        Some(_) => Err(Unchangeable::new("the mode of a rule is empty")),
        None => insert(source, value, pairs, &entry),
    }
}

fn add_grade(source: &SourceText, grade: Grade) -> Result<String, Unchangeable> {
    let root = parsed(source)?;
    let Content::Map(top) = &root.content else {
        return Err(Unchangeable::new("the file is no mapping"));
    };
    let Some((_, list)) = pair(top, "enforce") else {
        return Err(Unchangeable::new("it has no enforce"));
    };
    let Content::List(entries) = &list.content else {
        return Err(Unchangeable::new("enforce is no list"));
    };
    if is_flow(source, list) {
        return in_braces(source, list, entries.is_empty(), grade.name());
    }
    let (Some(first), Some(last)) = (entries.first(), entries.last()) else {
        return Err(Unchangeable::new("enforce is empty"));
    };
    let lead = lead(source, first.span.start);
    let is_dash = lead.trim_start_matches(' ').trim_end_matches(' ') == "-";
    if !is_dash {
        return Err(Unchangeable::new("enforce has an unusual layout"));
    }
    Ok(after_line(source, last.span.end, &format!("{lead}{}", grade.name())))
}

/// Adds an entry behind the last one of a mapping.
fn insert(
    source: &SourceText,
    map: &YamlNode,
    pairs: &[(Arc<YamlNode>, Arc<YamlNode>)],
    entry: &str,
) -> Result<String, Unchangeable> {
    if is_flow(source, map) {
        return in_braces(source, map, pairs.is_empty(), entry);
    }
    let unusual = || Unchangeable::new("a mapping has an unusual layout");
    let ((first, _), (key, value)) = pairs.first().zip(pairs.last()).ok_or_else(unusual)?;
    let indent = indent(source, first).ok_or_else(unusual)?;
    let end = key.span.end.max(value.span.end);
    Ok(after_line(source, end, &format!("{indent}{entry}")))
}

/// Adds an entry before the brace or bracket at the end of a collection.
fn in_braces(
    source: &SourceText,
    of: &YamlNode,
    is_empty: bool,
    entry: &str,
) -> Result<String, Unchangeable> {
    let unusual = || Unchangeable::new("a {…} or […] has an unusual layout");
    let end = of.span.end.checked_sub(1).ok_or_else(unusual)?;
    if !source.text.get(end..).is_some_and(|rest| rest.starts_with(['}', ']'])) {
        return Err(unusual());
    }
    let inside = source.text.get(of.span.start..end).ok_or_else(unusual)?.trim_end();
    let comma = if is_empty || inside.ends_with(',') { "" } else { "," };
    let blank = if is_empty { "" } else { " " };
    let at = of.span.start + inside.len();
    Ok(replaced(source, at, at, &format!("{comma}{blank}{entry}")))
}

/// Adds an entry in the line below a key without a value.
fn below(
    source: &SourceText,
    key: &YamlNode,
    value: &YamlNode,
    entry: &str,
) -> Result<String, Unchangeable> {
    let unusual = || Unchangeable::new("a key without a value has an unusual layout");
    let written = source.text.get(value.span.clone()).unwrap_or("?").trim();
    if !written.is_empty() {
        return Err(unusual());
    }
    let indent = indent(source, key).ok_or_else(unusual)?;
    Ok(after_line(source, key.span.end, &format!("{indent}  {entry}")))
}

/// Adds `rules` with one entry at the end of the file.
fn append(source: &SourceText, indent: &str, entry: &str) -> String {
    let line_end = line_end(source);
    let text = source.text.trim_end_matches([' ', '\n', '\r']);
    let before = if text.is_empty() { "" } else { line_end };
    let kept = if text.is_empty() { "" } else { text };
    format!("{kept}{before}{before}{indent}rules:{line_end}{indent}  {entry}{line_end}")
}

fn parsed(source: &SourceText) -> Result<Arc<YamlNode>, Unchangeable> {
    yaml::parse(source)
        .map_err(|mistake| Unchangeable(format!("it is not valid: {}", mistake.line_text())))
}

fn pair<'n>(
    pairs: &'n [(Arc<YamlNode>, Arc<YamlNode>)],
    key: &str,
) -> Option<(&'n YamlNode, &'n YamlNode)> {
    let found = pairs.iter().find(|(name, _)| name.text() == Some(key));
    found.map(|(key, value)| (&**key, &**value))
}

fn is_flow(source: &SourceText, node: &YamlNode) -> bool {
    source.text.get(node.span.clone()).is_some_and(|text| text.starts_with(['{', '[']))
}

/// What is written before that byte in its line.
fn lead(source: &SourceText, at: usize) -> &str {
    let before = source.text.get(..at).unwrap_or_default();
    &before[before.rfind('\n').map_or(0, |newline| newline + 1)..]
}

/// The blanks before a key, if nothing else is before it.
fn indent(source: &SourceText, key: &YamlNode) -> Option<String> {
    let lead = lead(source, key.span.start);
    let lead = lead.strip_prefix('\u{feff}').unwrap_or(lead);
    lead.chars().all(|c| c == ' ').then(|| lead.to_owned())
}

fn line_end(source: &SourceText) -> &'static str {
    if source.text.contains("\r\n") { "\r\n" } else { "\n" }
}

/// The text with a line more behind the line of that byte.
fn after_line(source: &SourceText, at: usize, line: &str) -> String {
    let text = &source.text;
    let rest = text.get(at..).unwrap_or_default();
    let newline = line_end(source);
    match rest.find('\n') {
        Some(length) => {
            let next = at + length + 1;
            format!("{}{line}{newline}{}", &text[..next], &text[next..])
        }
        None => format!("{text}{newline}{line}{newline}"),
    }
}

fn replaced(source: &SourceText, from: usize, to: usize, with: &str) -> String {
    format!("{}{with}{}", &source.text[..from], &source.text[to..])
}
