//! `/proc/zoneinfo` and `/proc/buddyinfo`: free memory of the page allocator, by zone and size.

use std::path::Path;
use std::time::Duration;

use super::feed::{MemoryReader, ReadReport};
use super::file::KeptFile;
use crate::model::{Reading, SeriesKey, Source};
use crate::parse::proc::buddyinfo::{Buddyinfo, Contiguous};
use crate::parse::proc::zoneinfo::{Zone, ZoneName, Zoneinfo};

type ZoneSeries =
    (&'static str, &'static [(&'static str, &'static str)], fn(&Zone) -> Reading<u64>);

const SUMS: &[ZoneSeries] = &[
    ("uma_memory_watermark_bytes", &[("watermark", "min")], |zone| zone.min),
    ("uma_memory_watermark_bytes", &[("watermark", "low")], |zone| zone.low),
    ("uma_memory_watermark_bytes", &[("watermark", "high")], |zone| zone.high),
    ("uma_memory_watermark_boost_bytes", &[], |zone| zone.boost),
    ("uma_memory_per_cpu_lists_bytes", &[], |zone| zone.per_cpu),
];

const PER_ZONE: &[ZoneSeries] = &[("uma_zone_free_bytes", &[], |zone| zone.free)];

/// Of zones where there are several nodes; of one node the sums of the machine are all.
const PER_ZONE_OF_NODES: &[ZoneSeries] = &[
    ("uma_zone_cma_free_bytes", &[], |zone| zone.free_cma),
    ("uma_zone_watermark_bytes", &[("watermark", "min")], |zone| zone.min),
    ("uma_zone_watermark_bytes", &[("watermark", "low")], |zone| zone.low),
    ("uma_zone_watermark_bytes", &[("watermark", "high")], |zone| zone.high),
];

#[derive(Debug)]
pub(super) struct ZoneinfoReader {
    file: KeptFile,
    page_size: u64,
    zoneinfo: Zoneinfo,
    /// Every zone seen so far; a removed zone keeps its series, without a value.
    known: Vec<(u32, ZoneName)>,
    /// Every node seen so far, if there are several; of one node the sums of the machine are all.
    nodes: Vec<u32>,
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
            nodes: Vec::new(),
            low_watermark: Reading::Unsupported,
            per_cpu_lists: Reading::Unsupported,
        }
    }

    fn learn(&mut self, report: &mut ReadReport) {
        let before = self.known.len();
        for zone in self.zoneinfo.zones() {
            if !self.known.contains(&(zone.node, zone.name)) {
                self.known.push((zone.node, zone.name));
            }
        }
        if self.known.len() == before {
            return;
        }
        report.series_changed();
        self.nodes = self.known.iter().map(|(node, _)| *node).collect();
        self.nodes.sort_unstable();
        self.nodes.dedup();
        if self.nodes.len() == 1 {
            self.nodes.clear();
        }
    }

    fn missing(&self) -> usize {
        SUMS.len() + self.known.len() * self.per_zone().count() + self.nodes.len()
    }

    fn per_zone(&self) -> impl Iterator<Item = &'static ZoneSeries> + use<> {
        let of_nodes = if self.nodes.is_empty() { &[] } else { PER_ZONE_OF_NODES };
        PER_ZONE.iter().chain(of_nodes)
    }
}

impl MemoryReader for ZoneinfoReader {
    const SOURCE: Source = Source::Zoneinfo;
    const PAUSE_MAX: Duration = Duration::from_secs(1);
    const FIXED: bool = false;

    fn series(&self) -> Vec<SeriesKey> {
        let mut series: Vec<SeriesKey> =
            SUMS.iter().map(|(name, labels, _)| SeriesKey::new(name, labels)).collect();
        for (node, zone) in &self.known {
            let node = node.to_string();
            for (name, labels, _) in self.per_zone() {
                let mut labels = labels.to_vec();
                labels.extend([("node", node.as_str()), ("zone", zone.as_str())]);
                series.push(SeriesKey::new(name, &labels));
            }
        }
        series.extend(self.nodes.iter().map(|node| {
            let labels = [("node", &*node.to_string()), ("watermark", "low")];
            SeriesKey::new("uma_numa_watermark_bytes", &labels)
        }));
        series
    }

    fn read(&mut self, report: &mut ReadReport) {
        let parsed = match self.file.read() {
            Ok(text) => self.zoneinfo.parse(text).map_err(|error| self.file.failed(error)),
            Err(fault) => Err(fault),
        };
        if let Err(fault) = parsed {
            report.miss_all(self.missing(), &fault);
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
            for (_, _, value) in self.per_zone() {
                let pages = zone.map_or(Reading::Unsupported, value);
                report.push_whole(bytes(pages, page_size));
            }
        }
        for node in &self.nodes {
            let zones = self.zoneinfo.zones().filter(|zone| zone.node == *node);
            let low = zones
                .map(|zone| zone.low)
                .reduce(|one, other| one.zip(other).map(|(one, other)| one.saturating_add(other)));
            report.push_whole(bytes(low.unwrap_or(Reading::Unsupported), page_size));
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
    buddyinfo: Buddyinfo,
    /// Every node seen so far, if there are several; of one node the sums of the machine are all.
    nodes: Vec<u32>,
}

impl BuddyinfoReader {
    pub(super) fn new(procfs: &Path, page_size: u64) -> Self {
        let file = KeptFile::new(procfs.join("buddyinfo"));
        let (buddyinfo, nodes) = (Buddyinfo::default(), Vec::new());
        Self { file, page_size, buddyinfo, nodes }
    }

    fn learn(&mut self, report: &mut ReadReport) {
        if self.nodes.is_empty() && self.buddyinfo.nodes().count() < 2 {
            return;
        }
        let before = self.nodes.len();
        for (node, _) in self.buddyinfo.nodes() {
            if !self.nodes.contains(&node) {
                self.nodes.push(node);
            }
        }
        if self.nodes.len() != before {
            report.series_changed();
        }
    }
}

impl MemoryReader for BuddyinfoReader {
    const SOURCE: Source = Source::Buddyinfo;
    /// While memory collapses, other files are sampled more often.
    const PAUSE_MAX: Duration = Duration::from_millis(100);
    const FIXED: bool = false;

    fn series(&self) -> Vec<SeriesKey> {
        let blocks = ["2MiB", "32MiB"];
        let of_machine =
            blocks.map(|block| SeriesKey::new("uma_memory_contiguous_bytes", &[("block", block)]));
        let of_nodes = self.nodes.iter().flat_map(|node| {
            let node = node.to_string();
            let key = |block| {
                SeriesKey::new("uma_numa_contiguous_bytes", &[("block", block), ("node", &*node)])
            };
            blocks.map(key)
        });
        of_machine.into_iter().chain(of_nodes).collect()
    }

    fn read(&mut self, report: &mut ReadReport) {
        let parsed = match self.file.read() {
            Ok(text) => {
                let parsed = self.buddyinfo.parse(text, self.page_size);
                parsed.map_err(|error| self.file.failed(error))
            }
            Err(fault) => Err(fault),
        };
        let contiguous = match parsed {
            Ok(contiguous) => contiguous,
            Err(fault) => return report.miss_all(2 + 2 * self.nodes.len(), &fault),
        };
        self.learn(report);
        report.push_whole(contiguous.two_mib);
        report.push_whole(contiguous.thirty_two_mib);
        for known in &self.nodes {
            let own = self.buddyinfo.nodes().find(|(node, _)| node == known);
            let blocks = own.map(|(_, contiguous)| contiguous);
            let reading = |of: fn(&Contiguous) -> Reading<u64>| {
                blocks.as_ref().map_or(Reading::Unsupported, of)
            };
            report.push_whole(reading(|contiguous| contiguous.two_mib));
            report.push_whole(reading(|contiguous| contiguous.thirty_two_mib));
        }
    }
}
