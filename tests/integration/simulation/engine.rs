//! One engine of a simulated machine: its processes, their memory, and its responses.

use std::sync::Arc;
use std::time::Duration;

use umawarden::model::{
    EngineHealth, EngineKind, EngineLoad, EngineProcess, EngineSeen, HealthResponse, ProcessId,
    Reading,
};

use super::takers::Ledger;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Phase {
    Loading,
    Serving,
    Leaking,
    /// Its server is gone; a worker is left with all the memory.
    Orphaned,
    /// All its processes are gone, and its driver memory is not.
    Dying,
}

/// Whether its health can be probed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum HealthResponses {
    Yes,
    /// It accepts the request, and never answers.
    Hangs,
    /// Its address is unknown.
    Nowhere,
}

pub struct Engine {
    pub name: Arc<str>,
    pub kind: EngineKind,
    /// The container or unit that it lives in; `None`: started by hand.
    pub supervised: Option<Supervised>,
    pub server: ProcessId,
    pub worker: ProcessId,
    pub phase: Phase,
    /// Driver memory: in no process's size.
    pub taken: f64,
    pub goal: f64,
    /// Memory in the size of its worker.
    pub anonymous: f64,
    pub read: f64,
    pub busy: Duration,
    pub answers: HealthResponses,
    pub requests: u64,
    pub is_paused: bool,
    pub ledger: Ledger,
}

/// Where an engine lives.
#[derive(Clone)]
pub struct Supervised {
    /// Its number among all containers and units.
    pub number: usize,
    pub container: Option<Arc<str>>,
    pub unit: Option<Arc<str>>,
}

impl Engine {
    pub fn new(name: Arc<str>, kind: EngineKind, pid: u32, uptime: Duration, goal: f64) -> Self {
        let start_ticks = uptime.as_millis() as u64 / 10;
        Self {
            name,
            kind,
            supervised: None,
            server: ProcessId { pid, start_ticks },
            worker: ProcessId { pid: pid + 1, start_ticks },
            phase: Phase::Loading,
            taken: 0.0,
            goal,
            anonymous: 0.0,
            read: 0.0,
            busy: Duration::ZERO,
            answers: HealthResponses::Yes,
            requests: 0,
            is_paused: false,
            ledger: Ledger::default(),
        }
    }

    /// Whether its server lives.
    pub fn is_alive(&self) -> bool {
        matches!(self.phase, Phase::Loading | Phase::Serving | Phase::Leaking)
    }

    /// Whether any process of it is there.
    pub fn is_there(&self) -> bool {
        self.phase != Phase::Dying
    }

    pub fn holds(&self) -> f64 {
        self.taken + self.anonymous
    }

    /// Remembers its current memory, and is busy for that long.
    pub fn remember(&mut self, now: Duration, worked: Duration) {
        self.busy += if self.is_alive() { worked } else { Duration::ZERO };
        self.ledger.note(now, self.holds());
    }

    fn process(&self, id: ProcessId, parent: u32, comm: &str) -> EngineProcess {
        let is_worker = id == self.worker;
        let of_worker = |bytes: f64| Reading::Value(if is_worker { bytes as u64 } else { 0 });
        let is_loading = is_worker && self.phase == Phase::Loading;
        EngineProcess {
            id,
            parent,
            comm: comm.into(),
            state: 'S',
            is_exiting: false,
            cpu_ms: if is_worker { self.busy.as_millis() as u64 } else { 0 },
            anon_bytes: of_worker(self.anonymous),
            file_bytes: Reading::Value(0),
            shmem_bytes: Reading::Value(0),
            hugetlb_bytes: Reading::Unsupported,
            read_bytes: of_worker(self.read),
            read_chars: of_worker(self.read),
            mapped_files: Reading::Value(u32::from(is_loading)),
            mapped_bytes: of_worker(if is_loading { self.goal } else { 0.0 }),
            open_files: Reading::Value(0),
            open_devices: Reading::Value(2 * u32::from(is_worker)),
        }
    }

    /// The engine as a scan finds it; `None` where no process is left.
    pub fn seen(&self, name: Arc<str>) -> Option<EngineSeen> {
        if !self.is_there() {
            return None;
        }
        let [head, worker] = match self.kind {
            EngineKind::Sglang => ["sglang", "sglang::schedul"],
            _ => ["vllm", "VLLM::EngineCor"],
        };
        let mut processes = Vec::new();
        if self.is_alive() {
            processes.push(self.process(self.server, 1, head));
        }
        processes.push(self.process(self.worker, self.server.pid, worker));
        let found_by = "the simulation".into();
        let mut seen = EngineSeen::new(name, self.kind, self.server, processes, found_by);
        seen.stuck_after = Duration::from_secs(300);
        seen.cgroup = Some("/system.slice/engine.service".into());
        if let Some(supervised) = &self.supervised {
            (seen.container, seen.unit) = (supervised.container.clone(), supervised.unit.clone());
            seen.container_name = supervised.container.as_ref().map(|_| Arc::clone(&self.name));
        }
        if self.answers != HealthResponses::Nowhere {
            seen.health_url = Some("http://127.0.0.1:8000/health".into());
            seen.is_listening = Reading::Value(self.phase != Phase::Loading && self.is_alive());
        }
        Some(seen)
    }

    /// Its response to a probe.
    pub fn health(&self, name: Arc<str>, asked_at: Duration) -> Option<EngineHealth> {
        let answer = match (self.answers, self.phase) {
            (HealthResponses::Nowhere, _) | (_, Phase::Dying) => return None,
            (_, Phase::Orphaned) => HealthResponse::Refused,
            (HealthResponses::Hangs, _) => HealthResponse::TimedOut,
            (HealthResponses::Yes, Phase::Loading) => HealthResponse::NotReady { status: 503 },
            (HealthResponses::Yes, _) if self.is_paused => HealthResponse::NotReady { status: 503 },
            (HealthResponses::Yes, _) => HealthResponse::Ready,
        };
        let requests = match answer {
            HealthResponse::Ready => Reading::Value(self.requests),
            _ => Reading::Failed,
        };
        let (engine, server, load) = (name, self.server, EngineLoad::default());
        Some(EngineHealth { engine, server, asked_at, answer, requests, load, key_withheld: None })
    }
}
