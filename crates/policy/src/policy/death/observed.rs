//! The death of an engine that this program observed without being its parent: recent kills, the
//! memory of its processes, and its supervisor's record.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use promql_rules::store::SeriesStore;

use super::hits::{SIGTERM, is_own_fault};
use super::{Circumstances, EndRequest, OwnStop, Relative, explain};
use crate::model::{
    Action, DeathMemory, DeathReport, Deceased, DecisionId, DecisionRecord, EngineHealth,
    EnginePhase, EngineProcess, EngineSeen, Event, EventKind, Evidence, ExitStatus, KernelEvent,
    LastHealth, Mode, Moment, OnRequest, Orphan, Outcome, ProcessEnd, ProcessId, Reading,
    Supervisor, Target, Workload, WorkloadEnd, WorkloadLog,
};
use crate::parse::process::{system_units, user_unit};
use crate::policy::Context;

/// Kills, and own stops, that are remembered.
const MOST_KILLS: usize = 64;

/// A trace in the kernel log may end shortly after its victim does.
pub(in crate::policy) const REPORT_AFTER: Duration = Duration::from_millis(500);

/// A stop waits at most six seconds for killed processes to end.
const STOP_REPORTS_WITHIN: Duration = Duration::from_secs(7);

/// A process that ended at most this long before its server counts as a possible cause. Short,
/// because servers end worker processes during normal work.
const ENDED_BEFORE: Duration = Duration::from_secs(10);

/// A kill or stop of one of its processes at most this long before its end explains the end.
const KILLED_BEFORE_SECONDS: i64 = 60;

/// An engine that an OOM killer of user space has asked to end takes so long. A guess.
const SHORT_BEFORE: Duration = Duration::from_secs(10);

/// An OOM killer of user space acts within this time after memory ran short. It reads memory at
/// least once a second, and may kill a few others first, since what the driver has counts for no
/// process. A guess. A node may serve for days with a twentieth of its memory: nothing there kills
/// for that.
const KILLS_WITHIN: Duration = Duration::from_secs(60);

/// Recent kills, by the kernel, by user space, and by this program.
#[derive(Debug, Default)]
pub(in crate::policy) struct Kills {
    events: VecDeque<Event>,
    /// Of this program.
    stops: VecDeque<OwnStop>,
    /// Those without an outcome yet.
    running: BTreeSet<DecisionId>,
    shortage: Option<Shortage>,
}

/// The last time in which memory was short, on the uptime clock.
#[derive(Clone, Copy, Debug)]
struct Shortage {
    /// When it began. It goes on through [`KILLS_WITHIN`] of enough memory.
    since: Duration,
    last: Duration,
}

/// Whether a decision has that value as evidence of a lost rank.
fn is_of_lost_rank(evidence: &Evidence) -> bool {
    evidence.series.starts_with("uma_engine_rank_lost{")
}

impl Kills {
    pub(in crate::policy) fn take(&mut self, events: &[Event]) {
        for event in events {
            let kills = matches!(
                event.kind,
                EventKind::Kernel(KernelEvent::OomKill { .. })
                    | EventKind::Kernel(KernelEvent::UserspaceKill { .. })
            );
            if kills && !event.is_claimed() {
                keep(&mut self.events, event.clone());
            }
        }
    }

    /// Remembers when memory is short: once an end is noticed, most of what the engine had is free.
    pub(in crate::policy) fn observe_memory(&mut self, now: Duration, store: &SeriesStore) {
        if is_memory_short(store) {
            let goes_on = |shortage: &Shortage| now.saturating_sub(shortage.last) <= KILLS_WITHIN;
            let since = self.shortage.filter(goes_on).map_or(now, |shortage| shortage.since);
            self.shortage = Some(Shortage { since, last: now });
        }
    }

    /// Whether memory ran short shortly before an end was noticed.
    fn ran_short(&self, noticed: Duration) -> bool {
        self.shortage.is_some_and(|Shortage { since, last }| {
            let is_new = noticed.checked_sub(since).is_some_and(|age| age <= KILLS_WITHIN);
            is_new && noticed.saturating_sub(last) <= SHORT_BEFORE
        })
    }

    /// Records a decision of this program to stop an engine.
    pub(in crate::policy) fn decided(&mut self, decision: &DecisionRecord) {
        let acts = decision.mode == Mode::Enforce && decision.is_act();
        if let (Action::StopEngine { engine: named, .. }, Target::Engine(engine)) =
            (&decision.action, &decision.target)
            && acts
        {
            let stop = OwnStop {
                is_for_start: named.is_some(),
                is_for_lost_rank: decision.because.iter().any(is_of_lost_rank),
                decision: Some(decision.id),
                rule: Some(decision.rule.clone()),
                at: decision.at,
                processes: engine.processes.clone(),
            };
            keep(&mut self.stops, stop);
            self.running.insert(decision.id);
            let stops = &self.stops;
            self.running.retain(|id| stops.iter().any(|stop| stop.decision == Some(*id)));
        }
    }

    /// Whether a stop of one of these processes, which has no outcome yet, may have ended them: it
    /// has reported within [`STOP_REPORTS_WITHIN`], or its signals are sent and it hangs.
    pub(in crate::policy) fn awaits_outcome(
        &self,
        waited: Duration,
        is_its: impl Fn(ProcessId) -> bool,
    ) -> bool {
        let is_running =
            |stop: &&OwnStop| stop.decision.is_some_and(|id| self.running.contains(&id));
        let mut stops = self.stops.iter().filter(is_running);
        waited < STOP_REPORTS_WITHIN
            && stops.any(|stop| stop.processes.iter().any(|process| is_its(*process)))
    }

    /// Drops stops that have ended nothing.
    pub(in crate::policy) fn observe_outcome(&mut self, outcome: &Outcome) {
        self.running.remove(&outcome.decision);
        if !outcome.may_have_ended() {
            self.stops.retain(|stop| stop.decision != Some(outcome.decision));
        }
    }

    /// Whether this program had stopped one of these processes shortly before that end, so that
    /// another engine can start.
    pub(in crate::policy) fn stopped_for_start(
        &self,
        family: &BTreeSet<ProcessId>,
        end: &WorkloadEnd,
    ) -> bool {
        let is_near = |stop: &OwnStop| {
            let ago = end.utc.map(|end| end.duration_since(stop.at.utc).as_secs());
            ago.is_some_and(|ago| (-2..=KILLED_BEFORE_SECONDS).contains(&ago))
        };
        let is_its = |stop: &OwnStop| stop.processes.iter().any(|one| family.contains(one));
        self.stops.iter().any(|stop| stop.is_for_start && is_its(stop) && is_near(stop))
    }

    /// Whether one of its processes was killed for memory shortly before that end. Podman on
    /// cgroup v1 does not report that, nor Docker for a process other than the first.
    pub(in crate::policy) fn explain(&self, target: &Workload, end: &WorkloadEnd) -> bool {
        let is_its = |cgroup: &str, container: Option<&str>| match target.supervisor {
            Supervisor::Docker | Supervisor::DockerOfUser(_) | Supervisor::Cri => {
                container == Some(&*target.id) || cgroup.contains(&*target.id)
            }
            // A user may have a unit of the same name, and below it groups of any name.
            Supervisor::Systemd => system_units(cgroup).any(|unit| *unit == *target.name),
            Supervisor::SystemdOfUser(user) => user_unit(cgroup) == Some((user, &*target.name)),
        };
        let is_near = |event: &Event| {
            let ago = end.utc.zip(event.utc).map(|(end, at)| end.duration_since(at).as_secs());
            ago.is_some_and(|ago| (-2..=KILLED_BEFORE_SECONDS).contains(&ago))
        };
        self.events.iter().filter(|event| is_near(event)).any(|event| match &event.kind {
            EventKind::Kernel(KernelEvent::OomKill { memcg, container, .. }) => {
                is_its(memcg.as_deref().unwrap_or_default(), container.as_deref())
            }
            EventKind::Kernel(KernelEvent::UserspaceKill { memcg, .. }) => {
                is_its(memcg.as_deref().unwrap_or_default(), None)
            }
            _ => false,
        })
    }
}

fn keep<T>(all: &mut VecDeque<T>, one: T) {
    if all.len() >= MOST_KILLS {
        all.pop_front();
    }
    all.push_back(one);
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes, from 0 on")]
fn bytes(reading: Reading<f64>) -> Option<u64> {
    match reading {
        Reading::Value(value) if value.is_finite() => Some(value.max(0.0) as u64),
        _ => None,
    }
}

/// Whether earlyoom would kill: by default it does at a tenth of memory and of swap, if there is
/// any.
fn is_memory_short(store: &SeriesStore) -> bool {
    let of = |name| bytes(store.latest_of(name, &[]));
    let memory = of("uma_memory_total_bytes").zip(of("uma_memory_available_bytes"));
    let swap = of("uma_swap_total_bytes").zip(of("uma_swap_free_bytes"));
    memory.is_some_and(|(total, available)| available < total / 10)
        && swap.is_none_or(|(total, free)| free <= total / 10)
}

/// Memory at this moment.
pub(in crate::policy) fn memory(context: &Context<'_>, engine: Option<&EngineSeen>) -> DeathMemory {
    let bytes = |name| bytes(context.latest(name));
    DeathMemory {
        total_bytes: bytes("uma_memory_total_bytes"),
        free_bytes: bytes("uma_memory_free_bytes"),
        available_bytes: bytes("uma_memory_available_bytes"),
        unaccounted_bytes: bytes("uma_memory_unaccounted_bytes"),
        shmem_bytes: bytes("uma_memory_shmem_bytes"),
        swap_free_bytes: bytes("uma_swap_free_bytes"),
        own_bytes: engine.map(own_bytes),
    }
}

/// What its processes hold: anonymous, shared and huge pages.
pub(in crate::policy) fn own_bytes(engine: &EngineSeen) -> u64 {
    let of = |process: &EngineProcess| {
        let kinds = [process.anon_bytes, process.shmem_bytes, process.hugetlb_bytes];
        kinds.into_iter().filter_map(Reading::value).fold(0, u64::saturating_add)
    };
    engine.processes.iter().map(of).fold(0, u64::saturating_add)
}

/// One death, as far as it is known.
#[derive(Debug)]
pub(in crate::policy) struct ObservedDeath<'a> {
    /// The container or the unit, where there is one.
    pub(in crate::policy) held: Option<&'a Workload>,
    /// Its supervisor's record of the end; `None` without one.
    pub(in crate::policy) end: Option<&'a WorkloadEnd>,
    /// When it was noticed, on the uptime clock.
    pub(in crate::policy) noticed: Duration,
    /// When it began, on the uptime clock; used where the supervisor does not report its lifetime.
    pub(in crate::policy) began: Option<Duration>,
    /// How far it had come.
    pub(in crate::policy) phase: EnginePhase,
    /// What was known of its processes last.
    pub(in crate::policy) engine: Option<&'a EngineSeen>,
    /// Memory at that moment.
    pub(in crate::policy) memory: Option<DeathMemory>,
    /// Its last health check.
    pub(in crate::policy) health: Option<&'a EngineHealth>,
    /// The processes that are still there.
    pub(in crate::policy) left: &'a [Orphan],
}

impl ObservedDeath<'_> {
    pub(in crate::policy) fn report(&self, context: &Context<'_>) -> DeathReport {
        let ended = self.ended(context.at);
        let lived = self.end.and_then(|end| end.lived);
        let began = lived.map(|lived| ended.uptime.saturating_sub(lived)).or(self.began);
        let events: Vec<Event> = context.kills.events.iter().cloned().collect();
        let own_stops: Vec<OwnStop> = context.kills.stops.iter().cloned().collect();
        let family = self.family(context);
        let (log, not_known) = self.own_log(context);
        let ray_kills = self.engine.map(|engine| context.engines.ends.ray_kills_of(engine));
        let is_container = self.held.is_some_and(|held| held.supervisor.runs_containers());
        let code = self.end.and_then(|end| end.exit_code).map(|code| ExitStatus::Code { code });
        let server = self.engine.and_then(|engine| context.engines.ends.of(engine.server));
        let server = server.map(|(_, end)| end.status);
        let exit = code.or(server).unwrap_or_default();
        let circumstances = Circumstances {
            who: self.who(),
            exit,
            is_exit_unreported: self.end.is_none() && server.is_none(),
            began,
            phase: Some(self.phase),
            family: &family,
            events: &events,
            own_stops: &own_stops,
            ray_kills: ray_kills.as_deref().unwrap_or_default(),
            asked: self.asked(exit, ended),
            is_supervised: self.is_supervised(),
            has_run_short: context.kills.ran_short(self.noticed),
            docker_oom_killed: self.end.filter(|_| is_container).map(|end| end.is_oom_killed),
            is_pod_stopped: self.end.is_some_and(|end| end.is_pod_stopped),
            is_cgroup_own: self.held.is_some(),
            are_pids_global: true,
            is_kernel_log_read: context.counters.kernel_log_is_believed(),
            memory: self.memory,
            log,
            health: self.health(ended),
            ranks: Some(&|report: &DeathReport| {
                let before = report.first_worker_before();
                // When the kernel or a supervisor saw it end.
                let is_exact = before.is_zero() && (self.end.is_some() || server.is_some());
                let first = ended.uptime.saturating_sub(before);
                context.engines.rank_deaths(report, first, is_exact)
            }),
            not_known,
            ..Circumstances::default()
        };
        explain(&circumstances, ended)
    }

    /// The runtime of a container that is only claimed may have stopped it for a failed liveness
    /// probe. A user's systemd sends SIGTERM because somebody wants that, and is not queried who.
    fn is_supervised(&self) -> bool {
        let is_of_user = |held: &Workload| matches!(held.supervisor, Supervisor::SystemdOfUser(_));
        let is_claimed = |engine: &EngineSeen| engine.claimed_container.is_some();
        self.held.is_some_and(|held| !is_of_user(held)) || self.engine.is_some_and(is_claimed)
    }

    fn health(&self, ended: Moment) -> Option<LastHealth> {
        let (health, url) = (self.health?, self.engine?.health_url.as_ref()?);
        let before = ended.uptime.saturating_sub(health.asked_at);
        let (url, answer) = (Arc::clone(url), health.answer.clone());
        Some(LastHealth { url, answer, seconds_before: before.as_secs_f64() })
    }

    fn who(&self) -> Deceased {
        let engine = self.engine;
        let of = |is_container| {
            self.held.filter(|held| held.supervisor.runs_containers() == is_container)
        };
        let (container, unit) = (of(true), of(false));
        let name = engine.map(|engine| &engine.name).or(self.held.map(|held| &held.name));
        Deceased {
            name: name.cloned().unwrap_or_default(),
            engine: engine.map(|engine| engine.kind),
            server: engine.map(|engine| engine.server),
            container: container.map(|held| Arc::clone(&held.id)),
            container_name: container.map(|held| Arc::clone(&held.name)),
            pod: engine.and_then(|engine| engine.pod.clone()),
            unit: unit.map(|held| Arc::clone(&held.name)),
            user: self.held.and_then(|held| held.supervisor.user()),
            cgroup: engine.and_then(|engine| engine.cgroup.clone()),
        }
    }

    /// A stop of its supervisor. Docker and systemd do not report the signal: the one that ended it
    /// is theirs, unless a fault of its own raised that.
    fn asked(&self, exit: ExitStatus, ended: Moment) -> Option<EndRequest> {
        self.end.filter(|end| end.requested == OnRequest::Yes)?;
        let signal = exit.signal().filter(|signal| !is_own_fault(*signal)).unwrap_or(SIGTERM);
        let sender = match self.held?.supervisor {
            Supervisor::Docker => "docker stop or docker kill",
            Supervisor::DockerOfUser(_) => "its user's docker or podman, by stop or kill",
            Supervisor::Systemd | Supervisor::SystemdOfUser(_) => "systemctl",
            Supervisor::Cri => "the kubelet, by all signs: it has stopped the whole pod",
        };
        Some(EndRequest { signal, sender: sender.to_owned(), at: ended.uptime })
    }

    /// Lines of its own log, and why they are unknown.
    fn own_log<'c>(&'c self, context: &'c Context<'_>) -> (&'c [String], Vec<String>) {
        let server = self.engine.map(|engine| engine.server);
        let written = server.and_then(|server| context.engines.ends.output_of(server));
        let reported = self.end.and_then(|end| end.log.as_deref());
        let of = |log: Option<&'c WorkloadLog>| match log {
            Some(WorkloadLog::Lines(lines)) => (!lines.is_empty()).then_some(&**lines),
            Some(WorkloadLog::Unknown(_)) | None => None,
        };
        if let Some(lines) = of(reported).or_else(|| of(written)) {
            return (lines, Vec::new());
        }
        let held = self.held.map(|held| (held.supervisor, &held.name));
        let why = match (reported.or(written), held) {
            (Some(WorkloadLog::Lines(_)), _) => return (&[], Vec::new()),
            (Some(WorkloadLog::Unknown(why)), _) => format!("what it wrote itself: {why}"),
            (None, Some((Supervisor::Systemd, name))) => {
                format!("its own output: journalctl -u {name}")
            }
            (None, Some((Supervisor::SystemdOfUser(user), name))) => {
                format!("its own output: journalctl --user-unit {name} _UID={user}")
            }
            (None, _) => "its own log was not read".to_owned(),
        };
        (&[], vec![why])
    }

    /// When it ended, on both clocks.
    fn ended(&self, at: Moment) -> Moment {
        let ago = at.uptime.saturating_sub(self.noticed);
        let Some(utc) = self.end.and_then(|end| end.utc) else {
            let utc = at.utc.checked_sub(ago).unwrap_or(at.utc);
            return Moment { uptime: self.noticed, utc };
        };
        match Duration::try_from(at.utc.duration_since(utc)) {
            Ok(ago) => Moment { uptime: at.uptime.saturating_sub(ago), utc },
            Err(_) => Moment { uptime: self.noticed, utc },
        }
    }

    fn family(&self, context: &Context<'_>) -> Vec<Relative> {
        let Some(engine) = self.engine else { return Vec::new() };
        let ends = &context.engines.ends;
        let relative = |id, comm: &Arc<str>| {
            let (seen_at, end) = ends.of(id).map(|(at, end)| (*at, end)).unzip();
            Relative {
                id,
                comm: Arc::clone(comm),
                // Which of those that are seen together ended first is unknown.
                ended: seen_at.filter(|at| *at > self.noticed),
                noticed: seen_at,
                status: end.map_or(ExitStatus::Unknown, |end| end.status),
                reported_by: if end.is_some() { "the kernel" } else { "no source" },
                is_left: self.left.iter().any(|left| left.id == id),
                bytes: None,
            }
        };
        let seen = engine.processes.iter().map(|process| Relative {
            bytes: process.anon_bytes.value(),
            ..relative(process.id, &process.comm)
        });
        let is_new = |end: &&ProcessEnd| engine.processes.iter().all(|seen| seen.id != end.id);
        let before = ends.of_engine(engine.server, self.noticed.saturating_sub(ENDED_BEFORE));
        let before = before.filter(is_new).map(|end| relative(end.id, &end.comm));
        seen.chain(before).collect()
    }
}
