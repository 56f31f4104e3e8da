use std::fs;

use super::*;
use crate::model::{
    ContainerRuntime, EngineKind, EngineProcess, Moment, OnRequest, ProcessId, RestartLimits,
    RestartMatch, StartNeed,
};

const ID: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

fn engine() -> EngineSeen {
    let id = ProcessId { pid: 7, start_ticks: 70 };
    let process = EngineProcess::holding(id, "vllm", 0);
    let pod = Pod {
        namespace: "llm".into(),
        name: "vllm-0".into(),
        uid: "6f1c".into(),
        container: "engine".into(),
        labels: Some([("app".into(), "llm".into())].into()),
    };
    EngineSeen {
        container: Some(ID.into()),
        container_name: Some("engine".into()),
        proof: Proof::PodContainer,
        pod: Some(Arc::new(pod)),
        runtime: Some(ContainerRuntime {
            socket: "/run/cri.sock".into(),
            user: None,
            is_podman: false,
            log: Some("/var/log/pods/llm_vllm-0_6f1c/engine/0.log".into()),
        }),
        ..EngineSeen::new("vllm".into(), EngineKind::Vllm, id, vec![process], "test".into())
    }
}

/// The thread with one container, whose engine is there.
fn ends(declared: Vec<DeclaredRestart>) -> PodEnds {
    let (socket, id, its) = {
        let engine = engine();
        let (socket, id, its) = TrackedPod::of(&engine).unwrap();
        (Arc::clone(socket), Arc::clone(id), its)
    };
    let tracked: TrackedPods = Arc::new([(socket, [(id, its)].into())].into());
    let (_, tracked) = watch::channel(tracked);
    let (_, declared) = watch::channel(Arc::from(declared));
    let (to, _) = std::sync::mpsc::sync_channel(1);
    let clock = || Moment { uptime: Duration::ZERO, utc: Timestamp::UNIX_EPOCH };
    let mut ends = PodEnds::new(tracked, declared, Reporter { to, clock });
    ends.track(Duration::ZERO);
    ends
}

fn declared(matches: RestartMatch) -> DeclaredRestart {
    let (need, limits) = (StartNeed::default(), RestartLimits::default());
    DeclaredRestart { matches, need, limits, mode: None }
}

#[test]
fn a_confirmed_container_of_a_pod_is_tracked_and_no_other() {
    let engine = engine();
    let (socket, id, its) = TrackedPod::of(&engine).unwrap();
    assert_eq!((&**socket, &**id, &*its.name()), ("/run/cri.sock", ID, "llm/vllm-0/engine"));
    for proof in [Proof::Container, Proof::Claimed, Proof::UserContainer] {
        assert_eq!(TrackedPod::of(&EngineSeen { proof, ..engine.clone() }), None);
    }
}

#[test]
fn a_restart_that_is_declared_for_a_pod_is_answered_with_the_reason() {
    let label = RestartMatch::Label("app".into(), "llm".into());
    for matches in [RestartMatch::Container("eng*".into()), label] {
        let deferred = ends(vec![declared(matches)]).deferred(Duration::ZERO);
        let [one] = &deferred[..] else { panic!("{deferred:?}") };
        assert_eq!(one.target.to_string(), "container llm/vllm-0/engine");
        assert!(one.obstacle.as_ref().unwrap().contains("kubelet"), "{one:?}");
    }
    let other = declared(RestartMatch::Container("other".into()));
    assert_eq!(ends(vec![other]).deferred(Duration::ZERO), []);
    // Its engine is gone.
    let its = declared(RestartMatch::Container("engine".into()));
    assert_eq!(ends(vec![its]).deferred(Duration::from_secs(1)), []);
}

#[test]
fn an_end_that_may_be_the_kubelets_waits_until_that_is_known() {
    let ended = |exit_code: Option<i32>, is_pod_stopped: bool| {
        let mut ends = ends(Vec::new());
        let runtime = ends.runtimes.values_mut().next().unwrap();
        let known = runtime.containers.values_mut().next().unwrap();
        let end = WorkloadEnd { exit_code, is_pod_stopped, ..WorkloadEnd::unknown() };
        known.end = Some((end, Duration::ZERO));
        [0, 2, 40].map(|now| ends.ended(Duration::from_secs(now)).len())
    };
    assert_eq!(ended(Some(143), false), [0, 1, 0]);
    assert_eq!(ended(Some(0), false), [0, 1, 0]);
    assert_eq!(ended(Some(143), true), [1, 1, 0]);
    assert_eq!(ended(Some(1), false), [1, 1, 0]);
}

#[test]
fn a_stopped_pod_is_the_kubelets_request_unless_memory_ended_it() {
    let of = |exit_code, is_oom_killed| {
        let mut end = WorkloadEnd { exit_code, is_oom_killed, ..WorkloadEnd::unknown() };
        stopped_with_pod(&mut end);
        end.requested
    };
    assert_eq!(of(Some(143), false), OnRequest::Yes);
    assert_eq!(of(Some(137), false), OnRequest::Yes);
    assert_eq!(of(Some(137), true), OnRequest::Unknown);
    assert_eq!(of(Some(1), false), OnRequest::Unknown);
}

#[test]
fn the_end_of_a_log_is_read_from_a_regular_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("0.log");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let read = |path: &Path| runtime.block_on(read_log(Some(path.to_owned()), None));
    let why = |log: WorkloadLog| match log {
        WorkloadLog::Unknown(why) => why,
        WorkloadLog::Lines(lines) => panic!("{lines:?}"),
    };
    assert!(why(read(&path)).contains("mount /var/log/pods"));
    assert!(why(runtime.block_on(read_log(None, None))).contains("names no log"));
    let line = |text: &str| format!("2026-11-22T10:00:01.123456789Z stdout F {text}\n");
    fs::write(&path, [line("RuntimeError: CUDA out of memory"), line("it ends")].concat()).unwrap();
    let lines = ["RuntimeError: CUDA out of memory", "it ends"].map(str::to_owned).to_vec();
    assert_eq!(read(&path), WorkloadLog::Lines(lines));
    // A long one is read from its end, at the beginning of a line.
    let long = line(&"x".repeat(1_000)).repeat(1_000) + &line("it ends");
    fs::write(&path, &long).unwrap();
    let text = end_of_file(&path).unwrap();
    assert!(text.len() <= MAX_LOG_BYTES as usize && text.starts_with(b"2026-"), "{}", text.len());
    let WorkloadLog::Lines(lines) = read(&path) else { panic!() };
    assert_eq!(lines.last().unwrap(), "it ends");
    let fifo = folder.path().join("fifo");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, mode).unwrap();
    assert!(why(read(&fifo)).contains("a regular file is needed"));
}
