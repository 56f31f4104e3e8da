//! Readings of the same series at several instants, packed in memory as in a segment.

use super::columns::Columns;
use super::wire::Bytes;
use crate::model::Reading;

/// Readings from frame to frame. Each series takes a bit a frame, and a few bytes where its reading
/// has changed.
#[derive(Debug)]
pub struct Frames {
    series: usize,
    count: usize,
    bytes: Vec<u8>,
    /// The state of the encoder; `None` once no frame follows.
    columns: Option<Columns>,
}

impl Frames {
    /// No frames yet, of that many series.
    pub fn new(series: usize) -> Self {
        Self { series, count: 0, bytes: Vec::new(), columns: Some(Columns::new(series)) }
    }

    /// Adds a frame with a reading for each series. Without effect after [`Self::seal`], and with
    /// another number of readings; returns whether it was added.
    pub fn push(&mut self, readings: &[Reading<f64>]) -> bool {
        let Some(columns) = self.columns.as_mut().filter(|_| readings.len() == self.series) else {
            return false;
        };
        columns.encode(readings, &mut self.bytes);
        self.count += 1;
        true
    }

    /// Frees what only further frames need.
    pub fn seal(&mut self) {
        self.columns = None;
        self.bytes.shrink_to_fit();
    }

    /// The number of frames.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The memory that it takes, in bytes.
    pub fn size(&self) -> usize {
        const OF_A_COLUMN: usize = size_of::<Reading<f64>>() + size_of::<[i64; 2]>();
        let state = if self.columns.is_some() { self.series * OF_A_COLUMN } else { 0 };
        self.bytes.capacity() + state
    }

    /// Visits the readings of each frame, the oldest first, until `visit` returns false.
    pub fn each(&self, mut visit: impl FnMut(usize, &[Reading<f64>]) -> bool) {
        let mut columns = Columns::new(self.series);
        let mut bytes = Bytes(&self.bytes);
        for index in 0..self.count {
            // Its own bytes are never malformed.
            let Ok(readings) = columns.decode(&mut bytes) else { return };
            if !visit(index, readings) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn reading() -> impl Strategy<Value = Reading<f64>> {
        prop_oneof![
            any::<f64>().prop_map(Reading::Value),
            (0..1_u64 << 40).prop_map(|whole| Reading::Value(whole as f64)),
            Just(Reading::Unsupported),
            Just(Reading::Failed),
        ]
    }

    proptest! {
        #[test]
        fn frames_are_read_back_bit_for_bit(
            frames in prop::collection::vec(prop::collection::vec(reading(), 11), 0..40),
            is_sealed: bool,
        ) {
            let mut packed = Frames::new(11);
            for readings in &frames {
                prop_assert!(packed.push(readings));
            }
            if is_sealed {
                packed.seal();
                prop_assert!(!packed.push(&[Reading::Failed; 11]));
            }
            prop_assert!(!packed.push(&[Reading::Failed; 3]));
            let mut seen = 0;
            packed.each(|index, readings| {
                assert_eq!(index, seen);
                let same = readings.iter().zip(&frames[index]);
                assert!(same.fold(true, |all, (one, other)| all && one.is_same(*other)));
                seen += 1;
                true
            });
            prop_assert_eq!(seen, frames.len());
            prop_assert_eq!(packed.count(), frames.len());
        }
    }

    #[test]
    fn unchanged_readings_take_a_bit_each() {
        let mut packed = Frames::new(400);
        let readings: Vec<_> = (0..400).map(|number| Reading::Value(f64::from(number))).collect();
        packed.push(&readings);
        let first = packed.bytes.len();
        packed.push(&readings);
        assert_eq!(packed.bytes.len() - first, 50);
    }
}
