//! Reads ahead of a loading engine what it wants next: the rest of its file, and the next shard.
//!
//! An engine whose faults or small reads bring single pages leaves most of the disk's speed unused.
//! A sequential read ahead of it brings the same pages sooner, and in large folios, which cost less
//! to evict. It goes on only while the engine is seen to read forward, and everything (`order`).
//! What was read for nothing is counted, and ends it (`plan`). The thread that reads (`reader`) has
//! the lowest priority of the disk, and nothing is read while others use the disk (`disk`).

mod disk;
mod order;
mod plan;
mod reader;

pub(super) use plan::AheadTally;

use std::collections::BTreeSet;

use self::disk::Disk;
use self::plan::PrefetchPlan;
use self::reader::{FinishedJob, PrefetchReader, ReadJob};
use super::files::{ModelFile, PrintablePath, offset};
use super::ledger::ChunkId;
use super::load::TrackedLoad;
use super::required::{is_own_memory_bounded, limits_reads};
use super::uses::{FileUse, Reading};
use super::{EvictRequest, Mounts};
use crate::model::Prefetch;

/// Rounds between two samples of what was read ahead: the kernel may have reclaimed it.
const SAMPLE_EVERY: u64 = 8;

/// Whoever limits the engine wants the disk for others. Of 1 GiB of an engine that was limited to
/// 100 MiB a second, 752 to 784 MiB were read ahead of it, past that limit.
const LIMITED: &str = "a control group limits what the engine reads from disks";

/// Within 256 MiB, the kernel reclaims most of what is ahead before the engine comes to it.
const OWN_LIMIT: &str = "a control group limits the memory of umawarden, and what it reads counts \
                         there";

/// As the receipt of its last load that was read ahead of says.
const VAIN: &str = "too much of it was not used at an earlier load of this engine";

/// Why nothing may be read ahead of an engine at all.
pub(super) fn forbidden(mounts: &Mounts, request: &EvictRequest) -> Option<&'static str> {
    let target = &request.target;
    if target.is_prefetch_vain && request.prefetch == Prefetch::Auto {
        return Some(VAIN);
    }
    if limits_reads(&mounts.sysfs, target) {
        return Some(LIMITED);
    }
    is_own_memory_bounded(mounts).then_some(OWN_LIMIT)
}

/// Reads ahead for one load.
#[derive(Debug)]
pub(super) struct Prefetcher {
    plan: PrefetchPlan,
    /// Once there was something to read.
    reader: Option<PrefetchReader>,
    disk: Disk,
    /// Why no more is read ahead.
    pub(super) ended: Option<String>,
}

impl Prefetcher {
    /// `forbidden`: why nothing may be read ahead.
    pub(super) fn new(wanted: Prefetch, forbidden: Option<&str>) -> Self {
        let ended = forbidden.filter(|_| wanted != Prefetch::Off).map(str::to_owned);
        Self { plan: PrefetchPlan::new(wanted), reader: None, disk: Disk::default(), ended }
    }

    /// Whether anything may be read ahead.
    pub(super) fn is_off(&self) -> bool {
        self.plan.is_off()
    }

    /// Bytes so far.
    pub(super) fn tally(&self) -> AheadTally {
        self.plan.tally()
    }

    fn end(&mut self, why: String) {
        (self.reader, self.ended) = (None, Some(why));
    }

    /// Takes back the chunks that wait to be read and are void. Returns whether there were any.
    fn withdraw(&mut self, is_void: impl Fn(ChunkId) -> bool) -> bool {
        let Some(reader) = &self.reader else { return false };
        let withdrawn = reader.withdraw(is_void);
        self.plan.withdrawn(&withdrawn);
        !withdrawn.is_empty()
    }

    /// Takes back all that wait, until a later round wants them again.
    fn postpone(&mut self) {
        if self.withdraw(|_| true) {
            self.plan.goes_on_at_engine();
        }
    }
}

impl TrackedLoad {
    /// Goes on reading ahead, as far as order and memory allow.
    pub(super) fn read_ahead(&mut self) {
        // Samples in turn go upward, so the chunks that they find are in no order of the engine's.
        let (begun, found) = (std::mem::take(&mut self.begun), self.ledger.take_begun());
        let all: BTreeSet<usize> = begun.iter().chain(&found).map(|id| id.file).collect();
        let is_in_use = |file: &usize| self.uses.get(*file).is_some_and(FileUse::is_in_use);
        let all: Vec<usize> = all.into_iter().filter(is_in_use).collect();
        if !self.prefetcher.is_off() {
            all.iter().for_each(|file| self.succession.search_index(*file, &self.files));
        }
        self.succession.begins(all.into_iter(), &self.files.files);
        if self.prefetcher.is_off() {
            return;
        }
        self.take_read();
        let uses = &self.uses;
        let is_shared = |file: usize| uses.get(file).is_some_and(FileUse::is_shared);
        self.prefetcher.plan.begins(begun, &found, &self.ledger, is_shared);
        if self.rounds.is_multiple_of(SAMPLE_EVERY) {
            for id in self.prefetcher.plan.chunks().collect::<Vec<_>>() {
                self.sample(id);
            }
        }
        let uses = &self.uses;
        let is_shared = |file: usize| uses.get(file).is_some_and(FileUse::is_shared);
        self.prefetcher.plan.settle(&self.ledger, is_shared);
        // The engine may read faster than the disk serves us.
        let ledger = &self.ledger;
        self.prefetcher.withdraw(|id| !ledger.is_to_come(id));
        let spare_bytes = self.spare_bytes();
        if self.prefetcher.plan.is_excessive(spare_bytes) {
            self.prefetcher.postpone();
        }
        let excess = self.prefetcher.plan.excess(spare_bytes, &self.ledger);
        self.give_back(excess);
        if self.prefetcher.ended.is_some() {
            return;
        }
        if let Some(why) = self.hindrance() {
            self.prefetcher.end(why);
            return self.end_read_ahead(None);
        }
        if self.is_disk_busy() {
            return self.prefetcher.postpone();
        }
        if let Err(why) = self.queue(spare_bytes) {
            self.prefetcher.end(why);
        }
    }

    /// Whether others than the engine use its disk.
    fn is_disk_busy(&mut self) -> bool {
        let Self { prefetcher, files, processes, mounts, .. } = self;
        let file = prefetcher.plan.engine_file().and_then(|file| files.files.get(file));
        let Some(file) = file else { return false };
        let ahead = prefetcher.plan.tally().read_bytes;
        let ours = || {
            let of_engine = processes.iter().filter_map(|process| process.read_bytes().ok());
            of_engine.fold(ahead, u64::saturating_add)
        };
        let now = (files.pulse.uptime)();
        prefetcher.disk.is_busy(&mounts.sysfs, file.identity, now, ours)
    }

    /// The engine no longer uses a file (`None`: all of them): what was read of it for nothing
    /// leaves memory.
    pub(super) fn end_read_ahead(&mut self, file: Option<usize>) {
        match file {
            Some(file) => {
                self.prefetcher.withdraw(|id| id.file == file);
            }
            None => self.prefetcher.reader = None,
        }
        let leap_bytes = self.leap_bytes.saturating_mul(2);
        let unused = self.prefetcher.plan.closed(file, leap_bytes, &self.ledger);
        self.give_back(unused);
    }

    fn hindrance(&self) -> Option<String> {
        if self.prefetcher.plan.is_in_vain() {
            return Some("too much of it was not used".to_owned());
        }
        self.limits.sight.clone()
    }

    /// Takes what the reader has done.
    fn take_read(&mut self) {
        let done =
            self.prefetcher.reader.as_ref().map(PrefetchReader::take_done).unwrap_or_default();
        for FinishedJob { id, bytes } in done {
            match bytes {
                Ok(bytes) => {
                    self.prefetcher.plan.done(id, Some(bytes));
                    self.sample(id);
                    let cached = self.ledger.cached_of(id);
                    if let Some(used) = self.uses.get_mut(id.file) {
                        used.was_read_ahead(id.chunk, cached);
                    }
                }
                Err(error) => {
                    self.prefetcher.plan.done(id, None);
                    let file = self.files.files.get(id.file);
                    let name = file.map(|file| PrintablePath(&file.path).to_string());
                    let name = name.unwrap_or_default();
                    self.prefetcher.end(format!("{name} could not be read: {error}"));
                }
            }
        }
    }

    /// Evicts chunks that nobody has used.
    fn give_back(&mut self, chunks: Vec<ChunkId>) {
        for id in chunks {
            if let Some(file) = self.files.files.get(id.file) {
                // What stays is sampled.
                let _ = file.drop_unmapped(id.chunk);
            }
            self.sample(id);
        }
    }

    /// Has the next chunks read.
    fn queue(&mut self, spare_bytes: u64) -> Result<(), String> {
        let Self { prefetcher, ledger, uses, files, succession, .. } = self;
        let is_readable = |file: usize| {
            let used = uses.get(file).filter(|used| !used.is_read_directly());
            let reading = used.map(FileUse::reading);
            matches!(reading, Some(Reading::InPageTables | Reading::UpTo(_)))
        };
        let behind = |file: usize| {
            let next = succession.next(file, &files.files)?;
            let is_untouched = !ledger.has_begun_file(next)
                && matches!(uses.get(next)?.reading(), Reading::Nothing | Reading::InPageTables);
            is_untouched.then_some(next)
        };
        let wanted = prefetcher.plan.wanted(spare_bytes, ledger, is_readable, behind);
        if wanted.is_empty() {
            return Ok(());
        }
        let mut jobs = Vec::new();
        for id in wanted {
            match files.files.get(id.file).map(ModelFile::handle) {
                Some(Ok(file)) => {
                    let (offset, bytes) = (offset(id.chunk), ledger.length_of(id));
                    jobs.push(ReadJob { id, file, offset, bytes });
                }
                _ => prefetcher.plan.done(id, None),
            }
        }
        if prefetcher.reader.is_none() {
            let started = PrefetchReader::start();
            let failed = |error| format!("the thread that reads ahead cannot be started: {error}");
            prefetcher.reader = Some(started.map_err(failed)?);
        }
        if let Some(reader) = &prefetcher.reader {
            reader.add(jobs);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
