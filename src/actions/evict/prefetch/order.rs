//! In which order an engine reads its model files, and whether it reads all of them.

use std::collections::BTreeMap;

use crate::actions::evict::ledger::ChunkId;

/// Of the newest steps, this part at least must be alike: 7 of 8.
const ALIKE: (u32, u32) = (7, 8);

/// The newest of many yes-or-no facts.
#[derive(Clone, Copy, Debug, Default)]
struct Facts {
    /// The newest in the lowest bit.
    bits: u32,
    known: u32,
}

impl Facts {
    fn push(&mut self, is: bool) {
        self.bits = self.bits << 1 | u32::from(is);
        self.known = (self.known + 1).min(u32::BITS);
    }

    /// Whether at least so many are known, and most of them are a yes.
    fn are(self, least: u32) -> bool {
        let (part, of) = ALIKE;
        self.known >= least && self.bits.count_ones() * of >= self.known * part
    }
}

/// The steps from chunk to chunk within a file: the newest 32.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// The last chunk of each file in which reading has begun by the round before.
    last: BTreeMap<usize, usize>,
    /// To the next chunk.
    forward: Facts,
    /// From a chunk that was read as a whole.
    covering: Facts,
}

impl Order {
    /// Reading has begun in these chunks of a file since the round before, in ascending order; in
    /// which order they were read is unknown. `is_whole`: whether a chunk has been read as a whole.
    pub(super) fn begins(
        &mut self,
        file: usize,
        chunks: &[usize],
        is_whole: impl Fn(ChunkId) -> bool,
    ) {
        let Some(newest) = chunks.last() else { return };
        // What comes before the first step of a file is unknown: tracking may have begun late.
        let Some(before) = self.last.insert(file, *newest) else { return };
        let is_forward = chunks.iter().copied().eq(before + 1..=*newest);
        let left = std::iter::once(&before).chain(chunks).take(chunks.len());
        for chunk in left {
            self.forward.push(is_forward);
            self.covering.push(is_whole(ChunkId { file, chunk: *chunk }));
        }
    }

    /// Reading has begun in so many chunks that were not the next ones.
    pub(super) fn leaps(&mut self, chunks: usize) {
        (0..chunks.min(u32::BITS as usize)).for_each(|_| self.forward.push(false));
    }

    /// Whether it reads forward and everything, as at least so many steps show.
    pub(super) fn is_forward(&self, steps: u32) -> bool {
        self.forward.are(steps) && self.covering.are(steps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After rounds in each of which reading has begun in these chunks.
    fn after(rounds: &[&[usize]], is_whole: bool) -> Order {
        let mut order = Order::default();
        rounds.iter().for_each(|chunks| order.begins(0, chunks, |_| is_whole));
        order
    }

    #[test]
    fn steps_to_the_next_chunk_are_forward_and_others_are_not() {
        let forward: &[&[usize]] = &[&[3], &[4, 5, 6], &[7], &[8, 9], &[10, 11]];
        assert!(after(forward, true).is_forward(8));
        assert!(!after(forward, true).is_forward(9), "the first chunk is no step");
        assert!(!after(forward, false).is_forward(1), "it reads slices");
        let leaps: &[&[usize]] = &[&[3], &[5], &[4], &[6, 8], &[7]];
        assert!(!after(leaps, true).is_forward(1));
    }

    #[test]
    fn chunks_that_were_read_backward_between_two_rounds_are_no_steps_forward() {
        let backward: &[&[usize]] =
            &[&[127], &[120, 121, 122, 123, 124, 125, 126], &[113, 114, 115, 116, 117, 118, 119]];
        assert!(!after(backward, true).is_forward(1));
    }

    #[test]
    fn leaps_end_a_forward_reader() {
        let mut order = after(&[&[0], &[1, 2, 3, 4, 5, 6, 7, 8]], true);
        order.leaps(1);
        assert!(order.is_forward(8), "one of nine");
        order.leaps(1);
        assert!(!order.is_forward(8));
    }

    #[test]
    fn each_file_has_steps_of_its_own_and_old_ones_are_forgotten() {
        let mut order = after(&[&[0], &[9], &[4], &[7], &[1]], true);
        for chunk in 0..20 {
            for file in [1, 2] {
                order.begins(file, &[chunk], |_| true);
            }
        }
        assert!(order.is_forward(32));
    }
}
