//! Colours, and lines that fit the terminal.

use std::borrow::Cow;

use unicode_width::UnicodeWidthStr as _;

use crate::cli::output::{self, outln};
use crate::model::printable;

/// The widest beginning of a line that the rest of its text is aligned with.
const WIDEST_HEAD: usize = 28;

/// The indent of the rest of a text below a wider beginning.
const INDENT: usize = 4;

/// What a text means, for its colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Tone {
    #[default]
    Plain,
    Good,
    Warn,
    Bad,
    Faint,
    Strong,
    /// One of several things, in the colour of its number.
    Number(usize),
}

impl Tone {
    /// The sequence of ECMA-48 that begins it.
    fn begin(self) -> &'static str {
        const NUMBERED: [&str; 6] =
            ["\x1b[36m", "\x1b[34m", "\x1b[35m", "\x1b[96m", "\x1b[94m", "\x1b[95m"];
        match self {
            Self::Plain => "",
            Self::Good => "\x1b[32m",
            Self::Warn => "\x1b[33m",
            Self::Bad => "\x1b[1;31m",
            Self::Faint => "\x1b[2m",
            Self::Strong => "\x1b[1m",
            Self::Number(number) => NUMBERED[number % NUMBERED.len()],
        }
    }
}

/// What is known of the terminal that a text is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Screen {
    /// Its columns; `None` if it is no terminal: lines stay whole.
    pub(super) width: Option<usize>,
    pub(super) has_colours: bool,
}

impl Screen {
    /// Standard output.
    pub(super) fn of_output() -> Self {
        let width = output::width();
        Self { width, has_colours: output::colours_wanted(width.is_some()) }
    }

    /// A text in its colour.
    pub(super) fn paint(self, tone: Tone, text: &str) -> String {
        match tone.begin() {
            begin if self.has_colours && !begin.is_empty() && !text.is_empty() => {
                format!("{begin}{text}\x1b[0m")
            }
            _ => text.to_owned(),
        }
    }
}

/// Whether this user's terminal shows more than ASCII, by the locale.
pub(super) fn is_utf8() -> bool {
    let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set).unwrap_or_default();
    let locale = locale.to_ascii_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

/// A line for people: a beginning, which has the colour, and a text that continues below itself
/// where it is longer than the terminal is wide.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Row {
    head: String,
    tone: Tone,
    text: String,
}

impl Row {
    /// What is not printable in either is escaped.
    pub(super) fn new(tone: Tone, head: &str, text: &str) -> Self {
        let (head, text) = (printable(head).into_owned(), printable(text).into_owned());
        Self { head, tone, text }
    }

    /// The line as it is for that terminal, without the last newline.
    pub(super) fn shown(&self, screen: Screen) -> String {
        let head = self.head.width();
        let indent = match head {
            0 => aligned(&self.text),
            wide if wide > WIDEST_HEAD => INDENT,
            narrow => narrow,
        };
        let text = match screen.width {
            Some(width) => wrapped(&self.text, head, indent, width),
            None => self.text.clone(),
        };
        format!("{}{text}", screen.paint(self.tone, &self.head))
    }

    /// Prints it.
    pub(super) fn print(&self) {
        outln!("{}", self.shown(Screen::of_output()));
    }
}

impl From<String> for Row {
    fn from(text: String) -> Self {
        Self::new(Tone::Plain, "", &text)
    }
}

/// A line for standard output, wrapped if that is a terminal. What is not printable is escaped.
pub(super) fn fitted(text: &str) -> String {
    let screen = Screen { has_colours: false, ..Screen::of_output() };
    Row::new(Tone::Plain, "", text).shown(screen)
}

/// Lines for standard output, each wrapped if that is a terminal. They may have colours. The caller
/// escapes what is not printable.
pub(super) fn fitted_lines(text: &str) -> String {
    lines_within(text, output::width())
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

/// Whether a table of that width is too wide for the terminal.
pub(super) fn is_too_wide(columns: usize) -> bool {
    output::width().is_some_and(|width| columns > width)
}

/// A row of a table that is too wide: the first cell, and then each other one behind its title.
pub(super) fn stacked(titles: &[&str], cells: &[String]) -> String {
    let (first, others) = cells.split_first().map_or(("", cells), |(first, rest)| (first, rest));
    let others =
        titles.iter().skip(1).zip(others).filter(|(_, cell)| *cell != "-" && !cell.is_empty());
    let others: Vec<String> =
        others.map(|(title, cell)| format!("{} {cell}", title.to_lowercase())).collect();
    fitted(&format!("{first}  {}", others.join(", ")))
}

/// Where the second column of a text begins, or else a little more than its own indent.
fn aligned(text: &str) -> usize {
    let own = text.len() - text.trim_start().len();
    let gap = text[own..].find("  ").map(|at| own + at);
    let second = gap.map(|at| at + (text[at..].len() - text[at..].trim_start().len()));
    let column = second.map(|at| text[..at].width());
    column.filter(|column| *column <= WIDEST_HEAD).unwrap_or((own + INDENT).min(WIDEST_HEAD))
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

    const NARROW: Screen = Screen { width: Some(20), has_colours: false };
    const PIPE: Screen = Screen { width: None, has_colours: false };

    #[test]
    fn a_text_continues_below_itself_on_a_terminal_and_stays_whole_in_a_pipe() {
        let row = Row::new(Tone::Bad, "problem  ", "swap is on and engines page");
        assert_eq!(row.shown(NARROW), "problem  swap is on\n         and engines\n         page");
        assert_eq!(row.shown(PIPE), "problem  swap is on and engines page");
        let coloured = Screen { width: Some(80), has_colours: true };
        assert_eq!(row.shown(coloured), "\x1b[1;31mproblem  \x1b[0mswap is on and engines page");
    }

    #[test]
    fn a_long_word_behind_a_wide_beginning_has_a_line_of_its_own() {
        let row = Row::new(Tone::Plain, &"h".repeat(30), "a_long_word");
        let screen = Screen { width: Some(36), has_colours: false };
        assert_eq!(row.shown(screen), format!("{}\n    a_long_word", "h".repeat(30)));
    }

    #[test]
    fn the_second_column_of_a_plain_line_keeps_its_place() {
        let row = Row::from("qwen   serving for an hour".to_owned());
        assert_eq!(row.shown(NARROW), "qwen   serving for\n       an hour");
        let row = Row::from("a text without any columns".to_owned());
        assert_eq!(row.shown(NARROW), "a text without any\n    columns");
    }

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

    #[test]
    fn a_name_cannot_change_colours() {
        assert_eq!(Row::new(Tone::Good, "a\x1b[31m", "").shown(PIPE), "a\\u{1b}[31m");
    }
}
