//! Memory figures of the kernel, several times a second: files stay open and are read into buffers
//! that stay. The GPUs on the PCI bus belong to them: they show where engines' memory is.
//!
//! | file | read |
//! |---|---|
//! | `meminfo` | at every call |
//! | `buddyinfo`, `pressure/*` | at every call while cheap, and ten times a second |
//! | `vmstat`, `zoneinfo` | at every call while cheap |
//! | `sys/vm/*`, NUMA nodes' `meminfo` | once a second; nodes of GPUs at every call while cheap |
//! | `bus/pci/devices` | once a minute |
//! | what has never been there | every five seconds |
//!
//! A file is cheap while its reading takes less than a thousandth of a CPU. The cost of `vmstat`
//! and `zoneinfo` grows with the number of CPUs. When they are not cheap, their interval grows to
//! at most a second.

mod feed;
mod file;
mod meminfo;
mod numa;
mod pci;
mod pressure;
mod sysctl;
#[cfg(test)]
mod tests;
mod trigger;
mod vitals;
mod vmstat;
mod zones;

use std::path::Path;

use self::feed::{ReaderFeed, SpareBuffers};
use self::meminfo::MeminfoReader;
use self::numa::NumaReader;
use self::pci::PciReader;
use self::pressure::PressureReader;
use self::sysctl::SysctlReader;
use self::vmstat::VmstatReader;
use self::zones::{BuddyinfoReader, ZoneinfoReader};
use crate::model::{Observation, Source};

pub use self::feed::Clock;
pub use self::pressure::has_pressure;
pub use self::trigger::{NoTrigger, PressureTrigger};
pub use self::vitals::{VitalSource, Vitals};

/// The sources of this folder.
const SOURCES: [Source; 8] = [
    Source::Pci,
    Source::Sysctl,
    Source::Numa,
    Source::Vmstat,
    Source::Buddyinfo,
    Source::Pressure,
    Source::Zoneinfo,
    Source::Meminfo,
];

/// All memory figures of procfs and sysfs.
#[derive(Debug)]
pub struct MemorySource {
    pci: ReaderFeed<PciReader>,
    sysctl: ReaderFeed<SysctlReader>,
    numa: ReaderFeed<NumaReader>,
    vmstat: ReaderFeed<VmstatReader>,
    buddyinfo: ReaderFeed<BuddyinfoReader>,
    pressure: ReaderFeed<PressureReader>,
    zoneinfo: ReaderFeed<ZoneinfoReader>,
    meminfo: ReaderFeed<MeminfoReader>,
    spare: SpareBuffers,
}

impl MemorySource {
    /// Uses the files below these roots, usually `/proc` and `/sys`. Opens no file yet, so that it
    /// cannot fail.
    pub fn open(procfs: &Path, sysfs: &Path) -> Self {
        Self::with_page_size(procfs, sysfs, procfs::page_size())
    }

    /// Like [`Self::open`], for files of a machine with another page size, in bytes.
    pub fn with_page_size(procfs: &Path, sysfs: &Path, page_size: u64) -> Self {
        Self {
            pci: ReaderFeed::new(PciReader::new(sysfs)),
            sysctl: ReaderFeed::new(SysctlReader::new(procfs)),
            numa: ReaderFeed::new(NumaReader::new(sysfs)),
            vmstat: ReaderFeed::new(VmstatReader::new(procfs)),
            buddyinfo: ReaderFeed::new(BuddyinfoReader::new(procfs, page_size)),
            pressure: ReaderFeed::new(PressureReader::new(procfs)),
            zoneinfo: ReaderFeed::new(ZoneinfoReader::new(procfs, page_size)),
            meminfo: ReaderFeed::new(MeminfoReader::new(procfs)),
            spare: SpareBuffers::default(),
        }
    }

    /// Reads what is due. Adds one `Observation::Readings` for each source that was read. Times are
    /// from `clock`, which must not run backwards.
    pub fn read(&mut self, clock: Clock, out: &mut Vec<Observation>) {
        self.run(clock, false, out);
    }

    /// Reads everything, due or not: for a measurement before or after an action.
    pub fn read_all(&mut self, clock: Clock, out: &mut Vec<Observation>) {
        self.run(clock, true, out);
    }

    /// Takes back consumed observations and reuses their buffers. Leaves `used` empty.
    pub fn recycle(&mut self, used: &mut Vec<Observation>) {
        for observation in used.drain(..) {
            let Observation::Readings(readings) = observation else { continue };
            if SOURCES.contains(&readings.source) {
                self.spare.give_back(readings.values);
            }
        }
    }

    fn run(&mut self, clock: Clock, always: bool, out: &mut Vec<Observation>) {
        let spare = &mut self.spare;
        self.pci.run(clock, always, spare, out);
        self.sysctl.run(clock, always, spare, out);
        self.numa.reader.huge_page_bytes = self.meminfo.reader.huge_page_bytes;
        self.numa.run(clock, always, spare, out);
        self.vmstat.run(clock, always, spare, out);
        self.buddyinfo.run(clock, always, spare, out);
        self.pressure.run(clock, always, spare, out);
        self.zoneinfo.run(clock, always, spare, out);
        self.meminfo.reader.low_watermark = self.zoneinfo.reader.low_watermark;
        self.meminfo.reader.per_cpu_lists = self.zoneinfo.reader.per_cpu_lists;
        self.meminfo.run(clock, always, spare, out);
    }
}
