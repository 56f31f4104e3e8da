//! Lives of engines as they were seen on real ones (times and sizes of SGLang 0.5.23 and vLLM 0.32
//! with a tiny model), and what goes wrong with them.

mod stuck;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use proptest::prelude::*;

use crate::model::{
    DecisionId, EngineHealth, EngineKind, EngineLoad, EnginePhase, EngineProcess, EngineRank,
    EngineReadings, EngineSeen, EngineTarget, Event, EventKind, HealthResponse, Mode, Moment,
    Observation, ProcessId, ProgramEvent, Reading,
};
use crate::policy::Policy;
use crate::policy::rule::RuleSet;

const GIB: u64 = 1 << 30;

fn moment(seconds: u64) -> Moment {
    let utc = Timestamp::from_second(1_795_219_200 + i64::try_from(seconds).unwrap()).unwrap();
    Moment { uptime: Duration::from_secs(1_000 + seconds), utc }
}

fn process(pid: u32, comm: &str, bytes: u64) -> EngineProcess {
    let id = ProcessId { pid, start_ticks: 100_000 + u64::from(pid) };
    EngineProcess::holding(id, comm, bytes)
}

fn engine(name: &str, processes: &[EngineProcess]) -> EngineSeen {
    let (server, found_by) = (processes[0].id, Arc::from("its command line"));
    EngineSeen {
        port: Some(8000),
        health_url: Some(Arc::from("http://127.0.0.1:8000/health")),
        stuck_after: Duration::from_secs(300),
        ..EngineSeen::new(Arc::from(name), EngineKind::Vllm, server, processes.to_vec(), found_by)
    }
}

struct EngineWorld {
    policy: Policy,
    events: Vec<String>,
}

impl EngineWorld {
    fn new() -> Self {
        let rules = RuleSet::default();
        let policy = Policy::new(moment(0), Mode::Observe, &rules, DecisionId(1));
        Self { policy, events: Vec::new() }
    }

    fn step(&mut self, seconds: u64, seen: Observation) {
        let step = self.policy.step(moment(seconds), &[seen]);
        self.events.extend(step.events.iter().map(short));
    }

    fn observe(&mut self, seconds: u64, engines: &[EngineSeen]) {
        let read_at = moment(seconds).uptime;
        let readings =
            EngineReadings { read_at, engines: engines.to_vec(), ..EngineReadings::default() };
        self.step(seconds, Observation::Engines(Box::new(readings)));
    }

    fn probe(
        &mut self,
        seconds: u64,
        of: &EngineSeen,
        answer: HealthResponse,
        requests: Option<u64>,
    ) {
        let health = EngineHealth {
            key_withheld: None,
            engine: Arc::clone(&of.name),
            server: of.server,
            asked_at: moment(seconds).uptime,
            answer,
            requests: requests.into(),
            load: EngineLoad::default(),
        };
        self.step(seconds, Observation::EngineHealth(Box::new(health)));
    }

    fn take_events(&mut self) -> Vec<String> {
        std::mem::take(&mut self.events)
    }

    fn phase(&mut self) -> EnginePhase {
        self.policy.engines()[0].phase
    }
}

fn short(event: &Event) -> String {
    match &event.kind {
        EventKind::Program(ProgramEvent::EnginePhase { engine, to, reason, .. }) => {
            format!("{engine} {to}: {reason}")
        }
        EventKind::Program(ProgramEvent::EngineStuck { stuck, reason, .. }) => {
            format!("stuck {stuck}: {reason}")
        }
        other => panic!("{other:?}"),
    }
}

fn loading() -> EngineSeen {
    let worker =
        EngineProcess { mapped_files: Reading::Value(3), ..process(12, "VLLM::EngineCor", GIB) };
    engine("vllm-8000", &[process(10, "vllm", GIB), worker])
}

#[test]
fn a_renamed_engine_lives_on() {
    let mut world = EngineWorld::new();
    world.observe(0, &[loading()]);
    world.probe(1, &loading(), HealthResponse::Refused, None);
    assert_eq!(world.phase(), EnginePhase::Loading);
    world.take_events();
    let named = EngineSeen { name: Arc::from("deepseek"), ..loading() };
    world.observe(2, std::slice::from_ref(&named));
    assert_eq!(world.take_events(), ["deepseek loading: it was called vllm-8000 until now"]);
    world.probe(3, &named, HealthResponse::Ready, None);
    assert_eq!(world.take_events(), ["deepseek ready: it answers at http://127.0.0.1:8000/health"]);
    assert_eq!(world.policy.engines().len(), 1);
    // The name of one that lives is not taken over.
    let mut other = engine("other", &[process(50, "vllm", GIB)]);
    world.observe(4, &[named.clone(), other.clone()]);
    world.take_events();
    other.name = Arc::from("deepseek");
    world.observe(5, &[other]);
    let events = world.take_events();
    assert!(events.iter().any(|event| event.starts_with("deepseek gone: ")), "{events:?}");
    assert!(events[2].starts_with("deepseek starting: "), "{events:?}");
}

#[test]
fn a_life_goes_from_start_to_gone_with_a_reason_for_each_phase() {
    let mut world = EngineWorld::new();
    let starting = engine("vllm-8000", &[process(10, "vllm", GIB / 4)]);
    world.observe(0, std::slice::from_ref(&starting));
    world.probe(1, &starting, HealthResponse::Refused, None);
    world.observe(26, std::slice::from_ref(&starting));
    assert_eq!(world.take_events(), ["vllm-8000 starting: found by its command line"]);
    world.observe(32, &[loading()]);
    assert_eq!(
        world.take_events(),
        ["vllm-8000 loading: VLLM::EngineCor (pid 12) maps 3 of its model files"]
    );
    world.probe(33, &starting, HealthResponse::Refused, None);
    world.probe(42, &starting, HealthResponse::Ready, Some(0));
    world.probe(43, &starting, HealthResponse::Ready, Some(2));
    assert_eq!(
        world.take_events(),
        [
            "vllm-8000 ready: it answers at http://127.0.0.1:8000/health",
            "vllm-8000 serving: 2 requests are being worked on",
        ]
    );
    world.probe(50, &starting, HealthResponse::Ready, Some(0));
    world.probe(109, &starting, HealthResponse::Ready, Some(0));
    assert_eq!(world.take_events(), [""; 0], "a short rest is none");
    world.probe(110, &starting, HealthResponse::Ready, Some(0));
    let mut orphan = loading();
    orphan.processes.remove(0);
    world.observe(120, &[orphan]);
    world.observe(121, &[]);
    assert_eq!(
        world.take_events(),
        [
            "vllm-8000 ready: no request for 1m",
            "vllm-8000 stopping: its server, pid 10, has ended; VLLM::EngineCor (pid 12) is left",
            "vllm-8000 gone: all its processes have ended, pid 10 first of them",
        ]
    );
    world.observe(720, &[]);
    assert_eq!(world.policy.engines().len(), 1);
    world.observe(721, &[]);
    assert_eq!(world.policy.engines().len(), 0, "it is forgotten after ten minutes");
}

#[test]
fn a_reused_pid_is_another_life() {
    let mut world = EngineWorld::new();
    world.observe(0, &[loading()]);
    world.probe(1, &loading(), HealthResponse::Ready, None);
    world.take_events();
    let mut again = loading();
    for process in &mut again.processes {
        process.id.start_ticks += 9_000;
    }
    again.server = again.processes[0].id;
    world.observe(2, &[again.clone()]);
    world.probe(2, &loading(), HealthResponse::Ready, None);
    assert_eq!(
        world.take_events(),
        [
            "vllm-8000 gone: all its processes have ended, pid 10 first of them",
            "vllm-8000 starting: found by its command line",
        ],
        "and what the first said is nothing of the second"
    );
    world.probe(3, &again, HealthResponse::Refused, None);
    assert_eq!(world.phase(), EnginePhase::Loading);
}

#[test]
fn an_engine_found_serving_never_counts_as_loading() {
    let mut world = EngineWorld::new();
    world.observe(0, &[loading()]);
    world.observe(1, &[loading()]);
    assert_eq!(world.phase(), EnginePhase::Starting, "it is asked first");
    world.probe(1, &loading(), HealthResponse::Ready, None);
    assert_eq!(world.phase(), EnginePhase::Ready);
    let mut silent = EngineWorld::new();
    silent.observe(0, &[loading()]);
    silent.observe(6, &[loading()]);
    assert_eq!(silent.phase(), EnginePhase::Loading, "but not for ever");
}

#[test]
fn without_progress_a_loading_engine_is_stuck_whatever_its_cpu_does() {
    let mut world = EngineWorld::new();
    let mut seen = loading();
    world.probe(0, &seen, HealthResponse::Refused, None);
    for second in (0..300).step_by(10) {
        seen.processes[1].cpu_ms = second * 960;
        // What a waiting engine writes and allocates.
        seen.log_bytes = Reading::Value(second * 3);
        seen.processes[1].anon_bytes = Reading::Value(GIB + second * 1024);
        world.observe(second, std::slice::from_ref(&seen));
    }
    world.take_events();
    seen.processes[1].cpu_ms = 288_000;
    world.observe(300, std::slice::from_ref(&seen));
    world.observe(301, std::slice::from_ref(&seen));
    assert_eq!(
        world.take_events(),
        ["stuck true: nothing was read and no memory taken for 5m, while its processes used 1.0 \
          cores"]
    );
    assert!(world.policy.engines()[0].is_stuck);
    seen.processes[1].read_bytes = Reading::Value(20 << 20);
    world.observe(302, std::slice::from_ref(&seen));
    assert_eq!(world.take_events(), ["stuck false: it reads, grows or works again"]);
    seen.rank = Some(EngineRank { gang: "a:29501".into(), rank: Some(1), ranks: Some(2) });
    world.observe(700, std::slice::from_ref(&seen));
    world.probe(701, &seen, HealthResponse::Ready, None);
    let events = world.take_events();
    assert!(events[0].starts_with("stuck true"), "{events:?}");
    assert!(events[0].ends_with("with --enforce-eager if it happens again"), "{events:?}");
    assert_eq!(events[1], "stuck false: it is ready now");
}

#[test]
fn every_kind_of_progress_counts() {
    let changes: [fn(&mut EngineSeen, u64); 6] = [
        |seen, second| seen.processes[1].read_bytes = Reading::Value(second << 22),
        |seen, second| seen.processes[1].read_chars = Reading::Value(second << 22),
        |seen, second| seen.processes[0].shmem_bytes = Reading::Value(second << 23),
        |seen, second| seen.processes[0].hugetlb_bytes = Reading::Value(second << 23),
        |seen, second| seen.log_bytes = Reading::Value(second << 10),
        |seen, second| {
            seen.processes.truncate(2);
            seen.processes.push(process(1000 + u32::try_from(second).unwrap(), "nvcc", 0));
        },
    ];
    for (place, change) in changes.iter().enumerate() {
        let mut world = EngineWorld::new();
        let mut seen = loading();
        for second in (0..1_000).step_by(50) {
            change(&mut seen, second);
            world.observe(second, std::slice::from_ref(&seen));
        }
        assert!(!world.policy.engines()[0].is_stuck, "{place}");
    }
}

#[test]
fn an_engine_without_health_endpoint_is_ready_when_it_listens_or_rests() {
    let mut world = EngineWorld::new();
    let mut dumb = loading();
    dumb.health_url = None;
    dumb.is_listening = Reading::Value(false);
    world.observe(0, std::slice::from_ref(&dumb));
    world.observe(250, std::slice::from_ref(&dumb));
    assert_eq!(world.phase(), EnginePhase::Loading, "its state is known, and not ready");
    dumb.is_listening = Reading::Value(true);
    world.observe(251, std::slice::from_ref(&dumb));
    dumb.is_listening = Reading::Value(false);
    world.observe(252, std::slice::from_ref(&dumb));
    let events = world.take_events();
    assert_eq!(events[2], "vllm-8000 ready: it listens on port 8000");
    assert_eq!(events[3], "vllm-8000 stopping: it no longer listens");
    let mut world = EngineWorld::new();
    dumb.is_listening = Reading::Unsupported;
    for second in [0, 19, 20] {
        assert_ne!(world.policy.engines().first().map(|e| e.phase), Some(EnginePhase::Ready));
        world.observe(second, std::slice::from_ref(&dumb));
    }
    assert_eq!(world.phase(), EnginePhase::Ready);
}

#[test]
fn a_paused_or_slow_engine_stays_up_and_one_that_refuses_stops() {
    let mut world = EngineWorld::new();
    world.observe(0, &[loading()]);
    world.probe(1, &loading(), HealthResponse::Ready, None);
    for answer in [
        HealthResponse::NotReady { status: 503 },
        HealthResponse::TimedOut,
        HealthResponse::Failed { error: "reset".to_owned() },
        HealthResponse::Refused,
    ] {
        world.probe(2, &loading(), answer, None);
        assert_eq!(world.phase(), EnginePhase::Ready);
    }
    world.probe(3, &loading(), HealthResponse::Refused, None);
    assert_eq!(world.phase(), EnginePhase::Stopping);
    world.probe(9, &loading(), HealthResponse::Ready, None);
    assert_eq!(world.phase(), EnginePhase::Ready, "it answers again");
}

#[test]
fn an_engine_with_an_unexpected_response_is_ready_once_it_rests() {
    let mut world = EngineWorld::new();
    let other = |error: &str| HealthResponse::Failed { error: error.to_owned() };
    world.observe(0, &[loading()]);
    world.probe(1, &loading(), other("invalid HTTP version"), None);
    assert_eq!(world.phase(), EnginePhase::Loading, "TLS, for example");
    world.observe(19, &[loading()]);
    assert_eq!(world.phase(), EnginePhase::Loading);
    world.observe(20, &[loading()]);
    assert_eq!(world.phase(), EnginePhase::Ready);
    let events = world.take_events();
    let expected =
        "vllm-8000 ready: it cannot be asked, and has read and taken nothing more for 20s";
    assert_eq!(events.last().unwrap(), expected);
    world.probe(25, &loading(), other("invalid HTTP version"), None);
    assert_eq!(world.phase(), EnginePhase::Ready);
}

#[test]
fn an_engine_found_with_its_model_does_not_count_as_loading() {
    let mut world = EngineWorld::new();
    let mut seen = EngineSeen { health_url: None, port: None, ..loading() };
    seen.kind = EngineKind::Declared;
    seen.processes[1] = EngineProcess {
        mapped_files: Reading::Value(3),
        id: ProcessId { pid: 12, start_ticks: 7 },
        ..process(12, "serves", GIB)
    };
    world.observe(0, std::slice::from_ref(&seen));
    // It reads its mapped weights, some of them from disk.
    for second in 1..30 {
        seen.processes[1].read_bytes = Reading::Value(second * GIB / 4);
        world.observe(second, std::slice::from_ref(&seen));
        assert_eq!(world.phase(), EnginePhase::Starting);
    }
    // One that takes memory loads all the same.
    seen.processes[1].anon_bytes = Reading::Value(6 * GIB);
    world.observe(31, std::slice::from_ref(&seen));
    assert_eq!(world.phase(), EnginePhase::Loading);
}

#[test]
fn ollama_loads_whenever_a_new_runner_takes_in_a_model() {
    let mut world = EngineWorld::new();
    let server = process(10, "ollama", GIB / 8);
    let mut seen = engine("ollama-11434", &[server]);
    seen.kind = EngineKind::Ollama;
    world.observe(0, std::slice::from_ref(&seen));
    world.probe(1, &seen, HealthResponse::Ready, None);
    let runner = |pid, bytes| EngineProcess {
        mapped_files: Reading::Value(1),
        ..process(pid, "llama-server", bytes)
    };
    seen.processes.push(runner(77, GIB));
    world.observe(60, std::slice::from_ref(&seen));
    assert_eq!(world.phase(), EnginePhase::Loading);
    seen.processes[1] = runner(77, 5 * GIB);
    world.observe(64, std::slice::from_ref(&seen));
    world.observe(68, std::slice::from_ref(&seen));
    assert_eq!(world.phase(), EnginePhase::Loading);
    world.observe(69, std::slice::from_ref(&seen));
    assert_eq!(world.phase(), EnginePhase::Ready);
    world.observe(200, std::slice::from_ref(&seen));
    assert_eq!(world.phase(), EnginePhase::Ready, "the model is served now, and left alone");
    // So it is while another runner takes in another model.
    seen.processes.push(runner(88, GIB));
    world.observe(201, std::slice::from_ref(&seen));
    assert_eq!(world.phase(), EnginePhase::Loading);
    let known = world.policy.engines();
    let target = EngineTarget::loading(&known[0].engine, &known[0].serving);
    assert_eq!(target.processes.iter().map(|id| id.pid).collect::<Vec<_>>(), [10, 88]);
}

#[test]
fn the_phase_is_unknown_without_recent_samples() {
    let mut world = EngineWorld::new();
    world.observe(0, &[loading()]);
    let meminfo = crate::model::Readings {
        source: crate::model::Source::Meminfo,
        schema: Arc::new(crate::model::Schema { series: Vec::new() }),
        values: Vec::new(),
        took: Duration::ZERO,
        error: None,
    };
    let value = |world: &mut EngineWorld, second, name: &str| {
        world.policy.step(moment(second), &[Observation::Readings(meminfo.clone())]);
        let status = world.policy.status(moment(second));
        let place = status.series.iter().position(|key| key.to_string() == name).unwrap();
        status.values[place]
    };
    let starting = "uma_engine_phase{engine=\"vllm-8000\",phase=\"starting\"}";
    assert_eq!(value(&mut world, 1, starting), Reading::Value(1.0));
    assert_eq!(value(&mut world, 1, "uma_engines"), Reading::Value(1.0));
    assert_eq!(value(&mut world, 16, starting), Reading::Failed);
    assert_eq!(value(&mut world, 16, "uma_engines"), Reading::Failed);
}

fn phase_follows(from: Option<EnginePhase>, to: EnginePhase) -> bool {
    use EnginePhase::{Gone, Loading, Ready, Serving, Starting, Stopping};
    match from {
        None | Some(Gone) => to == Starting,
        Some(Starting) => matches!(to, Loading | Ready | Stopping | Gone),
        Some(Loading) => matches!(to, Ready | Stopping | Gone),
        Some(Ready) => matches!(to, Serving | Loading | Stopping | Gone),
        Some(Serving) => matches!(to, Ready | Loading | Stopping | Gone),
        Some(Stopping) => matches!(to, Ready | Gone),
    }
}

proptest! {
    #[test]
    fn each_phase_change_starts_at_the_phase_before(
        steps in prop::collection::vec((0..40_u64, 0..7_u8, 0..4_u64), 1..80),
    ) {
        let mut policy = EngineWorld::new().policy;
        let (mut now, mut seen, mut phase) = (0, loading(), None);
        for (later, what, number) in steps {
            now += later;
            let read_at = moment(now).uptime;
            let health = |answer| Observation::EngineHealth(Box::new(EngineHealth {
                key_withheld: None,
                engine: Arc::clone(&seen.name),
                server: seen.server,
                asked_at: read_at,
                answer,
                requests: Reading::Value(number),
                load: EngineLoad::default(),
            }));
            let observation = |engines| {
                let readings = EngineReadings { read_at, engines, ..EngineReadings::default() };
                Observation::Engines(Box::new(readings))
            };
            let observation = match what {
                0 => observation(Vec::new()),
                1 => health(HealthResponse::Ready),
                2 => health(HealthResponse::Refused),
                3 => {
                    seen.server.start_ticks += number;
                    seen.processes[0].id = seen.server;
                    observation(vec![seen.clone()])
                }
                4 => {
                    seen.processes[0].state = if number < 2 { 'Z' } else { 'S' };
                    observation(vec![seen.clone()])
                }
                _ => observation(vec![seen.clone()]),
            };
            for event in policy.step(moment(now), &[observation]).events {
                let EventKind::Program(ProgramEvent::EnginePhase { from, to, reason, .. }) = event.kind else { continue };
                prop_assert_eq!(from, phase, "{}", reason);
                prop_assert!(phase_follows(from, to), "{:?} {}: {}", from, to, reason);
                phase = Some(to);
            }
            if policy.engines().is_empty() {
                phase = None;
            }
        }
    }
}
