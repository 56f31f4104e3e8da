//! The black box: a record a second of what matters most, on disk before the second is over, so
//! that after a wedge and a power cycle the last seconds can be seen.
//!
//! A **file** is one boot: a header of a page, then a ring of records of 512 bytes, made in its
//! full size before the first record. A **record** has a CRC, the boot and a number, and its
//! number gives its offset: whatever is torn, damaged, or an older block that a disk has
//! kept, is found out and left out. A folder holds the files of the last boots; nothing that is no
//! file of this version is ever written over.

mod folder;
mod header;
mod record;
mod ring;
mod scan;
#[cfg(test)]
mod tests;
mod text;

pub use folder::{BlackBoxError, DiskFile, Folder, LastBoot, Why, recover};
pub use header::{EndOfBoot, Header, MOST_RECORDS, PAGE_BYTES, Previous, Unusable};
pub use record::{BootId, LastEvent, RECORD_BYTES, Record, RuleCounts, Signal, Slot};
pub use ring::{Disk, Page, Ring};
pub use scan::Recovered;
pub use text::ShortText;
