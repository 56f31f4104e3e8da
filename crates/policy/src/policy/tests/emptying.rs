//! Which engines are asked to give memory back, and when.

use super::*;
use crate::model::{
    CachePermission, EngineHealth, EngineKind, EngineLoad, EngineProcess, EngineReadings,
    EngineSeen, HealthResponse, HoldReason, ProcessId, Target,
};

const RULE: &str = "
groups:
- name: engines
  interval: 100ms
  rules:
  - alert: Keeps
    expr: uma_memory_free_bytes < 1000
    labels: {engine: llm}
    remedy:
      steps: [{empty_cache: {engine: '{{ $labels.engine }}', allow: [drop_prefix_cache]}}]
      cooldown: 0s
";

fn engine(kind: EngineKind) -> EngineSeen {
    let server = ProcessId { pid: 10, start_ticks: 7 };
    let process = EngineProcess::holding(server, "python3", 1 << 30);
    let (name, found_by) = (Arc::from("llm"), Arc::from("its command line"));
    EngineSeen {
        health_url: Some(Arc::from("http://127.0.0.1:30000/ready")),
        health_network: Some(Arc::from("net:[7]")),
        ..EngineSeen::new(name, kind, server, vec![process], found_by)
    }
}

fn see(world: &mut World, engine: &EngineSeen, answer: HealthResponse) {
    let read_at = world.at.uptime;
    let readings =
        EngineReadings { read_at, engines: vec![engine.clone()], ..EngineReadings::default() };
    world.seen.push(Observation::Engines(Box::new(readings)));
    let load = EngineLoad {
        running: Reading::Value(2),
        waiting: Reading::Value(1),
        kv_cache_usage: Reading::Value(0.5),
        ..EngineLoad::default()
    };
    world.seen.push(Observation::EngineHealth(Box::new(EngineHealth {
        key_withheld: None,
        engine: Arc::clone(&engine.name),
        server: engine.server,
        asked_at: read_at,
        answer,
        requests: load.requests(),
        load,
    })));
}

/// What is decided of an engine that has answered so.
fn decided(engine: &EngineSeen, answer: HealthResponse) -> DecisionRecord {
    let mut world = World::new(RULE, Mode::Enforce);
    see(&mut world, engine, answer);
    let steps = world.run(INTERVAL * 10);
    decisions(&steps)[0].clone()
}

#[test]
fn a_ready_engine_is_a_target_with_its_address_and_key() {
    let seen = engine(EngineKind::Sglang);
    let act = decided(&seen, HealthResponse::Ready);
    assert_eq!(act.decision, Decision::Act);
    let allow = [CachePermission::DropPrefixCache].into();
    assert_eq!(act.action, Action::EmptyCache { engine: "llm".to_owned(), allow });
    assert_eq!(act.action.to_string(), "empty_cache of llm, which may drop_prefix_cache");
    let Target::Engine(target) = &act.target else { panic!("{:?}", act.target) };
    assert_eq!(target.processes, [seen.server]);
    assert_eq!((target.kind, &target.health_url), (seen.kind, &seen.health_url));
    assert_eq!(target.health_network, seen.health_network);
}

#[test]
fn an_engine_without_an_emptying_call_is_held() {
    let sglang = engine(EngineKind::Sglang);
    let dumb = EngineSeen { health_url: None, ..sglang.clone() };
    let not_ready = HealthResponse::NotReady { status: 503 };
    for (engine, answer) in [
        (&sglang, not_ready),
        (&sglang, HealthResponse::Refused),
        (&dumb, HealthResponse::Ready),
        (&engine(EngineKind::TensorRtLlm), HealthResponse::Ready),
        (&engine(EngineKind::Tgi), HealthResponse::Ready),
        (&engine(EngineKind::Declared), HealthResponse::Ready),
    ] {
        let held = decided(engine, answer.clone());
        assert_eq!(held.decision, Decision::Hold(HoldReason::NoTarget), "{engine:?} {answer:?}");
    }
    // It says itself why not.
    let vllm = decided(&engine(EngineKind::Vllm), HealthResponse::Ready);
    assert_eq!(vllm.decision, Decision::Act);
}

#[test]
fn the_reported_load_of_an_engine_is_a_series_while_it_is_ready() {
    let seen = engine(EngineKind::Sglang);
    let mut world = World::new(RULE, Mode::Observe);
    see(&mut world, &seen, HealthResponse::Ready);
    world.run(INTERVAL * 2);
    let mut of = |name: &str| world.value(&format!("{name}{{engine=\"llm\"}}"));
    assert_eq!(of("uma_engine_requests"), Some(3.0));
    assert_eq!(of("uma_engine_requests_running"), Some(2.0));
    assert_eq!(of("uma_engine_requests_waiting"), Some(1.0));
    assert_eq!(of("uma_engine_kv_cache_usage_ratio"), Some(0.5));
    assert_eq!(of("uma_engine_sleeping"), None, "it does not report it");
    let gone = EngineReadings {
        read_at: world.at.uptime,
        engines: Vec::new(),
        ..EngineReadings::default()
    };
    world.seen.push(Observation::Engines(Box::new(gone)));
    world.run(INTERVAL * 2);
    assert_eq!(world.value("uma_engine_requests_running{engine=\"llm\"}"), None);
}
