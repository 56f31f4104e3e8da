//! Explains the death of what is started again: from its end, the processes that it had, and what
//! the kernel log told.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::model::{
    DeathMemory, DeathReport, Deceased, EnginePhase, EngineProcess, EngineSeen, Event, ExitStatus,
    HeldEnd, HeldTarget, KernelEvent, Moment, Orphan, OwnLog, Reading, Requested, Supervisor,
};
use crate::policy::Surroundings;
use crate::policy::death::{AskedToEnd, Circumstances, Relative, explain};

/// Kills that are remembered.
const MOST_KILLS: usize = 64;

/// A trace in the kernel log may come to its end a moment after its victim.
pub(super) const TOLD_AFTER: Duration = Duration::from_millis(500);

/// What one of its processes was killed for so long before is why it ended.
const KILLED_BEFORE_SECONDS: i64 = 60;

const SIGTERM: i32 = 15;

/// What lately killed anything.
#[derive(Debug, Default)]
pub(super) struct Kills(VecDeque<Event>);

impl Kills {
    pub(super) fn hear(&mut self, events: &[Event]) {
        for event in events {
            let kills = matches!(
                event.kind,
                KernelEvent::OomKill { .. } | KernelEvent::UserspaceKill { .. }
            );
            if !kills {
                continue;
            }
            if self.0.len() >= MOST_KILLS {
                self.0.pop_front();
            }
            self.0.push_back(event.clone());
        }
    }

    /// Whether something killed a process of it for memory shortly before that end. Podman on
    /// cgroup v1 does not know that, nor does Docker of a process that was not the first.
    pub(super) fn explain(&self, target: &HeldTarget, end: &HeldEnd) -> bool {
        let is_its = |cgroup: &str, container: Option<&str>| match target.supervisor {
            Supervisor::Docker => container == Some(&*target.id) || cgroup.contains(&*target.id),
            Supervisor::Systemd => cgroup.split('/').any(|part| *part == *target.name),
        };
        let is_near = |event: &Event| {
            let ago = end.utc.zip(event.utc).map(|(end, at)| end.duration_since(at).as_secs());
            ago.is_some_and(|ago| (-2..=KILLED_BEFORE_SECONDS).contains(&ago))
        };
        self.0.iter().filter(|event| is_near(event)).any(|event| match &event.kind {
            KernelEvent::OomKill { memcg, container, .. } => {
                is_its(memcg.as_deref().unwrap_or_default(), container.as_deref())
            }
            KernelEvent::UserspaceKill { memcg, .. } => {
                is_its(memcg.as_deref().unwrap_or_default(), None)
            }
            _ => false,
        })
    }
}

/// A death that is still to be told.
#[derive(Clone, Debug)]
pub(super) struct Death {
    pub(super) end: HeldEnd,
    /// When it is known, on the uptime clock.
    pub(super) noticed: Duration,
    /// How far it had come.
    pub(super) phase: EnginePhase,
    /// What was known of its processes last.
    pub(super) engine: Option<Arc<EngineSeen>>,
    /// Memory at that moment.
    pub(super) memory: Option<DeathMemory>,
}

/// Memory at this moment.
pub(super) fn memory(around: &Surroundings<'_>, engine: Option<&EngineSeen>) -> DeathMemory {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes, from 0 on")]
    let bytes = |name| match around.latest(name) {
        Reading::Value(value) if value.is_finite() => Some(value.max(0.0) as u64),
        _ => None,
    };
    DeathMemory {
        total_bytes: bytes("uma_memory_total_bytes"),
        free_bytes: bytes("uma_memory_free_bytes"),
        available_bytes: bytes("uma_memory_available_bytes"),
        unaccounted_bytes: bytes("uma_memory_unaccounted_bytes"),
        shmem_bytes: bytes("uma_memory_shmem_bytes"),
        swap_free_bytes: bytes("uma_memory_swap_free_bytes"),
        own_bytes: engine.map(own_bytes),
    }
}

/// What its processes hold: anonymous, shared and huge pages.
pub(super) fn own_bytes(engine: &EngineSeen) -> u64 {
    let of = |process: &EngineProcess| {
        let kinds = [process.anon_bytes, process.shmem_bytes, process.hugetlb_bytes];
        kinds.into_iter().filter_map(Reading::value).fold(0, u64::saturating_add)
    };
    engine.processes.iter().map(of).fold(0, u64::saturating_add)
}

/// Tells what is known of it. `left` are the processes that are still there.
pub(super) fn report(
    target: &HeldTarget,
    death: &Death,
    kills: &Kills,
    left: &[Orphan],
    around: &Surroundings<'_>,
) -> DeathReport {
    let Death { end, phase, engine, memory, .. } = death;
    let engine = engine.as_deref();
    let ended = moment(end, death.noticed, around.at);
    let events: Vec<Event> = kills.0.iter().cloned().collect();
    let family = family(engine, left);
    let is_container = target.supervisor == Supervisor::Docker;
    let sender = if is_container { "docker stop or docker kill" } else { "systemctl" };
    let asked = (end.requested == Requested::Yes).then(|| AskedToEnd {
        signal: SIGTERM,
        sender: sender.to_owned(),
        at: ended.uptime,
    });
    let (log, not_known) = match end.log.as_deref() {
        Some(OwnLog::Lines(lines)) => (lines.as_slice(), Vec::new()),
        Some(OwnLog::Unknown(why)) => (&[][..], vec![format!("what it wrote itself: {why}")]),
        None => (&[][..], vec!["its own log was not read".to_owned()]),
    };
    let circumstances = Circumstances {
        who: Deceased {
            name: engine.map_or(&target.name, |engine| &engine.name).clone(),
            engine: engine.map(|engine| engine.kind),
            server: engine.map(|engine| engine.server),
            container: is_container.then(|| Arc::clone(&target.id)),
            container_name: is_container.then(|| Arc::clone(&target.name)),
            unit: (!is_container).then(|| Arc::clone(&target.name)),
            cgroup: engine.and_then(|engine| engine.cgroup.clone()),
        },
        exit: end.exit_code.map_or(ExitStatus::Unknown, |code| ExitStatus::Code { code }),
        began: end.lived.map(|lived| ended.uptime.saturating_sub(lived)),
        phase: Some(*phase),
        family: &family,
        events: &events,
        asked,
        docker_oom_killed: is_container.then_some(end.is_oom_killed),
        is_cgroup_own: true,
        are_pids_global: true,
        is_kernel_log_read: around.counters.kernel_log_is_read(),
        memory: *memory,
        log,
        not_known,
        ..Circumstances::default()
    };
    explain(&circumstances, ended)
}

/// When it ended, on both clocks.
fn moment(end: &HeldEnd, noticed: Duration, at: Moment) -> Moment {
    let Some(utc) = end.utc else { return Moment { uptime: noticed, ..at } };
    match Duration::try_from(at.utc.duration_since(utc)) {
        Ok(ago) => Moment { uptime: at.uptime.saturating_sub(ago), utc },
        Err(_) => Moment { uptime: noticed, utc },
    }
}

fn family(engine: Option<&EngineSeen>, left: &[Orphan]) -> Vec<Relative> {
    let processes = engine.map(|engine| engine.processes.as_slice()).unwrap_or_default();
    let relative = |process: &EngineProcess| Relative {
        id: process.id,
        comm: Arc::clone(&process.comm),
        ended: None,
        status: ExitStatus::Unknown,
        told_by: "nobody",
        is_left: left.iter().any(|left| left.id == process.id),
        bytes: process.anon_bytes.value(),
    };
    processes.iter().map(relative).collect()
}
