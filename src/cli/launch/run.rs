//! Runs the command in the foreground: passes signals on, reaps, tracks its processes.
//!
//! The command stays in this process's group, as if the shell had started it. A key on the terminal
//! reaches both, job control stops and continues both, and standard input belongs to the command.
//! Signals from keys are therefore not passed on; signals from processes are.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, WaitOptions, set_child_subreaper, wait};

use super::clock;
use super::evidence::memory;
use super::family::Family;
use super::tee::Tee;
use crate::model::{
    DeathMemory, ExitStatus, Moment, ProcessId, Survivor, WorkloadLog, signal_name,
};
use crate::policy::death::{EndRequest, Relative};
use crate::sources::output_files::{OutputFiles, last_lines};
use crate::sys::signals::{ReceivedSignal, Signals, is_session_leader};

/// Signals that are passed on; SIGCHLD only wakes. Job control signals are not handled.
const TAKEN: [i32; 8] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGWINCH,
    libc::SIGCHLD,
];

/// Handles the signals that are passed on.
///
/// # Errors
/// No descriptor is left.
pub(super) fn take_signals() -> io::Result<Signals> {
    Signals::take(&TAKEN)
}

/// A pending signal that requests the end, if any.
pub(super) fn asked_to_end(signals: &Signals) -> Option<i32> {
    let received = signals.read().unwrap_or_default();
    received.into_iter().map(|one| one.signal).find(|signal| ENDING.contains(signal))
}

/// Signals that request the end.
const ENDING: [i32; 4] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];

/// Between two scans for new processes: during the start, and later.
const STARTING: Duration = Duration::from_millis(200);
const STARTS_FOR: Duration = Duration::from_secs(60);
const CALM: Duration = Duration::from_secs(1);

/// How long killed processes may take to end: their memory must be reclaimed.
const KILLED_WITHIN: Duration = Duration::from_secs(10);

/// The command and its options.
#[derive(Debug)]
pub(super) struct CommandRun<'r> {
    pub(super) command: &'r [OsString],
    /// Handled before the command starts, so that early signals wait for it.
    pub(super) signals: Signals,
    pub(super) procfs: &'r Path,
    /// How long processes that outlive it may take.
    pub(super) grace: Duration,
    pub(super) kills_orphans: bool,
    /// Whether its output is passed through.
    pub(super) tees: bool,
}

/// Why the command was not started.
#[derive(Debug)]
pub(super) enum CommandStartError {
    /// There is no such program.
    NotFound(io::Error),
    /// It cannot be executed.
    NotExecutable(io::Error),
    /// A failure of this process.
    Failed(anyhow::Error),
}

#[derive(Debug)]
pub(super) struct CommandResult {
    pub(super) head: ProcessId,
    pub(super) status: ExitStatus,
    pub(super) began: Moment,
    pub(super) ended: Moment,
    pub(super) relatives: Vec<Relative>,
    pub(super) killed_orphans: Vec<ProcessId>,
    pub(super) asked: Option<EndRequest>,
    /// When the first process was killed, else when the head ended.
    pub(super) memory: Option<DeathMemory>,
    /// What it wrote last, where that is known.
    pub(super) output: Option<WorkloadLog>,
    /// Whether there were more processes than are tracked.
    pub(super) is_cut: bool,
}

impl CommandRun<'_> {
    /// Runs the command to its end. `begun` gets the head process.
    pub(super) fn run(
        self,
        begun: impl FnOnce(ProcessId),
    ) -> Result<CommandResult, CommandStartError> {
        let failed = |error: io::Error| CommandStartError::Failed(error.into());
        let own = rustix::process::getpid();
        // Makes orphans of the command children of this process.
        set_child_subreaper(Some(own)).map_err(|error| failed(error.into()))?;
        let Some((program, arguments)) = self.command.split_first() else {
            return Err(CommandStartError::Failed(anyhow::anyhow!("there is no command")));
        };
        let mut command = Command::new(program);
        command.args(arguments);
        self.signals.give_back_to(&mut command);
        let tee = self.tees.then(|| Tee::begin(&mut command)).transpose().map_err(failed)?;
        let files = OutputFiles::open(&self.procfs.join("self/fd"));
        let began = clock();
        let child = command.spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                CommandStartError::NotFound(error)
            }
            _ if error.raw_os_error() == Some(libc::EAGAIN) => {
                CommandStartError::Failed(error.into())
            }
            _ => CommandStartError::NotExecutable(error),
        })?;
        // It has the other ends of pipes.
        drop(command);
        let mut family = Family::new(self.procfs, own.as_raw_nonzero().get().unsigned_abs());
        let head = family.begin(child.id());
        begun(head);
        let mut running = RunningCommand {
            run: self,
            family,
            head,
            began,
            status: None,
            asked: None,
            memory: None,
        };
        running.wait();
        running.family.scan();
        running.family.take_ends(clock().uptime);
        // A process that is killed below outlived the command, and is not its cause of death.
        let relatives = running.family.relatives();
        let killed_orphans = running.end_orphans();
        let of_files = || (!files.is_empty()).then(|| last_lines(files.ends()));
        let output = tee.map(|tee| tee.last_lines()).or_else(of_files);
        Ok(CommandResult { output, ..running.ran(relatives, killed_orphans) })
    }
}

struct RunningCommand<'r> {
    run: CommandRun<'r>,
    family: Family,
    head: ProcessId,
    began: Moment,
    status: Option<(ExitStatus, Moment)>,
    asked: Option<EndRequest>,
    memory: Option<DeathMemory>,
}

impl RunningCommand<'_> {
    /// Waits for the head, then for processes that outlive it or the timeout.
    fn wait(&mut self) {
        let mut next_scan = self.began.uptime;
        loop {
            let now = clock();
            if now.uptime >= next_scan {
                self.family.scan();
                let age = now.uptime.saturating_sub(self.began.uptime);
                next_scan = now.uptime + if age < STARTS_FOR { STARTING } else { CALM };
            }
            let is_killed = self.family.take_ends(now.uptime);
            self.reap(now);
            if is_killed && self.memory.is_none() {
                self.memory = Some(self.read_memory());
            }
            if let Some((_, ended)) = self.status {
                let waited = now.uptime.saturating_sub(ended.uptime);
                if self.family.living() == 0 || waited >= self.run.grace {
                    return;
                }
            }
            self.sleep(next_scan.saturating_sub(now.uptime));
            if self.handle_signals() {
                return;
            }
        }
    }

    fn read_memory(&self) -> DeathMemory {
        let own = self.family.relatives().iter().filter_map(|one| one.bytes).sum();
        DeathMemory { own_bytes: Some(own), ..memory(self.run.procfs) }
    }

    fn sleep(&self, for_at_most: Duration) {
        let mut watched = vec![PollFd::from_borrowed_fd(self.run.signals.as_fd(), PollFlags::IN)];
        let members = self.family.descriptors();
        watched.extend(members.map(|it| PollFd::from_borrowed_fd(it, PollFlags::IN)));
        let timeout = Timespec {
            tv_sec: i64::try_from(for_at_most.as_secs()).unwrap_or(1),
            tv_nsec: i64::from(for_at_most.subsec_nanos()),
        };
        // An interrupted wait is only shorter.
        let _ = poll(&mut watched, Some(&timeout));
    }

    /// Reaps ended children of this process.
    fn reap(&mut self, now: Moment) {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            let pid = pid.as_raw_nonzero().get().unsigned_abs();
            let raw = status.as_raw();
            if pid == self.head.pid && self.status.is_none() {
                self.status = Some((ExitStatus::from_wait(raw), now));
                if self.memory.is_none() {
                    self.memory = Some(self.read_memory());
                }
            }
            self.family.take_reaped(pid, raw, now.uptime);
        }
    }

    /// Passes signals on. Returns true when the wait is to end.
    fn handle_signals(&mut self) -> bool {
        let received = self.run.signals.read().unwrap_or_default();
        let mut is_over = false;
        for one in received.into_iter().filter(|one| one.signal != libc::SIGCHLD) {
            let is_own = !one.is_of_kernel && self.family.has(one.pid);
            // Signals from its own processes to their group are not passed on.
            if is_own {
                continue;
            }
            let asks = ENDING.contains(&one.signal);
            if self.status.is_some() {
                is_over |= asks;
                continue;
            }
            if asks && self.asked.is_none() {
                let (signal, sender, at) =
                    (one.signal, sender(one, self.run.procfs), clock().uptime);
                self.asked = Some(EndRequest { signal, sender, at });
            }
            if !has_reached_all(one)
                && let Some(signal) = Signal::from_named_raw(one.signal)
            {
                // It may have just ended.
                let _ = self.family.signal(self.head.pid, signal);
            }
        }
        is_over
    }

    fn end_orphans(&mut self) -> Vec<ProcessId> {
        if !self.run.kills_orphans || self.family.living() == 0 {
            return Vec::new();
        }
        let began = clock().uptime;
        let mut killed = Vec::new();
        // A killed process may have started another.
        while self.family.living() > 0 && clock().uptime.saturating_sub(began) < KILLED_WITHIN {
            for id in self.family.kill_left() {
                if !killed.contains(&id) {
                    killed.push(id);
                }
            }
            self.sleep(STARTING / 4);
            let now = clock();
            self.reap(now);
            self.family.scan();
            self.family.take_ends(now.uptime);
        }
        killed
    }

    fn ran(self, relatives: Vec<Relative>, killed_orphans: Vec<ProcessId>) -> CommandResult {
        let (status, ended) = self.status.unwrap_or_else(|| (ExitStatus::Unknown, clock()));
        CommandResult {
            head: self.head,
            status,
            began: self.began,
            ended,
            relatives,
            killed_orphans,
            asked: self.asked,
            memory: self.memory,
            output: None,
            is_cut: self.family.is_cut,
        }
    }
}

/// Whether the kernel sent it to the whole group, and so to the command. The hangup of the terminal
/// goes to the leader of the session alone.
fn has_reached_all(received: ReceivedSignal) -> bool {
    received.is_of_kernel && !(received.signal == libc::SIGHUP && is_session_leader())
}

/// The sender, for people.
fn sender(received: ReceivedSignal, procfs: &Path) -> String {
    let name = signal_name(received.signal);
    if received.is_of_kernel {
        return match received.signal {
            libc::SIGHUP => "the terminal, which is gone".to_owned(),
            _ => "the keyboard".to_owned(),
        };
    }
    if received.pid == 0 {
        return format!("{name} to umawarden launch from outside of its PID namespace");
    }
    let comm = std::fs::read(procfs.join(format!("{}/comm", received.pid))).unwrap_or_default();
    let comm = crate::parse::process::printable(comm.trim_ascii());
    let ReceivedSignal { pid, uid, .. } = received;
    let who = if comm.is_empty() { format!("pid {pid}") } else { format!("{comm} (pid {pid})") };
    format!("{who}, user {uid}, by way of umawarden launch")
}

/// Killed processes no longer remain.
pub(super) fn mark_killed(orphans: &mut [Survivor], killed: &[ProcessId]) {
    for orphan in orphans.iter_mut().filter(|orphan| killed.contains(&orphan.id)) {
        orphan.is_killed = true;
    }
}
