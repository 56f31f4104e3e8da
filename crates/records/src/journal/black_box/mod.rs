//! The black box: one record a second of the most important values, on disk before the second is
//! over. After a wedge and a power cycle they show the last seconds.
//!
//! A **file** is one boot: a header of a page, then a ring of records of 512 bytes, created in its
//! full size before the first record. A **record** has a CRC, the boot and a number that gives its
//! offset: torn, damaged and stale records are detected and left out. A folder has the files of the
//! last boots. Files of other versions and foreign files are never overwritten.

mod folder;
mod header;
mod record;
mod ring;
mod scan;
#[cfg(test)]
mod tests;
mod text;

pub use folder::{BlackBoxError, DiskFile, Folder, LastBoot, LeftOutReason, recover};
pub use header::{EndOfBoot, Header, MOST_RECORDS, PAGE_BYTES, PreviousBoot, UnusableFile};
pub use record::{BlackBoxRecord, BootId, LastEvent, RECORD_BYTES, RuleCounts, Signal, Slot};
pub use ring::{AlignedPage, BlackBoxRing, Disk};
pub use scan::RecoveredRecords;
pub use text::ShortText;
