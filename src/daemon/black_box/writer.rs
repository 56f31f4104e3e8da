//! The thread of the black box.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::from_status::{StatusReader, last_event};
use super::shared::BlackBoxShared;
use crate::config::settings::Settings;
use crate::daemon::clock;
use crate::journal::black_box::{
    BlackBoxError, BlackBoxRecord, BlackBoxRing, BootId, Disk, DiskFile, Folder, Signal,
};
use crate::model::{Moment, Reading};
use crate::sources::memory::{VitalSource, Vitals};

/// Between two records.
const PACE: Duration = Duration::from_secs(1);

/// The pause after a folder cannot be used.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// The file is checked after this many records, and opened again after this many failures in a row:
/// another disk may be mounted there.
const CHECK_AFTER: u32 = 60;

pub(super) struct Writer {
    storage: PathBuf,
    boot_id: BootId,
    records: u32,
    shared: Arc<BlackBoxShared>,
    vitals: VitalSource,
    reader: StatusReader,
    /// The time of the last record, on the monotonic clock.
    last: Option<Duration>,
    write_took: Option<Duration>,
    /// Records or failures since the file was checked.
    since_check: u32,
}

impl Writer {
    pub(super) fn new(
        settings: &Settings,
        boot_id: BootId,
        records: u32,
        shared: Arc<BlackBoxShared>,
    ) -> Self {
        Self {
            storage: settings.storage.path.clone(),
            boot_id,
            records,
            shared,
            vitals: VitalSource::new(&settings.path.procfs),
            reader: StatusReader::new(),
            last: None,
            write_took: None,
            since_check: 0,
        }
    }

    /// Writes a record a second until the program ends, and a last one for the orderly end.
    pub(super) fn run(&mut self) {
        let mut ring = None;
        let mut retry_at = Duration::ZERO;
        let mut due = clock::monotonic();
        loop {
            let ending = self.shared.ending();
            if ring.is_none() && (clock::monotonic() >= retry_at || ending) {
                ring = self.open();
                retry_at = clock::monotonic() + RETRY_AFTER;
            }
            if let Some(open) = &mut ring {
                self.second(open, ending);
                if self.must_reopen(open) {
                    (ring, retry_at) = (None, Duration::ZERO);
                }
            }
            if ending {
                return;
            }
            due = (due + PACE).max(clock::monotonic());
            self.sleep_until(due);
        }
    }

    fn sleep_until(&self, due: Duration) {
        while !self.shared.ending() {
            match due.saturating_sub(clock::monotonic()) {
                Duration::ZERO => return,
                left => std::thread::park_timeout(left),
            }
        }
    }

    fn open(&mut self) -> Option<BlackBoxRing<DiskFile>> {
        self.since_check = 0;
        match self.try_open() {
            Ok((ring, remarks)) => {
                for remark in remarks {
                    tracing::warn!(remark, "black box opened with a remark");
                }
                Some(ring)
            }
            Err(error) => {
                self.failed(&error.to_string());
                None
            }
        }
    }

    fn try_open(&self) -> Result<(BlackBoxRing<DiskFile>, Vec<String>), BlackBoxError> {
        let now = clock::now();
        let folder = Folder::read(&self.storage)?;
        let last_boot = folder.last_boot(self.boot_id, now);
        // A read-only disk still has the end of the previous boot.
        self.shared.last_boot.get_or_init(|| last_boot.clone());
        folder.open(self.boot_id, now, self.records, last_boot.as_ref())
    }

    /// Makes and writes the record of this second.
    pub(super) fn second<D: Disk>(&mut self, ring: &mut BlackBoxRing<D>, closed: bool) {
        let began = clock::monotonic();
        let mut record = self.record(clock::now());
        record.closed = closed;
        record.missed = self.missed(began);
        match ring.write(&mut record) {
            Ok(()) => {
                let ended = clock::monotonic();
                let took = ended.saturating_sub(began);
                self.write_took = Some(took);
                if self.shared.is_failing() {
                    self.since_check = 0;
                    tracing::info!("black box written again");
                }
                self.shared.written(ended, took);
            }
            Err(error) => self.failed(&format!("a record cannot be written: {error}")),
        }
        self.since_check += 1;
    }

    fn record(&mut self, at: Moment) -> BlackBoxRecord {
        let mut record = BlackBoxRecord::new(self.boot_id, at);
        record.reported = self.shared.is_reported();
        record.write_took = self.write_took;
        // The status is released before the disk is waited for.
        self.reader.copy(&self.shared.status.load(), &mut record);
        let per_cpu_lists = record.get(Signal::PerCpuLists).map(|bytes| bytes as u64);
        copy_vitals(&self.vitals.read(per_cpu_lists), &mut record);
        record.last_event = self.shared.last_event.load().as_deref().map(last_event);
        record
    }

    /// Whole seconds without a record since the last one.
    fn missed(&mut self, now: Duration) -> u32 {
        let since = self.last.replace(now).map_or(PACE, |last| now.saturating_sub(last));
        // Half a second of delay is no missing record.
        let seconds = (since + PACE / 2).as_secs().saturating_sub(1);
        let missed = u32::try_from(seconds).unwrap_or(u32::MAX);
        self.shared.count_missed(missed);
        missed
    }

    fn must_reopen(&mut self, ring: &BlackBoxRing<DiskFile>) -> bool {
        if self.since_check < CHECK_AFTER {
            return false;
        }
        self.since_check = 0;
        let is_there = ring.disk().is_there();
        if !is_there {
            let path = ring.disk().path().display();
            tracing::warn!(%path, "black box removed, creating it again");
        }
        self.shared.is_failing() || !is_there
    }

    fn failed(&self, why: &str) {
        if self.shared.fail(why.to_owned()) {
            tracing::warn!(why, "black box not written, retrying");
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53 bytes")]
fn copy_vitals(vitals: &Vitals, to: &mut BlackBoxRecord) {
    let whole = |reading: Reading<u64>| reading.map(|bytes| bytes as f64);
    to.set(Signal::Total, whole(vitals.total));
    to.set(Signal::Free, whole(vitals.free));
    to.set(Signal::Available, whole(vitals.available));
    to.set(Signal::PageCache, whole(vitals.page_cache));
    to.set(Signal::Dirty, whole(vitals.dirty));
    to.set(Signal::Anonymous, whole(vitals.anonymous));
    to.set(Signal::Shmem, whole(vitals.shmem));
    to.set(Signal::Slab, whole(vitals.slab));
    to.set(Signal::Unevictable, whole(vitals.unevictable));
    to.set(Signal::SwapFree, whole(vitals.swap_free));
    to.set(Signal::Unaccounted, vitals.unaccounted.map(|bytes| bytes as f64));
    to.set(Signal::MemorySome, vitals.memory_some);
    to.set(Signal::MemoryFull, vitals.memory_full);
    to.set(Signal::IoFull, vitals.io_full);
    to.set(Signal::CpuSome, vitals.cpu_some);
}
