//! One engine's load: what it reads is followed, and what lies behind is put out.

use std::io;

use rustix::io::Errno;

use super::discover::Holdings;
use super::files::{Finding, Patterns, is_of_this_file_alone, offset};
use super::ledger::{DueChunk, Ledger, Look, Place};
use super::process::{Held, HoldError};
use super::room::{is_bounded, may_stay, must_go, to_come};
use super::uses::{FileUse, Reading};
use super::{EvictOrder, Mounts, Pulse};
use crate::model::EngineTarget;
use crate::sys::free_memory::FreeMemory;
use crate::sys::page_cache::CachedPages;

/// Rounds from one look at what is mapped and open to the next, at most.
const DISCOVER_EVERY: u64 = 16;

/// The same once files come into memory that nobody was seen to map or have open.
const DISCOVER_SOONEST: u64 = 2;

/// Files at whose frontier a round looks. One page is little to look at where nothing is cached.
const FRONTIERS: usize = 32;

/// Rounds from one look at some of all chunks to the next.
const IN_TURN_EVERY: u64 = 4;

/// Rounds from one blind dropping to the next.
const DROP_BLINDLY_EVERY: u64 = 20;

/// Rounds in which nothing is read before that counts as the end of reading: about 0.2 s.
const QUIET_ROUNDS: u64 = 10;

/// What such a look may cost the kernel; see [`Ledger::in_turn`].
const IN_TURN_BUDGET: u32 = 256;

/// Why a load cannot be followed.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoadError {
    /// None of its processes can be worked on.
    #[error("{0}")]
    NoProcess(HoldError),
    /// The target names no process.
    #[error("the engine has no process that is known")]
    NobodyKnown,
}

impl LoadError {
    /// Whether nothing is wrong: there is nobody to follow.
    pub(super) fn is_nobody_there(&self) -> bool {
        matches!(self, Self::NobodyKnown | Self::NoProcess(HoldError::Ended(_)))
    }
}

/// What stands in the way of doing all of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Limits {
    /// Why it cannot be seen what is cached.
    pub(super) sight: Option<String>,
    /// Why mapped pages cannot be put out.
    pub(super) page_out: Option<String>,
}

/// What a round has brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Round {
    /// How much of the model files was found to be read since the one before.
    pub(super) read_bytes: u64,
    /// Whether all processes have ended.
    pub(super) is_over: bool,
}

/// What of the model files is in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stand {
    /// What goes now.
    pub(super) due_bytes: u64,
    /// What is mapped, and goes when memory is short.
    pub(super) lying_bytes: u64,
    pub(super) cached_bytes: u64,
    pub(super) keeps_bytes: u64,
}

/// What is seen of a chunk in the page cache.
enum Sight {
    Pages(CachedPages),
    /// Its file cannot be opened again now: it may be cached all the same, and stays due.
    NotNow,
    /// The kernel does not show it.
    None,
}

/// What has been read long enough ago to go.
struct Due {
    /// What nobody maps goes at once.
    free: Vec<DueChunk>,
    mapped: Vec<DueChunk>,
    /// How many bytes of what is mapped must go.
    must_go: u64,
}

/// The load.
#[derive(Debug)]
pub(super) struct Load {
    mounts: Mounts,
    processes: Vec<Held>,
    patterns: Patterns,
    files: Finding,
    uses: Vec<FileUse>,
    ledger: Ledger,
    limits: Limits,
    /// How much memory shall stay free.
    floor_bytes: u64,
    rounds: u64,
    /// The last round in which something was read.
    read_in: u64,
    /// The round of the last look at what is mapped and open.
    discovered_in: u64,
    /// Something comes into memory that nobody was seen to hold.
    is_news: bool,
    /// Of what the kernel has reclaimed itself it leaves marks, each of which costs every later
    /// look as much as a page does, and more: where there are any, and nothing else.
    marked: Vec<Place>,
}

impl Load {
    /// Takes hold of the engine's processes and of its model files, and looks at all of them. There
    /// may be no file yet: one that first fetches its model is followed until it loads it.
    pub(super) fn begin(
        mounts: Mounts,
        order: &EvictOrder,
        pulse: Pulse,
    ) -> Result<Self, LoadError> {
        let target = &order.target;
        let mut processes = Vec::new();
        let mut refused = None;
        for id in &target.processes {
            match Held::hold(&mounts.procfs, *id) {
                Ok(held) => processes.push(held),
                Err(error) => refused = Some(error),
            }
        }
        if processes.is_empty() {
            return Err(refused.map_or(LoadError::NobodyKnown, LoadError::NoProcess));
        }
        let mut load = Self {
            floor_bytes: floor(&mounts, order.floor_bytes, target),
            mounts,
            processes,
            patterns: Patterns::new(&target.model_files),
            files: Finding { pulse, ..Finding::default() },
            uses: Vec::new(),
            ledger: Ledger::new(order.behind_bytes),
            limits: Limits::default(),
            rounds: 0,
            read_in: 0,
            discovered_in: 0,
            is_news: false,
            marked: Vec::new(),
        };
        load.find_files();
        load.discover();
        load.follow_positions(true);
        for file in 0..load.files.files.len() {
            load.look_at_file(file);
        }
        Ok(load)
    }

    /// The engine has come to other processes or files. What it no longer has is no longer used.
    pub(super) fn renew(&mut self, target: &EngineTarget) {
        let is_held = |id| self.processes.iter().any(|held| held.id == id);
        let new: Vec<Held> = target
            .processes
            .iter()
            .filter(|id| !is_held(**id))
            .filter_map(|id| Held::hold(&self.mounts.procfs, *id).ok())
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
                    let what = format!("the root of process {}: {error}", process.id);
                    self.files.refused.get_or_insert(what);
                }
            }
        }
    }

    fn find_files(&mut self) {
        self.open_files();
        // What is mapped or open and has no name any more.
        drop(Holdings::look(&self.processes, &self.patterns, &mut self.files));
        self.files.files.sort_by(|one, other| one.path.cmp(&other.path));
    }

    /// Why nothing can be done to any of its files by name, where that is so.
    pub(super) fn refused(&self) -> Option<&str> {
        self.files.refused.as_deref().filter(|_| self.files.files.is_empty())
    }

    /// A file that nobody may open for as long as another process holds a lease on it.
    pub(super) fn leased(&self) -> Option<&str> {
        self.files.leased.as_deref()
    }

    /// Whether none of its files is known, or not yet.
    pub(super) fn knows_no_file(&self) -> bool {
        self.files.files.is_empty()
    }

    /// One round. Between any two chunks `stops` is asked, and `told` what has been put out, what
    /// of it has come back, and what still lies behind the readers.
    pub(super) fn round(
        &mut self,
        stops: &dyn Fn() -> bool,
        told: &mut dyn FnMut((u64, u64), u64),
    ) -> Round {
        self.rounds += 1;
        if !self.processes.iter().any(Held::lives) {
            return Round { read_bytes: 0, is_over: true };
        }
        let before = self.ledger.progress();
        let age = self.rounds - self.discovered_in;
        if age >= DISCOVER_EVERY || (self.is_news && age >= DISCOVER_SOONEST) {
            self.discover();
        }
        self.follow_positions(false);
        self.look_around();
        let read_bytes = self.ledger.progress() - before;
        if read_bytes > 0 {
            self.read_in = self.rounds;
        }
        self.put_out_due(stops, told);
        self.clear_marks(stops);
        if self.limits.sight.is_some() && self.rounds % DROP_BLINDLY_EVERY == 1 {
            self.drop_blindly();
        }
        Round { read_bytes, is_over: false }
    }

    /// Where the readers of files that nobody maps are, and what they have gone over.
    fn follow_positions(&mut self, is_first: bool) {
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
            for place in self.ledger.places(file, &bytes) {
                self.look(place);
            }
        }
    }

    /// Looks at all of a file that is not known to be out of memory.
    fn look_at_file(&mut self, file: usize) {
        for place in self.ledger.chunks_not_out(file) {
            self.look(place);
        }
    }

    /// Looks at what changes, at where reading may go on, at what follows either, and at some of
    /// the rest.
    fn look_around(&mut self) {
        for place in self.ledger.hot() {
            self.look_on(place);
        }
        for place in self.ledger.frontiers(FRONTIERS) {
            let known = self.ledger.cached_of(place);
            self.look_on(place);
            let is_held = self.uses.get(place.file).is_some_and(FileUse::is_held);
            self.is_news |= !is_held && self.ledger.cached_of(place) > known;
        }
        if self.rounds.is_multiple_of(IN_TURN_EVERY) {
            for place in self.ledger.in_turn(IN_TURN_BUDGET) {
                self.look(place);
            }
        }
    }

    /// Looks at a chunk, and at those that follow for as long as more of them has been read.
    fn look_on(&mut self, place: Place) {
        let mut at = Some(place);
        while let Some(place) = at {
            let grown = self.look(place);
            at = self.ledger.next(place).filter(|_| grown);
        }
    }

    /// Returns whether more of it has been read.
    fn look(&mut self, place: Place) -> bool {
        self.files.pulse.beat();
        match self.measure(place) {
            Some(look) => self.ledger.observe(place, look),
            None => false,
        }
    }

    /// What of a chunk is cached, and has been read. `None` where that cannot be told.
    fn measure(&mut self, place: Place) -> Option<Look> {
        let cached = match self.cached(place) {
            Sight::Pages(pages) => pages.cached,
            Sight::NotNow => return None,
            Sight::None => {
                let present = self.present(place);
                return Some(Look { cached: present, read: present });
            }
        };
        let read = match self.uses.get(place.file)?.reading() {
            Reading::InPageTables if cached > 0 => match self.ledger.whole(place) {
                // Page tables cost most to look at, and there is no more to find.
                Some(bytes) if bytes == cached => cached,
                _ => self.present(place),
            },
            _ => self.uses.get_mut(place.file)?.read_of(place.chunk, cached),
        };
        Some(Look { cached, read })
    }

    fn cached(&mut self, place: Place) -> Sight {
        if self.limits.sight.is_some() {
            return Sight::None;
        }
        let Some(file) = self.files.files.get(place.file) else { return Sight::None };
        let pages = match file.cached(place.chunk) {
            Ok(pages) => pages,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Sight::None,
            Err(error) if is_of_this_file_alone(&error) => return Sight::NotNow,
            Err(error) => {
                self.limits.sight = Some(blind(&error));
                return Sight::None;
            }
        };
        if pages.cached == 0 && pages.evicted > 0 {
            self.marked.push(place);
        }
        Sight::Pages(pages)
    }

    /// The most of a chunk that one process has in its page tables.
    fn present(&self, place: Place) -> u64 {
        let Some(used) = self.uses.get(place.file) else { return 0 };
        let present = used.addresses(place.chunk).filter_map(|(process, _, addresses)| {
            let runs = self.processes.get(process)?.present(addresses).ok()?;
            Some((process, runs.iter().map(|run| run.end - run.start).sum::<u64>()))
        });
        let mut by_process = vec![0_u64; self.processes.len()];
        for (process, bytes) in present {
            by_process[process] += bytes;
        }
        by_process.into_iter().max().unwrap_or(0)
    }

    fn put_out_due(&mut self, stops: &dyn Fn() -> bool, told: &mut dyn FnMut((u64, u64), u64)) {
        let Due { mut free, mut mapped, mut must_go } = self.due();
        let mut lies = self.bytes_of(&free);
        if self.limits.page_out.is_none() {
            lies += self.bytes_of(&mapped);
        }
        told(self.tally(), lies);
        free.sort_unstable();
        if must_go > 0 {
            mapped.sort_unstable();
        }
        let must_go = mapped.into_iter().take_while(|due| {
            let goes = must_go > 0;
            must_go = must_go.saturating_sub(self.ledger.cached_of(due.place));
            goes
        });
        let going: Vec<DueChunk> = free.into_iter().chain(must_go).collect();
        for due in going {
            if stops() {
                break;
            }
            self.files.pulse.beat();
            let before = self.ledger.cached_of(due.place);
            self.put_out(due.place);
            let gone = before.saturating_sub(self.ledger.cached_of(due.place));
            lies = lies.saturating_sub(gone);
            told(self.tally(), lies);
        }
    }

    /// Takes the kernel's marks off what lies behind the readers. What comes in just then goes too.
    fn clear_marks(&mut self, stops: &dyn Fn() -> bool) {
        for place in std::mem::take(&mut self.marked) {
            if stops() {
                break;
            }
            if let Some(file) = self.files.files.get(place.file).filter(|_| self.is_behind(place)) {
                let _marks_may_stay = file.drop_unmapped(place.chunk);
            }
        }
    }

    /// Whether all readers are past a chunk, as far as is known.
    fn is_behind(&self, place: Place) -> bool {
        match self.uses.get(place.file).map(FileUse::reading) {
            Some(Reading::UpTo(position)) => offset(place.chunk + 1) <= position,
            Some(Reading::InPageTables | Reading::Since) => self.ledger.is_behind(place),
            Some(Reading::All) => true,
            Some(Reading::Nothing) | None => false,
        }
    }

    /// What may go, and how much of what of it is mapped must.
    fn due(&self) -> Due {
        let memory = FreeMemory::now();
        let (mapped, free): (Vec<_>, Vec<_>) =
            self.ledger.due(may_stay(memory)).partition(|due| self.is_mapped(due.place));
        let room = self.floor_bytes.saturating_add(to_come(memory, self.to_read()));
        let must_go = must_go(memory, self.bytes_of(&mapped), room);
        Due { free, mapped, must_go }
    }

    /// How much is still to be read. Who reads no more has read all that it wants: not every file
    /// that is named must be read.
    fn to_read(&self) -> u64 {
        let is_quiet = self.rounds - self.read_in >= QUIET_ROUNDS;
        if is_quiet { 0 } else { self.ledger.unread() }
    }

    fn bytes_of(&self, due: &[DueChunk]) -> u64 {
        due.iter().map(|due| self.ledger.cached_of(due.place)).sum()
    }

    fn is_mapped(&self, place: Place) -> bool {
        self.uses.get(place.file).is_some_and(|used| used.addresses(place.chunk).next().is_some())
    }

    /// Puts out what of a chunk is clean. Where some of it is dirty, all of it stays for now: even
    /// to ask would have it written back.
    fn put_out(&mut self, place: Place) {
        let pages = match self.cached(place) {
            Sight::Pages(pages) => Some(pages),
            Sight::NotNow => return,
            Sight::None => None,
        };
        let before = pages.map_or_else(|| self.present(place), |pages| pages.cached);
        if !pages.is_some_and(|pages| pages.dirty > 0 || pages.writeback > 0) {
            self.put_out_mapped(place);
            // Without sight it may hold dirty pages, which the kernel would begin to write back.
            let is_seen = pages.is_some();
            if let Some(file) = self.files.files.get(place.file).filter(|_| is_seen) {
                let _what_stays_is_measured = file.drop_unmapped(place.chunk);
            }
        }
        if let Some(after) = self.measure(place) {
            self.ledger.put_out(place, before, after);
        }
    }

    fn put_out_mapped(&mut self, place: Place) {
        let (Some(used), Some(file)) =
            (self.uses.get(place.file), self.files.files.get(place.file))
        else {
            return;
        };
        let mut refused = None;
        for (process, mapped, addresses) in used.addresses(place.chunk) {
            let Some(held) = self.processes.get(process) else { continue };
            if !held.still_maps(mapped, file.identity) {
                continue;
            }
            let Ok(runs) = held.present(addresses) else { continue };
            if let Err(error) = held.page_out(&runs) {
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

    /// What can be dropped without knowing what is cached: what lies behind a reader that can be
    /// followed, and all of a file whose readers cannot.
    fn drop_blindly(&self) {
        for (file, used) in self.files.files.iter().zip(&self.uses) {
            let _what_stays_is_not_known = match used.reading() {
                Reading::UpTo(position) => {
                    file.drop_unmapped_before(position.saturating_sub(self.ledger.keep()))
                }
                Reading::All | Reading::Since => file.drop_all_unmapped(),
                Reading::InPageTables | Reading::Nothing => Ok(()),
            };
        }
    }

    /// Which files are mapped and open now, and by whom; new ones are taken on. Of files that have
    /// come or gone everything is looked at.
    fn discover(&mut self) {
        (self.discovered_in, self.is_news) = (self.rounds, false);
        let held_before: Vec<bool> = self.uses.iter().map(FileUse::is_held).collect();
        let holdings = Holdings::look(&self.processes, &self.patterns, &mut self.files);
        if let Some(why) = &holdings.hidden {
            self.limits.page_out = Some(format!("what is mapped cannot be seen ({why})"));
        }
        for (place, file) in self.files.files.iter().enumerate() {
            let length = file.length();
            if self.uses.len() <= place {
                self.uses.push(FileUse::default());
                self.ledger.add_file(length);
            }
            self.ledger.resize(place, length);
        }
        holdings.tell(&self.files, &mut self.uses);
        for file in 0..self.uses.len() {
            let was_held = held_before.get(file).copied().unwrap_or(false);
            if self.uses[file].is_held() != was_held {
                self.look_at_file(file);
            }
        }
    }

    /// Bytes put out, and how many of them have come back.
    pub(super) fn tally(&self) -> (u64, u64) {
        self.ledger.tally()
    }

    /// How much could go now, how much of the model files is cached, and how much of what was read
    /// last stays.
    pub(super) fn stand(&self) -> Stand {
        let keeps_bytes = self.ledger.keep();
        let Due { free, mapped, must_go } = self.due();
        let (free, mapped) = (self.bytes_of(&free), self.bytes_of(&mapped));
        let lying_bytes = mapped.saturating_sub(must_go);
        Stand {
            due_bytes: free + mapped - lying_bytes,
            lying_bytes,
            cached_bytes: self.ledger.cached(),
            keeps_bytes,
        }
    }

    /// How much is free above what shall stay free.
    pub(super) fn spare_bytes(&self) -> u64 {
        FreeMemory::now().free_bytes.saturating_sub(self.floor_bytes)
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }
}

/// How much memory shall stay free. What is free on the node is no room for an engine whose control
/// group is full.
fn floor(mounts: &Mounts, wanted: u64, target: &EngineTarget) -> u64 {
    let is_bounded = target.cgroup.as_deref().is_some_and(|group| is_bounded(&mounts.sysfs, group));
    if is_bounded { u64::MAX } else { wanted }
}

fn blind(error: &io::Error) -> String {
    let why = match Errno::from_io_error(error) {
        Some(Errno::NOSYS) => "the kernel is older than 6.5",
        Some(Errno::PERM | Errno::ACCESS) => "the files are somebody else's: run as root",
        _ => "look at the file system",
    };
    format!("what is cached cannot be seen (cachestat: {error}: {why})")
}

fn unable(error: &io::Error) -> String {
    let why = match Errno::from_io_error(error) {
        Some(Errno::NOSYS) => "the kernel is older than 5.10",
        Some(Errno::PERM | Errno::ACCESS) => {
            "run as root, or with CAP_SYS_NICE, CAP_SYS_PTRACE and CAP_FOWNER"
        }
        _ => "the kernel does not do that",
    };
    format!("mapped pages stay (process_madvise: {error}: {why})")
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
