//! The values of one schema from reading to reading: a bit for each that changed, and what it
//! changed by.
//!
//! Nearly all values are whole numbers (bytes, counts) or millionths (seconds that the kernel
//! counts in microseconds, percentages): a short difference to the value before. All others are
//! stored as they are. Every value is read back bit for bit.

use super::wire::{Bytes, Malformed, put_number, unzigzag, zigzag};
use crate::model::Reading;

const WHOLE: u64 = 0;
const MILLIONTHS: u64 = 1;
const OTHER: u64 = 2;

const OTHER_UNSUPPORTED: u64 = 0;
const OTHER_FAILED: u64 = 1;
const OTHER_BITS: u64 = 2;

/// Whole numbers beyond this are not exact in an `f64`.
const LARGEST: f64 = 9_007_199_254_740_992.0;

/// The last values of one schema's series.
#[derive(Debug, Default)]
pub(super) struct Columns {
    last: Vec<Reading<f64>>,
    /// The last value as a whole number or in millionths; 0 for others.
    bases: Vec<[i64; 2]>,
}

impl Columns {
    /// Columns for a number of series, without values.
    pub(super) fn new(count: usize) -> Self {
        Self { last: vec![Reading::Unsupported; count], bases: vec![[0; 2]; count] }
    }

    /// The number of series.
    pub(super) fn len(&self) -> usize {
        self.last.len()
    }

    /// Appends a reading. `values` must have one for each series.
    pub(super) fn encode(&mut self, values: &[Reading<f64>], out: &mut Vec<u8>) {
        let bitmap = out.len();
        out.resize(bitmap + values.len().div_ceil(8), 0);
        let known = self.last.iter_mut().zip(&mut self.bases);
        for (position, (value, (last, bases))) in values.iter().zip(known).enumerate() {
            if last.is_same(*value) {
                continue;
            }
            if let Some(byte) = out.get_mut(bitmap + position / 8) {
                *byte |= 1 << (position % 8);
            }
            put_value(*value, bases, out);
            *last = *value;
        }
    }

    /// Reads a reading back.
    pub(super) fn decode(&mut self, from: &mut Bytes<'_>) -> Result<&[Reading<f64>], Malformed> {
        let bitmap = from.take(self.last.len().div_ceil(8))?;
        let known = self.last.chunks_mut(8).zip(self.bases.chunks_mut(8)).zip(bitmap);
        for ((last, bases), byte) in known.filter(|(_, byte)| **byte != 0) {
            for (bit, (last, bases)) in last.iter_mut().zip(bases).enumerate() {
                if byte & (1 << bit) != 0 {
                    *last = take_value(bases, from)?;
                }
            }
        }
        Ok(&self.last)
    }
}

/// The whole number that `value` is, bit for bit.
fn whole(value: f64) -> Option<i64> {
    if value.abs() > LARGEST {
        return None;
    }
    let number = value as i64;
    ((number as f64).to_bits() == value.to_bits()).then_some(number)
}

fn from_millionths(number: i64) -> f64 {
    number as f64 / 1e6
}

fn millionths(value: f64) -> Option<i64> {
    let scaled = (value * 1e6).round();
    if scaled.is_nan() || scaled.abs() > LARGEST {
        return None;
    }
    let number = scaled as i64;
    (from_millionths(number).to_bits() == value.to_bits()).then_some(number)
}

fn put_value(value: Reading<f64>, bases: &mut [i64; 2], out: &mut Vec<u8>) {
    let value = match value {
        Reading::Value(value) => value,
        Reading::Unsupported => return put_number(out, OTHER_UNSUPPORTED << 2 | OTHER),
        Reading::Failed => return put_number(out, OTHER_FAILED << 2 | OTHER),
    };
    if let Some(number) = whole(value) {
        put_number(out, zigzag(number - bases[0]) << 2 | WHOLE);
        bases[0] = number;
    } else if let Some(number) = millionths(value) {
        put_number(out, zigzag(number - bases[1]) << 2 | MILLIONTHS);
        bases[1] = number;
    } else {
        put_number(out, OTHER_BITS << 2 | OTHER);
        out.extend_from_slice(&value.to_bits().to_le_bytes());
    }
}

fn take_value(bases: &mut [i64; 2], from: &mut Bytes<'_>) -> Result<Reading<f64>, Malformed> {
    let code = from.number()?;
    let rest = code >> 2;
    match code & 3 {
        WHOLE => {
            bases[0] = bases[0].wrapping_add(unzigzag(rest));
            Ok(Reading::Value(bases[0] as f64))
        }
        MILLIONTHS => {
            bases[1] = bases[1].wrapping_add(unzigzag(rest));
            Ok(Reading::Value(from_millionths(bases[1])))
        }
        OTHER => match rest {
            OTHER_UNSUPPORTED => Ok(Reading::Unsupported),
            OTHER_FAILED => Ok(Reading::Failed),
            OTHER_BITS => Ok(Reading::Value(f64::from_bits(u64::from_le_bytes(from.array()?)))),
            _ => Err(Malformed("a value of an unknown form")),
        },
        _ => Err(Malformed("a value of an unknown form")),
    }
}
