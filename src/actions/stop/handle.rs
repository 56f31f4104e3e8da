//! A handle (pidfd) of one process, which survives the reuse of its pid.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use procfs::process::{Stat, StatFlags};
use procfs::{FromRead as _, ProcError};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::model::ProcessId;
use crate::sys::descriptors::with_reserve;

/// A process cannot be opened or signalled.
#[derive(Debug, thiserror::Error)]
pub(in crate::actions) enum HandleError {
    /// The process must never be signalled.
    #[error("process {pid} is {what}: it is never stopped")]
    Untouchable {
        pid: u32,
        /// The kind of process, for the text.
        what: &'static str,
    },
    /// The pid means another process here.
    #[error(
        "process {0} of --path.procfs cannot be reached: run in the host's PID namespace \
         (docker run --pid=host, hostPID: true)"
    )]
    OtherNamespace(u32),
    /// A system call failed.
    #[error("{doing} process {pid} failed: {error}: {}", remedy(error))]
    Failed {
        /// The step, for the text.
        doing: &'static str,
        pid: u32,
        /// The error of the system.
        error: io::Error,
    },
}

fn remedy(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::PERM | Errno::ACCESS) => {
            "run as uid 0 of the host, or with CAP_KILL, and not under hidepid"
        }
        Some(Errno::NOSYS) => "the kernel is older than 5.3 and has no pidfds",
        Some(Errno::MFILE | Errno::NFILE) => "raise the limit of open files (ulimit -n)",
        _ => "check the process, and what --path.procfs names",
    }
}

/// A pidfd of a process that lives, or has not been reaped.
#[derive(Debug)]
pub(super) struct PidHandle {
    /// The pid and the start time.
    pub(super) id: ProcessId,
    /// The command name.
    pub(super) comm: String,
    fd: OwnedFd,
}

/// The state of a process at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProcessState {
    pub(super) id: ProcessId,
    pub(super) parent: u32,
    pub(super) comm: String,
    pub(super) state: char,
    pub(super) is_kernel_thread: bool,
}

/// Reads `/proc/PID/stat`; `None`: there is no such process.
pub(super) fn known(procfs: &Path, pid: u32) -> io::Result<Option<ProcessState>> {
    let path = procfs.join(pid.to_string()).join("stat");
    let text = match with_reserve(|| fs::read(&path)) {
        Ok(text) => text,
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::NOENT | Errno::SRCH) => return Ok(None),
            _ => return Err(error),
        },
    };
    let stat = Stat::from_read(text.as_slice()).map_err(|error| match error {
        ProcError::Io(error, _) => error,
        other => io::Error::other(other.to_string()),
    })?;
    let is_kernel_thread = stat.flags().is_ok_and(|flags| flags.contains(StatFlags::PF_KTHREAD));
    Ok(Some(ProcessState {
        id: ProcessId { pid, start_ticks: stat.starttime },
        parent: u32::try_from(stat.ppid).unwrap_or_default(),
        comm: stat.comm.escape_default().to_string(),
        state: stat.state,
        is_kernel_thread,
    }))
}

impl PidHandle {
    /// Opens exactly this process; `None`: it has ended, even if its pid is reused. `own` has the
    /// pids of this program and its ancestors, which no signal may reach.
    pub(super) fn open(
        procfs: &Path,
        id: ProcessId,
        own: &[u32],
    ) -> Result<Option<Self>, HandleError> {
        let pid = id.pid;
        let untouchable = |what| Err(HandleError::Untouchable { pid, what });
        let reading = |error| HandleError::Failed { doing: "reading", pid, error };
        if pid <= 1 {
            return untouchable("the first one of all");
        }
        let same = |known: Option<ProcessState>| known.filter(|known| known.id == id);
        let Some(seen) = same(known(procfs, pid).map_err(reading)?) else { return Ok(None) };
        if own.contains(&pid) {
            return untouchable("this program, or what it runs under");
        }
        if seen.is_kernel_thread {
            return untouchable("a thread of the kernel");
        }
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let opened = match number {
            Some(pid) => with_reserve(|| Ok(pidfd_open(pid, PidfdFlags::empty())?)),
            None => Err(Errno::SRCH.into()),
        };
        let fd = match opened.map_err(|error| (Errno::from_io_error(&error), error)) {
            Ok(fd) => fd,
            Err((Some(Errno::SRCH | Errno::INVAL), _)) => {
                let is_there = same(known(procfs, pid).map_err(reading)?).is_some();
                return if is_there { Err(HandleError::OtherNamespace(pid)) } else { Ok(None) };
            }
            Err((_, error)) => {
                return Err(HandleError::Failed { doing: "holding", pid, error });
            }
        };
        // A process with this start time had it before the pidfd was opened, so that the pidfd is
        // of that process, if both pids are of the same namespace.
        if same(known(procfs, pid).map_err(reading)?).is_none() {
            return Ok(None);
        }
        if !is_number_of(procfs, fd.as_fd(), pid) {
            return Err(HandleError::OtherNamespace(pid));
        }
        Ok(Some(Self { id, comm: seen.comm, fd }))
    }

    /// Sends a signal; an ended process needs none.
    /// Returns whether it was delivered.
    pub(super) fn signal(&self, signal: Signal) -> Result<bool, HandleError> {
        match pidfd_send_signal(&self.fd, signal) {
            Ok(()) => Ok(true),
            Err(Errno::SRCH) => Ok(false),
            Err(errno) => {
                let error = errno.into();
                Err(HandleError::Failed { doing: "signalling", pid: self.id.pid, error })
            }
        }
    }
}

impl AsFd for PidHandle {
    /// The pidfd, readable once all threads have ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Whether the process of the pidfd has the pid in this procfs.
fn is_number_of(procfs: &Path, fd: BorrowedFd<'_>, pid: u32) -> bool {
    let path = procfs.join("self/fdinfo").join(fd.as_raw_fd().to_string());
    let Ok(text) = with_reserve(|| fs::read_to_string(&path)) else { return false };
    let number = text.lines().find_map(|line| line.strip_prefix("Pid:"));
    match number.map(|number| number.trim().parse::<i64>()) {
        // It was reaped meanwhile, and was the right one before.
        Some(Ok(-1)) => true,
        Some(Ok(number)) => number == i64::from(pid),
        _ => false,
    }
}
