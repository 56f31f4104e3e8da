//! Real processes that look like an engine, and a real port that answers like one.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with};
use umawarden::model::{
    DecisionId, EnginePhase, EventKind, Mode, Moment, Observation, ProgramEvent,
};
use umawarden::policy::Policy;
use umawarden::policy::rule::RuleSet;
use umawarden::sources::engines::{DockerPace, EngineSetup, EngineWatch};

/// Nothing that is waited for here takes so long on a machine that is not stuck.
const PATIENCE: Duration = Duration::from_secs(60);

pub fn uptime() -> Duration {
    let text = fs::read_to_string("/proc/uptime").unwrap();
    Duration::from_secs_f64(text.split(' ').next().unwrap().parse().unwrap())
}

/// A port that refuses, and that nobody else is given meanwhile.
pub struct SilentPort {
    pub socket: OwnedFd,
    pub number: u16,
}

impl SilentPort {
    pub fn take() -> Self {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
        bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
        let bound = SocketAddrV4::try_from(getsockname(&socket).unwrap()).unwrap();
        Self { socket, number: bound.port() }
    }
}

pub fn watch(procfs: &str, docker: &str) -> EngineWatch {
    let setup = EngineSetup {
        procfs: procfs.into(),
        docker: docker.into(),
        cri: Vec::new(),
        declared: Vec::new(),
        pace: DockerPace::default(),
        clock: uptime,
    };
    EngineWatch::start(setup).unwrap()
}

/// A shell script that is called vllm, with a child that takes a title.
struct FakeEngine {
    child: Child,
    _folder: tempfile::TempDir,
}

impl FakeEngine {
    fn start(port: u16) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("vllm");
        let text = "exec 9<&0\n(printf VLLM::EngineCore >/proc/$BASHPID/comm; exec 3<\"$3\"; \
                    read -r _ <&9) &\nwait\n";
        fs::write(&script, text).unwrap();
        let weights = folder.path().join("tiny.safetensors");
        fs::write(&weights, "weights").unwrap();
        let child = Command::new("bash")
            .arg(&script)
            .args(["serve", "/models/tiny"])
            .arg(&weights)
            .args(["--port", &port.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, _folder: folder }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for FakeEngine {
    fn drop(&mut self) {
        // Its child ends with its standard input.
        drop(self.child.stdin.take());
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Answers with a status; 0 hangs up without a word.
fn serve(listener: TcpListener, status: Arc<AtomicU16>) {
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            answer(stream, status.load(Ordering::SeqCst));
        }
    });
}

fn answer(mut stream: TcpStream, status: u16) {
    let mut request = [0; 1024];
    let length = stream.read(&mut request).unwrap_or(0);
    let is_metrics = request[..length].starts_with(b"GET /metrics");
    let body = if is_metrics { "vllm:num_requests_running{a=\"b\"} 3.0\n" } else { "" };
    if status != 0 {
        let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n", body.len());
        // Whoever asked may have gone.
        let _gone = stream.write_all(format!("{head}connection: close\r\n\r\n{body}").as_bytes());
    }
}

pub(super) struct Follower {
    watch: EngineWatch,
    policy: Policy,
    told: Vec<(EnginePhase, String)>,
    /// How many of those have been waited for: several may be told at once.
    heard: usize,
    server: u32,
    patience: Duration,
}

impl Follower {
    pub(super) fn new(server: u32) -> Self {
        let watch = watch("/proc", "/nonexistent-docker");
        let at = Moment { uptime: uptime(), utc: Timestamp::now() };
        let policy = Policy::new(at, Mode::Observe, &RuleSet::default(), DecisionId(1));
        Self { watch, policy, told: Vec::new(), heard: 0, server, patience: PATIENCE }
    }

    pub(super) fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    pub(super) fn told(&self) -> &[(EnginePhase, String)] {
        &self.told
    }

    /// Follows it until it is in that phase; says why it is.
    pub(super) fn until(&mut self, wanted: EnginePhase) -> String {
        let began = Instant::now();
        loop {
            let mut seen = Vec::new();
            self.watch.take(uptime(), &mut seen);
            let at = Moment { uptime: uptime(), utc: Timestamp::now() };
            for event in self.policy.step(at, &seen).events {
                if let EventKind::Program(ProgramEvent::EnginePhase { to, reason, pid, .. }) =
                    event.kind
                    && pid == self.server
                {
                    self.told.push((to, reason));
                }
            }
            self.watch.set_loading(self.policy.is_any_engine_on_its_way());
            let news = self.told.iter().enumerate().skip(self.heard);
            if let Some((at, (_, reason))) = news.clone().find(|(_, told)| told.0 == wanted) {
                self.heard = at + 1;
                return reason.clone();
            }
            assert!(began.elapsed() < self.patience, "never {wanted}: {:?}", self.told);
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn a_living_engine_is_followed_from_its_start_over_serving_to_its_sigkill() {
    let port = SilentPort::take();
    let socket = port.socket;
    let port = port.number;
    let mut engine = FakeEngine::start(port);
    let mut follower = Follower::new(engine.pid());
    follower.until(EnginePhase::Starting);
    let reason = follower.until(EnginePhase::Loading);
    let is_seen = reason.contains("VLLM::EngineCor") || reason.contains("model files");
    assert!(is_seen, "{reason}");
    let status = Arc::new(AtomicU16::new(503));
    rustix::net::listen(&socket, 16).unwrap();
    serve(TcpListener::from(socket), Arc::clone(&status));
    status.store(200, Ordering::SeqCst);
    let reason = follower.until(EnginePhase::Serving);
    assert_eq!(reason, "3 requests are being worked on");
    let ready = follower.told.iter().find(|(phase, _)| *phase == EnginePhase::Ready).unwrap();
    assert_eq!(ready.1, format!("it answers at http://127.0.0.1:{port}/health"));
    status.store(0, Ordering::SeqCst);
    // Its child lives until this is closed, which a wait would do.
    let input = engine.child.stdin.take();
    engine.child.kill().unwrap();
    engine.child.wait().unwrap();
    let reason = follower.until(EnginePhase::Stopping);
    // It is looked at before or after its parent has heard of its end.
    let is_told = ["has ended; VLLM::EngineCor", "has ended and waits for its parent"];
    assert!(is_told.iter().any(|told| reason.contains(told)), "{reason}");
    drop(input);
    follower.until(EnginePhase::Gone);
}

#[test]
fn what_the_threads_have_found_is_taken_without_waiting_for_them() {
    let mut watch = watch("/nonexistent-proc", "/nonexistent-docker");
    let began = Instant::now();
    let mut seen = Vec::new();
    while seen.is_empty() {
        watch.take(uptime(), &mut seen);
        assert!(began.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(5));
    }
    let Observation::Readings(readings) = &seen[0] else { panic!("{seen:?}") };
    assert!(readings.error.as_deref().unwrap().contains("cannot be listed"));
}
