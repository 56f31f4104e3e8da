//! Log lines of daemons in user space that kill processes when memory is short.

use crate::{KernelEvent, KillerDaemon};

use super::text::{pid, whole_pid};

/// The meaning of a line.
#[derive(Debug, PartialEq)]
pub(super) enum Killer {
    /// The kill of a process or of a cgroup, which this line alone reports.
    Kill(KernelEvent),
    /// The process or cgroup that is killed next, or a part of that fact.
    Victim(Victim),
    /// The kill of the last named victim.
    KillOfVictim(KillerDaemon),
    /// The announced kill failed.
    Failed,
}

/// A victim that was named before its kill.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Victim {
    pub pid: Option<u32>,
    pub comm: Option<String>,
    pub memcg: Option<String>,
}

impl Victim {
    /// Takes the facts of a later line: of the same process, or of a cgroup.
    pub(super) fn add(&mut self, later: Self) {
        self.pid = later.pid.or(self.pid.filter(|_| later.memcg.is_none()));
        self.comm = later.comm.or(self.comm.take().filter(|_| later.memcg.is_none()));
        self.memcg = later.memcg;
    }

    /// Its kill; `None`: it is not known.
    pub(super) fn kill(self, by: KillerDaemon) -> Option<KernelEvent> {
        let Self { pid, comm, memcg } = self;
        let is_known = pid.is_some() || memcg.is_some();
        is_known.then_some(KernelEvent::UserspaceKill { by, pid, comm, memcg })
    }
}

/// The mount point of cgroups, in the paths of some daemons.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Parses a line of a program.
pub(super) fn parse(identifier: &str, text: &str) -> Option<Killer> {
    match identifier.strip_suffix(".service").unwrap_or(identifier) {
        "systemd-oomd" => systemd_oomd(text),
        "earlyoom" => earlyoom(text),
        "nohang" | "nohang-desktop" => nohang(text.trim()),
        "oomd" => oomd(text),
        TALOS => talos(text),
        _ => None,
    }
}

/// Up to systemd 256 `Killed /path due to …`, then `Marked /path for killing due to …`.
fn systemd_oomd(text: &str) -> Option<Killer> {
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

/// `Process with highest badness …` and `  PID: 1234, Name: comm, badness: 572`; `Victim status …`
/// and `  Name: comm` and `  PID: 1234`, or both in one line. `  Sending SIGTERM to the victim`.
fn nohang(text: &str) -> Option<Killer> {
    if text.starts_with("Selected process died") || text.starts_with("Cannot send a signal") {
        return Some(Killer::Failed);
    }
    if text.starts_with("Sending SIG") {
        let is_kill = text.contains(" to the victim");
        return is_kill.then_some(Killer::KillOfVictim(KillerDaemon::Nohang));
    }
    if let Some(comm) = text.strip_prefix("Name:") {
        let comm = Some(comm.trim().to_owned());
        return Some(Killer::Victim(Victim { comm, ..Victim::default() }));
    }
    let (victim, rest) = pid(text.strip_prefix("PID:")?.trim_start())?;
    let named = rest.strip_prefix(", Name: ").or_else(|| rest.strip_prefix(", name: "));
    let end = |rest: &str| rest.rfind(", badness: ").or_else(|| rest.rfind(", state: "));
    let comm = named.and_then(|rest| rest.get(..end(rest)?)).map(str::to_owned);
    Some(Killer::Victim(Victim { pid: Some(victim), comm, memcg: None }))
}

/// `[file:line] Trying to kill /path`, then `[file:line] Killed 4: …`, or at least a line with
/// `ruleset:[…]` and `killer:…`, which is `killer:(dry)…` where nothing is killed.
fn oomd(text: &str) -> Option<Killer> {
    let place = text.strip_prefix('[').and_then(|rest| rest.split_once("] "));
    let text = place.map_or(text, |(_, text)| text);
    if let Some(path) = text.strip_prefix("Trying to kill ") {
        let path = path.split_once(" with cgroup.").map_or(path, |(path, _)| path);
        let memcg = Some(cgroup(path)?);
        return Some(Killer::Victim(Victim { memcg, ..Victim::default() }));
    }
    let number = text.strip_prefix("Killed ").and_then(|rest| rest.split_once(':'));
    let killed = number.is_some_and(|(number, _)| whole_pid(number).is_some_and(|n| n > 0));
    let reported =
        text.contains(" ruleset:[") && text.contains("killer:") && !text.contains("killer:(dry)");
    (killed || reported).then_some(Killer::KillOfVictim(KillerDaemon::Oomd))
}

/// What a kernel log of Talos has instead of an identifier. Any container with root may write it.
pub(crate) const TALOS: &str = "[talos]";

/// `[talos] Sending SIGKILL to cgroup {…, "cgroup": "/sys/fs/cgroup/…"}`.
fn talos(text: &str) -> Option<Killer> {
    let fields = text.strip_prefix("[talos] Sending SIGKILL to cgroup ")?;
    let (_, path) = fields.split_once("\"cgroup\": \"")?;
    let memcg = Some(cgroup(path.split_once('"')?.0)?);
    let victim = Victim { memcg, ..Victim::default() };
    victim.kill(KillerDaemon::Talos).map(Killer::Kill)
}

/// The path below the mount point.
fn cgroup(path: &str) -> Option<String> {
    let below = path.strip_prefix(CGROUPS).unwrap_or(path);
    below.starts_with('/').then(|| below.to_owned())
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
