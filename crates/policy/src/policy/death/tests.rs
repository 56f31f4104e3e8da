mod by_hand;
mod killers;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use proptest::prelude::*;

use super::*;
use crate::model::{EventKind, KernelEvent, KillerDaemon, OomConstraint, Pod};
use kernel_faults::{EventAssembler, KernelLine};

const SERVER: ProcessId = ProcessId { pid: 100, start_ticks: 10_000 };
const WORKER: ProcessId = ProcessId { pid: 101, start_ticks: 11_000 };

fn at(seconds: u64) -> Moment {
    let second = i64::try_from(seconds).unwrap();
    let utc = Timestamp::from_second(1_790_000_000 + second).unwrap();
    Moment { uptime: Duration::from_secs(seconds), utc }
}

fn relative(id: ProcessId, comm: &str) -> Relative {
    Relative {
        id,
        comm: comm.into(),
        ended: None,
        noticed: None,
        status: ExitStatus::Unknown,
        reported_by: "the kernel",
        is_left: false,
        bytes: None,
    }
}

fn ended(id: ProcessId, comm: &str, seconds: u64, signal: i32) -> Relative {
    let status = ExitStatus::Signal { signal };
    Relative { ended: Some(Duration::from_secs(seconds)), status, ..relative(id, comm) }
}

/// The events of these lines of the kernel log, each at that second.
fn kernel_log(lines: &[(u64, &str)]) -> Vec<Event> {
    let mut events = Vec::new();
    let mut assembler = EventAssembler::new();
    for (seconds, text) in lines {
        let Moment { uptime, utc } = at(*seconds);
        let line = KernelLine {
            utc: Some(utc),
            uptime: Some(uptime),
            from_kernel: true,
            text,
            ..KernelLine::default()
        };
        assembler.feed(&line, &mut events);
    }
    assembler.finish(&mut events);
    events.into_iter().map(Event::from).collect()
}

fn oom_of_worker(pid: u32, seconds: u64) -> Vec<Event> {
    let invoked = "VLLM::Worker_TP invoked oom-killer: gfp_mask=0x140dca(GFP_HIGHUSER_MOVABLE), \
                   order=0, oom_score_adj=0";
    let chosen = format!(
        "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,\
         task_memcg=/system.slice/engine.service,task=VLLM::EngineCor,pid={pid},uid=0"
    );
    let killed = format!(
        "Out of memory: Killed process {pid} (VLLM::EngineCor) total-vm:1kB, anon-rss:1kB, \
         file-rss:1kB, shmem-rss:1kB, UID:0 pgtables:1kB oom_score_adj:0"
    );
    kernel_log(&[(seconds, invoked), (seconds, &chosen), (seconds, &killed)])
}

fn vllm<'a>(family: &'a [Relative], events: &'a [Event]) -> Circumstances<'a> {
    Circumstances {
        who: Deceased {
            name: "vllm-8000".into(),
            engine: Some(crate::model::EngineKind::Vllm),
            server: Some(SERVER),
            ..Deceased::default()
        },
        exit: ExitStatus::Code { code: 0 },
        began: Some(Duration::from_secs(100)),
        phase: Some(EnginePhase::Serving),
        family,
        events,
        are_pids_global: true,
        is_kernel_log_read: true,
        ..Circumstances::default()
    }
}

fn family() -> Vec<Relative> {
    vec![relative(SERVER, "vllm"), relative(WORKER, "VLLM::EngineCor")]
}

#[test]
fn vllm_that_ends_with_0_after_its_worker_was_oom_killed_is_a_failure_by_the_kernel() {
    let (family, events) = (family(), oom_of_worker(101, 500));
    let report = explain(&vllm(&family, &events), at(502));
    let Killer::KernelOom { constraint, trigger, .. } = &report.killer else {
        panic!("{:?}", report.killer)
    };
    assert_eq!(*constraint, Some(OomConstraint::None));
    assert_eq!(trigger.as_deref(), Some("VLLM::Worker_TP"));
    assert!(report.is_failure && report.is_exit_code_a_lie());
    let [worker] = report.killed_workers.as_slice() else { panic!("{report:?}") };
    assert_eq!((worker.pid, &*worker.comm), (Some(101), "VLLM::EngineCor"));
    assert_eq!(worker.seconds_before, Some(2));
    let DeathProof::Event { event, fits_by } = &report.proofs[0] else { panic!("{report:?}") };
    assert_eq!(**event, events[0]);
    assert_eq!(fits_by, "pid 101, which was one of its processes");
    assert_eq!(report.lived_seconds, Some(402.0));
    let advice = report.advice.join("\n");
    assert!(advice.contains("--gpu-memory-utilization"), "{advice}");
    assert!(advice.contains("on-failure"), "{advice}");
    assert_eq!(
        report.sentence(),
        "vllm-8000 (pid 100) ended after 6m42s, serving, with exit code 0; killed by the kernel's \
         OOM killer, as the machine had none left when VLLM::Worker_TP asked for memory; its \
         worker VLLM::EngineCor (pid 101) was killed; the exit code does not show it"
    );
}

#[test]
fn a_worker_has_the_name_of_its_kill_though_its_exit_status_seems_earlier() {
    let family = [relative(SERVER, "python"), ended(WORKER, "sh", 499, 9)];
    let events = oom_of_worker(WORKER.pid, 500);
    let report = explain(&vllm(&family, &events), at(502));
    let names: Vec<_> = report.killed_workers.iter().map(|worker| &*worker.comm).collect();
    assert_eq!(names, ["VLLM::EngineCor"]);
}

#[test]
fn a_worker_that_somebody_killed_is_a_failure_though_the_parent_says_0() {
    let family = [relative(SERVER, "vllm"), ended(WORKER, "VLLM::EngineCor", 500, 9)];
    let report = explain(&vllm(&family, &[]), at(502));
    assert_eq!(report.killer, Killer::Signal { signal: 9, sender: None });
    assert!(report.is_exit_code_a_lie());
    assert_eq!(report.killed_workers.len(), 1);
    assert!(matches!(report.proofs[0], DeathProof::Process { pid: 101, .. }), "{report:?}");
}

#[test]
fn sglang_that_ends_with_137_was_not_killed_itself() {
    let scheduler = ended(WORKER, "sglang::schedul", 500, 9);
    let detokenizer = ended(ProcessId { pid: 102, start_ticks: 11_000 }, "sglang::detoken", 501, 9);
    let family = [relative(SERVER, "python"), detokenizer, scheduler];
    let death = Circumstances { exit: ExitStatus::Code { code: 137 }, ..vllm(&family, &[]) };
    let report = explain(&death, at(501));
    assert_eq!(report.killer, Killer::Signal { signal: 9, sender: None });
    let killed: Vec<_> = report.killed_workers.iter().map(|worker| worker.pid).collect();
    assert_eq!(killed, [Some(101), Some(102)], "the first death comes first");
    assert!(report.is_failure && !report.is_exit_code_a_lie());
}

#[test]
fn the_log_alone_names_the_worker_but_not_who_killed_it() {
    let log = [
        "[2026-11-20 10:00:00] Subprocess scheduler_0 (pid=4711) crashed with exit code -9.",
        "[2026-11-20 10:00:00] Rank 0 scheduler died during initialization (exit code: -9). If \
         exit code is -9 (SIGKILL), a common cause is the OS OOM killer.",
    ];
    let log = log.map(str::to_owned);
    let family = [relative(SERVER, "python")];
    let death =
        Circumstances { exit: ExitStatus::Code { code: 137 }, log: &log, ..vllm(&family, &[]) };
    let report = explain(&death, at(502));
    assert_eq!(report.killer, Killer::Signal { signal: 9, sender: None });
    let [worker] = report.killed_workers.as_slice() else { panic!("{report:?}") };
    assert_eq!((&*worker.comm, worker.pid), ("scheduler_0", Some(4711)));
}

#[test]
fn normal_ends_and_failures_are_distinguished() {
    let code = |code| ExitStatus::Code { code };
    let signal = |signal| ExitStatus::Signal { signal };
    let oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.";
    let table: [(ExitStatus, Option<&str>, bool, &str, bool); 11] = [
        (code(0), None, true, "itself", false),
        (code(1), None, true, "itself", true),
        (code(1), Some(oom), true, "itself", true),
        (code(0), Some("EngineCore encountered a fatal error."), true, "itself", true),
        (signal(11), None, true, "itself", true),
        (code(134), None, true, "itself", true),
        (signal(9), None, true, "signal", true),
        (signal(15), None, true, "signal", false),
        (code(137), None, false, "unknown", true),
        (code(143), None, false, "signal", false),
        (ExitStatus::Unknown, None, true, "unknown", true),
    ];
    let family = [relative(SERVER, "vllm")];
    for (exit, line, is_kernel_log_read, killer, is_failure) in table {
        let log: Vec<String> = line.into_iter().map(str::to_owned).collect();
        let death = Circumstances { exit, log: &log, is_kernel_log_read, ..vllm(&family, &[]) };
        let report = explain(&death, at(502));
        assert_eq!((report.killer.name(), report.is_failure), (killer, is_failure), "{report:?}");
        assert_eq!(report.not_known.is_empty(), is_kernel_log_read);
    }
}

#[test]
fn a_log_leads_to_one_cause_and_one_cure() {
    let lines = [
        "ValueError: Free memory on device cuda:0 (36.75/121.63 GiB) on startup is less than",
        "desired GPU memory utilization (0.85, 103.38 GiB).",
        "RuntimeError: Engine core initialization failed. See root cause above.",
    ];
    let (family, log) = ([relative(SERVER, "vllm")], lines.map(str::to_owned));
    let exit = ExitStatus::Code { code: 1 };
    let death = Circumstances { exit, log: &log, ..vllm(&family, &[]) };
    let report = explain(&death, at(502));
    let reason = Reason::TooLittleMemory;
    assert_eq!(report.killer, Killer::Itself { reason: Some(lines[0].to_owned()) });
    assert_eq!(report.cause.as_deref(), Some(reason.cause()));
    assert_eq!(report.advice, [reason.cure()]);
    let asked = EndRequest { signal: 15, sender: "systemctl".to_owned(), at: at(502).uptime };
    let report = explain(&Circumstances { asked: Some(asked), ..death.clone() }, at(502));
    assert_eq!(report.cause, None, "it had a prompt with that text, perhaps");
    let events = oom_of_worker(100, 500);
    let report = explain(&Circumstances { events: &events, ..death }, at(502));
    assert_eq!((report.killer.name(), report.cause), ("kernel_oom", None));
}

#[test]
fn a_requested_end_is_no_failure() {
    let asked = EndRequest {
        signal: 15,
        sender: "SIGTERM to umawarden launch".to_owned(),
        at: Duration::from_secs(495),
    };
    let family = [relative(SERVER, "python"), ended(WORKER, "sglang::schedul", 500, 9)];
    for exit in [0, 137, 143].map(|code| ExitStatus::Code { code }) {
        let death = Circumstances { exit, asked: Some(asked.clone()), ..vllm(&family, &[]) };
        let report = explain(&death, at(502));
        assert!(!report.is_failure && report.killed_workers.is_empty(), "{report:?}");
        let Killer::Signal { signal: 15, sender: Some(_) } = report.killer else {
            panic!("{report:?}")
        };
    }
    // One that had been killed before was no answer to that.
    let early = [relative(SERVER, "python"), ended(WORKER, "sglang::schedul", 490, 9)];
    let death = Circumstances { asked: Some(asked.clone()), ..vllm(&early, &[]) };
    assert!(explain(&death, at(502)).is_failure);
    // Nor is what the kernel killed.
    let events = oom_of_worker(101, 500);
    let death = Circumstances { asked: Some(asked), ..vllm(&family, &events) };
    assert_eq!(explain(&death, at(502)).killer.name(), "kernel_oom");
}

/// Neither signal nor exit code is said to have had the effect of another.
#[test]
fn the_sentence_names_one_signal_for_one_end() {
    let asked = || EndRequest { signal: 15, sender: "bash (pid 7)".to_owned(), at: at(495).uptime };
    let alone = [relative(SERVER, "vllm")];
    let worker = [relative(SERVER, "vllm"), ended(WORKER, "VLLM::EngineCor", 490, 9)];
    let code = |code| ExitStatus::Code { code };
    let killed = ExitStatus::Signal { signal: 15 };
    let table: [(&[Relative], ExitStatus, Option<EndRequest>, &str); 6] = [
        (&alone, killed, Some(asked()), "with SIGTERM (15); killed by SIGTERM from bash (pid 7)"),
        (
            &alone,
            code(137),
            Some(asked()),
            "with exit code 137, which means SIGKILL; asked to end by SIGTERM from bash (pid 7)",
        ),
        (&alone, code(0), Some(asked()), "code 0; asked to end by SIGTERM from bash (pid 7)"),
        (&alone, code(143), None, "which means SIGTERM; killed by SIGTERM from an unknown process"),
        (
            &worker,
            code(143),
            None,
            "with exit code 143, which means SIGTERM; its worker VLLM::EngineCor (pid 101) was \
             killed by SIGKILL from an unknown process",
        ),
        (
            &worker,
            code(0),
            None,
            "with exit code 0; its worker VLLM::EngineCor (pid 101) was killed by SIGKILL from an \
             unknown process; the exit code does not show it",
        ),
    ];
    for (family, exit, asked, ends_with) in table {
        let death = Circumstances { exit, asked, ..vllm(family, &[]) };
        let sentence = explain(&death, at(502)).sentence();
        assert!(sentence.ends_with(ends_with), "{sentence}");
    }
}

#[test]
fn a_worker_that_dies_of_its_heads_death_is_no_cause_of_it() {
    let family = [relative(SERVER, "python"), ended(WORKER, "sglang::schedul", 503, 9)];
    let exit = ExitStatus::Signal { signal: 9 };
    let report = explain(&Circumstances { exit, ..vllm(&family, &[]) }, at(502));
    assert!(report.killed_workers.is_empty() && report.is_failure, "{report:?}");
    let well = explain(&vllm(&family, &[]), at(502));
    assert!(!well.is_failure, "{well:?}");
}

#[test]
fn the_brake_and_killers_in_user_space_are_named() {
    let family = family();
    let stop = OwnStop {
        is_for_start: false,
        is_for_lost_rank: false,
        decision: Some(DecisionId(7)),
        rule: None,
        at: at(500),
        processes: vec![WORKER],
    };
    let stops = [stop];
    let death = Circumstances { own_stops: &stops, ..vllm(&family, &[]) };
    let report = explain(&death, at(502));
    assert_eq!(report.killer, Killer::Umawarden { decision: Some(DecisionId(7)), rule: None });
    assert!(report.is_failure);
    let answered = explain(&death, at(499));
    assert_eq!(answered.killer.name(), "itself", "its workers were stopped after its end");

    let kill = |by, pid, memcg: Option<&str>| Event {
        kind: KernelEvent::UserspaceKill {
            by,
            pid,
            comm: pid.map(|_| "VLLM::EngineCor".to_owned()),
            memcg: memcg.map(str::to_owned),
        }
        .into(),
        utc: Some(at(500).utc),
        seq: None,
    };
    let unit: Option<Arc<str>> = Some("/system.slice/engine.service".into());
    let killed = |event: Event| {
        let events = [event];
        let mut death = vllm(&family, &events);
        death.who.cgroup.clone_from(&unit);
        explain(&death, at(502)).killer
    };
    let earlyoom = killed(kill(KillerDaemon::Earlyoom, Some(101), None));
    assert_eq!(earlyoom, Killer::UserspaceOom { daemon: KillerDaemon::Earlyoom });
    let oomd = killed(kill(KillerDaemon::SystemdOomd, None, Some("/system.slice")));
    assert_eq!(oomd, Killer::UserspaceOom { daemon: KillerDaemon::SystemdOomd });
    let other = killed(kill(KillerDaemon::SystemdOomd, None, Some("/system.slice/engine")));
    assert_eq!(other.name(), "itself", "a name that only begins like its group's");
}

#[test]
fn a_kill_of_another_process_is_unrelated() {
    let family = family();
    let not_its = |events: &[Event], change: fn(&mut Circumstances<'_>)| {
        let mut death = vllm(&family, events);
        change(&mut death);
        let report = explain(&death, at(502));
        assert_eq!(report.killer.name(), "itself", "{report:?}");
        assert!(!report.is_failure);
    };
    not_its(&oom_of_worker(999, 500), |_| {});
    // The number had another owner then.
    not_its(&oom_of_worker(101, 105), |_| {});
    not_its(&oom_of_worker(101, 600), |_| {});
    // In a namespace of its own its numbers mean nothing to the kernel log.
    not_its(&oom_of_worker(101, 500), |death| death.are_pids_global = false);
    // In a group that it shares, another one's number is another one.
    not_its(&oom_of_worker(999, 500), |death| {
        death.who.cgroup = Some("/system.slice/engine.service".into());
    });
}

#[test]
fn events_of_its_own_cgroup_or_container_concern_the_engine() {
    let family = [relative(SERVER, "bash")];
    let events = oom_of_worker(999, 500);
    let killer = |change: fn(&mut Circumstances<'_>)| {
        let mut death = vllm(&family, &events);
        change(&mut death);
        explain(&death, at(502)).killer
    };
    let own = killer(|death| {
        death.who.cgroup = Some("/system.slice/engine.service".into());
        death.is_cgroup_own = true;
    });
    assert_eq!(own.name(), "kernel_oom");
    let counted = |change: fn(&mut Circumstances<'_>)| {
        let mut death = vllm(&family, &[]);
        death.is_cgroup_own = true;
        change(&mut death);
        explain(&death, at(502))
    };
    let report = counted(|death| death.oom_kills = Some(1));
    assert_eq!(report.killer.name(), "kernel_oom");
    assert!(matches!(report.proofs[0], DeathProof::Counter { by: 1, .. }), "{report:?}");
    assert!(report.is_exit_code_a_lie());
    assert_eq!(counted(|death| death.oom_kills = Some(0)).killer.name(), "itself");
    let report = counted(|death| death.docker_oom_killed = Some(true));
    assert_eq!(report.killer.name(), "kernel_oom");
    assert_eq!(counted(|death| death.docker_oom_killed = Some(false)).killer.name(), "itself");
    let report = counted(|death| {
        death.docker_oom_killed = Some(true);
        death.who.pod = Some(pod());
    });
    assert!(matches!(report.proofs[0], DeathProof::Cri { .. }), "{report:?}");
}

fn pod() -> Arc<Pod> {
    let (namespace, name, uid) = ("llm".into(), "vllm-0".into(), "6f1c".into());
    Arc::new(Pod { namespace, name, uid, container: "engine".into(), labels: None })
}

#[test]
fn the_death_of_a_pod_is_named_and_its_stop_is_the_api_servers_to_explain() {
    let family = family();
    let mut death = vllm(&family, &[]);
    death.who.pod = Some(pod());
    let report = explain(&death, at(502));
    assert!(
        report.sentence().starts_with("vllm-8000 (pod llm/vllm-0, pid 100) ended"),
        "{report:?}"
    );
    let names =
        |report: &DeathReport| report.advice.concat().contains("involvedObject.name=vllm-0");
    assert!(!names(&report), "{report:?}");
    death.is_pod_stopped = true;
    assert!(names(&explain(&death, at(502))));
}

#[test]
fn an_old_kill_is_reported_and_is_not_the_cause() {
    let (family, events) = (family(), oom_of_worker(101, 500));
    let report = explain(&vllm(&family, &events), at(5000));
    assert_eq!(report.killer.name(), "itself");
    assert!(!report.is_failure);
    assert_eq!(report.killed_workers.len(), 1);
}

#[test]
fn orphans_and_lingering_memory_have_advice() {
    let mut family = family();
    family[1].is_left = true;
    family[1].bytes = Some(104 << 30);
    let memory = DeathMemory { unaccounted_bytes: Some(92 << 30), ..DeathMemory::default() };
    let death = Circumstances { memory: Some(memory), ..vllm(&family, &[]) };
    let report = explain(&death, at(502));
    assert_eq!(report.orphans[0].id, WORKER);
    let expected = "VLLM::EngineCor (pid 101, 104.0 GiB): kill 101";
    assert!(report.advice[0].ends_with(expected), "{:?}", report.advice);
    assert!(report.advice[1].starts_with("92.0 GiB were held"), "{:?}", report.advice);
}

/// Reports of `umawarden launch` on real servers whose worker was killed with SIGKILL, and what
/// they wrote themselves.
const RECORDED: [(&str, &str); 2] = [
    (
        include_str!("../../../../../tests/fixtures/engines/deaths/sglang.json"),
        include_str!("../../../../../tests/fixtures/engines/deaths/sglang.log"),
    ),
    (
        include_str!("../../../../../tests/fixtures/engines/deaths/vllm.json"),
        include_str!("../../../../../tests/fixtures/engines/deaths/vllm.log"),
    ),
];

#[test]
fn real_engines_whose_worker_was_killed_are_explained_as_they_were() {
    for (text, _) in RECORDED {
        let recorded: DeathReport = serde_json::from_str(text).unwrap();
        let killed = recorded.killed_workers.iter().map(|worker| {
            let id = ProcessId { pid: worker.pid.unwrap(), start_ticks: 20_000 };
            ended(id, &worker.comm, 502 - worker.seconds_before.unwrap(), 9)
        });
        let family: Vec<Relative> = killed.collect();
        let death =
            Circumstances { who: recorded.who.clone(), exit: recorded.exit, ..vllm(&family, &[]) };
        let report = explain(&death, at(502));
        assert_eq!((&report.killer, report.is_failure), (&recorded.killer, true));
        assert_eq!(report.killed_workers, recorded.killed_workers);
        assert_eq!(report.is_exit_code_a_lie(), recorded.exit.is_success());
    }
}

/// Of vLLM nothing at all: where its processes are not seen, only the kernel log shows it.
#[test]
fn last_words_of_real_engines_name_the_worker_or_nothing() {
    let [sglang, vllm_log] = RECORDED.map(|(_, log)| log.lines().map(str::to_owned));
    let (sglang, vllm_log): (Vec<String>, Vec<String>) = (sglang.collect(), vllm_log.collect());
    let exit = ExitStatus::Code { code: 137 };
    let report = explain(&Circumstances { exit, log: &sglang, ..vllm(&[], &[]) }, at(502));
    let [worker] = report.killed_workers.as_slice() else { panic!("{report:?}") };
    assert_eq!((&*worker.comm, worker.pid), ("scheduler_0", Some(11061)));
    let report = explain(&Circumstances { log: &vllm_log, ..vllm(&[], &[]) }, at(502));
    assert!(!report.is_failure && report.proofs.is_empty(), "{report:?}");
}

#[test]
fn a_report_is_the_same_after_json() {
    let (family, events) = (family(), oom_of_worker(101, 500));
    let report = explain(&vllm(&family, &events), at(502));
    let text = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<DeathReport>(&text).unwrap(), report);
}

fn statuses() -> impl Strategy<Value = ExitStatus> {
    prop_oneof![
        Just(ExitStatus::Unknown),
        (0..=255).prop_map(|code| ExitStatus::Code { code }),
        (1..=64).prop_map(|signal| ExitStatus::Signal { signal }),
    ]
}

fn relatives() -> impl Strategy<Value = Relative> {
    (95_u32..110, 0_u64..60_000, "[ -~]{0,15}", proptest::option::of(0_u64..700), statuses())
        .prop_map(|(pid, start_ticks, comm, ended, status)| Relative {
            ended: ended.map(Duration::from_secs),
            status,
            ..relative(ProcessId { pid, start_ticks }, &comm)
        })
}

fn kills() -> impl Strategy<Value = Event> {
    let kind = prop_oneof![
        (95_u32..110, "[ -~]{0,15}").prop_map(|(pid, comm)| KernelEvent::OomKill {
            pid,
            comm,
            constraint: None,
            memcg: None,
            oom_memcg: None,
            trigger_comm: None,
            anon_rss_bytes: None,
            driver: false,
            manual: false,
            container: None,
        }),
        (95_u32..110).prop_map(|pid| KernelEvent::UserspaceKill {
            by: KillerDaemon::Earlyoom,
            pid: Some(pid),
            comm: None,
            memcg: None,
        }),
        Just(KernelEvent::OomNoVictim),
    ];
    (kind, proptest::option::of(0_u64..700)).prop_map(|(kind, seconds)| Event {
        kind: kind.into(),
        utc: seconds.map(|seconds| at(seconds).utc),
        seq: None,
    })
}

proptest! {
    #[test]
    fn no_killer_without_its_proof_and_the_order_of_events_does_not_matter(
        family in proptest::collection::vec(relatives(), 0..8),
        events in proptest::collection::vec(kills(), 0..8),
        exit in statuses(),
        log in proptest::collection::vec("\\PC{0,80}", 0..4),
        counted in proptest::option::of(0_u64..2),
    ) {
        let death = Circumstances {
            exit,
            log: &log,
            oom_kills: counted,
            is_cgroup_own: true,
            ..vllm(&family, &events)
        };
        let report = explain(&death, at(502));
        let proves = |proof: &DeathProof| match (&report.killer, proof) {
            (Killer::KernelOom { .. }, DeathProof::Counter { .. }) => true,
            (Killer::KernelOom { .. }, DeathProof::Event { event, .. }) => {
                matches!(event.kind, EventKind::Kernel(KernelEvent::OomKill { .. }))
            }
            (Killer::UserspaceOom { .. }, DeathProof::Event { event, .. }) => {
                matches!(event.kind, EventKind::Kernel(KernelEvent::UserspaceKill { .. }))
            }
            _ => false,
        };
        let is_of_others =
            matches!(report.killer, Killer::KernelOom { .. } | Killer::UserspaceOom { .. });
        prop_assert_eq!(is_of_others, report.proofs.first().is_some_and(proves));
        prop_assert!(!is_of_others || report.is_failure);
        for proof in &report.proofs {
            if let DeathProof::Event { event, .. } = proof {
                let EventKind::Kernel(
                    KernelEvent::OomKill { pid, .. }
                    | KernelEvent::UserspaceKill { pid: Some(pid), .. },
                ) = event.kind
                else {
                    return Err(TestCaseError::fail("no kill"));
                };
                prop_assert!(family.iter().any(|one| one.id.pid == pid));
            }
        }
        let mut reversed = events.clone();
        reversed.reverse();
        let again = explain(&Circumstances { events: &reversed, ..death.clone() }, at(502));
        prop_assert_eq!(again.is_failure, report.is_failure);
        prop_assert_eq!(again.killer.name(), report.killer.name());
        prop_assert_eq!(again.killed_workers.len(), report.killed_workers.len());
    }
}
