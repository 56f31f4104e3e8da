//! Whose model files may be evicted, and when.

use super::*;
use crate::model::{
    EngineHealth, EngineKind, EngineProcess, EngineReadings, EngineSeen, HealthResponse,
    HoldReason, OperatorCommand, OperatorOrder, Prefetch, ProcessId, Target,
};

const RULE: &str = "
groups:
- name: load
  interval: 100ms
  rules:
  - alert: Loads
    expr: uma_memory_free_bytes < 1000
    labels: {engine: NAME}
    remedy:
      steps: [{evict_checkpoint: {behind: 512MiB, for: 5m}}]
      cooldown: 0s
";

fn engine(read_bytes: u64) -> EngineSeen {
    let process = |pid: u32, comm: &str| EngineProcess {
        read_bytes: Reading::Value(read_bytes),
        read_chars: Reading::Value(read_bytes),
        mapped_files: Reading::Value(1),
        mapped_bytes: Reading::Value(read_bytes),
        open_files: Reading::Value(1),
        ..EngineProcess::holding(ProcessId { pid, start_ticks: 7 }, comm, 1 << 30)
    };
    let server = ProcessId { pid: 10, start_ticks: 7 };
    let processes = vec![process(10, "vllm"), process(11, "VLLM::EngineCor")];
    let (name, found_by) = (Arc::from("deepseek"), Arc::from("its command line"));
    EngineSeen {
        model_files: vec![Arc::from("/models/*.safetensors")],
        ..EngineSeen::new(name, EngineKind::Vllm, server, processes, found_by)
    }
}

fn observe(world: &mut World, engine: EngineSeen) {
    let read_at = world.at.uptime;
    let readings = EngineReadings { read_at, engines: vec![engine], ..EngineReadings::default() };
    world.seen.push(Observation::Engines(Box::new(readings)));
}

#[test]
fn only_an_engine_that_loads_is_a_target_with_its_processes_and_files() {
    let mut world = World::new(&RULE.replace("NAME", "deepseek"), Mode::Enforce);
    let held = world.run(INTERVAL * 2);
    let held = decisions(&held);
    assert_eq!(held[0].decision, Decision::Hold(HoldReason::NoTarget), "there is none yet");
    for second in 0..3_u64 {
        observe(&mut world, engine((1 + second) << 33));
        let steps = world.run(INTERVAL * 10);
        let Some(act) = decisions(&steps).into_iter().find(|one| one.is_act()) else {
            continue;
        };
        let Target::Engine(target) = &act.target else { panic!("{:?}", act.target) };
        assert_eq!(target.processes.iter().map(|id| id.pid).collect::<Vec<_>>(), [10, 11]);
        assert_eq!(*target.model_files, [Arc::from("/models/*.safetensors")]);
        let expected = Action::EvictCheckpoint {
            engine: "deepseek".to_owned(),
            behind_bytes: 512 << 20,
            floor_bytes: 0,
            prefetch: Prefetch::Auto,
            for_at_most: Duration::from_secs(300),
        };
        assert_eq!(act.action, expected);
        return;
    }
    panic!("it loads, and nothing is done: {:?}", world.policy.engines());
}

#[test]
fn the_load_of_another_engine_or_a_ready_one_is_no_target() {
    for (name, is_ready) in [("other", false), ("deepseek", true)] {
        let mut world = World::new(&RULE.replace("NAME", name), Mode::Enforce);
        for second in 0..3_u64 {
            let engine = engine((1 + second) << 33);
            observe(&mut world, engine.clone());
            if is_ready {
                world.seen.push(Observation::EngineHealth(Box::new(EngineHealth {
                    key_withheld: None,
                    engine: engine.name,
                    server: engine.server,
                    asked_at: world.at.uptime,
                    answer: HealthResponse::Ready,
                    requests: Reading::Value(0),
                    load: crate::model::EngineLoad::default(),
                })));
            }
            let steps = world.run(INTERVAL * 10);
            assert_eq!(acts(&steps), Vec::<&Action>::new(), "{name} {second}");
        }
    }
}

/// With the rule of that name; the others of the file find nothing here.
const SHIPPED: &str = include_str!("../../../../../rules/engines.yaml");

/// So many engines that load, each of which reads on.
fn engines(names: &[&str], read_bytes: u64) -> Observation {
    let engines = names.iter().zip(0_u32..).map(|(name, number)| {
        let mut seen = engine(read_bytes);
        seen.name = Arc::from(*name);
        for process in &mut seen.processes {
            process.id = ProcessId { pid: process.id.pid + 100 * number, start_ticks: 99_000 };
        }
        seen.server = seen.processes[0].id;
        seen
    });
    Observation::Engines(Box::new(EngineReadings {
        read_at: Duration::ZERO,
        engines: engines.collect(),
        ..EngineReadings::default()
    }))
}

/// Whose loads are followed.
fn evicting(names: &[&str], followed: &[Arc<str>]) -> Observation {
    let series =
        names.iter().map(|name| SeriesKey::new("uma_engine_evicting", &[("engine", name)]));
    let follows = |name: &&str| f64::from(followed.iter().any(|known| **known == **name));
    Observation::Readings(Readings {
        source: Source::Daemon,
        schema: Arc::new(Schema { series: series.collect() }),
        values: names.iter().map(|name| Reading::Value(follows(name))).collect(),
        took: Duration::ZERO,
        error: None,
    })
}

/// What is done for engines that load for so many seconds, by whose name; an act in enforce mode
/// has its load followed.
fn followed(mode: Mode, names: &[&str], seconds: u64) -> (Vec<Arc<str>>, Vec<HoldReason>) {
    let mut world = World::new(SHIPPED, mode);
    let (mut acted, mut held): (Vec<Arc<str>>, _) = (Vec::new(), Vec::new());
    for tick in 0..seconds * 10 {
        let mut seen = engines(names, (1 + tick) << 30);
        if let Observation::Engines(readings) = &mut seen {
            readings.read_at = world.at.uptime;
        }
        let followed = if mode == Mode::Enforce { &*acted } else { &[] };
        world.seen.extend([seen, evicting(names, followed)]);
        let steps = [world.tick()];
        held.extend(holds(&steps));
        for decision in decisions(&steps) {
            if decision.is_act() {
                let Target::Engine(target) = &decision.target else { panic!("{decision:?}") };
                acted.push(Arc::clone(&target.name));
                let result = match mode {
                    Mode::Observe => OutcomeResult::Skipped,
                    Mode::Enforce => OutcomeResult::Done,
                };
                world.report(decision, result);
            }
        }
    }
    (acted, held)
}

#[test]
fn observe_mode_decides_on_each_load_once() {
    let (acted, held) = followed(Mode::Observe, &["a", "b", "c"], 200);
    assert_eq!(acted.iter().map(|name| &**name).collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(held.iter().filter(|held| **held == HoldReason::InForce).count(), 1, "{held:?}");
    assert!(held.iter().all(|held| !matches!(held, HoldReason::Budget | HoldReason::BreakerOpen)));
}

#[test]
fn many_loads_at_once_are_each_evicted_without_a_miss() {
    let names = ["a", "b", "c", "d", "e", "f"];
    let (acted, held) = followed(Mode::Enforce, &names, 30);
    assert_eq!(acted.iter().map(|name| &**name).collect::<Vec<_>>(), names);
    let is_wait = |held: &HoldReason| matches!(held, HoldReason::Cooldown | HoldReason::Busy);
    assert!(held.iter().all(is_wait), "{held:?}");
}

#[test]
fn eviction_ends_with_its_rule_or_a_guard_rail() {
    let mut world = World::new(SHIPPED, Mode::Enforce);
    let rule = RuleId { group: Arc::from("load"), alert: Arc::from("CheckpointLoads") };
    let target = crate::model::EngineTarget {
        name: Arc::from("deepseek"),
        ..crate::model::EngineTarget::default()
    };
    let why = |world: &World| world.policy.stops_following(&rule, &target, world.at);
    assert_eq!(why(&world), None);
    world.policy.replace_rules(world.at, Mode::Observe, &rules(SHIPPED));
    assert_eq!(why(&world), Some("its rule only observes now"));
    let other = SHIPPED.replace("evict_checkpoint: {behind: 64MiB, for: 1h}", "compact_memory: {}");
    world.policy.replace_rules(world.at, Mode::Enforce, &rules(&other));
    assert_eq!(why(&world), Some("its rule is gone, or another one"));
    let mut protecting = rules(SHIPPED);
    let deepseeks = "deep*".to_owned().try_into().unwrap();
    protecting.guard_rails.protect.labels.push(("engine".into(), deepseeks));
    world.policy.replace_rules(world.at, Mode::Enforce, &protecting);
    assert_eq!(why(&world), Some("it is protected now"));
    world.policy.replace_rules(world.at, Mode::Enforce, &RuleSet::default());
    assert_eq!(why(&world), Some("its rule is gone, or another one"));
}

#[test]
fn memory_is_reclaimed_from_the_cgroup_of_the_named_engine() {
    let step = "reclaim: {engine: '{{ $labels.engine }}', bytes: 2GiB}";
    let rule = SHIPPED.replace("evict_checkpoint: {behind: 64MiB, for: 1h}", step);
    for (cgroup, is_own) in
        [(Some("/system.slice/vllm.service"), true), (Some("/"), false), (None, false)]
    {
        let mut world = World::new(&rule, Mode::Enforce);
        let mut seen = engine(1 << 30);
        seen.cgroup = cgroup.map(Arc::from);
        observe(&mut world, seen);
        let steps = world.run(INTERVAL * 2);
        let decisions = decisions(&steps);
        if !is_own {
            assert_eq!(decisions[0].decision, Decision::Hold(HoldReason::NoTarget), "{cgroup:?}");
            continue;
        }
        let path = cgroup.unwrap();
        assert_eq!(decisions[0].target, Target::Cgroup { path: Arc::from(path) });
        let engine = Some("deepseek".to_owned());
        let wanted = Action::Reclaim { cgroup: path.to_owned(), engine, bytes: 2 << 30 };
        assert_eq!((&decisions[0].decision, &decisions[0].action), (&Decision::Act, &wanted));
        let said = "reclaim 2.0 GiB from /system.slice/vllm.service, the control group of engine \
                    deepseek";
        assert_eq!(wanted.to_string(), said);
    }
}

#[test]
fn a_reclaim_from_an_engine_is_done_once_after_approval() {
    let step = "reclaim: {engine: '{{ $labels.engine }}', bytes: 2GiB}";
    let rule = RULE.replace("NAME", "deepseek").replace("cooldown: 0s", "require_approval: true");
    let rule = rule.replace("evict_checkpoint: {behind: 512MiB, for: 5m}", step);
    let mut world = World::new(&rule, Mode::Enforce);
    let seen = EngineSeen { cgroup: Some("/system.slice/vllm.service".into()), ..engine(1 << 30) };
    observe(&mut world, seen);
    let steps = world.run(INTERVAL * 5);
    assert_eq!(holds(&steps), [HoldReason::Approval]);
    let decision = decisions(&steps)[0].id;
    let order = OperatorOrder::Approve { decision, until: world.at.utc + Duration::from_secs(60) };
    let (at, author, comment) = (world.at, "ada".to_owned(), String::new());
    world.seen.push(Observation::Operator(OperatorCommand {
        at,
        author,
        comment,
        order,
        refused: None,
    }));
    let act = world.tick().decisions.remove(0);
    assert_eq!((act.decision, act.approved), (Decision::Act, Some(decision)));
}
