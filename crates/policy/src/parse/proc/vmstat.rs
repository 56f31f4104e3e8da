//! `/proc/vmstat`.

use super::ProcFileError;
use super::text::{fields, lines, reading};
use crate::model::Reading;

fields! {
    /// A counter of `/proc/vmstat` that this program reads.
    VmstatField:
    FollPinAcquired = b"nr_foll_pin_acquired",
    FollPinReleased = b"nr_foll_pin_released",
    RefaultAnon = b"workingset_refault_anon",
    RefaultFile = b"workingset_refault_file",
    SwapIn = b"pswpin",
    SwapOut = b"pswpout",
    StallDma = b"allocstall_dma",
    StallDma32 = b"allocstall_dma32",
    StallNormal = b"allocstall_normal",
    StallMovable = b"allocstall_movable",
    StallDevice = b"allocstall_device",
    Fault = b"pgfault",
    MajorFault = b"pgmajfault",
    StealKswapd = b"pgsteal_kswapd",
    StealDirect = b"pgsteal_direct",
    StealKhugepaged = b"pgsteal_khugepaged",
    ScanKswapd = b"pgscan_kswapd",
    ScanDirect = b"pgscan_direct",
    ScanKhugepaged = b"pgscan_khugepaged",
    DirectThrottle = b"pgscan_direct_throttle",
    DropPagecache = b"drop_pagecache",
    DropSlab = b"drop_slab",
    OomKill = b"oom_kill",
    CompactStall = b"compact_stall",
    CompactFail = b"compact_fail",
    CompactSuccess = b"compact_success",
    ThpFaultAlloc = b"thp_fault_alloc",
    ThpFaultFallback = b"thp_fault_fallback",
}

/// What `/proc/vmstat` said.
#[derive(Clone, Debug, PartialEq)]
pub struct Vmstat {
    values: [Reading<u64>; VmstatField::COUNT],
}

impl Vmstat {
    /// Parses the whole file. The first of two equal keys counts.
    pub fn parse(text: &[u8]) -> Result<Self, ProcFileError> {
        let mut values = [Reading::Unsupported; VmstatField::COUNT];
        let mut known = false;
        for line in lines(text) {
            let Some(blank) = line.text.iter().position(|&byte| byte == b' ') else { continue };
            let Some(field) = VmstatField::from_key(&line.text[..blank]) else { continue };
            let slot = &mut values[field as usize];
            if *slot == Reading::Unsupported {
                known = true;
                *slot = reading(Some(line.text[blank + 1..].trim_ascii()), line.whole);
            }
        }
        match (known, text.is_empty()) {
            (true, _) => Ok(Self { values }),
            (false, true) => Err(ProcFileError::Empty),
            (false, false) => Err(ProcFileError::Unrecognized),
        }
    }

    /// A counter, in pages or events since boot.
    pub fn get(&self, field: VmstatField) -> Reading<u64> {
        self.values[field as usize]
    }
}
