//! What killed a process of the family: each such thing with what proves it.

use std::cmp::Ordering;
use std::time::Duration;

use super::{Circumstances, Relative};
use crate::engines::{LastWords, Reason};
use crate::model::{
    DeathProof, Event, EventKind, ExitStatus, KernelEvent, KilledWorker, Killer, KillerDaemon,
    Moment, RayKill, signal_name,
};

/// The kernel's clock of start times counts hundredths of a second; wall clocks are set.
const SLACK: Duration = Duration::from_secs(2);

/// Events of a death may be reported this long after it.
const REPORTED_WITHIN: Duration = Duration::from_secs(30);

/// An engine that was asked to end longer after a kill had gone on without that worker. Most end
/// within seconds of a worker's loss, and a stop takes up to half a minute with the usual grace
/// periods. Those that hang until a watchdog ends them are not asked to end.
const FOLLOWS_WITHIN: Duration = Duration::from_secs(60);

/// Clock ticks a second in `/proc`, on every architecture.
const TICKS: u64 = 100;

pub(super) const SIGKILL: i32 = 9;
pub(super) const SIGTERM: i32 = 15;

/// Something that killed one of them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct KillEvidence {
    /// When, on the uptime clock.
    pub(super) at: Option<Duration>,
    pub(super) killer: Killer,
    pub(super) proof: DeathProof,
    /// Whom, where it is a process.
    pub(super) worker: Option<KilledWorker>,
    /// Whether it names the killer, and not only the exit status.
    pub(super) is_certain: bool,
}

impl KillEvidence {
    /// The earliest first, those without a time last; who says more first.
    pub(super) fn order(one: &Self, other: &Self) -> Ordering {
        let key = |hit: &Self| (hit.at.is_none(), hit.at, !hit.is_certain);
        key(one).cmp(&key(other)).then_with(|| {
            let pid = |hit: &Self| hit.worker.as_ref().and_then(|worker| worker.pid);
            let rest = |hit: &Self| (pid(hit), hit.killer.name());
            rest(one).cmp(&rest(other))
        })
    }
}

/// Whether a process brings that signal upon itself.
pub(super) fn is_own_fault(signal: i32) -> bool {
    // SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGXCPU, SIGXFSZ, SIGSYS.
    matches!(signal, 4..=8 | 11 | 24 | 25 | 31)
}

/// Whether a person ends a program with that signal: SIGHUP of a terminal, Ctrl-C, `kill`.
pub(super) fn is_request(signal: i32) -> bool {
    // SIGHUP, SIGINT.
    matches!(signal, 1 | 2 | SIGTERM)
}

/// All of them, in no order.
pub(super) fn of(
    death: &Circumstances<'_>,
    ended: Moment,
    words: &[(String, LastWords)],
) -> Vec<KillEvidence> {
    let mut hits = Vec::new();
    let events = death.events.iter().filter_map(|event| of_event(death, ended, event));
    hits.extend(events);
    hits.extend(of_own_stops(death, ended));
    hits.extend(death.family.iter().filter_map(|relative| of_status(death, relative)));
    let requested = requested_at(death, ended, words, &hits);
    let ray_kills = death.ray_kills.iter();
    hits.extend(ray_kills.filter_map(|kill| of_raylet(death, ended, kill, requested)));
    hits.extend(of_counters(death, &hits));
    let has_workers = hits.iter().any(|hit| hit.worker.is_some());
    if !has_workers {
        hits.extend(words.iter().find_map(|(line, words)| of_words(death, line, words)));
    }
    hits.extend(of_ray(death, words, &hits));
    hits
}

/// A kill of Ray's memory monitor, which only log lines show: those count where something else
/// shows that the engine failed.
fn of_ray(
    death: &Circumstances<'_>,
    words: &[(String, LastWords)],
    hits: &[KillEvidence],
) -> Option<KillEvidence> {
    let is = |wanted: Reason| words.iter().find(|(_, words)| words.reason() == wanted);
    let (line, _) = is(Reason::RayMemoryMonitor)?;
    let has_code = matches!(death.exit, ExitStatus::Code { code: 1.. } | ExitStatus::Signal { .. });
    (has_code || !hits.is_empty() || is(Reason::GaveUp).is_some()).then(|| KillEvidence {
        at: None,
        killer: Killer::UserspaceOom { daemon: KillerDaemon::Ray },
        proof: DeathProof::LogLine { line: line.clone() },
        worker: None,
        is_certain: false,
    })
}

/// When it was asked to end, on the uptime clock: by a known sender, by this program, or, as far as
/// can be known, by hand.
fn requested_at(
    death: &Circumstances<'_>,
    ended: Moment,
    words: &[(String, LastWords)],
    hits: &[KillEvidence],
) -> Option<Duration> {
    let is_own = |hit: &&KillEvidence| matches!(hit.killer, Killer::Umawarden { .. });
    let own = hits.iter().filter(is_own).filter_map(|hit| hit.at);
    let asked = death.asked.as_ref().map(|asked| asked.at.min(ended.uptime));
    let by_hand = || {
        // An engine that handles the signal ends with 0.
        let is_orderly = death.exit.is_success() && words.is_empty();
        let is_asked = is_orderly || death.exit.signal().is_some_and(is_request);
        (!death.is_supervised && is_asked).then_some(ended.uptime)
    };
    own.chain(asked).min().or_else(by_hand)
}

/// A kill of Ray's memory monitor, by the log of the raylet. The engine's user can write that log,
/// so it counts only for a process that has ended, and not in another way. Ray sends SIGKILL.
/// `requested`: when the engine was asked to end. Ray starts killed workers anew, so that an engine
/// may go on.
fn of_raylet(
    death: &Circumstances<'_>,
    ended: Moment,
    kill: &RayKill,
    requested: Option<Duration>,
) -> Option<KillEvidence> {
    let went_on = requested.map(|requested| requested.saturating_sub(kill.ended_at));
    if went_on.is_some_and(|went_on| went_on > FOLLOWS_WITHIN) {
        return None;
    }
    let relative = death.family.iter().find(|relative| relative.id == kill.id);
    let status = relative.map_or(ExitStatus::Unknown, |relative| relative.status);
    let is_killed = match status {
        ExitStatus::Unknown => relative.is_none_or(|relative| !relative.is_left),
        ExitStatus::Signal { signal } => signal == SIGKILL,
        ExitStatus::Code { .. } => false,
    };
    // A scan notices it up to a second after it has ended.
    let is_after_end = kill.ended_at > ended.uptime + SLACK;
    let at = if is_after_end { kill.ended_at } else { kill.ended_at.min(ended.uptime) };
    let pid = kill.id.pid;
    is_killed.then(|| KillEvidence {
        at: Some(at),
        killer: Killer::UserspaceOom { daemon: KillerDaemon::Ray },
        proof: DeathProof::RayletLine { pid, line: super::shown(&kill.line) },
        worker: Some(KilledWorker {
            pid: Some(pid),
            comm: kill.comm.to_string(),
            status: ExitStatus::Signal { signal: SIGKILL },
            seconds_before: None,
        }),
        is_certain: false,
    })
}

/// The uptime at that wall time, as the clock goes when it ended.
fn uptime(event: &Event, ended: Moment) -> Option<Duration> {
    let before = ended.utc.duration_since(event.utc?);
    match Duration::try_from(before) {
        Ok(before) => Some(ended.uptime.saturating_sub(before)),
        Err(_) => Some(ended.uptime + before.unsigned_abs()),
    }
}

fn of_event(death: &Circumstances<'_>, ended: Moment, event: &Event) -> Option<KillEvidence> {
    if event.is_claimed() {
        return None;
    }
    let at = uptime(event, ended);
    let is_late = at.is_some_and(|at| at > ended.uptime + REPORTED_WITHIN);
    let is_early = death.began.zip(at).is_some_and(|(began, at)| at + SLACK < began);
    if is_late || is_early {
        return None;
    }
    let (killer, pid, comm, cgroup, container) = match &event.kind {
        EventKind::Kernel(KernelEvent::OomKill {
            pid,
            comm,
            constraint,
            memcg,
            oom_memcg,
            trigger_comm,
            driver,
            manual,
            container,
            ..
        }) => {
            let killer = Killer::KernelOom {
                constraint: *constraint,
                cgroup: oom_memcg.clone(),
                trigger: trigger_comm.clone(),
                driver: *driver,
                manual: *manual,
            };
            (killer, Some(*pid), Some(comm.as_str()), memcg.as_deref(), container.as_deref())
        }
        EventKind::Kernel(KernelEvent::UserspaceKill { by, pid, comm, memcg }) => {
            let killer = Killer::UserspaceOom { daemon: *by };
            (killer, *pid, comm.as_deref(), memcg.as_deref(), None)
        }
        _ => return None,
    };
    let fits_by = fits(death, at, pid, comm, cgroup, container)?;
    let worker = comm.map(|comm| KilledWorker {
        pid,
        comm: comm.to_owned(),
        status: ExitStatus::Signal { signal: SIGKILL },
        seconds_before: None,
    });
    let proof = DeathProof::Event { event: Box::new(event.clone()), fits_by };
    Some(KillEvidence { at, killer, proof, worker, is_certain: true })
}

/// How that kill is known to be one of the family's.
fn fits(
    death: &Circumstances<'_>,
    at: Option<Duration>,
    pid: Option<u32>,
    comm: Option<&str>,
    cgroup: Option<&str>,
    container: Option<&str>,
) -> Option<String> {
    let lived = |relative: &&Relative| {
        let started = Duration::from_millis(relative.id.start_ticks.saturating_mul(1000 / TICKS));
        let is_before = at.is_some_and(|at| at + SLACK < started);
        let is_after = at.zip(relative.ended).is_some_and(|(at, end)| at > end + REPORTED_WITHIN);
        !is_before && !is_after
    };
    if death.are_pids_global
        && let Some(pid) = pid
        && death.family.iter().any(|one| one.id.pid == pid && lived(&one))
    {
        return Some(format!("pid {pid}, which was one of its processes"));
    }
    let own_container = death.who.container.as_deref();
    if let Some((own, id)) = own_container.zip(container)
        && own == id
    {
        return Some("its container".to_owned());
    }
    let (own, path) = death.who.cgroup.as_deref().zip(cgroup)?;
    if own == "/" {
        return None;
    }
    let is_below = |path: &str, above: &str| {
        path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    match pid {
        // A whole group was killed, and all that is below it.
        None => is_below(own, path).then(|| format!("its control group is in {path}")),
        Some(_) if !is_below(path, own) => None,
        Some(_) if death.is_cgroup_own => Some(format!("its control group {own}")),
        Some(pid) => {
            let comm = comm?;
            // In a shared group only a name of its own counts: the number may be of another
            // process.
            let is_its = !death.are_pids_global
                && death.family.iter().any(|one| *one.comm == *comm && lived(&one));
            is_its.then(|| format!("the name {comm} of pid {pid} in its control group {own}"))
        }
    }
}

fn of_own_stops(death: &Circumstances<'_>, ended: Moment) -> Vec<KillEvidence> {
    let of_family = |stop: &&super::OwnStop| {
        let is_one = |relative: &Relative| stop.processes.contains(&relative.id);
        let server = death.who.server.is_some_and(|server| stop.processes.contains(&server));
        // A stop that left the server out may be the answer to the server's end.
        let slack = if server { SLACK } else { Duration::ZERO };
        let in_time = stop.at.uptime <= ended.uptime + slack;
        in_time && (server || death.family.iter().any(is_one))
    };
    let hit = |stop: &super::OwnStop| KillEvidence {
        at: Some(stop.at.uptime),
        killer: Killer::Umawarden { decision: stop.decision, rule: stop.rule.clone() },
        proof: DeathProof::Decision { decision: stop.decision, acted: Some(stop.at.utc) },
        worker: None,
        is_certain: !follows_kill(death, stop),
    };
    death.own_stops.iter().filter(of_family).map(hit).collect()
}

/// Whether it stopped what was left after another one had killed a worker: a rank whose worker is
/// killed is lost on all nodes, and the rest of it is stopped a second later.
fn follows_kill(death: &Circumstances<'_>, stop: &super::OwnStop) -> bool {
    let was_killed = |relative: &Relative| {
        let before = relative.noticed.and_then(|at| stop.at.uptime.checked_sub(at));
        of_status(death, relative).is_some()
            && !stop.processes.contains(&relative.id)
            && before.is_some_and(|before| before <= FOLLOWS_WITHIN)
    };
    (stop.is_for_lost_rank || !stop.is_for_start) && death.family.iter().any(was_killed)
}

/// A process of it that ended by a signal.
fn of_status(death: &Circumstances<'_>, relative: &Relative) -> Option<KillEvidence> {
    let ExitStatus::Signal { signal } = relative.status else { return None };
    let is_server = death.who.server == Some(relative.id);
    // Those who end their children ask them with SIGTERM and its like.
    let is_killed = signal == SIGKILL || is_own_fault(signal);
    if !is_killed || is_server {
        return None;
    }
    let killer = if is_own_fault(signal) {
        let (name, comm, pid) = (signal_name(signal), &relative.comm, relative.id);
        Killer::Itself { reason: Some(format!("{comm} (pid {pid}) ended by {name}")) }
    } else {
        Killer::Signal { signal, sender: None }
    };
    let (pid, comm) = (relative.id.pid, relative.comm.to_string());
    let status = relative.status;
    let worker = KilledWorker { pid: Some(pid), comm: comm.clone(), status, seconds_before: None };
    let reported_by = relative.reported_by.to_owned();
    Some(KillEvidence {
        at: relative.ended,
        killer,
        proof: DeathProof::Process { pid, comm, status, reported_by },
        worker: Some(worker),
        is_certain: false,
    })
}

/// Counters that only a kill raises, where no event reports it.
fn of_counters(death: &Circumstances<'_>, hits: &[KillEvidence]) -> Vec<KillEvidence> {
    if hits.iter().any(|hit| matches!(hit.killer, Killer::KernelOom { .. })) {
        return Vec::new();
    }
    let hit = |proof| KillEvidence {
        at: None,
        killer: Killer::KernelOom {
            constraint: None,
            cgroup: None,
            trigger: None,
            driver: false,
            manual: false,
        },
        proof,
        worker: None,
        is_certain: true,
    };
    let counted = death.oom_kills.filter(|kills| *kills > 0 && death.is_cgroup_own).map(|by| {
        hit(DeathProof::Counter { name: "oom_kill of its control group".to_owned(), by })
    });
    let docker = death.docker_oom_killed.filter(|killed| *killed);
    let says = "OOMKilled".to_owned();
    let docker = docker.map(|_| match death.who.pod {
        Some(_) => hit(DeathProof::Cri { says }),
        None => hit(DeathProof::Docker { says }),
    });
    counted.into_iter().chain(docker).collect()
}

/// What the engine says of a process of it that was killed.
fn of_words(death: &Circumstances<'_>, line: &str, words: &LastWords) -> Option<KillEvidence> {
    let LastWords::WorkerDied { worker, pid, status } = words else { return None };
    // In a container it counts its processes itself.
    let pid = pid.filter(|_| death.who.container.is_none());
    let ExitStatus::Signal { signal } = *status else { return None };
    let killer = if is_own_fault(signal) {
        Killer::Itself { reason: Some(line.to_owned()) }
    } else {
        Killer::Signal { signal, sender: None }
    };
    let worker = KilledWorker { pid, comm: worker.clone(), status: *status, seconds_before: None };
    Some(KillEvidence {
        at: None,
        killer,
        proof: DeathProof::LogLine { line: line.to_owned() },
        worker: Some(worker),
        is_certain: false,
    })
}
