//! A node whose containers live, die and are started under virtual time.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::model::{
    Action, AimCheck, Decision, DecisionId, DecisionRecord, DeferredRestart, EndedWorkload,
    EngineKind, EngineProcess, EngineReadings, EngineSeen, Event, HoldReason, KernelRecord, Mode,
    Moment, Observation, OnRequest, Outcome, OutcomeResult, ProcessEnd, ProcessId, Reading,
    Readings, RestartLimits, RestartReadings, RestartState, Schema, SeriesKey, Source, StartNeed,
    Supervisor, Workload, WorkloadEnd, WorkloadState,
};

use crate::policy::rule::RuleSet;
use crate::policy::{Policy, Step};

pub(super) const GIB: u64 = 1 << 30;
pub(super) const TICK: Duration = Duration::from_millis(250);

pub(super) struct RestartWorld {
    pub(super) policy: Policy,
    pub(super) at: Moment,
    pub(super) schema: Arc<Schema>,
    pub(super) free: u64,
    pub(super) held: Vec<DeferredRestart>,
    pub(super) engines: Vec<EngineSeen>,
    pub(super) seen: Vec<Observation>,
    pub(super) docker_fails: bool,
    /// Ends of other containers, as Docker reports them.
    pub(super) ended: Vec<EndedWorkload>,
    /// Exits of processes that the kernel reports with the next sample.
    pub(super) process_ends: Vec<ProcessEnd>,
    /// All that was said.
    pub(super) decisions: Vec<DecisionRecord>,
    pub(super) aim_checks: Vec<AimCheck>,
    pub(super) events: Vec<Event>,
}

pub(super) fn id(name: &str) -> String {
    let digits: String = name.bytes().map(|byte| format!("{byte:02x}")).collect();
    format!("{digits:a<64}")
}

pub(super) fn container(name: &str) -> DeferredRestart {
    DeferredRestart {
        target: Workload { supervisor: Supervisor::Docker, name: name.into(), id: id(name).into() },
        state: WorkloadState::Running { mark: "life 0".into(), health: None },
        need: StartNeed { need_bytes: Some(8 * GIB), ..StartNeed::default() },
        limits: RestartLimits {
            back_off: Duration::from_secs(4),
            back_off_at_most: Duration::from_secs(20),
            healthy_after: Duration::from_secs(120),
            times: 50,
            ..RestartLimits::default()
        },
        mode: None,
        found_by: "test".into(),
        obstacle: None,
    }
}

impl RestartWorld {
    pub(super) fn new(mode: Mode) -> Self {
        let at = Moment {
            uptime: Duration::from_secs(1000),
            utc: Timestamp::from_second(1_795_219_200).unwrap(),
        };
        let plain = ["uma_memory_total_bytes", "uma_memory_free_bytes"];
        let mut series: Vec<SeriesKey> =
            plain.iter().map(|name| SeriesKey::new(name, &[])).collect();
        for name in ["uma_memory_unaccounted_bytes", "uma_memory_shmem_bytes"] {
            series.push(SeriesKey::new(name, &[]));
        }
        series.push(SeriesKey::new("uma_memory_page_cache_bytes", &[("state", "clean")]));
        series.push(SeriesKey::new("uma_memory_slab_bytes", &[("state", "reclaimable")]));
        let mut world = Self {
            policy: Policy::new(at, mode, &RuleSet::default(), DecisionId(1)),
            at,
            schema: Arc::new(Schema { series }),
            free: 20 * GIB,
            held: Vec::new(),
            engines: Vec::new(),
            seen: Vec::new(),
            docker_fails: false,
            ended: Vec::new(),
            process_ends: Vec::new(),
            decisions: Vec::new(),
            aim_checks: Vec::new(),
            events: Vec::new(),
        };
        // The gate uses the last second.
        world.run(2);
        world
    }

    #[expect(clippy::cast_precision_loss, reason = "small")]
    pub(super) fn tick(&mut self) -> Step {
        self.at.uptime += TICK;
        self.at.utc += TICK;
        let read_at = self.at.uptime;
        let values = [24 * GIB, self.free, GIB, 0, 0, 0];
        let mut seen = vec![
            Observation::Readings(Readings {
                source: Source::Meminfo,
                schema: Arc::clone(&self.schema),
                values: values.map(|bytes| Reading::Value(bytes as f64)).to_vec(),
                took: Duration::ZERO,
                error: None,
            }),
            Observation::Engines(Box::new(EngineReadings {
                read_at,
                engines: self.engines.clone(),
                ended: std::mem::take(&mut self.process_ends),
                ..EngineReadings::default()
            })),
            Observation::Restarts(Box::new(RestartReadings {
                supervisor: Supervisor::Docker,
                read_at,
                deferred: if self.docker_fails { Vec::new() } else { self.held.clone() },
                ended: self.ended.clone(),
                error: self.docker_fails.then(|| "it hangs".into()),
            })),
        ];
        seen.append(&mut self.seen);
        let step = self.policy.step(self.at, &seen);
        self.decisions.extend(step.decisions.iter().cloned());
        self.aim_checks.extend(step.aim_checks.iter().cloned());
        self.events.extend(step.events.iter().cloned());
        step
    }

    pub(super) fn run(&mut self, seconds: u64) {
        for _ in 0..seconds * 4 {
            self.tick();
        }
    }

    pub(super) fn with(mode: Mode, names: &[&str]) -> Self {
        let mut world = Self::new(mode);
        world.held = names.iter().map(|name| container(name)).collect();
        world.run(61);
        world
    }

    pub(super) fn of(&mut self, name: &str) -> &mut DeferredRestart {
        self.held.iter_mut().find(|seen| &*seen.target.name == name).unwrap()
    }

    pub(super) fn end(&self, exit_code: i32) -> WorkloadEnd {
        WorkloadEnd {
            mark: self.at.utc.to_string().into(),
            utc: Some(self.at.utc),
            lived: None,
            exit_code: Some(exit_code),
            is_oom_killed: exit_code == 137,
            error: None,
            requested: OnRequest::No,
            are_stops_silent: false,
            is_pod_stopped: false,
            log: None,
        }
    }

    pub(super) fn dies(&mut self, name: &str) {
        let end = self.end(137);
        self.of(name).state = WorkloadState::Ended(end);
    }

    /// The kernel log reports an OOM kill of one of its processes.
    pub(super) fn kernel_kills(&mut self, name: &str) {
        self.kernel_kills_in(&format!("/libpod_parent/libpod-{}", id(name)));
    }

    /// The same of a process in that control group.
    pub(super) fn kernel_kills_in(&mut self, cgroup: &str) {
        let lines = [
            format!(
                "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,\
                 oom_memcg={cgroup},task_memcg={cgroup},task=python3,pid=7,uid=0"
            ),
            "Memory cgroup out of memory: Killed process 7 (python3) total-vm:8kB, anon-rss:8kB, \
             file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:8kB oom_score_adj:0"
                .to_owned(),
        ];
        for (seq, text) in (100..).zip(lines) {
            self.seen.push(Observation::KernelRecord(KernelRecord {
                seq,
                facility: 0,
                level: 4,
                usec: u64::try_from(self.at.uptime.as_micros()).unwrap(),
                caller: None,
                utc: self.at.utc,
                text,
                dictionary: String::new(),
            }));
        }
        self.tick();
    }

    pub(super) fn starts(&mut self, name: &str) {
        let mark = format!("life since {}", self.at.utc).into();
        self.of(name).state = WorkloadState::Running { mark, health: None };
    }

    /// Does what was decided, as Docker does.
    pub(super) fn obey(&mut self, decision: &DecisionRecord) -> String {
        let Action::StartContainer { ended } = &decision.action else { panic!("{decision:?}") };
        let crate::model::Target::Workload(held) = &decision.target else { panic!() };
        let name = held.name.to_string();
        let WorkloadState::Ended(end) = &self.of(&name).state else { panic!("a double start") };
        assert_eq!(end.mark, *ended, "it has ended again");
        self.starts(&name);
        self.report(decision, OutcomeResult::Done);
        name
    }

    pub(super) fn report(&mut self, decision: &DecisionRecord, result: OutcomeResult) {
        let outcome = Outcome::at_once(decision, result, self.at);
        self.seen.push(Observation::Outcome(outcome));
    }

    /// Lets time pass until something is started; how long that took.
    pub(super) fn until_start(&mut self, seconds: u64) -> Option<(String, Duration)> {
        let began = self.at.uptime;
        for _ in 0..seconds * 4 {
            let step = self.tick();
            if let Some(act) = step.decisions.iter().find(|made| made.is_act()) {
                let name = self.obey(&act.clone());
                return Some((name, self.at.uptime - began));
            }
        }
        None
    }

    pub(super) fn state(&mut self, name: &str) -> (RestartState, String) {
        let all = self.policy.status(self.at).restarts;
        let found = all.iter().find(|one| &*one.seen.target.name == name).unwrap();
        (found.state, found.reason.to_string())
    }

    pub(super) fn holds(&mut self) -> Vec<HoldReason> {
        let made = std::mem::take(&mut self.decisions);
        let held = made.iter().filter_map(|made| match made.decision {
            Decision::Hold(reason) => Some(reason),
            Decision::Act => None,
        });
        held.collect()
    }

    pub(super) fn value(&mut self, series: &str) -> Option<f64> {
        let status = self.policy.status(self.at);
        let position = status.series.iter().position(|key| key.to_string() == series)?;
        status.values[position].sample()
    }
}

pub(super) fn process(pid: u32, bytes: u64) -> EngineProcess {
    EngineProcess::holding(ProcessId { pid, start_ticks: 4711 }, "VLLM::EngineCor", bytes)
}

pub(super) fn engine_in(name: &str, pid: u32, bytes: u64) -> EngineSeen {
    let process = process(pid, bytes);
    EngineSeen {
        container: Some(id(name).into()),
        stuck_after: Duration::from_secs(300),
        ..EngineSeen::new(
            format!("engine-{name}").into(),
            EngineKind::Vllm,
            process.id,
            vec![process],
            "test".into(),
        )
    }
}
