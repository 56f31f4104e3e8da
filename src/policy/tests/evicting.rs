//! Whose model files may be put out of memory, and when.

use super::*;
use crate::model::{
    EngineHealth, EngineKind, EngineProcess, EngineReadings, EngineSeen, HealthAnswer, HoldReason,
    ProcessId, Target,
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

fn look(world: &mut World, engine: EngineSeen) {
    let read_at = world.at.uptime;
    let readings = EngineReadings { read_at, engines: vec![engine], ..EngineReadings::default() };
    world.seen.push(Observation::Engines(Box::new(readings)));
}

#[test]
fn only_an_engine_that_loads_is_a_target_with_its_processes_and_files() {
    let mut world = World::new(&RULE.replace("NAME", "deepseek"), Mode::Enforce);
    let held = world.run(INTERVAL * 2);
    let held = decisions(&held);
    assert_eq!(held[0].verdict, Verdict::Hold(HoldReason::NoTarget), "there is none yet");
    for second in 0..3_u64 {
        look(&mut world, engine((1 + second) << 33));
        let steps = world.run(INTERVAL * 10);
        let Some(act) = decisions(&steps).into_iter().find(|one| one.verdict == Verdict::Act)
        else {
            continue;
        };
        let Target::Engine(target) = &act.target else { panic!("{:?}", act.target) };
        assert_eq!(target.processes.iter().map(|id| id.pid).collect::<Vec<_>>(), [10, 11]);
        assert_eq!(*target.model_files, [Arc::from("/models/*.safetensors")]);
        let expected = Action::EvictCheckpoint {
            engine: "deepseek".to_owned(),
            behind_bytes: 512 << 20,
            floor_bytes: 0,
            for_at_most: Duration::from_secs(300),
        };
        assert_eq!(act.action, expected);
        return;
    }
    panic!("it loads, and nothing is done: {:?}", world.policy.engines());
}

#[test]
fn another_engines_load_is_no_reason_and_neither_is_one_that_is_ready() {
    for (name, is_ready) in [("other", false), ("deepseek", true)] {
        let mut world = World::new(&RULE.replace("NAME", name), Mode::Enforce);
        for second in 0..3_u64 {
            let engine = engine((1 + second) << 33);
            look(&mut world, engine.clone());
            if is_ready {
                world.seen.push(Observation::EngineHealth(Box::new(EngineHealth {
                    engine: engine.name,
                    server: engine.server,
                    asked_at: world.at.uptime,
                    answer: HealthAnswer::Ready,
                    requests: Reading::Value(0),
                    load: crate::model::EngineLoad::default(),
                })));
            }
            let steps = world.run(INTERVAL * 10);
            assert_eq!(acts(&steps), Vec::<&Action>::new(), "{name} {second}");
        }
    }
}
