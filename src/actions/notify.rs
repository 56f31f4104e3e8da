//! A line in the log; the decision is in the journal.

use std::fmt::Write as _;

use super::Act;
use crate::model::Action;

/// The most characters of a logged message.
const MESSAGE_CHARS: usize = 2048;

/// Logs the message of a `notify` as a warning; returns whether the act is one.
pub fn notify(act: &Act) -> bool {
    let Action::Notify { message } = &act.action else { return false };
    tracing::warn!(
        rule = %printable(&act.rule.to_string()),
        decision = act.id.0,
        "{}",
        printable(message)
    );
    true
}

/// The message with everything escaped that could forge a line, move a terminal's cursor or turn
/// the reading direction: texts of rules may quote untrusted labels.
fn printable(message: &str) -> String {
    let mut safe = String::with_capacity(message.len());
    for character in message.chars().take(MESSAGE_CHARS) {
        let hidden = matches!(
            character,
            '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
        );
        if character.is_control() || hidden {
            let _ = write!(safe, "{}", character.escape_default());
        } else {
            safe.push(character);
        }
    }
    if message.chars().nth(MESSAGE_CHARS).is_some() {
        safe.push('…');
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_could_forge_a_line_are_escaped() {
        assert_eq!(printable("8 GiB frei, größer \u{1b}[31m\nERROR x\r\u{202e}y"), {
            "8 GiB frei, größer \\u{1b}[31m\\nERROR x\\r\\u{202e}y"
        });
    }

    #[test]
    fn a_long_message_is_cut() {
        let long = "ä".repeat(MESSAGE_CHARS + 1);
        let logged = printable(&long);
        assert_eq!(logged.chars().count(), MESSAGE_CHARS + 1);
        assert!(logged.ends_with('…'));
        assert!(!printable(&"ä".repeat(MESSAGE_CHARS)).ends_with('…'));
    }
}
