//! Engines that die and that nobody here starts again.

use std::sync::Arc;
use std::time::Duration;

use super::world::{GIB, World, engine_in, id, process};
use crate::model::{
    Action, DeathReport, Decision, DecisionId, DecisionRecord, EndedWorkload, EngineKind,
    EnginePhase, EngineReadings, EngineSeen, EngineTarget, Event, EventKind, ExitStatus, Killer,
    Mode, Observation, OutcomeResult, ProcessEnd, ProcessId, ProgramEvent, Requested, RuleId,
    Supervisor, Target, Workload, WorkloadEnd, WorkloadLog,
};

/// One that somebody has started in a shell.
fn bare(pid: u32) -> EngineSeen {
    let processes = vec![process(pid, GIB), process(pid + 1, 6 * GIB)];
    let (name, found_by) = (Arc::from("vllm-8000"), Arc::from("test"));
    let cgroup = Some(Arc::from("/user.slice/user-1000.slice/session-1.scope"));
    EngineSeen {
        cgroup,
        unit: Some("session-1.scope".into()),
        ..EngineSeen::new(name, EngineKind::Vllm, processes[0].id, processes, found_by)
    }
}

fn reports(world: &World) -> Vec<DeathReport> {
    let of = |event: &Event| match &event.kind {
        EventKind::Program(ProgramEvent::EngineDied { report }) => Some((**report).clone()),
        _ => None,
    };
    world.events.iter().filter_map(of).collect()
}

/// A world in which it has lived for a while.
fn with(engine: EngineSeen) -> World {
    let mut world = World::new(Mode::Enforce);
    world.engines = vec![engine];
    world.run(5);
    world
}

fn only(world: &World) -> DeathReport {
    let told = reports(world);
    assert_eq!(told.len(), 1, "{told:#?}");
    told[0].clone()
}

#[test]
fn one_whose_worker_the_kernel_has_killed_is_told_with_that_whatever_it_ended_with() {
    let mut world = with(bare(6));
    // It kills number 7, its worker.
    world.kernel_kills("elsewhere");
    world.engines.clear();
    world.run(3);
    let report = only(&world);
    assert!(matches!(report.killer, Killer::KernelOom { .. }), "{report:#?}");
    assert_eq!((report.exit, report.is_failure), (ExitStatus::Unknown, true));
    assert_eq!(report.killed_workers[0].pid, Some(7));
    assert_eq!((&*report.who.name, report.who.server), ("vllm-8000", Some(bare(6).server)));
    assert_eq!(report.phase, Some(EnginePhase::Loading));
    assert_eq!(report.memory.unwrap().own_bytes, Some(7 * GIB));
    // Since its process began, by the ticks of that.
    assert!(report.lived_seconds.is_some_and(|lived| (950.0..1_000.0).contains(&lived)));
    assert_eq!(world.value("uma_events_total{event=\"engine_died\"}"), Some(1.0));
}

fn end(engine: &EngineSeen, process: ProcessId, status: ExitStatus) -> ProcessEnd {
    ProcessEnd { id: process, server: engine.server, comm: "vllm".into(), status }
}

#[test]
fn one_of_which_the_kernel_tells_has_its_code_or_its_signal() {
    let code = |code| ExitStatus::Code { code };
    let killed = ExitStatus::Signal { signal: 9 };
    for (status, is_failure) in [(code(3), true), (code(0), false), (killed, true)] {
        let mut world = with(bare(50));
        let engine = world.engines.remove(0);
        world.process_ends = vec![end(&engine, engine.server, status)];
        world.run(3);
        let report = only(&world);
        assert_eq!((report.exit, report.is_failure), (status, is_failure), "{report:#?}");
        let is_signal = matches!(report.killer, Killer::Signal { signal: 9, sender: None });
        assert_eq!(is_signal, status == killed, "{report:#?}");
    }
}

#[test]
fn a_worker_that_was_killed_before_its_server_ended_is_named_and_one_of_long_ago_is_not() {
    let killed = ExitStatus::Signal { signal: 9 };
    for (seconds, is_named) in [(3, true), (30, false)] {
        let mut world = with(bare(50));
        let engine = world.engines[0].clone();
        let worker = engine.processes[1].id;
        world.engines[0].processes.truncate(1);
        world.process_ends = vec![end(&engine, worker, killed)];
        world.run(seconds);
        world.engines.clear();
        world.process_ends = vec![end(&engine, engine.server, ExitStatus::Code { code: 0 })];
        world.run(3);
        let report = only(&world);
        let pids: Vec<_> = report.killed_workers.iter().map(|worker| worker.pid).collect();
        let expected = if is_named { vec![Some(worker.pid)] } else { Vec::new() };
        assert_eq!((pids, report.is_failure), (expected, is_named), "{report:#?}");
    }
}

#[test]
fn what_nobody_could_be_told_is_unknown_and_no_failure() {
    let mut world = with(bare(50));
    world.engines.clear();
    world.run(3);
    let report = only(&world);
    assert!(matches!(report.killer, Killer::Unknown { .. }), "{report:#?}");
    assert!(!report.is_failure && report.proofs.is_empty(), "{report:#?}");
    let told = report.sentence();
    assert!(told.ends_with("; why is not known: nobody was told how it ended"), "{told}");
}

#[test]
fn a_worker_that_outlives_its_server_is_left_and_the_death_is_told_once() {
    let mut world = with(bare(50));
    world.engines[0].processes.remove(0);
    world.run(3);
    world.engines.clear();
    world.run(3);
    let report = only(&world);
    assert_eq!(report.orphans.iter().map(|left| left.id.pid).collect::<Vec<_>>(), [51]);
    assert_eq!(report.orphans[0].bytes, Some(6 * GIB));
}

#[test]
fn nobody_is_told_dead_who_is_a_part_of_another_or_not_looked_at_or_told_of_by_others() {
    let lives_on = |world: &mut World| {
        let mut head = process(9, GIB);
        head.id.start_ticks = 4000;
        let processes = [vec![head], world.engines[0].processes.clone()].concat();
        world.engines = vec![EngineSeen {
            server: ProcessId { pid: 9, start_ticks: 4000 },
            processes,
            is_launched: true,
            ..bare(50)
        }];
    };
    let mut world = with(bare(50));
    lives_on(&mut world);
    world.run(3);
    assert_eq!(reports(&world), [], "it was launched, and has another head by now");
    world.engines.clear();
    world.run(3);
    assert_eq!(reports(&world), [], "whoever has launched it tells");
    // More engines than are looked at.
    let mut world = with(bare(50));
    let engines = std::mem::take(&mut world.engines);
    let read_at = world.at.uptime + Duration::from_secs(1);
    world.at.uptime += Duration::from_secs(2);
    let cut = EngineReadings { read_at, is_cut: true, ..EngineReadings::default() };
    world.policy.step(world.at, &[Observation::Engines(Box::new(cut))]);
    world.engines = engines;
    world.run(3);
    assert_eq!(reports(&world), []);
    // It is declared no longer.
    let mut world = with(bare(50));
    let engines = std::mem::take(&mut world.engines);
    let read_at = world.at.uptime + Duration::from_secs(1);
    world.at.uptime += Duration::from_secs(2);
    let turned = vec![engines[0].server];
    let other = EngineReadings { read_at, turned, ..EngineReadings::default() };
    world.policy.step(world.at, &[Observation::Engines(Box::new(other))]);
    world.run(3);
    assert_eq!(reports(&world), []);
    // What is started again is told of by whoever does that, once.
    let mut world = World::with(Mode::Enforce, &["vllm"]);
    world.engines = vec![engine_in("vllm", 4242, GIB)];
    world.run(3);
    world.engines.clear();
    world.dies("vllm");
    world.run(8);
    assert_eq!(only(&world).who.container_name.as_deref(), Some("vllm"));
}

#[test]
fn one_that_docker_starts_again_itself_against_its_label_is_told_once() {
    for stays_down in [false, true] {
        let mut world = World::with(Mode::Enforce, &["vllm"]);
        world.of("vllm").obstacle = Some("Docker starts it again itself".into());
        world.engines = vec![engine_in("vllm", 4242, GIB)];
        world.run(3);
        world.engines.clear();
        match stays_down {
            true => world.dies("vllm"),
            false => world.starts("vllm"),
        }
        let (told, name) = (ended(&world, 137, Requested::No), Arc::from("vllm"));
        let target = Workload { name, id: id("vllm").into(), ..told.target };
        world.ended = vec![EndedWorkload { target, end: told.end }];
        world.run(8);
        let report = only(&world);
        assert_eq!(report.who.container.as_deref(), Some(&*id("vllm")));
        assert_eq!(report.exit, ExitStatus::Code { code: 137 });
    }
}

#[test]
fn what_docker_starts_again_itself_and_holds_no_engine_is_told_by_how_it_stands() {
    let mut world = World::with(Mode::Enforce, &["vllm"]);
    world.of("vllm").obstacle = Some("Docker starts it again itself".into());
    world.run(3);
    world.dies("vllm");
    world.run(8);
    assert_eq!(only(&world).who.container.as_deref(), Some(&*id("vllm")));
}

fn ended(world: &World, code: i32, requested: Requested) -> EndedWorkload {
    let log = WorkloadLog::Lines(vec!["torch.OutOfMemoryError: CUDA out of memory.".to_owned()]);
    let (name, id) = ("llm".into(), id("llm").into());
    let target = Workload { supervisor: Supervisor::Docker, name, id };
    let log = Some(Arc::new(log));
    EndedWorkload {
        target,
        end: WorkloadEnd { is_oom_killed: false, requested, log, ..world.end(code) },
    }
}

fn in_container() -> EngineSeen {
    EngineSeen { container_name: Some("llm".into()), ..engine_in("llm", 50, GIB) }
}

#[test]
fn of_one_in_a_container_docker_tells_how_it_ended_and_is_waited_for_not_for_long() {
    let mut world = with(in_container());
    world.engines.clear();
    let ended = ended(&world, 1, Requested::No);
    world.run(2);
    assert_eq!(reports(&world), [], "Docker may tell");
    world.ended = vec![ended.clone()];
    world.run(1);
    let report = only(&world);
    assert_eq!((report.exit, report.is_failure), (ExitStatus::Code { code: 1 }, true));
    let Killer::Itself { reason: Some(reason) } = &report.killer else { panic!("{report:#?}") };
    assert!(reason.contains("CUDA out of memory"), "{reason}");
    let of = |name: &Option<Arc<str>>| name.as_deref().map(str::to_owned);
    assert_eq!(of(&report.who.container_name), Some("llm".to_owned()));
    assert_eq!(of(&report.who.container), Some(id("llm")));
    // Another life of it, of whose end that one is not.
    world.engines = vec![EngineSeen { ..in_container() }];
    world.run(30);
    world.engines.clear();
    world.run(3);
    assert_eq!(reports(&world).len(), 1);
    world.run(3);
    let told = reports(&world);
    assert_eq!(told.len(), 2);
    assert_eq!(told[1].exit, ExitStatus::Unknown, "Docker has not told");
}

#[test]
fn of_one_in_a_service_systemd_tells_how_it_ended() {
    let in_service = |cgroup: &str| EngineSeen {
        unit: Some("vllm.service".into()),
        cgroup: Some(cgroup.into()),
        ..bare(50)
    };
    let of_systemd = |world: &World, requested| {
        let (name, id) = ("vllm.service".into(), "vllm.service".into());
        let target = Workload { supervisor: Supervisor::Systemd, name, id };
        EndedWorkload { target, ..ended(world, 0, requested) }
    };
    let mut world = with(in_service("/system.slice/vllm.service"));
    world.kernel_kills("elsewhere");
    world.engines.clear();
    world.ended = vec![of_systemd(&world, Requested::No)];
    world.run(2);
    let report = only(&world);
    assert_eq!(
        (report.exit, &report.who.unit),
        (ExitStatus::Code { code: 0 }, &Some("vllm.service".into()))
    );
    let mut world = with(in_service("/system.slice/vllm.service"));
    world.engines.clear();
    world.ended = vec![of_systemd(&world, Requested::Yes)];
    world.run(2);
    let Killer::Signal { sender: Some(sender), .. } = only(&world).killer else { panic!() };
    assert_eq!(sender, "systemctl");
    // That of a user's own systemd is another.
    let cgroup = "/user.slice/user-1.slice/user@1.service/app.slice/vllm.service";
    let mut world = with(in_service(cgroup));
    world.engines.clear();
    world.ended = vec![of_systemd(&world, Requested::No)];
    world.run(2);
    assert_eq!((only(&world).exit, only(&world).who.unit), (ExitStatus::Unknown, None));
}

#[test]
fn where_docker_does_not_answer_nobody_waits_for_it() {
    let mut world = with(in_container());
    world.docker_fails = true;
    world.run(1);
    world.engines.clear();
    world.run(1);
    assert_eq!(only(&world).exit, ExitStatus::Unknown);
}

#[test]
fn one_that_somebody_has_stopped_is_no_failure() {
    let mut world = with(in_container());
    world.engines.clear();
    world.ended = vec![ended(&world, 143, Requested::Yes)];
    world.run(2);
    let report = only(&world);
    let Killer::Signal { signal: 15, sender: Some(sender) } = &report.killer else {
        panic!("{report:#?}")
    };
    assert!(sender.contains("docker stop") && !report.is_failure, "{report:#?}");
}

fn stop(engine: &EngineSeen) -> DecisionRecord {
    DecisionRecord {
        id: DecisionId(7),
        at: World::new(Mode::Enforce).at,
        rule: RuleId { group: "brake".into(), alert: "MemoryRunsOut".into() },
        mode: Mode::Enforce,
        decision: Decision::Act,
        step: 0,
        action: Action::StopEngine { grace_ms: 0, unless_free_bytes: None, for_reboot: None },
        target: Target::Engine(Box::new(EngineTarget::from(engine))),
        approved: None,
        because: Vec::new(),
    }
}

#[test]
fn one_that_this_program_has_stopped_is_told_with_the_rule_that_did() {
    let mut held = World::with(Mode::Enforce, &["vllm"]);
    held.engines = vec![engine_in("vllm", 4242, GIB)];
    held.run(3);
    for (mut world, name) in [(with(bare(50)), None), (held, Some("vllm"))] {
        let engine = world.engines[0].clone();
        world.policy.kills.decided(&DecisionRecord { at: world.at, ..stop(&engine) });
        world.engines.clear();
        if let Some(name) = name {
            world.dies(name);
        }
        world.run(2);
        let report = only(&world);
        let Killer::Umawarden { rule: Some(rule), .. } = &report.killer else {
            panic!("{report:#?}")
        };
        assert_eq!((&*rule.alert, report.is_failure), ("MemoryRunsOut", true));
    }
    // What was not done has killed nobody.
    let mut world = with(bare(50));
    let decision = DecisionRecord { at: world.at, ..stop(&world.engines[0]) };
    world.policy.kills.decided(&decision);
    world.report(&decision, OutcomeResult::NotDone("enough is free".to_owned()));
    world.tick();
    world.engines.clear();
    world.run(2);
    assert!(matches!(only(&world).killer, Killer::Unknown { .. }));
}
