//! `/proc/vmstat`.

use std::path::Path;
use std::time::Duration;

use super::feed::{MemoryReader, ReadReport};
use super::file::KeptFile;
use crate::model::{SeriesKey, Source};
use crate::parse::proc::vmstat::{Vmstat, VmstatField as Field};

type VmstatSeries = (&'static str, &'static [(&'static str, &'static str)], Field);

const SERIES: &[VmstatSeries] = &[
    ("uma_memory_reclaim_scanned_pages_total", &[("reclaimer", "direct")], Field::ScanDirect),
    ("uma_memory_reclaim_scanned_pages_total", &[("reclaimer", "kswapd")], Field::ScanKswapd),
    (
        "uma_memory_reclaim_scanned_pages_total",
        &[("reclaimer", "khugepaged")],
        Field::ScanKhugepaged,
    ),
    ("uma_memory_reclaim_stolen_pages_total", &[("reclaimer", "direct")], Field::StealDirect),
    ("uma_memory_reclaim_stolen_pages_total", &[("reclaimer", "kswapd")], Field::StealKswapd),
    (
        "uma_memory_reclaim_stolen_pages_total",
        &[("reclaimer", "khugepaged")],
        Field::StealKhugepaged,
    ),
    ("uma_memory_reclaim_throttled_total", &[], Field::DirectThrottle),
    ("uma_memory_allocation_stalls_total", &[("zone", "dma")], Field::StallDma),
    ("uma_memory_allocation_stalls_total", &[("zone", "dma32")], Field::StallDma32),
    ("uma_memory_allocation_stalls_total", &[("zone", "normal")], Field::StallNormal),
    ("uma_memory_allocation_stalls_total", &[("zone", "movable")], Field::StallMovable),
    ("uma_memory_allocation_stalls_total", &[("zone", "device")], Field::StallDevice),
    ("uma_memory_compaction_stalls_total", &[], Field::CompactStall),
    ("uma_memory_compaction_failures_total", &[], Field::CompactFail),
    ("uma_memory_compaction_successes_total", &[], Field::CompactSuccess),
    ("uma_memory_refaulted_pages_total", &[("kind", "anonymous")], Field::RefaultAnon),
    ("uma_memory_refaulted_pages_total", &[("kind", "file")], Field::RefaultFile),
    ("uma_memory_page_faults_total", &[], Field::Fault),
    ("uma_memory_major_page_faults_total", &[], Field::MajorFault),
    ("uma_memory_oom_kills_total", &[], Field::OomKill),
    ("uma_memory_cache_drops_total", &[("what", "pagecache")], Field::DropPagecache),
    ("uma_memory_cache_drops_total", &[("what", "slab")], Field::DropSlab),
    ("uma_memory_pinned_pages_total", &[], Field::FollPinAcquired),
    ("uma_memory_unpinned_pages_total", &[], Field::FollPinReleased),
    ("uma_memory_huge_page_faults_total", &[("outcome", "allocated")], Field::ThpFaultAlloc),
    ("uma_memory_huge_page_faults_total", &[("outcome", "fell_back")], Field::ThpFaultFallback),
    ("uma_swap_in_pages_total", &[], Field::SwapIn),
    ("uma_swap_out_pages_total", &[], Field::SwapOut),
];

#[derive(Debug)]
pub(super) struct VmstatReader {
    file: KeptFile,
}

impl VmstatReader {
    pub(super) fn new(procfs: &Path) -> Self {
        Self { file: KeptFile::new(procfs.join("vmstat")) }
    }
}

impl MemoryReader for VmstatReader {
    const SOURCE: Source = Source::Vmstat;
    const PAUSE_MAX: Duration = Duration::from_secs(1);

    fn series(&self) -> Vec<SeriesKey> {
        SERIES.iter().map(|(name, labels, _)| SeriesKey::new(name, labels)).collect()
    }

    fn read(&mut self, report: &mut ReadReport) {
        let parsed = match self.file.read() {
            Ok(text) => Vmstat::parse(text).map_err(|error| self.file.failed(error)),
            Err(fault) => Err(fault),
        };
        match parsed {
            Ok(vmstat) => {
                for (_, _, field) in SERIES {
                    report.push_whole(vmstat.get(*field));
                }
            }
            Err(fault) => report.miss_all(SERIES.len(), &fault),
        }
    }
}
