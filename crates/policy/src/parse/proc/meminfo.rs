//! `/proc/meminfo`.

use super::ProcFileError;
use super::text::{fields, kibibytes, lines, reading, words};
use crate::model::Reading;

fields! {
    /// A field of `/proc/meminfo` that this program reads.
    MeminfoField:
    MemTotal = b"MemTotal",
    MemFree = b"MemFree",
    MemAvailable = b"MemAvailable",
    Buffers = b"Buffers",
    Cached = b"Cached",
    SwapCached = b"SwapCached",
    ActiveAnon = b"Active(anon)",
    InactiveAnon = b"Inactive(anon)",
    ActiveFile = b"Active(file)",
    InactiveFile = b"Inactive(file)",
    Unevictable = b"Unevictable",
    Mlocked = b"Mlocked",
    SwapTotal = b"SwapTotal",
    SwapFree = b"SwapFree",
    Zswap = b"Zswap",
    Zswapped = b"Zswapped",
    Dirty = b"Dirty",
    Writeback = b"Writeback",
    AnonPages = b"AnonPages",
    Mapped = b"Mapped",
    Shmem = b"Shmem",
    KReclaimable = b"KReclaimable",
    Slab = b"Slab",
    SReclaimable = b"SReclaimable",
    SUnreclaim = b"SUnreclaim",
    KernelStack = b"KernelStack",
    PageTables = b"PageTables",
    SecPageTables = b"SecPageTables",
    VmallocUsed = b"VmallocUsed",
    Percpu = b"Percpu",
    HardwareCorrupted = b"HardwareCorrupted",
    AnonHugePages = b"AnonHugePages",
    ShmemHugePages = b"ShmemHugePages",
    FileHugePages = b"FileHugePages",
    CmaTotal = b"CmaTotal",
    CmaFree = b"CmaFree",
    HugePagesTotal = b"HugePages_Total",
    HugePagesFree = b"HugePages_Free",
    HugePagesRsvd = b"HugePages_Rsvd",
    HugePagesSurp = b"HugePages_Surp",
    Hugepagesize = b"Hugepagesize",
    Hugetlb = b"Hugetlb",
    NvMapMemUsed = b"NvMapMemUsed",
}

impl MeminfoField {
    fn is_count(self) -> bool {
        matches!(
            self,
            Self::HugePagesTotal | Self::HugePagesFree | Self::HugePagesRsvd | Self::HugePagesSurp
        )
    }
}

/// What `/proc/meminfo` said.
#[derive(Clone, Debug, PartialEq)]
pub struct Meminfo {
    values: [Reading<u64>; MeminfoField::COUNT],
}

impl Meminfo {
    /// Parses the whole file. The first of two equal keys counts.
    pub fn parse(text: &[u8]) -> Result<Self, ProcFileError> {
        let mut values = [Reading::Unsupported; MeminfoField::COUNT];
        let mut known = false;
        for line in lines(text) {
            let Some(colon) = line.text.iter().position(|&byte| byte == b':') else { continue };
            let Some(field) = MeminfoField::from_key(line.text[..colon].trim_ascii()) else {
                continue;
            };
            let slot = &mut values[field as usize];
            if *slot != Reading::Unsupported {
                continue;
            }
            known = true;
            let rest = &line.text[colon + 1..];
            *slot = if field.is_count() { count(rest, line.whole) } else { kibibytes(rest) };
        }
        match (known, text.is_empty()) {
            (true, _) => Ok(Self { values }),
            (false, true) => Err(ProcFileError::Empty),
            (false, false) => Err(ProcFileError::Unrecognized),
        }
    }

    /// A field: bytes, or for `HugePages_*` a count of pages.
    pub fn get(&self, field: MeminfoField) -> Reading<u64> {
        self.values[field as usize]
    }
}

fn count(rest: &[u8], whole: bool) -> Reading<u64> {
    let mut words = words(rest);
    let first = words.next();
    if words.next().is_some() { Reading::Failed } else { reading(first, whole) }
}
