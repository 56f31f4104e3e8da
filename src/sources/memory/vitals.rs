//! The few most important values, for a reader that must continue when the loop cannot. Its own
//! files and buffers stay, and reading allocates nothing after the first time.

use std::path::Path;

use super::file::{FileFault, KeptFile};
use crate::model::Reading;
use crate::parse::proc::derived::{page_cache, unaccounted};
use crate::parse::proc::meminfo::{Meminfo, MeminfoField as Field};
use crate::parse::proc::pressure::Pressure;

/// A file that has never existed is checked once in this many reads.
const ABSENT_READINGS: u32 = 60;

/// The files of the values.
#[derive(Debug)]
pub struct VitalSource {
    meminfo: VitalFile,
    memory: VitalFile,
    io: VitalFile,
    cpu: VitalFile,
}

/// Values at one instant: bytes, and shares of the last 10 seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Vitals {
    /// `MemTotal`.
    pub total: Reading<u64>,
    /// `MemFree`.
    pub free: Reading<u64>,
    /// `MemAvailable`.
    pub available: Reading<u64>,
    /// Page cache without shmem.
    pub page_cache: Reading<u64>,
    /// `Dirty` and `Writeback`, as far as page cache.
    pub dirty: Reading<u64>,
    /// `AnonPages`.
    pub anonymous: Reading<u64>,
    /// `Shmem`.
    pub shmem: Reading<u64>,
    /// `Slab`.
    pub slab: Reading<u64>,
    /// `Unevictable`.
    pub unevictable: Reading<u64>,
    /// `SwapFree`.
    pub swap_free: Reading<u64>,
    /// Memory that no counter of the kernel names.
    pub unaccounted: Reading<i64>,
    /// The share of time in which some tasks waited for memory.
    pub memory_some: Reading<f64>,
    /// The share of time in which all tasks waited for memory.
    pub memory_full: Reading<f64>,
    /// The share of time in which all tasks waited for a disk.
    pub io_full: Reading<f64>,
    /// The share of time in which some tasks waited for a CPU.
    pub cpu_some: Reading<f64>,
}

#[derive(Debug)]
struct VitalFile {
    kept: KeptFile,
    /// Reads to skip, since the file does not exist.
    skip: u32,
}

impl VitalFile {
    fn new(path: std::path::PathBuf) -> Self {
        Self { kept: KeptFile::new(path), skip: 0 }
    }

    fn read<T, E>(&mut self, parse: impl FnOnce(&[u8]) -> Result<T, E>) -> Reading<T> {
        if self.skip > 0 {
            self.skip -= 1;
            return Reading::Unsupported;
        }
        match self.kept.read() {
            Ok(text) => parse(text).map_or(Reading::Failed, Reading::Value),
            Err(fault) => {
                if matches!(fault, FileFault::Absent(_)) {
                    self.skip = ABSENT_READINGS;
                }
                fault.reading()
            }
        }
    }
}

impl VitalSource {
    /// Uses the files below this root, usually `/proc`. Opens no file yet.
    pub fn new(procfs: &Path) -> Self {
        let pressure = |resource: &str| VitalFile::new(procfs.join("pressure").join(resource));
        Self {
            meminfo: VitalFile::new(procfs.join("meminfo")),
            memory: pressure("memory"),
            io: pressure("io"),
            cpu: pressure("cpu"),
        }
    }

    /// Reads all values. The caller provides the free memory on per-CPU lists.
    pub fn read(&mut self, per_cpu_lists: Reading<u64>) -> Vitals {
        let meminfo = self.meminfo.read(Meminfo::parse);
        let get = |field: Field| and_then(&meminfo, |meminfo| meminfo.get(field));
        let cache = and_then(&meminfo, page_cache);
        let memory = self.memory.read(Pressure::parse);
        Vitals {
            total: get(Field::MemTotal),
            free: get(Field::MemFree),
            available: get(Field::MemAvailable),
            page_cache: cache.map(|cache| cache.clean + cache.dirty + cache.mapped),
            dirty: cache.map(|cache| cache.dirty),
            anonymous: get(Field::AnonPages),
            shmem: get(Field::Shmem),
            slab: get(Field::Slab),
            unevictable: get(Field::Unevictable),
            swap_free: get(Field::SwapFree),
            unaccounted: and_then(&meminfo, |meminfo| unaccounted(meminfo, per_cpu_lists)),
            memory_some: and_then(&memory, |pressure| pressure.some.avg10),
            memory_full: and_then(&memory, |pressure| pressure.full.avg10),
            io_full: and_then(&self.io.read(Pressure::parse), |pressure| pressure.full.avg10),
            cpu_some: and_then(&self.cpu.read(Pressure::parse), |pressure| pressure.some.avg10),
        }
    }
}

fn and_then<T, U>(reading: &Reading<T>, then: impl FnOnce(&T) -> Reading<U>) -> Reading<U> {
    match reading {
        Reading::Value(value) => then(value),
        Reading::Unsupported => Reading::Unsupported,
        Reading::Failed => Reading::Failed,
    }
}
