//! A look at what all processes have open and map.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::model::{Holder, HolderReadings, ProcessId, Reading};
use crate::parse::held_object::{HeldObject, is_monitor};
use crate::parse::kernel::container_id;
use crate::parse::process::{Stat, cgroup, mapped_files, stat, unit};
use crate::sources::bounded::BoundedReads;
use crate::sources::is_procfs;

/// More processes than this are not looked at, but counted as unseen.
const MAX_PROCESSES: usize = 32_768;
/// More descriptors of one process are not looked at: it counts as unseen.
const MAX_OPEN: usize = 65_536;
/// More holders than this are not told; the rest counts as unseen.
const MAX_HOLDERS: usize = 256;
/// Threads of a process whose first one has ended that are looked at.
const MAX_THREADS: usize = 64;
/// Longer files of mappings are cut.
const MAX_MAPS_BYTES: u64 = 16 << 20;

/// A pipe holds at most 1 MiB unless root has raised that (pipe(7)): fewer pipes of one process are
/// worth no look into them.
const MANY_PIPES: usize = 64;

/// Who was seen to hold nothing is taken at that for so long, while as many files are open: what is
/// judged by holders is judged over minutes, and most processes never hold anything.
const NOTHING_COUNTS: Duration = Duration::from_secs(30);

/// What is in fewer bytes of pipes is worth no word.
const LEAST_IN_PIPES: u64 = 64 << 20;

/// Which process holds what.
#[derive(Debug)]
pub(super) struct Scan {
    procfs: PathBuf,
    sysfs: PathBuf,
    /// This process, whose own children ask the driver.
    own: u32,
    /// That folder is the kernel's: in no other does the size of `fd` tell what is open.
    pub(super) is_procfs: bool,
    /// For what another process may keep from being read.
    bounded: BoundedReads,
    /// Who holds nothing, when that was seen, and with how many files open.
    nothing: BTreeMap<ProcessId, (Duration, u64)>,
}

/// What one process has been found to hold.
#[derive(Debug, Default)]
struct Found {
    devices: u32,
    has_uvm: bool,
    dma_buffers: u32,
    memfds: u32,
    memfd_bytes: u64,
    /// Descriptors of pipes, with the inode.
    pipes: Vec<(u32, u64)>,
    is_cut: bool,
}

impl Found {
    fn has_any(&self) -> bool {
        self.devices > 0 || self.dma_buffers > 0 || self.memfds > 0
    }

    fn is_nothing(&self) -> bool {
        !self.has_any() && self.pipes.len() < MANY_PIPES && !self.is_cut
    }
}

impl Scan {
    pub(super) fn new(procfs: PathBuf, sysfs: PathBuf, own: u32) -> Self {
        let is_procfs = is_procfs(&procfs);
        let bounded = BoundedReads::new(procfs.clone());
        Self { procfs, sysfs, own, is_procfs, bounded, nothing: BTreeMap::new() }
    }

    /// Looks at all of them.
    pub(super) fn look(&mut self, now: Duration) -> HolderReadings {
        self.bounded.begin(now);
        let mut readings = HolderReadings {
            read_at: now,
            holders: Vec::new(),
            processes: 0,
            unseen: 0,
            is_driver_loaded: self.is_driver_loaded(),
            error: None,
        };
        let entries = match fs::read_dir(&self.procfs) {
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
            self.look_at(pid, &mut readings);
        }
        self.nothing.retain(|_, (seen_at, _)| now.saturating_sub(*seen_at) < NOTHING_COUNTS);
        if readings.processes == 0 {
            let why = format!(
                "{} shows no process but this one: in a container, share the host's PID namespace \
                 (docker run --pid=host)",
                self.procfs.display()
            );
            readings.error = Some(why.into());
        }
        readings
    }

    fn look_at(&mut self, pid: u32, readings: &mut HolderReadings) {
        let Some(stat) = self.stat(pid) else { return };
        if stat.is_kernel || pid == self.own || stat.parent == self.own {
            return;
        }
        readings.processes = readings.processes.saturating_add(1);
        let id = ProcessId { pid, start_ticks: stat.start_ticks };
        let open = self.open(pid);
        if open.is_some() && open == self.nothing.get(&id).map(|(_, open)| *open) {
            return;
        }
        self.nothing.remove(&id);
        let found = self.found(pid, &stat);
        if found.as_ref().is_ok_and(Found::is_nothing) {
            self.nothing.extend(open.map(|open| (id, (readings.read_at, open))));
            return;
        }
        // One that has ended meanwhile, or whose number is another's now, holds nothing.
        let is_same = self.stat(pid).is_some_and(|now| now.start_ticks == stat.start_ticks);
        match found {
            _ if !is_same => {}
            Err(_) => readings.unseen = readings.unseen.saturating_add(1),
            Ok(found) => {
                readings.unseen = readings.unseen.saturating_add(u32::from(found.is_cut));
                let pipe_bytes = self.pipe_bytes(pid, &found.pipes);
                if !found.has_any() && pipe_bytes < LEAST_IN_PIPES {
                    return;
                }
                if readings.holders.len() >= MAX_HOLDERS {
                    readings.unseen = readings.unseen.saturating_add(1);
                    return;
                }
                readings.holders.push(self.holder(pid, stat, &found, pipe_bytes));
            }
        }
    }

    fn holder(&self, pid: u32, stat: Stat, found: &Found, pipe_bytes: u64) -> Holder {
        let group = self.read(pid, "cgroup", 64 << 10).unwrap_or_default();
        let group = String::from_utf8_lossy(&group).into_owned();
        let group = cgroup(&group);
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

    /// How many files a process has open, where the kernel tells it without listing them: since 6.2
    /// (proc(5), `/proc/PID/fd`).
    fn open(&self, pid: u32) -> Option<u64> {
        let about = fs::metadata(self.procfs.join(format!("{pid}/fd"))).ok()?;
        Some(about.len()).filter(|open| self.is_procfs && *open > 0)
    }

    fn found(&mut self, pid: u32, stat: &Stat) -> io::Result<Found> {
        let mut found = Found::default();
        if stat.state == 'Z' {
            // Its first thread has ended. Others may live on, and hold all that it had open.
            for thread in self.threads(pid) {
                self.look_at_open(&format!("{pid}/task/{thread}/fd"), &mut found)?;
            }
            return Ok(found);
        }
        self.look_at_open(&format!("{pid}/fd"), &mut found)?;
        // Who waits in the kernel may hold the lock that reading its mappings takes. What it has
        // open tells enough: a mapping outlives its descriptor only where somebody closed that.
        if !found.has_any() && stat.state != 'D' {
            let id = ProcessId { pid, start_ticks: stat.start_ticks };
            self.look_at_mapped(id, &mut found)?;
        }
        Ok(found)
    }

    /// The living threads of a process, but its first.
    fn threads(&self, pid: u32) -> Vec<u32> {
        let Ok(entries) = fs::read_dir(self.procfs.join(format!("{pid}/task"))) else {
            return Vec::new();
        };
        let threads =
            entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        threads.filter(|thread| *thread != pid).take(MAX_THREADS).collect()
    }

    fn look_at_open(&self, folder: &str, found: &mut Found) -> io::Result<()> {
        let entries = fs::read_dir(self.procfs.join(folder))?;
        for (number, entry) in entries.flatten().enumerate() {
            if number >= MAX_OPEN {
                found.is_cut = true;
                break;
            }
            // It may have been closed since.
            let Ok(target) = fs::read_link(entry.path()) else { continue };
            match target.to_str().and_then(HeldObject::of) {
                Some(HeldObject::Device { is_uvm }) => {
                    found.devices = found.devices.saturating_add(1);
                    found.has_uvm |= is_uvm;
                }
                Some(HeldObject::DmaBuffer) => {
                    found.dma_buffers = found.dma_buffers.saturating_add(1);
                }
                Some(HeldObject::Memfd) => {
                    use std::os::unix::fs::MetadataExt as _;
                    let bytes = fs::metadata(entry.path()).map_or(0, |about| about.blocks() * 512);
                    found.memfds = found.memfds.saturating_add(1);
                    found.memfd_bytes = found.memfd_bytes.saturating_add(bytes);
                }
                Some(HeldObject::Pipe { inode }) => {
                    let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
                    found.pipes.extend(number.map(|number| (number, inode)));
                }
                None => {}
            }
        }
        Ok(())
    }

    fn look_at_mapped(&mut self, id: ProcessId, found: &mut Found) -> io::Result<()> {
        let path = self.procfs.join(id.pid.to_string()).join("maps");
        let read = self.bounded.ask(id, move || read_file(&path, MAX_MAPS_BYTES));
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
                Some(HeldObject::Pipe { .. }) | None => {}
            }
        }
        Ok(())
    }

    /// What is in the pipes of a process that has many of them: the kernel counts it nowhere.
    fn pipe_bytes(&self, pid: u32, pipes: &[(u32, u64)]) -> u64 {
        let inodes: BTreeSet<u64> = pipes.iter().map(|(_, inode)| *inode).collect();
        if inodes.len() < MANY_PIPES {
            return 0;
        }
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let Some(process) = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else {
            return 0;
        };
        let mut seen = BTreeSet::new();
        let first = pipes.iter().filter(|(_, inode)| seen.insert(*inode));
        first.map(|(number, inode)| in_pipe(&process, *number, *inode)).sum()
    }

    fn is_driver_loaded(&self) -> Reading<bool> {
        let places = [
            self.procfs.join("driver/nvidia"),
            self.sysfs.join("module/nvidia"),
            self.sysfs.join("module/nvgpu"),
        ];
        let mut is_known = true;
        for place in places {
            match place.try_exists() {
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

fn read_file(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(path)?.take(most).read_to_end(&mut text)?;
    Ok(text)
}

/// How much is in a pipe of another process. Its descriptor is borrowed for that moment; whether it
/// is the one that was meant, its inode tells.
fn in_pipe(process: &OwnedFd, number: u32, inode: u64) -> u64 {
    let Ok(number) = i32::try_from(number) else { return 0 };
    let Ok(pipe) = pidfd_getfd(process, number, PidfdGetfdFlags::empty()) else { return 0 };
    let is_it = rustix::fs::fstat(&pipe).is_ok_and(|about| about.st_ino == inode);
    if is_it { rustix::io::ioctl_fionread(&pipe).unwrap_or(0) } else { 0 }
}
