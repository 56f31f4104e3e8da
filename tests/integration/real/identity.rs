//! Claims of user `nobody`: it gets no key, ends no foreign container, and displaces no engine.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use umawarden::actions::{Executor as _, StopExecutor};
use umawarden::model::{
    Action, DecisionRecord, DeclaredEngine, EngineMatch, EngineTarget, OutcomeResult, Target,
};
use umawarden::parse::container::containers;
use umawarden::sources::engines::Scanner;

use super::enabled;
use crate::daemon::{Daemon, write_secret};
use crate::empty_cache::fake::{FakeServer, Reply, Request};

const FOLDER: &str = "UMAWARDEN_PRETENDER";
pub const KEY: &str = "sk-of-root";

/// Answers as vLLM does, and records the requests.
#[test]
fn vllm_of_other_tests() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let port = std::env::args().skip_while(|argument| argument != "--port").nth(1).unwrap();
    let listener = TcpListener::bind(format!("127.0.0.1:{port}")).unwrap();
    let _server = FakeServer::on(listener, move |request: &Request| {
        let log = fs::OpenOptions::new().create(true).append(true).open(folder.join("requests"));
        writeln!(log.unwrap(), "{} {:?}", request.endpoint(), request.key).unwrap();
        Reply::Answer(200, "vllm:num_requests_running 0.0\nvllm:num_requests_waiting 0.0\n".into())
    });
    loop {
        std::thread::park();
    }
}

/// A process that is killed when the test ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn as_user(user: &str, program: &Path) -> Command {
    if user == "root" {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(program);
    command
}

pub struct Pretender {
    running: Running,
    folder: tempfile::TempDir,
}

impl Pretender {
    /// The command line of a server on a free port that writes the requests it gets into that
    /// folder.
    pub fn command(folder: &Path, marker: &str) -> Vec<String> {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let program = std::env::current_exe().unwrap();
        let test = "real::identity::vllm_of_other_tests";
        let script = format!("export {FOLDER}={}; exec -a vllm \"$0\" \"$@\"", folder.display());
        let (program, port) = (program.display().to_string(), port.to_string());
        let serve = ["serve", "--exact", test, "--nocapture", "--", "--port", &port, marker];
        ["bash", "-c", &script, &program].iter().chain(&serve).map(ToString::to_string).collect()
    }

    pub fn start(user: &str, marker: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let command = Self::command(folder.path(), marker);
        let child = as_user(user, Path::new(&command[0]))
            .args(&command[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { running: Running(child), folder }
    }

    pub fn pid(&self) -> u32 {
        self.running.0.id()
    }

    pub fn requests(&self) -> String {
        fs::read_to_string(self.folder.path().join("requests")).unwrap_or_default()
    }
}

pub fn engine(daemon: &Daemon, name: &str) -> serde_json::Value {
    let (_, text) = daemon.get("/api/v1/engines");
    let response: serde_json::Value = serde_json::from_str(&text).unwrap();
    let engines = response["data"]["engines"].as_array().cloned().unwrap_or_default();
    engines.into_iter().find(|one| one["name"] == name).unwrap_or_default()
}

#[test]
fn a_key_is_not_sent_to_a_process_that_only_claims_to_be_the_engine() {
    if !enabled() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    write_secret(&key, &format!("{KEY}\n"));
    let marker = |of: &str| format!("umawarden-{of}-{}", std::process::id());
    let entry = |of: &str, more: &str| {
        format!(
            "- name: {of}\n  match: {{cmdline: \"* {}*\"}}\n  api_key_file: {}\n{more}",
            marker(of),
            key.display()
        )
    };
    let config = folder.path().join("umawarden.yaml");
    let flag = format!("--config.file={}", config.display());
    let start = |storage: &str, entries: &str| {
        fs::write(&config, format!("rule_files: []\nengines:\n{entries}")).unwrap();
        Daemon::start(&folder.path().join(storage), &[&flag])
    };
    let is_queried = |daemon: &Daemon, one: &Pretender| {
        daemon.wait_until("queried for its metrics", |_| one.requests().contains("/metrics"));
    };
    let daemon = start("data", &(entry("false", "") + &entry("own", "")));
    let pretender = Pretender::start("nobody", &marker("false"));
    let own = Pretender::start("root", &marker("own"));
    is_queried(&daemon, &pretender);
    daemon.wait_until("queried with its key", |_| own.requests().contains(KEY));
    assert!(!pretender.requests().contains("Bearer"), "{}", pretender.requests());
    daemon.wait_until("withheld with the reason", |daemon| {
        engine(daemon, "false")["key_withheld"].is_string()
    });
    assert!(!pretender.requests().contains("Bearer"), "{}", pretender.requests());
    let why = engine(&daemon, "false")["key_withheld"].to_string();
    assert!(why.contains("runs as user 65534, the key is for user 0"), "{why}");
    assert!(engine(&daemon, "own")["key_withheld"].is_null());
    assert!(daemon.log().contains("key withheld"), "{}", daemon.log());
    daemon.terminate();
    // Another engine of user `nobody`, whose entry names that user.
    let daemon = start("named", &entry("named", "  user: nobody\n"));
    let named = Pretender::start("nobody", &marker("named"));
    daemon.wait_until("queried with its key", |_| named.requests().contains(KEY));
}

/// A Docker that lists one container with `pid` as its first process, and records the requests to
/// act.
pub fn docker(socket: &Path, id: &str, pid: u32) -> Arc<Mutex<Vec<String>>> {
    let listener = UnixListener::bind(socket).unwrap();
    let requests: Arc<Mutex<Vec<String>>> = Arc::default();
    let (log, id) = (Arc::clone(&requests), id.to_owned());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut request = [0; 4096];
            let length = stream.read(&mut request).unwrap_or(0);
            let line = String::from_utf8_lossy(&request[..length]);
            let line = line.lines().next().unwrap_or_default().to_owned();
            let body = match () {
                () if line.contains("/containers/json") => {
                    format!(r#"[{{"Id":"{id}","Names":["/victim"]}}]"#)
                }
                () if line.contains("/json") => format!(
                    r#"{{"Id":"{id}","Name":"/victim","State":{{"Status":"running","Pid":{pid}}}}}"#
                ),
                () => String::new(),
            };
            log.lock().unwrap().push(line);
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n", body.len());
            // The client may have disconnected.
            let _ = stream.write_all(format!("{head}connection: close\r\n\r\n{body}").as_bytes());
        }
    });
    requests
}

/// A control group with that name, in the hierarchy that counts here.
pub struct Group(PathBuf);

impl Group {
    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn new(name: &str) -> Self {
        let memory = Path::new("/sys/fs/cgroup/memory");
        let root = if memory.exists() { memory } else { Path::new("/sys/fs/cgroup") };
        let folder = root.join(name);
        fs::create_dir(&folder).unwrap();
        Self(folder)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(5);
        while fs::remove_dir(&self.0).is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn declared(name: &str, marker: &str) -> DeclaredEngine {
    let cmdline = Some(format!("* {marker}*").into());
    let matches = EngineMatch { cmdline, ..EngineMatch::default() };
    DeclaredEngine { name: name.into(), matches, ..DeclaredEngine::default() }
}

/// A process that sleeps, with that word among its arguments.
fn sleeper(user: &str, marker: &str) -> Running {
    let mut command = as_user(user, Path::new("/bin/sh"));
    command.args(["-c", "sleep 300; :", marker]).stdin(Stdio::null()).process_group(0);
    Running(command.spawn().unwrap())
}

#[test]
fn a_process_cannot_get_a_foreign_container_killed_by_claiming_it() {
    if !enabled() {
        return;
    }
    let id = "5a".repeat(32);
    let group = Group::new(&format!("docker-{id}.scope"));
    let marker = format!("umawarden-boxed-{}", std::process::id());
    let hog = sleeper("nobody", &marker);
    fs::write(group.0.join("cgroup.procs"), hog.0.id().to_string()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("docker.sock");
    // Docker reports another process for that container.
    let requests = docker(&socket, &id, std::process::id());
    let list = format!(r#"[{{"Id":"{id}","Names":["/victim"]}}]"#);
    let mut scanner = Scanner::new("/proc".into(), vec![declared("hog", &marker)]);
    scanner.know(containers(list.as_bytes()).unwrap().into(), true);
    let deadline = Instant::now() + Duration::from_secs(10);
    let seen = loop {
        let mut readings = scanner.scan(Duration::from_secs(1), true).unwrap();
        if let Some(seen) = readings.engines.pop_if(|one| &*one.name == "hog") {
            break seen;
        }
        assert!(Instant::now() < deadline, "{readings:?}");
    };
    let target = Target::Engine(Box::new(EngineTarget::from(&seen)));
    let action = Action::StopEngine {
        engine: None,
        grace_ms: 100,
        unless_free_bytes: None,
        for_reboot: None,
    };
    let decision = DecisionRecord { target, ..crate::actions::decision(action) };
    let mut executor = StopExecutor {
        procfs: "/proc".into(),
        sysfs: "/sys".into(),
        docker: socket,
        user_folders: "/nowhere".into(),
    };
    let act = crate::actions::act(decision);
    let done = std::thread::spawn(move || executor.execute(&act).result);
    let mut hog = hog;
    hog.0.wait().unwrap();
    assert_eq!(done.join().unwrap(), OutcomeResult::Done);
    let kills: Vec<String> =
        requests.lock().unwrap().iter().filter(|line| line.contains("/kill")).cloned().collect();
    assert_eq!(kills, Vec::<String>::new());
}

#[test]
fn many_sleeping_processes_do_not_displace_roots_engine() {
    if !enabled() {
        return;
    }
    let marker = format!("umawarden-many-{}", std::process::id());
    let false_ones: Vec<Running> =
        (0..40).map(|_| sleeper("nobody", &format!("{marker}-false"))).collect();
    std::thread::sleep(Duration::from_millis(500));
    let own = sleeper("root", &format!("{marker}-own"));
    std::thread::sleep(Duration::from_millis(200));
    let folder = tempfile::tempdir().unwrap();
    let entry = |of: &str| format!("- {{name: {of}, match: {{cmdline: '* {marker}-{of}*'}}}}\n");
    let config = folder.path().join("umawarden.yaml");
    let entries = entry("false") + &entry("own");
    fs::write(&config, format!("rule_files: []\nengines:\n{entries}")).unwrap();
    let config = format!("--config.file={}", config.display());
    let daemon = Daemon::start(&folder.path().join("data"), &[&config]);
    daemon.wait_until("reporting the engine of user nobody", |daemon| {
        engine(daemon, "false").is_object()
    });
    assert!(engine(&daemon, "own").is_object(), "{}", daemon.log());
    daemon.terminate();
    let declared = vec![
        declared("false", &format!("{marker}-false")),
        declared("own", &format!("{marker}-own")),
    ];
    let mut scanner = Scanner::new("/proc".into(), declared);
    let readings = scanner.scan(Duration::from_secs(100), false).unwrap();
    assert!(readings.engines.iter().any(|engine| &*engine.name == "own"), "{readings:?}");
    // Once they are known to sleep, skipped processes do not matter.
    let readings = scanner.scan(Duration::from_secs(120), false).unwrap();
    assert_eq!(readings.engines.len(), 32);
    assert!(!readings.is_cut);
    drop((own, false_ones));
}
