//! Reads a file back, even if it is torn or its disk is failing.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;

use super::header::{Header, PAGE_BYTES, RECORDS_A_PAGE, UnusableFile};
use super::record::{BlackBoxRecord, RECORD_BYTES, Slot};

/// The number of unreadable pages after which the scan ends: each may take half a minute.
const FAILED_PAGES_MAX: u32 = 8;

/// The recovered records of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct RecoveredRecords {
    /// The header of the file.
    pub header: Header,
    /// The oldest first.
    pub records: Vec<BlackBoxRecord>,
    /// Records that were torn, have been damaged since, or cannot be read.
    pub damaged: u32,
}

pub(super) trait PageSource {
    /// Reads the page of a number; `UnexpectedEof`: there is none, or only a part.
    fn page(&self, number: u32, into: &mut [u8; PAGE_BYTES]) -> io::Result<()>;
}

impl PageSource for File {
    fn page(&self, number: u32, into: &mut [u8; PAGE_BYTES]) -> io::Result<()> {
        self.read_exact_at(into, u64::from(number) * PAGE_BYTES as u64)
    }
}

impl PageSource for [u8] {
    fn page(&self, number: u32, into: &mut [u8; PAGE_BYTES]) -> io::Result<()> {
        let page = self.as_chunks().0.get(number as usize);
        *into = *page.ok_or(ErrorKind::UnexpectedEof)?;
        Ok(())
    }
}

impl RecoveredRecords {
    /// Reads the bytes of a file. Damaged records are left out.
    pub fn of_bytes(bytes: &[u8]) -> Result<Self, UnusableFile> {
        Self::read(bytes).unwrap_or(Err(UnusableFile::Foreign))
    }

    /// The first page cannot be read.
    pub(super) fn read<P: PageSource + ?Sized>(from: &P) -> io::Result<Result<Self, UnusableFile>> {
        let header = match read_header(from)? {
            Ok(header) => header,
            Err(unusable) => return Ok(Err(unusable)),
        };
        let mut records = Vec::new();
        let damaged = scan(&header, from, |record| records.push(*record));
        records.sort_by_key(|record: &BlackBoxRecord| record.sequence);
        Ok(Ok(Self { header, records, damaged }))
    }
}

/// The first page.
pub(super) fn read_header<P: PageSource + ?Sized>(
    from: &P,
) -> io::Result<Result<Header, UnusableFile>> {
    let mut page = [0; PAGE_BYTES];
    match from.page(0, &mut page) {
        Ok(()) => Ok(Header::decode(&page)),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(Err(UnusableFile::Foreign)),
        Err(error) => Err(error),
    }
}

/// Visits each record behind the header, in no order. Returns the number of damaged ones. A
/// truncated file is read as far as it goes.
pub(super) fn scan<P: PageSource + ?Sized>(
    header: &Header,
    from: &P,
    mut each: impl FnMut(&BlackBoxRecord),
) -> u32 {
    let mut page = [0; PAGE_BYTES];
    let (mut damaged, mut failed) = (0, 0);
    for number in 0..header.records / RECORDS_A_PAGE {
        match from.page(1 + number, &mut page) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => break,
            Err(_) => {
                damaged += RECORDS_A_PAGE;
                failed += 1;
                if failed == FAILED_PAGES_MAX {
                    break;
                }
                continue;
            }
        }
        let (records, _) = page.as_chunks::<RECORD_BYTES>();
        for (slot, bytes) in (number * RECORDS_A_PAGE..).zip(records) {
            match BlackBoxRecord::decode(bytes) {
                Slot::Empty => {}
                Slot::Whole(record) if belongs(header, slot, &record) => each(&record),
                Slot::Whole(_) | Slot::Damaged => damaged += 1,
            }
        }
    }
    damaged
}

/// Whether a record is at its own offset, and of this boot: a disk may return a stale block.
fn belongs(header: &Header, slot: u32, record: &BlackBoxRecord) -> bool {
    record.boot_id == header.boot_id
        && record.sequence % u64::from(header.records) == u64::from(slot)
}
