//! Which sources an expression needs, from the names in its text.

use std::collections::BTreeSet;

use umawarden::model::{Source, metric};
use umawarden::policy::rule::Query;

/// The sources of all metrics that it cannot do without.
pub fn sources(query: &Query) -> BTreeSet<Source> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let needed = without_alternatives(&query.text);
    let words = needed.split(|letter| !is_part(letter));
    words.filter_map(metric).map(|metric| metric.source).collect()
}

/// The text without what stands in parentheses and is joined by `or on()`: where one side holds,
/// nothing needs to be known of the others.
fn without_alternatives(text: &str) -> String {
    let mut left = text.to_owned();
    let mut open: Vec<(usize, bool)> = Vec::new();
    for (at, letter) in text.char_indices() {
        if let Some(group) = open.last_mut().filter(|_| text[at..].starts_with("or on()")) {
            group.1 = true;
        }
        match letter {
            '(' => open.push((at, false)),
            ')' => {
                if let Some((from, true)) = open.pop() {
                    left.replace_range(from..at, &" ".repeat(at - from));
                }
            }
            _ => {}
        }
    }
    left
}

#[test]
fn what_has_an_alternative_is_not_needed() {
    assert_eq!(
        without_alternatives("a < b and on() (c(d) or on() e)").trim_end_matches(')').trim(),
        { "a < b and on()" }
    );
    assert_eq!(without_alternatives("a and (b or c)"), "a and (b or c)");
}
