//! Texts in pieces, and in lines that are no wider than a terminal.

use std::borrow::Cow;
use std::fmt::{Arguments, Write as _};

use unicode_width::UnicodeWidthStr as _;

/// The widest beginning of a line that the rest of its text is aligned with.
pub(super) const WIDEST_HEAD: usize = 28;

/// The indent of the rest of a text below a wider beginning.
pub(super) const INDENT: usize = 4;

/// Appends a formatted text.
pub(super) fn append(text: &mut String, more: Arguments<'_>) {
    // Writing to a String cannot fail.
    text.write_fmt(more).unwrap_or_default();
}

/// Lines, each wrapped at that width; `None`: they stay whole.
pub(super) fn lines_within(text: &str, width: Option<usize>) -> String {
    let Some(width) = width else { return text.to_owned() };
    let fit = |line: &str| {
        let own = line.len() - line.trim_start().len();
        let indent = (own + INDENT).min(WIDEST_HEAD);
        if is_excerpt(line) { line.to_owned() } else { wrapped(line, 0, indent, width) }
    };
    text.split('\n').map(fit).collect::<Vec<_>>().join("\n")
}

/// Whether it is a line of a file, or the carets below one, behind the margin that a mistake has.
/// The carets would lose their place.
fn is_excerpt(line: &str) -> bool {
    let line = without_colours(line);
    let number = line.trim_start();
    number.trim_start_matches(|digit: char| digit.is_ascii_digit()).trim_start().starts_with('|')
}

/// Without the sequences that set colours.
fn without_colours(text: &str) -> Cow<'_, str> {
    let Some((first, rest)) = text.split_once("\x1b[") else { return Cow::Borrowed(text) };
    let mut plain = first.to_owned();
    for part in rest.split("\x1b[") {
        plain.push_str(part.split_once('m').map_or(part, |(_, shown)| shown));
    }
    Cow::Owned(plain)
}

/// Breaks a text that begins in column `head` at spaces, so that no line is wider than `width`.
/// Further lines are indented. A longer word stays whole, so that it can be copied. Colours have no
/// columns.
pub(super) fn wrapped(text: &str, head: usize, indent: usize, width: usize) -> String {
    let mut shown = String::with_capacity(text.len() + 16);
    let mut column = head;
    // A wide beginning may have the first line for itself.
    let mut is_first_of_line = head <= indent;
    let mut rest = text;
    while !rest.is_empty() {
        let gap = rest.len() - rest.trim_start_matches(' ').len();
        let word_ends = rest[gap..].find(' ').map_or(rest.len(), |at| gap + at);
        let (space, word) = (&rest[..gap], &rest[gap..word_ends]);
        let (space_width, word_width) = (gap, without_colours(word).width());
        if !is_first_of_line && column + space_width + word_width > width && !word.is_empty() {
            shown.push('\n');
            shown.extend(std::iter::repeat_n(' ', indent));
            column = indent + word_width;
        } else {
            shown.push_str(space);
            column += space_width + word_width;
        }
        shown.push_str(word);
        is_first_of_line = word.is_empty() && is_first_of_line;
        rest = &rest[word_ends..];
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_word_stays_whole_and_nothing_is_lost() {
        for text in
            ["", " ", "  a  b ", "x", &"y".repeat(50), "one /a/very/long/path/of/a/file end"]
        {
            let shown = wrapped(text, 0, 2, 20);
            let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(words(&shown), words(text));
            assert!(shown.lines().all(|line| line.width() <= 20 || !line.trim().contains(' ')));
        }
    }

    #[test]
    fn each_line_of_a_text_is_wrapped_and_an_excerpt_keeps_its_columns() {
        let mistake = "\x1b[1mr.yaml:12:3: \x1b[31mno such metric here\x1b[0m\n\
                       \x1b[34m12 |\x1b[0m expr: uma_such_memory > 3\n\
                       \x1b[34m   |\x1b[0m       \x1b[31m^^^^^^^^^^^^^^^\x1b[0m\n   \
                       = did you mean this one\n";
        assert_eq!(lines_within(mistake, None), mistake);
        let shown = lines_within(mistake, Some(20));
        let plain = without_colours(&shown);
        assert_eq!(
            plain,
            "r.yaml:12:3: no such\n    metric here\n\
             12 | expr: uma_such_memory > 3\n\
             \x20  |       ^^^^^^^^^^^^^^^\n   \
             = did you mean\n       this one\n"
        );
        assert_eq!(
            lines_within("  a reason that is long", Some(20)),
            "  a reason that is\n      long"
        );
    }
}
