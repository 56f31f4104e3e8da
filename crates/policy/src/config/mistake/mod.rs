//! Mistakes in configuration and rule files, with line, column and excerpt.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use serde::Serialize;

use crate::model::without_unprintable;

#[cfg(test)]
mod tests;

/// Characters of a source line that are shown around the caret.
const EXCERPT_CHARACTERS: usize = 96;

/// Bytes of a source line that are kept before and after a mistake.
const EXCERPT_BYTES: usize = 512;

/// Longer messages are cut: they quote what was written.
const MESSAGE_CHARACTERS: usize = 400;

/// A file's content and its name.
#[derive(Clone, Debug)]
pub struct SourceText {
    /// The path, or `shipped:memory.yaml` for a file inside the binary.
    pub name: Arc<str>,
    /// The content.
    pub text: String,
}

impl SourceText {
    /// A text under a name.
    pub fn new(name: impl Into<Arc<str>>, text: impl Into<String>) -> Self {
        Self { name: name.into(), text: text.into() }
    }

    /// Line and column, both from 1, of a byte of the text.
    pub fn position(&self, at: usize) -> (usize, usize) {
        let before = &self.text[..floor_char_boundary(&self.text, at)];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
    }

    /// The mistake at that byte range of the text.
    pub fn mistake(&self, span: Range<usize>, message: impl Into<String>) -> Mistake {
        let start = floor_char_boundary(&self.text, span.start);
        let line_start = self.text[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let from = floor_char_boundary(&self.text, start.saturating_sub(EXCERPT_BYTES));
        let from = from.max(line_start);
        let reach = floor_char_boundary(&self.text, start + EXCERPT_BYTES);
        let line_end = self.text[start..reach].find(['\n', '\r']).map(|length| start + length);
        let to = line_end.unwrap_or(reach);
        let end = floor_char_boundary(&self.text, span.end.clamp(start, to.max(start)));
        let (line, column) = self.position(start);
        Mistake {
            file: Arc::clone(&self.name),
            line,
            column,
            message: cut(message.into()),
            hint: None,
            source_line: self.shown(line_start, from..to),
            width: self.text[start..end].chars().count().max(1),
            cut_before: u32::try_from(self.text[line_start..from].chars().count())
                .unwrap_or(u32::MAX),
            cut_after: line_end.is_none() && reach < self.text.len(),
        }
    }

    /// A piece of a line; what may be a secret is not shown.
    fn shown(&self, line_start: usize, piece: Range<usize>) -> String {
        let known =
            floor_char_boundary(&self.text, piece.start.saturating_sub(SECRET_SEARCH_BYTES));
        let known = known.max(line_start);
        let hidden_from = secret_value(&self.text[known..piece.end]).map(|at| known + at);
        let shown = self.text[piece.clone()].char_indices().map(|(at, c)| {
            let is_hidden = hidden_from.is_some_and(|from| piece.start + at >= from);
            if is_hidden && c != ' ' { '*' } else { c }
        });
        shown.collect()
    }
}

/// Bytes before a mistake that are searched for the key of a secret.
const SECRET_SEARCH_BYTES: usize = 4096;

/// Keys whose values are not for logs, whether or not they are known here.
const SECRET_KEYS: [&str; 5] = ["api_key", "admin_key", "password", "secret", "token"];

/// Where, in a line, the value of a key begins that names a secret.
fn secret_value(line: &str) -> Option<usize> {
    let values = SECRET_KEYS.iter().filter_map(|key| {
        let after = line.find(key)? + key.len();
        let rest = &line[after..];
        let name = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))?;
        let colon = rest[name..].strip_prefix(['"', '\'']).unwrap_or(&rest[name..]);
        colon.starts_with(':').then(|| line.len() - colon.len() + 1)
    });
    values.min()
}

fn cut(message: String) -> String {
    match message.char_indices().nth(MESSAGE_CHARACTERS) {
        Some((end, _)) => format!("{}…", &message[..end]),
        None => message,
    }
}

fn floor_char_boundary(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// One mistake: where, what, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mistake {
    /// The file's name.
    pub file: Arc<str>,
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    /// What is wrong.
    pub message: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The line itself; of a very long one, what is around the mistake.
    pub source_line: String,
    /// How many characters of the line are meant.
    pub width: usize,
    #[serde(skip)]
    cut_before: u32,
    #[serde(skip)]
    cut_after: bool,
}

impl Mistake {
    /// The same mistake with advice.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Another mistake at the same place.
    #[must_use]
    pub fn saying(&self, message: impl Into<String>) -> Self {
        Self { message: cut(message.into()), ..self.clone() }
    }

    /// The text for people: position and message, the line with a caret, the hint.
    pub fn render(&self, style: Style) -> String {
        let (red, blue, bold, reset) = style.codes();
        let (line, caret) = self.excerpt();
        let number = self.line.to_string();
        let margin = " ".repeat(number.len());
        let message = printable(&self.message);
        let position = format!("{}:{}:{}", printable(&self.file), self.line, self.column);
        let mut out = format!("{bold}{position}: {red}{message}{reset}\n");
        out += &format!("{blue}{margin} |{reset}\n");
        out += &format!("{blue}{number} |{reset} {line}\n");
        out += &format!("{blue}{margin} |{reset} {}{red}{}{reset}\n", caret.0, caret.1);
        if let Some(hint) = &self.hint {
            out += &format!("{blue}{margin} ={reset} {}\n", printable(hint));
        }
        out
    }

    /// Position and message in one line.
    pub fn line_text(&self) -> String {
        let (file, message) = (printable(&self.file), printable(&self.message));
        format!("{file}:{}:{}: {message}", self.line, self.column)
    }

    /// The line, shortened, and the blanks and carets below it.
    fn excerpt(&self) -> (String, (String, String)) {
        let line: Vec<char> = printable(&self.source_line).chars().collect();
        let at = self.column - 1 - self.cut_before as usize;
        let mut from = 0;
        if line.len() > EXCERPT_CHARACTERS && at > EXCERPT_CHARACTERS / 2 {
            from = (at - EXCERPT_CHARACTERS / 2).min(line.len() - EXCERPT_CHARACTERS);
        }
        let to = line.len().min(from + EXCERPT_CHARACTERS);
        let lead = if from > 0 || self.cut_before > 0 { "…" } else { "" };
        let tail = if to < line.len() || self.cut_after { "…" } else { "" };
        let shown: String = line[from..to].iter().collect();
        let blanks = " ".repeat(at - from + lead.chars().count());
        let carets = "^".repeat(self.width.min(to.saturating_sub(at).max(1)));
        (format!("{lead}{shown}{tail}").trim_end().to_owned(), (blanks, carets))
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(Style::Plain))
    }
}

/// Each unprintable character becomes one character, so that the carets keep their columns.
fn printable(text: &str) -> String {
    without_unprintable(&text.replace('\t', " "), char::REPLACEMENT_CHARACTER)
}

/// Whether mistakes are shown in colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Bare text.
    Plain,
    /// With ANSI colours, for a terminal.
    Coloured,
}

impl Style {
    fn codes(self) -> (&'static str, &'static str, &'static str, &'static str) {
        match self {
            Self::Plain => ("", "", "", ""),
            Self::Coloured => ("\x1b[31m", "\x1b[34m", "\x1b[1m", "\x1b[0m"),
        }
    }
}

/// All mistakes that were found; at least one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Mistakes(pub Vec<Mistake>);

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, mistake) in self.0.iter().enumerate() {
            if position > 0 {
                f.write_str("\n")?;
            }
            mistake.fmt(f)?;
        }
        Ok(())
    }
}
