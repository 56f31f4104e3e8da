//! Texts of requests that go on over several lines of a log.

use super::QUOTES;

/// The most lines of one text: a cut one has no end.
const MOST_LINES: usize = 200;

/// How a line of an engine, of a shell or of Python begins, which ends a text without its end.
const BEGINNINGS: [&str; 9] = [
    "INFO",
    "WARN",
    "ERROR",
    "CRITICAL",
    "DEBUG",
    "FATAL",
    "Traceback (most recent call last)",
    "terminate called",
    "(",
];

/// Finds the lines that are the text of a request, from its second one on: they may hold anything.
#[derive(Debug, Default)]
pub struct RequestTexts {
    /// The quote that ends the text, and the most lines that it still has.
    open: Option<(char, usize)>,
}

impl RequestTexts {
    /// Takes the next line of a log. Returns whether the engine itself wrote it.
    pub fn is_own(&mut self, line: &str) -> bool {
        if let Some((quote, left)) = self.open.take() {
            if ends(line, quote) {
                return false;
            }
            if left > 0 && !begins(line) {
                self.open = Some((quote, left - 1));
                return false;
            }
        }
        let opened = QUOTES.iter().filter_map(|words| {
            let (before, text) = line.split_once(*words)?;
            let own = words.chars().next_back().filter(|last| is_quote(*last));
            let text = text.trim_start();
            match own {
                Some(quote) => Some((before.len(), quote, text)),
                None => Some((
                    before.len(),
                    text.chars().next().filter(|next| is_quote(*next))?,
                    text.get(1..)?,
                )),
            }
        });
        let first = opened.min_by_key(|(at, _, _)| *at);
        self.open = first
            .filter(|(_, quote, text)| !ends(text, *quote))
            .map(|(_, quote, _)| (quote, MOST_LINES));
        true
    }
}

fn is_quote(letter: char) -> bool {
    matches!(letter, '\'' | '"')
}

/// Whether a text has the quote that ends it: apostrophes within words do not.
fn ends(text: &str, quote: char) -> bool {
    text.match_indices(quote).any(|(at, _)| {
        let rest = text.get(at + 1..).unwrap_or_default();
        let is_escaped = text.get(..at).is_some_and(|before| before.ends_with('\\'));
        !is_escaped && !rest.starts_with(char::is_alphanumeric)
    })
}

fn begins(line: &str) -> bool {
    let is_stamp = |word: &str| word.starts_with(|first: char| first.is_ascii_digit());
    let is_dated = line.len() >= 19 && line.contains(':') && is_stamp(line.trim_start_matches('['));
    is_dated || BEGINNINGS.iter().any(|words| line.starts_with(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(lines: &[&str]) -> Vec<bool> {
        let mut texts = RequestTexts::default();
        lines.iter().map(|line| texts.is_own(line)).collect()
    }

    #[test]
    fn later_lines_of_a_text_are_no_words_of_the_engine() {
        for (first, last) in [
            ("Received request 1: prompt: 'it says", "std::bad_alloc', params: 1"),
            ("body: {\"prompt\": \"it's this:", "Killed\"}"),
            ("request prompt=\"a", "b\" temperature=1"),
        ] {
            let lines = [first, "CUDA out of memory", "it's mine", last, "Killed"];
            assert_eq!(own(&lines), [true, false, false, false, true], "{first}");
        }
    }

    #[test]
    fn a_text_on_one_line_or_without_its_end_hides_nothing() {
        assert_eq!(own(&["prompt: 'a', params: 1", "Killed"]), [true, true]);
        assert_eq!(own(&["inputs=[1, 2]", "Killed"]), [true, true]);
        for line in ["ERROR 06-01 10:00:00 [core.py:1] x", "2026-11-21 02:31:07 x", "(Worker) x"] {
            assert_eq!(own(&["prompt: 'a", line, "Killed"]), [true, true, true], "{line}");
        }
        let mut lines = vec!["prompt: 'a"];
        lines.extend(vec!["x"; MOST_LINES + 1]);
        assert_eq!(own(&lines).last(), Some(&true));
    }
}
