//! A scan of open files and mappings of all processes.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, FileType, Statx, StatxFlags, statx};

use super::memory::{MemoryTally, QueuedBytes, Queues, sockets};
use crate::clients::cgroups::namespace_root;
use crate::model::{HiddenProcess, Holder, HolderReadings, ObservedTask, ProcessId, Reading};
use crate::parse::held_object::{HeldObject, driver_majors, is_monitor};
use crate::parse::process::{NamespaceRoot, Stat, mapped_files, stat, unit};
use crate::sources::bounded::{BoundedReads, read_file};
use crate::sources::is_procfs;
use crate::sys::descriptors::{is_out_of_descriptors, with_reserve};
use kernel_faults::container_id;

/// A scan without descriptors sees no holders.
const TOO_MANY_OPEN: &str =
    "too many open files: processes below /proc cannot be read; raise LimitNOFILE=";

/// The most processes that are examined; others count as unseen.
const MAX_PROCESSES: usize = 32_768;
/// The most descriptors of one process; beyond it counts as unseen.
const MAX_OPEN: usize = 65_536;
/// The most holders that are reported; others count as unseen.
const MAX_HOLDERS: usize = 256;
/// A clock tick in `/proc`, on every architecture.
const MS_PER_TICK: u64 = 10;

/// The most threads that are examined of a process whose first thread has ended.
const MAX_THREADS: usize = 64;
/// A longer list of devices is truncated.
const MAX_DEVICES_BYTES: u64 = 64 << 10;
/// Longer files of mappings are truncated.
const MAX_MAPS_BYTES: u64 = 16 << 20;

/// A process without holdings is skipped for this time while it has as many files open: assessments
/// take minutes, and most processes never hold anything.
const NOTHING_COUNTS: Duration = Duration::from_secs(30);

/// The smallest page of a huge page pool, on any architecture: 64 KiB (arm64, 4 KiB pages).
const LEAST_HUGE_PAGE: u32 = 64 << 10;

/// Less than this in pipes is not reported.
const LEAST_IN_PIPES: u64 = 64 << 20;

/// Finds holders.
#[derive(Debug)]
pub(super) struct HolderScan {
    procfs: PathBuf,
    sysfs: PathBuf,
    /// The paths of control groups begin there.
    root: NamespaceRoot,
    /// This process, whose children query the driver.
    own: u32,
    /// Whether this is the kernel's procfs: only there the size of `fd` is the number of open
    /// files.
    pub(super) is_procfs: bool,
    /// For files that another process may block.
    bounded: BoundedReads,
    /// The majors of the driver's devices. Names prove nothing: in a mount namespace a device can
    /// have any name.
    majors: Vec<(u32, bool)>,
    /// Processes without holdings, with the time and their number of open files.
    empty: BTreeMap<ProcessId, (Duration, u64)>,
    /// Memory falls: every process is examined completely.
    is_urgent: bool,
}

#[derive(Debug, Default)]
struct ProcessHoldings {
    devices: u32,
    has_uvm: bool,
    dma_buffers: u32,
    memfds: u32,
    memfd_bytes: u64,
    /// Huge pages in memfds.
    huge_memfd_bytes: u64,
    queues: Queues,
    is_cut: bool,
}

impl ProcessHoldings {
    fn has_any(&self) -> bool {
        self.devices > 0 || self.dma_buffers > 0 || self.memfds > 0
    }

    fn is_nothing(&self) -> bool {
        !self.has_any() && !self.queues.has_many() && !self.is_cut
    }
}

impl HolderScan {
    pub(super) fn new(procfs: PathBuf, sysfs: PathBuf, own: u32) -> Self {
        let is_procfs = is_procfs(&procfs);
        let bounded = BoundedReads::new(procfs.clone());
        let (majors, empty, is_urgent) = (Vec::new(), BTreeMap::new(), false);
        let root = namespace_root(&procfs);
        Self { procfs, sysfs, root, own, is_procfs, bounded, majors, empty, is_urgent }
    }

    /// Examines all processes. `is_urgent`: memory falls, and current holders are needed.
    pub(super) fn run(&mut self, now: Duration, is_urgent: bool) -> HolderReadings {
        self.bounded.begin(now);
        self.is_urgent = is_urgent;
        let devices = read_file(&self.procfs.join("devices"), MAX_DEVICES_BYTES);
        let is_starved = devices.as_ref().is_err_and(is_out_of_descriptors);
        self.majors = driver_majors(&devices.unwrap_or_default());
        let mut readings = HolderReadings {
            read_at: now,
            holders: Vec::new(),
            processes: 0,
            unseen: 0,
            hidden: Vec::new(),
            is_driver_loaded: self.is_driver_loaded(),
            memory: Vec::new(),
            socket_bytes: sockets(&self.procfs),
            tasks: Vec::new(),
            error: is_starved.then(|| TOO_MANY_OPEN.into()),
        };
        let mut tally = MemoryTally::begin(&self.procfs);
        self.expire_empty(now);
        let entries = match with_reserve(|| fs::read_dir(&self.procfs)) {
            Ok(entries) => entries,
            Err(error) => {
                let why = format!("cannot list {}: {error}", self.procfs.display());
                return HolderReadings { error: Some(why.into()), ..readings };
            }
        };
        let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let mut pids: Vec<u32> = pids.collect();
        pids.sort_unstable();
        for (number, pid) in pids.into_iter().enumerate() {
            if number >= MAX_PROCESSES {
                readings.unseen = readings.unseen.saturating_add(1);
                continue;
            }
            self.scan_process(pid, &mut readings, &mut tally);
        }
        readings.memory = tally.end();
        if readings.processes == 0 && readings.error.is_none() {
            let why = format!(
                "{} shows no process but this one: in a container, share the host's PID namespace \
                 (docker run --pid=host)",
                self.procfs.display()
            );
            readings.error = Some(why.into());
        }
        readings
    }

    fn expire_empty(&mut self, now: Duration) {
        let is_urgent = self.is_urgent;
        self.empty
            .retain(|_, (seen_at, _)| !is_urgent && now.saturating_sub(*seen_at) <= NOTHING_COUNTS);
    }

    /// The states of tasks that the kernel log has named, including threads, which are not listed
    /// in `/proc`.
    pub(super) fn tasks(&self, numbers: &[u32]) -> Vec<ObservedTask> {
        let seen = numbers.iter().filter_map(|number| {
            let stat = self.stat(*number)?;
            let id = ProcessId { pid: *number, start_ticks: stat.start_ticks };
            Some(ObservedTask { id, state: stat.state, is_kernel: stat.is_kernel })
        });
        seen.collect()
    }

    fn scan_process(&mut self, pid: u32, readings: &mut HolderReadings, tally: &mut MemoryTally) {
        let stat = match self.read(pid, "stat", 4096) {
            Ok(text) => stat(&text),
            Err(error) if is_out_of_descriptors(&error) => {
                readings.error = Some(TOO_MANY_OPEN.into());
                return;
            }
            Err(_) => None,
        };
        let Some(stat) = stat else { return };
        if stat.is_kernel || pid == self.own || stat.parent == self.own {
            return;
        }
        readings.processes = readings.processes.saturating_add(1);
        let id = ProcessId { pid, start_ticks: stat.start_ticks };
        let mut memory = tally.of(pid, &stat, |name| self.read(pid, name, 64 << 10).ok());
        let open = self.open(pid);
        if open.is_some() && open == self.empty.get(&id).map(|(_, open)| *open) {
            return tally.add(memory);
        }
        self.empty.remove(&id);
        let found = self.found(pid, &stat);
        if !self.is_urgent && found.as_ref().is_ok_and(ProcessHoldings::is_nothing) {
            self.empty.extend(open.map(|open| (id, (readings.read_at, open))));
            return tally.add(memory);
        }
        let (found, queued) = match found {
            Ok(mut found) => {
                let queued = self.queued(id, std::mem::take(&mut found.queues));
                (Ok(found), queued)
            }
            Err(error) => (Err(error), None),
        };
        // A process that has ended meanwhile, or whose pid was reused, holds nothing.
        if self.stat(pid).is_none_or(|now| now.start_ticks != stat.start_ticks) {
            return;
        }
        let QueuedBytes { pipe_bytes, pipe_size_bytes, socket_bytes } = queued.unwrap_or_default();
        let huge_memfds = found.as_ref().map_or(0, |found| found.huge_memfd_bytes);
        // A memfd may be mapped as well.
        memory.hugetlb_bytes = memory.hugetlb_bytes.max(huge_memfds);
        (memory.pipe_bytes, memory.socket_bytes) = (pipe_size_bytes, socket_bytes);
        tally.add(memory);
        let is_unseen = found.as_ref().map_or(true, |found| found.is_cut) || queued.is_none();
        if is_unseen {
            let cpu_ms = stat.cpu_ticks.saturating_mul(MS_PER_TICK);
            hide(HiddenProcess { id, cpu_ms }, readings);
        }
        let Ok(found) = found else { return };
        if found.has_any() || pipe_bytes >= LEAST_IN_PIPES {
            self.add(self.holder(pid, stat, &found, pipe_bytes), readings);
        }
    }

    /// The content of its pipes and sockets, if there are many or memory falls.
    fn queued(&mut self, id: ProcessId, queues: Queues) -> Option<QueuedBytes> {
        if !self.is_urgent && !queues.has_many() || queues.is_empty() {
            return Some(QueuedBytes::default());
        }
        self.bounded.read(id, move || queues.queued(id.pid))?
    }

    /// Processes that have the driver open come first, if there are too many.
    fn add(&self, holder: Holder, readings: &mut HolderReadings) {
        if readings.holders.len() >= MAX_HOLDERS {
            readings.unseen = readings.unseen.saturating_add(1);
            let other = readings.holders.iter().rposition(|other| !other.uses_driver());
            let Some(index) = other.filter(|_| holder.uses_driver()) else { return };
            readings.holders.remove(index);
        }
        readings.holders.push(holder);
    }

    fn holder(&self, pid: u32, stat: Stat, found: &ProcessHoldings, pipe_bytes: u64) -> Holder {
        let group = self.read(pid, "cgroup", 64 << 10).unwrap_or_default();
        let group = String::from_utf8_lossy(&group).into_owned();
        let group = self.root.cgroup(&group);
        let group = group.as_deref();
        Holder {
            id: ProcessId { pid, start_ticks: stat.start_ticks },
            state: stat.state,
            devices: found.devices,
            is_monitor: is_monitor(&stat.comm, found.has_uvm),
            comm: stat.comm.into(),
            dma_buffers: found.dma_buffers,
            memfds: found.memfds,
            memfd_bytes: found.memfd_bytes,
            pipe_bytes: if pipe_bytes < LEAST_IN_PIPES { 0 } else { pipe_bytes },
            container: group.and_then(container_id).map(Arc::from),
            unit: group.and_then(unit).map(Arc::from),
        }
    }

    /// The number of open files of a process, if the kernel reports it without a list: since 6.2
    /// (proc(5), `/proc/PID/fd`).
    fn open(&self, pid: u32) -> Option<u64> {
        let about = fs::metadata(self.procfs.join(format!("{pid}/fd"))).ok()?;
        Some(about.len()).filter(|open| self.is_procfs && *open > 0)
    }

    fn found(&mut self, pid: u32, stat: &Stat) -> io::Result<ProcessHoldings> {
        let mut found = ProcessHoldings::default();
        if stat.state == 'Z' {
            // Its first thread has ended. Others may still have its files open.
            for thread in self.threads(pid) {
                self.examine_open(&format!("{pid}/task/{thread}/fd"), &mut found)?;
            }
            return Ok(found);
        }
        self.examine_open(&format!("{pid}/fd"), &mut found)?;
        // A blocked process may hold the lock for reading its mappings. Its open files suffice: a
        // mapping outlives its descriptor only if that was closed.
        if !found.has_any() && stat.state != 'D' {
            let id = ProcessId { pid, start_ticks: stat.start_ticks };
            self.scan_mappings(id, &mut found)?;
        }
        Ok(found)
    }

    /// The living threads of a process, without its first.
    fn threads(&self, pid: u32) -> Vec<u32> {
        let Ok(entries) = fs::read_dir(self.procfs.join(format!("{pid}/task"))) else {
            return Vec::new();
        };
        let threads =
            entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        threads.filter(|thread| *thread != pid).take(MAX_THREADS).collect()
    }

    fn examine_open(&self, folder: &str, found: &mut ProcessHoldings) -> io::Result<()> {
        let path = self.procfs.join(folder);
        let entries = with_reserve(|| fs::read_dir(&path))?;
        for (index, entry) in entries.flatten().enumerate() {
            if index >= MAX_OPEN {
                found.is_cut = true;
                break;
            }
            // It may have been closed since.
            let Ok(target) = fs::read_link(entry.path()) else { continue };
            let object = target.to_str().and_then(HeldObject::of);
            match object.or_else(|| self.device(&entry.path(), &target)) {
                Some(HeldObject::Device { is_uvm }) => {
                    found.devices = found.devices.saturating_add(1);
                    found.has_uvm |= is_uvm;
                }
                Some(HeldObject::DmaBuffer) => {
                    found.dma_buffers = found.dma_buffers.saturating_add(1);
                }
                Some(HeldObject::Memfd) => {
                    let about = status(&entry.path());
                    let bytes = about.as_ref().map_or(0, |about| about.stx_blocks * 512);
                    found.memfds = found.memfds.saturating_add(1);
                    found.memfd_bytes = found.memfd_bytes.saturating_add(bytes);
                    // hugetlbfs has the size of its pages there.
                    if about.is_some_and(|about| about.stx_blksize >= LEAST_HUGE_PAGE) {
                        found.huge_memfd_bytes = found.huge_memfd_bytes.saturating_add(bytes);
                    }
                }
                Some(HeldObject::Pipe { inode }) => {
                    found.queues.pipes.extend(number(&entry).map(|number| (number, inode)));
                }
                Some(HeldObject::Socket { inode }) => {
                    found.queues.sockets.extend(number(&entry).map(|number| (number, inode)));
                }
                None => {}
            }
        }
        Ok(())
    }

    /// A device of the driver by any name, if the driver is loaded.
    fn device(&self, link: &Path, target: &Path) -> Option<HeldObject> {
        if self.majors.is_empty() || !target.has_root() {
            return None;
        }
        let about = status(link)?;
        let kind = FileType::from_raw_mode(about.stx_mode.into());
        let major = |(major, _): &&(u32, bool)| *major == about.stx_rdev_major;
        let (_, is_uvm) = self.majors.iter().find(major)?;
        (kind == FileType::CharacterDevice).then_some(HeldObject::Device { is_uvm: *is_uvm })
    }

    fn scan_mappings(&mut self, id: ProcessId, found: &mut ProcessHoldings) -> io::Result<()> {
        let path = self.procfs.join(id.pid.to_string()).join("maps");
        let read = self.bounded.read(id, move || read_file(&path, MAX_MAPS_BYTES));
        let maps = read.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))?;
        found.is_cut |= maps.len() as u64 >= MAX_MAPS_BYTES;
        for (_, path) in mapped_files(&maps) {
            match HeldObject::of(path) {
                Some(HeldObject::Device { is_uvm }) => {
                    found.devices = found.devices.saturating_add(1);
                    found.has_uvm |= is_uvm;
                }
                Some(HeldObject::DmaBuffer) => {
                    found.dma_buffers = found.dma_buffers.saturating_add(1);
                }
                Some(HeldObject::Memfd) => found.memfds = found.memfds.saturating_add(1),
                Some(HeldObject::Pipe { .. } | HeldObject::Socket { .. }) | None => {}
            }
        }
        Ok(())
    }

    fn is_driver_loaded(&self) -> Reading<bool> {
        let paths = [
            self.procfs.join("driver/nvidia"),
            self.sysfs.join("module/nvidia"),
            self.sysfs.join("module/nvgpu"),
        ];
        let mut is_known = true;
        for path in paths {
            match path.try_exists() {
                Ok(true) => return Reading::Value(true),
                Ok(false) => {}
                Err(_) => is_known = false,
            }
        }
        if is_known { Reading::Value(false) } else { Reading::Failed }
    }

    fn stat(&self, pid: u32) -> Option<Stat> {
        stat(&self.read(pid, "stat", 4096).ok()?)
    }

    fn read(&self, pid: u32, name: &str, most: u64) -> io::Result<Vec<u8>> {
        read_file(&self.procfs.join(pid.to_string()).join(name), most)
    }
}

fn hide(process: HiddenProcess, readings: &mut HolderReadings) {
    readings.unseen = readings.unseen.saturating_add(1);
    if readings.hidden.len() < MAX_HOLDERS {
        readings.hidden.push(process);
    }
}

/// The target of a descriptor's link. No server (NFS, FUSE) is queried, which may hang.
fn status(link: &Path) -> Option<Statx> {
    statx(CWD, link, AtFlags::STATX_DONT_SYNC, StatxFlags::BASIC_STATS).ok()
}

/// The number of a descriptor, from the name of its link in `fd`.
fn number(entry: &fs::DirEntry) -> Option<u32> {
    entry.file_name().to_str()?.parse().ok()
}
