//! In which order an engine reads its model files, and whether it reads all of them.

use std::collections::BTreeMap;

use crate::actions::evict::ledger::ChunkId;

/// Of the newest steps, this part at least must be alike: 7 of 8.
const ALIKE: (u32, u32) = (7, 8);

/// Ranks that share a file are at most so many chunks apart. Each takes its slice of a tensor, and
/// half of the largest one of most models has less than 512 MiB.
pub(super) const APART: usize = 32;

/// The newest of many yes-or-no facts.
#[derive(Clone, Copy, Debug, Default)]
struct RecentFacts {
    /// The newest in the lowest bit.
    bits: u32,
    known: u32,
}

impl RecentFacts {
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

/// What several readers have read of a file.
#[derive(Clone, Copy, Debug)]
struct SharedReads {
    /// The farthest chunk in which any of them has begun.
    front: usize,
    /// The first chunk of which is not known whether all of it was read.
    unjudged: usize,
}

/// The steps from chunk to chunk within a file: the newest 32.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// Files that several processes read, each its part.
    shared: BTreeMap<usize, SharedReads>,
    /// The last chunk of each file in which reading has begun by the round before.
    last: BTreeMap<usize, usize>,
    /// To the next chunk.
    forward: RecentFacts,
    /// From a chunk that was read as a whole.
    covering: RecentFacts,
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

    /// The same of a file that several processes read, each its part. Their chunks are in no order,
    /// but near one another, and all of them together are read as a whole. Returns the farthest
    /// chunk if it is a new one. `was_whole`: whether all readers together have read a chunk.
    pub(super) fn begins_shared(
        &mut self,
        file: usize,
        chunks: &[usize],
        was_whole: impl Fn(ChunkId) -> bool,
    ) -> Option<usize> {
        let (first, newest) = (*chunks.first()?, *chunks.last()?);
        let Some(known) = self.shared.get_mut(&file) else {
            self.shared.insert(file, SharedReads { front: newest, unjudged: first });
            return Some(newest);
        };
        for chunk in chunks {
            self.forward.push(chunk.abs_diff(known.front) <= APART);
        }
        if newest <= known.front {
            return None;
        }
        known.front = newest;
        let judged = newest.saturating_sub(APART);
        for chunk in known.unjudged..judged {
            self.covering.push(was_whole(ChunkId { file, chunk }));
        }
        known.unjudged = known.unjudged.max(judged);
        Some(newest)
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

    /// After two ranks that take their halves of tensors of so many chunks, at the same time.
    fn after_ranks(tensor: usize, chunks: usize, is_whole: bool) -> Order {
        let mut order = Order::default();
        for tensor_begin in (0..chunks).step_by(tensor) {
            for chunk in tensor_begin..tensor_begin + tensor / 2 {
                order.begins_shared(0, &[chunk, chunk + tensor / 2], |_| is_whole);
            }
        }
        order
    }

    #[test]
    fn ranks_that_read_their_halves_of_each_tensor_are_forward_together() {
        assert!(after_ranks(4, 48, true).is_forward(8));
        assert!(!after_ranks(4, 36, true).is_forward(8), "too little is known to be whole");
        assert!(!after_ranks(4, 48, false).is_forward(1), "a rank of another node has the rest");
        assert!(!after_ranks(128, 256, true).is_forward(8), "too far from one another");
    }

    #[test]
    fn readers_of_a_shared_file_have_one_front() {
        let mut order = Order::default();
        assert_eq!(order.begins_shared(0, &[4], |_| true), Some(4));
        assert_eq!(order.begins_shared(0, &[2, 3], |_| true), None);
        assert_eq!(order.begins_shared(1, &[0], |_| true), Some(0));
        assert_eq!(order.begins_shared(0, &[1, 7], |_| true), Some(7));
        assert_eq!(order.begins_shared(0, &[], |_| true), None);
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
