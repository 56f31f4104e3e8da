//! Metrics as text: what any exporter writes (Prometheus' format 0.0.4), and OpenMetrics as far as
//! it is the same. Read as it comes, line by line, with a bound on everything.

use std::borrow::Cow;

#[cfg(test)]
mod tests;

/// No line is longer.
const LONGEST_LINE: usize = 16 << 10;

/// No series has more labels.
const MOST_LABELS: usize = 32;

/// The text is not what an exporter writes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct MalformedMetrics {
    /// Which line, from 1.
    pub line: u64,
    /// What is wrong with it.
    pub what: &'static str,
}

/// A label's name and value.
pub type Label<'t> = (&'t str, Cow<'t, str>);

/// One line with a value.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricLine<'t> {
    /// Name of the series.
    pub name: &'t str,
    /// In the order of the line.
    pub labels: Vec<Label<'t>>,
    /// Value of the sample.
    pub value: f64,
}

/// Reads an answer that comes in parts.
#[derive(Debug, Default)]
pub struct MetricReader {
    /// The beginning of a line of which more is to come.
    begun: Vec<u8>,
    lines: u64,
    has_ended: bool,
}

impl MetricReader {
    /// One that has read nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next part. Lines whose name `wants` rejects are skipped.
    ///
    /// # Errors
    /// A line is too long, or one that is wanted is not understood.
    pub fn feed(
        &mut self,
        part: &[u8],
        wants: &impl Fn(&str) -> bool,
        take: &mut impl FnMut(MetricLine<'_>),
    ) -> Result<(), MalformedMetrics> {
        let mut rest = part;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, after) = rest.split_at(end);
            rest = &after[1..];
            if self.begun.is_empty() {
                self.line(line, wants, take)?;
            } else {
                let mut whole = std::mem::take(&mut self.begun);
                self.check_length(whole.len() + line.len())?;
                whole.extend_from_slice(line);
                self.line(&whole, wants, take)?;
                whole.clear();
                self.begun = whole;
            }
        }
        self.check_length(self.begun.len() + rest.len())?;
        self.begun.extend_from_slice(rest);
        Ok(())
    }

    /// Nothing more comes: a last line needs no end.
    ///
    /// # Errors
    /// As [`Self::feed`].
    pub fn end(
        mut self,
        wants: &impl Fn(&str) -> bool,
        take: &mut impl FnMut(MetricLine<'_>),
    ) -> Result<(), MalformedMetrics> {
        let last = std::mem::take(&mut self.begun);
        self.line(&last, wants, take)
    }

    fn check_length(&self, length: usize) -> Result<(), MalformedMetrics> {
        match length <= LONGEST_LINE {
            true => Ok(()),
            false => Err(self.malformed(self.lines + 1, "it is longer than 16 KiB")),
        }
    }

    fn malformed(&self, line: u64, what: &'static str) -> MalformedMetrics {
        MalformedMetrics { line, what }
    }

    fn line(
        &mut self,
        line: &[u8],
        wants: &impl Fn(&str) -> bool,
        take: &mut impl FnMut(MetricLine<'_>),
    ) -> Result<(), MalformedMetrics> {
        self.lines = self.lines.saturating_add(1);
        self.check_length(line.len())?;
        // Text after the end of OpenMetrics is ignored.
        if self.has_ended || line.is_empty() || line.starts_with(b"#") {
            self.has_ended |= line.trim_ascii() == b"# EOF";
            return Ok(());
        }
        let number = self.lines;
        let text = std::str::from_utf8(line)
            .map_err(|_| self.malformed(number, "it is not UTF-8"))?
            .trim_matches([' ', '\t', '\r']);
        let name = name_of(text);
        if text.is_empty() || (!name.is_empty() && !wants(name)) {
            return Ok(());
        }
        let read = read_line(text).map_err(|what| self.malformed(number, what))?;
        // A quoted name is in the braces; no such series is read.
        if let Some(read) = read {
            take(read);
        }
        Ok(())
    }
}

fn name_of(text: &str) -> &str {
    let end = text.find(['{', ' ', '\t']).unwrap_or(text.len());
    &text[..end]
}

/// Reads one line with a value; `None` where its name is in quotes.
fn read_line(text: &str) -> Result<Option<MetricLine<'_>>, &'static str> {
    let name = name_of(text);
    if name.is_empty() {
        return Ok(None);
    }
    if !is_name(name, true) {
        return Err("it does not begin with a name");
    }
    let mut rest = text[name.len()..].trim_start_matches([' ', '\t']);
    let mut labels = Vec::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = read_labels(inside, &mut labels)?;
    }
    let mut words = rest.split([' ', '\t']).filter(|word| !word.is_empty());
    let value = words.next().and_then(number).ok_or("it has no value")?;
    match words.next() {
        None | Some("#") => {}
        Some(time) => {
            number(time).ok_or("what follows its value is no time")?;
            if words.next().is_some_and(|word| word != "#") {
                return Err("there is more than a value and a time");
            }
        }
    }
    Ok(Some(MetricLine { name, labels, value }))
}

/// Reads labels up to the closing brace, and returns what follows it.
fn read_labels<'t>(text: &'t str, labels: &mut Vec<Label<'t>>) -> Result<&'t str, &'static str> {
    let mut rest = text.trim_start_matches([' ', '\t']);
    loop {
        if let Some(after) = rest.strip_prefix('}') {
            return Ok(after);
        }
        let (name, after) = rest.split_once('=').ok_or("its labels have no end")?;
        let name = name.trim_matches([' ', '\t']);
        if !is_name(name, false) {
            return Err("a label has no name");
        }
        let quoted = after.trim_start_matches([' ', '\t']).strip_prefix('"');
        let (value, after) = read_quoted(quoted.ok_or("a label's value is not in quotes")?)?;
        if labels.len() >= MOST_LABELS {
            return Err("it has more than 32 labels");
        }
        if labels.iter().any(|(known, _)| *known == name) {
            return Err("a label is given twice");
        }
        labels.push((name, value));
        let after = after.trim_start_matches([' ', '\t']);
        rest = match after.strip_prefix(',') {
            Some(next) => next.trim_start_matches([' ', '\t']),
            None if after.starts_with('}') => after,
            None => return Err("there is no comma between its labels"),
        };
    }
}

/// Reads up to the closing quote; returns what follows it.
fn read_quoted(text: &str) -> Result<(Cow<'_, str>, &str), &'static str> {
    let end = text.find(['"', '\\']).ok_or("a label's value has no end")?;
    if text[end..].starts_with('"') {
        return Ok((Cow::Borrowed(&text[..end]), &text[end + 1..]));
    }
    let mut value = text[..end].to_owned();
    let mut characters = text[end..].char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Ok((Cow::Owned(value), &text[end + at + 1..])),
            '\\' => match characters.next() {
                Some((_, 'n')) => value.push('\n'),
                Some((_, escaped @ ('"' | '\\'))) => value.push(escaped),
                Some((_, other)) => value.extend(['\\', other]),
                None => break,
            },
            other => value.push(other),
        }
    }
    Err("a label's value has no end")
}

/// A number as exporters write it.
fn number(text: &str) -> Option<f64> {
    // Rust reads `inf`, `infinity` and `nan` in any case, as Go does.
    text.parse().ok()
}

fn is_name(name: &str, colons: bool) -> bool {
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || (colons && c == ':'))
}
