//! One OOM trace during the arrival of its lines.

use std::time::Duration;

use jiff::Timestamp;

use crate::{KernelEvent, LoggedEvent, OomConstraint};

use super::KernelLine;
use super::oom::{self, Cgroups, Frame, Killed, Summary};

/// The line that gives an event its time and number.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Anchor {
    pub seq: Option<u64>,
    pub utc: Option<Timestamp>,
}

impl Anchor {
    pub(super) fn of(line: &KernelLine<'_>) -> Self {
        Self { seq: line.seq, utc: line.utc }
    }

    pub(super) fn event(self, kind: KernelEvent) -> LoggedEvent {
        LoggedEvent { kind, utc: self.utc, seq: self.seq }
    }
}

/// A position in the log.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Position {
    pub line: u64,
    pub uptime: Option<Duration>,
}

impl Position {
    /// Whether more than `limit` has passed at `now`, as far as the log has times.
    pub(super) fn is_before(&self, now: Option<Duration>, limit: Duration) -> bool {
        match (self.uptime, now) {
            (Some(then), Some(now)) => now.abs_diff(then) > limit,
            _ => false,
        }
    }
}

/// The known facts of one run of the OOM killer.
#[derive(Debug, Default)]
pub(super) struct Trace {
    pub first: Anchor,
    pub opened: Position,
    pub last: Position,
    /// Lines of its body that were seen since it was opened.
    pub body_lines: u32,
    pub caller: Option<String>,
    /// Its first line was seen, rather than only a stack that may turn out to be an OOM trace's.
    pub invoked: bool,
    pub trigger_comm: Option<String>,
    pub trigger_pid: Option<u32>,
    /// A person requested it.
    pub manual: bool,
    /// Another stack of the same task follows; its frames are not of this one.
    pub muted: bool,
    pub oom_frames: bool,
    pub driver: bool,
    /// The limit that was reached, by its body: of a cgroup, or of the machine.
    pub memcg_hint: Option<bool>,
    pub oom_memcg: Option<String>,
    pub memcg: Option<String>,
    pub group: Option<String>,
    /// An `oom-kill:` line that is not whole yet.
    pub partial: Option<(String, Anchor)>,
    pub summary: Option<(Summary, Anchor)>,
    pub intention: Option<(u32, String, Anchor)>,
    pub killed: bool,
    /// The chosen process was ending already.
    pub cancelled: bool,
}

impl Trace {
    pub(super) fn open(line: &KernelLine<'_>, position: Position) -> Self {
        Self {
            first: Anchor::of(line),
            opened: position,
            last: position,
            caller: line.caller.map(str::to_owned),
            ..Self::default()
        }
    }

    /// Whether a line that is printed by `caller` can belong here.
    pub(super) fn admits(&self, caller: Option<&str>) -> bool {
        match (self.caller.as_deref(), caller) {
            (Some(own), Some(other)) => own == other,
            _ => true,
        }
    }

    pub(super) fn chose(&self, pid: u32) -> bool {
        self.summary.as_ref().is_some_and(|(summary, _)| summary.pid == pid)
            || self.intention.as_ref().is_some_and(|(chosen, _, _)| *chosen == pid)
    }

    pub(super) fn has_choice(&self) -> bool {
        self.summary.is_some() || self.intention.is_some()
    }

    /// Takes a line of the body.
    pub(super) fn body(&mut self, text: &str) {
        self.body_lines = self.body_lines.saturating_add(1);
        if text.starts_with("Mem-Info:") {
            self.memcg_hint = Some(false);
        } else if text.starts_with("memory: usage ") {
            self.memcg_hint = Some(true);
        } else if !self.muted
            && let Some(frame) = oom::frame(text)
        {
            self.frame(frame);
        }
    }

    fn frame(&mut self, frame: Frame<'_>) {
        self.driver |= frame.is_driver();
        self.oom_frames |= frame.is_oom();
        if frame.is_memcg_oom() {
            self.memcg_hint = Some(true);
        }
    }

    /// How well an `oom-kill:` line fits; `None` if it cannot belong here.
    pub(super) fn fits_summary(
        &self,
        summary: Option<&Summary>,
        caller: Option<&str>,
    ) -> Option<i32> {
        if !self.admits(caller) || self.summary.is_some() || self.partial.is_some() || self.killed {
            return None;
        }
        if !self.invoked && !self.oom_frames {
            return None;
        }
        let mut score = if self.caller.is_some() && caller.is_some() { 100 } else { 0 };
        let Some(summary) = summary else { return Some(score) };
        let memcg = summary.constraint == Some(OomConstraint::Memcg);
        score += match self.memcg_hint {
            Some(hint) if hint == memcg => 10,
            Some(_) => -50,
            None => 0,
        };
        if let (Some(own), Some(its)) = (&self.oom_memcg, &summary.oom_memcg) {
            score += if own == its { 50 } else { -50 };
        }
        if self.trigger_pid == Some(summary.pid) {
            score += 20;
        } else if self.trigger_comm.as_deref() == Some(&*summary.comm) {
            score += 5;
        }
        Some(score)
    }

    /// How well a `Killed process` line fits; `None` if it cannot belong here.
    pub(super) fn fits_kill(
        &self,
        killed: &Killed<'_>,
        caller: Option<&str>,
        line: u64,
    ) -> Option<i32> {
        if !self.admits(caller) || !(self.invoked || self.oom_frames || self.has_choice()) {
            return None;
        }
        if self.chose(killed.pid) {
            return Some(1000);
        }
        let same_caller = i32::from(self.caller.is_some() && caller.is_some()) * 100;
        if self.group.is_some() && !killed.global {
            return Some(500 + same_caller);
        }
        // Of many kills in a row the kernel prints only some traces (`oom_kill_process: N callbacks
        // suppressed`): the next kill is not this trace's, and nothing is known of it.
        if self.killed {
            return None;
        }
        if self.intention.is_some() {
            // The victim may be a child of the process that was chosen.
            return Some(200 + same_caller);
        }
        if let Some((summary, _)) = &self.summary {
            // The victim may be another thread of the process that was chosen.
            let next = self.last.line + 1 == line;
            return (next && summary.comm == killed.comm).then_some(100 + same_caller);
        }
        let agrees = match self.memcg_hint {
            Some(hint) if hint == killed.memcg => 10,
            Some(_) if killed.memcg || killed.global => return None,
            _ => 0,
        };
        let own = i32::from(self.trigger_comm.as_deref() == Some(killed.comm)) * 5;
        Some(50 + agrees + own + same_caller)
    }

    /// The kill of a process, with the facts of its trace.
    pub(super) fn kill(&self, pid: u32, comm: &str, line: Option<&Killed<'_>>) -> KernelEvent {
        let summary = self.summary.as_ref().map(|(summary, _)| summary);
        let by_cgroup = line.is_some_and(|line| line.memcg)
            || self.memcg_hint == Some(true)
            || self.oom_memcg.is_some();
        let cut = match (&self.summary, &self.partial) {
            (None, Some((text, _))) => oom::cut_summary(text),
            _ => Cgroups::default(),
        };
        let constraint = match summary {
            Some(summary) => summary.constraint,
            None => cut.constraint.or(by_cgroup.then_some(OomConstraint::Memcg)),
        };
        let of_group = !self.chose(pid) && self.group.is_some();
        let memcg = if of_group { self.group.clone() } else { None }
            .or_else(|| summary.and_then(|summary| summary.memcg.clone()))
            .or(cut.memcg)
            .or_else(|| self.memcg.clone());
        // If the machine itself ran out of memory, no cgroup limit was reached, even if one was
        // printed.
        let of_cgroup = matches!(constraint, Some(OomConstraint::Memcg) | None);
        let oom_memcg = summary
            .and_then(|summary| summary.oom_memcg.clone())
            .or(cut.oom_memcg)
            .or_else(|| self.oom_memcg.clone().filter(|_| of_cgroup));
        let container = memcg.as_deref().and_then(oom::container);
        KernelEvent::OomKill {
            pid,
            comm: comm.to_owned(),
            constraint,
            memcg,
            oom_memcg,
            trigger_comm: self.trigger_comm.clone(),
            anon_rss_bytes: line.and_then(|line| line.anon_rss_bytes),
            driver: self.driver,
            manual: self.manual,
            container,
        }
    }

    /// The kill that the trace shows although its own line was lost, and where to date it.
    pub(super) fn unconfirmed(&self) -> Option<(u32, &str, Anchor)> {
        let (summary, anchor) = self.summary.as_ref()?;
        (!self.killed && !self.cancelled).then_some((summary.pid, &*summary.comm, *anchor))
    }
}
