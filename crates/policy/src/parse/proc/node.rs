//! `/sys/devices/system/node/node*/meminfo`.

use super::ProcFileError;
use super::text::{fields, kibibytes, lines, number, reading, words};
use crate::model::Reading;

fields! {
    /// A field of a NUMA node's `meminfo` that this program reads.
    NodeField:
    MemTotal = b"MemTotal",
    MemFree = b"MemFree",
    MemUsed = b"MemUsed",
    Unevictable = b"Unevictable",
    Dirty = b"Dirty",
    Writeback = b"Writeback",
    FilePages = b"FilePages",
    SwapCached = b"SwapCached",
    ActiveFile = b"Active(file)",
    InactiveFile = b"Inactive(file)",
    Mapped = b"Mapped",
    AnonPages = b"AnonPages",
    Shmem = b"Shmem",
    SReclaimable = b"SReclaimable",
    SUnreclaim = b"SUnreclaim",
    KReclaimable = b"KReclaimable",
    KernelStack = b"KernelStack",
    PageTables = b"PageTables",
    SecPageTables = b"SecPageTables",
    HugePagesTotal = b"HugePages_Total",
}

/// What a NUMA node's `meminfo` said.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeMeminfo {
    values: [Reading<u64>; NodeField::COUNT],
}

impl NodeMeminfo {
    /// Parses the whole file, whose lines read `Node 0 MemTotal: 5 kB`.
    pub fn parse(text: &[u8]) -> Result<Self, ProcFileError> {
        let mut values = [Reading::Unsupported; NodeField::COUNT];
        let mut known = false;
        for line in lines(text) {
            let Some(colon) = line.text.iter().position(|&byte| byte == b':') else { continue };
            let mut key = words(&line.text[..colon]);
            let (Some(b"Node"), Some(_), Some(name), None) =
                (key.next(), key.next().and_then(number), key.next(), key.next())
            else {
                continue;
            };
            let Some(field) = NodeField::from_key(name) else { continue };
            let slot = &mut values[field as usize];
            if *slot == Reading::Unsupported {
                known = true;
                let value = &line.text[colon + 1..];
                *slot = match field {
                    // A count: it has no unit that would show that it is complete.
                    NodeField::HugePagesTotal => reading(words(value).next(), line.whole),
                    _ => kibibytes(value),
                };
            }
        }
        match (known, text.is_empty()) {
            (true, _) => Ok(Self { values }),
            (false, true) => Err(ProcFileError::Empty),
            (false, false) => Err(ProcFileError::Unrecognized),
        }
    }

    /// A field, in bytes; of `HugePagesTotal` the number of pages of the default size.
    pub fn get(&self, field: NodeField) -> Reading<u64> {
        self.values[field as usize]
    }
}

/// The number of CPUs in a list such as `0-71,144`, the text of `node*/cpulist`; empty for a node
/// of memory alone.
///
/// # Errors
/// It is no list of numbers and ranges.
pub fn cpu_count(list: &[u8]) -> Result<u64, ProcFileError> {
    let list = list.trim_ascii();
    if list.is_empty() {
        return Ok(0);
    }
    let count = |range: &[u8]| {
        let mut ends = range.splitn(2, |&byte| byte == b'-');
        let first = number(ends.next()?)?;
        let last = ends.next().map_or(Some(first), number)?;
        last.checked_sub(first)?.checked_add(1)
    };
    list.split(|&byte| byte == b',')
        .try_fold(0_u64, |sum, range| sum.checked_add(count(range)?))
        .ok_or(ProcFileError::Unrecognized)
}
