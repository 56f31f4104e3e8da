//! The load of one engine: tracks what it reads, and evicts behind its readers.

use std::io;

use rustix::io::Errno;

use super::discover::Holdings;
use super::files::{ModelFileSearch, Patterns, is_of_this_file_alone, offset};
use super::ledger::{ChunkId, ChunkSample, DueChunk, LoadLedger};
use super::limits::{EvictionLimits, blind, unable};
use super::prefetch::{Prefetcher, forbidden};
use super::process::{TrackError, TrackedProcess};
use super::required::{allocatable, floor, may_stay, must_go};
use super::shards::FileSuccession;
use super::uses::{FileUse, Reading, covered};
use super::{EvictRequest, Mounts, Pulse};
use crate::model::EngineTarget;
use crate::sys::free_memory::FreeMemory;
use crate::sys::page_cache::CachedPages;

/// Rounds between two scans of what is mapped and open, at most.
const DISCOVER_EVERY: u64 = 16;

/// The same once files come into memory that no tracked process maps or has open.
const DISCOVER_SOONEST: u64 = 2;

/// Files of which a round samples the frontier: cheap where nothing is cached.
const FRONTIERS: usize = 32;

/// Rounds between two samples of some of all chunks.
const IN_TURN_EVERY: u64 = 4;

/// Rounds between two drops without knowing what is cached.
const DROP_BLINDLY_EVERY: u64 = 20;

/// After so many rounds without progress, reading has ended: about 0.2 s.
const QUIET_ROUNDS: u64 = 10;

/// The cost of such samples, see [`LoadLedger::in_turn`].
const IN_TURN_BUDGET: u32 = 256;

/// Why a load cannot be tracked.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoadError {
    /// None of its processes can be worked on.
    #[error("{0}")]
    NoProcess(TrackError),
    /// The target names no process.
    #[error("the engine has no process that is known")]
    NoneKnown,
}

impl LoadError {
    /// Whether nothing failed: there is no process to track.
    pub(super) fn has_no_process(&self) -> bool {
        matches!(self, Self::NoneKnown | Self::NoProcess(TrackError::Ended(_)))
    }
}

/// The result of a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct EvictRound {
    /// Bytes of the model files read since the round before.
    pub(super) read_bytes: u64,
    /// Whether all processes have ended.
    pub(super) is_over: bool,
}

/// The model files in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LoadState {
    /// Evicted now.
    pub(super) due_bytes: u64,
    /// Mapped, or only presumed to be read: evicted when memory is short.
    pub(super) evictable_bytes: u64,
    /// In the page cache.
    pub(super) cached_bytes: u64,
    /// Of what was read last, this much stays.
    pub(super) keeps_bytes: u64,
}

/// A chunk in the page cache.
enum ChunkState {
    Pages(CachedPages),
    /// Its file cannot be opened now: the chunk may be cached all the same, and stays due.
    NotNow,
    /// The kernel does not report it.
    None,
}

/// Chunks read long enough ago to be evicted.
struct DueChunks {
    /// Evicted at once.
    free: Vec<DueChunk>,
    /// Those that stay until memory is short.
    staying: Vec<DueChunk>,
    /// How much of those must go, in bytes.
    must_go: u64,
}

#[derive(Debug)]
pub(super) struct TrackedLoad {
    pub(super) mounts: Mounts,
    pub(super) processes: Vec<TrackedProcess>,
    patterns: Patterns,
    pub(super) files: ModelFileSearch,
    pub(super) uses: Vec<FileUse>,
    pub(super) ledger: LoadLedger,
    pub(super) limits: EvictionLimits,
    pub(super) prefetcher: Prefetcher,
    pub(super) succession: FileSuccession,
    /// Where reading has begun, as found where it was expected.
    pub(super) begun: Vec<ChunkId>,
    /// Free memory to keep.
    floor_bytes: u64,
    pub(super) free_memory: fn() -> FreeMemory,
    pub(super) rounds: u64,
    /// The most bytes that were read between two rounds.
    pub(super) leap_bytes: u64,
    /// The last round with progress.
    read_in: u64,
    /// The round of the last scan of what is mapped and open.
    discovered_in: u64,
    /// Something comes into memory that no tracked process was seen to hold.
    is_news: bool,
    /// Chunks with nothing but shadow entries, which the kernel leaves where it has reclaimed
    /// pages. Each costs a later sample at least as much as a page.
    marked: Vec<ChunkId>,
}

impl TrackedLoad {
    /// Opens handles of the engine's processes and model files, and samples all of them. There may
    /// be no file yet: an engine that first downloads its model is tracked until it loads it.
    pub(super) fn begin(
        mounts: Mounts,
        request: &EvictRequest,
        pulse: Pulse,
    ) -> Result<Self, LoadError> {
        let target = &request.target;
        let mut processes = Vec::new();
        let mut refused = None;
        for id in &target.processes {
            match TrackedProcess::open(&mounts.procfs, *id) {
                Ok(tracked) => processes.push(tracked),
                Err(error) => refused = Some(error),
            }
        }
        if processes.is_empty() {
            return Err(refused.map_or(LoadError::NoneKnown, LoadError::NoProcess));
        }
        let mut load = Self {
            floor_bytes: floor(&mounts.sysfs, request.floor_bytes, target),
            prefetcher: Prefetcher::new(request.prefetch, forbidden(&mounts, request)),
            mounts,
            processes,
            patterns: Patterns::new(&target.model_files),
            files: ModelFileSearch { pulse, ..ModelFileSearch::default() },
            uses: Vec::new(),
            ledger: LoadLedger::new(request.behind_bytes),
            limits: EvictionLimits::default(),
            succession: FileSuccession::default(),
            begun: Vec::new(),
            free_memory: FreeMemory::now,
            rounds: 0,
            leap_bytes: 0,
            read_in: 0,
            discovered_in: 0,
            is_news: false,
            marked: Vec::new(),
        };
        load.find_files();
        load.discover();
        load.track_positions(true);
        for file in 0..load.files.files.len() {
            load.sample_file(file);
        }
        Ok(load)
    }

    /// Takes on new processes and files of the engine.
    pub(super) fn renew(&mut self, target: &EngineTarget) {
        let is_tracked = |id| self.processes.iter().any(|tracked| tracked.id == id);
        let new: Vec<TrackedProcess> = target
            .processes
            .iter()
            .filter(|id| !is_tracked(**id))
            .filter_map(|id| TrackedProcess::open(&self.mounts.procfs, *id).ok())
            .collect();
        let patterns = Patterns::new(&target.model_files);
        if new.is_empty() && patterns == self.patterns {
            return;
        }
        self.processes.extend(new);
        self.patterns = patterns;
        self.open_files();
        self.discover();
    }

    fn open_files(&mut self) {
        for process in &self.processes {
            match process.root() {
                Ok(root) => self.patterns.open_below(root, &mut self.files),
                Err(error) => {
                    let what = format!("the root of process {}", process.id);
                    self.files.refuse(&what, &error);
                }
            }
        }
    }

    fn find_files(&mut self) {
        self.open_files();
        // What is mapped or open and has no name any more.
        drop(Holdings::scan(&self.processes, &self.patterns, &mut self.files));
        self.files.files.sort_by(|one, other| one.path.cmp(&other.path));
    }

    /// The reason, if none of its files can be opened by name.
    pub(super) fn refused(&self) -> Option<&str> {
        self.files.refused.as_deref().filter(|_| self.files.files.is_empty())
    }

    /// A file on which another process holds a lease.
    pub(super) fn leased(&self) -> Option<&str> {
        self.files.leased.as_deref()
    }

    /// Whether no model file is known (yet).
    pub(super) fn knows_no_file(&self) -> bool {
        self.files.files.is_empty()
    }

    /// One round. Between two chunks it calls `stops`, and `report` with the bytes evicted and
    /// refaulted so far, and with those that are still evictable.
    pub(super) fn round(
        &mut self,
        stops: &dyn Fn() -> bool,
        report: &mut dyn FnMut((u64, u64), u64),
    ) -> EvictRound {
        self.rounds += 1;
        if !self.processes.iter().any(TrackedProcess::lives) {
            return EvictRound { read_bytes: 0, is_over: true };
        }
        let before = self.ledger.progress();
        let age = self.rounds - self.discovered_in;
        if age >= DISCOVER_EVERY || (self.is_news && age >= DISCOVER_SOONEST) {
            self.discover();
        }
        self.track_positions(false);
        self.sample_around();
        let read_bytes = self.ledger.progress() - before;
        if read_bytes > 0 {
            self.read_in = self.rounds;
            self.leap_bytes = self.leap_bytes.max(read_bytes);
        }
        self.read_ahead();
        self.evict_due(stops, report);
        self.clear_marks(stops);
        if self.limits.sight.is_some() && self.rounds % DROP_BLINDLY_EVERY == 1 {
            self.drop_blindly();
        }
        EvictRound { read_bytes, is_over: false }
    }

    /// Reads the positions of the readers of unmapped files, and samples what they have passed.
    fn track_positions(&mut self, is_first: bool) {
        let mut gone_over = Vec::new();
        for (file, used) in self.uses.iter_mut().enumerate() {
            if !used.mapped.is_empty() {
                continue;
            }
            let positions = used.opened.iter().filter_map(|(process, opened)| {
                self.processes.get(*process)?.position(opened.number).ok()
            });
            if let Some(position) = positions.max() {
                gone_over.push((file, used.moved_to(position, is_first)));
            }
        }
        for (file, bytes) in gone_over.into_iter().filter(|(_, bytes)| !bytes.is_empty()) {
            for id in self.ledger.chunks_of(file, &bytes) {
                self.sample(id);
            }
        }
    }

    /// Samples all chunks of a file that are not known to be evicted.
    fn sample_file(&mut self, file: usize) {
        for id in self.ledger.chunks_not_out(file) {
            self.sample(id);
        }
    }

    /// Samples the chunks that change, those where reading may go on, what follows either, and some
    /// of the rest.
    fn sample_around(&mut self) {
        for id in self.ledger.hot() {
            self.sample_on(id);
        }
        for id in self.ledger.frontiers(FRONTIERS) {
            let known = self.ledger.cached_of(id);
            self.sample_on(id);
            let is_in_use = self.uses.get(id.file).is_some_and(FileUse::is_in_use);
            self.is_news |= !is_in_use && self.ledger.cached_of(id) > known;
        }
        self.begun = self.ledger.take_begun();
        if self.rounds.is_multiple_of(IN_TURN_EVERY) {
            for id in self.ledger.in_turn(IN_TURN_BUDGET) {
                self.sample(id);
            }
        }
    }

    /// Samples a chunk, and the next ones for as long as they show progress.
    fn sample_on(&mut self, id: ChunkId) {
        let mut at = Some(id);
        while let Some(id) = at {
            let grown = self.sample(id);
            at = self.ledger.next(id).filter(|_| grown);
        }
    }

    /// Returns whether the chunk shows progress.
    pub(super) fn sample(&mut self, id: ChunkId) -> bool {
        self.files.pulse.beat();
        match self.measure(id) {
            Some(sample) => self.ledger.observe(id, sample),
            None => false,
        }
    }

    /// What of a chunk is cached, and has been read. `None`: cannot be known now.
    fn measure(&mut self, id: ChunkId) -> Option<ChunkSample> {
        let cached = match self.cached(id) {
            ChunkState::Pages(pages) => pages.cached,
            ChunkState::NotNow => return None,
            ChunkState::None => {
                let present = self.present(id);
                return Some(ChunkSample { cached: present, read: present });
            }
        };
        let read = match self.uses.get(id.file)?.reading() {
            Reading::InPageTables if cached > 0 => match self.ledger.whole(id) {
                // Page tables cost most to read, and there is no more to find.
                Some(bytes) if bytes == cached => cached,
                _ => self.present(id),
            },
            _ => self.uses.get_mut(id.file)?.read_of(id.chunk, cached),
        };
        Some(ChunkSample { cached, read })
    }

    fn cached(&mut self, id: ChunkId) -> ChunkState {
        if self.limits.sight.is_some() {
            return ChunkState::None;
        }
        let Some(file) = self.files.files.get(id.file) else { return ChunkState::None };
        let pages = match file.cached(id.chunk) {
            Ok(pages) => pages,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return ChunkState::None,
            Err(error) if is_of_this_file_alone(&error) => return ChunkState::NotNow,
            Err(error) => {
                self.limits.sight = Some(blind(&error));
                return ChunkState::None;
            }
        };
        if pages.cached == 0 && pages.evicted > 0 {
            self.marked.push(id);
        }
        ChunkState::Pages(pages)
    }

    /// The bytes of a chunk that any process has in its page tables: ranks share a file.
    fn present(&self, id: ChunkId) -> u64 {
        let Some(used) = self.uses.get(id.file) else { return 0 };
        let parts = used.addresses(id.chunk).filter_map(|(process, mapped, addresses)| {
            let runs = self.processes.get(process)?.present(addresses).ok()?;
            Some(runs.into_iter().map(|run| mapped.part_at(&run)))
        });
        covered(parts.flatten().collect())
    }

    fn evict_due(&mut self, stops: &dyn Fn() -> bool, report: &mut dyn FnMut((u64, u64), u64)) {
        let DueChunks { mut free, mut staying, mut must_go } = self.due();
        let mut evictable = self.bytes_of(&free);
        if self.limits.page_out.is_none() {
            evictable += self.bytes_of(&staying);
        }
        report(self.tally(), evictable);
        free.sort_unstable();
        if must_go > 0 {
            staying.sort_unstable();
        }
        let must_go = staying.into_iter().take_while(|due| {
            let goes = must_go > 0;
            must_go = must_go.saturating_sub(self.ledger.cached_of(due.id));
            goes
        });
        let going: Vec<DueChunk> = free.into_iter().chain(must_go).collect();
        for due in going {
            if stops() {
                break;
            }
            self.files.pulse.beat();
            let before = self.ledger.cached_of(due.id);
            self.evict(due.id);
            let gone = before.saturating_sub(self.ledger.cached_of(due.id));
            evictable = evictable.saturating_sub(gone);
            report(self.tally(), evictable);
        }
    }

    /// Removes the kernel's shadow entries behind the readers, and what comes in just then.
    fn clear_marks(&mut self, stops: &dyn Fn() -> bool) {
        for id in std::mem::take(&mut self.marked) {
            if stops() {
                break;
            }
            if let Some(file) = self.files.files.get(id.file).filter(|_| self.is_behind(id)) {
                // Shadow entries may stay.
                let _ = file.drop_unmapped(id.chunk);
            }
        }
    }

    /// Whether all readers are past a chunk, as far as is known.
    fn is_behind(&self, id: ChunkId) -> bool {
        match self.uses.get(id.file).map(FileUse::reading) {
            Some(Reading::UpTo(position)) => offset(id.chunk + 1) <= position,
            Some(Reading::InPageTables | Reading::Since) => self.ledger.is_behind(id),
            Some(Reading::All) => true,
            Some(Reading::Nothing) | None => false,
        }
    }

    /// The chunks that may go, and how much of those that may stay must.
    fn due(&self) -> DueChunks {
        let memory = (self.free_memory)();
        let (staying, free): (Vec<_>, Vec<_>) = self
            .ledger
            .due(may_stay(memory))
            .partition(|due| self.is_mapped(due.id) || self.may_be_unread(due.id.file));
        let required = self.floor_bytes.saturating_add(allocatable(memory, self.to_read()));
        let must_go = must_go(memory, self.bytes_of(&staying), required);
        DueChunks { free, staying, must_go }
    }

    /// Whether a file only counts as read because of an order that the engine has not shown.
    fn may_be_unread(&self, file: usize) -> bool {
        !self.succession.shows_order() && self.uses.get(file).is_some_and(FileUse::is_presumed_read)
    }

    /// Bytes that are still to be read. An engine without progress has read all that it wants: not
    /// every file that matches must be read.
    fn to_read(&self) -> u64 {
        let is_quiet = self.rounds - self.read_in >= QUIET_ROUNDS;
        if is_quiet { 0 } else { self.ledger.unread() }
    }

    fn bytes_of(&self, due: &[DueChunk]) -> u64 {
        due.iter().map(|due| self.ledger.cached_of(due.id)).sum()
    }

    fn is_mapped(&self, id: ChunkId) -> bool {
        self.uses.get(id.file).is_some_and(|used| used.addresses(id.chunk).next().is_some())
    }

    /// Evicts a clean chunk. A chunk with dirty pages stays for now: the call alone would start
    /// writeback.
    fn evict(&mut self, id: ChunkId) {
        let pages = match self.cached(id) {
            ChunkState::Pages(pages) => Some(pages),
            ChunkState::NotNow => return,
            ChunkState::None => None,
        };
        let before = pages.map_or_else(|| self.present(id), |pages| pages.cached);
        if !pages.is_some_and(|pages| pages.dirty > 0 || pages.writeback > 0) {
            self.evict_mapped(id);
            // Unseen it may have dirty pages, which the kernel would begin to write back.
            let is_seen = pages.is_some();
            if let Some(file) = self.files.files.get(id.file).filter(|_| is_seen) {
                // The rest is sampled below.
                let _ = file.drop_unmapped(id.chunk);
            }
        }
        if let Some(after) = self.measure(id) {
            self.ledger.record_eviction(id, before, after);
        }
    }

    fn evict_mapped(&mut self, id: ChunkId) {
        let (Some(used), Some(file)) = (self.uses.get(id.file), self.files.files.get(id.file))
        else {
            return;
        };
        let mut refused = None;
        for (process, mapped, addresses) in used.addresses(id.chunk) {
            let Some(tracked) = self.processes.get(process) else { continue };
            if !tracked.still_maps(mapped, file.identity) {
                continue;
            }
            let Ok(runs) = tracked.present(addresses) else { continue };
            if let Err(error) = tracked.page_out(&runs) {
                refused = Some(error);
            }
        }
        match refused {
            Some(error) if Errno::from_io_error(&error) != Some(Errno::SRCH) => {
                self.limits.page_out = Some(unable(&error));
            }
            _ => {}
        }
    }

    /// Drops without knowing what is cached: what is behind a reader with a known position, and all
    /// of a file whose readers have none.
    fn drop_blindly(&self) {
        let files = self.files.files.iter().zip(&self.uses).enumerate();
        for (_, (file, used)) in files.filter(|(id, _)| !self.may_be_unread(*id)) {
            // The rest is unknown.
            let _ = match used.reading() {
                Reading::UpTo(position) => {
                    file.drop_unmapped_before(position.saturating_sub(self.ledger.keep()))
                }
                Reading::All | Reading::Since => file.drop_all_unmapped(),
                Reading::InPageTables | Reading::Nothing => Ok(()),
            };
        }
    }

    /// Finds which files are mapped and open now, and by which process; takes on new ones. Samples
    /// all of a file that was opened or closed.
    pub(super) fn discover(&mut self) {
        (self.discovered_in, self.is_news) = (self.rounds, false);
        let used_before: Vec<bool> = self.uses.iter().map(FileUse::is_in_use).collect();
        let holdings = Holdings::scan(&self.processes, &self.patterns, &mut self.files);
        if let Some(why) = &holdings.hidden {
            self.limits.page_out = Some(format!("what is mapped cannot be seen ({why})"));
        }
        for (id, file) in self.files.files.iter().enumerate() {
            let length = file.length();
            if self.uses.len() <= id {
                self.uses.push(FileUse::default());
                self.ledger.add_file(length);
            }
            self.ledger.resize(id, length);
        }
        holdings.record(&self.files, &mut self.uses);
        for file in 0..self.uses.len() {
            let was_in_use = used_before.get(file).copied().unwrap_or(false);
            if self.uses[file].is_in_use() != was_in_use {
                if was_in_use {
                    self.end_read_ahead(Some(file));
                }
                self.sample_file(file);
            }
        }
    }

    /// Bytes evicted, and refaulted.
    pub(super) fn tally(&self) -> (u64, u64) {
        self.ledger.tally()
    }

    pub(super) fn state(&self) -> LoadState {
        let keeps_bytes = self.ledger.keep();
        let DueChunks { free, staying, must_go } = self.due();
        let (free, staying) = (self.bytes_of(&free), self.bytes_of(&staying));
        let evictable_bytes = staying.saturating_sub(must_go);
        LoadState {
            due_bytes: free + staying - evictable_bytes,
            evictable_bytes,
            cached_bytes: self.ledger.cached(),
            keeps_bytes,
        }
    }

    /// Bytes that are not in memory, and have not been read.
    pub(super) fn to_come_bytes(&self) -> u64 {
        self.ledger.to_come_bytes()
    }

    /// Free memory above the floor, in bytes.
    pub(super) fn spare_bytes(&self) -> u64 {
        (self.free_memory)().free_bytes.saturating_sub(self.floor_bytes)
    }

    pub(super) fn limits(&self) -> &EvictionLimits {
        &self.limits
    }
}

#[cfg(test)]
#[path = "load_tests.rs"]
pub(super) mod tests;
