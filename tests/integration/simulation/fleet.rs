//! Containers and units of a simulated machine: their supervisors, the reports of those, and
//! starts. Supervisors are slow, down, silent, and answer falsely.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use umawarden::model::{
    DeferredRestart, Mode, Moment, Observation, OnRequest, OutcomeResult, RestartLimits,
    RestartReadings, StartNeed, Supervisor, Workload, WorkloadEnd, WorkloadState,
};

use super::chance::Chance;
use super::checker::Violation;
use super::engine::Supervised;
use super::machine::{Build, Cause, Machine};

/// How often each is queried.
fn interval(supervisor: Supervisor) -> Duration {
    match supervisor {
        Supervisor::Docker | Supervisor::DockerOfUser(_) | Supervisor::Cri => {
            Duration::from_secs(5)
        }
        Supervisor::Systemd | Supervisor::SystemdOfUser(_) => Duration::from_secs(1),
    }
}

/// A fault of a supervisor for a while.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Trouble {
    /// It answers with an error.
    Down,
    /// It does not answer.
    Silent,
    /// It reports the state of when that began.
    Stale,
    /// It omits half of them.
    Forgetful,
}

pub const TROUBLES: [Trouble; 4] =
    [Trouble::Down, Trouble::Silent, Trouble::Stale, Trouble::Forgetful];

pub struct Fleet {
    managed: Vec<Managed>,
    troubles: BTreeMap<Supervisor, (Trouble, Duration, Vec<DeferredRestart>)>,
    next_poll: BTreeMap<Supervisor, Duration>,
    has_changed: bool,
    chance: Chance,
    lives: u64,
}

struct Managed {
    seen: DeferredRestart,
    goal: f64,
}

impl Fleet {
    pub fn new(build: &Build, mut chance: Chance) -> Self {
        let Build { total, beat, is_calm, .. } = *build;
        let mut managed = Vec::new();
        // With samples far apart it is unknown whether memory comes or goes.
        let most = if beat <= Duration::from_secs(1) { 4 } else { 2 };
        let largest = if is_calm { 0.2 } else { 0.7 };
        for number in 0..chance.whole(u64::from(is_calm)..=most) {
            let goal = total * chance.between(0.03, largest);
            managed.push(Managed { seen: deferred_restart(number, goal, beat, &mut chance), goal });
        }
        let (troubles, next_poll) = (BTreeMap::new(), BTreeMap::new());
        Self { managed, troubles, next_poll, has_changed: false, chance, lives: 0 }
    }

    /// Their names.
    pub fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.managed.iter().map(|one| &one.seen.target.name)
    }

    /// The machine was off: everything has ended, for an unknown reason.
    pub fn boot(&mut self, at: Moment) {
        for number in 0..self.managed.len() {
            if self.is_running(number) {
                self.end(number, at, Some(255), OnRequest::Unknown);
            }
        }
        self.troubles.clear();
        self.next_poll.clear();
    }

    /// A process that has just started polls at once.
    pub fn poll_anew(&mut self) {
        self.next_poll.clear();
    }

    pub fn trouble(&mut self, supervisor: Supervisor, trouble: Trouble, until: Duration) {
        let report = self.report(supervisor);
        self.troubles.insert(supervisor, (trouble, until, report));
    }

    fn is_running(&self, number: usize) -> bool {
        matches!(self.managed[number].seen.state, WorkloadState::Running { .. })
    }

    fn end(&mut self, number: usize, at: Moment, code: Option<i32>, requested: OnRequest) {
        self.lives += 1;
        self.has_changed = true;
        let is_oom_killed = code == Some(137) && requested == OnRequest::No;
        self.managed[number].seen.state = WorkloadState::Ended(WorkloadEnd {
            mark: format!("end {} at {}", self.lives, at.utc).into(),
            utc: Some(at.utc),
            lived: None,
            exit_code: code,
            is_oom_killed: is_oom_killed && self.chance.once_in(2),
            error: None,
            requested,
            are_stops_silent: false,
            is_pod_stopped: false,
            log: None,
        });
    }

    /// Takes in the deaths on the machine. `is_watched`: the cause is observed.
    pub fn take_deaths(&mut self, machine: &mut Machine, at: Moment, is_watched: bool) {
        for death in std::mem::take(&mut machine.deaths) {
            if !self.is_running(death.supervised) {
                continue;
            }
            let (code, requested) = match death.cause {
                // Exit codes are false.
                Cause::Itself => (*self.chance.one_of(&[0, 1, 1, 134]), OnRequest::No),
                Cause::OutOfMemory => (*self.chance.one_of(&[137, 0, 1]), OnRequest::No),
                Cause::Brake => (137, *self.chance.one_of(&[OnRequest::Yes, OnRequest::No])),
                Cause::Wanted => (143, OnRequest::Yes),
            };
            let requested = if is_watched { requested } else { OnRequest::Unknown };
            self.end(death.supervised, at, Some(code), requested);
        }
    }

    /// People start and stop containers at random.
    pub fn intervene(&mut self, chance: &mut Chance, machine: &mut Machine, at: Moment) {
        if self.managed.is_empty() {
            return;
        }
        let number = chance.whole(0..=self.managed.len() as u64 - 1) as usize;
        if self.is_running(number) {
            machine.end_in(number);
        } else {
            self.begin(number, machine, at);
        }
    }

    fn begin(&mut self, number: usize, machine: &mut Machine, at: Moment) {
        self.lives += 1;
        self.has_changed = true;
        let Managed { seen, goal } = &mut self.managed[number];
        let mark = format!("life {} at {}", self.lives, at.utc).into();
        seen.state = WorkloadState::Running { mark, health: None };
        let target = &seen.target;
        let id = Some(Arc::clone(&target.id));
        let (container, unit) = match target.supervisor {
            Supervisor::Docker | Supervisor::DockerOfUser(_) | Supervisor::Cri => (id, None),
            Supervisor::Systemd | Supervisor::SystemdOfUser(_) => (None, id),
        };
        let supervised = Supervised { number, container, unit };
        machine.begin(&target.name, Some(supervised), *goal, at.uptime);
    }

    /// Starts one after that exit, as the executor does: it inspects it once more before.
    pub fn start(
        &mut self,
        target: &Workload,
        ended: &str,
        machine: &mut Machine,
        at: Moment,
    ) -> Result<OutcomeResult, Violation> {
        let not_done = |why: &str| Ok(OutcomeResult::NotDone(why.to_owned()));
        let is_it = |one: &Managed| one.seen.target == *target;
        let Some(number) = self.managed.iter().position(is_it) else {
            return not_done("it is no longer there");
        };
        let is_up = |supervised: &Supervised| supervised.number == number;
        let lives = machine
            .engines
            .iter()
            .any(|engine| engine.is_alive() && engine.supervised.as_ref().is_some_and(is_up));
        if let Some((Trouble::Down | Trouble::Silent, ..)) = self.troubles.get(&target.supervisor) {
            return Ok(OutcomeResult::Failed("its supervisor does not answer".to_owned()));
        }
        match &self.managed[number].seen.state {
            WorkloadState::Ended(end) if *end.mark != *ended => {
                not_done("it has ended again since")
            }
            WorkloadState::Ended(_) if lives => {
                let what = format!("{target} has ended, and lives");
                Err(Violation { invariant: "no container is started twice", what })
            }
            WorkloadState::Ended(_) if self.chance.once_in(8) => {
                Ok(OutcomeResult::Failed("no such device".to_owned()))
            }
            WorkloadState::Ended(_) => {
                self.begin(number, machine, at);
                Ok(OutcomeResult::Done)
            }
            _ => not_done("another program has started it"),
        }
    }

    fn report(&self, supervisor: Supervisor) -> Vec<DeferredRestart> {
        let all = self.managed.iter().map(|one| &one.seen);
        all.filter(|seen| seen.target.supervisor == supervisor).cloned().collect()
    }

    /// Reports of the supervisors that are due now.
    pub fn poll(&mut self, now: Duration, uptime: Duration, out: &mut Vec<Observation>) {
        self.troubles.retain(|_, (_, until, _)| *until > now);
        // An event may be lost; the next poll then finds the change.
        let is_notified = std::mem::take(&mut self.has_changed) && !self.chance.once_in(8);
        for supervisor in Supervisor::ALL {
            let due = self.next_poll.get(&supervisor).copied().unwrap_or_default();
            if !is_notified && due > now {
                continue;
            }
            let mut held = self.report(supervisor);
            if held.is_empty() {
                continue;
            }
            self.next_poll.insert(supervisor, now + interval(supervisor));
            let mut error = None;
            match self.troubles.get(&supervisor) {
                Some((Trouble::Silent, ..)) => continue,
                Some((Trouble::Down, ..)) => {
                    held.clear();
                    error = Some("it does not answer".into());
                }
                Some((Trouble::Stale, _, report)) => held.clone_from(report),
                Some((Trouble::Forgetful, ..)) => {
                    held.truncate(held.len() / 2);
                }
                None => {}
            }
            let ended = Vec::new();
            let readings =
                RestartReadings { supervisor, read_at: uptime, deferred: held, ended, error };
            out.push(Observation::Restarts(Box::new(readings)));
        }
    }
}

fn deferred_restart(
    number: u64,
    goal: f64,
    beat: Duration,
    chance: &mut Chance,
) -> DeferredRestart {
    let supervisor = *chance.one_of(&[Supervisor::Docker, Supervisor::Docker, Supervisor::Systemd]);
    let (name, id): (Arc<str>, Arc<str>) = match supervisor {
        Supervisor::Docker | Supervisor::DockerOfUser(_) | Supervisor::Cri => (
            format!("held-{number}").into(),
            format!("{number:a<64}").replace(|digit: char| !digit.is_ascii_hexdigit(), "0").into(),
        ),
        Supervisor::Systemd | Supervisor::SystemdOfUser(_) => {
            let name: Arc<str> = format!("held-{number}.service").into();
            (Arc::clone(&name), name)
        }
    };
    let need = match chance.whole(0..=9) {
        0..=6 => Some(goal as u64),
        7 => Some(u64::MAX >> 8),
        _ => None,
    };
    let long = beat.max(Duration::from_secs(1));
    DeferredRestart {
        target: Workload { supervisor, name, id },
        state: if chance.once_in(4) { WorkloadState::Fresh } else { began() },
        need: StartNeed {
            need_bytes: need,
            contiguous_bytes: chance.once_in(4).then_some(goal as u64 / 8),
            ..StartNeed::default()
        },
        limits: RestartLimits {
            back_off: long * *chance.one_of(&[1, 5, 20]),
            back_off_at_most: long * *chance.one_of(&[20, 60]),
            times: *chance.one_of(&[1, 3, 10]),
            per: long * *chance.one_of(&[100, 1_000]),
            give_up_after: *chance.one_of(&[1, 2, 3, 5]),
            healthy_after: long * *chance.one_of(&[5, 60]),
            ready_within: long * *chance.one_of(&[30, 300]),
        },
        mode: chance.once_in(5).then(|| *chance.one_of(&[Mode::Observe, Mode::Enforce])),
        found_by: "the simulation".into(),
        obstacle: chance.once_in(12).then(|| "its supervisor starts it itself".into()),
    }
}

/// Down for long: it was to run, and the reason is unknown.
fn began() -> WorkloadState {
    WorkloadState::Ended(WorkloadEnd {
        mark: "before all".into(),
        utc: None,
        lived: None,
        exit_code: Some(1),
        is_oom_killed: false,
        error: None,
        requested: OnRequest::No,
        are_stops_silent: false,
        is_pod_stopped: false,
        log: None,
    })
}
