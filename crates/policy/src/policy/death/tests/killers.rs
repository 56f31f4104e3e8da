//! Killers that need more than one line, and what to do about them.

use super::*;

const RAYLET_LINE: &str = "Selected to kill: (Task: task name=RayWorkerWrapper, pid=3889, actual \
                           memory used=2.07GB, worker ID=00)";

fn ray_kill(id: ProcessId, seconds: u64) -> RayKill {
    RayKill {
        id,
        server: SERVER,
        comm: "ray::RayWorkerW".into(),
        ended_at: Duration::from_secs(seconds),
        line: RAYLET_LINE.to_owned(),
    }
}

#[test]
fn rays_memory_monitor_is_named_where_the_engine_failed() {
    let line = "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on \
                memory.";
    let log = [line.to_owned()];
    let worker = [relative(SERVER, "vllm"), ended(WORKER, "ray::RayWorkerW", 500, 9)];
    let alone = [relative(SERVER, "vllm")];
    let ray = Killer::UserspaceOom { daemon: KillerDaemon::Ray };
    let code = |code| ExitStatus::Code { code };
    let table: [(&[Relative], ExitStatus, bool); 3] =
        [(&worker, code(0), true), (&alone, code(1), true), (&alone, code(0), false)];
    for (family, exit, is_killed) in table {
        let death = Circumstances { exit, log: &log, ..vllm(family, &[]) };
        let report = explain(&death, at(502));
        assert_eq!((report.killer == ray, report.is_failure), (is_killed, is_killed));
        assert_eq!(report.cause.as_deref(), Some(Reason::RayMemoryMonitor.cause()));
        assert!(report.advice[0].contains("RAY_memory_usage_threshold"), "{:?}", report.advice);
    }
    let events = oom_of_worker(101, 500);
    let report = explain(&Circumstances { log: &log, ..vllm(&worker, &events) }, at(502));
    assert_eq!(report.killer.name(), "kernel_oom", "the kernel's own event says more");
    let asked = EndRequest { signal: 15, sender: "systemctl".to_owned(), at: at(495).uptime };
    let death =
        Circumstances { asked: Some(asked), log: &log, exit: code(143), ..vllm(&worker, &[]) };
    assert!(!explain(&death, at(502)).is_failure, "it was asked to end");
}

#[test]
fn the_log_of_a_raylet_names_rays_memory_monitor_for_a_worker_that_was_killed() {
    let ray = Killer::UserspaceOom { daemon: KillerDaemon::Ray };
    let unknown = [relative(SERVER, "vllm"), relative(WORKER, "ray::RayWorkerW")];
    let signal = |signal| [relative(SERVER, "vllm"), ended(WORKER, "ray::RayWorkerW", 500, signal)];
    let (killed, terminated) = (signal(9), signal(15));
    let left = [relative(SERVER, "vllm"), Relative { is_left: true, ..unknown[1].clone() }];
    let alone = [relative(SERVER, "vllm")];
    // On a node without the server, the worker is the head. Vanished within the family or before.
    let table: [(&[Relative], RayKill, bool); 7] = [
        (&unknown, ray_kill(WORKER, 500), true),
        (&killed, ray_kill(WORKER, 500), true),
        (&alone, ray_kill(WORKER, 400), true),
        (&alone, ray_kill(SERVER, 503), true),
        (&terminated, ray_kill(WORKER, 500), false),
        (&left, ray_kill(WORKER, 500), false),
        (&unknown, ray_kill(WORKER, 510), false),
    ];
    for (family, kill, is_ray) in table {
        let kills = [kill];
        let exit = ExitStatus::Unknown;
        let death = Circumstances {
            exit,
            is_exit_unreported: true,
            ray_kills: &kills,
            ..vllm(family, &[])
        };
        let report = explain(&death, at(502));
        assert_eq!((report.killer == ray, report.is_failure), (is_ray, is_ray), "{report:#?}");
        if is_ray {
            let proof =
                DeathProof::RayletLine { pid: kills[0].id.pid, line: RAYLET_LINE.to_owned() };
            assert_eq!(report.proofs[0], proof);
            assert_eq!(report.cause.as_deref(), Some(Reason::RayMemoryMonitor.cause()));
            assert!(report.advice[0].contains("RAY_memory_usage_threshold"), "{:?}", report.advice);
        }
    }
    let (kills, events) = ([ray_kill(WORKER, 500)], oom_of_worker(101, 500));
    let report = explain(&Circumstances { ray_kills: &kills, ..vllm(&killed, &events) }, at(502));
    assert_eq!(report.killer.name(), "kernel_oom", "the kernel's own event says more");
    let asked = EndRequest { signal: 15, sender: "systemctl".to_owned(), at: at(495).uptime };
    let death = Circumstances { asked: Some(asked), ray_kills: &kills, ..vllm(&killed, &[]) };
    assert!(!explain(&death, at(502)).is_failure, "it was asked to end");
}

/// The kernel reports no status of a process that is no child of this program before Linux 6.15.
#[test]
fn an_engine_without_a_status_ended_by_itself_if_it_wrote_that_it_gave_up() {
    let oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.";
    let log = [oom, "EngineCore encountered a fatal error."].map(str::to_owned);
    let family = [relative(SERVER, "vllm")];
    let explained = |log: &[String]| {
        let exit = ExitStatus::Unknown;
        let death = Circumstances { exit, is_exit_unreported: true, log, ..vllm(&family, &[]) };
        explain(&death, at(502))
    };
    let report = explained(&log);
    assert_eq!(report.killer, Killer::Itself { reason: Some(oom.to_owned()) });
    let why = format!("why: {}", Reason::OutOfMemory.cause());
    assert_eq!((report.is_failure, report.cause_text()), (true, Some(why)));
    // A server logs such a line of one request, too.
    let report = explained(&log[..1]);
    assert_eq!((report.killer.name(), report.is_failure), ("unknown", false));
    assert!(report.cause_text().unwrap().starts_with("its log suggests: "), "{report:?}");
}

/// Ray starts a killed worker again, or the engine goes on without it.
#[test]
fn an_engine_that_lived_on_after_a_kill_of_ray_and_was_asked_to_end_is_no_victim_of_it() {
    let alone = [relative(SERVER, "vllm")];
    let asked = EndRequest { signal: 15, sender: "docker".to_owned(), at: at(502).uptime };
    let code = |code| ExitStatus::Code { code };
    let signal = ExitStatus::Signal { signal: 15 };
    // Whether it was asked to end, whether a supervisor runs it, and whether the older kill counts.
    let table = [
        (code(0), Some(asked.clone()), true, false),
        (code(137), Some(asked), true, false),
        (signal, None, false, false),
        (code(130), None, false, false),
        (code(0), None, false, false),
        (code(0), None, true, true),
        (signal, None, true, true),
        (code(1), None, false, true),
        (code(134), None, false, true),
    ];
    for (exit, asked, is_supervised, is_older_one) in table {
        for (seconds, is_ray) in [(110, is_older_one), (480, true)] {
            let kills = [ray_kill(WORKER, seconds)];
            let death = Circumstances {
                exit,
                asked: asked.clone(),
                is_supervised,
                ray_kills: &kills,
                ..vllm(&alone, &[])
            };
            let report = explain(&death, at(502));
            assert_eq!(report.killer.name() == "userspace_oom", is_ray, "{report:#?}");
            assert_eq!(
                (report.is_failure, report.killed_workers.len()),
                (is_ray, usize::from(is_ray))
            );
        }
    }
    let stops = [OwnStop {
        is_for_start: true,
        is_for_lost_rank: false,
        decision: None,
        rule: None,
        at: at(500),
        processes: vec![SERVER],
    }];
    for (seconds, killed) in [(110, 0), (480, 1)] {
        let kills = [ray_kill(WORKER, seconds)];
        let death = Circumstances { own_stops: &stops, ray_kills: &kills, ..vllm(&alone, &[]) };
        let report = explain(&death, at(502));
        assert_eq!((report.killer.name(), report.killed_workers.len()), ("umawarden", killed));
    }
}

/// vLLM 0.32 over two nodes with Ray 2.60, whose engine core was killed: the server outlived it by
/// three seconds, and the rule EngineRankLost stopped it.
#[test]
fn a_stop_of_what_a_killed_worker_has_left_is_no_cause() {
    let status = ExitStatus::Signal { signal: 9 };
    let killed = Relative {
        noticed: Some(Duration::from_secs(499)),
        status,
        ..relative(WORKER, "VLLM::EngineCor")
    };
    let family = [relative(SERVER, "vllm"), killed];
    let stop = |seconds, processes: Vec<ProcessId>| OwnStop {
        is_for_start: true,
        is_for_lost_rank: true,
        decision: Some(DecisionId(4)),
        rule: None,
        at: at(seconds),
        processes,
    };
    let exit = ExitStatus::Signal { signal: 15 };
    for (stop, killer) in [
        (stop(501, vec![SERVER]), "signal"),
        // It has killed the worker itself, has stopped an engine that went on, or came first.
        (stop(501, vec![SERVER, WORKER]), "umawarden"),
        (stop(600, vec![SERVER]), "umawarden"),
        (stop(498, vec![SERVER]), "umawarden"),
        (OwnStop { is_for_lost_rank: false, ..stop(501, vec![SERVER]) }, "umawarden"),
    ] {
        let ended = at(stop.at.uptime.as_secs() + 1);
        let stops = [stop];
        let death = Circumstances { exit, own_stops: &stops, ..vllm(&family, &[]) };
        let report = explain(&death, ended);
        assert_eq!(report.killer.name(), killer, "{report:#?}");
        let before = ended.uptime.as_secs() - 499;
        assert_eq!(report.killed_workers[0].seconds_before, Some(before));
        let shown = if before > 60 { 0 } else { before };
        assert_eq!(report.first_worker_before(), Duration::from_secs(shown));
    }
}

#[test]
fn the_limit_of_a_control_group_is_named_as_its_supervisor_names_it() {
    for (group, named) in [
        ("/kubepods.slice/kubepods-burstable.slice/a", "resources.limits.memory"),
        ("/lxc/101", "lxc.cgroup2.memory.max"),
        ("/lxc.payload.llm", "lxc.cgroup2.memory.max"),
        ("/system.slice/vllm.service", "MemoryMax="),
    ] {
        let lines = [
            format!(
                "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,\
                 oom_memcg={group},task_memcg={group},task=VLLM::EngineCor,pid=101,uid=0"
            ),
            "Memory cgroup out of memory: Killed process 101 (VLLM::EngineCor) total-vm:1kB, \
             anon-rss:1kB, file-rss:1kB, shmem-rss:0kB, UID:0 pgtables:1kB oom_score_adj:0"
                .to_owned(),
        ];
        let events = kernel_log(&[(500, &lines[0]), (500, &lines[1])]);
        let report = explain(&vllm(&family(), &events), at(502));
        let advice = &report.advice[0];
        assert!(advice.contains(named) && advice.contains(group), "{advice}");
    }
}

#[test]
fn a_kill_that_a_person_requested_is_no_shortage_of_memory() {
    let invoked = "kworker/0:2 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=-1, \
                   oom_score_adj=0";
    let killed = "Out of memory: Killed process 101 (VLLM::EngineCor) total-vm:1kB, anon-rss:1kB, \
                  file-rss:1kB, shmem-rss:1kB, UID:0 pgtables:1kB oom_score_adj:0";
    let lines = [(500, "sysrq: Manual OOM execution"), (500, invoked), (500, killed)];
    let (family, events) = (family(), kernel_log(&lines));
    let report = explain(&vllm(&family, &events), at(502));
    assert!(report.is_failure, "{report:#?}");
    let killer = "killed by the kernel's OOM killer, which a person started by sysrq f; its worker";
    assert!(report.sentence().contains(killer), "{}", report.sentence());
    assert!(report.advice[0].contains("Alt+SysRq+F"), "{:?}", report.advice);
    assert!(!report.advice.iter().any(|line| line.contains("take less")), "{:?}", report.advice);
}
