//! `/sys/devices/system/node/node*/{meminfo,cpulist}`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;

use super::feed::{MemoryReader, ReadReport};
use super::file::{FileFault, KeptFile, each_entry};
use crate::model::{Reading, SeriesKey, Source};
use crate::parse::proc::derived::{node_page_cache, node_unaccounted};
use crate::parse::proc::node::{NodeField as Field, NodeMeminfo, cpu_count};

type NumaMemoryKind = (&'static str, fn(&NodeMeminfo, u64) -> Reading<u64>);

/// The kinds of memory of a node, from its `meminfo` and the size of a huge page.
const KINDS: &[NumaMemoryKind] = &[
    ("total", |node, _| node.get(Field::MemTotal)),
    ("free", |node, _| node.get(Field::MemFree)),
    ("used", |node, _| node.get(Field::MemUsed)),
    ("file", |node, _| node.get(Field::FilePages)),
    ("anonymous", |node, _| node.get(Field::AnonPages)),
    ("shmem", |node, _| node.get(Field::Shmem)),
    ("mapped", |node, _| node.get(Field::Mapped)),
    ("dirty", |node, _| node.get(Field::Dirty)),
    ("writeback", |node, _| node.get(Field::Writeback)),
    ("active_file", |node, _| node.get(Field::ActiveFile)),
    ("inactive_file", |node, _| node.get(Field::InactiveFile)),
    ("unevictable", |node, _| node.get(Field::Unevictable)),
    ("slab_reclaimable", |node, _| node.get(Field::SReclaimable)),
    ("slab_unreclaimable", |node, _| node.get(Field::SUnreclaim)),
    ("clean_cache", |node, _| node_page_cache(node).map(|cache| cache.clean)),
    ("unaccounted", node_unaccounted),
];

/// The folder is listed every this many reads, about every 10 s, and after a node could not be
/// read.
const READINGS_PER_SCAN: u32 = 10;

/// The same where the nodes are read with every sample.
const SAMPLES_PER_SCAN: u32 = 100;

/// The kernel's own limit on arm64 and x86-64.
const NODES_MAX: usize = 1024;

#[derive(Debug)]
struct NumaNode {
    number: u32,
    /// Whether the last scan found it.
    present: bool,
    meminfo: KeptFile,
    cpulist: KeptFile,
    cpus: Reading<u64>,
}

impl NumaNode {
    fn new(folder: &Path, number: u32) -> Self {
        let file = |name: &str| KeptFile::new(folder.join(format!("node{number}/{name}")));
        let (meminfo, cpulist) = (file("meminfo"), file("cpulist"));
        Self { number, present: true, meminfo, cpulist, cpus: Reading::Unsupported }
    }

    fn count_cpus(&mut self) {
        self.cpus = match self.cpulist.read() {
            Ok(text) => cpu_count(text).map_or(Reading::Failed, Reading::Value),
            Err(fault) => fault.reading(),
        };
    }

    fn read(&mut self) -> Result<NodeMeminfo, FileFault> {
        match self.meminfo.read() {
            Ok(text) => NodeMeminfo::parse(text).map_err(|error| self.meminfo.failed(error)),
            Err(fault) => Err(fault),
        }
    }
}

#[derive(Debug)]
pub(super) struct NumaReader {
    folder: PathBuf,
    /// Every node seen so far; a removed node keeps its series, without a value.
    nodes: Vec<NumaNode>,
    readings_until_scan: u32,
    /// The nodes in the last scan.
    found: Vec<u32>,
    /// The default size of a huge page in bytes, from the last read of `/proc/meminfo`.
    pub(super) huge_page_bytes: Reading<u64>,
}

impl NumaReader {
    pub(super) fn new(sysfs: &Path) -> Self {
        let folder = sysfs.join("devices/system/node");
        Self {
            folder,
            nodes: Vec::new(),
            readings_until_scan: 0,
            found: Vec::new(),
            huge_page_bytes: Reading::Unsupported,
        }
    }

    /// Scans for nodes. A kernel without NUMA has none, which is no fault.
    fn scan(&mut self, report: &mut ReadReport) {
        self.found.clear();
        let found = &mut self.found;
        let listed = each_entry(&self.folder, |name| {
            found.extend(name.strip_prefix("node").and_then(|number| number.parse::<u32>().ok()));
        });
        if let Err(error) = listed {
            if error != Errno::NOENT || !self.nodes.is_empty() {
                let error = std::io::Error::from(error);
                report.fail(format!("cannot list {}: {error}", self.folder.display()));
            }
            return;
        }
        self.found.sort_unstable();
        for node in &mut self.nodes {
            node.present = self.found.contains(&node.number);
        }
        for &number in &self.found {
            let is_known = self.nodes.iter().any(|node| node.number == number);
            if is_known || self.nodes.len() >= NODES_MAX {
                continue;
            }
            let mut node = NumaNode::new(&self.folder, number);
            // A superchip reserves nodes for instances of its GPU, which have no memory (MIG).
            let is_empty =
                |meminfo: &NodeMeminfo| meminfo.get(Field::MemTotal) == Reading::Value(0);
            if !node.read().is_ok_and(|meminfo| is_empty(&meminfo)) {
                self.nodes.push(node);
                report.series_changed();
            }
        }
        self.nodes.iter_mut().for_each(NumaNode::count_cpus);
    }

    /// Whether nodes have series. One that is the whole machine would repeat `/proc/meminfo`.
    fn has_several(&self) -> bool {
        self.nodes.len() > 1
    }

    /// Whether some memory belongs to no CPU: to a GPU, perhaps.
    fn has_memory_without_cpus(&self) -> bool {
        self.nodes.iter().any(|node| node.cpus == Reading::Value(0))
    }
}

impl MemoryReader for NumaReader {
    const SOURCE: Source = Source::Numa;
    const PAUSE: Duration = Duration::from_secs(1);
    const FIXED: bool = false;

    fn series(&self) -> Vec<SeriesKey> {
        let mut series = Vec::new();
        for node in self.nodes.iter().filter(|_| self.has_several()) {
            let node = node.number.to_string();
            series.push(SeriesKey::new("uma_numa_cpus", &[("node", &node)]));
            series.extend(KINDS.iter().map(|(kind, _)| {
                SeriesKey::new("uma_numa_memory_bytes", &[("kind", kind), ("node", &node)])
            }));
        }
        series
    }

    fn read(&mut self, report: &mut ReadReport) {
        if self.readings_until_scan == 0 {
            self.scan(report);
            self.readings_until_scan = match self.has_memory_without_cpus() {
                true => SAMPLES_PER_SCAN,
                false => READINGS_PER_SCAN,
            };
        }
        self.readings_until_scan -= 1;
        let huge_page = self.huge_page_bytes.value().unwrap_or(0);
        let has_several = self.has_several();
        for node in self.nodes.iter_mut().filter(|_| has_several) {
            if !node.present {
                report.miss(1 + KINDS.len(), &FileFault::Absent(String::new()));
                continue;
            }
            match node.read() {
                Ok(meminfo) => {
                    report.push_whole(node.cpus);
                    for (_, of_kind) in KINDS {
                        report.push_whole(of_kind(&meminfo, huge_page));
                    }
                }
                Err(fault) => {
                    self.readings_until_scan = 0;
                    report.miss(1 + KINDS.len(), &fault);
                }
            }
        }
    }

    /// The memory of a GPU changes as fast as the machine's.
    fn pause(&self) -> Duration {
        if self.has_memory_without_cpus() { Duration::ZERO } else { Self::PAUSE }
    }
}
