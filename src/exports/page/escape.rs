//! Text for HTML.

use std::fmt::{self, Write as _};

/// Text escaped for HTML, with invisible characters made visible: labels of alerts may be hostile.
pub(in crate::exports) struct Escaped<'a>(pub(in crate::exports) &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '&' => f.write_str("&amp;"),
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '"' => f.write_str("&quot;"),
            '\'' => f.write_str("&#39;"),
            '\n' | '\t' => f.write_char(c),
            c if c.is_control() || is_unseen(c) => write!(f, "{}", c.escape_default()),
            other => f.write_char(other),
        })
    }
}

/// Characters that change the direction of text or have no width.
fn is_unseen(c: char) -> bool {
    matches!(
        c,
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
    )
}
