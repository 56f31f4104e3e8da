//! Real SGLang and vLLM servers on the CPU, where they are installed: tracked from their start to
//! ready, under requests, and to their end by SIGKILL. SGLang's processes end with the one that was
//! started; vLLM's engine core and worker stay, with their memory, until they are killed too.
//!
//! `UMAWARDEN_ENGINES=1 ENGINE_TESTKIT=ENV_DIR ENGINE_SCRIPTS=FOLDER cargo test -- --ignored
//! real_servers`: ENV_DIR has the environment with both and a tiny model, FOLDER has
//! `run-sglang.sh` and `run-vllm.sh`, which take ENV_DIR and serve it on `$PORT`.

use std::fs::File;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;
use umawarden::model::EnginePhase;

use super::live::PhaseTracker;
use crate::daemon::{Daemon, binary, of_kind};

/// Starts a server with additional flags; `log` gets its output.
pub fn start(script: &str, port: u16, flags: &[&str], log: Option<File>) -> Option<Server> {
    if std::env::var_os("UMAWARDEN_ENGINES").is_none_or(|wanted| wanted != "1") {
        eprintln!("UMAWARDEN_ENGINES is not 1: no server is started");
        return None;
    }
    let environment = std::env::var("ENGINE_TESTKIT").unwrap();
    let scripts = std::env::var("ENGINE_SCRIPTS").unwrap();
    let log = log.unwrap_or_else(|| File::create("/dev/null").unwrap());
    let child = Command::new(format!("{scripts}/{script}"))
        .arg(environment)
        .args(flags)
        .env("PORT", port.to_string())
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .process_group(0)
        .spawn()
        .unwrap();
    Some(Server(child))
}

/// A server and its descendants, all killed when dropped.
pub struct Server(Child);

impl Server {
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Kills only the process that was started.
    fn kill_the_first(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    fn kill_the_rest(&self) {
        let group = Pid::from_raw(i32::try_from(self.0.id()).unwrap()).unwrap();
        // There may be none.
        let _ = kill_process_group(group, Signal::KILL);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill_the_rest();
        let _ = self.0.wait();
    }
}

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Sends a request that keeps the server busy for a while.
fn send_request(port: u16, path: &'static str, body: &'static str) {
    std::thread::spawn(move || {
        let client =
            crate::daemon::http_client().timeout(Duration::from_secs(120)).build().unwrap();
        // The server is killed while it responds.
        let _ = client
            .post(format!("http://127.0.0.1:{port}{path}"))
            .header("content-type", "application/json")
            .body(body)
            .send();
    });
}

fn track(script: &str, path: &'static str, body: &'static str, ends_alone: bool) {
    let port = free_port();
    let Some(mut server) = start(script, port, &[], None) else { return };
    let mut tracker = PhaseTracker::new(server.0.id()).with_patience(Duration::from_secs(300));
    tracker.until(EnginePhase::Starting);
    tracker.until(EnginePhase::Ready);
    for _ in 0..4 {
        send_request(port, path, body);
    }
    let reason = tracker.until(EnginePhase::Serving);
    assert!(reason.contains("being worked on"), "{reason}");
    server.kill_the_first();
    if !ends_alone {
        let reason = tracker.until(EnginePhase::Stopping);
        assert!(reason.contains("has ended"), "{reason}");
        server.kill_the_rest();
    }
    tracker.until(EnginePhase::Gone);
    println!("{script}: {:#?}", tracker.phases());
    let phases: Vec<EnginePhase> = tracker.phases().iter().map(|(phase, _)| *phase).collect();
    assert!(phases.contains(&EnginePhase::Loading), "{phases:?}");
}

/// Starts a server under `umawarden launch`, with its folder of data, and a log for its errors.
fn launch(script: &str, port: u16, (data, log): (&Path, &Path), arguments: &[&str]) -> Server {
    let environment = std::env::var("ENGINE_TESTKIT").unwrap();
    let scripts = std::env::var("ENGINE_SCRIPTS").unwrap();
    let child = Command::new(binary())
        .arg("launch")
        .args(arguments)
        .arg("--storage.path")
        .arg(data)
        .args(["--", &format!("{scripts}/{script}"), &environment])
        .env("PORT", port.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(log).unwrap())
        .process_group(0)
        .spawn()
        .unwrap();
    Server(child)
}

/// Runs a server under `umawarden launch` and kills the worker of that name once it is ready;
/// returns the launcher's exit code and report.
fn killed_under_launch(script: &str, worker: &str) -> Option<(i32, Value)> {
    if std::env::var_os("UMAWARDEN_ENGINES").is_none_or(|wanted| wanted != "1") {
        eprintln!("UMAWARDEN_ENGINES is not 1: no server is started");
        return None;
    }
    let (port, folder) = (free_port(), tempfile::tempdir().unwrap());
    let log = folder.path().join("log");
    let data = folder.path().join("data");
    let arguments = ["--json", "--name=chat", "--kill-orphans"];
    let mut server = launch(script, port, (&data, &log), &arguments);
    let client = crate::daemon::http_client().build().unwrap();
    let deadline = Instant::now() + Duration::from_secs(300);
    let is_up = || {
        let response = client.get(format!("http://127.0.0.1:{port}/health")).send();
        response.is_ok_and(|response| response.status().is_success())
    };
    while !is_up() {
        assert!(Instant::now() < deadline, "{}", std::fs::read_to_string(&log).unwrap());
        std::thread::sleep(Duration::from_millis(500));
    }
    let group = server.0.id().to_string();
    let pid = processes().find_map(|(pid, comm, of_group)| {
        (comm.starts_with(worker) && of_group == group).then_some(pid)
    });
    kill_process(Pid::from_raw(pid.unwrap()).unwrap(), Signal::KILL).unwrap();
    let code = server.0.wait().unwrap().code().unwrap();
    let printed = std::fs::read_to_string(&log).unwrap();
    let report = printed.lines().rev().find(|line| line.starts_with("{\"who\""));
    println!("{script} ended with {code}:\n{printed}");
    Some((code, serde_json::from_str(report.unwrap()).unwrap()))
}

/// Pid, name and process group of every process.
fn processes() -> impl Iterator<Item = (i32, String, String)> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        let (head, rest) = stat.rsplit_once(") ")?;
        let comm = head.split_once(" (")?.1.to_owned();
        Some((pid, comm, rest.split(' ').nth(2)?.to_owned()))
    })
}

fn check_worker(report: &Value, worker: &str) {
    assert_eq!(report["is_failure"], true, "{report:#}");
    let killed = &report["killed_workers"][0];
    assert!(killed["comm"].as_str().unwrap().starts_with(worker), "{report:#}");
    assert_eq!(killed["status"]["signal"], 9, "{report:#}");
    let killer = &report["killer"];
    assert_eq!((&killer["by"], &killer["signal"]), (&"signal".into(), &9.into()), "{report:#}");
}

#[test]
#[ignore = "needs real servers: UMAWARDEN_ENGINES=1"]
fn real_servers_sglang_killed_under_launch() {
    let Some((code, report)) = killed_under_launch("run-sglang.sh", "sglang::sched") else {
        return;
    };
    check_worker(&report, "sglang::sched");
    assert_ne!(code, 0);
}

/// `vllm serve` ends with exit code 0.
#[test]
#[ignore = "needs real servers: UMAWARDEN_ENGINES=1"]
fn real_servers_vllm_killed_under_launch() {
    let Some((code, report)) = killed_under_launch("run-vllm.sh", "VLLM::EngineCor") else {
        return;
    };
    check_worker(&report, "VLLM::EngineCor");
    assert_eq!((code, &report["exit"]["code"]), (79, &0.into()), "{report:#}");
}

#[test]
#[ignore = "needs real servers: UMAWARDEN_ENGINES=1"]
fn real_servers_sglang() {
    let body =
        r#"{"text": "hello", "sampling_params": {"max_new_tokens": 3000, "ignore_eos": true}}"#;
    track("run-sglang.sh", "/generate", body, true);
}

#[test]
#[ignore = "needs real servers: UMAWARDEN_ENGINES=1"]
fn real_servers_vllm() {
    let body = r#"{"model": "tiny", "prompt": "hello", "max_tokens": 3000, "ignore_eos": true}"#;
    track("run-vllm.sh", "/v1/completions", body, false);
}

#[test]
#[ignore = "needs real servers: UMAWARDEN_ENGINES=1"]
fn real_servers_vllm_needs_what_it_took_before() {
    needs_what_it_took_before("run-vllm.sh");
}

#[test]
#[ignore = "needs real servers: UMAWARDEN_ENGINES=1"]
fn real_servers_sglang_needs_what_it_took_before() {
    needs_what_it_took_before("run-sglang.sh");
}

/// Its first start is given a need, the second takes what the first one took.
fn needs_what_it_took_before(script: &str) {
    if std::env::var_os("UMAWARDEN_ENGINES").is_none_or(|wanted| wanted != "1") {
        return eprintln!("UMAWARDEN_ENGINES is not 1: no server is started");
    }
    let folder = tempfile::tempdir().unwrap();
    let (config, storage) = (folder.path().join("c.yaml"), folder.path().join("data"));
    let run = folder.path().join("run");
    std::fs::write(&config, format!("starts: {{folder: {}}}\n", run.display())).unwrap();
    let config = format!("--config.file={}", config.display());
    let daemon = Daemon::start(&storage, &[&config]);
    let loads = || {
        let all = crate::daemon::history(&storage);
        of_kind(&all, "engine_load").filter(|load| load["engine"] == "tiny").count()
    };
    for (number, need) in ["4GiB", "auto"].into_iter().enumerate() {
        let log = folder.path().join("log");
        let arguments = [&*config, "--need", need, "--name=tiny"];
        let mut server = launch(script, free_port(), (&storage, &log), &arguments);
        let deadline = Instant::now() + Duration::from_secs(300);
        while loads() <= number {
            let log = || std::fs::read_to_string(&log).unwrap();
            assert!(Instant::now() < deadline, "{need}: {}", log());
            std::thread::sleep(Duration::from_secs(1));
        }
        if need == "auto" {
            let log = std::fs::read_to_string(&log).unwrap();
            assert!(log.contains("--need auto is ") && log.contains("1 earlier load"), "{log}");
        }
        kill_process(Pid::from_child(&server.0), Signal::TERM).unwrap();
        server.0.wait().unwrap();
        daemon.wait_until("no lease is left", |daemon| {
            daemon.get("/metrics").1.contains("uma_leases{state=\"granted\"} 0")
        });
    }
}
