//! Counters of the kernel during a load.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::pool::Pool;

/// Interval between two readings of free memory.
const INTERVAL: Duration = Duration::from_millis(5);

/// The impact of a load on the machine.
#[derive(Clone, Copy, Debug)]
pub struct Impact {
    pub direct_reclaim_scans: u64,
    pub allocation_stalls: u64,
    pub major_faults: u64,
    pub lowest_free_bytes: u64,
}

/// Watches the machine during a load.
pub struct Watch {
    before: [u64; 3],
    ended: Arc<AtomicBool>,
    lowest: JoinHandle<u64>,
}

impl Watch {
    pub fn start() -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&ended);
        let lowest = std::thread::spawn(move || {
            let mut lowest = u64::MAX;
            while !stop.load(Ordering::Relaxed) {
                lowest = lowest.min(meminfo_bytes("MemFree:"));
                std::thread::sleep(INTERVAL);
            }
            lowest
        });
        Self { before: counters(), ended, lowest }
    }

    pub fn end(self) -> Impact {
        let after = counters();
        self.ended.store(true, Ordering::Relaxed);
        let [direct_reclaim_scans, allocation_stalls, major_faults] =
            [0, 1, 2].map(|index| after[index].saturating_sub(self.before[index]));
        let lowest_free_bytes = self.lowest.join().unwrap();
        Impact { direct_reclaim_scans, allocation_stalls, major_faults, lowest_free_bytes }
    }
}

/// Restores the state in which every run begins: no pool, no page cache.
pub fn settle(pool: &Pool) {
    pool.give_back();
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "1").unwrap();
    std::thread::sleep(Duration::from_secs(1));
}

/// Direct-reclaim scans, allocation stalls, major faults, since boot.
fn counters() -> [u64; 3] {
    let text = fs::read_to_string("/proc/vmstat").unwrap();
    let sum = |prefix: &str| {
        let lines = text.lines().filter_map(|line| line.strip_prefix(prefix));
        lines.filter_map(|rest| rest.split(' ').next_back()?.parse::<u64>().ok()).sum::<u64>()
    };
    [sum("pgscan_direct "), sum("allocstall_"), sum("pgmajfault ")]
}

/// Major faults of a process so far.
pub fn major_faults(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let behind_name = text.rsplit_once(") ").unwrap().1;
    behind_name.split(' ').nth(9).unwrap().parse().unwrap()
}

/// Bytes that a process has caused to be read from disk.
pub fn bytes_read(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/io")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("read_bytes:")).unwrap();
    line.trim().parse().unwrap()
}

pub fn memory_total_bytes() -> u64 {
    meminfo_bytes("MemTotal:")
}

/// A line of `/proc/meminfo`.
pub fn meminfo_bytes(key: &str) -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

/// One line that describes the machine.
pub fn machine() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let processors = std::thread::available_parallelism().unwrap();
    let memory = memory_total_bytes() as f64 / f64::from(1 << 30);
    format!("Linux {}, {processors} processors, {memory:.1} GiB of memory", release.trim())
}
