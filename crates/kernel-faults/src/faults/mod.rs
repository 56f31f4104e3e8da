//! The meaning of the kernel log: lines in, [`LoggedEvent`]s out.
//!
//! A new event: its grammar in the file of its subsystem, a variant of
//! [`crate::KernelEvent`], an arm in [`EventAssembler::feed`], a fixture in
//! `tests/fixtures/kernel`.
//!
//! Every matcher is anchored at the start of the message: kernel-like text that another message
//! quotes is no event.

mod assemble_oom;
mod killers;
mod nvidia;
mod oom;
mod tasks;
mod text;
mod trace;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use jiff::Timestamp;

use crate::{KernelEvent, LoggedEvent};

use killers::Killer;
use nvidia::Nvidia;
use trace::{Anchor, Position, Trace};

/// The container's id, where a control group's path names one.
pub fn container_id(cgroup: &str) -> Option<String> {
    oom::container(cgroup)
}

/// What is incomplete is held for this long after its last line.
const SILENCE: Duration = Duration::from_secs(1);
/// Nothing is held for longer than this, however busy the log. A serial console prints a trace with
/// a few thousand tasks at 10 KiB a second.
const LONGEST_HOLD: Duration = Duration::from_secs(60);
/// The same in lines, for logs without times: since the last line that belonged to it, and in all.
const SILENT_LINES: u64 = 2_000;
const LONGEST_HOLD_LINES: u64 = 20_000;
/// A hung task's stack is shorter than this.
const HUNG_TASK_LINES: u64 = 400;
/// The rest of a broken message comes at once.
const BROKEN_MESSAGE_LINES: u64 = 8;
/// Two reports of one kill are not further apart than this.
const REPETITION: Duration = Duration::from_secs(10);
/// earlyoom waits for less than this between SIGTERM and SIGKILL.
const ESCALATION: Duration = Duration::from_secs(60);
/// At most this many things of a kind are held; the oldest goes first.
const MOST_HELD: usize = 16;
/// So many kills and reaps are remembered, to know repeated lines.
const MOST_REMEMBERED: usize = 64;
/// Longer messages are cut: the kernel's own limit is 1 KiB a record (2 KiB from 6.10 on).
const LONGEST_TEXT: usize = 8 * 1024;

/// One line of the kernel log.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelLine<'a> {
    /// The record's sequence number, where the log carries one.
    pub seq: Option<u64>,
    /// Wall time, where known.
    pub utc: Option<Timestamp>,
    /// Position on any clock that does not jump, for telling silence: the record's own time, or
    /// that of its arrival. Must be the clock that [`EventAssembler::tick`] is told.
    pub uptime: Option<Duration>,
    /// Facility 0, or the identifier `kernel` in journal text. Other lines give no kernel event.
    pub from_kernel: bool,
    /// The program that wrote the line, in journal text.
    pub identifier: Option<&'a str>,
    /// The task (`T123`) or CPU (`C1`) that printed, where the log tells.
    pub caller: Option<&'a str>,
    /// The message, with bytes that do not print as `\xNN`.
    pub text: &'a str,
}

/// A hung task that waits for the line about its lock.
#[derive(Debug)]
struct HeldHungTask {
    anchor: Anchor,
    at: Position,
    pid: u32,
    comm: String,
    seconds: u64,
}

/// A driver's message that may go on in the next record.
#[derive(Debug)]
struct BrokenMessage {
    anchor: Anchor,
    at: Position,
    caller: Option<String>,
    text: String,
    event: Option<KernelEvent>,
}

/// A kill of earlyoom that its next line may take back.
#[derive(Debug)]
struct HeldKiller {
    anchor: Anchor,
    at: Position,
    pid: u32,
    event: KernelEvent,
}

/// A process that was killed or reaped.
#[derive(Debug)]
struct Remembered {
    pid: u32,
    comm: String,
    text: String,
    at: Position,
    /// How many traces had begun by then.
    traces_begun: u64,
}

/// Turns lines into events. Bounded in time and memory whatever the input.
///
/// At most one event carries the sequence number of any one record, and the same records give the
/// same events, so that `(boot_id, seq)` identifies an event for good.
#[derive(Debug, Default)]
pub struct EventAssembler {
    now: Position,
    traces: Vec<Trace>,
    /// The trace that lines without a caller belong to: its `opened.line`.
    current: Option<u64>,
    /// A stack that is no OOM trace's is about to come; whose, where known.
    other_stack: Option<Option<String>>,
    traces_begun: u64,
    /// `Killed process` lines that were cut before their figures.
    broken_kill: Option<BrokenMessage>,
    /// A line about a trace's cgroup that was cut.
    broken_cgroup: Option<BrokenMessage>,
    broken: Option<BrokenMessage>,
    hung: VecDeque<HeldHungTask>,
    killed: VecDeque<Remembered>,
    reaped: VecDeque<Remembered>,
    held_killer: Option<HeldKiller>,
    terminated: VecDeque<Remembered>,
}

impl EventAssembler {
    /// An assembler that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in the next line; complete events are appended to `out`.
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
        // A process may be called `NVRM: x`, so what the driver does not say may be another's line.
        let driver = nvidia::parse(line.text);
        if let Some(message) = driver.filter(|message| *message != Nvidia::Other) {
            self.feed_nvidia(message, line, out);
        } else if let Some(message) = oom::parse(line.text) {
            self.feed_oom(message, line, out);
        } else if let Some((comm, order)) = tasks::page_allocation_failure(line.text) {
            self.expect_other_stack(Some(comm), line);
            let kind = KernelEvent::PageAllocFailure { comm: comm.to_owned(), order };
            out.push(Anchor::of(line).event(kind));
        } else if line.text.starts_with("INFO: task ") {
            self.feed_task(line, out);
        } else if !line.text.starts_with("NVRM") {
            self.feed_body(line);
        }
    }

    fn feed_nvidia(&mut self, message: Nvidia, line: &KernelLine<'_>, out: &mut Vec<LoggedEvent>) {
        let (event, unfinished) = match message {
            Nvidia::Event(event) => (Some(event), false),
            Nvidia::Unfinished(event) => (event, true),
            Nvidia::Other => return,
        };
        if !unfinished {
            out.extend(event.map(|event| Anchor::of(line).event(event)));
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
        if alone || is_other_message(line.text) {
            return false;
        }
        for joined in joined {
            if let Some(Nvidia::Event(event)) = nvidia::parse(&joined) {
                out.push(broken.anchor.event(event));
                self.broken = None;
                return true;
            }
        }
        false
    }

    fn feed_task(&mut self, line: &KernelLine<'_>, out: &mut Vec<LoggedEvent>) {
        self.expect_other_stack(None, line);
        let about = self.hung.iter().rev().find_map(|held| {
            tasks::lock(line.text, &held.comm, held.pid).map(|lock| (held.anchor, held.at, lock))
        });
        if let Some((_, at, lock)) = about {
            let position = self.hung.iter().position(|held| held.at.line == at.line);
            let held = position.and_then(|position| self.hung.remove(position));
            out.extend(held.map(|held| held.finish(Some(lock))));
        } else if let Some(hung) = tasks::hung(line.text) {
            let repeated = self.hung.iter().any(|held| {
                held.pid == hung.pid && held.comm == hung.comm && held.seconds == hung.seconds
            });
            if repeated {
                return;
            }
            if self.hung.len() >= MOST_HELD {
                out.extend(self.hung.pop_front().map(|held| held.finish(None)));
            }
            self.hung.push_back(HeldHungTask {
                anchor: Anchor::of(line),
                at: self.now,
                pid: hung.pid,
                comm: hung.comm.to_owned(),
                seconds: hung.seconds,
            });
        }
    }

    fn feed_killer(&mut self, identifier: &str, line: &KernelLine<'_>, out: &mut Vec<LoggedEvent>) {
        let kill = match killers::parse(identifier, line.text) {
            Some(Killer::Kill(kill)) => kill,
            Some(Killer::Failed) => {
                self.held_killer = None;
                return;
            }
            None => return,
        };
        let KernelEvent::UserspaceKill { pid: Some(pid), comm, .. } = &kill else {
            out.push(Anchor::of(line).event(kill));
            return;
        };
        let pid = *pid;
        let comm = comm.clone().unwrap_or_default();
        if self.held_killer.as_ref().is_some_and(|held| held.pid == pid) {
            return;
        }
        self.release_killer(out);
        let escalated = self.terminated.iter().any(|earlier| {
            earlier.pid == pid
                && earlier.comm == comm
                && !earlier.at.is_before(self.now.uptime, ESCALATION)
        });
        if !escalated {
            let anchor = Anchor::of(line);
            self.held_killer = Some(HeldKiller { anchor, at: self.now, pid, event: kill });
        }
    }

    fn release_killer(&mut self, out: &mut Vec<LoggedEvent>) {
        let Some(held) = self.held_killer.take() else { return };
        if let KernelEvent::UserspaceKill { comm: Some(comm), .. } = &held.event {
            let entry = Remembered {
                pid: held.pid,
                comm: comm.clone(),
                text: String::new(),
                at: held.at,
                traces_begun: 0,
            };
            remember(&mut self.terminated, entry);
        }
        out.push(held.anchor.event(held.event));
    }

    /// Tells the time while no line comes. `now` is on the clock of [`KernelLine::uptime`].
    pub fn tick(&mut self, now: Duration, out: &mut Vec<LoggedEvent>) {
        self.now.uptime = Some(now);
        self.expire(true, out);
    }

    /// The log has ended: everything that is held is decided.
    pub fn finish(&mut self, out: &mut Vec<LoggedEvent>) {
        out.extend(self.broken.take().and_then(BrokenMessage::finish));
        self.finish_broken_kill(out);
        for trace in std::mem::take(&mut self.traces) {
            self.finish_trace(&trace, out);
        }
        out.extend(self.hung.drain(..).map(|held| held.finish(None)));
        self.release_killer(out);
        (self.current, self.broken_cgroup) = (None, None);
    }

    /// The first record that must be read again after a restart to rebuild what is held.
    pub fn pending_since_seq(&self) -> Option<u64> {
        let traces = self.traces.iter().map(|trace| trace.first.seq);
        let hung = self.hung.iter().map(|held| held.anchor.seq);
        let broken = self.broken.iter().map(|held| held.anchor.seq);
        let kill = self.broken_kill.iter().map(|held| held.anchor.seq);
        let killer = self.held_killer.iter().map(|held| held.anchor.seq);
        traces.chain(hung).chain(broken).chain(kill).chain(killer).flatten().min()
    }

    /// When [`Self::tick`] has something to do next, on the clock of [`KernelLine::uptime`].
    pub fn next_deadline(&self) -> Option<Duration> {
        let traces = self.traces.iter().flat_map(|trace| {
            let silent = trace.last.uptime.map(|at| at.saturating_add(SILENCE));
            let oldest = trace.opened.uptime.map(|at| at.saturating_add(LONGEST_HOLD));
            [silent, oldest]
        });
        let hung = self.hung.iter().map(|held| held.at.uptime);
        let broken = self.broken.iter().map(|held| held.at.uptime);
        let kill = self.broken_kill.iter().map(|held| held.at.uptime);
        let killer = self.held_killer.iter().map(|held| held.at.uptime);
        let rest = hung.chain(broken).chain(kill).chain(killer);
        let rest = rest.map(|at| at.map(|at| at.saturating_add(SILENCE)));
        traces.chain(rest).flatten().min()
    }

    /// Decides what has been silent for long. `at_deadline` includes the very instant of a
    /// deadline.
    fn expire(&mut self, at_deadline: bool, out: &mut Vec<LoggedEvent>) {
        let now = self.now;
        let late = Duration::from_nanos(u64::from(at_deadline));
        let over = |at: &Position, time: Duration, lines: u64| {
            at.is_before(now.uptime, time.saturating_sub(late)) || now.line - at.line > lines
        };
        if self.broken.as_ref().is_some_and(|held| over(&held.at, SILENCE, BROKEN_MESSAGE_LINES)) {
            out.extend(self.broken.take().and_then(BrokenMessage::finish));
        }
        if self.broken_kill.as_ref().is_some_and(|held| over(&held.at, SILENCE, 2)) {
            self.finish_broken_kill(out);
        }
        let gone = |trace: &mut Trace| {
            over(&trace.last, SILENCE, SILENT_LINES)
                || over(&trace.opened, LONGEST_HOLD, LONGEST_HOLD_LINES)
        };
        for trace in self.traces.extract_if(.., gone).collect::<Vec<_>>() {
            self.finish_trace(&trace, out);
        }
        while self.hung.front().is_some_and(|held| over(&held.at, SILENCE, HUNG_TASK_LINES)) {
            out.extend(self.hung.pop_front().map(|held| held.finish(None)));
        }
        if self.held_killer.as_ref().is_some_and(|held| over(&held.at, SILENCE, SILENT_LINES)) {
            self.release_killer(out);
        }
    }
}

impl HeldHungTask {
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

/// Whether a line begins a message that some other part of the kernel says.
fn is_other_message(text: &str) -> bool {
    oom::parse(text).is_some()
        || text.starts_with("INFO: task ")
        || tasks::page_allocation_failure(text).is_some()
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
