//! Stops an engine: SIGTERM, a grace, SIGKILL.
//!
//! Every process has a pidfd before any signal is sent, and is a process of the decision or a
//! descendant of one. Signals go to the processes themselves, since that needs no memory and no
//! response. The container runtime and a user's systemd get a request as well, so that they do not
//! restart the engine, but only if no other process lives in the container or unit.

mod container;
mod family;
mod handle;
#[cfg(test)]
mod tests;
mod users_systemd;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::Signal;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use super::cgroup::open_below;
use super::{Act, Executor, Performed};
use crate::model::{Action, EngineTarget, OutcomeResult, ProcessId, Proof, Target, UserUnit};
use crate::parse::proc::meminfo::{Meminfo, MeminfoField};
use crate::supervisors::docker::Docker;
use crate::sys::descriptors::with_reserve;
use container::ContainerEndRequest;
use family::Processes;
use handle::{HandleError, PidHandle};

/// The time limit of the end of a killed process. A healthy driver took 2 to 5 s to free 92 GB, and
/// a process ends only when its memory is freed.
const ENDS_WITHIN: Duration = Duration::from_secs(6);

/// The wait for the container runtime, and for a user's systemd, before SIGTERM.
const KEEPER_ASKS_WITHIN: Duration = Duration::from_millis(500);

/// The same before SIGKILL. Memory may be used up in a third of a second, and a container runtime
/// that waits for memory does not respond. It has the request by then.
const KEEPER_KILLS_WITHIN: Duration = Duration::from_millis(150);

/// The effect of a stop that failed after a signal was delivered: the processes may end by it
/// later.
const SIGNALLED: &str = "its processes were signalled";

/// The executor of the brake's lane.
#[derive(Clone, Debug)]
pub struct StopExecutor {
    /// Mount point of procfs.
    pub procfs: PathBuf,
    /// Mount point of sysfs.
    pub sysfs: PathBuf,
    /// Docker's socket, or that of a server with the same API.
    pub docker: PathBuf,
    /// Where users have their folders for the time of their sessions.
    pub user_folders: PathBuf,
}

impl Executor for StopExecutor {
    fn execute(&mut self, act: &Act) -> Performed {
        let Action::StopEngine { grace_ms, unless_free_bytes, .. } = &act.action else {
            return Performed::of_another_lane(act);
        };
        let Target::Engine(engine) = &act.target else {
            let why = format!("stop_engine works on an engine, and not on {}", act.target);
            return OutcomeResult::Failed(why).into();
        };
        let stop = Stop {
            procfs: &self.procfs,
            sysfs: &self.sysfs,
            docker: &self.docker,
            user_folders: &self.user_folders,
            engine,
            grace: Duration::from_millis(*grace_ms),
            unless_free_bytes: *unless_free_bytes,
            has_signalled: Cell::new(false),
        };
        match perform(&stop) {
            Err(error) if error.is_untouched() => OutcomeResult::NotDone(error.to_string()).into(),
            Err(error) => Performed {
                effect: stop.has_signalled.get().then(|| SIGNALLED.to_owned()),
                ..OutcomeResult::Failed(error.to_string()).into()
            },
            Ok(effect) => Performed { effect, ..OutcomeResult::Done.into() },
        }
    }
}

/// A stop of an engine.
#[derive(Clone, Debug)]
pub(super) struct Stop<'a> {
    /// Mount point of procfs.
    pub(super) procfs: &'a Path,
    /// Mount point of sysfs.
    pub(super) sysfs: &'a Path,
    /// Docker's socket.
    pub(super) docker: &'a Path,
    /// Where users have their folders for the time of their sessions.
    pub(super) user_folders: &'a Path,
    /// The engine of the decision.
    pub(super) engine: &'a EngineTarget,
    /// The time between SIGTERM and SIGKILL; zero: only SIGKILL is sent.
    pub(super) grace: Duration,
    /// The stop is cancelled if this much memory is free.
    pub(super) unless_free_bytes: Option<u64>,
    /// Whether a signal was delivered, or a request to end it accepted.
    pub(super) has_signalled: Cell<bool>,
}

/// An engine was not stopped.
#[derive(Debug, thiserror::Error)]
pub(super) enum StopError {
    /// Enough memory is free.
    #[error("{free} bytes are free again, and the engine was to be stopped below {limit}")]
    CameBack {
        /// Free bytes.
        free: u64,
        /// The limit, in bytes.
        limit: u64,
    },
    /// The processes cannot be read.
    #[error("reading the processes below {procfs} failed: {error}: check --path.procfs")]
    Unreadable {
        /// Mount point of procfs.
        procfs: String,
        /// The error of the system.
        error: io::Error,
    },
    /// A process could not be opened or signalled.
    #[error(transparent)]
    Process(#[from] HandleError),
    /// The wait for the end failed.
    #[error("waiting for the processes to end failed: {0}: whether they have ended is not known")]
    Waiting(io::Error),
    /// Its processes have ended, and by no signal of this program.
    #[error("its processes have ended without a signal of this program: {0}")]
    OfOthers(HandleError),
    /// Some processes live on.
    #[error("{}", .0)]
    Alive(String),
}

impl StopError {
    /// Whether nothing was begun, since no stop was needed.
    pub(super) fn is_untouched(&self) -> bool {
        matches!(self, Self::CameBack { .. })
    }
}

/// Stops the engine. It is stopped when each of its processes has ended, for any reason. Returns
/// what may start it again, where that was not prevented, and how to undo a request that outlives
/// the stop.
pub(super) fn perform(stop: &Stop<'_>) -> Result<Option<String>, StopError> {
    if let Some(limit) = stop.unless_free_bytes
        && let Some(free) = free_bytes(stop.procfs).filter(|free| *free >= limit)
    {
        return Err(StopError::CameBack { free, limit });
    }
    let own = own_line(stop.procfs).map_err(|error| stop.unreadable(error))?;
    let mut handles = stop.open_all(&stop.engine.processes, &own)?;
    stop.open_descendants(&mut handles, &own)?;
    if handles.is_empty() {
        tracing::warn!(engine = %stop.engine.name, "nothing to stop: its processes are gone");
        return Ok(None);
    }
    let all = handles.len();
    let mut again = stop.starts_again();
    let mut refused = None;
    let patience = if stop.grace.is_zero() { KEEPER_KILLS_WITHIN } else { KEEPER_ASKS_WITHIN };
    stop.ask_users_systemd(&handles, patience, &mut again)?;
    if !stop.grace.is_zero() {
        again = stop.terminate(&handles, &mut refused)?.or(again);
        wait(&mut handles, stop.grace).map_err(StopError::Waiting)?;
    }
    let killed = handles.len();
    let failed = if handles.is_empty() { None } else { stop.kill(&mut handles, &own, &mut again)? };
    tracing::warn!(
        engine = %stop.engine.name, processes = all, killed, left = handles.len(), "engine stopped"
    );
    match (handles.is_empty(), failed) {
        (true, failed) => match failed.or(refused).filter(|_| !stop.has_signalled.get()) {
            Some(error) => Err(StopError::OfOthers(error)),
            None => Ok(again),
        },
        (false, Some(error)) => Err(error.into()),
        (false, None) => Err(StopError::Alive(describe(stop.procfs, &handles))),
    }
}

/// Of the service that it runs in, or that runs its container.
fn systemd_starts_again(unit: &str) -> String {
    format!(
        "systemd was not asked, and starts {unit} again if its Restart= says so: to keep it \
         stopped, `systemctl stop {unit}`"
    )
}

impl Stop<'_> {
    fn unreadable(&self, error: io::Error) -> StopError {
        StopError::Unreadable { procfs: self.procfs.display().to_string(), error }
    }

    /// Opens pidfds of the processes that are still those of the decision.
    fn open_all(&self, named: &[ProcessId], own: &[u32]) -> Result<Vec<PidHandle>, HandleError> {
        let handles = named.iter().map(|id| PidHandle::open(self.procfs, *id, own));
        handles.filter_map(Result::transpose).collect()
    }

    /// Opens pidfds of the descendants. A process that cannot be opened is left alone, as this
    /// program is.
    fn open_descendants(&self, handles: &mut Vec<PidHandle>, own: &[u32]) -> Result<(), StopError> {
        let all = Processes::read(self.procfs).map_err(|error| self.unreadable(error))?;
        let named: Vec<ProcessId> = handles.iter().map(|handle| handle.id).collect();
        for id in all.descendants(&named) {
            match PidHandle::open(self.procfs, id, own) {
                Ok(child) => handles.extend(child),
                Err(error) => tracing::warn!(%error, "a child of the engine is left alone"),
            }
        }
        Ok(())
    }

    /// What starts it again unless it is asked not to.
    fn starts_again(&self) -> Option<String> {
        if self.engine.proof == Proof::PodContainer {
            return Some(self.kubelet_starts_again());
        }
        if let Some(unit) = self.engine.starting_service() {
            return Some(systemd_starts_again(unit));
        }
        let UserUnit { user, name } = self.engine.user_unit.as_ref()?;
        Some(format!(
            "the systemd of user {user} was not asked, and starts {name} again if its Restart= \
             says so: as that user, `systemctl --user stop {name}`"
        ))
    }

    /// A kubelet starts the containers of a pod again after any end.
    fn kubelet_starts_again(&self) -> String {
        let again =
            "the kubelet starts its container again, unless the pod's restartPolicy forbids";
        match &self.engine.pod {
            Some(pod) => format!(
                "{again}: to keep it stopped, scale down what made {pod}, or taint the node \
                 (`kubectl taint nodes NODE KEY:NoExecute`)"
            ),
            None => {
                format!("{again}: to keep it stopped, scale its workload down, or taint the node")
            }
        }
    }

    /// Sends a signal, and records whether it was delivered.
    fn signal(&self, process: &PidHandle, signal: Signal) -> Result<(), HandleError> {
        if process.signal(signal)? {
            self.has_signalled.set(true);
        }
        Ok(())
    }

    /// Sends SIGTERM to all. Stopped ones (SIGSTOP) get SIGCONT, so that they can end. Returns why
    /// its runtime may start it again. `refused` is set to a failure.
    fn terminate(
        &self,
        handles: &[PidHandle],
        refused: &mut Option<HandleError>,
    ) -> Result<Option<String>, StopError> {
        let mut again = None;
        if self.has_its_container(handles)? {
            let is_of_pod = self.engine.proof == Proof::PodContainer;
            let is_podman = self.engine.runtime.as_ref().is_some_and(|runtime| runtime.is_podman);
            let is_stopped = is_podman || is_of_pod;
            let ask = if is_stopped {
                ContainerEndRequest::Stop(self.grace)
            } else {
                ContainerEndRequest::Signal("SIGTERM")
            };
            again = self.ask_runtime(ask, KEEPER_ASKS_WITHIN);
        }
        for process in handles {
            let sent = self.signal(process, Signal::TERM);
            let sent = sent.and_then(|()| self.signal(process, Signal::CONT));
            // A process that cannot get SIGTERM cannot be killed either, and then the error is
            // reported.
            if let Err(error) = sent {
                tracing::warn!(engine = %self.engine.name, %error, "SIGTERM not sent");
                refused.get_or_insert(error);
            }
        }
        Ok(again)
    }

    /// Kills all of them, and newly started children. Returns the first failure.
    fn kill(
        &self,
        handles: &mut Vec<PidHandle>,
        own: &[u32],
        again: &mut Option<String>,
    ) -> Result<Option<HandleError>, StopError> {
        self.open_descendants(handles, own)?;
        if self.has_its_container(handles)? {
            let of_client = || self.engine.client_unit.as_deref().map(systemd_starts_again);
            let asked =
                self.ask_runtime(ContainerEndRequest::Signal("SIGKILL"), KEEPER_KILLS_WITHIN);
            *again = asked.or_else(of_client);
        }
        let mut failed = None;
        for process in handles.iter() {
            if let Err(error) = self.signal(process, Signal::KILL) {
                failed.get_or_insert(error);
            }
        }
        if self.has_its_unit(handles)? {
            match self.kill_cgroup() {
                Ok(()) => self.has_signalled.set(true),
                Err(error) => tracing::warn!(
                    engine = %self.engine.name, %error, "killing its control group failed"
                ),
            }
        }
        wait(handles, ENDS_WITHIN).map_err(StopError::Waiting)?;
        Ok(failed)
    }

    /// Whether it runs in a container without other processes than its ancestors.
    fn has_its_container(&self, handles: &[PidHandle]) -> Result<bool, StopError> {
        if let Some(container) = &self.engine.claimed_container {
            tracing::warn!(
                engine = %self.engine.name, %container,
                effect = "only the engine's own processes are signalled",
                "no runtime confirms its container"
            );
        }
        if !self.engine.proof.is_of_container() {
            return Ok(false);
        }
        let Some(container) = &self.engine.container else { return Ok(false) };
        let alone =
            match self.engine.cgroup.as_deref().is_some_and(|path| path.contains(&**container)) {
                true => self.is_alone(handles)?,
                false => self.is_alone_in_namespace(handles)?,
            };
        if !alone {
            tracing::warn!(
                engine = %self.engine.name, %container,
                effect = "only the engine's own processes are signalled",
                "other processes live in its container"
            );
        }
        Ok(alone)
    }

    /// Whether it runs in a service without other processes than its ancestors. A login session is
    /// no service: its ancestors there are a user's shell.
    fn has_its_unit(&self, handles: &[PidHandle]) -> Result<bool, StopError> {
        let is_service = |unit: &str| unit.ends_with(".service") && !unit.starts_with("user@");
        if !self.engine.unit.as_deref().is_some_and(is_service) {
            return Ok(false);
        }
        self.is_alone(handles)
    }

    /// The same of the PID namespace, for a container without a control group of its own.
    fn is_alone_in_namespace(&self, handles: &[PidHandle]) -> Result<bool, StopError> {
        let Some(server) = handles.first() else { return Ok(false) };
        let all = Processes::read(self.procfs).map_err(|error| self.unreadable(error))?;
        let residents = all.in_namespace_of(self.procfs, server.id.pid);
        Ok(residents.is_some_and(|residents| Self::are_known(&all, residents, handles)))
    }

    /// Whether these are processes of the engine, or ancestors of them.
    fn are_known(all: &Processes, residents: BTreeSet<u32>, handles: &[PidHandle]) -> bool {
        let mut expected: Vec<u32> = handles.iter().map(|handle| handle.id.pid).collect();
        let above = expected.clone().into_iter().flat_map(|pid| all.ancestors(pid));
        expected.extend(above);
        residents.into_iter().all(|pid| expected.contains(&pid))
    }

    fn is_alone(&self, handles: &[PidHandle]) -> Result<bool, StopError> {
        let Some(cgroup) = self.engine.cgroup.as_deref() else { return Ok(false) };
        if matches!(cgroup, "" | "/") || !Target::is_cgroup_path(cgroup) {
            return Ok(false);
        }
        let all = Processes::read(self.procfs).map_err(|error| self.unreadable(error))?;
        Ok(Self::are_known(&all, all.residents(self.procfs, cgroup), handles))
    }

    /// Returns why the runtime may start it again.
    fn ask_runtime(&self, ask: ContainerEndRequest, patience: Duration) -> Option<String> {
        let id = self.engine.container.as_ref()?;
        let runtime = self.engine.runtime.as_ref();
        if self.engine.proof == Proof::PodContainer {
            let socket = runtime.map(|runtime| Path::new(&*runtime.socket));
            return Some(self.ask_cri(socket, id, ask, patience));
        }
        let socket = runtime.map_or(self.docker, |runtime| Path::new(&*runtime.socket));
        let docker = match runtime.and_then(|runtime| runtime.user) {
            Some(user) => Docker::of_user(socket, user),
            None => Docker::new(socket),
        };
        let Err(error) = container::end(docker, id, ask, patience) else {
            self.has_signalled.set(true);
            return None;
        };
        tracing::warn!(
            engine = %self.engine.name, container = %id, %error,
            effect = "Docker may start it again", "Docker has not confirmed the stop"
        );
        Some(format!("its container's runtime has not confirmed, and may start it again: {error}"))
    }

    /// Returns what starts it again, and the error of its runtime, which does not change that.
    fn ask_cri(
        &self,
        socket: Option<&Path>,
        id: &str,
        ask: ContainerEndRequest,
        patience: Duration,
    ) -> String {
        let grace = match ask {
            ContainerEndRequest::Stop(grace) => grace,
            ContainerEndRequest::Signal(_) => Duration::ZERO,
        };
        let again = self.kubelet_starts_again();
        let asked = socket.map(|socket| container::end_of_pod(socket, id, grace, patience));
        if asked == Some(Ok(())) {
            self.has_signalled.set(true);
        }
        let Some(Err(error)) = asked else { return again };
        tracing::warn!(
            engine = %self.engine.name, container = %id, %error,
            "the container runtime has not confirmed the stop"
        );
        format!("{again}; its runtime has not confirmed the stop: {error}")
    }

    /// Processes started at the moment of the kill, and those that would restart it, are in its
    /// control group (kernel 5.14 and later).
    fn kill_cgroup(&self) -> io::Result<()> {
        let Some(cgroup) = &self.engine.cgroup else { return Ok(()) };
        let root = self.sysfs.join("fs/cgroup");
        let below = Path::new(cgroup.trim_start_matches('/')).join("cgroup.kill");
        with_reserve(|| open_below(&root, &below, OFlags::WRONLY))?.write_all(b"1")
    }
}

/// The pids of this program and its ancestors, as in this procfs.
fn own_line(procfs: &Path) -> io::Result<Vec<u32>> {
    let own = fs::read_link(procfs.join("self"))?;
    let own = own.to_str().and_then(|own| own.parse().ok());
    let own = own.ok_or_else(|| io::Error::other("self is no number"))?;
    Ok(Processes::read(procfs)?.ancestors(own))
}

fn free_bytes(procfs: &Path) -> Option<u64> {
    let text = with_reserve(|| fs::read(procfs.join("meminfo"))).ok()?;
    Meminfo::parse(&text).ok()?.get(MeminfoField::MemFree).value()
}

/// Waits until all have ended, or for a time limit; ended ones are removed.
fn wait(handles: &mut Vec<PidHandle>, most: Duration) -> io::Result<()> {
    let timer =
        with_reserve(|| Ok(timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?))?;
    let it_value = Timespec {
        tv_sec: i64::try_from(most.as_secs()).unwrap_or(i64::MAX),
        // 0 would never end.
        tv_nsec: i64::from(most.subsec_nanos().max(u32::from(most.as_secs() == 0))),
    };
    let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
    timerfd_settime(&timer, TimerfdTimerFlags::empty(), &Itimerspec { it_interval, it_value })?;
    loop {
        let mut fds: Vec<PollFd<'_>> = handles
            .iter()
            .map(|handle| PollFd::from_borrowed_fd(handle.as_fd(), PollFlags::IN))
            .collect();
        if fds.is_empty() {
            return Ok(());
        }
        fds.push(PollFd::from_borrowed_fd(timer.as_fd(), PollFlags::IN));
        match poll(&mut fds, None) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        let is_over = ready.last().copied().unwrap_or(true);
        let mut ended = ready.into_iter();
        handles.retain(|_| !ended.next().unwrap_or(false));
        if is_over {
            return Ok(());
        }
    }
}

/// The report about killed processes that still exist.
fn describe(procfs: &Path, handles: &[PidHandle]) -> String {
    let left = handles.iter().map(|process| {
        let state = handle::known(procfs, process.id.pid).ok().flatten();
        let state = state.filter(|known| known.id == process.id).map(|known| known.state);
        left_over(process.id.pid, &process.comm, state)
    });
    let left: Vec<String> = left.collect();
    format!("killed and not gone after {} s: {}", ENDS_WITHIN.as_secs(), left.join("; "))
}

fn left_over(pid: u32, comm: &str, state: Option<char>) -> String {
    let why = match state {
        Some('D') => {
            "in state D: it waits in the kernel, mostly for the driver, and cannot die before that \
             ends; if it never does, only a reboot helps"
        }
        Some('R') => "still giving back its memory",
        Some('Z') => "some of its threads have not ended",
        _ => "it has not ended yet",
    };
    let state = state.map_or_else(String::new, |state| format!(" [{state}]"));
    format!("process {pid} ({comm}){state}: {why}")
}
