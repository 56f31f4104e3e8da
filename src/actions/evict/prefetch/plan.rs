//! What is read ahead of an engine, and what became of it.

use std::collections::VecDeque;

use super::order::{APART, Order};
use crate::actions::evict::ledger::{CHUNK_BYTES, ChunkId, LoadLedger};
use crate::model::Prefetch;

/// So much is read ahead at most: 0.2 s of a disk of 5 GiB/s.
const MOST_AHEAD_BYTES: u64 = 1 << 30;

/// This part of the free memory above the floor is read ahead at most: the engine allocates
/// meanwhile.
const AHEAD_PART: u64 = 8;

/// What was read ahead goes again where it is more than this part of the free memory above the
/// floor.
const STAYS_PART: u64 = 2;

/// With less, nothing is read ahead: the reader would be behind the engine again.
const LEAST_AHEAD_BYTES: u64 = 4 * CHUNK_BYTES;

/// So many steps from chunk to chunk show how the engine reads: 128 MiB.
const TELLING_STEPS: u32 = 8;

/// Where the rule wants it `on`.
const FIRST_STEPS: u32 = 1;

/// The chunk behind the engine's is left to the engine, which is about to read it.
const LEAD: usize = 2;

/// Chunks that are in the page cache already are passed over, so many at a time.
const MOST_PASSED_OVER: usize = 256;

/// A chunk that was read ahead.
#[derive(Clone, Copy, Debug)]
struct ReadAheadChunk {
    id: ChunkId,
    bytes: u64,
}

/// Bytes so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::actions::evict) struct AheadTally {
    /// Read ahead.
    pub(in crate::actions::evict) read_bytes: u64,
    /// Those that went, or were passed over, without any use.
    pub(in crate::actions::evict) unused_bytes: u64,
}

/// The plan for one load. It reads nothing itself.
#[derive(Debug)]
pub(super) struct PrefetchPlan {
    wanted: Prefetch,
    order: Order,
    /// The chunk in which the engine has begun to read last.
    engine_at: Option<ChunkId>,
    /// The chunk to be read next.
    next: Option<ChunkId>,
    /// The engine has not gone on to another file than was foreseen.
    is_next_file_known: bool,
    /// Read, and not yet used; in the order in which they were read.
    ahead: VecDeque<ReadAheadChunk>,
    /// Chunks that are being read, or are about to be.
    queued: Vec<ChunkId>,
    tally: AheadTally,
}

impl PrefetchPlan {
    pub(super) fn new(wanted: Prefetch) -> Self {
        Self {
            wanted,
            order: Order::default(),
            engine_at: None,
            next: None,
            is_next_file_known: true,
            ahead: VecDeque::new(),
            queued: Vec::new(),
            tally: AheadTally::default(),
        }
    }

    pub(super) fn is_off(&self) -> bool {
        self.wanted == Prefetch::Off
    }

    pub(super) fn tally(&self) -> AheadTally {
        self.tally
    }

    /// Whether too much was read for nothing.
    pub(super) fn is_in_vain(&self) -> bool {
        self.tally.unused_bytes >= Prefetch::MOST_UNUSED_BYTES
    }

    /// The engine has begun to read in these chunks since the round before; in those of `apart`
    /// where that was not expected. `is_shared`: whether several processes read a file.
    pub(super) fn begins(
        &mut self,
        mut ids: Vec<ChunkId>,
        apart: &[ChunkId],
        ledger: &LoadLedger,
        is_shared: impl Fn(usize) -> bool,
    ) {
        let (of_ranks, leaps): (Vec<ChunkId>, Vec<ChunkId>) =
            apart.iter().partition(|id| is_shared(id.file));
        self.order.leaps(leaps.len());
        ids.extend(of_ranks);
        ids.sort_unstable();
        for of_file in ids.chunk_by(|one, other| one.file == other.file) {
            let Some(newest) = of_file.last().copied() else { continue };
            let chunks: Vec<usize> = of_file.iter().map(|id| id.chunk).collect();
            if is_shared(newest.file) {
                let was_whole = |id| ledger.was_mostly_read(id);
                let front = self.order.begins_shared(newest.file, &chunks, was_whole);
                front.into_iter().for_each(|chunk| self.goes_to(ChunkId { chunk, ..newest }));
            } else {
                self.order.begins(newest.file, &chunks, |id| ledger.is_mostly_read(id));
                self.goes_to(newest);
            }
        }
    }

    fn goes_to(&mut self, id: ChunkId) {
        let was_at = self.engine_at.replace(id);
        let is_other = was_at.is_some_and(|at| at.file != id.file);
        let is_foreseen = self.next.is_none_or(|next| next.file == id.file)
            || self.ahead.iter().any(|ahead| ahead.id.file == id.file);
        if is_other && !is_foreseen {
            let is_guess = self.next.map(|next| next.file) != was_at.map(|at| at.file);
            self.is_next_file_known &= !is_guess;
            self.next = None;
        }
    }

    /// These chunks are not read after all.
    pub(super) fn withdrawn(&mut self, ids: &[ChunkId]) {
        self.queued.retain(|queued| !ids.contains(queued));
    }

    /// Reading ahead goes on right ahead of the engine, and passes over what is cached.
    pub(super) fn goes_on_at_engine(&mut self) {
        self.next = None;
    }

    /// A chunk has been read ahead, or could not be.
    pub(super) fn done(&mut self, id: ChunkId, bytes: Option<u64>) {
        self.queued.retain(|queued| *queued != id);
        if let Some(bytes) = bytes {
            self.tally.read_bytes += bytes;
            self.ahead.push_back(ReadAheadChunk { id, bytes });
        }
    }

    /// The chunks that were read ahead and not yet used.
    pub(super) fn chunks(&self) -> impl Iterator<Item = ChunkId> {
        self.ahead.iter().map(|ahead| ahead.id)
    }

    /// Strikes off the chunks that were used, and those that never will be. `is_shared`: whether
    /// several processes read a file; the last of them may be far behind the first.
    pub(super) fn settle(&mut self, ledger: &LoadLedger, is_shared: impl Fn(usize) -> bool) {
        let mut unused = 0;
        self.ahead.retain(|ReadAheadChunk { id, bytes }| {
            let is_used = ledger.is_mostly_read(*id) || ledger.is_evicted(*id);
            let is_gone = !ledger.has_begun(*id) && ledger.cached_of(*id) < bytes / 2;
            let least = if is_shared(id.file) { APART as u64 * CHUNK_BYTES } else { 0 };
            let is_unused = !is_used && (is_gone || ledger.is_passed(*id, least));
            if is_unused {
                unused += bytes.saturating_sub(ledger.read_of(*id));
            }
            !is_used && !is_unused
        });
        self.tally.unused_bytes += unused;
    }

    /// The engine uses a file no longer (`None`: any of them). Returns the chunks of it that it
    /// cannot have read since the last sample, in which it reads `leap_bytes` at most; at the end
    /// also those that are being read.
    pub(super) fn closed(
        &mut self,
        file: Option<usize>,
        leap_bytes: u64,
        ledger: &LoadLedger,
    ) -> Vec<ChunkId> {
        let leap = usize::try_from(leap_bytes.div_ceil(CHUNK_BYTES)).unwrap_or(usize::MAX);
        let reached =
            self.engine_at.map(|at| ChunkId { chunk: at.chunk.saturating_add(leap), ..at });
        let is_its = |ahead: &ReadAheadChunk| file.is_none_or(|file| ahead.id.file == file);
        let (its, others) = self.ahead.drain(..).partition::<VecDeque<_>, _>(is_its);
        self.ahead = others;
        let is_reached = |id: ChunkId| reached.is_some_and(|at| id.file == at.file && id <= at);
        let unused = its.iter().filter(|one| !ledger.has_begun(one.id) && !is_reached(one.id));
        self.tally.unused_bytes += unused.clone().map(|one| one.bytes).sum::<u64>();
        let queued = if file.is_none() { std::mem::take(&mut self.queued) } else { Vec::new() };
        unused.map(|one| one.id).chain(queued).collect()
    }

    /// Whether nothing is being read.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.queued.is_empty()
    }

    /// The file in which the engine has read last.
    pub(super) fn engine_file(&self) -> Option<usize> {
        self.engine_at.map(|at| at.file)
    }

    /// Bytes that are ahead, or about to be.
    fn ahead_bytes(&self) -> u64 {
        let read: u64 = self.ahead.iter().map(|ahead| ahead.bytes).sum();
        read + self.queued.len() as u64 * CHUNK_BYTES
    }

    /// Whether more is ahead, or about to be, than may stay.
    pub(super) fn is_excessive(&self, spare_bytes: u64) -> bool {
        self.ahead_bytes() > spare_bytes / STAYS_PART
    }

    /// The chunks that must go again, since memory is short: the last ones first. They count as
    /// unused.
    pub(super) fn excess(&mut self, spare_bytes: u64, ledger: &LoadLedger) -> Vec<ChunkId> {
        let most_bytes = spare_bytes / STAYS_PART;
        let mut bytes: u64 = self.ahead.iter().map(|ahead| ahead.bytes).sum();
        let mut going = Vec::new();
        while bytes > most_bytes {
            let Some(last) = self.ahead.pop_back() else { break };
            bytes -= last.bytes;
            self.tally.unused_bytes += last.bytes.saturating_sub(ledger.read_of(last.id));
            going.push(last.id);
        }
        if !going.is_empty() {
            self.next = None;
        }
        going
    }

    /// The chunks to be read next. `spare_bytes`: free memory above the floor; `is_readable`:
    /// whether it is known what the engine reads of a file; `behind`: the file that it reads after
    /// one.
    pub(super) fn wanted(
        &mut self,
        spare_bytes: u64,
        ledger: &LoadLedger,
        is_readable: impl Fn(usize) -> bool,
        behind: impl Fn(usize) -> Option<usize>,
    ) -> Vec<ChunkId> {
        let steps = match self.wanted {
            Prefetch::Off => return Vec::new(),
            Prefetch::Auto => TELLING_STEPS,
            Prefetch::On => FIRST_STEPS,
        };
        let Some(engine_at) = self.engine_at.filter(|id| is_readable(id.file)) else {
            return Vec::new();
        };
        let most = window(spare_bytes);
        if !self.order.is_forward(steps) || most == 0 || self.is_in_vain() {
            return Vec::new();
        }
        let mut bytes = self.ahead_bytes();
        let mut at = self.resume_at(engine_at);
        let mut found = Vec::new();
        for _ in 0..MOST_PASSED_OVER {
            if bytes + CHUNK_BYTES > most {
                break;
            }
            if ledger.length_of(at) == 0 {
                let next = behind(at.file).filter(|_| self.is_next_file_known);
                let Some(file) = next else { break };
                at = ChunkId { file, chunk: 0 };
                continue;
            }
            let is_ahead = self.queued.contains(&at) || self.chunks().any(|id| id == at);
            if ledger.is_to_come(at) && !is_ahead {
                bytes += ledger.length_of(at);
                self.queued.push(at);
                found.push(at);
            }
            at.chunk += 1;
        }
        self.next = Some(at);
        found
    }

    /// Where reading ahead goes on: where it was, unless the engine has come as far.
    fn resume_at(&self, engine_at: ChunkId) -> ChunkId {
        let least = ChunkId { chunk: engine_at.chunk + LEAD, ..engine_at };
        match self.next {
            Some(next) if next.file == least.file => next.max(least),
            Some(next) => next,
            None => least,
        }
    }
}

/// How much may be ahead, in bytes.
pub(super) fn window(spare_bytes: u64) -> u64 {
    let most = (spare_bytes / AHEAD_PART).min(MOST_AHEAD_BYTES);
    if most < LEAST_AHEAD_BYTES { 0 } else { most }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actions::evict::ledger::ChunkSample;

    const FULL: ChunkSample = ChunkSample { cached: CHUNK_BYTES, read: CHUNK_BYTES };
    const UNREAD: ChunkSample = ChunkSample { cached: CHUNK_BYTES, read: 0 };
    const MUCH: u64 = 64 << 30;

    /// A plan, and the ledger of files of 40 chunks each.
    struct World {
        plan: PrefetchPlan,
        ledger: LoadLedger,
    }

    fn id(file: usize, chunk: usize) -> ChunkId {
        ChunkId { file, chunk }
    }

    impl World {
        fn new(wanted: Prefetch, files: usize) -> Self {
            let mut ledger = LoadLedger::new(2 * CHUNK_BYTES);
            (0..files).for_each(|_| ledger.add_file(40 * CHUNK_BYTES));
            Self { plan: PrefetchPlan::new(wanted), ledger }
        }

        fn reads(&mut self, file: usize, chunks: impl IntoIterator<Item = usize>) {
            for chunk in chunks {
                self.ledger.observe(id(file, chunk), FULL);
                self.plan.begins(self.ledger.take_begun(), &[], &self.ledger, |_| false);
            }
            self.plan.settle(&self.ledger, |_| false);
        }

        /// What is wanted next; the reader reads all of it at once.
        fn wants(&mut self, spare_bytes: u64) -> Vec<ChunkId> {
            let next = |file: usize| (file < 2).then_some(file + 1);
            let wanted = self.plan.wanted(spare_bytes, &self.ledger, |_| true, next);
            for id in &wanted {
                self.ledger.observe(*id, UNREAD);
                self.plan.done(*id, Some(self.ledger.length_of(*id)));
            }
            wanted
        }

        fn unused_chunks(&self) -> u64 {
            self.plan.tally().unused_bytes / CHUNK_BYTES
        }
    }

    #[test]
    fn a_forward_reader_is_read_ahead_of_into_the_next_file_within_the_window() {
        let mut world = World::new(Prefetch::Auto, 3);
        world.reads(0, 0..8);
        assert_eq!(world.wants(MUCH), [], "seven steps do not show it");
        world.reads(0, [8]);
        let wanted = world.wants(MUCH);
        assert_eq!((wanted[0], wanted[1], wanted.len()), (id(0, 10), id(0, 11), 64));
        assert_eq!((wanted[29], wanted[30], wanted[63]), (id(0, 39), id(1, 0), id(1, 33)));
        assert_eq!(world.wants(MUCH), [], "the window is full");
        world.reads(0, 9..12);
        assert_eq!(world.wants(MUCH), [id(1, 34), id(1, 35)]);
        assert_eq!(world.wants(2 << 30), [], "the window is smaller by now");
        world.reads(0, 12..40);
        world.reads(1, 0..20);
        assert_eq!(world.unused_chunks(), 0);
        assert_eq!(world.wants(8 * (20 << 24))[..2], [id(1, 36), id(1, 37)]);
    }

    #[test]
    fn nothing_is_read_ahead_of_slices_leaps_unknown_readers_and_on_starved_machines() {
        let mut sliced = World::new(Prefetch::Auto, 1);
        for chunk in 0..20 {
            let half = ChunkSample { read: CHUNK_BYTES / 2, ..UNREAD };
            sliced.ledger.observe(id(0, chunk), half);
            sliced.reads(0, []);
            sliced.plan.begins(sliced.ledger.take_begun(), &[], &sliced.ledger, |_| false);
        }
        assert_eq!(sliced.wants(MUCH), []);
        let mut backward = World::new(Prefetch::On, 1);
        backward.reads(0, (0..20).rev());
        assert_eq!(backward.wants(MUCH), []);
        let mut forward = World::new(Prefetch::Auto, 1);
        forward.reads(0, 0..20);
        assert_eq!(forward.plan.wanted(MUCH, &forward.ledger, |_| false, |_| None), []);
        assert_eq!(forward.wants(500 << 20), [], "less than four chunks");
        let mut off = World::new(Prefetch::Off, 1);
        off.reads(0, 0..20);
        assert_eq!(off.wants(MUCH), []);
        let mut on = World::new(Prefetch::On, 1);
        on.reads(0, 0..2);
        assert_eq!(on.wants(MUCH)[0], id(0, 3));
    }

    /// Two ranks read their halves of each piece; the second one is so many pieces behind.
    fn ranks(behind: usize, pieces: usize, both: bool) -> World {
        let mut world = World::new(Prefetch::Auto, 5);
        let half = |read| ChunkSample { read, ..UNREAD };
        for piece in 0..pieces + behind {
            let file = |piece: usize| id(piece / 40, piece % 40);
            if piece < pieces {
                world.ledger.observe(file(piece), half(CHUNK_BYTES / 2));
            }
            if let Some(second) = piece.checked_sub(behind).filter(|_| both) {
                world.ledger.observe(file(second), half(CHUNK_BYTES));
            }
            let begun = world.ledger.take_begun();
            let (expected, apart) = begun.split_at(begun.len() / 2);
            world.plan.begins(expected.to_vec(), apart, &world.ledger, |_| true);
            world.plan.settle(&world.ledger, |_| true);
        }
        world
    }

    #[test]
    fn ranks_that_share_files_are_read_ahead_of_if_all_of_it_is_read_by_some() {
        let wanted = ranks(6, 79, true).wants(MUCH);
        assert_eq!((wanted[0], wanted.len()), (id(2, 0), 40));
        assert_eq!(ranks(0, 39, true).wants(MUCH), [], "seven pieces are known to be whole");
        assert_eq!(ranks(0, 80, false).wants(MUCH), [], "another node reads the other half");
    }

    #[test]
    fn what_the_last_of_the_ranks_may_still_read_counts_as_unused_only_far_behind() {
        let mut world = ranks(0, 75, true);
        assert_eq!(world.wants(MUCH).len(), 44);
        let mut half_of = |pieces: std::ops::Range<usize>| {
            for piece in pieces {
                let half = ChunkSample { read: CHUNK_BYTES / 2, ..UNREAD };
                world.ledger.observe(id(piece / 40, piece % 40), half);
                world.plan.settle(&world.ledger, |_| true);
            }
            world.unused_chunks()
        };
        assert_eq!(half_of(77..120), 0);
        assert!(half_of(120..200) > 0);
    }

    #[test]
    fn an_engine_that_overtakes_is_left_a_lead_and_cached_chunks_are_passed_over() {
        let mut world = World::new(Prefetch::Auto, 1);
        world.reads(0, 0..9);
        world.ledger.observe(id(0, 11), UNREAD);
        let spare = 8 * 4 * CHUNK_BYTES;
        assert_eq!(world.wants(spare), [id(0, 10), id(0, 12), id(0, 13), id(0, 14)]);
        world.reads(0, 9..25);
        assert_eq!(world.wants(spare), [id(0, 26), id(0, 27), id(0, 28), id(0, 29)]);
    }

    #[test]
    fn a_file_that_was_not_foreseen_ends_guesses_about_the_next_file() {
        let mut world = World::new(Prefetch::Auto, 3);
        world.reads(0, 0..39);
        assert_eq!(world.wants(8 * 4 * CHUNK_BYTES), [0, 1, 2, 3].map(|chunk| id(1, chunk)));
        world.reads(0, [39]);
        world.reads(2, 0..10);
        assert_eq!(world.unused_chunks(), 0, "it may still come");
        assert_eq!(world.plan.closed(None, 0, &world.ledger), [0, 1, 2, 3].map(|c| id(1, c)));
        assert_eq!(world.unused_chunks(), 4);
        assert_eq!(world.wants(MUCH).len(), 29, "the rest of this file, and no other");
    }

    #[test]
    fn what_the_kernel_took_and_what_was_passed_over_is_unused_and_ends_it() {
        let mut world = World::new(Prefetch::Auto, 1);
        world.reads(0, 0..9);
        assert_eq!(world.wants(8 * 20 * CHUNK_BYTES).len(), 20);
        world.ledger.observe(id(0, 20), ChunkSample::default());
        world.plan.settle(&world.ledger, |_| false);
        assert_eq!(world.unused_chunks(), 1);
        world.ledger.observe(id(0, 10), ChunkSample { read: CHUNK_BYTES / 4, ..UNREAD });
        world.reads(0, [11, 12]);
        assert_eq!(world.plan.tally().unused_bytes, CHUNK_BYTES + CHUNK_BYTES / 4 * 3);
        assert!(!world.plan.is_in_vain());
        assert_eq!(world.plan.excess(MUCH, &world.ledger), []);
        let going = world.plan.excess(0, &world.ledger);
        assert_eq!((going[0], going.len()), (id(0, 29), 16));
        assert!(world.plan.is_in_vain());
        world.reads(0, 13..30);
        assert_eq!(world.wants(MUCH), []);
    }

    #[test]
    fn what_an_engine_may_have_read_before_it_closed_a_file_counts_as_used() {
        let mut world = World::new(Prefetch::Auto, 1);
        world.reads(0, 0..9);
        world.wants(8 * 20 * CHUNK_BYTES);
        let unused = world.plan.closed(Some(0), 6 * CHUNK_BYTES, &world.ledger);
        assert_eq!((unused[0], unused.len()), (id(0, 15), 15));
        assert_eq!(world.unused_chunks(), 15);
    }
}
