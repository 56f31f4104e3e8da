//! `/sys/devices/system/node/node*/meminfo`.

use super::Unreadable;
use super::text::{fields, kibibytes, lines, number, words};
use crate::model::Reading;

fields! {
    /// A field of a NUMA node's `meminfo` that this program reads.
    NodeField:
    MemTotal = b"MemTotal",
    MemFree = b"MemFree",
    MemUsed = b"MemUsed",
    Unevictable = b"Unevictable",
    Dirty = b"Dirty",
    FilePages = b"FilePages",
    Mapped = b"Mapped",
    AnonPages = b"AnonPages",
    Shmem = b"Shmem",
    SReclaimable = b"SReclaimable",
    SUnreclaim = b"SUnreclaim",
}

/// What a NUMA node's `meminfo` said.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeMeminfo {
    values: [Reading<u64>; NodeField::COUNT],
}

impl NodeMeminfo {
    /// Parses the whole file, whose lines read `Node 0 MemTotal: 5 kB`.
    pub fn parse(text: &[u8]) -> Result<Self, Unreadable> {
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
                *slot = kibibytes(&line.text[colon + 1..]);
            }
        }
        match (known, text.is_empty()) {
            (true, _) => Ok(Self { values }),
            (false, true) => Err(Unreadable::Empty),
            (false, false) => Err(Unreadable::Unrecognized),
        }
    }

    /// A field, in bytes.
    pub fn get(&self, field: NodeField) -> Reading<u64> {
        self.values[field as usize]
    }
}
