//! What Docker tells of containers, and engines that are declared by it. The answers are those that
//! dockerd 20.10.24 gave of four containers.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use umawarden::model::{
    DeclaredEngine, EngineMatch, EngineSeen, Observation, ProcessId, Proof, Readings, Source,
};
use umawarden::parse::container::{Containers, containers};
use umawarden::sources::engines::{DockerPace, EngineSetup, EngineWatch};

use super::{Process, Tree, names, process, vllm};

const RECORDED: &str = include_str!("../../fixtures/docker/containers-20.10.24.json");

fn told() -> Arc<Containers> {
    Arc::new(containers(RECORDED.as_bytes()).unwrap())
}

/// The same, each of these with its first process, as Docker tells it when it is asked for one.
fn told_of(first: &[(&str, u32)]) -> Arc<Containers> {
    let mut all = Arc::unwrap_or_clone(told());
    for (name, pid) in first {
        let found = all.values_mut().find(|container| *container.name == **name);
        let start_ticks = 1000 + u64::from(*pid);
        found.unwrap().init = Some(ProcessId { pid: *pid, start_ticks });
    }
    Arc::new(all)
}

/// The id of a recorded container.
fn id(name: &str) -> String {
    let told = told();
    let found = told.iter().find(|(_, container)| &*container.name == name);
    found.unwrap().0.to_string()
}

fn inside(container: &str, mut processes: Vec<Process>) -> Vec<Process> {
    for process in &mut processes {
        process.cgroup = format!("/system.slice/docker-{container}.scope");
    }
    processes
}

fn declared(name: &str, matches: EngineMatch) -> DeclaredEngine {
    DeclaredEngine { name: name.into(), matches, ..DeclaredEngine::default() }
}

fn labelled(labels: &[(&str, &str)]) -> EngineMatch {
    let labels = labels.iter().map(|(key, value)| (Arc::from(*key), Arc::from(*value)));
    EngineMatch { labels: labels.collect(), ..EngineMatch::default() }
}

fn in_container(glob: &str) -> EngineMatch {
    EngineMatch { container: Some(glob.into()), ..EngineMatch::default() }
}

#[test]
fn a_container_is_matched_by_its_label_its_name_and_its_id() {
    let bridge = id("llm-bridge");
    let host = id("llm-host");
    let mut all = inside(&bridge, vllm(10, 8000));
    all.extend(inside(&host, vllm(20, 8001)));
    all.extend(inside(&id("llm-none"), vllm(30, 8002)));
    let mut tree = Tree::new(vec![
        declared("labelled", labelled(&[("app", "deep*"), ("com.example.role", "engine")])),
        declared("named", in_container("llm-h*")),
        declared("nobody", labelled(&[("app", "deepseek"), ("com.example.role", "other")])),
    ]);
    let first = [("llm-bridge", 10), ("llm-host", 20), ("llm-none", 30)];
    tree.scanner.know(told_of(&first), true);
    let engines = tree.see(&all);
    assert_eq!(
        names(&engines),
        [
            ("labelled", vec![10, 11, 12, 13]),
            ("named", vec![20, 21, 22, 23]),
            ("vllm-8002", vec![30, 31, 32, 33]),
        ]
    );
    assert_eq!(engines[0].container_name.as_deref(), Some("llm-bridge"));
    assert_eq!(engines[2].container_name.as_deref(), Some("llm-none"));
    let found = "label app, com.example.role of container llm-bridge of pid 10, as the \
                 configuration declares labelled";
    assert_eq!(&*engines[0].found_by, found);
    assert!(engines[1].found_by.starts_with("container llm-host of pid 20"));
    assert_eq!(
        (engines[0].proof, engines[0].claimed_container.as_deref()),
        (Proof::Container, None)
    );
    let mut tree = Tree::new(vec![declared("by-id", in_container(&bridge[..12]))]);
    tree.scanner.know(told_of(&first), true);
    let engines = tree.see(&inside(&bridge, vllm(10, 8000)));
    assert_eq!(names(&engines), [("by-id", vec![10, 11, 12, 13])]);
}

#[test]
fn a_container_that_docker_does_not_confirm_is_a_claim_and_matches_nothing() {
    let bridge = id("llm-bridge");
    let declared = || {
        vec![
            declared("by-id", in_container(&bridge[..12])),
            declared("labelled", labelled(&[("app", "deep*")])),
        ]
    };
    let real = process(40, 1, "tini", "/sbin/tini");
    let real = Process { cgroup: format!("/system.slice/docker-{bridge}.scope"), ..real };
    let mut pretender = vllm(10, 8000);
    for process in &mut pretender {
        process.cgroup = format!("/user.slice/user-7.slice/user@7.service/docker-{bridge}.scope");
    }
    let all = [vec![real], pretender.clone()].concat();
    for first in [&[][..], &[("llm-bridge", 40)]] {
        let mut tree = Tree::new(declared());
        tree.scanner.know(told_of(first), true);
        let mut engines = tree.see(&all);
        // What really is in the container is its engine.
        let is_real = |one: &EngineSeen| one.server.pid == 40;
        assert_eq!(engines.iter().any(is_real), !first.is_empty());
        engines.retain(|one| !is_real(one));
        assert_eq!(names(&engines), [("vllm-8000", vec![10, 11, 12, 13])], "{first:?}");
        assert_eq!((engines[0].proof, &engines[0].container), (Proof::Claimed, &None));
        assert_eq!(engines[0].claimed_container.as_deref(), Some(&*bridge));
        assert_eq!((&engines[0].container_name, &engines[0].unit), (&None, &None));
    }
    // Neither is the one whose first process was another.
    let mut tree = Tree::new(declared());
    let mut told = Arc::unwrap_or_clone(told_of(&[("llm-bridge", 40)]));
    told.get_mut(&*bridge).unwrap().init = Some(ProcessId { pid: 40, start_ticks: 1 });
    tree.scanner.know(Arc::new(told), true);
    let inside = inside(&bridge, vllm(20, 8001));
    assert_eq!(tree.see(&[all, inside].concat()).len(), 1, "it waits for Docker");
    let engines = tree.look().engines;
    assert_eq!(engines.len(), 2);
    assert!(engines.iter().all(|engine| engine.proof == Proof::Claimed));
}

#[test]
fn a_label_is_no_text_that_is_shown_and_a_hostile_name_is_escaped() {
    let hostile = "cd".repeat(32);
    let answer = format!(
        "[{{\"Id\":\"{hostile}\",\"Names\":[\"/a\\u001b[2J\\n\"],\"Labels\":{{\"app\":\"x\\u001b]0;y\"}}}}]"
    );
    let mut tree = Tree::new(vec![declared("boxed", labelled(&[("app", "x*")]))]);
    let mut told = containers(answer.as_bytes()).unwrap();
    told.get_mut(&*hostile).unwrap().init = Some(ProcessId { pid: 10, start_ticks: 1010 });
    tree.scanner.know(Arc::new(told), true);
    let engines = tree.see(&inside(&hostile, vec![process(10, 1, "server", "/opt/server")]));
    assert_eq!(names(&engines), [("boxed", vec![10])]);
    let shown = serde_json::to_string(&engines[0]).unwrap();
    assert!(engines[0].found_by.contains("a\\x1b[2J\\x0a"), "{shown}");
    assert!(!shown.contains("\\u001b") && !shown.contains("]0;y"), "{shown}");
    assert!(engines[0].found_by.chars().all(|c| !c.is_control()));
}

#[test]
fn an_engine_waits_a_moment_for_its_name_and_nobody_else_waits() {
    let bridge = id("llm-bridge");
    let mut tree = Tree::new(vec![declared("deepseek", labelled(&[("app", "deepseek")]))]);
    tree.scanner.know(Arc::default(), true);
    let mut all = inside(&bridge, vllm(10, 8000));
    all.extend(vllm(20, 8001));
    tree.set(&all);
    let look = |tree: &mut Tree, seconds| -> Vec<EngineSeen> {
        tree.scanner.scan(Duration::from_secs(seconds), true).unwrap().engines
    };
    assert_eq!(names(&look(&mut tree, 1)), [("vllm-8001", vec![20, 21, 22, 23])]);
    let unknown = tree.scanner.claimed_containers().1;
    assert_eq!(unknown.iter().map(|id| &**id).collect::<Vec<_>>(), [&*bridge]);
    assert_eq!(names(&look(&mut tree, 5)).len(), 1);
    let is_partial =
        |tree: &mut Tree| tree.scanner.scan(Duration::from_secs(5), true).unwrap().is_partial;
    assert!(is_partial(&mut tree), "one is there that is not told");
    tree.scanner.know(told_of(&[("llm-bridge", 10)]), true);
    assert!(!is_partial(&mut tree));
    assert_eq!(names(&look(&mut tree, 5))[0], ("deepseek", vec![10, 11, 12, 13]));
    assert!(tree.scanner.claimed_containers().1.is_empty());
    // One that Docker never tells of is told as what it is.
    let mut tree = Tree::new(vec![declared("deepseek", labelled(&[("app", "deepseek")]))]);
    tree.scanner.know(Arc::default(), true);
    tree.set(&all);
    assert_eq!(names(&look(&mut tree, 1)).len(), 1);
    assert_eq!(names(&look(&mut tree, 6))[0].0, "vllm-8000");
    // Docker that comes back later names it all the same, and going again changes nothing.
    tree.scanner.know(told_of(&[("llm-bridge", 10)]), true);
    assert_eq!(names(&look(&mut tree, 7))[0].0, "deepseek");
    tree.scanner.know(told_of(&[("llm-bridge", 10)]), false);
    assert_eq!(names(&look(&mut tree, 8))[0].0, "deepseek");
    // Where there is no Docker nobody waits.
    let mut tree = Tree::new(vec![declared("deepseek", labelled(&[("app", "deepseek")]))]);
    tree.set(&all);
    assert_eq!(names(&look(&mut tree, 1)).len(), 2);
}

/// What a made-up Docker does when it is asked.
#[derive(Clone)]
enum Docker {
    Answers(String),
    Hangs,
    HangsUp,
    NeverEnds,
}

/// Listens at a socket and does each of these in turn, the last one for ever.
fn serve(socket: &Path, turns: Vec<Docker>) -> Arc<AtomicUsize> {
    let _absent = std::fs::remove_file(socket);
    let listener = UnixListener::bind(socket).unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    std::thread::spawn(move || {
        let mut held = Vec::new();
        for mut stream in listener.incoming().flatten() {
            let turn = count.fetch_add(1, Ordering::SeqCst).min(turns.len() - 1);
            let mut request = [0; 1024];
            let length = stream.read(&mut request).unwrap();
            let listed = b"GET /containers/json?all=false&size=false HTTP/1.1\r\n";
            assert!(request[..length].starts_with(listed));
            // Whoever asked may have gone.
            let _gone = match &turns[turn] {
                Docker::Answers(body) => {
                    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n", body.len());
                    stream.write_all(format!("{head}connection: close\r\n\r\n{body}").as_bytes())
                }
                Docker::Hangs => {
                    held.push(stream);
                    Ok(())
                }
                Docker::HangsUp => Ok(()),
                Docker::NeverEnds => (|| {
                    stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n[")?;
                    loop {
                        stream.write_all(&[b' '; 65536])?;
                    }
                })(),
            };
        }
    });
    asked
}

fn uptime() -> Duration {
    super::living::uptime()
}

fn start(docker: PathBuf, declared: Vec<DeclaredEngine>, pace: DockerPace) -> EngineWatch {
    let procfs = PathBuf::from("/proc");
    let cri = Vec::new();
    EngineWatch::start(EngineSetup { procfs, docker, cri, declared, pace, clock: uptime }).unwrap()
}

/// The next that the source of that name tells; how often others were told meanwhile.
fn next(watch: &mut EngineWatch, source: Source) -> (Readings, usize) {
    let began = Instant::now();
    let mut others = 0;
    loop {
        let mut seen = Vec::new();
        watch.take(uptime(), &mut seen);
        for observation in seen {
            match observation {
                Observation::Readings(readings) if readings.source == source => {
                    return (readings, others);
                }
                Observation::Readings(_) => others += 1,
                _ => {}
            }
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{source:?} tells nothing");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn by_label() -> Vec<DeclaredEngine> {
    vec![declared("deepseek", labelled(&[("app", "deepseek")]))]
}

#[test]
fn docker_that_hangs_dies_and_lies_is_down_and_comes_back_while_proc_is_looked_at() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("docker.sock");
    let lie = r#"{"message":"client version 1.53 is too new"}"#.to_owned();
    let turns = vec![
        Docker::Answers(RECORDED.to_owned()),
        Docker::Hangs,
        Docker::HangsUp,
        Docker::NeverEnds,
        Docker::Answers(lie),
        Docker::Answers(RECORDED.to_owned()),
    ];
    let asked = serve(&socket, turns);
    let at_least = Duration::from_millis(100);
    let pace = DockerPace {
        answer_takes: Duration::from_secs(3),
        wanted: at_least,
        unwanted: at_least,
        at_least,
    };
    let mut watch = start(socket, by_label(), pace);
    let value = |readings: &Readings| (readings.values[0].value(), readings.error.clone());
    let (first, _) = next(&mut watch, Source::Docker);
    assert_eq!(value(&first), (Some(4.0), None));
    let (hangs, looks) = next(&mut watch, Source::Docker);
    let why = hangs.error.unwrap();
    assert!(why.contains("has not answered within 3 s"), "{why}");
    assert!(looks >= 2, "the look through /proc was held up: {looks} in 3 s");
    for wanted in ["connection", "more than 16.0 MiB", "no list of containers"] {
        let why = next(&mut watch, Source::Docker).0.error.unwrap();
        assert!(why.contains(wanted), "{wanted}: {why}");
    }
    assert_eq!(value(&next(&mut watch, Source::Docker).0), (Some(4.0), None));
    assert_eq!(asked.load(Ordering::SeqCst), 6);
}

#[test]
fn who_must_know_who_is_there_does_not_wait_for_the_next_look() {
    let mut watch = start("/nonexistent/docker.sock".into(), Vec::new(), DockerPace::default());
    next(&mut watch, Source::Engines);
    let began = Instant::now();
    for _ in 0..10 {
        watch.scan_now();
        watch.scan_now();
        next(&mut watch, Source::Engines);
    }
    // There is one a second anyway.
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
}

#[test]
fn without_docker_only_those_who_ask_for_it_are_told() {
    let mut watch = start("/nonexistent/docker.sock".into(), by_label(), DockerPace::default());
    let (readings, _) = next(&mut watch, Source::Docker);
    assert_eq!(readings.values[0].value(), None);
    let why = readings.error.unwrap();
    assert!(why.contains("there is no Docker at /nonexistent/docker.sock"), "{why}");
    let mut watch = start("/nonexistent/docker.sock".into(), Vec::new(), DockerPace::default());
    for _ in 0..3 {
        let mut seen = Vec::new();
        next(&mut watch, Source::Engines);
        watch.take(uptime(), &mut seen);
        let of_docker = seen.iter().any(|observation| {
            matches!(observation, Observation::Readings(told) if told.source == Source::Docker)
        });
        assert!(!of_docker);
    }
}
