//! Recorded processes and health responses of real SGLang 0.5.23 and vLLM 0.32.0 servers, once a
//! second from their start on. Replayed, the engines go through the same phases.

use std::fs;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;
use umawarden::model::{
    AssessmentLimits, DecisionId, DeclaredEngine, EngineHealth, EngineLoad, EngineMatch,
    EnginePhase, EventKind, FORGET_RECEIVED_AFTER, HealthResponse, Mode, Moment, Observation,
    ProgramEvent, Reading,
};
use umawarden::policy::Policy;
use umawarden::policy::rule::RuleSet;
use umawarden::recording::{
    RecordedRules, RecordedStep, RecordingEntry, SegmentBegin, SegmentReader, StepResult,
};
use umawarden::sources::engines::Scanner;

#[derive(Deserialize)]
struct Snapshot {
    seconds: f64,
    processes: Vec<Files>,
    answers: std::collections::BTreeMap<String, u16>,
}

#[derive(Deserialize)]
struct Files {
    pid: u32,
    stat: String,
    cmdline: String,
    cgroup: String,
    status: String,
    io: String,
}

fn snapshots(name: &str) -> Vec<Snapshot> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/engines");
    let text = fs::read_to_string(folder.join(format!("{name}.jsonl"))).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn moment(seconds: f64) -> Moment {
    let utc = Timestamp::from_millisecond(1_795_219_200_000 + (seconds * 1000.0) as i64).unwrap();
    Moment { uptime: Duration::from_secs_f64(26_000.0 + seconds), utc }
}

/// All observations for the policy, with responses of the endpoint `endpoint`.
fn observations(name: &str, endpoint: &str) -> Vec<(Moment, Vec<Observation>)> {
    observations_of(name, endpoint, Vec::new())
}

fn observations_of(
    name: &str,
    endpoint: &str,
    declared: Vec<DeclaredEngine>,
) -> Vec<(Moment, Vec<Observation>)> {
    let folder = tempfile::tempdir().unwrap();
    let mut scanner = Scanner::new(folder.path().to_owned(), declared);
    let mut observations = Vec::new();
    let mut last = 0.0;
    for snapshot in snapshots(name) {
        for entry in fs::read_dir(folder.path()).unwrap() {
            fs::remove_dir_all(entry.unwrap().path()).unwrap();
        }
        for files in &snapshot.processes {
            let folder_of_process = folder.path().join(files.pid.to_string());
            fs::create_dir_all(&folder_of_process).unwrap();
            for (name, text) in [
                ("stat", &files.stat),
                ("cmdline", &files.cmdline),
                ("cgroup", &files.cgroup),
                ("status", &files.status),
                ("io", &files.io),
            ] {
                fs::write(folder_of_process.join(name), text).unwrap();
            }
        }
        let at = moment(snapshot.seconds);
        last = snapshot.seconds;
        let readings = scanner.scan(at.uptime, true).unwrap();
        let health = readings.engines.first().map(|engine| EngineHealth {
            key_withheld: None,
            engine: engine.name.clone(),
            server: engine.server,
            asked_at: at.uptime,
            answer: match snapshot.answers[endpoint] {
                0 => HealthResponse::Refused,
                200 => HealthResponse::Ready,
                status => HealthResponse::NotReady { status },
            },
            requests: Reading::Unsupported,
            load: EngineLoad::default(),
        });
        let mut seen = vec![Observation::Engines(Box::new(readings))];
        seen.extend(health.map(|health| Observation::EngineHealth(Box::new(health))));
        observations.push((at, seen));
    }
    for entry in fs::read_dir(folder.path()).unwrap() {
        fs::remove_dir_all(entry.unwrap().path()).unwrap();
    }
    let at = moment(last + 1.0);
    let readings = scanner.scan(at.uptime, false).unwrap();
    observations.push((at, vec![Observation::Engines(Box::new(readings))]));
    observations
}

fn phases(observations: &[(Moment, Vec<Observation>)]) -> Vec<(EnginePhase, String)> {
    let rules = RuleSet::default();
    let mut policy = Policy::new(moment(0.0), Mode::Observe, &rules, DecisionId(1));
    let mut phases = Vec::new();
    for (at, seen) in observations {
        for event in policy.step(*at, seen).events {
            if let EventKind::Program(ProgramEvent::EnginePhase { to, reason, .. }) = event.kind {
                phases.push((to, reason));
            }
        }
    }
    phases
}

#[test]
fn a_recorded_vllm_goes_through_all_phases() {
    let observations = observations("vllm", "/health");
    let phases = phases(&observations);
    let expected = [
        (EnginePhase::Starting, "found by the command line of pid 1786"),
        (EnginePhase::Loading, "its worker VLLM::EngineCor (pid 2228) has started"),
        (EnginePhase::Ready, "it answers at its health endpoint"),
        (EnginePhase::Gone, "all its processes have ended, pid 1786 first of them"),
    ];
    assert_eq!(phases, expected.map(|(phase, reason)| (phase, reason.to_owned())));
    let engines = observations.iter().rev().find_map(|(_, seen)| match &seen[0] {
        Observation::Engines(readings) => readings.engines.first(),
        _ => None,
    });
    let engine = engines.unwrap();
    assert_eq!((&*engine.name, engine.port), ("vllm-31238", Some(31238)));
    assert_eq!(engine.model.as_deref(), Some("/srv/env/tiny"));
    assert_eq!(engine.unit.as_deref(), Some("vllm.service"));
    let comms: Vec<&str> = engine.processes.iter().map(|process| &*process.comm).collect();
    assert_eq!(comms, ["vllm", "python", "VLLM::EngineCor", "VLLM::Worker"]);
}

#[test]
fn a_recorded_sglang_goes_through_all_phases() {
    let observations = observations("sglang", "/ready");
    let expected = [
        (EnginePhase::Starting, "found by the command line of pid 997"),
        (EnginePhase::Loading, "its worker sglang::schedul (pid 1093) has started"),
        (EnginePhase::Ready, "it answers at its health endpoint"),
        (EnginePhase::Gone, "all its processes have ended, pid 997 first of them"),
    ];
    assert_eq!(phases(&observations), expected.map(|(phase, reason)| (phase, reason.to_owned())));
}

/// Its title, by which it is declared, comes seconds after the start.
#[test]
fn a_recorded_vllm_declared_by_its_title_has_the_declared_name() {
    let comm = EngineMatch { comm: Some("VLLM::*".into()), ..EngineMatch::default() };
    let declared =
        DeclaredEngine { name: "deepseek".into(), matches: comm, ..DeclaredEngine::default() };
    let observations = observations_of("vllm", "/health", vec![declared]);
    let phases = phases(&observations);
    let expected = [
        (EnginePhase::Starting, "found by the command line of pid 1786"),
        (EnginePhase::Starting, "it was called vllm-31238 until now"),
        (EnginePhase::Loading, "its worker VLLM::EngineCor (pid 2228) has started"),
        (EnginePhase::Ready, "it answers at its health endpoint"),
        (EnginePhase::Gone, "all its processes have ended, pid 1786 first of them"),
    ];
    assert_eq!(phases, expected.map(|(phase, reason)| (phase, reason.to_owned())));
}

/// SIGKILL of SGLang's first process ends the others within a second.
#[test]
fn processes_of_a_killed_sglang_end_by_themselves() {
    let phases = phases(&observations("sglang-killed", "/ready"));
    let expected = [
        (EnginePhase::Starting, "found by the command line of pid 29817"),
        (EnginePhase::Loading, "its worker sglang::detoken (pid 29853) has started"),
        (EnginePhase::Ready, "it answers at its health endpoint"),
        (EnginePhase::Stopping, "its server, pid 29817, has ended; python (pid 29851) is left"),
        (EnginePhase::Gone, "all its processes have ended, pid 29817 first of them"),
    ];
    assert_eq!(phases, expected.map(|(phase, reason)| (phase, reason.to_owned())));
}

/// SIGKILL of `vllm serve` leaves its engine core and its worker, with their memory.
#[test]
fn leftover_processes_of_a_killed_vllm_are_reported_until_they_end() {
    let observations = observations("vllm-killed", "/health");
    let phases = phases(&observations);
    let stopping = phases.iter().find(|(phase, _)| *phase == EnginePhase::Stopping).unwrap();
    assert_eq!(stopping.1, "its server, pid 4991, has ended; python (pid 5095) is left");
    let names: Vec<EnginePhase> = phases.iter().map(|(phase, _)| *phase).collect();
    let expected = [
        EnginePhase::Starting,
        EnginePhase::Loading,
        EnginePhase::Ready,
        EnginePhase::Stopping,
        EnginePhase::Gone,
    ];
    assert_eq!(names, expected);
    let left = observations.iter().rev().find_map(|(_, seen)| match &seen[0] {
        Observation::Engines(readings) => readings.engines.first(),
        _ => None,
    });
    let left: Vec<&str> = left.unwrap().processes.iter().map(|process| &*process.comm).collect();
    assert_eq!(left, ["python", "VLLM::EngineCor", "VLLM::Worker"]);
}

#[test]
fn a_replayed_recording_of_engines_gives_the_same_phases() {
    let observations = observations("vllm", "/health");
    let begin = SegmentBegin {
        program: "test".to_owned(),
        boot_id: "b".to_owned(),
        started: moment(0.0),
        at: moment(0.0),
        segment: 0,
        goes_on_from: None,
        is_start: true,
        next_decision: DecisionId(1),
        already_counted: Default::default(),
        last_events: Default::default(),
        earlier_acts: Vec::new(),
        awaits_past: false,
        orders: Vec::new(),
        received: Vec::new(),
        pause: None,
        rules: RecordedRules {
            mode: Mode::Observe,
            evaluation_interval: Duration::from_secs(1),
            files: Vec::new(),
            guard_rails: serde_json::Value::Null,
            overrides: serde_json::Value::Null,
            assessment: AssessmentLimits::default(),
            forget_received_after: FORGET_RECEIVED_AFTER,
            cluster: None,
        },
    };
    let folder = tempfile::tempdir().unwrap();
    let mut ring = umawarden::recording::RecordingRing::new(folder.path(), 8 << 20, begin);
    for (at, seen) in &observations {
        let step = RecordedStep { at: *at, seen: seen.clone(), said: StepResult::default() };
        ring.take(&RecordingEntry::Step(step)).unwrap();
    }
    ring.flush().unwrap();
    let mut replayed = Vec::new();
    for file in umawarden::recording::segment_files(folder.path()) {
        let mut reader = SegmentReader::open(fs::File::open(file).unwrap()).unwrap();
        while let Some(entry) = reader.next_entry().unwrap() {
            if let RecordingEntry::Step(step) = entry {
                replayed.push((step.at, step.seen));
            }
        }
    }
    assert_eq!(replayed.len(), observations.len());
    assert_eq!(phases(&replayed), phases(&observations));
}
