//! Real processes that look like an engine, and a real port that responds like one.

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

/// Longer than any wait of these tests on a working machine.
const PATIENCE: Duration = Duration::from_secs(60);

pub fn uptime() -> Duration {
    let text = fs::read_to_string("/proc/uptime").unwrap();
    Duration::from_secs_f64(text.split(' ').next().unwrap().parse().unwrap())
}

/// A bound port without a listener: it refuses connections, and no other process gets it.
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
        docker: vec![docker.into()],
        users: "/nonexistent/users".into(),
        cri: Vec::new(),
        declared: Vec::new(),
        pace: DockerPace::default(),
        clock: uptime,
    };
    EngineWatch::start(setup).unwrap()
}

/// A shell script named vllm, with a child that sets its process title.
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
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Responds with a status; 0 closes the connection without a response.
fn serve(listener: TcpListener, status: Arc<AtomicU16>) {
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            respond(stream, status.load(Ordering::SeqCst));
        }
    });
}

fn respond(mut stream: TcpStream, status: u16) {
    let mut request = [0; 1024];
    let length = stream.read(&mut request).unwrap_or(0);
    let is_metrics = request[..length].starts_with(b"GET /metrics");
    let body = if is_metrics { "vllm:num_requests_running{a=\"b\"} 3.0\n" } else { "" };
    if status != 0 {
        let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n", body.len());
        // The client may have closed the connection.
        let _ = stream.write_all(format!("{head}connection: close\r\n\r\n{body}").as_bytes());
    }
}

/// Tracks the phases of one engine.
pub(super) struct PhaseTracker {
    watch: EngineWatch,
    policy: Policy,
    phases: Vec<(EnginePhase, String)>,
    /// How many of them `until` has returned: several may be reported at once.
    returned: usize,
    server: u32,
    patience: Duration,
}

impl PhaseTracker {
    pub(super) fn new(server: u32) -> Self {
        let watch = watch("/proc", "/nonexistent-docker");
        let at = Moment { uptime: uptime(), utc: Timestamp::now() };
        let policy = Policy::new(at, Mode::Observe, &RuleSet::default(), DecisionId(1));
        Self { watch, policy, phases: Vec::new(), returned: 0, server, patience: PATIENCE }
    }

    pub(super) fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    pub(super) fn phases(&self) -> &[(EnginePhase, String)] {
        &self.phases
    }

    /// Waits for the phase; returns its reason.
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
                    self.phases.push((to, reason));
                }
            }
            self.watch.set_loading(self.policy.is_any_engine_on_its_way());
            let news = self.phases.iter().enumerate().skip(self.returned);
            if let Some((at, (_, reason))) = news.clone().find(|(_, phase)| phase.0 == wanted) {
                self.returned = at + 1;
                return reason.clone();
            }
            assert!(began.elapsed() < self.patience, "never {wanted}: {:?}", self.phases);
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn a_live_engine_is_tracked_from_its_start_to_its_sigkill() {
    let port = SilentPort::take();
    let socket = port.socket;
    let port = port.number;
    let mut engine = FakeEngine::start(port);
    let mut tracker = PhaseTracker::new(engine.pid());
    tracker.until(EnginePhase::Starting);
    let reason = tracker.until(EnginePhase::Loading);
    let is_detected = reason.contains("VLLM::EngineCor") || reason.contains("model files");
    assert!(is_detected, "{reason}");
    let status = Arc::new(AtomicU16::new(503));
    rustix::net::listen(&socket, 16).unwrap();
    serve(TcpListener::from(socket), Arc::clone(&status));
    status.store(200, Ordering::SeqCst);
    let reason = tracker.until(EnginePhase::Serving);
    assert_eq!(reason, "3 requests are being worked on");
    let ready = tracker.phases.iter().find(|(phase, _)| *phase == EnginePhase::Ready).unwrap();
    assert_eq!(ready.1, format!("it answers at http://127.0.0.1:{port}/health"));
    status.store(0, Ordering::SeqCst);
    // Its child lives until this is closed; `wait` would close it.
    let input = engine.child.stdin.take();
    engine.child.kill().unwrap();
    engine.child.wait().unwrap();
    let reason = tracker.until(EnginePhase::Stopping);
    // The scan comes before or after its parent has reaped it.
    let reasons = ["has ended; VLLM::EngineCor", "has ended and waits for its parent"];
    assert!(reasons.iter().any(|part| reason.contains(part)), "{reason}");
    drop(input);
    tracker.until(EnginePhase::Gone);
}

#[test]
fn observations_are_taken_without_waiting_for_the_threads() {
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
