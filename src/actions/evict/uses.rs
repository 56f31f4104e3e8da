//! How the engine uses a model file, and what it has read of it.

use std::ops::Range;

use super::files::offset;
use super::ledger::CHUNK_BYTES;
use super::process::{Mapped, OpenFile};

/// After so many rounds (a second at least) without a move, a file position is not used: pread(2)
/// leaves it alone.
pub(super) const STILL_ROUNDS: u32 = 100;

/// The present use of one file.
#[derive(Debug, Default)]
pub(super) struct FileUse {
    /// The mappings, by the number of their process.
    pub(super) mapped: Vec<(usize, Mapped)>,
    /// The open files, by the number of their process.
    pub(super) opened: Vec<(usize, OpenFile)>,
    /// The farthest of those readers.
    position: u64,
    /// Rounds since that moved; `None` before it ever did.
    still_for: Option<u32>,
    /// It was mapped or open at some time since tracking began.
    pub(super) was_used: bool,
    /// Files that sort behind it have been used: it was read before tracking began.
    pub(super) is_before_first: bool,
    /// Bytes of each chunk that were cached at its first sample.
    at_first: Vec<u64>,
}

/// What is known of what has been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// What the readers have in their page tables.
    InPageTables,
    /// Everything before a position.
    UpTo(u64),
    /// What came into memory since tracking began.
    Since,
    /// The whole file.
    All,
    /// Nothing: it is ahead of the readers.
    Nothing,
}

impl FileUse {
    /// What is known of what has been read of it.
    pub(super) fn reading(&self) -> Reading {
        match (self.mapped.is_empty(), self.opened.is_empty()) {
            (false, _) => Reading::InPageTables,
            (true, false) => match self.still_for {
                Some(rounds) if rounds < STILL_ROUNDS => Reading::UpTo(self.position),
                Some(_) | None => Reading::Since,
            },
            (true, true) if self.was_used || self.is_before_first => Reading::All,
            (true, true) => Reading::Nothing,
        }
    }

    /// Records the position of its farthest reader. Returns the bytes that are known to be read by
    /// it: at its first move everything before it.
    pub(super) fn moved_to(&mut self, position: u64, is_first: bool) -> Range<u64> {
        let from = self.still_for.map_or(0, |_| self.position);
        let moved = from..position.max(self.position);
        if position > self.position && !is_first {
            self.still_for = Some(0);
        } else if let Some(rounds) = &mut self.still_for {
            *rounds = rounds.saturating_add(1);
        }
        let has_moved = moved.end > self.position && !is_first;
        self.position = moved.end;
        if has_moved { moved } else { 0..0 }
    }

    /// Whether a process maps it or has it open.
    pub(super) fn is_in_use(&self) -> bool {
        !self.mapped.is_empty() || !self.opened.is_empty()
    }

    /// Whether several processes map it: ranks, each of which may read a part.
    pub(super) fn is_shared(&self) -> bool {
        let mut readers = self.mapped.iter().map(|(process, _)| process);
        readers.next().is_some_and(|first| readers.any(|other| other != first))
    }

    /// Whether it is read past the page cache: what is cached before a position was not read there.
    pub(super) fn is_read_directly(&self) -> bool {
        self.mapped.is_empty() && self.opened.iter().any(|(_, opened)| opened.is_direct)
    }

    /// Whether only the order of shards says that it has been read.
    pub(super) fn is_presumed_read(&self) -> bool {
        self.is_before_first && !self.was_used
    }

    /// Of a chunk of which so much is cached, what has been read by what is known without page
    /// tables.
    pub(super) fn read_of(&mut self, chunk: usize, cached: u64) -> u64 {
        let first = self.at_first(chunk);
        if *first == u64::MAX {
            *first = cached;
        }
        let first = *first;
        match self.reading() {
            Reading::UpTo(position) => position.saturating_sub(offset(chunk)).min(cached),
            Reading::Since => cached.saturating_sub(first),
            Reading::All => cached,
            Reading::InPageTables | Reading::Nothing => 0,
        }
    }

    /// What of a chunk was cached at its first sample; `u64::MAX` before that.
    fn at_first(&mut self, chunk: usize) -> &mut u64 {
        if self.at_first.len() <= chunk {
            self.at_first.resize(chunk + 1, u64::MAX);
        }
        &mut self.at_first[chunk]
    }

    /// Records what of a chunk was read ahead: that was cached before the engine reads.
    pub(super) fn was_read_ahead(&mut self, chunk: usize, cached: u64) {
        *self.at_first(chunk) = cached;
    }

    /// The addresses at which a chunk is mapped, and by which process.
    pub(super) fn addresses(
        &self,
        chunk: usize,
    ) -> impl Iterator<Item = (usize, &Mapped, Range<u64>)> {
        let begin = offset(chunk);
        let wanted = begin..begin.saturating_add(CHUNK_BYTES);
        self.mapped.iter().filter_map(move |(process, mapped)| {
            Some((*process, mapped, addresses_of(mapped, &wanted)?))
        })
    }
}

/// The number of bytes in any of these parts.
pub(super) fn covered(mut parts: Vec<Range<u64>>) -> u64 {
    parts.sort_unstable_by_key(|part| part.start);
    let (mut bytes, mut end) = (0, 0);
    for part in parts {
        bytes += part.end.saturating_sub(part.start.max(end));
        end = end.max(part.end);
    }
    bytes
}

/// Where a part of a file is mapped, if it is.
fn addresses_of(mapped: &Mapped, wanted: &Range<u64>) -> Option<Range<u64>> {
    let length = mapped.addresses.end - mapped.addresses.start;
    let begin = wanted.start.max(mapped.offset);
    let end = wanted.end.min(mapped.offset.checked_add(length)?);
    let at = |offset: u64| mapped.addresses.start + (offset - mapped.offset);
    (begin < end).then(|| at(begin)..at(end))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use proptest::prelude::*;

    use super::*;
    use crate::actions::evict::files::FileIdentity;

    fn mapped(from: u64, length: u64, offset: u64) -> Mapped {
        Mapped { addresses: from..from + length, offset, inode: 1, path: PathBuf::new() }
    }

    fn opened() -> OpenFile {
        let stat = rustix::fs::stat("/").unwrap();
        let (identity, path) = (FileIdentity::from(&stat), PathBuf::new());
        OpenFile { number: 3, identity, path, is_direct: false }
    }

    #[test]
    fn a_moving_reader_has_read_everything_before_its_position() {
        let mut used = FileUse { opened: vec![(0, opened())], ..FileUse::default() };
        assert_eq!(used.moved_to(CHUNK_BYTES, true), 0..0);
        assert_eq!(used.reading(), Reading::Since, "it may state there for ever");
        assert_eq!(used.read_of(0, CHUNK_BYTES), 0, "it was cached before the first sample");
        assert_eq!(used.moved_to(CHUNK_BYTES + 100, false), 0..CHUNK_BYTES + 100);
        assert_eq!(used.reading(), Reading::UpTo(CHUNK_BYTES + 100));
        assert_eq!(used.read_of(0, CHUNK_BYTES), CHUNK_BYTES);
        assert_eq!(used.read_of(1, CHUNK_BYTES), 100);
        assert_eq!(used.read_of(2, CHUNK_BYTES), 0, "read ahead");
        assert_eq!(used.moved_to(CHUNK_BYTES + 300, false), CHUNK_BYTES + 100..CHUNK_BYTES + 300);
        assert_eq!(used.moved_to(CHUNK_BYTES, false), 0..0);
    }

    #[test]
    fn a_reader_with_a_still_position_has_read_the_newly_cached_bytes() {
        let mut used = FileUse { opened: vec![(0, opened())], ..FileUse::default() };
        used.moved_to(0, true);
        used.moved_to(8, false);
        for _ in 0..STILL_ROUNDS {
            used.moved_to(8, false);
        }
        assert_eq!(used.read_of(5, 4096), 0);
        assert_eq!(used.read_of(5, CHUNK_BYTES), CHUNK_BYTES - 4096);
    }

    #[test]
    fn a_file_no_longer_used_counts_as_read_and_an_unused_one_as_unread() {
        let mut used = FileUse::default();
        assert_eq!(used.read_of(0, 7), 0);
        used.was_used = true;
        assert_eq!(used.read_of(0, 7), 7);
        let mut earlier = FileUse { is_before_first: true, ..FileUse::default() };
        assert_eq!(earlier.read_of(3, 7), 7);
    }

    #[test]
    fn a_file_is_shared_where_several_processes_map_it() {
        let of = |processes: &[usize]| {
            let mapped = processes.iter().map(|process| (*process, mapped(4096, 4096, 0)));
            FileUse { mapped: mapped.collect(), ..FileUse::default() }.is_shared()
        };
        assert!(of(&[0, 0, 2]));
        assert!(!of(&[1, 1]) && !of(&[]));
    }

    proptest! {
        #[test]
        fn bytes_in_several_parts_count_once(
            parts in prop::collection::vec((0_u64..64, 0_u64..64), 0..8),
        ) {
            let parts: Vec<Range<u64>> = parts.iter().map(|(at, long)| *at..at + long).collect();
            let is_in = |byte: &u64| parts.iter().any(|part| part.contains(byte));
            let expected = (0..128).filter(is_in).count() as u64;
            prop_assert_eq!(covered(parts), expected);
        }

        #[test]
        fn addresses_of_a_chunk_are_inside_the_mapping(
            from in 1_u64..1 << 40, length in 1_u64..1 << 30, offset_in in 0_u64..1 << 34,
            chunk in 0_usize..2048,
        ) {
            let mapping = mapped(from, length, offset_in);
            let wanted = offset(chunk)..offset(chunk) + CHUNK_BYTES;
            match addresses_of(&mapping, &wanted) {
                Some(found) => {
                    prop_assert!(found.start < found.end);
                    prop_assert!(found.start >= from && found.end <= from + length);
                    let begin = offset_in + (found.start - from);
                    let end = offset_in + (found.end - from);
                    prop_assert!(wanted.start <= begin && end <= wanted.end);
                    prop_assert_eq!(mapping.part_at(&found), begin..end);
                }
                None => prop_assert!(
                    offset_in >= wanted.end || offset_in + length <= wanted.start
                ),
            }
        }
    }
}
