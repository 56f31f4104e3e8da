//! Responses over HTTP.

use serde_json::Value;

use crate::model::without_unprintable;

/// Characters of a body that an error shows.
const SHOWN_CHARS: usize = 160;

/// A response of any status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpResponse {
    /// The HTTP status.
    pub status: u16,
    /// The body, or its beginning.
    pub body: Vec<u8>,
    /// Whether the body was longer.
    pub is_cut: bool,
}

impl HttpResponse {
    /// Whether it was done.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON, if it is that.
    pub fn json(&self) -> Option<Value> {
        (!self.is_cut).then(|| serde_json::from_slice(&self.body).ok())?
    }

    /// What people are shown of the body.
    pub fn beginning(&self) -> String {
        shown(&self.body)
    }
}

/// What people are shown of a body.
pub fn shown(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let text: String = text.trim().chars().take(SHOWN_CHARS).collect();
    let text = without_unprintable(&text, ' ');
    if text.is_empty() { "nothing".to_owned() } else { format!("\"{text}\"") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_shown_cut_and_without_unprintable_characters() {
        assert_eq!(shown(b" \n"), "nothing");
        assert_eq!(shown(b" a\x1b[1mb\n"), "\"a [1mb\"");
        assert_eq!(shown("ä".repeat(1_000).as_bytes()), format!("\"{}\"", "ä".repeat(SHOWN_CHARS)));
    }
}
