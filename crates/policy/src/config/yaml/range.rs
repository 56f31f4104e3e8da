//! Maps a range in a scalar's text to its range in the file.

use std::iter::Peekable;
use std::ops::Range;
use std::str::CharIndices;

use serde_saphyr::granit_parser::ScalarStyle;

/// The range in `written` of the byte range `within` of `text`. `written` is the scalar in the
/// file, with its quotes, without the header of a block.
///
/// Folding and indentation change blanks only, so both texts are walked in parallel and all other
/// characters match. `None` if they ever differ.
pub(super) fn map(
    written: &str,
    style: ScalarStyle,
    text: &str,
    within: Range<usize>,
) -> Option<Range<usize>> {
    let chars = written.char_indices().peekable();
    let mut source = Units { chars, written, style, run_end: 0, run_breaks: false };
    source.skip_opening()?;
    let mut start = None;
    let mut end = source.at();
    for (offset, c) in text.char_indices() {
        let unit = source.next_for(c)?;
        if offset >= within.start && start.is_none() {
            start = Some(unit.start);
        }
        if offset >= within.end && start.is_some() {
            break;
        }
        end = unit.end;
    }
    // At or past the end of the text: right behind its last character.
    let start = start.unwrap_or(end);
    Some(start..end.max(start))
}

/// The text in the file, during the walk.
struct Units<'w> {
    chars: Peekable<CharIndices<'w>>,
    written: &'w str,
    style: ScalarStyle,
    /// End of the last run of blanks, and whether it breaks the line.
    run_end: usize,
    run_breaks: bool,
}

impl Units<'_> {
    fn at(&mut self) -> usize {
        self.chars.peek().map_or(self.written.len(), |(at, _)| *at)
    }

    fn rest(&mut self) -> &str {
        let at = self.at();
        &self.written[at..]
    }

    /// Steps over the quote. The range of a block scalar begins behind its header line.
    fn skip_opening(&mut self) -> Option<()> {
        match self.style {
            ScalarStyle::Plain | ScalarStyle::Literal | ScalarStyle::Folded => {}
            ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted => {
                self.chars.next().filter(|(_, c)| matches!(c, '\'' | '"'))?;
            }
        }
        Some(())
    }

    /// What is written for `c`.
    fn next_for(&mut self, c: char) -> Option<Range<usize>> {
        if c.is_whitespace() {
            return self.next_blank();
        }
        self.skip_blanks();
        let start = self.at();
        let (_, written) = self.chars.next()?;
        match (self.style, written) {
            (ScalarStyle::DoubleQuoted, '\\') => self.skip_escape()?,
            (ScalarStyle::SingleQuoted, '\'') => {
                self.chars.next().filter(|(_, second)| *second == '\'')?;
            }
            _ if written != c => return None,
            _ => {}
        }
        Some(start..self.at())
    }

    /// A blank of the text: an escape, or one of the blanks in the file.
    fn next_blank(&mut self) -> Option<Range<usize>> {
        self.skip_line_continuations();
        let start = self.at();
        match self.chars.peek().copied() {
            Some((_, '\\')) if self.style == ScalarStyle::DoubleQuoted => {
                self.chars.next();
                self.skip_escape()?;
            }
            // In a run of blanks with a line break, single blanks have no counterpart.
            Some((_, c)) if c.is_whitespace() && !self.run_breaks_line() => {
                self.chars.next();
            }
            _ => {}
        }
        Some(start..self.at())
    }

    /// Scans each run once, so that a long one takes linear time.
    fn run_breaks_line(&mut self) -> bool {
        let at = self.at();
        if at >= self.run_end {
            let rest = &self.written[at..];
            let run = &rest[..rest.len() - rest.trim_start().len()];
            self.run_end = at + run.len();
            self.run_breaks = run.contains(['\n', '\r']);
        }
        self.run_breaks
    }

    fn skip_blanks(&mut self) {
        self.skip_line_continuations();
        while self.chars.next_if(|(_, c)| c.is_whitespace()).is_some() {
            self.skip_line_continuations();
        }
    }

    /// In double quotes a backslash at a line's end takes the break and the indentation away.
    fn skip_line_continuations(&mut self) {
        while self.style == ScalarStyle::DoubleQuoted
            && (self.rest().starts_with("\\\n") || self.rest().starts_with("\\\r"))
        {
            self.chars.next();
            while self.chars.next_if(|(_, c)| c.is_whitespace()).is_some() {}
        }
    }

    /// Steps over what follows the backslash of an escape.
    fn skip_escape(&mut self) -> Option<()> {
        let (_, kind) = self.chars.next()?;
        let digits = match kind {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => 0,
        };
        for _ in 0..digits {
            self.chars.next().filter(|(_, c)| c.is_ascii_hexdigit())?;
        }
        Some(())
    }
}
