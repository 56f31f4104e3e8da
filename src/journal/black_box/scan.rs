//! Reading a file back, whole or torn.

use std::io::{self, ErrorKind, Read};

use super::header::{Header, PAGE_BYTES, RECORDS_A_PAGE, Unusable};
use super::record::{RECORD_BYTES, Record, Slot};

/// What a file still holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Recovered {
    /// Whose seconds these are.
    pub header: Header,
    /// The oldest first.
    pub records: Vec<Record>,
    /// Records that were torn, or have been damaged since.
    pub damaged: u32,
}

impl Recovered {
    /// Reads a whole file. What is damaged is left out.
    pub fn read(mut from: impl Read) -> io::Result<Result<Self, Unusable>> {
        let header = match read_header(&mut from)? {
            Ok(header) => header,
            Err(unusable) => return Ok(Err(unusable)),
        };
        let mut recovered = Self { header, records: Vec::new(), damaged: 0 };
        recovered.damaged = scan(&header, from, |record| recovered.records.push(*record))?;
        recovered.records.sort_by_key(|record| record.sequence);
        Ok(Ok(recovered))
    }
}

/// The first page.
pub(super) fn read_header(from: &mut impl Read) -> io::Result<Result<Header, Unusable>> {
    let mut page = [0; PAGE_BYTES];
    match from.read_exact(&mut page) {
        Ok(()) => Ok(Header::decode(&page)),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(Err(Unusable::Foreign)),
        Err(error) => Err(error),
    }
}

/// Shows each record behind the header, in no order; returns how many are damaged. A file that ends
/// too soon has been cut: what is left of it counts.
pub(super) fn scan(
    header: &Header,
    mut from: impl Read,
    mut each: impl FnMut(&Record),
) -> io::Result<u32> {
    let mut page = [0; PAGE_BYTES];
    let mut damaged = 0;
    for first in (0..header.records).step_by(RECORDS_A_PAGE as usize) {
        match from.read_exact(&mut page) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(error),
        }
        let (records, _) = page.as_chunks::<RECORD_BYTES>();
        for (place, bytes) in (first..).zip(records) {
            match Record::decode(bytes) {
                Slot::Empty => {}
                Slot::Whole(record) if belongs(header, place, &record) => each(&record),
                Slot::Whole(_) | Slot::Damaged => damaged += 1,
            }
        }
    }
    Ok(damaged)
}

/// Whether a record is where it was written, by this boot: a disk may return an old block.
fn belongs(header: &Header, place: u32, record: &Record) -> bool {
    record.boot_id == header.boot_id
        && record.sequence % u64::from(header.records) == u64::from(place)
}
