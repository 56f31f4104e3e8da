//! The exit status of engine processes. They are no children of this program. The kernel shows
//! their status through a pidfd opened before the exit (Linux 6.15), or in the zombie. Otherwise it
//! stays unknown.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::ray::RAYLET;
use crate::model::{EngineSeen, ExitStatus, ProcessEnd, ProcessId};
use crate::parse::proc::colon_number;
use crate::parse::process::{Stat, exit_status, stat};
use crate::sys::process_end::status_of_reaped;

/// The most pidfds, since a service has 1024 descriptors. Servers come first.
const MAX_HANDLES: usize = 256;

/// A parent that has not reaped the process by then may never do so.
const NOTICED_WITHIN: Duration = Duration::from_secs(60);

/// Engine processes with their pidfds.
#[derive(Debug)]
pub(super) struct EngineEnds {
    procfs: PathBuf,
    most: usize,
    handles: BTreeMap<ProcessId, ProcessHandle>,
    /// The raylets that have started processes of engines, each with the engine's server: these
    /// processes end with it.
    raylets: BTreeMap<ProcessId, ProcessId>,
    /// Processes without a pidfd; opening is not tried again.
    unopened: BTreeSet<ProcessId>,
    /// Exits that have not been reported yet.
    unreported: Vec<ProcessEnd>,
}

#[derive(Debug)]
struct ProcessHandle {
    descriptor: OwnedFd,
    server: ProcessId,
    comm: Arc<str>,
    /// When the exit was noticed.
    ended: Option<Duration>,
}

impl EngineEnds {
    pub(super) fn new(procfs: PathBuf) -> Self {
        let (handles, raylets, unopened, unreported) = Default::default();
        Self { procfs, most: MAX_HANDLES, handles, raylets, unopened, unreported }
    }

    /// Opens pidfds of living processes, and reads the exit status of ended ones.
    pub(super) fn update(&mut self, now: Duration, engines: &[EngineSeen]) {
        let servers = engines.iter().flat_map(|engine| {
            engine.processes.iter().take(1).map(move |process| (engine.server, process))
        });
        let others = engines.iter().flat_map(|engine| {
            engine.processes.iter().skip(1).map(move |process| (engine.server, process))
        });
        let mut living = BTreeSet::new();
        for (server, process) in servers.chain(others) {
            if !matches!(process.state, 'Z' | 'X') {
                living.insert(process.id);
                self.track(server, process.id, &process.comm);
            }
        }
        let name = Arc::from(RAYLET);
        for (raylet, server) in self.raylets.clone() {
            let is_alive = |stat: Stat| !matches!(stat.state, 'Z' | 'X');
            if self.stat(raylet).is_some_and(is_alive) {
                living.insert(raylet);
                self.track(server, raylet, &name);
            }
        }
        self.unopened.retain(|id| living.contains(id));
        let gone = self.handles.keys().filter(|id| !living.contains(id));
        for id in gone.copied().collect::<Vec<_>>() {
            self.check(id, now);
        }
    }

    /// Sets the raylets that are tracked from the next update on, each with a server.
    pub(super) fn set_raylets(&mut self, raylets: BTreeMap<ProcessId, ProcessId>) {
        self.raylets = raylets;
    }

    /// Exits that have not been reported yet.
    pub(super) fn unreported(&self) -> &[ProcessEnd] {
        &self.unreported
    }

    /// Marks all exits as reported.
    pub(super) fn mark_reported(&mut self) {
        self.unreported.clear();
    }

    fn track(&mut self, server: ProcessId, id: ProcessId, comm: &Arc<str>) {
        if let Some(handle) = self.handles.get_mut(&id) {
            // A process may change its name, and may turn out to belong to another engine.
            if handle.comm != *comm {
                handle.comm = Arc::clone(comm);
            }
            handle.server = server;
            return;
        }
        if self.handles.len() >= self.most || self.unopened.contains(&id) {
            return;
        }
        match self.open(id) {
            Ok(descriptor) => {
                let comm = Arc::clone(comm);
                self.handles.insert(id, ProcessHandle { descriptor, server, comm, ended: None });
            }
            Err(error) => {
                tracing::debug!(pid = id.pid, %error, "end of a process will be unknown");
                self.unopened.insert(id);
            }
        }
    }

    /// Opens a pidfd and checks that it refers to the process that was seen.
    fn open(&self, id: ProcessId) -> io::Result<OwnedFd> {
        let pid = i32::try_from(id.pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("that is no process number"))?;
        let descriptor = pidfd_open(pid, PidfdFlags::empty())?;
        // With a procfs of another PID namespace the number belongs to another process.
        let about = self.procfs.join("self/fdinfo").join(descriptor.as_raw_fd().to_string());
        let number = colon_number(&fs::read(about)?, b"Pid");
        let is_same = self.stat(id).is_some() && number == Some(u64::from(id.pid));
        is_same.then_some(descriptor).ok_or_else(|| io::Error::other("it is another one"))
    }

    fn text(&self, id: ProcessId) -> Option<Vec<u8>> {
        fs::read(self.procfs.join(id.to_string()).join("stat")).ok()
    }

    fn stat(&self, id: ProcessId) -> Option<Stat> {
        stat(&self.text(id)?).filter(|stat| stat.start_ticks == id.start_ticks)
    }

    fn check(&mut self, id: ProcessId, now: Duration) {
        let zombie = self.zombie(id);
        let Some(handle) = self.handles.get_mut(&id) else { return };
        if lives(&handle.descriptor) {
            // The process no longer belongs to an engine.
            self.handles.remove(&id);
            return;
        }
        let since = *handle.ended.get_or_insert(now);
        let status = status_of_reaped(&handle.descriptor).or(zombie);
        if status.is_none() && now.saturating_sub(since) < NOTICED_WITHIN {
            return;
        }
        let Some(ProcessHandle { server, comm, .. }) = self.handles.remove(&id) else { return };
        let status = status.map_or(ExitStatus::Unknown, ExitStatus::from_wait);
        if status != ExitStatus::Unknown && self.unreported.len() < MAX_HANDLES {
            self.unreported.push(ProcessEnd { id, server, comm, status });
        }
    }

    /// The exit status of a zombie. 0 may also mean that this user may not read it.
    fn zombie(&self, id: ProcessId) -> Option<i32> {
        let text = self.text(id)?;
        let found = stat(&text)?;
        let is_it = found.start_ticks == id.start_ticks && found.state == 'Z';
        exit_status(&text).filter(|status| is_it && *status != 0)
    }
}

/// A pidfd becomes readable when its process ends.
fn lives(descriptor: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(descriptor, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(0)
}

#[cfg(test)]
mod tests {
    use std::io::{PipeWriter, pipe};
    use std::process::{Child, Command};

    use super::*;
    use crate::model::{EngineKind, EngineProcess};

    fn ends() -> EngineEnds {
        EngineEnds::new("/proc".into())
    }

    /// It ends once its other end is closed.
    fn start(script: &str) -> (Child, PipeWriter, ProcessId) {
        let (input, output) = pipe().unwrap();
        let script = format!("read line; {script}");
        let child = Command::new("sh").args(["-c", &script]).stdin(input).spawn().unwrap();
        let text = fs::read(format!("/proc/{}/stat", child.id())).unwrap();
        let id = ProcessId { pid: child.id(), start_ticks: stat(&text).unwrap().start_ticks };
        (child, output, id)
    }

    fn engine(processes: &[ProcessId]) -> EngineSeen {
        let all = processes.iter().map(|id| EngineProcess::holding(*id, "sh", 0)).collect();
        EngineSeen::new("e".into(), EngineKind::Vllm, processes[0], all, "test".into())
    }

    #[test]
    fn an_ended_process_is_reported_once_with_its_code_or_signal() {
        for (script, status) in [
            ("exit 3", ExitStatus::Code { code: 3 }),
            ("kill -9 $$", ExitStatus::Signal { signal: 9 }),
        ] {
            let (mut child, output, id) = start(script);
            let mut ends = ends();
            ends.update(Duration::ZERO, &[engine(&[id])]);
            assert_eq!((ends.handles.len(), ends.unreported()), (1, &[][..]));
            drop(output);
            let is_zombie = || stat(&ends.text(id).unwrap()).unwrap().state == 'Z';
            while !is_zombie() {
                std::thread::sleep(Duration::from_millis(5));
            }
            ends.update(Duration::ZERO, &[]);
            let [end] = ends.unreported() else { panic!("{script}: {ends:?}") };
            assert_eq!((end.id, end.server, end.status), (id, id, status), "as its zombie shows");
            ends.mark_reported();
            ends.update(Duration::ZERO, &[]);
            assert!(ends.unreported().is_empty() && ends.handles.is_empty());
            child.wait().unwrap();
        }
    }

    /// It is no process of the engine, but its workers end with it.
    #[test]
    fn the_end_of_a_raylet_is_reported_for_the_engine_of_its_workers() {
        let (mut child, output, raylet) = start("kill -9 $$");
        let (mut other, stays, server) = start("exit 0");
        let mut ends = ends();
        ends.set_raylets(BTreeMap::from([(raylet, server)]));
        ends.update(Duration::ZERO, &[engine(&[server])]);
        assert_eq!((ends.handles.len(), ends.unreported()), (2, &[][..]));
        drop(output);
        while stat(&ends.text(raylet).unwrap()).unwrap().state != 'Z' {
            std::thread::sleep(Duration::from_millis(5));
        }
        for _ in 0..2 {
            ends.update(Duration::ZERO, &[engine(&[server])]);
            let [end] = ends.unreported() else { panic!("{ends:?}") };
            assert_eq!((end.id, end.server, &*end.comm), (raylet, server, RAYLET));
            assert_eq!(end.status, ExitStatus::Signal { signal: 9 });
        }
        drop(stays);
        child.wait().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn a_reaped_process_is_reported_if_the_kernel_keeps_its_status() {
        let (mut child, output, id) = start("exit 3");
        let mut ends = ends();
        ends.update(Duration::ZERO, &[engine(&[id])]);
        drop(output);
        child.wait().unwrap();
        ends.update(Duration::ZERO, &[]);
        let reported: Vec<ExitStatus> = ends.unreported().iter().map(|end| end.status).collect();
        // Before Linux 6.15 the status is unknown.
        assert!(reported.is_empty() || reported == [ExitStatus::Code { code: 3 }], "{reported:?}");
        ends.update(NOTICED_WITHIN, &[]);
        assert!(ends.handles.is_empty(), "it is not waited for any longer");
    }

    #[test]
    fn untracked_living_processes_and_reused_pids_have_no_handle() {
        let (mut child, output, id) = start("exit 0");
        let mut ends = ends();
        ends.update(Duration::ZERO, &[engine(&[id])]);
        assert_eq!(ends.handles.len(), 1);
        ends.update(Duration::ZERO, &[]);
        assert!(ends.handles.is_empty() && ends.unreported().is_empty());
        let other = ProcessId { start_ticks: id.start_ticks + 1, ..id };
        ends.update(Duration::ZERO, &[engine(&[other])]);
        assert_eq!((ends.handles.len(), ends.unopened.len()), (0, 1));
        drop(output);
        child.wait().unwrap();
    }

    #[test]
    fn handles_are_bounded_and_servers_come_first() {
        let mut all: Vec<_> = (0..3).map(|_| start("exit 0")).collect();
        let ids: Vec<ProcessId> = all.iter().map(|(.., id)| *id).collect();
        let mut ends = EngineEnds { most: 2, ..ends() };
        ends.update(Duration::ZERO, &[engine(&ids[..2]), engine(&ids[2..])]);
        let tracked: Vec<ProcessId> = ends.handles.keys().copied().collect();
        assert!(
            tracked.len() == 2 && tracked.contains(&ids[0]) && tracked.contains(&ids[2]),
            "{tracked:?}"
        );
        for (mut child, output, _) in all.drain(..) {
            drop(output);
            child.wait().unwrap();
        }
    }
}
