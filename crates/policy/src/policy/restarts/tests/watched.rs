//! Deaths of engines that this program does not restart.

mod launched;

use std::sync::Arc;
use std::time::Duration;

use super::world::{GIB, RestartWorld, engine_in, id, process};
use crate::model::{
    Action, DeathReport, Decision, DecisionId, DecisionRecord, EndedWorkload, EngineKind,
    EnginePhase, EngineReadings, EngineSeen, EngineTarget, Event, EventKind, ExitStatus, Killer,
    Mode, Observation, OnRequest, Outcome, OutcomeResult, Pod, ProcessEnd, ProcessId, ProgramEvent,
    Proof, Reading, Readings, RestartReadings, RuleId, Schema, SeriesKey, Source, Supervisor,
    Target, UserUnit, Workload, WorkloadEnd, WorkloadLog,
};

/// An engine started in a shell.
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

fn reports(world: &RestartWorld) -> Vec<DeathReport> {
    let of = |event: &Event| match &event.kind {
        EventKind::Program(ProgramEvent::EngineDied { report }) => Some((**report).clone()),
        _ => None,
    };
    world.events.iter().filter_map(of).collect()
}

/// A world in which it has lived for a while.
fn with(engine: EngineSeen) -> RestartWorld {
    let mut world = RestartWorld::new(Mode::Enforce);
    world.engines = vec![engine];
    world.run(5);
    world
}

fn only(world: &RestartWorld) -> DeathReport {
    let reports = reports(world);
    assert_eq!(reports.len(), 1, "{reports:#?}");
    reports[0].clone()
}

#[test]
fn a_killed_worker_is_reported_despite_the_exit_code_of_its_server() {
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
    let failures = |world: &mut RestartWorld, labels: &str| {
        world.value(&format!("uma_engine_failures_total{{{labels}}}"))
    };
    let labels = "killer=\"kernel_oom\",when=\"before_ready\"";
    assert_eq!(failures(&mut world, labels), Some(1.0));
    let labels = "killer=\"kernel_oom\",when=\"in_service\"";
    assert_eq!(failures(&mut world, labels), Some(0.0));
}

/// Series that this world does not have, with their values.
fn readings(values: &[(&str, f64)]) -> Observation {
    let series = values.iter().map(|(name, _)| SeriesKey::new(name, &[])).collect();
    Observation::Readings(Readings {
        source: Source::Vmstat,
        schema: Arc::new(Schema { series }),
        values: values.iter().map(|(_, value)| Reading::Value(*value)).collect(),
        took: Duration::ZERO,
        error: None,
    })
}

#[test]
fn the_memory_of_a_death_has_the_free_swap() {
    let mut world = with(bare(50));
    world.engines.clear();
    world.seen.push(readings(&[("uma_swap_free_bytes", 4096.0)]));
    world.run(3);
    assert_eq!(only(&world).memory.unwrap().swap_free_bytes, Some(4096));
}

fn end(engine: &EngineSeen, process: ProcessId, status: ExitStatus) -> ProcessEnd {
    ProcessEnd { id: process, server: engine.server, comm: "vllm".into(), status }
}

#[test]
fn an_end_reported_by_the_kernel_has_its_code_or_signal() {
    let code = |code| ExitStatus::Code { code };
    let signal = |signal| ExitStatus::Signal { signal };
    let killed = signal(9);
    let ends = [(code(3), true), (code(0), false), (killed, true), (signal(15), false)];
    for (status, is_failure) in ends {
        let mut world = with(bare(50));
        let engine = world.engines.remove(0);
        world.process_ends = vec![end(&engine, engine.server, status)];
        world.run(3);
        let report = only(&world);
        assert_eq!((report.exit, report.is_failure), (status, is_failure), "{report:#?}");
        let counted = Killer::NAMES.iter().flat_map(|killer| {
            let labels = format!("killer=\"{killer}\",when=\"before_ready\"");
            world.value(&format!("uma_engine_failures_total{{{labels}}}"))
        });
        assert_eq!(counted.sum::<f64>(), f64::from(is_failure), "{report:#?}");
        let is_signal = matches!(report.killer, Killer::Signal { signal: 9, sender: None });
        assert_eq!(is_signal, status == killed, "{report:#?}");
    }
}

/// earlyoom kills when memory runs short, and what the engine had is free when its end is noticed.
#[test]
fn a_signal_is_in_doubt_shortly_after_memory_ran_short() {
    let available =
        |bytes| readings(&[("uma_memory_available_bytes", bytes), ("uma_swap_free_bytes", 0.0)]);
    for (short, then, is_new) in [(1, 2, true), (1, 30, false), (90, 2, false)] {
        for signal in [9, 15] {
            let mut world = with(bare(50));
            world.seen.push(available(1e9));
            world.run(short);
            world.seen.push(available(20e9));
            world.run(then);
            let engine = world.engines.remove(0);
            world.process_ends = vec![end(&engine, engine.server, ExitStatus::Signal { signal })];
            world.run(3);
            let report = only(&world);
            assert_eq!(report.is_failure, is_new || signal == 9, "{short} {then}: {report:?}");
            assert_eq!(report.killer.name(), if is_new { "unknown" } else { "signal" });
        }
    }
}

/// A kubelet whose runtime is not queried ends a container whose liveness probe fails. A user's
/// systemd, which is not queried either, ends what its user stops.
#[test]
fn a_sigterm_of_an_unknown_runtime_is_a_failure_and_of_a_users_systemd_none() {
    let claimed_container = Some(id("vllm").into());
    let in_container = EngineSeen { claimed_container, ..bare(50) };
    let user_unit = Some(UserUnit { user: 1000, name: "vllm.service".into() });
    let in_unit = EngineSeen { user_unit, ..bare(50) };
    for (engine, signal, is_failure) in
        [(&in_container, 15, true), (&in_unit, 15, false), (&in_unit, 9, true)]
    {
        let mut world = with(engine.clone());
        let engine = world.engines.remove(0);
        world.process_ends = vec![end(&engine, engine.server, ExitStatus::Signal { signal })];
        world.run(5);
        let report = only(&world);
        assert_eq!(report.is_failure, is_failure, "{report:#?}");
    }
}

#[test]
fn a_worker_killed_shortly_before_its_server_is_named_and_an_older_one_is_not() {
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
fn an_unobserved_exit_is_unknown_and_no_failure() {
    let mut world = with(bare(50));
    world.engines.clear();
    world.run(3);
    let report = only(&world);
    assert!(matches!(report.killer, Killer::Unknown { .. }), "{report:#?}");
    assert!(!report.is_failure && report.proofs.is_empty(), "{report:#?}");
    let sentence = report.sentence();
    assert!(
        sentence.ends_with("; why is not known: its exit status was not observed"),
        "{sentence}"
    );
}

#[test]
fn a_surviving_worker_is_an_orphan_and_the_death_is_reported_once() {
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
fn deaths_of_parts_unsampled_engines_and_launched_commands_are_not_reported() {
    let lives_on = |world: &mut RestartWorld| {
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
    assert_eq!(reports(&world), [], "`launch` reports it");
    // More engines than are sampled.
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
    // A deferred restart reports its own deaths, once.
    let mut world = RestartWorld::with(Mode::Enforce, &["vllm"]);
    world.engines = vec![engine_in("vllm", 4242, GIB)];
    world.run(3);
    world.engines.clear();
    world.dies("vllm");
    world.run(8);
    assert_eq!(only(&world).who.container_name.as_deref(), Some("vllm"));
}

#[test]
fn a_death_restarted_by_docker_against_its_label_is_reported_once() {
    for stays_down in [false, true] {
        let mut world = RestartWorld::with(Mode::Enforce, &["vllm"]);
        world.of("vllm").obstacle = Some("Docker starts it again itself".into());
        world.engines = vec![engine_in("vllm", 4242, GIB)];
        world.run(3);
        world.engines.clear();
        match stays_down {
            true => world.dies("vllm"),
            false => world.starts("vllm"),
        }
        let (ended, name) = (ended(&world, 137, OnRequest::No), Arc::from("vllm"));
        let target = Workload { name, id: id("vllm").into(), ..ended.target };
        world.ended = vec![EndedWorkload { target, end: ended.end }];
        world.run(8);
        let report = only(&world);
        assert_eq!(report.who.container.as_deref(), Some(&*id("vllm")));
        assert_eq!(report.exit, ExitStatus::Code { code: 137 });
    }
}

#[test]
fn a_container_without_engine_restarted_by_docker_is_reported_by_its_state() {
    let mut world = RestartWorld::with(Mode::Enforce, &["vllm"]);
    world.of("vllm").obstacle = Some("Docker starts it again itself".into());
    world.run(3);
    world.dies("vllm");
    world.run(8);
    assert_eq!(only(&world).who.container.as_deref(), Some(&*id("vllm")));
}

/// Its server may be seen as a zombie before its container has ended, or its container may live on.
#[test]
fn an_engine_that_was_never_ready_did_not_die_serving() {
    for is_seen_as_zombie in [true, false] {
        let mut world = RestartWorld::with(Mode::Enforce, &["vllm"]);
        world.dies("vllm");
        world.run(1);
        world.starts("vllm");
        world.events.clear();
        world.engines = vec![engine_in("vllm", 4242, 6 * GIB)];
        world.run(5);
        match is_seen_as_zombie {
            true => world.engines[0].processes[0].state = 'Z',
            false => {
                world.engines.clear();
                world.run(70);
            }
        }
        world.run(1);
        world.engines.clear();
        world.dies("vllm");
        world.run(8);
        let phase = only(&world).phase;
        assert!(phase.is_some_and(|phase| phase <= EnginePhase::Loading), "{phase:?}");
    }
}

#[test]
fn an_engine_that_stops_listening_dies_in_the_phase_before() {
    let mut world = with(bare(50));
    world.engines[0].port = Some(8000);
    for listens in [true, false] {
        world.engines[0].is_listening = Reading::Value(listens);
        world.run(2);
    }
    assert_eq!(world.policy.engines()[0].phase, EnginePhase::Stopping);
    world.engines.clear();
    world.run(3);
    assert_eq!(only(&world).phase, Some(EnginePhase::Ready), "it had no request");
}

fn ended(world: &RestartWorld, code: i32, requested: OnRequest) -> EndedWorkload {
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
fn the_exit_of_a_container_comes_from_docker_within_a_short_wait() {
    let mut world = with(in_container());
    world.engines.clear();
    let ended = ended(&world, 1, OnRequest::No);
    world.run(2);
    assert_eq!(reports(&world), [], "Docker may report it");
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
    let reports = reports(&world);
    assert_eq!(reports.len(), 2);
    assert_eq!(reports[1].exit, ExitStatus::Unknown, "Docker has not reported it");
}

#[test]
fn the_exit_of_a_service_comes_from_systemd() {
    let in_service = |cgroup: &str| EngineSeen {
        unit: Some("vllm.service".into()),
        cgroup: Some(cgroup.into()),
        ..bare(50)
    };
    let of_systemd = |world: &RestartWorld, requested| {
        let (name, id) = ("vllm.service".into(), "vllm.service".into());
        let target = Workload { supervisor: Supervisor::Systemd, name, id };
        EndedWorkload { target, ..ended(world, 0, requested) }
    };
    let mut world = with(in_service("/system.slice/vllm.service"));
    world.kernel_kills("elsewhere");
    world.engines.clear();
    world.ended = vec![of_systemd(&world, OnRequest::No)];
    world.run(2);
    let report = only(&world);
    assert_eq!(
        (report.exit, &report.who.unit),
        (ExitStatus::Code { code: 0 }, &Some("vllm.service".into()))
    );
    let mut world = with(in_service("/system.slice/vllm.service"));
    world.engines.clear();
    world.ended = vec![of_systemd(&world, OnRequest::Yes)];
    world.run(2);
    let Killer::Signal { sender: Some(sender), .. } = only(&world).killer else { panic!() };
    assert_eq!(sender, "systemctl");
    // That of a user's own systemd is another.
    let cgroup = "/user.slice/user-1.slice/user@1.service/app.slice/vllm.service";
    let mut world = with(in_service(cgroup));
    world.engines.clear();
    world.ended = vec![of_systemd(&world, OnRequest::No)];
    world.run(2);
    assert_eq!((only(&world).exit, only(&world).who.unit), (ExitStatus::Unknown, None));
}

#[test]
fn a_death_report_does_not_wait_for_a_silent_docker() {
    let mut world = with(in_container());
    world.docker_fails = true;
    world.run(1);
    world.engines.clear();
    world.run(1);
    assert_eq!(only(&world).exit, ExitStatus::Unknown);
}

#[test]
fn a_stopped_engine_is_no_failure() {
    let mut world = with(in_container());
    world.engines.clear();
    world.ended = vec![ended(&world, 143, OnRequest::Yes)];
    world.run(2);
    let report = only(&world);
    let Killer::Signal { signal: 15, sender: Some(sender) } = &report.killer else {
        panic!("{report:#?}")
    };
    assert!(sender.contains("docker stop") && !report.is_failure, "{report:#?}");
}

/// Docker ends with SIGKILL what does not stop in time.
#[test]
fn the_signal_of_a_stop_does_not_contradict_the_exit_code() {
    for (code, signal, ends_with) in [
        (
            137,
            9,
            "with exit code 137, which means SIGKILL; killed by SIGKILL from docker stop or \
                  docker kill",
        ),
        (
            130,
            2,
            "with exit code 130, which means SIGINT; killed by SIGINT from docker stop or \
                  docker kill",
        ),
        (0, 15, "with exit code 0; asked to end by SIGTERM from docker stop or docker kill"),
        (
            139,
            15,
            "with exit code 139, which means SIGSEGV; asked to end by SIGTERM from docker \
                   stop or docker kill",
        ),
    ] {
        let mut world = with(in_container());
        world.engines.clear();
        world.ended = vec![ended(&world, code, OnRequest::Yes)];
        world.run(2);
        let report = only(&world);
        let sentence = report.sentence();
        assert!(sentence.ends_with(ends_with), "{sentence}");
        let is_it = matches!(report.killer, Killer::Signal { signal: is, .. } if is == signal);
        assert!(is_it && !report.is_failure, "{report:#?}");
    }
}

fn stop(engine: &EngineSeen) -> DecisionRecord {
    DecisionRecord {
        id: DecisionId(7),
        at: RestartWorld::new(Mode::Enforce).at,
        rule: RuleId { group: "brake".into(), alert: "MemoryRunsOut".into() },
        mode: Mode::Enforce,
        decision: Decision::Act,
        step: 0,
        action: Action::StopEngine {
            engine: None,
            grace_ms: 0,
            unless_free_bytes: None,
            for_reboot: None,
        },
        target: Target::Engine(Box::new(EngineTarget::from(engine))),
        approved: None,
        goes_ahead: None,
        because: Vec::new(),
    }
}

#[test]
fn an_engine_stopped_by_this_program_is_reported_with_the_rule() {
    let mut held = RestartWorld::with(Mode::Enforce, &["vllm"]);
    held.engines = vec![engine_in("vllm", 4242, GIB)];
    held.run(3);
    for (mut world, name) in [(with(bare(50)), None), (held, Some("vllm"))] {
        let engine = world.engines[0].clone();
        let decision = DecisionRecord { at: world.at, ..stop(&engine) };
        world.policy.kills.decided(&decision);
        world.engines.clear();
        world.report(&decision, OutcomeResult::Done);
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
    // A stop that was not done has killed nothing.
    let mut world = with(bare(50));
    let decision = DecisionRecord { at: world.at, ..stop(&world.engines[0]) };
    world.policy.kills.decided(&decision);
    world.report(&decision, OutcomeResult::NotDone("enough is free".to_owned()));
    world.tick();
    world.engines.clear();
    world.run(2);
    assert!(matches!(only(&world).killer, Killer::Unknown { .. }));
}

/// Others end it while a stop runs that may not signal it.
#[test]
fn a_failed_stop_has_ended_an_engine_only_if_a_signal_was_delivered() {
    for effect in [None, Some("its processes were signalled".to_owned())] {
        let mut world = with(bare(50));
        let decision = DecisionRecord { at: world.at, ..stop(&world.engines[0]) };
        world.policy.kills.decided(&decision);
        world.engines.clear();
        world.run(2);
        assert_eq!(reports(&world), [], "the stop has not reported yet");
        let failed = OutcomeResult::Failed("not permitted".to_owned());
        let has_signalled = effect.is_some();
        let outcome = Outcome { effect, ..Outcome::at_once(&decision, failed, world.at) };
        world.seen.push(Observation::Outcome(outcome));
        world.run(1);
        let killer = only(&world).killer;
        assert_eq!(matches!(killer, Killer::Umawarden { .. }), has_signalled, "{killer:?}");
    }
}

#[test]
fn workers_stopped_since_their_server_was_killed_are_no_cause_of_its_end() {
    let killed = ExitStatus::Signal { signal: 9 };
    let mut world = with(bare(50));
    let mut engine = world.engines.remove(0);
    world.process_ends = vec![end(&engine, engine.server, killed)];
    world.tick();
    engine.processes.remove(0);
    world.tick();
    let decision = DecisionRecord { at: world.at, ..stop(&engine) };
    world.policy.kills.decided(&decision);
    world.report(&decision, OutcomeResult::Done);
    world.process_ends = vec![end(&engine, engine.processes[0].id, killed)];
    world.run(2);
    let report = only(&world);
    assert_eq!(report.killer, Killer::Signal { signal: 9, sender: None }, "{report:#?}");
    assert_eq!(report.killed_workers, [], "{report:#?}");
}

#[test]
fn the_end_of_a_pods_container_comes_from_its_runtime() {
    let (namespace, name, uid) = ("llm".into(), "vllm-0".into(), "6f1c".into());
    let pod = Pod { namespace, name, uid, container: "llm".into(), labels: None };
    let (proof, pod) = (Proof::PodContainer, Some(Arc::new(pod)));
    let mut world = with(EngineSeen { proof, pod, ..in_container() });
    let answer = |world: &mut RestartWorld, ended: Vec<EndedWorkload>| {
        let (supervisor, read_at) = (Supervisor::Cri, world.at.uptime);
        let readings =
            RestartReadings { supervisor, read_at, deferred: Vec::new(), ended, error: None };
        world.seen.push(Observation::Restarts(Box::new(readings)));
        world.run(1);
    };
    answer(&mut world, Vec::new());
    world.engines.clear();
    world.run(2);
    assert_eq!(reports(&world), [], "its runtime may report it");
    let (supervisor, name) = (Supervisor::Cri, "llm/vllm-0/llm".into());
    let target = Workload { supervisor, name, id: id("llm").into() };
    let (requested, is_pod_stopped) = (OnRequest::Yes, true);
    let end = WorkloadEnd { requested, is_pod_stopped, is_oom_killed: false, ..world.end(143) };
    answer(&mut world, vec![EndedWorkload { target, end }]);
    let report = only(&world);
    assert_eq!((report.exit, report.is_failure), (ExitStatus::Code { code: 143 }, false));
    let sentence = report.sentence();
    assert!(sentence.contains("(pod llm/vllm-0, container llm, pid 50)"), "{sentence}");
    assert!(sentence.contains("SIGTERM from the kubelet"), "{sentence}");
    assert!(report.advice.concat().contains("kubectl -n llm get events"), "{report:#?}");
}
