//! `/proc/sys/vm/*`.

use std::path::Path;
use std::time::Duration;

use super::feed::{MemoryReader, ReadReport};
use super::file::{FileFault, KeptFile};
use crate::model::{Reading, SeriesKey, Source};
use crate::parse::proc::single_number;

/// Read for the reserve, and also reported under its own name.
const RESERVE: &str = "min_free_kbytes";

const SETTINGS: [&str; 12] = [
    RESERVE,
    "compaction_proactiveness",
    "dirty_background_bytes",
    "dirty_background_ratio",
    "dirty_bytes",
    "dirty_ratio",
    "overcommit_memory",
    "swappiness",
    "vfs_cache_pressure",
    "watermark_boost_factor",
    "watermark_scale_factor",
    "zone_reclaim_mode",
];

#[derive(Debug)]
pub(super) struct SysctlReader {
    files: [KeptFile; SETTINGS.len()],
}

impl SysctlReader {
    pub(super) fn new(procfs: &Path) -> Self {
        let folder = procfs.join("sys/vm");
        Self { files: SETTINGS.map(|setting| KeptFile::new(folder.join(setting))) }
    }
}

impl MemoryReader for SysctlReader {
    const SOURCE: Source = Source::Sysctl;
    /// People change these settings, not the kernel.
    const PAUSE: Duration = Duration::from_secs(1);

    fn series(&self) -> Vec<SeriesKey> {
        let mut series = vec![SeriesKey::new("uma_memory_reserve_bytes", &[])];
        series.extend(SETTINGS.map(|setting| {
            SeriesKey::new("uma_sysctl", &[("name", format!("vm.{setting}").as_str())])
        }));
        series
    }

    fn read(&mut self, report: &mut ReadReport) {
        let mut absent = 0;
        for (setting, file) in SETTINGS.into_iter().zip(&mut self.files) {
            let parsed = match file.read() {
                Ok(text) => single_number(text).map_err(|error| file.failed(error)),
                Err(fault) => Err(fault),
            };
            let count = if setting == RESERVE { 2 } else { 1 };
            match parsed {
                Ok(value) => {
                    if setting == RESERVE {
                        let bytes = value.checked_mul(1024);
                        report.push_whole(bytes.map_or(Reading::Failed, Reading::Value));
                    }
                    report.push_whole(Reading::Value(value));
                }
                Err(fault) => {
                    absent += usize::from(matches!(fault, FileFault::Absent(_)));
                    report.miss(count, &fault);
                }
            }
        }
        if absent == SETTINGS.len() {
            report.absent("no setting under sys/vm of procfs is there".to_owned());
        }
    }
}
