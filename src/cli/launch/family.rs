//! The processes of a launched command: all descendants of this process, which is their subreaper.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::model::{ExitStatus, ProcessId};
use crate::parse::process::{Stat, exit_status, resident, stat};
use crate::policy::death::Relative;
use crate::sources::gpu::HELPER;
use crate::sys::process_end::status_of_reaped;

/// The most tracked processes: each needs a descriptor.
const MOST_MEMBERS: usize = 384;

/// Ended processes that are remembered. Loading compiles in thousands of short processes.
const MOST_ENDED: usize = 384;

/// The most processes of the machine that are scanned.
const MOST_PROCESSES: usize = 65_536;

/// A process.
#[derive(Debug)]
struct Member {
    id: ProcessId,
    comm: Arc<str>,
    descriptor: Option<OwnedFd>,
    ended: Option<Duration>,
    status: ExitStatus,
    reported_by: &'static str,
    bytes: Option<u64>,
    /// Whether it ended as a child of this process.
    is_reaped: bool,
}

/// The processes.
#[derive(Debug)]
pub(super) struct Family {
    procfs: PathBuf,
    /// This process.
    own: u32,
    members: BTreeMap<u32, Member>,
    ended: Vec<Member>,
    /// Pids of other processes.
    others: BTreeSet<u32>,
    pub(super) is_cut: bool,
}

impl Family {
    /// Statuses of children of this process.
    pub(super) fn new(procfs: &Path, own: u32) -> Self {
        Self {
            procfs: procfs.to_owned(),
            own,
            members: BTreeMap::new(),
            ended: Vec::new(),
            others: BTreeSet::new(),
            is_cut: false,
        }
    }

    /// Adds the head, which is about to run or has already run.
    pub(super) fn begin(&mut self, head: u32) -> ProcessId {
        let found = self.stat(head);
        let start_ticks = found.as_ref().map_or(0, |stat| stat.start_ticks);
        let id = ProcessId { pid: head, start_ticks };
        let comm = found.map_or_else(String::new, |stat| stat.comm);
        self.members.insert(head, Member::new(id, &comm));
        id
    }

    /// Scans for new processes, and updates names and memory.
    pub(super) fn scan(&mut self) {
        let Ok(entries) = fs::read_dir(&self.procfs) else { return };
        let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let pids: BTreeSet<u32> = pids.take(MOST_PROCESSES).collect();
        self.others.retain(|pid| pids.contains(pid));
        let is_new = |pid: &u32| {
            *pid != self.own && !self.others.contains(pid) && !self.members.contains_key(pid)
        };
        let new: Vec<u32> = pids.iter().copied().filter(is_new).collect();
        let mut new: BTreeMap<u32, Stat> =
            new.into_iter().filter_map(|pid| Some((pid, self.stat(pid)?))).collect();
        let first = |family: &Self, new: &BTreeMap<u32, Stat>| {
            new.iter().find(|(pid, stat)| family.is_ours(**pid, stat)).map(|(pid, _)| *pid)
        };
        while let Some(pid) = first(self, &new) {
            let Some(stat) = new.remove(&pid) else { break };
            self.take(pid, &stat);
        }
        self.others.extend(new.into_keys());
        for pid in self.members.keys().copied().collect::<Vec<_>>() {
            self.update(pid);
        }
    }

    fn is_ours(&self, pid: u32, stat: &Stat) -> bool {
        let is_child = stat.parent == self.own && !self.is_helper(pid);
        is_child || self.members.contains_key(&stat.parent)
    }

    /// Whether it is the process with which this program queries the driver, and not the command's.
    fn is_helper(&self, pid: u32) -> bool {
        let words = self.read(pid, "cmdline").unwrap_or_default();
        words.split(|byte| *byte == 0).nth(1) == Some(HELPER.as_bytes())
    }

    fn take(&mut self, pid: u32, stat: &Stat) {
        if self.members.len() >= MOST_MEMBERS {
            self.is_cut = true;
            self.others.insert(pid);
            return;
        }
        let id = ProcessId { pid, start_ticks: stat.start_ticks };
        self.members.insert(pid, Member::new(id, &stat.comm));
    }

    fn update(&mut self, pid: u32) {
        let found = self.stat(pid);
        let held = self.read(pid, "status").map(|text| held(&text));
        let Some(member) = self.members.get_mut(&pid) else { return };
        // An ended process has no memory, but had a name and memory before.
        let Some(stat) = found.filter(|stat| stat.start_ticks == member.id.start_ticks) else {
            return;
        };
        if member.ended.is_none() && !matches!(stat.state, 'Z' | 'X') {
            member.comm = stat.comm.into();
            member.bytes = held.flatten().or(member.bytes);
        }
    }

    /// Descriptors that become readable when a process ends.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let living = self.members.values().filter(|member| member.ended.is_none());
        living.filter_map(|member| Some(member.descriptor.as_ref()?.as_fd()))
    }

    /// Records which processes have ended, and how. Returns whether any was killed.
    pub(super) fn take_ends(&mut self, now: Duration) -> bool {
        let mut is_any_killed = false;
        let mut gone = Vec::new();
        for (pid, member) in &mut self.members {
            let text = fs::read(self.procfs.join(pid.to_string()).join("stat")).ok();
            let found = text.as_deref().and_then(stat);
            let found = found.filter(|stat| stat.start_ticks == member.id.start_ticks);
            let is_there = found.as_ref().is_some_and(|stat| !matches!(stat.state, 'Z' | 'X'));
            if is_there {
                continue;
            }
            member.ended.get_or_insert(now);
            let before = member.status;
            if found.is_some() {
                // /proc has its status until its parent reaps it.
                // The kernel shows 0 to readers without permission.
                let status = text.as_deref().and_then(exit_status).filter(|status| *status != 0);
                member.know(status, "its zombie in /proc");
            } else {
                let status = member.descriptor.as_ref().and_then(status_of_reaped);
                member.know(status, "its pidfd");
                gone.push(*pid);
            }
            let is_killed = matches!(member.status, ExitStatus::Signal { .. });
            is_any_killed |= before == ExitStatus::Unknown && is_killed;
        }
        for pid in gone {
            self.bury(pid);
        }
        is_any_killed
    }

    /// This process has reaped a child.
    pub(super) fn take_reaped(&mut self, pid: u32, status: i32, now: Duration) {
        let Some(member) = self.members.get_mut(&pid) else { return };
        member.status = ExitStatus::from_wait(status);
        member.reported_by = "wait(2)";
        member.is_reaped = true;
        member.ended.get_or_insert(now);
        self.bury(pid);
    }

    fn bury(&mut self, pid: u32) {
        let Some(mut member) = self.members.remove(&pid) else { return };
        member.descriptor = None;
        if self.ended.len() >= MOST_ENDED {
            // Successful ones are forgotten first.
            let index = self.ended.iter().position(|one| one.status.is_success()).unwrap_or(0);
            self.ended.remove(index);
        }
        self.ended.push(member);
    }

    /// Remaining processes, without zombies.
    pub(super) fn living(&self) -> usize {
        self.members.values().filter(|member| member.ended.is_none()).count()
    }

    /// Whether the pid belongs to one of them.
    pub(super) fn has(&self, pid: u32) -> bool {
        self.members.contains_key(&pid)
    }

    /// Sends a signal to a process, never to a later one with the same pid.
    pub(super) fn signal(&self, pid: u32, signal: Signal) -> bool {
        let member = self.members.get(&pid);
        let descriptor = member.and_then(|member| member.descriptor.as_ref());
        match descriptor {
            Some(descriptor) => pidfd_send_signal(descriptor, signal).is_ok(),
            // An unreaped child of this process keeps its pid.
            None if member.is_some_and(|member| !member.is_reaped) => {
                let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
                pid.is_some_and(|pid| rustix::process::kill_process(pid, signal).is_ok())
            }
            None => false,
        }
    }

    /// Kills the remaining processes, and returns them.
    pub(super) fn kill_left(&self) -> Vec<ProcessId> {
        let living = self.members.values().filter(|member| member.ended.is_none());
        let of_descriptor = living.filter(|member| {
            let killed = member.descriptor.as_ref();
            killed.is_some_and(|it| pidfd_send_signal(it, Signal::KILL).is_ok())
        });
        of_descriptor.map(|member| member.id).collect()
    }

    /// All processes that were ever seen.
    pub(super) fn relatives(&self) -> Vec<Relative> {
        let all = self.ended.iter().chain(self.members.values());
        all.map(|member| Relative {
            id: member.id,
            comm: Arc::clone(&member.comm),
            ended: member.ended,
            noticed: member.ended,
            status: member.status,
            reported_by: member.reported_by,
            is_left: member.ended.is_none(),
            bytes: member.bytes,
        })
        .collect()
    }

    fn stat(&self, pid: u32) -> Option<Stat> {
        stat(&self.read(pid, "stat")?)
    }

    fn read(&self, pid: u32, file: &str) -> Option<Vec<u8>> {
        fs::read(self.procfs.join(pid.to_string()).join(file)).ok()
    }
}

impl Member {
    fn new(id: ProcessId, comm: &str) -> Self {
        let pid = i32::try_from(id.pid).ok().and_then(Pid::from_raw);
        let descriptor = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        Self {
            id,
            comm: comm.into(),
            descriptor,
            ended: None,
            status: ExitStatus::Unknown,
            reported_by: "",
            bytes: None,
            is_reaped: false,
        }
    }

    fn know(&mut self, status: Option<i32>, reported_by: &'static str) {
        if let Some(status) = status.map(ExitStatus::from_wait)
            && self.status == ExitStatus::Unknown
        {
            (self.status, self.reported_by) = (status, reported_by);
        }
    }
}

/// Anonymous, shared and huge pages.
fn held(status: &[u8]) -> Option<u64> {
    let resident = resident(status);
    let rest = [resident.shmem, resident.hugetlb].into_iter().flatten().sum::<u64>();
    Some(resident.anon? + rest)
}
