//! Text of a bounded length, without an allocation.

use std::fmt;

/// At most `N` bytes of UTF-8; `N` is below 256. Longer text is cut.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ShortText<const N: usize> {
    length: u8,
    bytes: [u8; N],
}

impl<const N: usize> ShortText<N> {
    /// The fitting part of a text.
    pub fn new(text: &str) -> Self {
        let mut short = Self::default();
        short.push(text);
        short
    }

    /// The text without padding.
    pub fn as_str(&self) -> &str {
        // Only whole characters are ever appended.
        std::str::from_utf8(&self.bytes[..usize::from(self.length)]).unwrap_or_default()
    }

    /// Whether the text is empty.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Appends the fitting part. Returns whether that was all.
    pub fn push(&mut self, text: &str) -> bool {
        let begin = usize::from(self.length);
        let mut length = N.min(usize::from(u8::MAX)) - begin;
        if text.len() > length {
            while !text.is_char_boundary(length) {
                length -= 1;
            }
        } else {
            length = text.len();
        }
        self.bytes[begin..begin + length].copy_from_slice(&text.as_bytes()[..length]);
        self.length = u8::try_from(begin + length).unwrap_or(u8::MAX);
        length == text.len()
    }
}

impl<const N: usize> Default for ShortText<N> {
    fn default() -> Self {
        Self { length: 0, bytes: [0; N] }
    }
}

impl<const N: usize> fmt::Debug for ShortText<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

impl<const N: usize> fmt::Write for ShortText<N> {
    /// Never fails: longer text is cut.
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text);
        Ok(())
    }
}
