//! Log lines of daemons in user space that kill processes when memory is short.

use crate::{KernelEvent, KillerDaemon};

use super::text::{pid, whole_pid};

/// The meaning of a line.
#[derive(Debug, PartialEq)]
pub(super) enum Killer {
    /// A kill.
    Kill(KernelEvent),
    /// earlyoom: the announced kill failed.
    Failed,
}

/// Parses a line of a program.
pub(super) fn parse(identifier: &str, text: &str) -> Option<Killer> {
    match identifier.strip_suffix(".service").unwrap_or(identifier) {
        "systemd-oomd" => oomd(text),
        "earlyoom" => earlyoom(text),
        _ => None,
    }
}

/// Up to systemd 256 `Killed /path due to …`, then `Marked /path for killing due to …`.
fn oomd(text: &str) -> Option<Killer> {
    let old = text.strip_prefix("Killed ").and_then(|rest| {
        rest.split_once(" due to memory ").or_else(|| rest.split_once(" due to "))
    });
    let new = || text.strip_prefix("Marked ")?.split_once(" for killing");
    let (path, _) = old.or_else(new)?;
    path.starts_with('/').then_some(())?;
    Some(Killer::Kill(KernelEvent::UserspaceKill {
        by: KillerDaemon::SystemdOomd,
        pid: None,
        comm: None,
        memcg: Some(path.to_owned()),
    }))
}

/// `sending SIGTERM to process 1234 uid 1000 "comm": …`; before 1.3 `Killing process 1234 (comm)`,
/// `Killing process 'comm' with signal 15, pid: 1234, …`, `killing process 1234 "comm" with …`.
fn earlyoom(text: &str) -> Option<Killer> {
    if text.starts_with("kill failed: ") || text.starts_with("dryrun, not actually sending") {
        return Some(Killer::Failed);
    }
    let (victim, comm) = sending(text).or_else(|| killing(text))?;
    Some(Killer::Kill(KernelEvent::UserspaceKill {
        by: KillerDaemon::Earlyoom,
        pid: Some(victim),
        comm: Some(comm.to_owned()),
        memcg: None,
    }))
}

fn sending(text: &str) -> Option<(u32, &str)> {
    let rest = text
        .strip_prefix("sending SIGTERM to process ")
        .or_else(|| text.strip_prefix("sending SIGKILL to process "))?;
    let (victim, rest) = pid(rest)?;
    let rest = match rest.strip_prefix(" uid ") {
        Some(rest) => pid(rest)?.1,
        None => rest,
    };
    let rest = rest.strip_prefix(" \"")?;
    // Newer versions end with the victim's command line, which may quote anything.
    let rest = rest.find(", cmdline \"").and_then(|at| rest.get(..at)).unwrap_or(rest);
    let end = ["\": badness ", "\": oom_score "]
        .iter()
        .filter_map(|end| rest.rfind(end))
        .max()
        .or_else(|| rest.rfind("\":"))
        .or_else(|| rest.rfind('"'))?;
    Some((victim, rest.get(..end)?))
}

fn killing(text: &str) -> Option<(u32, &str)> {
    let rest = text.strip_prefix("Low memory! ").unwrap_or(text);
    let rest =
        rest.strip_prefix("Killing process ").or_else(|| rest.strip_prefix("killing process "))?;
    if let Some(quoted) = rest.strip_prefix('\'') {
        let (name, rest) = quoted.rsplit_once("' with signal ")?;
        let (victim, _) = pid(rest.split_once(", pid: ")?.1)?;
        return Some((victim, name));
    }
    let (victim, name) = rest.split_once(' ')?;
    let victim = whole_pid(victim)?;
    if let Some(quoted) = name.strip_prefix('"') {
        return Some((victim, quoted.rsplit_once("\" with signal ")?.0));
    }
    let name = name.strip_prefix('(').and_then(|name| name.split_once(')')).map_or(name, |n| n.0);
    Some((victim, name.trim()))
}
