//! The meaning of the kernel log: lines in, [`LoggedEvent`]s out.
//!
//! A new event: its grammar in the file of its subsystem, a variant of [`crate::KernelEvent`], an
//! arm in `EventAssembler::feed_kernel` (in `of_one_line` if one line gives it whole), a fixture in
//! `tests/fixtures/kernel`.
//!
//! Every matcher is anchored at the start of the message: kernel-like text that another message
//! quotes is no event.

mod assemble_oom;
mod killers;
mod lost;
mod memory;
mod nvidia;
mod oom;
mod phrases;
mod tasks;
mod text;
mod trace;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use jiff::Timestamp;

use crate::{KernelEvent, LoggedEvent};

pub(crate) use killers::TALOS;
use killers::{Killer, Victim};
use lost::LostDevice;
use memory::{DamagedPage, Named};
use nvidia::Nvidia;
pub(crate) use phrases::is_fault;
pub use phrases::{UnreadFault, UnreadFaults};
use trace::{Anchor, Position, Trace};

/// The container id in the path of a control group, if any.
pub fn container_id(cgroup: &str) -> Option<String> {
    oom::container(cgroup)
}

/// The wait for the rest of an event after its last line.
const SILENCE: Duration = Duration::from_secs(1);
/// Longest wait for the rest of an event. A serial console prints a trace with a few thousand tasks
/// at 10 KiB a second.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// The same in lines, for logs without times: since its last line, and in total.
const SILENT_LINES: u64 = 2_000;
const LONGEST_WAIT_LINES: u64 = 20_000;
/// The most lines of the stack of a hung task.
const HUNG_TASK_LINES: u64 = 400;
/// The wait for the rest of a broken message, which follows at once.
const BROKEN_MESSAGE_LINES: u64 = 8;
/// The lines after which the loss of a device is another one, for logs without times.
const LOSS_LINES: u64 = 200;
/// The longest time between two reports of one kill, or of one lost device.
const REPETITION: Duration = Duration::from_secs(10);
/// The longest time of earlyoom between SIGTERM and SIGKILL.
const ESCALATION: Duration = Duration::from_secs(60);
/// The most incomplete events of a kind; the oldest is dropped first.
const MOST_PENDING: usize = 16;
/// The number of kept kills and reaps, which identify repeated lines.
const MOST_REMEMBERED: usize = 64;
/// Longer messages are cut: the kernel's own limit is 1 KiB a record (2 KiB from 6.10 on).
const LONGEST_TEXT: usize = 8 * 1024;

/// One line of the kernel log.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelLine<'a> {
    /// The record's sequence number, if the log has one.
    pub seq: Option<u64>,
    /// Wall time, if known.
    pub utc: Option<Timestamp>,
    /// Position on a clock that does not jump, to detect silence: the time of the record or of its
    /// arrival. [`EventAssembler::tick`] must use the same clock.
    pub uptime: Option<Duration>,
    /// Facility 0, or the identifier `kernel` in journal text. Other lines give no kernel event.
    pub from_kernel: bool,
    /// The program that wrote the line, in journal text.
    pub identifier: Option<&'a str>,
    /// The task (`T123`) or CPU (`C1`) that printed it, if the log has it.
    pub caller: Option<&'a str>,
    /// The message, with bytes that do not print as `\xNN`.
    pub text: &'a str,
}

/// A hung task that waits for the line about its lock.
#[derive(Debug)]
struct PendingHungTask {
    anchor: Anchor,
    at: Position,
    pid: u32,
    comm: String,
    seconds: u64,
}

/// A message of the driver that may continue in the next record.
#[derive(Debug)]
struct BrokenMessage {
    anchor: Anchor,
    at: Position,
    caller: Option<String>,
    text: String,
    event: Option<KernelEvent>,
}

/// A kill that its next line may revoke.
#[derive(Debug)]
struct PendingKiller {
    /// The line that named the victim.
    first: Anchor,
    anchor: Anchor,
    at: Position,
    pid: u32,
    event: KernelEvent,
}

/// A victim whose kill is not logged yet.
#[derive(Debug)]
struct PendingVictim {
    anchor: Anchor,
    at: Position,
    victim: Victim,
}

/// A process that was killed or reaped.
#[derive(Debug)]
struct Remembered {
    pid: u32,
    comm: String,
    text: String,
    at: Position,
    /// The number of traces begun by then.
    traces_begun: u64,
}

/// Turns lines into events. Time and memory are bounded for any input.
///
/// At most one event carries the sequence number of any one record, and the same records give the
/// same events, so that `(boot_id, seq)` identifies an event for good.
#[derive(Debug, Default)]
pub struct EventAssembler {
    now: Position,
    traces: Vec<Trace>,
    /// The trace that lines without a caller belong to: its `opened.line`.
    current: Option<u64>,
    /// A stack of no OOM trace is expected; its task, if known.
    other_stack: Option<Option<String>>,
    traces_begun: u64,
    /// `Killed process` lines that were cut before their figures.
    broken_kill: Option<BrokenMessage>,
    /// A line about a trace's cgroup that was cut.
    broken_cgroup: Option<BrokenMessage>,
    broken: Option<BrokenMessage>,
    hung: VecDeque<PendingHungTask>,
    lost: VecDeque<LostDevice>,
    named: Option<Named>,
    damaged: Option<DamagedPage>,
    killed: VecDeque<Remembered>,
    reaped: VecDeque<Remembered>,
    /// A person has requested a kill whose trace has not begun.
    requested: Option<(Anchor, Position)>,
    pending_killer: Option<PendingKiller>,
    pending_victim: Option<PendingVictim>,
    terminated: VecDeque<Remembered>,
}

impl EventAssembler {
    /// An assembler without any input.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next line. Appends complete events to `out`.
    pub fn feed(&mut self, line: &KernelLine<'_>, out: &mut Vec<LoggedEvent>) {
        self.now.line += 1;
        if line.uptime.is_some() {
            self.now.uptime = line.uptime;
        }
        self.expire(false, out);
        let line = KernelLine { text: cut(line.text), ..*line };
        if line.from_kernel {
            self.feed_kernel(&line, out);
        } else if let Some(identifier) = line.identifier {
            self.feed_killer(identifier, &line, out);
        }
    }

    fn feed_kernel(&mut self, line: &KernelLine<'_>, out: &mut Vec<LoggedEvent>) {
        if self.join_broken(line, out)
            || self.join_broken_kill(line, out)
            || self.join_broken_cgroup(line, out)
            || self.join_summary(line)
        {
            return;
        }
        // A process may be called `NVRM: x`, so that a line not of the driver may be of another
        // subsystem.
        let driver = nvidia::parse(line.text);
        if let Some(message) = driver.filter(|message| *message != Nvidia::Other) {
            self.feed_nvidia(message, line, out);
        } else if let Some(message) = oom::parse(line.text) {
            self.feed_oom(message, line, out);
        } else if let Some(failure) = memory::allocation_failure(line.text) {
            self.feed_allocation(&failure, line, out);
        } else if let Some(damage) = memory::damage(line.text) {
            self.feed_damage(damage, line, out);
        } else if line.text.starts_with("INFO: task ") {
            self.feed_task(line, out);
        } else if let Some(event) = of_one_line(line.text) {
            out.push(Anchor::of(line).event(event));
            self.feed_body(line);
        } else if !line.text.starts_with("NVRM") {
            self.feed_body(line);
        }
        self.note_name(line);
    }

    fn feed_nvidia(&mut self, message: Nvidia, line: &KernelLine<'_>, out: &mut Vec<LoggedEvent>) {
        let (event, unfinished) = match message {
            Nvidia::Event(event) => (Some(event), false),
            Nvidia::Unfinished(event) => (event, true),
            Nvidia::AddressSpace | Nvidia::Other => return,
        };
        if !unfinished {
            if let Some(event) = event {
                self.driver_event(Anchor::of(line), event, out);
            }
            return;
        }
        if let Some(broken) = self.broken.take() {
            out.extend(broken.finish());
        }
        self.broken = Some(BrokenMessage::new(line, self.now, event));
    }

    /// Whether the line is the rest of a message of the driver that was broken.
    fn join_broken(&mut self, line: &KernelLine<'_>, out: &mut Vec<LoggedEvent>) -> bool {
        let Some(broken) = &self.broken else { return false };
        if broken.caller.as_deref() != line.caller {
            return false;
        }
        let rest = nvidia::continuation(line.text);
        let glue = if broken.text.ends_with(' ') || rest.starts_with(' ') { "" } else { " " };
        let joined = [format!("{}{rest}", broken.text), format!("{}{glue}{rest}", broken.text)];
        let alone =
            matches!(nvidia::parse(line.text), Some(Nvidia::Event(_) | Nvidia::Unfinished(_)));
        // The last line about a device off the bus proves it, and the first names the device.
        let is_about_device = broken.text.starts_with("NVRM: The NVIDIA GPU ");
        if (alone && !is_about_device) || is_other_message(line.text) {
            return false;
        }
        let is_event = broken.event.is_some();
        for joined in joined {
            match nvidia::parse(&joined) {
                Some(Nvidia::Event(event)) => {
                    let anchor = broken.anchor;
                    self.broken = None;
                    self.driver_event(anchor, event, out);
                    return true;
                }
                // A terminal wraps a message into more than two lines.
                Some(Nvidia::Unfinished(event @ Some(_))) if !is_event => {
                    if let Some(broken) = &mut self.broken {
                        (broken.text, broken.event) = (joined, event);
                    }
                    return true;
                }
                _ => {}
            }
        }
        false
    }

    fn feed_task(&mut self, line: &KernelLine<'_>, out: &mut Vec<LoggedEvent>) {
        self.expect_other_stack(None, line);
        let about = self.hung.iter().rev().find_map(|pending| {
            tasks::lock(line.text, &pending.comm, pending.pid)
                .map(|lock| (pending.anchor, pending.at, lock))
        });
        if let Some((_, at, lock)) = about {
            let position = self.hung.iter().position(|pending| pending.at.line == at.line);
            let pending = position.and_then(|position| self.hung.remove(position));
            out.extend(pending.map(|pending| pending.finish(Some(lock))));
        } else if let Some(hung) = tasks::hung(line.text) {
            let repeated = self.hung.iter().any(|pending| {
                pending.pid == hung.pid
                    && pending.comm == hung.comm
                    && pending.seconds == hung.seconds
            });
            if repeated {
                return;
            }
            if self.hung.len() >= MOST_PENDING {
                out.extend(self.hung.pop_front().map(|pending| pending.finish(None)));
            }
            self.hung.push_back(PendingHungTask {
                anchor: Anchor::of(line),
                at: self.now,
                pid: hung.pid,
                comm: hung.comm.to_owned(),
                seconds: hung.seconds,
            });
        }
    }

    fn feed_killer(&mut self, identifier: &str, line: &KernelLine<'_>, out: &mut Vec<LoggedEvent>) {
        let (anchor, at) = (Anchor::of(line), self.now);
        let mut first = anchor;
        let kill = match killers::parse(identifier, line.text) {
            Some(Killer::Kill(kill)) => kill,
            Some(Killer::Victim(victim)) => {
                let new = || PendingVictim { anchor, at, victim: Victim::default() };
                self.pending_victim.get_or_insert_with(new).victim.add(victim);
                return;
            }
            Some(Killer::KillOfVictim(by)) => {
                let Some(pending) = self.pending_victim.take() else { return };
                first = pending.anchor;
                match pending.victim.kill(by) {
                    Some(kill) => kill,
                    None => return,
                }
            }
            Some(Killer::Failed) => {
                self.pending_killer = None;
                return;
            }
            None => return,
        };
        let KernelEvent::UserspaceKill { pid: Some(pid), comm, .. } = &kill else {
            out.push(anchor.event(kill));
            return;
        };
        let pid = *pid;
        let comm = comm.clone().unwrap_or_default();
        if self.pending_killer.as_ref().is_some_and(|pending| pending.pid == pid) {
            return;
        }
        self.release_killer(out);
        let escalated = self.terminated.iter().any(|earlier| {
            earlier.pid == pid
                && earlier.comm == comm
                && !earlier.at.is_before(self.now.uptime, ESCALATION)
        });
        if !escalated {
            self.pending_killer = Some(PendingKiller { first, anchor, at, pid, event: kill });
        }
    }

    fn release_killer(&mut self, out: &mut Vec<LoggedEvent>) {
        let Some(pending) = self.pending_killer.take() else { return };
        if let KernelEvent::UserspaceKill { comm: Some(comm), .. } = &pending.event {
            let entry = Remembered {
                pid: pending.pid,
                comm: comm.clone(),
                text: String::new(),
                at: pending.at,
                traces_begun: 0,
            };
            remember(&mut self.terminated, entry);
        }
        out.push(pending.anchor.event(pending.event));
    }

    /// Advances the time while no line comes. `now` is on the clock of [`KernelLine::uptime`].
    pub fn tick(&mut self, now: Duration, out: &mut Vec<LoggedEvent>) {
        self.now.uptime = Some(now);
        self.expire(true, out);
    }

    /// Ends the log: reports or drops all pending events.
    pub fn finish(&mut self, out: &mut Vec<LoggedEvent>) {
        out.extend(self.broken.take().and_then(BrokenMessage::finish));
        self.finish_broken_kill(out);
        for trace in std::mem::take(&mut self.traces) {
            self.finish_trace(&trace, out);
        }
        out.extend(self.hung.drain(..).map(|pending| pending.finish(None)));
        out.extend(self.lost.drain(..).filter_map(|mut lost| lost.release()));
        out.extend(self.damaged.take().map(|page| page.finish(None)));
        self.named = None;
        self.release_killer(out);
        (self.current, self.broken_cgroup, self.pending_victim) = (None, None, None);
        self.requested = None;
    }

    /// The first record that must be read again after a restart to rebuild the pending events.
    pub fn pending_since_seq(&self) -> Option<u64> {
        let traces = self.traces.iter().map(|trace| trace.first.seq);
        let hung = self.hung.iter().map(|pending| pending.anchor.seq);
        let broken = self.broken.iter().map(|pending| pending.anchor.seq);
        let kill = self.broken_kill.iter().map(|pending| pending.anchor.seq);
        let killer = self.pending_killer.iter().map(|pending| pending.first.seq);
        let victim = self.pending_victim.iter().map(|pending| pending.anchor.seq);
        let requested = self.requested.iter().map(|(anchor, _)| anchor.seq);
        let killers = killer.chain(victim).chain(requested);
        let lost = self.lost.iter().map(|lost| lost.anchor.seq);
        let named = self.named.iter().map(|named| named.anchor.seq);
        let damaged = self.damaged.iter().map(|page| page.anchor.seq);
        let others = lost.chain(named).chain(damaged);
        traces.chain(hung).chain(broken).chain(kill).chain(killers).chain(others).flatten().min()
    }

    /// The next deadline of [`Self::tick`], on the clock of [`KernelLine::uptime`].
    pub fn next_deadline(&self) -> Option<Duration> {
        let traces = self.traces.iter().flat_map(|trace| {
            let silent = trace.last.uptime.map(|at| at.saturating_add(SILENCE));
            let oldest = trace.opened.uptime.map(|at| at.saturating_add(LONGEST_WAIT));
            [silent, oldest]
        });
        let hung = self.hung.iter().map(|pending| pending.at.uptime);
        let broken = self.broken.iter().map(|pending| pending.at.uptime);
        let kill = self.broken_kill.iter().map(|pending| pending.at.uptime);
        let killer = self.pending_killer.iter().map(|pending| pending.at.uptime);
        let named = self.named.iter().map(|named| named.at.uptime);
        let damaged = self.damaged.iter().map(|page| page.at.uptime);
        let waiting = self.lost.iter().filter(|lost| lost.waiting.is_some());
        let waiting = waiting.map(|lost| lost.at.uptime);
        let rest = hung.chain(broken).chain(kill).chain(killer).chain(named).chain(damaged);
        let rest = rest.chain(waiting).map(|at| at.map(|at| at.saturating_add(SILENCE)));
        let lost = self.lost.iter().map(|lost| lost.at.uptime);
        let lost = lost.map(|at| at.map(|at| at.saturating_add(REPETITION)));
        traces.chain(rest).chain(lost).flatten().min()
    }

    /// Decides events that have been pending for long. `at_deadline` includes the very instant of a
    /// deadline.
    fn expire(&mut self, at_deadline: bool, out: &mut Vec<LoggedEvent>) {
        let now = self.now;
        let late = Duration::from_nanos(u64::from(at_deadline));
        let over = |at: &Position, time: Duration, lines: u64| {
            at.is_before(now.uptime, time.saturating_sub(late)) || now.line - at.line > lines
        };
        if self
            .broken
            .as_ref()
            .is_some_and(|pending| over(&pending.at, SILENCE, BROKEN_MESSAGE_LINES))
        {
            out.extend(self.broken.take().and_then(BrokenMessage::finish));
        }
        if self.broken_kill.as_ref().is_some_and(|pending| over(&pending.at, SILENCE, 2)) {
            self.finish_broken_kill(out);
        }
        self.requested.take_if(|(_, at)| over(at, SILENCE, 2));
        self.named.take_if(|named| over(&named.at, SILENCE, 2));
        let damaged = self.damaged.take_if(|page| over(&page.at, SILENCE, LOSS_LINES));
        out.extend(damaged.map(|page| page.finish(None)));
        for lost in &mut self.lost {
            if over(&lost.at, SILENCE, BROKEN_MESSAGE_LINES) {
                out.extend(lost.release());
            }
        }
        self.lost.retain(|lost| !over(&lost.at, REPETITION, LOSS_LINES));
        self.pending_victim.take_if(|pending| over(&pending.at, LONGEST_WAIT, SILENT_LINES));
        let gone = |trace: &mut Trace| {
            over(&trace.last, SILENCE, SILENT_LINES)
                || over(&trace.opened, LONGEST_WAIT, LONGEST_WAIT_LINES)
        };
        for trace in self.traces.extract_if(.., gone).collect::<Vec<_>>() {
            self.finish_trace(&trace, out);
        }
        while self.hung.front().is_some_and(|pending| over(&pending.at, SILENCE, HUNG_TASK_LINES)) {
            out.extend(self.hung.pop_front().map(|pending| pending.finish(None)));
        }
        if self
            .pending_killer
            .as_ref()
            .is_some_and(|pending| over(&pending.at, SILENCE, SILENT_LINES))
        {
            self.release_killer(out);
        }
    }
}

impl PendingHungTask {
    fn finish(self, lock: Option<tasks::Lock<'_>>) -> LoggedEvent {
        let (owner_pid, owner_comm) = match lock {
            Some(tasks::Lock::Owner { pid, comm }) => (Some(pid), Some(comm.to_owned())),
            Some(tasks::Lock::Unknown) | None => (None, None),
        };
        self.anchor.event(KernelEvent::HungTask {
            pid: self.pid,
            comm: self.comm,
            seconds: self.seconds,
            owner_pid,
            owner_comm,
        })
    }
}

impl BrokenMessage {
    fn new(line: &KernelLine<'_>, at: Position, event: Option<KernelEvent>) -> Self {
        Self {
            anchor: Anchor::of(line),
            at,
            caller: line.caller.map(str::to_owned),
            text: line.text.to_owned(),
            event,
        }
    }

    fn finish(self) -> Option<LoggedEvent> {
        self.event.map(|event| self.anchor.event(event))
    }
}

/// Whether a line begins a message of another part of the kernel.
fn is_other_message(text: &str) -> bool {
    oom::parse(text).is_some()
        || text.starts_with("INFO: task ")
        || memory::allocation_failure(text).is_some_and(|failure| failure.comm.is_some())
}

fn of_one_line(text: &str) -> Option<KernelEvent> {
    memory::cma(text)
        .or_else(|| memory::nvmap(text))
        .or_else(|| tasks::soft_lockup(text))
        .or_else(|| tasks::rcu_stall(text))
}

/// The text up to [`LONGEST_TEXT`].
fn cut(text: &str) -> &str {
    let ends = (0..=LONGEST_TEXT.min(text.len())).rev();
    ends.filter_map(|end| text.get(..end)).next().unwrap_or_default()
}

fn remember(ring: &mut VecDeque<Remembered>, entry: Remembered) {
    if ring.len() >= MOST_REMEMBERED {
        ring.pop_front();
    }
    ring.push_back(entry);
}
