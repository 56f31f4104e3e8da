//! What has been read of the model files, in which order, and which chunks may be evicted.
//!
//! A file is sampled in chunks. Each chunk records the total progress of all readers at the time
//! when its last part was read. It may go once the readers have read as much more as the distance
//! that is kept. This holds for any order of reading, and any number of readers and files. A chunk
//! that is cached and not read yet is ahead of the readers, and stays.

use std::collections::VecDeque;
use std::ops::Range;

/// The size of a chunk.
pub(super) const CHUNK_BYTES: u64 = 16 << 20;

/// After so many equal samples, a chunk is sampled in turn only.
const HOT_SAMPLES: u8 = 16;

/// Limit of chunks of all files together: 4 TiB, more than the weights that a node can hold. A
/// sparse file costs its owner nothing, whatever its length.
const MOST_CHUNKS: usize = 1 << 18;

/// Limit of chunks that are sampled in each round.
const MOST_HOT: usize = 512;

/// Limit of chunks that wait to be taken as begun.
const MOST_BEGUN: usize = 4_096;

/// Of a chunk that counts as read, this part may be unread: the end of a tensor, or padding.
const MAY_BE_UNREAD_PART: u64 = 16;

/// The distance is doubled once this part of the evicted bytes has come back.
const ONE_MAY_COME_BACK_IN: u64 = 4;

/// Fewer refaulted bytes are ignored.
const LEAST_TELLING_BYTES: u64 = 64 << 20;

/// One chunk of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ChunkId {
    /// The number of the file in the ledger.
    pub(super) file: usize,
    /// The number of the chunk in the file.
    pub(super) chunk: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ChunkSample {
    /// Bytes in memory.
    pub(super) cached: u64,
    /// Bytes in memory that have been read.
    pub(super) read: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct LedgerChunk {
    cached: u64,
    read: u64,
    /// The total progress when this last grew.
    read_at: u64,
    /// Evicted, and not refaulted since.
    out: u64,
    /// All that was read of it, also what has left memory since; more than once where it came back.
    ever_read: u64,
}

impl LedgerChunk {
    fn is_out(&self) -> bool {
        self.out > 0 && self.cached == 0
    }
}

/// A chunk that may be evicted; the one read longest ago sorts first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DueChunk {
    /// The total progress when it was last read.
    read_at: u64,
    pub(super) id: ChunkId,
}

#[derive(Debug, Default)]
struct FileChunks {
    chunks: Vec<LedgerChunk>,
    length: u64,
    /// The chunk behind the farthest that has been read.
    frontier: usize,
}

#[derive(Debug)]
struct HotChunk {
    id: ChunkId,
    samples_left: u8,
}

#[derive(Debug)]
pub(super) struct LoadLedger {
    files: Vec<FileChunks>,
    /// The number of chunks of all files.
    chunks: usize,
    /// Bytes read of all files.
    progress: u64,
    /// Of what was read last, this many bytes stay.
    keep: u64,
    hot: VecDeque<HotChunk>,
    /// Chunks in which reading has begun, in order, until they are taken.
    begun: Vec<ChunkId>,
    /// Where the samples in turn go on.
    turn: ChunkId,
    /// The file at whose frontier the samples go on.
    frontier_turn: usize,
    evicted: u64,
    refaulted: u64,
    /// The same since the distance was last doubled.
    evicted_lately: u64,
    refaulted_lately: u64,
}

impl LoadLedger {
    /// A ledger that keeps the last `keep` bytes read.
    pub(super) fn new(keep: u64) -> Self {
        Self {
            files: Vec::new(),
            chunks: 0,
            progress: 0,
            keep,
            hot: VecDeque::new(),
            begun: Vec::new(),
            turn: ChunkId { file: 0, chunk: 0 },
            frontier_turn: 0,
            evicted: 0,
            refaulted: 0,
            evicted_lately: 0,
            refaulted_lately: 0,
        }
    }

    /// Adds a file; files are numbered in this order.
    pub(super) fn add_file(&mut self, length: u64) {
        self.files.push(FileChunks::default());
        self.resize(self.files.len() - 1, length);
    }

    /// Sets the length of a file. What is beyond the limit of chunks is not tracked.
    pub(super) fn resize(&mut self, file: usize, length: u64) {
        if let Some(known) = self.files.get_mut(file) {
            let of_others = self.chunks - known.chunks.len();
            known.length = length.min((MOST_CHUNKS - of_others) as u64 * CHUNK_BYTES);
            let chunks = usize::try_from(known.length.div_ceil(CHUNK_BYTES)).unwrap_or(0);
            known.chunks.resize(chunks, LedgerChunk::default());
            self.chunks = of_others + chunks;
        }
    }

    /// The chunks of a file without the evicted ones: sampling those is expensive.
    pub(super) fn chunks_not_out(&self, file: usize) -> Vec<ChunkId> {
        let chunks = self.files.get(file).map_or(&[][..], |book| &book.chunks);
        let stays = chunks.iter().enumerate().filter(|(_, chunk)| !chunk.is_out());
        stays.map(|(chunk, _)| ChunkId { file, chunk }).collect()
    }

    /// The chunks that hold these bytes of a file.
    pub(super) fn chunks_of(&self, file: usize, bytes: &Range<u64>) -> Vec<ChunkId> {
        let count = self.files.get(file).map_or(0, |book| book.chunks.len());
        let number = |chunk: u64| usize::try_from(chunk).unwrap_or(usize::MAX).min(count);
        let from = number(bytes.start / CHUNK_BYTES);
        let to = number(bytes.end.div_ceil(CHUNK_BYTES));
        (from..to).map(|chunk| ChunkId { file, chunk }).collect()
    }

    /// The chunk behind one in the same file.
    pub(super) fn next(&self, id: ChunkId) -> Option<ChunkId> {
        let next = ChunkId { chunk: id.chunk + 1, ..id };
        self.chunk(next).map(|_| next)
    }

    fn chunk(&self, id: ChunkId) -> Option<&LedgerChunk> {
        self.files.get(id.file)?.chunks.get(id.chunk)
    }

    fn chunk_mut(&mut self, id: ChunkId) -> Option<&mut LedgerChunk> {
        self.files.get_mut(id.file)?.chunks.get_mut(id.chunk)
    }

    /// Bytes of a chunk in memory at its last sample.
    pub(super) fn cached_of(&self, id: ChunkId) -> u64 {
        self.chunk(id).map_or(0, |chunk| chunk.cached)
    }

    /// The bytes of a chunk if all of them have been read and are in memory.
    pub(super) fn whole(&self, id: ChunkId) -> Option<u64> {
        self.chunk(id).map(|chunk| chunk.read).filter(|_| self.is_whole(id))
    }

    /// Whether all of a chunk has been read and is in memory: there is no more to come.
    fn is_whole(&self, id: ChunkId) -> bool {
        self.chunk(id).is_some_and(|chunk| chunk.read >= self.length_of(id))
    }

    /// Takes the chunks in which reading has begun since the last call, in order.
    pub(super) fn take_begun(&mut self) -> Vec<ChunkId> {
        std::mem::take(&mut self.begun)
    }

    /// The length of a chunk in bytes; 0 behind the end of its file.
    pub(super) fn length_of(&self, id: ChunkId) -> u64 {
        let length = self.files.get(id.file).map_or(0, |book| book.length);
        length.saturating_sub(CHUNK_BYTES.saturating_mul(id.chunk as u64)).min(CHUNK_BYTES)
    }

    /// Bytes of a chunk that have been read and are in memory.
    pub(super) fn read_of(&self, id: ChunkId) -> u64 {
        self.chunk(id).map_or(0, |chunk| chunk.read)
    }

    /// Whether almost all of a chunk has been read and is in memory.
    pub(super) fn is_mostly_read(&self, id: ChunkId) -> bool {
        let length = self.length_of(id);
        self.read_of(id) >= length - length / MAY_BE_UNREAD_PART
    }

    /// Whether almost all of a chunk has been read, at whatever times: readers that share a file
    /// are apart from one another.
    pub(super) fn was_mostly_read(&self, id: ChunkId) -> bool {
        let length = self.length_of(id);
        let enough = length - length / MAY_BE_UNREAD_PART;
        self.chunk(id).is_some_and(|chunk| chunk.ever_read >= enough)
    }

    /// Whether something of a chunk has been read at any time.
    pub(super) fn has_begun(&self, id: ChunkId) -> bool {
        self.chunk(id).is_some_and(|chunk| chunk.read_at > 0)
    }

    /// Whether something of a file has been read at any time.
    pub(super) fn has_begun_file(&self, file: usize) -> bool {
        self.files.get(file).is_some_and(|book| book.chunks.iter().any(|chunk| chunk.read_at > 0))
    }

    /// Whether a chunk was evicted, and has not come back.
    pub(super) fn is_evicted(&self, id: ChunkId) -> bool {
        self.chunk(id).is_some_and(|chunk| chunk.out > 0)
    }

    /// Whether the readers have gone on by the whole distance, and by `least` bytes, since they
    /// were there.
    pub(super) fn is_passed(&self, id: ChunkId, least: u64) -> bool {
        let distance = self.keep.max(least);
        self.has_begun(id)
            && self.chunk(id).is_some_and(|chunk| self.progress - chunk.read_at >= distance)
    }

    /// Whether something of a chunk is not in memory, and nothing of it was read or evicted, as far
    /// as is known.
    pub(super) fn is_to_come(&self, id: ChunkId) -> bool {
        self.chunk(id).is_some_and(|chunk| {
            chunk.cached < self.length_of(id) && chunk.read_at == 0 && chunk.out == 0
        })
    }

    /// Bytes of all such chunks that are not in memory.
    pub(super) fn to_come_bytes(&self) -> u64 {
        let ids = self.files.iter().enumerate().flat_map(|(file, book)| {
            (0..book.chunks.len()).map(move |chunk| ChunkId { file, chunk })
        });
        let to_come = ids.filter(|id| self.is_to_come(*id));
        to_come.map(|id| self.length_of(id) - self.cached_of(id)).sum()
    }

    /// Records a sample. Returns whether more of the chunk has been read.
    pub(super) fn observe(&mut self, id: ChunkId, sample: ChunkSample) -> bool {
        let progress = self.progress;
        let Some(chunk) = self.chunk_mut(id) else { return false };
        let back = sample.cached.saturating_sub(chunk.cached).min(chunk.out);
        chunk.out -= back;
        let read = sample.read.min(sample.cached);
        let more = read.saturating_sub(chunk.read);
        chunk.cached = sample.cached;
        chunk.read = read;
        if more > 0 {
            let is_first = chunk.read_at == 0;
            chunk.read_at = progress + more;
            chunk.ever_read += more;
            self.progress += more;
            if is_first && self.begun.len() < MOST_BEGUN {
                self.begun.push(id);
            }
            self.advance(id);
        }
        self.came_back(back);
        more > 0
    }

    /// The next sample goes where a reader has just been, or behind what it has read.
    fn advance(&mut self, id: ChunkId) {
        if let Some(book) = self.files.get_mut(id.file) {
            book.frontier = book.frontier.max(id.chunk + 1);
        }
        if !self.is_whole(id) {
            return self.mark_hot(id);
        }
        self.hot.retain(|hot| hot.id != id);
        if let Some(next) = self.next(id).filter(|next| !self.is_whole(*next)) {
            self.mark_hot(next);
        }
    }

    /// Records what an eviction has left of a chunk. What stays is tried again only when the
    /// readers have gone on by the whole distance once more.
    pub(super) fn record_eviction(&mut self, id: ChunkId, before: u64, after: ChunkSample) {
        let progress = self.progress;
        let Some(chunk) = self.chunk_mut(id) else { return };
        let gone = before.saturating_sub(after.cached);
        *chunk = LedgerChunk {
            cached: after.cached,
            read: after.read.min(after.cached),
            read_at: progress,
            out: chunk.out + gone,
            ..*chunk
        };
        self.evicted += gone;
        self.evicted_lately += gone;
    }

    fn came_back(&mut self, bytes: u64) {
        self.refaulted += bytes;
        self.refaulted_lately += bytes;
        if self.refaulted_lately >= LEAST_TELLING_BYTES
            && self.refaulted_lately > self.evicted_lately / ONE_MAY_COME_BACK_IN
        {
            self.keep = self.keep.saturating_mul(2);
            (self.evicted_lately, self.refaulted_lately) = (0, 0);
        }
    }

    /// The chunks that may go where no more than `most` of what was read last may stay, in no
    /// order.
    pub(super) fn due(&self, most: u64) -> impl Iterator<Item = DueChunk> {
        let keep = self.keep.min(most);
        let books = self.files.iter().enumerate();
        let chunks = books.flat_map(|(file, book)| {
            let chunks = book.chunks.iter().enumerate();
            chunks.map(move |(number, chunk)| (chunk, ChunkId { file, chunk: number }))
        });
        let is_due =
            move |chunk: &LedgerChunk| chunk.read > 0 && self.progress - chunk.read_at >= keep;
        chunks
            .filter(move |(chunk, _)| is_due(chunk))
            .map(|(chunk, id)| DueChunk { read_at: chunk.read_at, id })
    }

    /// Whether reading has gone on behind the chunk after this one.
    pub(super) fn is_behind(&self, id: ChunkId) -> bool {
        self.files.get(id.file).is_some_and(|book| id.chunk + 1 < book.frontier)
    }

    /// Bytes of all files in memory at their last samples.
    pub(super) fn cached(&self) -> u64 {
        self.files.iter().flat_map(|book| &book.chunks).map(|chunk| chunk.cached).sum()
    }

    /// The chunks that change, to be sampled in each round. A chunk that no longer changes leaves.
    pub(super) fn hot(&mut self) -> Vec<ChunkId> {
        self.hot.retain_mut(|hot| {
            hot.samples_left = hot.samples_left.saturating_sub(1);
            hot.samples_left > 0
        });
        self.hot.iter().map(|hot| hot.id).collect()
    }

    fn mark_hot(&mut self, id: ChunkId) {
        match self.hot.iter_mut().find(|hot| hot.id == id) {
            Some(hot) => hot.samples_left = HOT_SAMPLES,
            None => self.hot.push_back(HotChunk { id, samples_left: HOT_SAMPLES }),
        }
        if self.hot.len() > MOST_HOT {
            self.hot.pop_front();
        }
    }

    /// The chunks at which reading goes on, of so many files in turn.
    pub(super) fn frontiers(&mut self, files: usize) -> Vec<ChunkId> {
        let known = self.files.len();
        let from = std::mem::take(&mut self.frontier_turn);
        let wanted = files.min(known);
        self.frontier_turn = (from + wanted) % known.max(1);
        let ids = (from..from + wanted).map(|file| file % known).filter_map(|file| {
            let id = ChunkId { file, chunk: self.files.get(file)?.frontier };
            self.chunk(id).filter(|chunk| !chunk.is_out()).map(|_| id)
        });
        ids.collect()
    }

    /// The next chunks in turn, as many as `budget` allows. A chunk that was read as a whole shows
    /// least, and in pages of 4 KiB it costs most. An evicted one may have come back; one that
    /// never was in memory costs almost nothing.
    pub(super) fn in_turn(&mut self, budget: u32) -> Vec<ChunkId> {
        let (mut ids, mut spent) = (Vec::new(), 0);
        while spent < budget && ids.len() < self.chunks {
            let Some(chunk) = self.chunk(self.turn) else {
                let next = self.turn.file + 1;
                let file = if next < self.files.len() { next } else { 0 };
                self.turn = ChunkId { file, chunk: 0 };
                continue;
            };
            spent += match (chunk.out, chunk.cached) {
                (1.., _) => 16,
                (0, 1..) if self.is_whole(self.turn) => 64,
                (0, 1..) => 4,
                (0, 0) => 1,
            };
            ids.push(self.turn);
            self.turn.chunk += 1;
        }
        ids
    }

    /// How much has been read of everything.
    pub(super) fn progress(&self) -> u64 {
        self.progress
    }

    /// Bytes of all files without any observed read, in whole chunks.
    pub(super) fn unread(&self) -> u64 {
        let of = |book: &FileChunks| {
            let unread = book.chunks.iter().filter(|chunk| chunk.read_at == 0 && chunk.out == 0);
            (unread.count() as u64).saturating_mul(CHUNK_BYTES).min(book.length)
        };
        self.files.iter().map(of).sum()
    }

    /// Bytes evicted, and refaulted.
    pub(super) fn tally(&self) -> (u64, u64) {
        (self.evicted, self.refaulted)
    }

    /// How much of what was read last stays.
    pub(super) fn keep(&self) -> u64 {
        self.keep
    }
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
