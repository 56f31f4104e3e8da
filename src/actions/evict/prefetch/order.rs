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
    /// The chunk of each file in which reading has begun last.
    last: BTreeMap<usize, usize>,
    /// To the next chunk.
    forward: Facts,
    /// From a chunk that was read as a whole.
    covering: Facts,
}

impl Order {
    /// Reading has begun in a chunk. `is_whole`: whether another one has been read as a whole.
    pub(super) fn begins(&mut self, id: ChunkId, is_whole: impl Fn(ChunkId) -> bool) {
        // What comes before the first step of a file is unknown: tracking may have begun late.
        let Some(before) = self.last.insert(id.file, id.chunk) else { return };
        self.forward.push(id.chunk == before + 1);
        self.covering.push(is_whole(ChunkId { chunk: before, ..id }));
    }

    /// Whether it reads forward and everything, as at least so many steps show.
    pub(super) fn is_forward(&self, steps: u32) -> bool {
        self.forward.are(steps) && self.covering.are(steps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(chunks: &[usize], is_whole: bool) -> Order {
        let mut order = Order::default();
        for chunk in chunks {
            order.begins(ChunkId { file: 0, chunk: *chunk }, |_| is_whole);
        }
        order
    }

    #[test]
    fn steps_to_the_next_chunk_are_forward_and_others_are_not() {
        let forward: Vec<usize> = (3..20).collect();
        assert!(after(&forward, true).is_forward(16));
        assert!(!after(&forward, true).is_forward(17), "the first chunk is no step");
        assert!(!after(&forward, false).is_forward(1), "it reads slices");
        let backward: Vec<usize> = (3..20).rev().collect();
        assert!(!after(&backward, true).is_forward(1));
        let tensors = [0, 1, 2, 3, 4, 5, 6, 7, 12, 8, 9, 10, 11, 13];
        assert!(!after(&tensors, true).is_forward(8), "11 of 13 steps");
    }

    #[test]
    fn each_file_has_steps_of_its_own_and_old_ones_are_forgotten() {
        let mut order = after(&[0, 9, 4, 7, 1], true);
        for chunk in 0..20 {
            for file in [1, 2] {
                order.begins(ChunkId { file, chunk }, |_| true);
            }
        }
        assert!(order.is_forward(32));
    }
}
