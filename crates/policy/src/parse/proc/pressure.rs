//! `/proc/pressure/*`.

use super::ProcFileError;
use super::text::{lines, number, reading, words};
use crate::model::Reading;

/// How long some, or all, tasks waited for a resource.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PressureStall {
    /// Share of the last 10 seconds, 0 to 1.
    pub avg10: Reading<f64>,
    /// In all, in microseconds.
    pub total_us: Reading<u64>,
}

const ABSENT: PressureStall =
    PressureStall { avg10: Reading::Unsupported, total_us: Reading::Unsupported };

/// What one file of `/proc/pressure` said.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pressure {
    /// At least one task waited.
    pub some: PressureStall,
    /// All tasks waited; not there for `cpu` before Linux 5.13.
    pub full: PressureStall,
}

impl Pressure {
    /// Parses the whole file.
    pub fn parse(text: &[u8]) -> Result<Self, ProcFileError> {
        let mut pressure = Self { some: ABSENT, full: ABSENT };
        let mut known = false;
        for line in lines(text) {
            let mut words = words(line.text);
            match words.next() {
                Some(b"some") => pressure.some = stall(words, line.whole),
                Some(b"full") => pressure.full = stall(words, line.whole),
                _ => continue,
            }
            known = true;
        }
        match (known, text.is_empty()) {
            (true, _) => Ok(pressure),
            (false, true) => Err(ProcFileError::Empty),
            (false, false) => Err(ProcFileError::Unrecognized),
        }
    }
}

fn stall<'a>(words: impl Iterator<Item = &'a [u8]>, whole: bool) -> PressureStall {
    let mut stall = ABSENT;
    let mut words = words.peekable();
    while let Some(word) = words.next() {
        let whole = whole || words.peek().is_some();
        if let Some(value) = word.strip_prefix(b"avg10=") {
            stall.avg10 = ratio(value, whole);
        } else if let Some(value) = word.strip_prefix(b"total=") {
            stall.total_us = reading(Some(value), whole);
        }
    }
    stall
}

/// A percentage with two decimals, such as `7.25`, as a ratio.
fn ratio(percent: &[u8], whole: bool) -> Reading<f64> {
    let hundredths = || {
        let point = percent.iter().position(|&byte| byte == b'.')?;
        let (units, decimals) = (&percent[..point], &percent[point + 1..]);
        let value = number(units)?.checked_mul(100)?.checked_add(number(decimals)?)?;
        (decimals.len() == 2 && value <= 10_000).then_some(value)
    };
    match hundredths() {
        Some(value) if whole => Reading::Value(value as f64 / 10_000.0),
        _ => Reading::Failed,
    }
}
