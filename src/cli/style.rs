//! Colours, and lines that fit the terminal.

use unicode_width::UnicodeWidthStr as _;

use super::text::{INDENT, WIDEST_HEAD, lines_within, wrapped};
use crate::cli::output::{self, outln};
use crate::model::printable;

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
pub(super) struct StyledRow {
    head: String,
    tone: Tone,
    text: String,
}

impl StyledRow {
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

    pub(super) fn print(&self) {
        outln!("{}", self.shown(Screen::of_output()));
    }
}

impl From<String> for StyledRow {
    fn from(text: String) -> Self {
        Self::new(Tone::Plain, "", &text)
    }
}

/// A line for standard output, wrapped if that is a terminal. What is not printable is escaped.
pub(super) fn fitted(text: &str) -> String {
    let screen = Screen { has_colours: false, ..Screen::of_output() };
    StyledRow::new(Tone::Plain, "", text).shown(screen)
}

/// Lines for standard output, each wrapped if that is a terminal. They may have colours. The caller
/// escapes what is not printable.
pub(super) fn fitted_lines(text: &str) -> String {
    lines_within(text, output::width())
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

/// Names that are printed although not all are wanted.
const MOST_NAMED: usize = 4;

/// A heading with names below it; many names are only counted, unless all are wanted (`--all`).
pub(super) fn headed(heading: &str, names: &[String], is_all: bool) -> String {
    if names.len() > MOST_NAMED && !is_all {
        return fitted(&format!("{heading}: {}, which --all names", names.len())) + "\n";
    }
    let names = names.iter().map(|name| format!("  {}\n", printable(name)));
    names.fold(fitted(&format!("{heading}:")) + "\n", |text, name| text + &name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NARROW: Screen = Screen { width: Some(20), has_colours: false };
    const PIPE: Screen = Screen { width: None, has_colours: false };

    #[test]
    fn a_text_continues_below_itself_on_a_terminal_and_stays_whole_in_a_pipe() {
        let row = StyledRow::new(Tone::Bad, "problem  ", "swap is on and engines page");
        assert_eq!(row.shown(NARROW), "problem  swap is on\n         and engines\n         page");
        assert_eq!(row.shown(PIPE), "problem  swap is on and engines page");
        let coloured = Screen { width: Some(80), has_colours: true };
        assert_eq!(row.shown(coloured), "\x1b[1;31mproblem  \x1b[0mswap is on and engines page");
    }

    #[test]
    fn a_long_word_behind_a_wide_beginning_has_a_line_of_its_own() {
        let row = StyledRow::new(Tone::Plain, &"h".repeat(30), "a_long_word");
        let screen = Screen { width: Some(36), has_colours: false };
        assert_eq!(row.shown(screen), format!("{}\n    a_long_word", "h".repeat(30)));
    }

    #[test]
    fn the_second_column_of_a_plain_line_keeps_its_place() {
        let row = StyledRow::from("qwen   serving for an hour".to_owned());
        assert_eq!(row.shown(NARROW), "qwen   serving for\n       an hour");
        let row = StyledRow::from("a text without any columns".to_owned());
        assert_eq!(row.shown(NARROW), "a text without any\n    columns");
    }

    #[test]
    fn a_name_cannot_change_colours() {
        assert_eq!(StyledRow::new(Tone::Good, "a\x1b[31m", "").shown(PIPE), "a\\u{1b}[31m");
    }

    #[test]
    fn many_names_are_counted_unless_all_are_wanted() {
        let names: Vec<String> = (1..=5).map(|number| format!("r{number}")).collect();
        assert_eq!(headed("never", &names[..2], false), "never:\n  r1\n  r2\n");
        assert_eq!(headed("never", &names, false), "never: 5, which --all names\n");
        assert!(headed("never", &names, true).ends_with("\n  r4\n  r5\n"));
    }
}
