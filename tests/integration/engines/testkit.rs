//! Real SGLang and vLLM servers on the CPU, where they are installed: followed from their start to
//! ready, under requests, and to their end by SIGKILL. SGLang's processes end with the one that was
//! started; vLLM's engine core and worker stay, with their memory, until they are killed too.
//!
//! `UMAWARDEN_ENGINES=1 ENGINE_TESTKIT=ENV_DIR ENGINE_SCRIPTS=FOLDER cargo test -- --ignored
//! living_servers`: ENV_DIR has the environment with both and a tiny model, FOLDER has
//! `run-sglang.sh` and `run-vllm.sh`, which take ENV_DIR and serve it on `$PORT`.

use std::fs::File;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use umawarden::model::EnginePhase;

use super::living::Follower;

/// Starts a server with those flags besides, whose log goes there.
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

/// A server with all that it has started; none of it stays when this is dropped.
pub struct Server(Child);

impl Server {
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Ends the process that was started, and no other.
    fn kill_the_first(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    fn kill_the_rest(&self) {
        let group = Pid::from_raw(i32::try_from(self.0.id()).unwrap()).unwrap();
        // There may be none.
        let _ended = kill_process_group(group, Signal::KILL);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill_the_rest();
        let _reaped = self.0.wait();
    }
}

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Keeps the server at work for a while.
fn ask(port: u16, path: &'static str, body: &'static str) {
    std::thread::spawn(move || {
        let client =
            reqwest::blocking::Client::builder().timeout(Duration::from_secs(120)).build().unwrap();
        // The server is killed while it answers.
        let _killed = client
            .post(format!("http://127.0.0.1:{port}{path}"))
            .header("content-type", "application/json")
            .body(body)
            .send();
    });
}

fn follow(script: &str, path: &'static str, body: &'static str, ends_alone: bool) {
    let port = free_port();
    let Some(mut server) = start(script, port, &[], None) else { return };
    let mut follower = Follower::new(server.0.id()).with_patience(Duration::from_secs(300));
    follower.until(EnginePhase::Starting);
    follower.until(EnginePhase::Ready);
    for _ in 0..4 {
        ask(port, path, body);
    }
    let reason = follower.until(EnginePhase::Serving);
    assert!(reason.contains("being worked on"), "{reason}");
    server.kill_the_first();
    if !ends_alone {
        let reason = follower.until(EnginePhase::Stopping);
        assert!(reason.contains("has ended"), "{reason}");
        server.kill_the_rest();
    }
    follower.until(EnginePhase::Gone);
    println!("{script}: {:#?}", follower.told());
    let phases: Vec<EnginePhase> = follower.told().iter().map(|(phase, _)| *phase).collect();
    assert!(phases.contains(&EnginePhase::Loading), "{phases:?}");
}

#[test]
#[ignore = "needs real servers: UMAWARDEN_ENGINES=1"]
fn living_servers_sglang() {
    let body =
        r#"{"text": "hello", "sampling_params": {"max_new_tokens": 3000, "ignore_eos": true}}"#;
    follow("run-sglang.sh", "/generate", body, true);
}

#[test]
#[ignore = "needs real servers: UMAWARDEN_ENGINES=1"]
fn living_servers_vllm() {
    let body = r#"{"model": "tiny", "prompt": "hello", "max_tokens": 3000, "ignore_eos": true}"#;
    follow("run-vllm.sh", "/v1/completions", body, false);
}
