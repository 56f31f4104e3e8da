//! Takers of memory that are no engines: jobs of all kinds. And local users whose processes claim
//! to be engines, and take nothing.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use umawarden::model::{
    EngineKind, EngineProcess, EngineSeen, GpuDevice, GpuDriver, GpuHealth, GpuMemory, GpuPicture,
    GpuProcess, GpuReadings, Holder, HolderReadings, Observation, ProcessId, ProcessMemory,
    Reading,
};

use super::chance::Chance;
use super::machine::Machine;

/// A little more than the window of the brake.
const REMEMBERED: Duration = Duration::from_secs(312);

/// The memory of one process over the last minutes, from the world's own ledger.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    memory: VecDeque<(Duration, f64)>,
}

impl Ledger {
    pub fn note(&mut self, now: Duration, bytes: f64) {
        while self.memory.len() > 1 && now.saturating_sub(self.memory[1].0) >= REMEMBERED {
            self.memory.pop_front();
        }
        self.memory.push_back((now, bytes));
    }

    /// Its growth within that time.
    pub fn growth(&self, window: Duration) -> f64 {
        let Some((now, last)) = self.memory.back() else { return 0.0 };
        // A process that was absent in the first scan has taken all of it.
        let is_new = self.memory.front().is_some_and(|(at, _)| now.saturating_sub(*at) < window);
        let of_late = self.memory.iter().filter(|(at, _)| now.saturating_sub(*at) <= window);
        let least = of_late.map(|(_, bytes)| *bytes).fold(f64::MAX, f64::min);
        last - if is_new { 0.0 } else { least }
    }
}

/// How it takes memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Way {
    Driver,
    Pipes,
    Sockets,
    HugePages,
    Anonymous,
    /// It takes none, and claims to be an engine.
    Pretends,
}

const WAYS: [Way; 6] =
    [Way::Driver, Way::Pipes, Way::Sockets, Way::HugePages, Way::Anonymous, Way::Pretends];

pub struct Taker {
    pub id: ProcessId,
    pub way: Way,
    /// Share of the machine in a beat.
    pace: f64,
    pub taken: f64,
    goal: f64,
    busy: Duration,
    opens_driver: bool,
    pub ledger: Ledger,
}

impl Taker {
    pub fn new(chance: &mut Chance, pid: u32, uptime: Duration, total: f64) -> Self {
        let way = *chance.one_of(&WAYS);
        let is_slow = chance.once_in(3);
        Self {
            id: ProcessId { pid, start_ticks: uptime.as_millis() as u64 / 10 },
            way,
            pace: if is_slow { 0.0005 } else { chance.between(0.005, 0.08) },
            taken: 0.0,
            goal: if way == Way::Pretends { 0.0 } else { total * chance.between(0.02, 0.6) },
            busy: Duration::ZERO,
            opens_driver: way == Way::Driver || chance.once_in(6),
            ledger: Ledger::default(),
        }
    }

    pub fn take(&mut self, total: f64, beats: f64, worked: Duration) {
        self.taken = (self.taken + total * self.pace * beats).min(self.goal);
        self.busy += worked;
    }

    fn memory(&self) -> ProcessMemory {
        let of = |way| if self.way == way { self.taken as u64 } else { 0 };
        ProcessMemory {
            id: self.id,
            comm: "job".into(),
            anon_bytes: of(Way::Anonymous),
            shmem_bytes: 0,
            hugetlb_bytes: of(Way::HugePages),
            pipe_bytes: of(Way::Pipes),
            socket_bytes: of(Way::Sockets),
        }
    }

    /// As a scan for engines finds it, if it claims to be one.
    pub fn seen(&self) -> Option<EngineSeen> {
        let process = EngineProcess {
            id: self.id,
            parent: 1,
            comm: "vllm".into(),
            state: 'S',
            is_exiting: false,
            cpu_ms: self.busy.as_millis() as u64,
            anon_bytes: Reading::Value(1 << 20),
            file_bytes: Reading::Value(0),
            shmem_bytes: Reading::Value(0),
            hugetlb_bytes: Reading::Value(0),
            read_bytes: Reading::Value(0),
            read_chars: Reading::Value(0),
            mapped_files: Reading::Value(1),
            mapped_bytes: Reading::Value(64 << 20),
            open_files: Reading::Value(0),
            open_devices: Reading::Value(u32::from(self.opens_driver)),
        };
        let name: Arc<str> = format!("pretends-{}", self.id).into();
        let found_by = "the simulation".into();
        (self.way == Way::Pretends)
            .then(|| EngineSeen::new(name, EngineKind::Vllm, self.id, vec![process], found_by))
    }
}

fn holder(id: ProcessId) -> Holder {
    Holder {
        id,
        comm: "python3".into(),
        state: 'S',
        devices: 2,
        is_monitor: false,
        dma_buffers: 0,
        memfds: 0,
        memfd_bytes: 0,
        pipe_bytes: 0,
        container: None,
        unit: None,
    }
}

impl Machine {
    /// Results of a scan of all processes.
    pub fn scan(&self, now: Duration) -> Observation {
        let engines = self.engines.iter().filter(|engine| engine.is_there());
        let of_engines = engines.map(|engine| engine.worker);
        let takers = self.takers.iter().filter(|taker| taker.opens_driver).map(|taker| taker.id);
        let sockets = self.takers.iter().filter(|taker| taker.way == Way::Sockets);
        Observation::Holders(Box::new(HolderReadings {
            read_at: now,
            holders: of_engines.chain(takers).map(holder).collect(),
            processes: 100,
            unseen: 0,
            is_driver_loaded: Reading::Value(true),
            hidden: Vec::new(),
            memory: self.takers.iter().map(Taker::memory).collect(),
            socket_bytes: Reading::Value(sockets.map(|taker| taker.taken as u64).sum()),
            tasks: Vec::new(),
            error: None,
        }))
    }

    /// The driver's report, if it answers.
    pub fn driver(&self, now: Duration, answers: bool) -> Observation {
        let process = |pid: u32, bytes: f64| GpuProcess {
            pid,
            used_bytes: Reading::Value(bytes as u64),
            is_compute: true,
            is_graphics: false,
            gpu_instance: None,
            compute_instance: None,
        };
        let engines = self.engines.iter().map(|engine| process(engine.worker.pid, engine.taken));
        let takers = self.takers.iter().filter(|taker| taker.way == Way::Driver);
        let takers = takers.map(|taker| process(taker.id.pid, taker.taken));
        let device = GpuDevice {
            index: 0,
            name: Some("NVIDIA GB10".into()),
            uuid: None,
            pci_address: None,
            compute_mode: None,
            memory: GpuMemory::UNSUPPORTED,
            numa_node: Reading::Unsupported,
            utilization: Reading::Unsupported,
            memory_utilization: Reading::Unsupported,
            temperature_celsius: Reading::Unsupported,
            power_watts: Reading::Unsupported,
            processes: Reading::Value(engines.chain(takers).collect()),
            is_mig: Reading::Unsupported,
            instances: Vec::new(),
            health: GpuHealth::UNSUPPORTED,
            failures: Vec::new(),
        };
        let picture = GpuPicture { devices: vec![device], ..GpuPicture::default() };
        let driver = match answers {
            true => GpuDriver::Responsive,
            false => GpuDriver::Silent { since: now, process_state: Some('D') },
        };
        Observation::Gpu(Box::new(GpuReadings {
            read_at: now,
            driver,
            answered_at: answers.then_some(now),
            askers: Vec::new(),
            picture: answers.then(|| Arc::new(picture)),
        }))
    }
}

#[test]
fn the_ledger_gives_the_memory_taken_within_a_time() {
    let mut ledger = Ledger::default();
    for second in 0..400_u64 {
        ledger.note(Duration::from_secs(second), second as f64);
    }
    assert_eq!(ledger.growth(Duration::from_secs(10)), 10.0);
    assert_eq!(ledger.growth(Duration::from_secs(300)), 300.0);
    let mut new = Ledger::default();
    new.note(Duration::from_secs(5), 7.0);
    assert_eq!(new.growth(Duration::from_secs(10)), 7.0);
}
