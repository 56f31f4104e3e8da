//! `/proc/zoneinfo` and `/proc/buddyinfo`: free memory of the page allocator, by zone and size.

use std::path::Path;
use std::time::Duration;

use super::feed::{Reader, Report};
use super::file::KeptFile;
use crate::model::{Reading, SeriesKey, Source};
use crate::parse::proc::buddyinfo::Contiguous;
use crate::parse::proc::zoneinfo::{Zone, ZoneName, Zoneinfo};

type Entry = (&'static str, &'static [(&'static str, &'static str)], fn(&Zone) -> Reading<u64>);

const SUMS: &[Entry] = &[
    ("uma_memory_watermark_bytes", &[("watermark", "min")], |zone| zone.min),
    ("uma_memory_watermark_bytes", &[("watermark", "low")], |zone| zone.low),
    ("uma_memory_watermark_bytes", &[("watermark", "high")], |zone| zone.high),
    ("uma_memory_watermark_boost_bytes", &[], |zone| zone.boost),
    ("uma_memory_per_cpu_lists_bytes", &[], |zone| zone.per_cpu),
];

const PER_ZONE: &[Entry] = &[
    ("uma_zone_free_bytes", &[], |zone| zone.free),
    ("uma_zone_managed_bytes", &[], |zone| zone.managed),
    ("uma_zone_present_bytes", &[], |zone| zone.present),
    ("uma_zone_cma_free_bytes", &[], |zone| zone.free_cma),
    ("uma_zone_watermark_bytes", &[("watermark", "min")], |zone| zone.min),
    ("uma_zone_watermark_bytes", &[("watermark", "low")], |zone| zone.low),
    ("uma_zone_watermark_bytes", &[("watermark", "high")], |zone| zone.high),
    ("uma_zone_watermark_bytes", &[("watermark", "promo")], |zone| zone.promo),
];

#[derive(Debug)]
pub(super) struct ZoneinfoReader {
    file: KeptFile,
    page_size: u64,
    zoneinfo: Zoneinfo,
    /// Every zone seen so far; a removed zone keeps its series, without a value.
    known: Vec<(u32, ZoneName)>,
    /// The sum of the low watermarks in bytes, from the last read.
    pub(super) low_watermark: Reading<u64>,
    /// Free memory on per-CPU lists in bytes, from the last read.
    pub(super) per_cpu_lists: Reading<u64>,
}

impl ZoneinfoReader {
    pub(super) fn new(procfs: &Path, page_size: u64) -> Self {
        Self {
            file: KeptFile::new(procfs.join("zoneinfo")),
            page_size,
            zoneinfo: Zoneinfo::default(),
            known: Vec::new(),
            low_watermark: Reading::Unsupported,
            per_cpu_lists: Reading::Unsupported,
        }
    }

    fn learn(&mut self, report: &mut Report) {
        let before = self.known.len();
        for zone in self.zoneinfo.zones() {
            if !self.known.contains(&(zone.node, zone.name)) {
                self.known.push((zone.node, zone.name));
            }
        }
        if self.known.len() != before {
            report.series_changed();
        }
    }
}

impl Reader for ZoneinfoReader {
    const SOURCE: Source = Source::Zoneinfo;
    const PAUSE_MAX: Duration = Duration::from_secs(1);
    const FIXED: bool = false;

    fn series(&self) -> Vec<SeriesKey> {
        let mut series: Vec<SeriesKey> =
            SUMS.iter().map(|(name, labels, _)| SeriesKey::new(name, labels)).collect();
        for (node, zone) in &self.known {
            let node = node.to_string();
            for (name, labels, _) in PER_ZONE {
                let mut labels = labels.to_vec();
                labels.extend([("node", node.as_str()), ("zone", zone.as_str())]);
                series.push(SeriesKey::new(name, &labels));
            }
        }
        series
    }

    fn read(&mut self, report: &mut Report) {
        let parsed = match self.file.read() {
            Ok(text) => self.zoneinfo.parse(text).map_err(|error| self.file.failed(error)),
            Err(fault) => Err(fault),
        };
        if let Err(fault) = parsed {
            report.miss_all(SUMS.len() + self.known.len() * PER_ZONE.len(), &fault);
            self.low_watermark = fault.reading();
            self.per_cpu_lists = fault.reading();
            return;
        }
        self.learn(report);
        let page_size = self.page_size;
        for (_, _, value) in SUMS {
            report.push_whole(bytes(self.zoneinfo.sum(value), page_size));
        }
        self.low_watermark = bytes(self.zoneinfo.sum(|zone| zone.low), page_size);
        self.per_cpu_lists = bytes(self.zoneinfo.sum(|zone| zone.per_cpu), page_size);
        for (node, name) in &self.known {
            let zone = self.zoneinfo.zones().find(|zone| zone.node == *node && zone.name == *name);
            for (_, _, value) in PER_ZONE {
                let pages = zone.map_or(Reading::Unsupported, value);
                report.push_whole(bytes(pages, page_size));
            }
        }
    }
}

fn bytes(pages: Reading<u64>, page_size: u64) -> Reading<u64> {
    match pages {
        Reading::Value(pages) => {
            pages.checked_mul(page_size).map_or(Reading::Failed, Reading::Value)
        }
        missing => missing,
    }
}

#[derive(Debug)]
pub(super) struct BuddyinfoReader {
    file: KeptFile,
    page_size: u64,
}

impl BuddyinfoReader {
    pub(super) fn new(procfs: &Path, page_size: u64) -> Self {
        Self { file: KeptFile::new(procfs.join("buddyinfo")), page_size }
    }
}

impl Reader for BuddyinfoReader {
    const SOURCE: Source = Source::Buddyinfo;
    /// While memory collapses, other files are sampled more often.
    const PAUSE_MAX: Duration = Duration::from_millis(100);

    fn series(&self) -> Vec<SeriesKey> {
        ["2MiB", "32MiB"]
            .map(|block| SeriesKey::new("uma_memory_contiguous_bytes", &[("block", block)]))
            .to_vec()
    }

    fn read(&mut self, report: &mut Report) {
        let parsed = match self.file.read() {
            Ok(text) => {
                Contiguous::parse(text, self.page_size).map_err(|error| self.file.failed(error))
            }
            Err(fault) => Err(fault),
        };
        match parsed {
            Ok(contiguous) => {
                report.push_whole(contiguous.two_mib);
                report.push_whole(contiguous.thirty_two_mib);
            }
            Err(fault) => report.miss_all(2, &fault),
        }
    }
}
