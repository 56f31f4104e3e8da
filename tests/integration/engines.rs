//! Detection and tracking of inference engines, in fake `/proc` trees and among real processes.

mod containers;
pub mod live;
mod ray_pair;
mod recorded;
mod silent;
pub mod testkit;
mod two_nodes;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use umawarden::model::{DeclaredEngine, ProcessId};
use umawarden::model::{EngineKind, EngineMatch, EngineReadings, EngineSeen, Reading};
use umawarden::parse::container::{Container, Containers};
use umawarden::sources::engines::Scanner;

/// One process of a fake `/proc`.
#[derive(Clone)]
pub struct Process {
    pid: u32,
    parent: u32,
    comm: Vec<u8>,
    line: Vec<u8>,
    start: u64,
    cgroup: String,
    maps: String,
    open: Vec<String>,
}

pub fn process(pid: u32, parent: u32, comm: &str, line: &str) -> Process {
    Process {
        pid,
        parent,
        comm: comm.as_bytes().to_vec(),
        line: line.replace(' ', "\0").into_bytes(),
        start: 1000 + u64::from(pid),
        cgroup: "/user.slice".to_owned(),
        maps: String::new(),
        open: Vec::new(),
    }
}

impl Process {
    /// The same in that container.
    pub fn in_container(self, id: &str) -> Self {
        Self { cgroup: format!("/system.slice/docker-{id}.scope"), ..self }
    }

    pub fn write(&self, procfs: &Path) {
        let folder = procfs.join(self.pid.to_string());
        // It may not exist.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("fd")).unwrap();
        let head = format!("{} (", self.pid);
        let tail = format!(
            ") S {} 1 1 0 -1 4194304 0 0 0 0 10 5 0 0 20 0 1 0 {} 1 2 3\n",
            self.parent, self.start
        );
        let stat = [head.as_bytes(), &self.comm, tail.as_bytes()].concat();
        fs::write(folder.join("stat"), stat).unwrap();
        fs::write(folder.join("cmdline"), [&self.line[..], b"\0"].concat()).unwrap();
        fs::write(folder.join("cgroup"), format!("0::{}\n", self.cgroup)).unwrap();
        let status = "Uid:\t0\t0\t0\t0\nRssAnon:\t 1024 kB\nRssFile:\t 512 kB\nRssShmem:\t 0 kB\n";
        fs::write(folder.join("status"), status).unwrap();
        fs::write(folder.join("io"), "rchar: 9\nread_bytes: 4096\n").unwrap();
        fs::write(folder.join("maps"), &self.maps).unwrap();
        for (number, target) in self.open.iter().enumerate() {
            symlink(target, folder.join("fd").join(number.to_string())).unwrap();
        }
    }
}

struct Tree {
    folder: tempfile::TempDir,
    scanner: Scanner,
    now: u64,
}

impl Tree {
    fn new(declared: Vec<DeclaredEngine>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let scanner = Scanner::new(folder.path().to_owned(), declared);
        Self { folder, scanner, now: 0 }
    }

    /// Replaces all processes of the tree.
    fn set(&self, processes: &[Process]) {
        for entry in fs::read_dir(self.folder.path()).unwrap() {
            fs::remove_dir_all(entry.unwrap().path()).unwrap();
        }
        processes.iter().for_each(|process| process.write(self.folder.path()));
    }

    /// Scans the tree, 20 s after the previous scan.
    fn scan(&mut self) -> EngineReadings {
        self.now += 20;
        self.scanner.scan(Duration::from_secs(self.now), true).unwrap()
    }

    /// Replaces all processes and scans them.
    fn scan_of(&mut self, processes: &[Process]) -> Vec<EngineSeen> {
        self.set(processes);
        self.scan().engines
    }
}

fn pids(engine: &EngineSeen) -> Vec<u32> {
    engine.processes.iter().map(|process| process.id.pid).collect()
}

fn names(engines: &[EngineSeen]) -> Vec<(&str, Vec<u32>)> {
    engines.iter().map(|engine| (&*engine.name, pids(engine))).collect()
}

fn vllm(pid: u32, port: u16) -> Vec<Process> {
    let line = format!("/env/bin/python /env/bin/vllm serve /models/a --port {port}");
    vec![
        process(pid, 1, "vllm", &line),
        process(pid + 1, pid, "python", "/env/bin/python -c resource_tracker"),
        process(pid + 2, pid, "VLLM::EngineCor", "VLLM::EngineCore"),
        process(pid + 3, pid + 2, "VLLM::Worker_TP", "VLLM::Worker_TP0"),
    ]
}

#[test]
fn a_server_and_its_descendants_are_one_engine() {
    let mut tree = Tree::new(Vec::new());
    let mut all = vllm(10, 8001);
    all.extend(vllm(20, 8002));
    all.push(process(1, 0, "systemd", "/sbin/init"));
    all.push(process(40, 1, "bash", "bash -c vllm serve /x"));
    all.push(process(50, 1, "ollama", "/usr/bin/ollama serve"));
    all.push(process(51, 50, "llama-server", "/usr/lib/ollama/llama-server --port 4"));
    all.push(process(60, 1, "llama-server", "/app/llama-server -m /m/x.gguf"));
    let engines = tree.scan_of(&all);
    assert_eq!(
        names(&engines),
        [
            ("llama-server-8080", vec![60]),
            ("ollama-11434", vec![50, 51]),
            ("vllm-8001", vec![10, 11, 12, 13]),
            ("vllm-8002", vec![20, 21, 22, 23]),
        ]
    );
    let engine = &engines[2];
    assert_eq!(engine.kind, EngineKind::Vllm);
    assert_eq!(engine.server, ProcessId { pid: 10, start_ticks: 1010 });
    assert_eq!(engine.model.as_deref(), Some("/models/a"));
    assert_eq!(engine.cgroup.as_deref(), Some("/user.slice"));
    assert_eq!(&*engine.found_by, "the command line of pid 10");
    assert_eq!(engine.processes[0].anon_bytes, Reading::Value(1 << 20));
    assert_eq!(engine.processes[0].rss_bytes(), Reading::Value(1536 << 10));
    assert_eq!(engine.processes[0].cpu_ms, 150);
}

/// A node of a Ray cluster, as real Ray 2.60 and vLLM 0.32 show it.
mod ray {
    use super::*;

    const SESSION: &str = "session_2026-11-27_00-13-51_527656_30927";

    fn raylet(pid: u32) -> Process {
        let line = format!("/ray/raylet --gcs-address=10.77.0.1:6379 --session-name={SESSION}");
        process(pid, 1, "raylet", &line)
    }

    fn worker(pid: u32, raylet: u32) -> Process {
        process(pid, raylet, "ray::RayWorkerP", "ray::RayWorkerProc.run")
    }

    /// A vLLM server whose engine core has ordered Ray's workers as that job.
    fn driver(pid: u32, port: u16, job: &str) -> Vec<Process> {
        let mut all = vllm(pid, port);
        all.truncate(3);
        all[2].open = vec![format!("/tmp/ray/{SESSION}/logs/python-core-driver-{job}ffff_9.log")];
        all
    }

    /// Writes what each worker has written to its standard output.
    fn jobs(tree: &Tree, of: &[(u32, &str)]) {
        for (pid, job) in of {
            let output = tree.folder.path().join(format!("{pid}/fd/1"));
            fs::write(output, format!(":job_id:{job}\n:actor_name:RayWorkerProc\n")).unwrap();
        }
    }

    fn gang(engine: &EngineSeen) -> &str {
        engine.rank.as_ref().map_or("", |rank| &*rank.gang)
    }

    #[test]
    fn workers_on_a_node_without_the_server_are_one_engine_that_is_no_orphan() {
        let mut tree = Tree::new(Vec::new());
        tree.set(&[
            raylet(10),
            process(11, 10, "ray::IDLE", "ray::IDLE"),
            worker(12, 10),
            worker(13, 10),
        ]);
        jobs(&tree, &[(12, "01000000"), (13, "01000000")]);
        let engines = tree.scan().engines;
        assert_eq!(names(&engines), [("vllm", vec![12, 13])]);
        assert!(!engines[0].is_left_behind, "{engines:?}");
        assert_eq!((engines[0].port, gang(&engines[0])), (None, &*format!("{SESSION}/01000000")));
        assert_eq!(engines[0].kind, EngineKind::Vllm);
    }

    /// Real Ray: a worker outlives its killed raylet by a second.
    #[test]
    fn a_worker_whose_raylet_has_ended_is_no_orphan() {
        let mut tree = Tree::new(Vec::new());
        let init = process(1, 0, "systemd", "/sbin/init");
        tree.set(&[init.clone(), raylet(10), worker(12, 10)]);
        jobs(&tree, &[(12, "01000000")]);
        assert!(!tree.scan().engines[0].is_left_behind);
        let engines = tree.scan_of(&[init.clone(), worker(12, 1)]);
        assert_eq!((names(&engines), engines[0].is_left_behind), (vec![("vllm", vec![12])], false));
        // One that was never seen below a raylet may be anybody's.
        let mut tree = Tree::new(Vec::new());
        assert!(tree.scan_of(&[init, worker(12, 1)])[0].is_left_behind);
    }

    #[test]
    fn workers_beside_their_server_are_its_engine_and_stay_it_after_its_end() {
        let mut tree = Tree::new(Vec::new());
        let server = driver(20, 8000, "01000000");
        let all = [vec![raylet(10), worker(30, 10)], server].concat();
        tree.set(&all);
        jobs(&tree, &[(30, "01000000")]);
        assert_eq!(names(&tree.scan().engines), [("vllm-8000", vec![20, 21, 22, 30])]);
        let left = tree.scan_of(&all[..2]);
        assert_eq!(names(&left), [("vllm-8000", vec![30])]);
        // Another server does not take them.
        let next = [all[..2].to_vec(), driver(40, 8001, "02000000")].concat();
        let engines = tree.scan_of(&next);
        let expected = [("vllm-8000", vec![30]), ("vllm-8001", vec![40, 41, 42])];
        assert_eq!(names(&engines), expected);
    }

    #[test]
    fn workers_of_two_engines_are_distinguished_by_their_jobs() {
        let mut tree = Tree::new(Vec::new());
        let servers = [driver(20, 8000, "01000000"), driver(50, 8001, "02000000")].concat();
        let all = [vec![raylet(10), worker(30, 10), worker(31, 10)], servers].concat();
        tree.set(&all);
        jobs(&tree, &[(30, "02000000"), (31, "01000000")]);
        let expected = [("vllm-8000", vec![20, 21, 22, 31]), ("vllm-8001", vec![50, 51, 52, 30])];
        let of = |engines: &[EngineSeen]| {
            let sorted = |engine: &EngineSeen| {
                let mut all = pids(engine);
                all.sort_unstable();
                (engine.name.to_string(), all)
            };
            engines.iter().map(sorted).collect::<Vec<_>>()
        };
        let expected: Vec<_> = expected
            .into_iter()
            .map(|(name, mut all)| {
                all.sort_unstable();
                (name.to_owned(), all)
            })
            .collect();
        assert_eq!(of(&tree.scan().engines), expected);
    }

    /// Names, arguments and logs are free to choose, users are not.
    #[test]
    fn processes_of_another_user_do_not_join_a_job() {
        let mut tree = Tree::new(Vec::new());
        tree.set(&[vec![raylet(10), worker(30, 10)], driver(20, 8000, "01000000")].concat());
        jobs(&tree, &[(30, "01000000")]);
        let status = "Uid:\t7\t7\t7\t7\nRssAnon:\t 1024 kB\n";
        fs::write(tree.folder.path().join("22/status"), status).unwrap();
        let expected = [("vllm", vec![30]), ("vllm-8000", vec![20, 21, 22])];
        assert_eq!(names(&tree.scan().engines), expected);
    }

    /// Without root neither outputs nor open files are readable.
    #[test]
    fn a_job_that_is_not_to_be_known_is_that_of_the_only_server() {
        let mut tree = Tree::new(Vec::new());
        let all = [vec![raylet(10), worker(30, 10)], driver(20, 8000, "01000000")].concat();
        assert_eq!(names(&tree.scan_of(&all)), [("vllm-8000", vec![20, 21, 22, 30])]);
        let mut tree = Tree::new(Vec::new());
        let engines = tree.scan_of(&[raylet(10), worker(30, 10)]);
        assert_eq!((names(&engines), gang(&engines[0])), (vec![("vllm", vec![30])], SESSION));
    }
}

/// A server that waits for its parent to take note of its end shows no command line.
#[test]
fn an_engine_whose_server_is_a_zombie_keeps_its_kind() {
    let mut tree = Tree::new(Vec::new());
    let all = vllm(10, 8000);
    tree.set(&all);
    tree.scan();
    tree.set(&all[..2]);
    let server = tree.folder.path().join("10");
    let stat = fs::read_to_string(server.join("stat")).unwrap().replace(") S ", ") Z ");
    fs::write(server.join("stat"), stat).unwrap();
    fs::write(server.join("cmdline"), "").unwrap();
    let engines = tree.scan().engines;
    assert_eq!(names(&engines), [("vllm-8000", vec![10, 11])]);
    assert_eq!((engines[0].kind, engines[0].port), (EngineKind::Vllm, Some(8000)));
}

#[test]
fn leftover_processes_stay_one_engine_and_a_restart_is_another() {
    let mut tree = Tree::new(Vec::new());
    assert_eq!(names(&tree.scan_of(&vllm(10, 8000))), [("vllm-8000", vec![10, 11, 12, 13])]);
    let mut orphan = vllm(10, 8000)[2].clone();
    orphan.parent = 1;
    let left = tree.scan_of(std::slice::from_ref(&orphan));
    assert_eq!(names(&left), [("vllm-8000", vec![12])]);
    assert_eq!(left[0].server.pid, 10, "it is the same server");
    let mut all = vllm(30, 8000);
    all.push(orphan);
    let both = names_owned(&tree.scan_of(&all));
    assert_eq!(both, ["vllm-8000 [12]", "vllm-8000-2 [30, 31, 32, 33]"]);
    let again = tree.scan_of(&vllm(30, 8000));
    assert_eq!(names(&again)[0].0, "vllm-8000-2", "an engine keeps its name");
    assert!(tree.scan_of(&[]).is_empty());
    assert_eq!(names(&tree.scan_of(&vllm(40, 8000)))[0].0, "vllm-8000");
}

fn names_owned(engines: &[EngineSeen]) -> Vec<String> {
    engines.iter().map(|engine| format!("{} {:?}", engine.name, pids(engine))).collect()
}

#[test]
fn a_reused_pid_is_another_process() {
    let mut tree = Tree::new(Vec::new());
    let first = tree.scan_of(&vllm(10, 8000));
    let mut stranger = process(12, 1, "postgres", "postgres -D /data");
    stranger.start = 90_000;
    let mut second = vllm(10, 8000);
    second.truncate(2);
    second.push(stranger);
    second.iter_mut().for_each(|process| process.start += 80_000);
    let second = tree.scan_of(&second);
    assert_ne!(first[0].server, second[0].server);
    assert_eq!(pids(&second[0]), [10, 11], "the stranger belongs to no engine");
    // A quick scan after a full one detects it, too.
    let mut reused = vllm(10, 8000);
    reused.iter_mut().for_each(|process| process.start += 99_000);
    tree.set(&reused);
    let again = tree.scanner.rescan(Duration::from_secs(900));
    assert!(
        again.engines.is_empty() && again.is_partial,
        "a quick scan does not look for new processes"
    );
}

#[test]
fn a_live_server_no_longer_declared_is_reported_once_and_an_ended_one_never() {
    let turned = |readings: EngineReadings| {
        assert!(readings.engines.is_empty());
        readings.turned.iter().map(|server| server.pid).collect::<Vec<_>>()
    };
    let mut tree = Tree::new(Vec::new());
    assert!(!tree.scan_of(&vllm(10, 8000)).is_empty());
    // After an exec it is still the same server.
    assert_eq!(tree.scan_of(&[process(10, 1, "sleep", "/bin/sleep 9")])[0].server.pid, 10);
    assert!(!tree.scan_of(&vllm(20, 8000)).is_empty());
    let mut stranger = process(20, 1, "sleep", "/bin/sleep 9");
    stranger.start += 80_000;
    tree.set(&[stranger]);
    assert_eq!(turned(tree.scan()), [0; 0], "its pid is reused by another process");
    let declared = DeclaredEngine {
        name: "mine".into(),
        matches: EngineMatch { comm: Some("mine".into()), ..EngineMatch::default() },
        ..DeclaredEngine::default()
    };
    let mut tree = Tree::new(vec![declared]);
    assert_eq!(tree.scan_of(&[process(30, 1, "mine", "/bin/mine")]).len(), 1);
    tree.scanner.declare(Vec::new());
    assert_eq!(turned(tree.scan()), [30]);
    assert_eq!(turned(tree.scan()), [0; 0]);
}

#[test]
fn hostile_process_names_and_command_lines_are_escaped() {
    let mut tree = Tree::new(Vec::new());
    let mut all = vllm(10, 8000);
    all[3].comm = b"a) R 1 (\n\xff\x1b[2J".to_vec();
    let mut loops = vec![process(70, 71, "x", "x"), process(71, 70, "VLLM::x", "VLLM::x")];
    loops[0].start = 5;
    loops[1].start = 5;
    all.extend(loops);
    let mut binary = process(80, 1, "y", "");
    binary.line = (0..=255).cycle().take(100_000).collect();
    all.push(binary);
    let engines = tree.scan_of(&all);
    assert_eq!(names(&engines)[1], ("vllm-8000", vec![10, 11, 12, 13]));
    let comm = &engines[1].processes[3].comm;
    assert_eq!(&**comm, "a) R 1 (\\x0a\\xff\\x1b[2J");
    fs::write(tree.folder.path().join("10/stat"), "10 (vllm").unwrap();
    fs::remove_file(tree.folder.path().join("12/status")).unwrap();
    let engines = tree.scan().engines;
    let core = engines.iter().find(|engine| engine.name.contains("8000")).unwrap();
    assert_eq!(core.processes[0].id.pid, 11, "the server cannot be read and counts as ended");
    let of_core = core.processes.iter().find(|process| process.id.pid == 12).unwrap();
    assert_eq!(of_core.anon_bytes, Reading::Failed, "an unreadable value is not 0");
}

#[test]
fn mapped_open_or_declared_model_files_are_found() {
    let mut all = vllm(10, 8000);
    all[2].maps = "7f0000000000-7f0040000000 r--s 0 8:1 5 /models/a/x-1.safetensors\n\
                   7f0040000000-7f0080000000 r--s 0 8:1 6 /models/a/x-2.safetensors\n\
                   7f0090000000-7f0090001000 r-xp 0 8:1 7 /lib/libc.so\n"
        .to_owned();
    all[3].open = vec!["/other/y.gguf".to_owned(), "socket:[5]".to_owned()];
    let mut tree = Tree::new(Vec::new());
    let engines = tree.scan_of(&all);
    let core = &engines[0].processes[2];
    assert_eq!(
        (core.mapped_files, core.mapped_bytes),
        (Reading::Value(2), Reading::Value(2 << 30))
    );
    assert_eq!(engines[0].processes[3].open_files, Reading::Value(1));
    let files: Vec<&str> = engines[0].model_files.iter().map(|file| &**file).collect();
    assert_eq!(files, ["/models/a/*.safetensors", "/other/*.gguf"]);
    let declared = DeclaredEngine {
        name: "deepseek".into(),
        matches: EngineMatch { comm: Some("VLLM::*".into()), ..EngineMatch::default() },
        model_files: vec!["/other/**".into()],
        health: Some("http://127.0.0.1:1/h".into()),
        stuck_after: Some(Duration::from_secs(60)),
        ..DeclaredEngine::default()
    };
    let mut tree = Tree::new(vec![declared]);
    let engines = tree.scan_of(&all);
    let engine = &engines[0];
    assert_eq!(names(&engines), [("deepseek", vec![10, 11, 12, 13])], "with its server");
    assert_eq!(engine.kind, EngineKind::Vllm);
    assert_eq!(engine.processes[2].mapped_files, Reading::Value(0));
    assert_eq!(engine.processes[3].open_files, Reading::Value(1));
    assert_eq!(&*engine.model_files[0], "/other/**");
    assert_eq!(engine.health_url.as_deref(), Some("http://127.0.0.1:1/h"));
    assert_eq!(engine.stuck_after, Duration::from_secs(60));
    assert!(engine.found_by.contains("comm of pid 12"), "{}", engine.found_by);
}

#[test]
fn containers_and_units_are_found_by_their_control_group() {
    let id = "ab".repeat(32);
    let mut inside = vllm(10, 8000);
    for process in &mut inside {
        process.cgroup = format!("/system.slice/docker-{id}.scope");
    }
    let mut service = process(50, 1, "my-server", "/opt/my-server --port 9000");
    service.cgroup = "/system.slice/llm.service".to_owned();
    let by = |name: &str, matches| DeclaredEngine {
        name: name.into(),
        matches,
        ..DeclaredEngine::default()
    };
    let unit = EngineMatch { unit: Some("llm.*".into()), ..EngineMatch::default() };
    let by_container =
        EngineMatch { container: Some("abababababab".into()), ..EngineMatch::default() };
    let mut tree = Tree::new(vec![by("mine", unit), by("boxed", by_container)]);
    inside.push(service);
    let init = Some(ProcessId { pid: 10, start_ticks: 1010 });
    let container = Container { init, ..Container::default() };
    tree.scanner.know(Containers::from([(id.as_str().into(), container)]).into(), true);
    let engines = tree.scan_of(&inside);
    assert_eq!(names(&engines), [("boxed", vec![10, 11, 12, 13]), ("mine", vec![50])]);
    assert_eq!(engines[0].container.as_deref(), Some(&*id));
    assert_eq!(engines[1].unit.as_deref(), Some("llm.service"));
    assert_eq!((engines[1].kind, engines[1].port), (EngineKind::Declared, Some(9000)));
}

#[test]
fn engines_beyond_the_limit_are_cut_and_flagged_if_one_uses_the_gpu() {
    let mut tree = Tree::new(Vec::new());
    let mut all: Vec<Process> =
        (100..300).map(|pid| process(pid, 1, "VLLM::x", "VLLM::x")).collect();
    tree.set(&all);
    let readings = tree.scan();
    assert_eq!((readings.engines.len(), readings.is_cut), (32, false));
    // A new process with the GPU driver open.
    all.push(Process { open: vec!["/dev/nvidiactl".into()], ..process(300, 1, "VLLM::x", "x") });
    tree.set(&all);
    let readings = tree.scan();
    assert_eq!((readings.engines.len(), readings.is_cut), (32, true));
    assert!(!tree.scan().is_cut, "the cut process is idle");
}

#[test]
fn a_missing_procfs_is_an_error_and_not_an_empty_list() {
    let mut scanner = Scanner::new("/nonexistent".into(), Vec::new());
    let error = scanner.scan(Duration::ZERO, false).unwrap_err();
    assert!(error.contains("/nonexistent cannot be listed"), "{error}");
}
