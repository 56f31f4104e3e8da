//! Whether a condition is known while sources have failed, from its text alone.

use std::collections::BTreeMap;

use umawarden::model::{Source, metric};

/// The state of a failed source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It cannot be read.
    Failed,
    /// It is absent: its series are empty.
    Gone,
}

/// Sources without any readings.
type Failed = BTreeMap<Source, Failure>;

/// Whether it may be known that the condition holds, and with which series. The left side of `or`
/// decides before the right one.
pub fn may_hold(text: &str, failed: &Failed) -> bool {
    holds(text, failed, true)
}

/// Whether it may be known that the condition does not hold.
pub fn may_end(text: &str, failed: &Failed) -> bool {
    split(text, &["or"]).iter().all(|(_, branch)| {
        let parts = split(branch, &["and", "unless"]);
        if let [(_, part)] = parts.as_slice() {
            return within(part).map_or_else(|| is_reported(part, failed), |i| may_end(i, failed));
        }
        parts.iter().any(|(word, part)| match *word {
            "unless" => holds(part, failed, false),
            _ => may_end(part, failed),
        })
    })
}

/// If the series do not matter, either side of `or` decides.
fn holds(text: &str, failed: &Failed, with_what: bool) -> bool {
    let branches = split(text, &["or"]);
    branches.iter().enumerate().any(|(index, (_, branch))| {
        let is_first =
            branches.iter().take(index).all(|(_, before)| !with_what || may_end(before, failed));
        is_first && all_hold(branch, failed, with_what)
    })
}

fn all_hold(branch: &str, failed: &Failed, with_what: bool) -> bool {
    let parts = split(branch, &["and", "unless"]);
    if let [(_, part)] = parts.as_slice() {
        return within(part)
            .map_or_else(|| is_read(part, failed), |inner| holds(inner, failed, with_what));
    }
    parts.iter().all(|(word, part)| match *word {
        "unless" => may_end(part, failed),
        "and" => holds(part, failed, false),
        _ => holds(part, failed, with_what),
    })
}

/// Whether a part without `and`, `or` and `unless` may be known to be empty. It is empty where one
/// side of a comparison is absent, or covers a range without readings.
fn is_reported(part: &str, failed: &Failed) -> bool {
    let mut sides = [" < on() ", " > on() "].iter().flat_map(|with| part.split(with));
    is_read(part, failed)
        || names(part, failed, Failure::Gone)
        || sides.any(|side| side.contains('[') && is_read(side, failed))
}

/// Whether every metric in it can be read.
fn is_read(text: &str, failed: &Failed) -> bool {
    !names(text, failed, Failure::Failed)
}

fn names(text: &str, failed: &Failed, failure: Failure) -> bool {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    words.filter_map(metric).any(|metric| failed.get(&metric.source) == Some(&failure))
}

/// Parts between these words outside of all parentheses, each with the word before it.
fn split<'t>(text: &'t str, words: &[&'static str]) -> Vec<(&'static str, &'t str)> {
    let is_part = |letter: Option<char>| {
        letter.is_some_and(|letter| letter.is_ascii_alphanumeric() || letter == '_')
    };
    let mut parts = Vec::new();
    let (mut depth, mut from, mut before) = (0_usize, 0, "");
    for (at, letter) in text.char_indices() {
        match letter {
            '(' | '{' | '[' => depth += 1,
            ')' | '}' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        let begins = depth == 0 && at >= from && !is_part(text[..at].chars().next_back());
        let word = words.iter().find(|word| {
            let after = text[at..].strip_prefix(**word);
            begins && after.is_some_and(|after| !is_part(after.chars().next()))
        });
        if let Some(word) = word {
            parts.push((before, &text[from..at]));
            (from, before) = (at + word.len(), word);
        }
    }
    parts.push((before, &text[from..]));
    parts
}

/// Content of the outer parentheses, without the labels of `on`.
fn within(text: &str) -> Option<&str> {
    let mut text = text.trim();
    for matching in ["on(", "ignoring("] {
        if let Some((_, after)) = text.strip_prefix(matching).and_then(|t| t.split_once(')')) {
            text = after.trim();
        }
    }
    let inner = text.strip_prefix('(')?.strip_suffix(')')?;
    let mut depth = 0;
    for letter in inner.chars() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth < 0 {
            return None;
        }
    }
    Some(inner)
}

#[test]
fn decisions_are_checked_while_sources_are_unreadable() {
    let failed =
        Failed::from([(Source::Pressure, Failure::Failed), (Source::Vmstat, Failure::Gone)]);
    let known = "uma_memory_free_bytes < 9";
    let lost = "rate(uma_pressure_stalled_seconds_total[1s]) > 0";
    for (text, hold, end) in [
        ("K", true, true),
        ("L", false, false),
        ("K and L", false, true),
        ("L and on() K", false, true),
        ("K or L", true, false),
        ("L or K", false, false),
        ("K and on() (L or on() K)", true, true),
        ("K and on() (K\n or on() (L))", true, true),
        ("(L or on() K) and K", false, true),
        ("K unless L", false, true),
        ("L unless on() K", false, true),
        ("K unless on() (L and on() K)", true, true),
        ("(K and L) or on() K", true, true),
        ("sum(K or L) > 1", false, false),
        ("rate(uma_memory_free_bytes[1s]) < on() uma_pressure_ratio", false, true),
        ("uma_memory_free_bytes < on() uma_pressure_ratio", false, false),
        ("uma_swap_in_pages_total < on() uma_pressure_ratio", false, true),
    ] {
        let text = text.replace('K', known).replace('L', lost);
        assert_eq!((may_hold(&text, &failed), may_end(&text, &failed)), (hold, end), "{text}");
    }
}
