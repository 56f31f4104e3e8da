//! Engines give memory to a start with a higher priority; one that was stopped is started again.

use std::sync::Arc;
use std::time::Duration;

use super::world::{GIB, RestartWorld, engine_in};
use crate::config::mistake::SourceText;
use crate::config::rules::parse_rules;
use crate::model::{
    Action, ClusterNames, ClusterReadings, DecisionRecord, EngineHealth, EngineKind, EngineLoad,
    EngineSeen, GateRequest, HealthResponse, HoldReason, Lease, LeaseReadings, LeaseRequest,
    LeaseShare, LeaseState, Mode, NodeNews, NodeReadings, Observation, OnRequest, OutcomeResult,
    Reading, RestartState, SeriesKey, Target, WorkloadState,
};
use crate::policy::guard::{FleetLimit, FleetLimits, FleetShare};

const RULE: &str = "
groups:
- name: starts
  rules:
  - alert: FreeForStart
    expr: max by (pool) (uma_lease_missing_bytes and on(who) uma_lease_priority > 0) > 0
    for: 1s
    remedy:
      steps:
      - stop_engine: {engine: engine-low, grace: 0s}
";

/// A container with an engine that is ready, and this rule.
fn world(mode: Mode) -> RestartWorld {
    let mut world = RestartWorld::with(mode, &["low"]);
    let rules = parse_rules(&[SourceText::new("for-start.yaml", RULE)], Duration::from_secs(1));
    world.policy.replace_rules(world.at, mode, &rules.unwrap());
    world.engines = vec![EngineSeen {
        health_url: Some("http://127.0.0.1:8000/health".into()),
        ..engine_in("low", 50, 12 * GIB)
    }];
    world.free = 8 * GIB;
    for _ in 0..3 {
        answers(&mut world, 0);
        world.run(1);
    }
    world
}

/// The engine of that index is ready.
fn answers(world: &mut RestartWorld, index: usize) {
    let engine = world.engines[index].clone();
    world.seen.push(Observation::EngineHealth(Box::new(EngineHealth {
        engine: Arc::clone(&engine.name),
        server: engine.server,
        asked_at: world.at.uptime,
        answer: HealthResponse::Ready,
        requests: EngineLoad::default().requests(),
        load: EngineLoad::default(),
        key_withheld: None,
    })));
}

/// A start waits: with this priority, and so much is missing.
fn waits(world: &mut RestartWorld, priority: i32, missing: u64) {
    let LeaseState::Waiting { seen, reasons, behind, is_grantable, .. } =
        LeaseState::waiting(world.at.uptime)
    else {
        unreachable!()
    };
    let missing = vec![LeaseShare { pool: "host".into(), need_bytes: missing }];
    let request = LeaseRequest::new("1".into(), "chat".into(), GateRequest::of(16 * GIB));
    let lease = Lease {
        request: LeaseRequest { priority, ..request },
        since: world.at.uptime,
        state: LeaseState::Waiting { seen, reasons, behind, missing, is_grantable },
    };
    let readings = LeaseReadings { leases: vec![lease].into(), ..LeaseReadings::default() };
    world.seen.push(Observation::Leases(Box::new(readings)));
}

fn stopped(world: &RestartWorld) -> usize {
    let is_stop = |decision: &&DecisionRecord| {
        decision.is_act() && matches!(decision.action, Action::StopEngine { .. })
    };
    world.decisions.iter().filter(is_stop).count()
}

#[test]
fn an_engine_is_stopped_for_a_start_and_started_again_after_it() {
    let mut world = world(Mode::Enforce);
    waits(&mut world, 0, 8 * GIB);
    world.run(10);
    assert_eq!(stopped(&world), 0, "without a priority nothing is stopped");
    waits(&mut world, 5, 8 * GIB);
    assert_eq!(world.value("uma_lease_priority{who=\"chat\"}"), Some(0.0));
    while stopped(&world) == 0 {
        world.tick();
    }
    assert_eq!(
        world.value("uma_lease_missing_bytes{pool=\"host\",who=\"chat\"}"),
        Some(8.0 * GIB as f64)
    );
    let stop = world.decisions.last().unwrap().clone();
    let Target::Engine(target) = &stop.target else { panic!("{stop:?}") };
    assert_eq!(
        (&*target.name, stop.rule.to_string()),
        ("engine-low", "starts/FreeForStart".into())
    );
    // Docker was asked to kill it, and says so.
    world.report(&stop, OutcomeResult::Done);
    let mut end = world.end(137);
    (end.requested, end.is_oom_killed) = (OnRequest::Yes, false);
    world.of("low").state = WorkloadState::Ended(end);
    world.engines.clear();
    world.free = 20 * GIB;
    world.run(20);
    let (state, reason) = world.state("low");
    assert_eq!(state, RestartState::Waiting, "{reason}");
    assert!(reason.contains("it waits its turn: chat waits before it"), "{reason}");
    // The start has its memory, and needs all of it.
    world.seen.push(Observation::Leases(Box::default()));
    world.free = 4 * GIB;
    world.run(20);
    assert!(world.state("low").1.contains("8.0 GiB needed"));
    world.free = 20 * GIB;
    assert_eq!(world.until_start(5).unwrap().0, "low");
    assert_eq!(world.value("uma_restart_deaths_in_a_row{engine=\"low\"}"), Some(0.0));
    assert_eq!(world.value("uma_lease_priority{who=\"chat\"}"), None);
}

/// One node may stop engines, and another one cannot be read.
#[test]
fn the_limit_of_the_fleet_spares_no_engine_that_has_lost_a_rank() {
    let mut world = world(Mode::Enforce);
    let texts = [SourceText::new("for-start.yaml", RULE)];
    let mut rules = parse_rules(&texts, Duration::from_secs(1)).unwrap();
    let nodes = FleetShare { nodes: 1, percent: 0 };
    let limit = FleetLimit { nodes, per: Duration::from_secs(600) };
    rules.guard_rails.fleet = FleetLimits { stop_engine: Some(limit), drop_caches: None };
    world.policy.replace_rules(world.at, Mode::Enforce, &rules);
    let known_for = Duration::from_secs(2);
    let names = ClusterNames { cluster: "c".into(), node: "a".into(), known_for };
    world.policy.set_cluster(Some(names));
    let news = NodeNews::Silent { why: "no route".into(), schema: Arc::default() };
    let nodes = vec![NodeReadings::new("b".into(), news, Duration::ZERO)];
    world.seen.push(Observation::Cluster(Box::new(ClusterReadings { nodes })));
    waits(&mut world, 5, 8 * GIB);
    world.run(30);
    assert_eq!(world.holds(), [HoldReason::FleetUnknown]);
    let series = SeriesKey::new("uma_engine_rank_lost", &[("engine", "engine-low")]);
    world.seen.push(Observation::Sample { series, value: Reading::Value(1.0) });
    world.run(5);
    assert_eq!(stopped(&world), 1);
}

#[test]
fn an_engine_that_nobody_starts_again_and_an_absent_one_are_not_stopped() {
    let mut others = world(Mode::Enforce);
    others.of("low").obstacle = Some("its restart policy is always".into());
    others.run(2);
    waits(&mut others, 5, 8 * GIB);
    others.run(10);
    assert_eq!(others.holds(), [HoldReason::NotStartedAgain]);
    let mut absent = world(Mode::Enforce);
    absent.engines.clear();
    absent.run(2);
    waits(&mut absent, 5, 8 * GIB);
    absent.run(10);
    assert_eq!(absent.holds(), [HoldReason::NoTarget]);
    let mut observed = world(Mode::Observe);
    waits(&mut observed, 5, 8 * GIB);
    observed.run(10);
    let reported = observed.decisions.iter().filter(|one| one.is_act()).count();
    assert_eq!(reported, 1, "observe mode says what it would do");
}

#[test]
fn an_ollama_unloads_its_models_before_an_engine_is_stopped() {
    let mut world = world(Mode::Enforce);
    let steps = RULE.replace(
        "      - stop_engine",
        "      - empty_cache: {engine: ollama}\n      - stop_engine",
    );
    let rules = parse_rules(&[SourceText::new("a.yaml", &steps)], Duration::from_secs(1));
    world.policy.replace_rules(world.at, Mode::Enforce, &rules.unwrap());
    let ollama = EngineSeen {
        name: "ollama".into(),
        kind: EngineKind::Ollama,
        container: None,
        ..engine_in("ollama", 90, GIB)
    };
    world.engines.push(EngineSeen { health_url: Some("http://127.0.0.1:11434/".into()), ..ollama });
    for _ in 0..3 {
        answers(&mut world, 1);
        world.run(1);
    }
    waits(&mut world, 5, 8 * GIB);
    while !world.decisions.iter().any(DecisionRecord::is_act) {
        world.tick();
    }
    let act = world.decisions.last().unwrap().clone();
    assert!(
        matches!(&act.action, Action::EmptyCache { engine, .. } if engine == "ollama"),
        "{act:?}"
    );
    world.report(&act, OutcomeResult::Done);
    // It frees too little.
    while stopped(&world) == 0 {
        world.tick();
    }
}

/// A second gang of a node must not wait for the cooldown of the first.
#[test]
fn of_two_engines_that_a_rule_names_both_are_stopped() {
    let mut world = RestartWorld::with(Mode::Enforce, &["low", "other"]);
    let text = "
groups:
- name: starts
  rules:
  - alert: Stops
    expr: uma_engine_phase{phase=\"ready\"} == 1
    remedy:
      steps: [{stop_engine: {engine: '{{ $labels.engine }}', grace: 0s}}]
      cooldown: 1m
";
    let rules = parse_rules(&[SourceText::new("both.yaml", text)], Duration::from_secs(1));
    world.policy.replace_rules(world.at, Mode::Enforce, &rules.unwrap());
    let url = Some("http://127.0.0.1:8000/health".into());
    world.engines = vec![
        EngineSeen { health_url: url.clone(), ..engine_in("low", 50, GIB) },
        EngineSeen { health_url: url, ..engine_in("other", 60, GIB) },
    ];
    for _ in 0..2 {
        answers(&mut world, 0);
        answers(&mut world, 1);
        world.tick();
    }
    for count in 1..=2 {
        let began = world.at.uptime;
        while stopped(&world) < count {
            world.tick();
        }
        assert!(world.at.uptime - began < Duration::from_secs(4), "{count}");
        let stop = world.decisions.last().unwrap().clone();
        let Target::Engine(target) = &stop.target else { panic!("{stop:?}") };
        world.report(&stop, OutcomeResult::Done);
        let end = world.end(137);
        let container = target.name.strip_prefix("engine-").unwrap();
        world.of(container).state = WorkloadState::Ended(end);
        world.engines.retain(|engine| engine.name != target.name);
    }
}
