//! Signs that the driver is stuck.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::model::{
    Event, EventKind, GpuLossSign, HolderReadings, KernelEvent, ObservedTask, ProcessId, Recovery,
    WedgeSign, XidClass,
};

/// So long a process waits in the kernel that is no longer just at work, and so long the driver
/// does not answer. The kernel itself calls a task hung after 120 s, wedges last for minutes to
/// hours, and a GPU reset ends within seconds.
const LONG: Duration = Duration::from_secs(60);

/// An older report is no sign of the present. The kernel repeats that a task hangs every
/// 120 s, ten times.
const RECENT: Duration = Duration::from_secs(600);

/// Prefixes of the names of the driver's own threads.
const DRIVER_THREADS: [&str; 4] = ["nvidia", "nv_", "UVM ", "irq/nvidia"];

/// A task that the kernel has reported as hung. Any user may name a task like one of the driver's,
/// and pids are reused: two samples of `/proc` confirm it.
#[derive(Clone, Debug)]
struct HungTask {
    at: Duration,
    /// Pid of the waiting task.
    waiter: u32,
    /// Pid of the reported task: the waiter, or the owner of its lock.
    pid: u32,
    comm: Arc<str>,
    seconds: u64,
}

/// A reported task, as a later sample shows it.
#[derive(Clone, Debug)]
struct Task {
    seen: ObservedTask,
    /// Start of the samples in which it waits in the kernel.
    waits_since: Option<Duration>,
}

/// Collects them.
#[derive(Debug, Default)]
pub(super) struct Signs {
    /// Users of the driver that wait in every sample, with the start.
    waiting: BTreeMap<ProcessId, (Duration, Arc<str>)>,
    /// Pids that have the driver open.
    users: Vec<u32>,
    read_at: Duration,
    hung: Option<HungTask>,
    /// Tasks that the kernel has reported, by pid.
    tasks: BTreeMap<u32, Task>,
    said: Option<(&'static str, Duration)>,
    silent: Option<Duration>,
    all: Vec<WedgeSign>,
}

impl Signs {
    /// Takes a sample of who has the driver open.
    pub(super) fn take_holders(&mut self, readings: &HolderReadings) {
        let users = || readings.holders.iter().filter(|holder| holder.uses_driver());
        self.users = users().map(|holder| holder.id.pid).collect();
        self.read_at = readings.read_at;
        let waits: BTreeMap<ProcessId, Arc<str>> = users()
            .filter(|holder| holder.is_stuck())
            .map(|holder| (holder.id, Arc::clone(&holder.comm)))
            .collect();
        self.waiting.retain(|id, _| waits.contains_key(id));
        for (id, comm) in waits {
            self.waiting.entry(id).or_insert((readings.read_at, comm));
        }
        let mut before = std::mem::take(&mut self.tasks);
        for seen in &readings.tasks {
            let known = before.remove(&seen.id.pid).filter(|known| known.seen.id == seen.id);
            let since = known.and_then(|known| known.waits_since).unwrap_or(readings.read_at);
            let waits_since = (seen.state == 'D').then_some(since);
            self.tasks.insert(seen.id.pid, Task { seen: seen.clone(), waits_since });
        }
    }

    /// Whether `/proc` confirms it: the same waiter waits in the kernel in two samples, and the
    /// reported task belongs to the driver.
    fn is_confirmed(&self, hung: &HungTask) -> bool {
        let waits =
            |task: &Task| task.waits_since.is_some_and(|since| since.max(hung.at) < self.read_at);
        let is_driver_thread = self.tasks.get(&hung.pid).is_some_and(|task| task.seen.is_kernel);
        self.tasks.get(&hung.waiter).is_some_and(waits)
            && (is_driver_thread || self.users.contains(&hung.pid))
    }

    /// Since when the driver has not answered, if it does not.
    pub(super) fn set_silent(&mut self, since: Option<Duration>) {
        self.silent = since;
    }

    /// Something has happened.
    pub(super) fn take_event(&mut self, at: Duration, event: &Event) {
        match &event.kind {
            EventKind::Kernel(KernelEvent::UvmFatal) => self.said = Some(("uvm_fatal", at)),
            EventKind::Kernel(KernelEvent::Xid { xid, recovery, .. }) => {
                // That a GPU is to be reset is no sign that the driver is stuck.
                let is_reset_enough = *xid == 154 && *recovery != Some(Recovery::NodeReboot);
                if XidClass::of(*xid, *recovery) == XidClass::DeviceLost && !is_reset_enough {
                    self.said = Some(("xid", at));
                }
            }
            EventKind::Kernel(KernelEvent::GpuLost {
                sign: GpuLossSign::OffBus | GpuLossSign::GspTimeout,
                ..
            }) => self.said = Some(("gpu_lost", at)),
            EventKind::Kernel(KernelEvent::HungTask {
                pid: waiter,
                comm,
                seconds,
                owner_pid,
                owner_comm,
            }) => {
                let owner = owner_pid.zip(owner_comm.as_deref());
                let all = [Some((*waiter, comm.as_str())), owner];
                let found = all.into_iter().flatten().find(|(pid, comm)| {
                    let is_drivers = DRIVER_THREADS.iter().any(|name| comm.starts_with(name));
                    is_drivers || self.users.contains(pid)
                });
                if let Some((pid, comm)) = found {
                    let (comm, seconds) = (comm.into(), *seconds);
                    self.hung = Some(HungTask { at, waiter: *waiter, pid, comm, seconds });
                }
            }
            _ => {}
        }
    }

    /// Brings them up to date.
    pub(super) fn see(&mut self, now: Duration) {
        let long = |since: Duration| Some(now.saturating_sub(since)).filter(|age| *age >= LONG);
        let recent = |at: Duration| Some(now.saturating_sub(at)).filter(|age| *age <= RECENT);
        self.all.clear();
        if let Some(age) = self.silent.and_then(long) {
            self.all.push(WedgeSign::DriverSilent { seconds: age.as_secs() });
        }
        // By /proc or by the kernel's own detector, it is one fact. Without current samples it is
        // unknown.
        let is_seen = now.saturating_sub(self.read_at) <= super::CURRENT_WITHIN;
        let longest = self.waiting.iter().filter(|_| is_seen).min_by_key(|(_, (since, _))| *since);
        let seen = longest.and_then(|(id, (since, comm))| Some((id.pid, comm, long(*since)?)));
        let hung = self.hung.as_ref().filter(|hung| is_seen && self.is_confirmed(hung));
        let hung = hung.and_then(|hung| Some((hung, recent(hung.at)?)));
        if let Some((pid, comm, age)) = seen {
            let (comm, seconds) = (Arc::clone(comm), age.as_secs());
            self.all.push(WedgeSign::Waiting { pid, comm, seconds });
        } else if let Some((hung, age)) = hung {
            let seconds = hung.seconds.saturating_add(age.as_secs());
            let (pid, comm) = (hung.pid, Arc::clone(&hung.comm));
            self.all.push(WedgeSign::Waiting { pid, comm, seconds });
        }
        if let Some((event, age)) = self.said.and_then(|(event, at)| Some((event, recent(at)?))) {
            self.all.push(WedgeSign::Said { event, seconds: age.as_secs() });
        }
    }

    /// The present signs, each of another kind.
    pub(super) fn all(&self) -> &[WedgeSign] {
        &self.all
    }
}
