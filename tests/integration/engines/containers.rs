//! Engines declared by container, with recorded responses of dockerd 20.10.24 about four
//! containers.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use umawarden::model::{
    DeclaredEngine, EngineMatch, EngineSeen, Observation, ProcessId, Proof, Readings, Source,
};
use umawarden::parse::container::{Containers, NodeContainers, containers};
use umawarden::sources::engines::{DockerPace, EngineSetup, EngineWatch};

use super::{Process, Tree, names, process, vllm};

const RECORDED: &str = include_str!("../../fixtures/docker/containers-20.10.24.json");

fn recorded() -> Containers {
    containers(RECORDED.as_bytes()).unwrap()
}

/// The recorded containers, some of them with their first process, as from `docker inspect`.
fn with_init(first: &[(&str, u32)]) -> NodeContainers {
    listed(first).into()
}

fn listed(first: &[(&str, u32)]) -> Containers {
    let mut all = recorded();
    for (name, pid) in first {
        let found = all.values_mut().find(|container| *container.name == **name);
        let start_ticks = 1000 + u64::from(*pid);
        found.unwrap().init = Some(ProcessId { pid: *pid, start_ticks });
    }
    all
}

/// The id of a recorded container.
fn id(name: &str) -> String {
    let containers = recorded();
    let found = containers.iter().find(|(_, container)| &*container.name == name);
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
fn a_container_is_matched_by_label_name_and_id() {
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
    tree.scanner.know(with_init(&first), true);
    let engines = tree.scan_of(&all);
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
    tree.scanner.know(with_init(&first), true);
    let engines = tree.scan_of(&inside(&bridge, vllm(10, 8000)));
    assert_eq!(names(&engines), [("by-id", vec![10, 11, 12, 13])]);
}

#[test]
fn a_container_not_confirmed_by_docker_is_only_claimed_and_matches_nothing() {
    let bridge = id("llm-bridge");
    let declared = || {
        vec![
            declared("by-id", in_container(&bridge[..12])),
            declared("labelled", labelled(&[("app", "deep*")])),
        ]
    };
    let real = process(40, 1, "tini", "/sbin/tini");
    let real = Process { cgroup: format!("/system.slice/docker-{bridge}.scope"), ..real };
    let mut impostor = vllm(10, 8000);
    for process in &mut impostor {
        process.cgroup = format!("/user.slice/user-7.slice/user@7.service/docker-{bridge}.scope");
    }
    let all = [vec![real], impostor.clone()].concat();
    for first in [&[][..], &[("llm-bridge", 40)]] {
        let mut tree = Tree::new(declared());
        tree.scanner.know(with_init(first), true);
        let mut engines = tree.scan_of(&all);
        // A process that really is in the container is an engine of it.
        let is_real = |one: &EngineSeen| one.server.pid == 40;
        assert_eq!(engines.iter().any(is_real), !first.is_empty());
        engines.retain(|one| !is_real(one));
        assert_eq!(names(&engines), [("vllm-8000", vec![10, 11, 12, 13])], "{first:?}");
        assert_eq!((engines[0].proof, &engines[0].container), (Proof::Claimed, &None));
        assert_eq!(engines[0].claimed_container.as_deref(), Some(&*bridge));
        assert_eq!((&engines[0].container_name, &engines[0].unit), (&None, &None));
    }
    // A container whose first process was another one confirms nothing either.
    let mut tree = Tree::new(declared());
    let mut containers = listed(&[("llm-bridge", 40)]);
    containers.get_mut(&*bridge).unwrap().init = Some(ProcessId { pid: 40, start_ticks: 1 });
    tree.scanner.know(containers.into(), true);
    let inside = inside(&bridge, vllm(20, 8001));
    assert_eq!(tree.scan_of(&[all, inside].concat()).len(), 1, "the engine waits for Docker");
    let engines = tree.scan().engines;
    assert_eq!(engines.len(), 2);
    assert!(engines.iter().all(|engine| engine.proof == Proof::Claimed));
}

#[test]
fn labels_are_not_shown_and_hostile_names_are_escaped() {
    let hostile = "cd".repeat(32);
    let response = format!(
        "[{{\"Id\":\"{hostile}\",\"Names\":[\"/a\\u001b[2J\\n\"],\"Labels\":{{\"app\":\"x\\u001b]0;y\"}}}}]"
    );
    let mut tree = Tree::new(vec![declared("boxed", labelled(&[("app", "x*")]))]);
    let mut containers = containers(response.as_bytes()).unwrap();
    containers.get_mut(&*hostile).unwrap().init = Some(ProcessId { pid: 10, start_ticks: 1010 });
    tree.scanner.know(containers.into(), true);
    let engines = tree.scan_of(&inside(&hostile, vec![process(10, 1, "server", "/opt/server")]));
    assert_eq!(names(&engines), [("boxed", vec![10])]);
    let shown = serde_json::to_string(&engines[0]).unwrap();
    assert!(engines[0].found_by.contains("a\\x1b[2J\\x0a"), "{shown}");
    assert!(!shown.contains("\\u001b") && !shown.contains("]0;y"), "{shown}");
    assert!(engines[0].found_by.chars().all(|c| !c.is_control()));
}

#[test]
fn an_engine_waits_briefly_for_its_container_name_and_delays_no_other() {
    let bridge = id("llm-bridge");
    let mut tree = Tree::new(vec![declared("deepseek", labelled(&[("app", "deepseek")]))]);
    tree.scanner.know(NodeContainers::default(), true);
    let mut all = inside(&bridge, vllm(10, 8000));
    all.extend(vllm(20, 8001));
    tree.set(&all);
    let scan = |tree: &mut Tree, seconds| -> Vec<EngineSeen> {
        tree.scanner.scan(Duration::from_secs(seconds), true).unwrap().engines
    };
    assert_eq!(names(&scan(&mut tree, 1)), [("vllm-8001", vec![20, 21, 22, 23])]);
    let unknown = tree.scanner.claimed_containers().unknown;
    assert_eq!(unknown.iter().map(|id| &**id).collect::<Vec<_>>(), [&*bridge]);
    assert_eq!(names(&scan(&mut tree, 5)).len(), 1);
    let is_partial =
        |tree: &mut Tree| tree.scanner.scan(Duration::from_secs(5), true).unwrap().is_partial;
    assert!(is_partial(&mut tree), "one engine is not reported yet");
    tree.scanner.know(with_init(&[("llm-bridge", 10)]), true);
    assert!(!is_partial(&mut tree));
    assert_eq!(names(&scan(&mut tree, 5))[0], ("deepseek", vec![10, 11, 12, 13]));
    assert!(tree.scanner.claimed_containers().unknown.is_empty());
    // A container that Docker never lists is reported without its name.
    let mut tree = Tree::new(vec![declared("deepseek", labelled(&[("app", "deepseek")]))]);
    tree.scanner.know(NodeContainers::default(), true);
    tree.set(&all);
    assert_eq!(names(&scan(&mut tree, 1)).len(), 1);
    assert_eq!(names(&scan(&mut tree, 6))[0].0, "vllm-8000");
    // A later response of Docker still names it, and another failure changes nothing.
    tree.scanner.know(with_init(&[("llm-bridge", 10)]), true);
    assert_eq!(names(&scan(&mut tree, 7))[0].0, "deepseek");
    tree.scanner.know(with_init(&[("llm-bridge", 10)]), false);
    assert_eq!(names(&scan(&mut tree, 8))[0].0, "deepseek");
    // Without Docker no engine waits.
    let mut tree = Tree::new(vec![declared("deepseek", labelled(&[("app", "deepseek")]))]);
    tree.set(&all);
    assert_eq!(names(&scan(&mut tree, 1)).len(), 2);
}

#[test]
fn runtimes_are_asked_for_the_container_of_an_engine_that_is_declared_by_its_name() {
    let bridge = id("llm-bridge");
    let by_name = EngineMatch { comm: Some("boxed".into()), ..EngineMatch::default() };
    let mut tree = Tree::new(vec![declared("boxed", by_name)]);
    let engines = tree.scan_of(&inside(&bridge, vec![process(10, 1, "boxed", "/opt/boxed")]));
    assert_eq!(names(&engines), [("boxed", vec![10])]);
    let unknown = tree.scanner.claimed_containers().unknown;
    assert_eq!(unknown.iter().map(|id| &**id).collect::<Vec<_>>(), [&*bridge]);
}

const ROOTLESS: &str = include_str!("../../fixtures/docker/containers-podman-rootless-4.3.1.json");

/// What `/proc/PID/uid_map` showed of the containers of that Podman, of user 1001.
const UID_MAP: &str = "         0       1001          1\n         1     100000      65536\n";

#[test]
fn an_engine_of_a_users_own_podman_has_the_name_of_its_container_and_vouches_for_nothing() {
    let listed = containers(ROOTLESS.as_bytes()).unwrap();
    let (id, _) = listed.iter().find(|(_, one)| &*one.name == "lives").unwrap();
    let id = id.to_string();
    let of_user = |user: u32, pid: u32| {
        let mut all = listed.clone();
        let container = all.get_mut(&*id).unwrap();
        container.init = Some(ProcessId { pid, start_ticks: 1000 + u64::from(pid) });
        container.socket = Some("/run/user/1001/podman/podman.sock".into());
        NodeContainers { of_users: Arc::new([(user, all)].into()), ..NodeContainers::default() }
    };
    let mut tree = Tree::new(vec![declared("boxed", in_container("lives"))]);
    let mut all = vllm(10, 8000);
    for process in &mut all {
        let of_user = "/user.slice/user-1001.slice/user@1001.service/user.slice";
        process.cgroup = format!("{of_user}/libpod-{id}.scope/container");
    }
    tree.set(&all);
    let map = |tree: &Tree| {
        for pid in 10..14 {
            let folder = tree.folder.path().join(pid.to_string());
            std::fs::write(folder.join("uid_map"), UID_MAP).unwrap();
        }
    };
    map(&tree);
    tree.scanner.know(of_user(1001, 10), true);
    // The first scan shows who claims to be where.
    tree.scan();
    let engine = tree.scan().engines.remove(0);
    assert_eq!((&*engine.name, engine.proof), ("boxed", Proof::UserContainer));
    assert_eq!(engine.container_name.as_deref(), Some("lives"));
    let runtime = engine.runtime.clone().unwrap();
    assert_eq!((runtime.user, &*runtime.socket), (Some(1001), "/run/user/1001/podman/podman.sock"));
    assert_eq!((engine.claimed_container, engine.unit), (None, None));
    // Another user's runtime reports the same container.
    let mut tree = Tree::new(vec![declared("boxed", in_container("lives"))]);
    tree.set(&all);
    map(&tree);
    tree.scanner.know(of_user(1002, 10), true);
    let engine = tree.scan().engines.remove(0);
    assert_eq!((&*engine.name, engine.proof), ("vllm-8000", Proof::Claimed));
    assert_eq!(engine.claimed_container.as_deref(), Some(&*id));
    assert_eq!(engine.runtime, None);
}

#[test]
fn an_engine_in_a_container_that_a_service_runs_has_the_service() {
    let (host, service) = (id("llm-host"), "/system.slice/sglang.service");
    let run = "docker run --rm --gpus all --name llm-host -p 8000:8000 vllm/vllm-openai m";
    let of = |line: &str, cgroup: &str, environment: Option<&str>| {
        let mut tree = Tree::new(Vec::new());
        tree.scanner.know(with_init(&[("llm-host", 10)]), true);
        let script = process(50, 1, "sglang-fg.sh", "/bin/sh /data/scripts/sglang-fg.sh");
        let script = Process { cgroup: service.to_owned(), ..script };
        let client = process(51, 50, "docker", line);
        let client = Process { cgroup: cgroup.to_owned(), ..client };
        tree.set(&[inside(&host, vllm(10, 8000)), vec![script, client]].concat());
        if let Some(environment) = environment {
            std::fs::write(tree.folder.path().join("51/environ"), environment).unwrap();
        }
        let engines = tree.scan().engines;
        assert_eq!(names(&engines), [("vllm-8000", vec![10, 11, 12, 13])], "{line}");
        // It stays an engine of its container.
        assert_eq!((engines[0].proof, engines[0].service()), (Proof::Container, None));
        engines[0].client_unit.clone()
    };
    let environment = Some("PATH=/bin\0");
    assert_eq!(of(run, service, environment).as_deref(), Some("sglang.service"));
    let start = "docker start -a llm-host";
    assert_eq!(of(start, service, environment).as_deref(), Some("sglang.service"));
    let detached = run.replace("--rm", "-d");
    for (line, cgroup, environment) in [
        (&*run.replace("llm-host", "llm-none"), service, environment),
        (&*detached, service, environment),
        (run, "/system.slice/cron.service", environment),
        (run, "/user.slice/user-0.slice/session-1.scope", environment),
        (run, service, Some("DOCKER_HOST=tcp://other:2375\0")),
        (run, service, None),
    ] {
        assert_eq!(of(line, cgroup, environment), None, "{line} {cgroup}");
    }
    // Anybody can call a process so, also in a container of the service.
    let root = "Uid:\t0\t0\t0\t0\nNSpid:\t951";
    for (status, is_client) in [
        (format!("{root}\n"), true),
        (format!("{root}\t7\n"), false),
        ("Uid:\t1000\t1000\t1000\t1000\n".to_owned(), false),
    ] {
        let mut tree = Tree::new(Vec::new());
        tree.scanner.know(with_init(&[("llm-host", 10)]), true);
        let client = Process { cgroup: service.to_owned(), ..process(951, 1, "docker", run) };
        // So many that a bound would leave out root's.
        let others: Vec<Process> =
            (600..900).map(|pid| process(pid, 1, "docker", "docker ps")).collect();
        tree.set(&[inside(&host, vllm(10, 8000)), others, vec![client]].concat());
        let folder = tree.folder.path().join("951");
        std::fs::write(folder.join("environ"), "PATH=/bin\0").unwrap();
        std::fs::write(folder.join("status"), &status).unwrap();
        let found = tree.scan().engines[0].client_unit.is_some();
        assert_eq!(found, is_client, "{status}");
    }
}

#[test]
fn a_client_is_known_by_the_file_of_its_id_and_by_the_socket_of_its_daemon() {
    let host = id("llm-host");
    let has_unit = |options: &str, environment: &str, files: &[(&str, &str)]| {
        let mut tree = Tree::new(Vec::new());
        let mut all = listed(&[("llm-host", 10)]);
        for container in all.values_mut() {
            container.socket = Some("/run/docker.sock".into());
        }
        tree.scanner.know(all.into(), true);
        let client = process(51, 1, "docker", &format!("docker run {options} vllm/vllm-openai m"));
        let client = Process { cgroup: "/system.slice/llm.service".to_owned(), ..client };
        tree.set(&[inside(&host, vllm(10, 8000)), vec![client]].concat());
        let folder = tree.folder.path().join("51");
        std::fs::write(folder.join("environ"), environment).unwrap();
        for (path, text) in files {
            let path = folder.join("root").join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        tree.scan().engines[0].client_unit.is_some()
    };
    let (named, filed) = ("--name llm-host", "--cidfile /run/llm.id");
    // A file counts only if it is root's.
    let is_root = rustix::process::geteuid().is_root();
    assert_eq!(has_unit(filed, "A=b", &[("run/llm.id", &*host)]), is_root);
    assert!(!has_unit(filed, "A=b", &[]) && !has_unit(filed, "A=b", &[("run/llm.id", "x")]));
    assert!(has_unit(named, "DOCKER_HOST=unix:///var/run/docker.sock", &[]));
    assert!(!has_unit(named, "DOCKER_HOST=unix:///run/other.sock", &[]));
    let elsewhere = r#"{"currentContext": "elsewhere"}"#;
    assert!(!has_unit(named, "HOME=/root", &[("root/.docker/config.json", elsewhere)]));
    assert!(has_unit(named, "HOME=/h", &[("root/.docker/config.json", elsewhere)]));
}

#[test]
fn an_engine_in_a_service_of_a_users_systemd_has_its_unit_and_user() {
    let mut tree = Tree::new(Vec::new());
    let mut all = vllm(10, 8000);
    for process in &mut all {
        let manager = "/user.slice/user-1000.slice/user@1000.service";
        process.cgroup = format!("{manager}/app.slice/vllm.service");
    }
    let engine = tree.scan_of(&all).remove(0);
    let unit = engine.user_unit.clone().unwrap();
    assert_eq!((unit.user, &*unit.name), (1000, "vllm.service"));
    // It is no unit of the system: no rule, no key and no guard rail trusts its name.
    assert_eq!((engine.service(), &engine.unit, engine.proof), (None, &None, Proof::Claimed));
}

/// Reactions of a fake Docker to a request.
#[derive(Clone)]
enum Docker {
    Answers(String),
    Hangs,
    HangsUp,
    NeverEnds,
}

/// Serves a socket with one reaction per request, the last one for ever; returns the request count.
fn serve(socket: &Path, turns: Vec<Docker>) -> Arc<AtomicUsize> {
    // It may not exist.
    let _ = std::fs::remove_file(socket);
    let listener = UnixListener::bind(socket).unwrap();
    let requests = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&requests);
    std::thread::spawn(move || {
        let mut hanging = Vec::new();
        for mut stream in listener.incoming().flatten() {
            let turn = count.fetch_add(1, Ordering::SeqCst).min(turns.len() - 1);
            let mut request = [0; 1024];
            let length = stream.read(&mut request).unwrap();
            let listed = b"GET /containers/json?all=false&size=false HTTP/1.1\r\n";
            assert!(request[..length].starts_with(listed));
            // The client may have closed the connection.
            let _ = match &turns[turn] {
                Docker::Answers(body) => {
                    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n", body.len());
                    stream.write_all(format!("{head}connection: close\r\n\r\n{body}").as_bytes())
                }
                Docker::Hangs => {
                    hanging.push(stream);
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
    requests
}

fn uptime() -> Duration {
    super::live::uptime()
}

fn start(docker: PathBuf, declared: Vec<DeclaredEngine>, pace: DockerPace) -> Watched {
    // No user has a folder there.
    start_at(("/proc".into(), "/nonexistent/users".into()), docker, declared, pace)
}

/// With these folders of processes and of users.
fn start_at(
    (procfs, users): (PathBuf, PathBuf),
    docker: PathBuf,
    declared: Vec<DeclaredEngine>,
    pace: DockerPace,
) -> Watched {
    let (docker, cri) = (vec![docker], Vec::new());
    let setup = EngineSetup { procfs, docker, users, cri, declared, pace, clock: uptime };
    Watched { watch: EngineWatch::start(setup).unwrap(), reported: VecDeque::new() }
}

/// A watch, and what it has reported that no test has looked at.
struct Watched {
    watch: EngineWatch,
    reported: VecDeque<Observation>,
}

impl std::ops::Deref for Watched {
    type Target = EngineWatch;

    fn deref(&self) -> &EngineWatch {
        &self.watch
    }
}

/// The next readings of that source, and the count of readings of others meanwhile.
fn next(watched: &mut Watched, source: Source) -> (Readings, usize) {
    let began = Instant::now();
    let mut others = 0;
    loop {
        let mut seen = Vec::new();
        watched.watch.take(uptime(), &mut seen);
        watched.reported.extend(seen);
        while let Some(observation) = watched.reported.pop_front() {
            match observation {
                Observation::Readings(readings) if readings.source == source => {
                    return (readings, others);
                }
                Observation::Readings(_) => others += 1,
                _ => {}
            }
        }
        assert!(began.elapsed() < Duration::from_secs(60), "no readings of {source:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn by_label() -> Vec<DeclaredEngine> {
    vec![declared("deepseek", labelled(&[("app", "deepseek")]))]
}

#[test]
fn a_failing_docker_is_reported_down_and_recovers_while_proc_is_scanned() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("docker.sock");
    let error = r#"{"message":"client version 1.53 is too new"}"#.to_owned();
    let turns = vec![
        Docker::Answers(RECORDED.to_owned()),
        Docker::Hangs,
        Docker::HangsUp,
        Docker::NeverEnds,
        Docker::Answers(error),
        Docker::Answers(RECORDED.to_owned()),
    ];
    let requests = serve(&socket, turns);
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
    let (hangs, scans) = next(&mut watch, Source::Docker);
    let why = hangs.error.unwrap();
    assert!(why.contains("has not answered within 3 s"), "{why}");
    assert!(scans >= 2, "the scan of /proc was blocked: {scans} in 3 s");
    for wanted in ["connection", "more than 16.0 MiB", "no list of containers"] {
        let why = next(&mut watch, Source::Docker).0.error.unwrap();
        assert!(why.contains(wanted), "{wanted}: {why}");
    }
    assert_eq!(value(&next(&mut watch, Source::Docker).0), (Some(4.0), None));
    assert_eq!(requests.load(Ordering::SeqCst), 6);
}

#[test]
fn a_users_socket_that_cannot_be_queried_is_an_error_of_its_engine_and_not_of_docker() {
    let folder = tempfile::tempdir().unwrap();
    let (procfs, users) = (folder.path().join("proc"), folder.path().join("users"));
    // A process in a namespace of user 1001, whose control group names no container.
    let by_name = EngineMatch { comm: Some("boxed".into()), ..EngineMatch::default() };
    process(4_190_001, 1, "boxed", "/opt/boxed").write(&procfs);
    std::fs::write(procfs.join("4190001/uid_map"), UID_MAP).unwrap();
    let of_user = users.join("1001/podman");
    std::fs::create_dir_all(&of_user).unwrap();
    // Nobody listens there any more.
    drop(UnixListener::bind(of_user.join("podman.sock")).unwrap());
    let docker = folder.path().join("docker.sock");
    serve(&docker, vec![Docker::Answers(RECORDED.to_owned())]);
    let pace = Duration::from_millis(100);
    let pace = DockerPace {
        answer_takes: Duration::from_secs(5),
        wanted: pace,
        unwanted: pace,
        at_least: pace,
    };
    let declared = vec![declared("boxed", by_name)];
    let mut watched = start_at((procfs, users), docker, declared, pace);
    let (began, mut is_known, mut answers) = (Instant::now(), false, 0);
    while !is_known || answers < 3 {
        assert!(began.elapsed() < Duration::from_secs(60), "{is_known} {answers}");
        let mut seen = Vec::new();
        watched.watch.take(uptime(), &mut seen);
        for observation in seen {
            match observation {
                Observation::Readings(readings) if readings.source == Source::Docker => {
                    assert_eq!((readings.values[0].value(), readings.error), (Some(4.0), None));
                    answers += usize::from(is_known);
                }
                Observation::Engines(readings) => {
                    let error = readings.engines[0].runtime_error.as_deref();
                    is_known |= error.is_some_and(|why| {
                        why.contains("no process listens at") && why.contains("podman.sock")
                    });
                }
                _ => {}
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_requested_scan_does_not_wait_for_the_interval() {
    let mut watch = start("/nonexistent/docker.sock".into(), Vec::new(), DockerPace::default());
    next(&mut watch, Source::Engines);
    let began = Instant::now();
    for _ in 0..10 {
        watch.scan_now();
        watch.scan_now();
        next(&mut watch, Source::Engines);
    }
    // Without requests there is one scan a second.
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
}

#[test]
fn a_missing_docker_is_reported_only_if_an_engine_is_declared_by_container() {
    let mut watch = start("/nonexistent/docker.sock".into(), by_label(), DockerPace::default());
    let (readings, _) = next(&mut watch, Source::Docker);
    assert_eq!(readings.values[0].value(), None);
    let why = readings.error.unwrap();
    assert!(why.contains("there is no Docker at /nonexistent/docker.sock"), "{why}");
    let mut watch = start("/nonexistent/docker.sock".into(), Vec::new(), DockerPace::default());
    for _ in 0..3 {
        next(&mut watch, Source::Engines);
        let mut seen: Vec<Observation> = watch.reported.drain(..).collect();
        watch.watch.take(uptime(), &mut seen);
        let of_docker = seen.iter().any(|observation| {
            matches!(observation, Observation::Readings(readings) if readings.source == Source::Docker)
        });
        assert!(!of_docker);
    }
}
