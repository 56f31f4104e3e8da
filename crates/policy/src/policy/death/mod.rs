//! Explains a death from its processes, the exit status of its head, and the events of the kernel
//! log and others around that time.
//!
//! Exit codes mislead: `vllm serve` ends with 0 when its EngineCore is killed, and SGLang with 137
//! though only its scheduler was. So the head's own status counts least: what the kernel says
//! of any process of the family counts most, then the exits of its processes.

mod advice;
mod hits;
mod observed;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use crate::engines::{LastWords, Reason, RequestTexts, last_words};
use crate::model::{
    DeathMemory, DeathProof, DeathReport, Deceased, DecisionId, EnginePhase, Event, ExitStatus,
    KilledWorker, Killer, KillerDaemon, LastHealth, Moment, ProcessId, RankDeaths, RayKill, RuleId,
    Survivor, signal_name,
};
use hits::KillEvidence;
pub(super) use observed::{Kills, ObservedDeath, REPORT_AFTER, memory, own_bytes};

/// A worker that was killed longer before the end is not what ended it: a watchdog of NCCL takes
/// ten minutes.
const CAUSES_WITHIN: Duration = Duration::from_secs(15 * 60);

/// So much of a log is read, from its end.
const MOST_LINES: usize = 500;

/// Longer lines of it are cut for people.
const LONGEST_LINE_CHARS: usize = 240;

/// Last lines of its log in a report.
const LAST_LINES: usize = 10;

/// Most proofs, workers and orphans in a report.
const MAX_LISTED: usize = 32;

/// One process that belonged to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relative {
    /// Its number and start.
    pub id: ProcessId,
    /// Its command name, as in `/proc/PID/comm`.
    pub comm: Arc<str>,
    /// When it ended, on the uptime clock, where that was seen.
    pub ended: Option<Duration>,
    /// When its end was noticed. The order of those noticed together is not known.
    pub noticed: Option<Duration>,
    /// How it ended, where that was seen.
    pub status: ExitStatus,
    /// The source of the status: `the kernel`, `its parent`.
    pub reported_by: &'static str,
    /// Whether it is still there after the head's end.
    pub is_left: bool,
    /// Its memory when last sampled.
    pub bytes: Option<u64>,
}

/// An act of this program that ended engines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnStop {
    /// Whether it was stopped so that another engine can start.
    pub is_for_start: bool,
    /// Whether it was stopped since it had lost a rank.
    pub is_for_lost_rank: bool,
    /// The id of the decision, if it is known.
    pub decision: Option<DecisionId>,
    /// The rule that made it.
    pub rule: Option<RuleId>,
    /// When it was carried out.
    pub at: Moment,
    /// Whom it ended.
    pub processes: Vec<ProcessId>,
}

/// A request to end: a signal that was passed on, `docker stop`, `systemctl stop`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndRequest {
    /// Number of the signal; SIGTERM where the signal is not known.
    pub signal: i32,
    /// The sender of the signal, in words.
    pub sender: String,
    /// When, on the uptime clock.
    pub at: Duration,
}

/// The ends of the other ranks of an engine, by the report on the end of this one.
pub type RanksOf<'a> = &'a dyn Fn(&DeathReport) -> Option<RankDeaths>;

/// All that was seen of a death.
#[derive(Clone, Default)]
pub struct Circumstances<'a> {
    /// The engine or command that ended.
    pub who: Deceased,
    /// What its head ended with.
    pub exit: ExitStatus,
    /// The exit status is unavailable: it is no child of ours, and no supervisor reports it.
    pub is_exit_unreported: bool,
    /// When it began, on the uptime clock.
    pub began: Option<Duration>,
    /// Where in its life it was.
    pub phase: Option<EnginePhase>,
    /// Every process that is known to have belonged to it, the head too.
    pub family: &'a [Relative],
    /// Events of the kernel log and its like around that time.
    pub events: &'a [Event],
    /// The end of its own log, the newest line last.
    pub log: &'a [String],
    /// Which of them this program has ended.
    pub own_stops: &'a [OwnStop],
    /// Which of them Ray's memory monitor has killed, by the log of their raylet.
    pub ray_kills: &'a [RayKill],
    /// The sender of a stop request, if there was one.
    pub asked: Option<EndRequest>,
    /// Whether something runs it that stops it for reasons of its own: a container runtime,
    /// systemd, `umawarden launch`.
    pub is_supervised: bool,
    /// Whether memory ran short shortly before its end, so that an OOM killer of user space, whose
    /// journal is not read, may have ended it. That memory is short and was so for long shows
    /// nothing.
    pub has_run_short: bool,
    /// By how much `oom_kill` of its own control group rose while it lived.
    pub oom_kills: Option<u64>,
    /// Docker's `State.OOMKilled`; of a pod's container, the reason `OOMKilled` of the CRI.
    pub docker_oom_killed: Option<bool>,
    /// Whether its whole pod was stopped.
    pub is_pod_stopped: bool,
    /// Whether its control group holds nothing else: a container's, a service's.
    pub is_cgroup_own: bool,
    /// Whether its processes' numbers are those of the kernel log: not in a PID namespace of its
    /// own.
    pub are_pids_global: bool,
    /// Whether the kernel log of that time could be read.
    pub is_kernel_log_read: bool,
    /// Memory when it died.
    pub memory: Option<DeathMemory>,
    /// Its last health check.
    pub health: Option<LastHealth>,
    /// Its ranks on other nodes, if it may have any.
    pub ranks: Option<RanksOf<'a>>,
    /// Sources that could not be read.
    pub not_known: Vec<String>,
}

/// Explains it. `ended` is when its head ended.
pub fn explain(death: &Circumstances<'_>, ended: Moment) -> DeathReport {
    let words = words(death.log);
    let mut hits = hits::of(death, ended, &words);
    hits.sort_by(KillEvidence::order);
    let cause = cause(death, ended, &hits);
    let killed_workers = killed_workers(death, ended, &hits);
    let (killer, mut proofs) = match cause {
        Some(hit) => (hit.killer.clone(), vec![hit.proof.clone()]),
        None => (without_hit(death, &words), Vec::new()),
    };
    for hit in &hits {
        if !proofs.contains(&hit.proof) {
            proofs.push(hit.proof.clone());
        }
    }
    proofs.extend(words.iter().map(|(line, _)| DeathProof::LogLine { line: line.clone() }));
    proofs.truncate(MAX_LISTED);
    let mut not_known = death.not_known.clone();
    if !death.is_kernel_log_read {
        not_known.push("the kernel log could not be read: OOM kills are not seen".to_owned());
    }
    let lived = death.began.map(|began| ended.uptime.saturating_sub(began).as_secs_f64());
    let reason = logged_reason(&killer, &words);
    let is_failure = is_failure(death, &killer, &killed_workers, &words);
    let mut report = DeathReport {
        who: death.who.clone(),
        exit: death.exit,
        ended: ended.utc,
        lived_seconds: lived,
        phase: death.phase,
        is_failure,
        killer: or_unknown(death, killer),
        proofs,
        killed_workers,
        orphans: orphans(death),
        memory: death.memory,
        health: death.health.clone(),
        last_lines: last_lines(death.log),
        ranks: None,
        cause: None,
        advice: Vec::new(),
        not_known,
    };
    report.cause = reason.map(|reason| reason.cause().to_owned());
    report.ranks = death.ranks.and_then(|ranks| ranks(&report));
    report.advice = advice::advice(&report, reason, death.is_pod_stopped);
    report
}

/// A signal without a sender while memory ran short is neither laid to a person nor to a lack of
/// memory.
fn or_unknown(death: &Circumstances<'_>, killer: Killer) -> Killer {
    match killer {
        Killer::Signal { signal: signal @ (hits::SIGKILL | hits::SIGTERM), sender: None }
            if death.has_run_short =>
        {
            let why = format!(
                "{} from an unknown process, after memory ran short: a person sent it, or an OOM \
                 killer of user space, which `journalctl -u earlyoom -u systemd-oomd` shows",
                signal_name(signal)
            );
            Killer::Unknown { why }
        }
        killer => killer,
    }
}

/// The hit that began it all: the earliest that is not too long ago.
fn cause<'h>(
    death: &Circumstances<'_>,
    ended: Moment,
    hits: &'h [KillEvidence],
) -> Option<&'h KillEvidence> {
    let is_near = |hit: &&KillEvidence| {
        hit.at.is_none_or(|at| ended.uptime.saturating_sub(at) <= CAUSES_WITHIN)
    };
    let near = hits.iter().filter(is_near);
    let certain = near.clone().find(|hit| hit.is_certain);
    // What only a process' own status shows may be what its end was asked for. A log line that
    // names a killer says more than a bare signal.
    let mut others = near.filter(|hit| !is_answer(death, ended, hit));
    let named = || others.clone().find(|hit| hit.killer.is_for_memory());
    certain.or_else(named).or_else(|| others.next())
}

/// Whether that is how one ends that was asked to, or whose head has ended before, or a stop of
/// what a killed worker had left.
fn is_answer(death: &Circumstances<'_>, ended: Moment, hit: &KillEvidence) -> bool {
    let is_after_head = hit.at.is_some_and(|at| at > ended.uptime);
    let is_asked = |asked: &EndRequest| hit.at.is_none_or(|at| at >= asked.at);
    let is_own_stop = matches!(hit.killer, Killer::Umawarden { .. });
    let is_asked = death.asked.as_ref().is_some_and(is_asked);
    !hit.is_certain && (is_after_head || is_asked || is_own_stop)
}

/// Where nothing shows what killed it.
fn without_hit(death: &Circumstances<'_>, words: &[(String, LastWords)]) -> Killer {
    if let Some(asked) = &death.asked {
        return Killer::Signal { signal: asked.signal, sender: Some(asked.sender.clone()) };
    }
    let reason = reason(words);
    let by_itself = |status: String| {
        let reason = reason.clone().unwrap_or(status);
        Killer::Itself { reason: Some(reason) }
    };
    match death.exit {
        ExitStatus::Unknown if gave_up(words) => Killer::Itself { reason },
        ExitStatus::Unknown => {
            Killer::Unknown { why: "its exit status was not observed".to_owned() }
        }
        ExitStatus::Code { code: 0 } => Killer::Itself { reason },
        _ => match death.exit.signal() {
            Some(signal) if hits::is_own_fault(signal) => by_itself(signal_name(signal)),
            // SGLang kills itself when one of its processes has died, and says so.
            Some(_) if reason.is_some() => Killer::Itself { reason },
            Some(signal @ 9) if !death.is_kernel_log_read => Killer::Unknown {
                why: format!(
                    "{}, and the kernel log, which would have an OOM kill, could not be read",
                    signal_name(signal)
                ),
            },
            Some(signal) => Killer::Signal { signal, sender: None },
            None => Killer::Itself { reason },
        },
    }
}

/// The first of its last words that explain its end best.
fn best(words: &[(String, LastWords)]) -> Option<&(String, LastWords)> {
    words.iter().min_by_key(|(_, words)| words.reason())
}

/// The reason in its log, unless something else is known to have ended it.
fn logged_reason(killer: &Killer, words: &[(String, LastWords)]) -> Option<Reason> {
    // Its own log may not show this one, if the raylet's does.
    if matches!(killer, Killer::UserspaceOom { daemon: KillerDaemon::Ray }) {
        return Some(Reason::RayMemoryMonitor);
    }
    let (_, words) = best(words)?;
    let is_known = match killer {
        Killer::Itself { .. } | Killer::Unknown { .. } => false,
        // A log that only repeats that a worker died adds nothing.
        Killer::Signal { sender: None, .. } => words.reason() >= Reason::WorkerDied,
        _ => true,
    };
    (!is_known).then(|| words.reason())
}

/// The log line that best explains an end without a killer.
fn reason(words: &[(String, LastWords)]) -> Option<String> {
    best(words).map(|(line, _)| line.clone())
}

/// What it wrote of its end, oldest first.
fn words(log: &[String]) -> Vec<(String, LastWords)> {
    let newest = &log[log.len().saturating_sub(MOST_LINES)..];
    let mut requests = RequestTexts::default();
    let own = newest.iter().filter(|line| requests.is_own(line));
    let lines = own.filter_map(|line| Some((shown(line), last_words(line)?)));
    let mut lines: Vec<_> = lines.collect();
    lines.dedup();
    lines.truncate(MAX_LISTED);
    lines
}

fn last_lines(log: &[String]) -> Vec<String> {
    log[log.len().saturating_sub(LAST_LINES)..].iter().map(|line| shown(line)).collect()
}

fn shown(line: &str) -> String {
    let plain: String = crate::parse::process::printable(line.trim().as_bytes());
    if plain.chars().count() <= LONGEST_LINE_CHARS {
        return plain;
    }
    let cut: String = plain.chars().take(LONGEST_LINE_CHARS).collect();
    format!("{cut}…")
}

fn killed_workers(
    death: &Circumstances<'_>,
    ended: Moment,
    hits: &[KillEvidence],
) -> Vec<KilledWorker> {
    let server = death.who.server.map(|server| server.pid);
    let mut killed: Vec<KilledWorker> = Vec::new();
    let pid = |hit: &KillEvidence| hit.worker.as_ref().and_then(|worker| worker.pid);
    for hit in hits.iter().filter(|hit| !is_answer(death, ended, hit)) {
        // An event has the name at the end, and its clock drifts from that of the exit status.
        let by_event = |other: &&KillEvidence| {
            other.is_certain && pid(hit).is_some() && pid(other) == pid(hit)
        };
        let hit = hits.iter().find(by_event).unwrap_or(hit);
        let Some(worker) = &hit.worker else { continue };
        let is_server = worker.pid.is_some() && worker.pid == server;
        let is_listed = killed.iter().any(|lines| match (lines.pid, worker.pid) {
            (Some(one), Some(other)) => one == other,
            // By its log's name only: it is one of those that are known by number.
            _ => true,
        });
        if is_server || is_listed || killed.len() >= MAX_LISTED {
            continue;
        }
        let is_it = |relative: &&Relative| worker.pid == Some(relative.id.pid);
        let noticed = || death.family.iter().find(is_it)?.noticed;
        let at = hit.at.or_else(noticed);
        let seconds_before = at.map(|at| ended.uptime.saturating_sub(at).as_secs());
        killed.push(KilledWorker { seconds_before, ..worker.clone() });
    }
    killed
}

fn orphans(death: &Circumstances<'_>) -> Vec<Survivor> {
    let left = death.family.iter().filter(|relative| relative.is_left);
    left.take(MAX_LISTED)
        .map(|relative| Survivor {
            id: relative.id,
            comm: relative.comm.to_string(),
            bytes: relative.bytes,
            is_killed: false,
        })
        .collect()
}

/// Whether it should not have ended like this.
fn is_failure(
    death: &Circumstances<'_>,
    killer: &Killer,
    killed: &[KilledWorker],
    words: &[(String, LastWords)],
) -> bool {
    let before_end = Some(CAUSES_WITHIN.as_secs());
    let is_near = |worker: &KilledWorker| worker.seconds_before <= before_end;
    if killer.is_for_memory() || killed.iter().any(is_near) {
        return true;
    }
    if death.asked.is_some() {
        // It was asked to end, and however it did that, it did.
        return matches!(killer, Killer::Itself { .. });
    }
    if is_ended_by_hand(death, killer) {
        return false;
    }
    let is_unknown = death.exit == ExitStatus::Unknown && death.is_exit_unreported;
    !death.exit.is_success() && !is_unknown || gave_up(words)
}

/// Whether it wrote that it ends because of a failure.
fn gave_up(words: &[(String, LastWords)]) -> bool {
    words.iter().any(|(_, words)| words.reason() == Reason::GaveUp)
}

/// Whether its owner has ended it, as far as can be known: a shell reports neither Ctrl-C nor
/// `kill`. A log line that names a reason makes `killer` something else. earlyoom sends SIGTERM
/// alone of these.
fn is_ended_by_hand(death: &Circumstances<'_>, killer: &Killer) -> bool {
    let Killer::Signal { signal, sender: None } = killer else { return false };
    let may_be_earlyoom = death.has_run_short && *signal == hits::SIGTERM;
    !death.is_supervised
        && !may_be_earlyoom
        && hits::is_request(*signal)
        && death.exit.signal() == Some(*signal)
}
