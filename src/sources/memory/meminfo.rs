//! `/proc/meminfo`, and what is derived from it.

use std::path::Path;

use super::feed::{MemoryReader, ReadReport};
use super::file::KeptFile;
use crate::model::{Reading, SeriesKey, Source};
use crate::parse::proc::derived::{headroom, page_cache, unaccounted};
use crate::parse::proc::meminfo::{Meminfo, MeminfoField as Field};

type MeminfoSeries = (&'static str, &'static [(&'static str, &'static str)], Field);

const SERIES: &[MeminfoSeries] = &[
    ("uma_memory_total_bytes", &[], Field::MemTotal),
    ("uma_memory_free_bytes", &[], Field::MemFree),
    ("uma_memory_available_bytes", &[], Field::MemAvailable),
    ("uma_memory_buffers_bytes", &[], Field::Buffers),
    ("uma_memory_cached_bytes", &[], Field::Cached),
    ("uma_memory_lru_bytes", &[("list", "active_anonymous")], Field::ActiveAnon),
    ("uma_memory_lru_bytes", &[("list", "inactive_anonymous")], Field::InactiveAnon),
    ("uma_memory_lru_bytes", &[("list", "active_file")], Field::ActiveFile),
    ("uma_memory_lru_bytes", &[("list", "inactive_file")], Field::InactiveFile),
    ("uma_memory_unevictable_bytes", &[], Field::Unevictable),
    ("uma_memory_mlocked_bytes", &[], Field::Mlocked),
    ("uma_memory_dirty_bytes", &[], Field::Dirty),
    ("uma_memory_writeback_bytes", &[], Field::Writeback),
    ("uma_memory_anonymous_bytes", &[], Field::AnonPages),
    ("uma_memory_mapped_bytes", &[], Field::Mapped),
    ("uma_memory_shmem_bytes", &[], Field::Shmem),
    ("uma_memory_kernel_reclaimable_bytes", &[], Field::KReclaimable),
    ("uma_memory_slab_bytes", &[("state", "reclaimable")], Field::SReclaimable),
    ("uma_memory_slab_bytes", &[("state", "unreclaimable")], Field::SUnreclaim),
    ("uma_memory_kernel_stack_bytes", &[], Field::KernelStack),
    ("uma_memory_page_tables_bytes", &[], Field::PageTables),
    ("uma_memory_secondary_page_tables_bytes", &[], Field::SecPageTables),
    ("uma_memory_percpu_bytes", &[], Field::Percpu),
    ("uma_memory_vmalloc_used_bytes", &[], Field::VmallocUsed),
    ("uma_memory_hardware_corrupted_bytes", &[], Field::HardwareCorrupted),
    ("uma_memory_zswap_bytes", &[], Field::Zswap),
    ("uma_memory_zswapped_bytes", &[], Field::Zswapped),
    ("uma_memory_transparent_huge_bytes", &[("kind", "anonymous")], Field::AnonHugePages),
    ("uma_memory_transparent_huge_bytes", &[("kind", "shmem")], Field::ShmemHugePages),
    ("uma_memory_transparent_huge_bytes", &[("kind", "file")], Field::FileHugePages),
    ("uma_memory_cma_total_bytes", &[], Field::CmaTotal),
    ("uma_memory_cma_free_bytes", &[], Field::CmaFree),
    ("uma_memory_hugetlb_bytes", &[], Field::Hugetlb),
    ("uma_memory_nvmap_bytes", &[], Field::NvMapMemUsed),
    ("uma_huge_pages", &[("state", "total")], Field::HugePagesTotal),
    ("uma_huge_pages", &[("state", "free")], Field::HugePagesFree),
    ("uma_huge_pages", &[("state", "reserved")], Field::HugePagesRsvd),
    ("uma_huge_pages", &[("state", "surplus")], Field::HugePagesSurp),
    ("uma_memory_huge_page_size_bytes", &[], Field::Hugepagesize),
    ("uma_swap_total_bytes", &[], Field::SwapTotal),
    ("uma_swap_free_bytes", &[], Field::SwapFree),
    ("uma_swap_cached_bytes", &[], Field::SwapCached),
];

/// In the order of [`MeminfoReader::derive`].
const DERIVED: &[(&str, &[(&str, &str)])] = &[
    ("uma_memory_page_cache_bytes", &[("state", "clean")]),
    ("uma_memory_page_cache_bytes", &[("state", "dirty")]),
    ("uma_memory_page_cache_bytes", &[("state", "mapped")]),
    ("uma_memory_unaccounted_bytes", &[]),
    ("uma_memory_headroom_bytes", &[]),
];

#[derive(Debug)]
pub(super) struct MeminfoReader {
    file: KeptFile,
    /// The sum of the low watermarks in bytes, from the last read.
    pub(super) low_watermark: Reading<u64>,
    /// Free memory on per-CPU lists in bytes, from the last read.
    pub(super) per_cpu_lists: Reading<u64>,
    /// The default size of a huge page in bytes, from the last read.
    pub(super) huge_page_bytes: Reading<u64>,
}

impl MeminfoReader {
    pub(super) fn new(procfs: &Path) -> Self {
        Self {
            file: KeptFile::new(procfs.join("meminfo")),
            low_watermark: Reading::Unsupported,
            per_cpu_lists: Reading::Unsupported,
            huge_page_bytes: Reading::Unsupported,
        }
    }

    fn derive(&self, meminfo: &Meminfo, report: &mut ReadReport) {
        let cache = page_cache(meminfo);
        report.push_whole(cache.map(|cache| cache.clean));
        report.push_whole(cache.map(|cache| cache.dirty));
        report.push_whole(cache.map(|cache| cache.mapped));
        let unaccounted = unaccounted(meminfo, self.per_cpu_lists);
        report.push(unaccounted.map(|bytes| bytes as f64));
        let headroom = headroom(meminfo.get(Field::MemFree), self.low_watermark);
        report.push(headroom.map(|bytes| bytes as f64));
    }
}

impl MemoryReader for MeminfoReader {
    const SOURCE: Source = Source::Meminfo;

    fn series(&self) -> Vec<SeriesKey> {
        let raw = SERIES.iter().map(|(name, labels, _)| (*name, *labels));
        raw.chain(DERIVED.iter().copied())
            .map(|(name, labels)| SeriesKey::new(name, labels))
            .collect()
    }

    fn read(&mut self, report: &mut ReadReport) {
        let parsed = match self.file.read() {
            Ok(text) => Meminfo::parse(text).map_err(|error| self.file.failed(error)),
            Err(fault) => Err(fault),
        };
        match parsed {
            Ok(meminfo) => {
                for (_, _, field) in SERIES {
                    report.push_whole(meminfo.get(*field));
                }
                self.derive(&meminfo, report);
                self.huge_page_bytes = meminfo.get(Field::Hugepagesize);
            }
            Err(fault) => report.miss_all(SERIES.len() + DERIVED.len(), &fault),
        }
    }
}
