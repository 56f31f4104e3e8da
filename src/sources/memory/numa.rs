//! `/sys/devices/system/node/node*/meminfo`.

use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, RawDir};
use rustix::io::Errno;

use super::feed::{Reader, Report};
use super::file::{Fault, KeptFile};
use crate::model::{SeriesKey, Source};
use crate::parse::proc::node::{NodeField as Field, NodeMeminfo};

const KINDS: &[(&str, Field)] = &[
    ("total", Field::MemTotal),
    ("free", Field::MemFree),
    ("used", Field::MemUsed),
    ("file", Field::FilePages),
    ("anonymous", Field::AnonPages),
    ("shmem", Field::Shmem),
    ("mapped", Field::Mapped),
    ("dirty", Field::Dirty),
    ("unevictable", Field::Unevictable),
    ("slab_reclaimable", Field::SReclaimable),
    ("slab_unreclaimable", Field::SUnreclaim),
];

/// The folder is listed every this many reads, and after a node could not be read.
const READINGS_PER_SCAN: u32 = 10;

/// The kernel's own limit on arm64 and x86-64.
const NODES_MAX: usize = 1024;

#[derive(Debug)]
struct Node {
    number: u32,
    /// Whether the last scan found it.
    present: bool,
    file: KeptFile,
}

#[derive(Debug)]
pub(super) struct NumaReader {
    folder: PathBuf,
    /// Every node seen so far; a removed node keeps its series, without a value.
    nodes: Vec<Node>,
    readings_until_scan: u32,
    /// The nodes in the last scan.
    found: Vec<u32>,
}

impl NumaReader {
    pub(super) fn new(sysfs: &Path) -> Self {
        let folder = sysfs.join("devices/system/node");
        Self { folder, nodes: Vec::new(), readings_until_scan: 0, found: Vec::new() }
    }

    /// Scans for nodes. A kernel without NUMA has none, which is no fault.
    fn scan(&mut self, report: &mut Report) {
        self.found.clear();
        if let Err(error) = list(&self.folder, &mut self.found) {
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
            if !is_known && self.nodes.len() < NODES_MAX {
                let file = KeptFile::new(self.folder.join(format!("node{number}/meminfo")));
                self.nodes.push(Node { number, present: true, file });
                report.series_changed();
            }
        }
    }
}

/// Adds the numbers of the nodes in a folder, without an allocation.
fn list(folder: &Path, found: &mut Vec<u32>) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(folder, flags, Mode::empty())?;
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut entries = RawDir::new(folder, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name().to_str().ok();
        found.extend(name.and_then(|name| name.strip_prefix("node")?.parse::<u32>().ok()));
    }
    Ok(())
}

impl Reader for NumaReader {
    const SOURCE: Source = Source::Numa;
    const PAUSE: Duration = Duration::from_secs(1);
    const FIXED: bool = false;

    fn series(&self) -> Vec<SeriesKey> {
        let mut series = Vec::new();
        for node in &self.nodes {
            let node = node.number.to_string();
            series.extend(KINDS.iter().map(|(kind, _)| {
                SeriesKey::new("uma_numa_memory_bytes", &[("kind", kind), ("node", &node)])
            }));
        }
        series
    }

    fn read(&mut self, report: &mut Report) {
        if self.readings_until_scan == 0 {
            self.readings_until_scan = READINGS_PER_SCAN;
            self.scan(report);
        }
        self.readings_until_scan -= 1;
        for node in &mut self.nodes {
            if !node.present {
                report.miss(KINDS.len(), &Fault::Absent(String::new()));
                continue;
            }
            let parsed = match node.file.read() {
                Ok(text) => NodeMeminfo::parse(text).map_err(|error| node.file.failed(error)),
                Err(fault) => Err(fault),
            };
            match parsed {
                Ok(meminfo) => {
                    for (_, field) in KINDS {
                        report.push_whole(meminfo.get(*field));
                    }
                }
                Err(fault) => {
                    self.readings_until_scan = 0;
                    report.miss(KINDS.len(), &fault);
                }
            }
        }
    }
}
