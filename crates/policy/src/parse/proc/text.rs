//! Lines, words and numbers of kernel text files.

use super::ProcFileError;
use crate::model::Reading;

/// One line; `whole` unless the text ended before its newline.
pub(super) struct Line<'a> {
    pub(super) text: &'a [u8],
    pub(super) whole: bool,
}

/// The lines of a text, without their newlines.
pub(super) fn lines(mut rest: &[u8]) -> impl Iterator<Item = Line<'_>> {
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        Some(match rest.iter().position(|&byte| byte == b'\n') {
            Some(end) => {
                let text = &rest[..end];
                rest = &rest[end + 1..];
                Line { text, whole: true }
            }
            None => Line { text: std::mem::take(&mut rest), whole: false },
        })
    })
}

/// The words of a line, between blanks.
pub(super) fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|&byte| byte == b' ' || byte == b'\t').filter(|word| !word.is_empty())
}

/// A number in decimal digits alone. A value beyond `i64::MAX` is refused: there the kernel prints
/// counters that it let fall below zero.
pub(super) fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    let mut value = 0_u64;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
    }
    (value <= i64::MAX as u64).then_some(value)
}

/// The number in a word: `Failed` if it is none, or may have been cut off.
pub(super) fn reading(word: Option<&[u8]>, whole: bool) -> Reading<u64> {
    match word.and_then(number) {
        Some(value) if whole => Reading::Value(value),
        _ => Reading::Failed,
    }
}

/// An amount in KiB, such as `5 kB`, in bytes. The unit shows that the number is complete.
pub(super) fn kibibytes(amount: &[u8]) -> Reading<u64> {
    let mut words = words(amount);
    let value = words.next().and_then(number).and_then(|value| value.checked_mul(1024));
    match (value, words.next(), words.next()) {
        (Some(value), Some(b"kB"), None) => Reading::Value(value),
        _ => Reading::Failed,
    }
}

/// The number that is all of a file, as under `/proc/sys`; blanks around it are ignored.
pub fn single_number(text: &[u8]) -> Result<u64, ProcFileError> {
    let text = text.trim_ascii();
    if text.is_empty() {
        Err(ProcFileError::Empty)
    } else {
        number(text).ok_or(ProcFileError::Unrecognized)
    }
}

/// The number of the first line `key:` of a text such as `/proc/PID/fdinfo/N`; `None` where there
/// is none, or where it may have been cut off.
pub fn colon_number(text: &[u8], key: &[u8]) -> Option<u64> {
    let line = lines(text)
        .find(|line| line.text.strip_prefix(key).is_some_and(|rest| rest.first() == Some(&b':')))?;
    let value = line.text.get(key.len() + 1..)?;
    number(value.trim_ascii()).filter(|_| line.whole)
}

/// Adds readings up: `Failed` if one failed, `Unsupported` if there is none or all are, and
/// `Failed` if only some are, since the sum would be too small.
pub(super) fn sum(readings: impl Iterator<Item = Reading<u64>>) -> Reading<u64> {
    let (mut total, mut values, mut missing) = (0_u64, 0, 0);
    for reading in readings {
        match reading {
            Reading::Value(value) => match total.checked_add(value) {
                Some(sum) => (total, values) = (sum, values + 1),
                None => return Reading::Failed,
            },
            Reading::Unsupported => missing += 1,
            Reading::Failed => return Reading::Failed,
        }
    }
    match (values, missing) {
        (0, _) => Reading::Unsupported,
        (_, 0) => Reading::Value(total),
        _ => Reading::Failed,
    }
}

/// Declares the wanted fields of a `key value` file.
macro_rules! fields {
    ($(#[$attribute:meta])* $name:ident: $($variant:ident = $key:literal,)+) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $(#[doc = concat!("As the kernel names it: `", stringify!($key), "`.")] $variant,)+
        }

        impl $name {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// How many there are.
            pub const COUNT: usize = Self::ALL.len();

            /// The kernel's name for it.
            pub fn key(self) -> &'static [u8] {
                match self { $(Self::$variant => $key,)+ }
            }

            fn from_key(key: &[u8]) -> Option<Self> {
                match key { $($key => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}
pub(super) use fields;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_the_whole_word_before_the_colon() {
        let text = b"pos:\t4096\nflags:\t0100000\nPid:\t-1\nino:\t7";
        assert_eq!(colon_number(text, b"pos"), Some(4096));
        assert_eq!(colon_number(text, b"po"), None);
        assert_eq!(colon_number(text, b"Pid"), None);
        assert_eq!(colon_number(text, b"ino"), None, "it may have been cut off");
    }
}
