//! A line in the log; the decision is in the journal.

use super::Act;
use crate::model::{Action, printable, printable_beginning};

/// The most characters of a logged message.
const MESSAGE_CHARS: usize = 2048;

/// Logs the message of a `notify` as a warning; returns whether the act is one.
pub fn notify(act: &Act) -> bool {
    let Action::Notify { message } = &act.action else { return false };
    tracing::warn!(
        rule = %printable(&act.rule.to_string()),
        decision = act.id.0,
        text = printable_beginning(message, MESSAGE_CHARS),
        "notify"
    );
    true
}
