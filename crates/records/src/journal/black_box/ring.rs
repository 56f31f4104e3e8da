//! A ring of records on disk, in which new ones replace the oldest.

use std::io;

use super::header::{PAGE_BYTES, RECORDS_A_PAGE};
use super::record::{BlackBoxRecord, RECORD_BYTES};

/// A page aligned for direct I/O.
#[derive(Clone, Debug)]
#[repr(C, align(4096))]
pub struct AlignedPage(pub [u8; PAGE_BYTES]);

/// The disk of the pages.
pub trait Disk {
    /// Returns when the page will survive a power cut.
    fn put(&mut self, offset: u64, page: &AlignedPage) -> io::Result<()>;
}

/// A ring of records. Writing allocates nothing: one page holds the present record and those right
/// before it.
#[derive(Debug)]
pub struct BlackBoxRing<D> {
    disk: D,
    records: u32,
    next: u64,
    page: Box<AlignedPage>,
}

impl<D: Disk> BlackBoxRing<D> {
    /// A ring of so many records whose next record gets that number. `page` is the page on disk
    /// of that record.
    pub fn on(disk: D, records: u32, next: u64, page: Box<AlignedPage>) -> Self {
        Self { disk, records, next, page }
    }

    /// Numbers the record and writes it. After an error the next write may repeat it.
    pub fn write(&mut self, record: &mut BlackBoxRecord) -> io::Result<()> {
        record.sequence = self.next;
        self.next += 1;
        let slot = record.sequence % u64::from(self.records);
        let index = (slot % u64::from(RECORDS_A_PAGE)) as usize;
        if index == 0 {
            // The seven oldest records are dropped a few seconds early, so that no page has to be
            // read.
            self.page.0.fill(0);
        }
        if let Some(bytes) = self.page.0.as_chunks_mut::<RECORD_BYTES>().0.get_mut(index) {
            record.encode(bytes);
        }
        self.disk.put(page_offset(slot), &self.page)
    }

    /// The disk of the ring.
    pub fn disk(&self) -> &D {
        &self.disk
    }
}

/// Offset in the file of the page of a slot.
pub(super) fn page_offset(slot: u64) -> u64 {
    (1 + slot / u64::from(RECORDS_A_PAGE)) * PAGE_BYTES as u64
}
