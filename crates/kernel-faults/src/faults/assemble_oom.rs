//! Assembles the lines of OOM traces.

use crate::{KernelEvent, LoggedEvent};

use super::oom::{self, Killed, OomLine, Summary};
use super::trace::{Anchor, Trace};
use super::{
    BrokenMessage, EventAssembler, KernelLine, MOST_PENDING, REPETITION, Remembered,
    is_other_message, remember,
};

impl EventAssembler {
    pub(super) fn feed_oom(
        &mut self,
        message: OomLine<'_>,
        line: &KernelLine<'_>,
        out: &mut Vec<LoggedEvent>,
    ) {
        match message {
            OomLine::Invoked { comm, manual } => self.invoked(comm, manual, line, out),
            OomLine::Requested => self.requested = Some((Anchor::of(line), self.now)),
            OomLine::Summary => self.summary(line, out),
            OomLine::Killed(killed) => self.killed(killed, line, out),
            OomLine::KilledUnfinished(_) => self.killed_unfinished(line, out),
            OomLine::Intention { pid, comm, memcg } => self.intention(pid, comm, memcg, line, out),
            OomLine::AlreadyExiting { pid } => {
                let found = self.traces.iter_mut().rev().find(|trace| trace.chose(pid));
                if let Some(trace) = found {
                    trace.cancelled = true;
                    trace.last = self.now;
                }
            }
            OomLine::Reaped { pid, comm } => self.reaped(pid, comm, true, line, out),
            OomLine::Unreapable { pid, comm } => self.reaped(pid, comm, false, line, out),
            OomLine::NoVictim => out.push(Anchor::of(line).event(KernelEvent::OomNoVictim)),
            OomLine::Panic => out.push(Anchor::of(line).event(KernelEvent::OomPanic)),
            OomLine::Group { memcg } => self.note_own(line, |trace| {
                trace.group = Some(memcg.to_owned());
            }),
            OomLine::Limit { memcg, oom_memcg } => self.note_own(line, |trace| {
                trace.memcg = Some(memcg.to_owned());
                trace.oom_memcg = Some(oom_memcg.to_owned());
                trace.memcg_hint = Some(true);
            }),
            OomLine::CgroupUnfinished => {
                self.broken_cgroup = Some(BrokenMessage::new(line, self.now, None));
            }
            OomLine::Stats { oom_memcg } => self.note_own(line, |trace| {
                trace.oom_memcg = Some(oom_memcg.to_owned());
                trace.memcg_hint = Some(true);
            }),
        }
    }

    fn invoked(
        &mut self,
        comm: &str,
        manual: bool,
        line: &KernelLine<'_>,
        out: &mut Vec<LoggedEvent>,
    ) {
        let repeated = self.traces.last().is_some_and(|trace| {
            trace.last.line + 1 == self.now.line
                && trace.body_lines == 0
                && trace.trigger_comm.as_deref() == Some(comm)
                && trace.caller.as_deref() == line.caller
        });
        if repeated {
            if let Some(trace) = self.traces.last_mut() {
                trace.last = self.now;
            }
            return;
        }
        // One task runs one trace at a time.
        if line.caller.is_some() {
            let same = |trace: &mut Trace| trace.caller.as_deref() == line.caller;
            for trace in self.traces.extract_if(.., same).collect::<Vec<_>>() {
                self.finish_trace(&trace, out);
            }
        }
        let mut trace = Trace::open(line, self.now);
        trace.invoked = true;
        trace.trigger_comm = Some(comm.to_owned());
        // A worker of the kernel does what was requested.
        let request = self.requested.take_if(|_| manual || comm.starts_with("kworker/"));
        trace.manual = manual || request.is_some();
        if let Some((anchor, _)) = request {
            trace.first = anchor;
        }
        self.traces_begun += 1;
        self.other_stack = None;
        self.push_trace(trace, out);
    }

    fn push_trace(&mut self, trace: Trace, out: &mut Vec<LoggedEvent>) {
        if self.traces.len() >= MOST_PENDING {
            let oldest = self.traces.remove(0);
            self.finish_trace(&oldest, out);
        }
        self.current = Some(trace.opened.line);
        self.traces.push(trace);
    }

    /// The trace of a line without a process name.
    fn target(&self, line: &KernelLine<'_>) -> Option<usize> {
        if line.caller.is_some() {
            let same = self.traces.iter().rposition(|t| t.caller.as_deref() == line.caller);
            if same.is_some() {
                return same;
            }
        }
        let current = self.current?;
        let at = self.traces.iter().position(|trace| trace.opened.line == current)?;
        self.traces.get(at)?.admits(line.caller).then_some(at)
    }

    fn note(&mut self, line: &KernelLine<'_>, change: impl FnOnce(&mut Trace)) {
        if let Some(at) = self.target(line) {
            self.change(at, change);
        }
    }

    /// As [`Self::note`], for a line that only a trace has: after another task's stack it is the
    /// latest trace's.
    fn note_own(&mut self, line: &KernelLine<'_>, change: impl FnOnce(&mut Trace)) {
        let latest = || self.traces.iter().rposition(|trace| trace.admits(line.caller));
        if let Some(at) = self.target(line).or_else(latest) {
            self.change(at, change);
        }
    }

    fn change(&mut self, at: usize, change: impl FnOnce(&mut Trace)) {
        let now = self.now;
        if let Some(trace) = self.traces.get_mut(at) {
            trace.last = now;
            trace.body_lines = trace.body_lines.saturating_add(1);
            change(trace);
        }
    }

    /// A line that matches no other grammar: perhaps of a stack or a table.
    pub(super) fn feed_body(&mut self, line: &KernelLine<'_>) {
        if let Some((pid, comm)) = oom::stack_header(line.text) {
            self.stack_header(pid, comm, line);
        } else if self.is_other_stack(line) {
            self.mute(line);
        } else if begins_other_stack(line.text) {
            if !line.text.starts_with("task:") {
                self.other_stack = Some(None);
            }
            self.mute(line);
        } else {
            // Nothing but the kill follows the choice; other messages do not put off its deadline.
            let chosen = self.target(line).and_then(|at| self.traces.get(at));
            if !chosen.is_some_and(Trace::has_choice) {
                self.note(line, |trace| trace.body(line.text));
            }
        }
    }

    /// The next stack is not a trace's. Until it begins, frames are the trace's own, unless the
    /// same task prints both.
    pub(super) fn expect_other_stack(&mut self, whose: Option<&str>, line: &KernelLine<'_>) {
        self.other_stack = Some(whose.map(str::to_owned));
        if line.caller.is_some() {
            self.mute(line);
        }
    }

    /// Whether the expected stack begins, without the line that names its task.
    fn is_other_stack(&mut self, line: &KernelLine<'_>) -> bool {
        line.caller.is_none()
            && matches!(line.text.trim(), "Call Trace:" | "Call trace:")
            && self.other_stack.take().is_some()
    }

    /// The following frames are of another stack.
    pub(super) fn mute(&mut self, line: &KernelLine<'_>) {
        match self.target(line) {
            Some(at) if line.caller.is_some() => {
                if let Some(trace) = self.traces.get_mut(at) {
                    trace.muted = true;
                }
            }
            _ => self.current = None,
        }
    }

    fn stack_header(&mut self, pid: u32, comm: &str, line: &KernelLine<'_>) {
        if self.other_stack.as_ref().is_some_and(|whose| whose.as_deref() == Some(comm)) {
            self.other_stack = None;
            self.mute(line);
            return;
        }
        let now = self.now;
        let own = self.traces.iter_mut().rev().find(|trace| {
            trace.admits(line.caller)
                && (trace.trigger_pid == Some(pid)
                    || (trace.trigger_pid.is_none() && trace.trigger_comm.as_deref() == Some(comm)))
        });
        if let Some(trace) = own {
            trace.trigger_pid = Some(pid);
            trace.last = now;
            trace.body_lines = trace.body_lines.saturating_add(1);
            trace.muted = false;
            self.current = Some(trace.opened.line);
            self.other_stack = None;
            return;
        }
        if self.other_stack.take().is_some() {
            self.mute(line);
            return;
        }
        // Perhaps a trace whose first line was lost; its frames will show it.
        let mut trace = Trace::open(line, now);
        trace.trigger_pid = Some(pid);
        trace.trigger_comm = Some(comm.to_owned());
        if self.traces.len() < MOST_PENDING {
            self.current = Some(trace.opened.line);
            self.traces.push(trace);
        }
    }

    fn summary(&mut self, line: &KernelLine<'_>, out: &mut Vec<LoggedEvent>) {
        let summary = oom::summary(line.text);
        if let Some(summary) = &summary
            && let Some(trace) = self
                .traces
                .iter_mut()
                .find(|trace| trace.summary.as_ref().is_some_and(|(known, _)| known == summary))
        {
            trace.last = self.now;
            return;
        }
        let at = match self.best_for_summary(summary.as_ref(), line) {
            Some(at) => at,
            None => {
                self.traces_begun += 1;
                self.push_trace(Trace::open(line, self.now), out);
                self.traces.len() - 1
            }
        };
        match summary {
            Some(summary) => self.set_summary(at, summary, Anchor::of(line)),
            None => {
                let now = self.now;
                if let Some(trace) = self.traces.get_mut(at) {
                    trace.last = now;
                    trace.partial = Some((line.text.to_owned(), Anchor::of(line)));
                }
            }
        }
    }

    fn set_summary(&mut self, at: usize, summary: Summary, anchor: Anchor) {
        let already = self.killed.iter().any(|earlier| {
            earlier.pid == summary.pid
                && earlier.comm == summary.comm
                && !earlier.at.is_before(self.now.uptime, REPETITION)
                && self.now.line - earlier.at.line < super::SILENT_LINES
        });
        let now = self.now;
        if let Some(trace) = self.traces.get_mut(at) {
            trace.last = now;
            trace.killed |= already;
            trace.summary = Some((summary, anchor));
            self.current = Some(trace.opened.line);
        }
    }

    /// The open trace that an `oom-kill:` line fits best. Of equals the latest, unless an earlier
    /// one was seen since. The kernel runs one trace at a time, so the earlier one has lost its
    /// end.
    fn best_for_summary(&self, summary: Option<&Summary>, line: &KernelLine<'_>) -> Option<usize> {
        let fitting: Vec<(usize, i32)> = self
            .traces
            .iter()
            .enumerate()
            .filter_map(|(at, trace)| Some((at, trace.fits_summary(summary, line.caller)?)))
            .collect();
        let best = fitting.iter().map(|(_, score)| *score).max()?;
        let equals: Vec<usize> =
            fitting.iter().filter(|(_, score)| *score == best).map(|(at, _)| *at).collect();
        let (first, last) = (*equals.first()?, *equals.last()?);
        let latest = self.traces.get(last)?;
        let overlap = self.traces.get(first)?.last.line > latest.opened.line;
        let choice = if latest.body_lines > 0 && !overlap { last } else { first };
        // A score below 0 means that the trace contradicts the line.
        (best >= 0).then_some(choice)
    }

    /// Whether the line is a further piece of an `oom-kill:` line.
    pub(super) fn join_summary(&mut self, line: &KernelLine<'_>) -> bool {
        if is_other_message(line.text) || line.text.starts_with("NVRM: ") {
            return false;
        }
        let at = self.traces.iter().position(|trace| {
            trace.partial.as_ref().is_some_and(|(partial, _)| {
                trace.admits(line.caller) && oom::continues_summary(partial, line.text)
            })
        });
        let Some(at) = at else { return false };
        let now = self.now;
        let Some(trace) = self.traces.get_mut(at) else { return false };
        trace.last = now;
        let Some((mut partial, anchor)) = trace.partial.take() else { return false };
        partial.push_str(line.text);
        match oom::summary(&partial) {
            Some(summary) => {
                // With the whole line known, a trace that fits better may be another one.
                let better = self.best_for_summary(Some(&summary), line);
                let own = self
                    .traces
                    .get(at)
                    .and_then(|trace| trace.fits_summary(Some(&summary), line.caller));
                if own.is_some_and(|score| score >= 0) || better.is_none() {
                    self.set_summary(at, summary, anchor);
                } else if let Some(better) = better {
                    self.set_summary(better, summary, anchor);
                }
            }
            None if partial.len() < super::LONGEST_TEXT => trace.partial = Some((partial, anchor)),
            None => {}
        }
        true
    }

    fn intention(
        &mut self,
        pid: u32,
        comm: &str,
        memcg: bool,
        line: &KernelLine<'_>,
        out: &mut Vec<LoggedEvent>,
    ) {
        let fitting = self
            .traces
            .iter()
            .rposition(|trace| trace.admits(line.caller) && !trace.killed && trace.chose(pid));
        let open = fitting.or_else(|| {
            self.traces.iter().position(|trace| {
                trace.admits(line.caller)
                    && !trace.killed
                    && trace.intention.is_none()
                    && trace.summary.is_none()
                    && (trace.invoked || trace.oom_frames)
                    && trace.memcg_hint.is_none_or(|hint| hint == memcg)
            })
        });
        let at = match open {
            Some(at) => at,
            None => {
                self.push_trace(Trace::open(line, self.now), out);
                self.traces.len() - 1
            }
        };
        let now = self.now;
        if let Some(trace) = self.traces.get_mut(at) {
            trace.last = now;
            trace.intention = Some((pid, comm.to_owned(), Anchor::of(line)));
            if memcg {
                trace.memcg_hint = Some(true);
            }
            self.current = Some(trace.opened.line);
        }
    }

    fn killed(&mut self, killed: Killed<'_>, line: &KernelLine<'_>, out: &mut Vec<LoggedEvent>) {
        self.finish_broken_kill(out);
        if self.is_repeated(&killed, line.text) {
            for trace in self.traces.iter_mut().filter(|trace| trace.chose(killed.pid)) {
                trace.killed = true;
            }
            return;
        }
        let best = self.best_for_kill(&killed, line);
        self.remember_kill(killed.pid, killed.comm, line.text);
        let now = self.now;
        let event = match best.and_then(|at| self.traces.get_mut(at)) {
            Some(trace) => {
                trace.last = now;
                trace.killed = true;
                self.current = Some(trace.opened.line);
                trace.kill(killed.pid, killed.comm, Some(&killed))
            }
            None => Trace::default().kill(killed.pid, killed.comm, Some(&killed)),
        };
        out.push(Anchor::of(line).event(event));
    }

    fn best_for_kill(&self, killed: &Killed<'_>, line: &KernelLine<'_>) -> Option<usize> {
        let fitting = self.traces.iter().enumerate().filter_map(|(at, trace)| {
            Some((trace.fits_kill(killed, line.caller, self.now.line)?, at))
        });
        fitting.max().map(|(_, at)| at)
    }

    /// Whether the kill was reported already. The kernel names the first victim of a group twice,
    /// and logs that are merged from several sources repeat lines.
    fn is_repeated(&self, killed: &Killed<'_>, text: &str) -> bool {
        self.killed.iter().any(|earlier| {
            earlier.pid == killed.pid
                && earlier.comm == killed.comm
                && !earlier.at.is_before(self.now.uptime, REPETITION)
                && (earlier.text == text
                    || earlier.text.is_empty()
                    || earlier.traces_begun == self.traces_begun)
        })
    }

    fn remember_kill(&mut self, pid: u32, comm: &str, text: &str) {
        let entry = Remembered {
            pid,
            comm: comm.to_owned(),
            text: text.to_owned(),
            at: self.now,
            traces_begun: self.traces_begun,
        };
        remember(&mut self.killed, entry);
    }

    /// Whether the line is a further piece of a line about a trace's cgroup.
    pub(super) fn join_broken_cgroup(
        &mut self,
        line: &KernelLine<'_>,
        out: &mut Vec<LoggedEvent>,
    ) -> bool {
        let Some(broken) = &self.broken_cgroup else { return false };
        let close = self.now.line - broken.at.line <= super::BROKEN_MESSAGE_LINES;
        if !close || broken.at.is_before(self.now.uptime, super::SILENCE) {
            self.broken_cgroup = None;
            return false;
        }
        let other = is_other_message(line.text) || broken.caller.as_deref() != line.caller;
        let joined = format!("{}{}", broken.text, line.text);
        match oom::parse(&joined) {
            Some(message @ (OomLine::Group { .. } | OomLine::Limit { .. })) if !other => {
                self.broken_cgroup = None;
                self.feed_oom(message, line, out);
                true
            }
            Some(OomLine::CgroupUnfinished) if !other && joined.ends_with(oom::LIMIT) => {
                self.broken_cgroup = Some(BrokenMessage {
                    text: joined,
                    ..BrokenMessage::new(line, self.now, None)
                });
                true
            }
            _ => false,
        }
    }

    /// A kill whose line is cut: its figures may follow in the next record.
    fn killed_unfinished(&mut self, line: &KernelLine<'_>, out: &mut Vec<LoggedEvent>) {
        self.finish_broken_kill(out);
        self.broken_kill = Some(BrokenMessage::new(line, self.now, None));
    }

    /// Whether the line is the rest of a `Killed process` line.
    pub(super) fn join_broken_kill(
        &mut self,
        line: &KernelLine<'_>,
        out: &mut Vec<LoggedEvent>,
    ) -> bool {
        let Some(broken) = &self.broken_kill else { return false };
        let joined = format!("{}{}", broken.text, line.text);
        let other = is_other_message(line.text) || broken.caller.as_deref() != line.caller;
        let whole = match oom::parse(&joined) {
            Some(OomLine::Killed(killed)) if !other => Some(killed),
            _ => None,
        };
        let Some(killed) = whole else {
            self.finish_broken_kill(out);
            return false;
        };
        let anchor = broken.anchor;
        self.broken_kill = None;
        let line = KernelLine { seq: anchor.seq, utc: anchor.utc, text: &joined, ..*line };
        self.killed(killed, &line, out);
        true
    }

    pub(super) fn finish_broken_kill(&mut self, out: &mut Vec<LoggedEvent>) {
        let Some(broken) = self.broken_kill.take() else { return };
        if let Some(OomLine::KilledUnfinished(killed)) = oom::parse(&broken.text) {
            let line = KernelLine {
                seq: broken.anchor.seq,
                utc: broken.anchor.utc,
                from_kernel: true,
                caller: broken.caller.as_deref(),
                text: &broken.text,
                ..KernelLine::default()
            };
            self.killed(killed, &line, out);
        }
    }

    fn reaped(
        &mut self,
        pid: u32,
        comm: &str,
        reaped: bool,
        line: &KernelLine<'_>,
        out: &mut Vec<LoggedEvent>,
    ) {
        self.confirm(pid, out);
        let repeated = self.reaped.iter().any(|earlier| {
            earlier.pid == pid
                && earlier.comm == comm
                && earlier.text == line.text
                && !earlier.at.is_before(self.now.uptime, REPETITION)
        });
        if repeated {
            return;
        }
        let entry = Remembered {
            pid,
            comm: comm.to_owned(),
            text: line.text.to_owned(),
            at: self.now,
            traces_begun: self.traces_begun,
        };
        remember(&mut self.reaped, entry);
        let comm = comm.to_owned();
        out.push(Anchor::of(line).event(if reaped {
            KernelEvent::OomReaped { pid, comm }
        } else {
            KernelEvent::OomUnreapable { pid, comm }
        }));
    }

    /// The reaper processes victims only: the chosen process was killed.
    fn confirm(&mut self, pid: u32, out: &mut Vec<LoggedEvent>) {
        let at = self
            .traces
            .iter()
            .rposition(|trace| trace.chose(pid) && !trace.killed && !trace.cancelled);
        let Some(trace) = at.and_then(|at| self.traces.get_mut(at)) else { return };
        let chosen = trace
            .unconfirmed()
            .map(|(_, comm, anchor)| (comm.to_owned(), anchor))
            .or_else(|| trace.intention.clone().map(|(_, comm, anchor)| (comm, anchor)));
        let Some((comm, anchor)) = chosen else { return };
        out.push(anchor.event(trace.kill(pid, &comm, None)));
        trace.killed = true;
        trace.last = self.now;
        self.remember_kill(pid, &comm, "");
    }

    /// Ends a trace: a kill whose own line was lost is reported.
    pub(super) fn finish_trace(&mut self, trace: &Trace, out: &mut Vec<LoggedEvent>) {
        let Some((pid, comm, anchor)) = trace.unconfirmed() else { return };
        out.push(anchor.event(trace.kill(pid, comm, None)));
        let comm = comm.to_owned();
        self.remember_kill(pid, &comm, "");
    }
}

/// Whether a stack follows that is not an OOM trace's.
fn begins_other_stack(text: &str) -> bool {
    const STARTS: [&str; 11] = [
        "------------[ cut here",
        "WARNING: ",
        "BUG: ",
        "Oops: ",
        "Kernel panic",
        "task:",
        "rcu: ",
        "watchdog: ",
        "NMI backtrace",
        "INFO: rcu",
        "Sending NMI",
    ];
    STARTS.iter().any(|start| text.starts_with(start))
        || text.contains(": page allocation stalls for ")
}
