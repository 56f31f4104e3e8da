//! Text of others on a terminal and in logs: what would control the one or forge lines in the other
//! is escaped, as are characters that hide or turn text.

use std::borrow::Cow;

/// Whether a character controls a terminal, begins a line, is invisible, or turns the direction of
/// text.
pub fn is_unprintable(character: char) -> bool {
    let hides = matches!(
        character,
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
    );
    character.is_control() || hides
}

/// The text with unprintable characters as escapes: `\n`, `\u{1b}`.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unprintable) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        if is_unprintable(character) {
            escaped.extend(character.escape_default());
        } else {
            escaped.push(character);
        }
    }
    Cow::Owned(escaped)
}

/// [`printable`], and `…` after the first `most` characters of the text.
pub fn printable_beginning(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", printable(&text[..end])),
        None => printable(text).into_owned(),
    }
}

/// The text with `instead` for each unprintable character: it has as many characters as before.
pub fn without_unprintable(text: &str, instead: char) -> String {
    text.chars().map(|one| if is_unprintable(one) { instead } else { one }).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_controls_or_hides_is_escaped() {
        assert_eq!(printable("a\u{1b}[2Jb\u{202e}c\nd"), "a\\u{1b}[2Jb\\u{202e}c\\nd");
        assert_eq!(printable("VLLM::EngineCor → ü"), "VLLM::EngineCor → ü");
        assert_eq!(without_unprintable("a\tb\u{feff}c", ' '), "a b c");
        assert_eq!(printable_beginning("größer", 4), "größ…");
        assert_eq!(printable_beginning("größ", 4), "größ");
    }

    proptest! {
        #[test]
        fn nothing_unprintable_is_left(text in any::<String>(), most in 0_usize..40) {
            prop_assert!(!printable(&text).contains(is_unprintable));
            prop_assert!(!printable_beginning(&text, most).contains(is_unprintable));
            let without = without_unprintable(&text, '?');
            prop_assert!(!without.contains(is_unprintable));
            prop_assert_eq!(without.chars().count(), text.chars().count());
        }
    }
}
