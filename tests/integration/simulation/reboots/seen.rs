//! Observations of the node, and orders of people.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use umawarden::journal::{JournalEntry, RebootRow};
use umawarden::model::{
    EngineKind, EngineProcess, EngineReadings, EngineSeen, GpuDriver, GpuPicture, GpuReadings,
    Holder, HolderReadings, LoggedIn, LoggedInReadings, Moment, Observation, OperatorCommand,
    OperatorOrder, Pause, ProcessId, Reading, Readings, RebootForce, Schema, Source,
};

use super::node::{Node, Trouble};

impl Node {
    pub fn seen(&mut self) -> Vec<Observation> {
        let at = self.at();
        let leaked = if self.boot.trouble() == Some(Trouble::Leak) { 60.0 } else { 0.0 };
        let gib = |gib: f64| Reading::Value(gib * 1024.0f64.powi(3));
        let memory = [120.0, 100.0 - leaked, 0.0, 1.0 + leaked].map(gib);
        let readings = |source, schema: &Arc<Schema>, values| {
            let (schema, took) = (Arc::clone(schema), Duration::ZERO);
            Observation::Readings(Readings { source, schema, values, took, error: None })
        };
        let mut seen = vec![
            readings(Source::Meminfo, &self.memory, memory.to_vec()),
            readings(Source::Journal, &self.losses_series, vec![Reading::Value(self.losses)]),
        ];
        let engines = if self.engine { vec![engine()] } else { Vec::new() };
        seen.push(Observation::Engines(Box::new(EngineReadings {
            read_at: at.uptime,
            engines,
            ..EngineReadings::default()
        })));
        seen.extend(self.driver(at));
        let alice = LoggedIn { user: "alice".into(), terminal: None, since: None };
        let users = match self.chance.whole(0..=30) {
            0 => Reading::Failed,
            _ => Reading::Value(if self.users { vec![alice] } else { Vec::new() }),
        };
        let logged_in = LoggedInReadings { at: at.uptime, users, error: None };
        seen.push(Observation::LoggedIn(Box::new(logged_in)));
        let pause = Pause { author: "bob".to_owned(), comment: String::new(), since: None };
        seen.push(Observation::Pause(self.is_paused.then_some(pause)));
        for outcome in self.outcomes.drain(..) {
            self.disk.on_its_way.extend(RebootRow::of(&JournalEntry::Outcome(outcome.clone())));
            seen.push(Observation::Outcome(outcome));
        }
        seen.extend(self.order(at).map(Observation::Operator));
        seen
    }

    fn driver(&self, at: Moment) -> [Observation; 2] {
        let is_wedged = self.boot.trouble() == Some(Trouble::Wedge);
        let holders = if is_wedged { vec![stuck()] } else { Vec::new() };
        let holders = HolderReadings {
            read_at: at.uptime,
            holders,
            processes: 100,
            unseen: 0,
            is_driver_loaded: Reading::Value(true),
            hidden: Vec::new(),
            memory: Vec::new(),
            socket_bytes: Reading::Unsupported,
            tasks: Vec::new(),
            error: None,
        };
        let driver = match is_wedged {
            true => GpuDriver::Silent { since: self.boot.troubled_at, process_state: Some('D') },
            false => GpuDriver::Responsive,
        };
        let gpu = GpuReadings {
            read_at: at.uptime,
            picture: (!is_wedged).then(Arc::<GpuPicture>::default),
            driver,
            answered_at: None,
            askers: Vec::new(),
        };
        [Observation::Holders(Box::new(holders)), Observation::Gpu(Box::new(gpu))]
    }

    /// A person now and then orders a reboot, bypasses some rails, cancels one, and checks a node
    /// that reboots no more. Orders that cannot be kept are not given.
    fn order(&mut self, at: Moment) -> Option<OperatorCommand> {
        if self.disk.is_broken {
            return None;
        }
        let status = self.policy.status(at).reboot;
        let is_stuck = status.is_given_up || status.is_journal_lost;
        let is_scheduled = status.scheduled.is_some();
        let chance = &mut self.chance;
        let order = if is_stuck && chance.once_in(400) {
            OperatorOrder::ClearReboots
        } else if chance.once_in(if is_scheduled { 40 } else { 700 }) {
            OperatorOrder::CancelReboot
        } else if chance.once_in(500) {
            let is_forced = |_: &RebootForce| chance.once_in(4);
            let force: BTreeSet<RebootForce> =
                RebootForce::ALL.into_iter().filter(is_forced).collect();
            OperatorOrder::Reboot { delay: None, force }
        } else {
            return None;
        };
        let (author, comment) = ("carol".to_owned(), "because".to_owned());
        let command = OperatorCommand { at, author, comment, order, refused: None };
        self.disk.record(&JournalEntry::Operator(command.clone()));
        self.disk.flush();
        Some(command)
    }

    /// An order was executed.
    pub fn obeyed(&mut self, order: &OperatorOrder) {
        let truth = &mut self.truth;
        match order {
            OperatorOrder::ClearReboots => {
                truth.forgiven = truth.reboots.len();
                (truth.lost, truth.is_cancelled) = (None, false);
                truth.counts.cleared += 1;
            }
            OperatorOrder::CancelReboot => {
                truth.is_cancelled = self.boot.trouble().is_some();
                truth.counts.called_off += 1;
            }
            OperatorOrder::Reboot { .. } => truth.is_cancelled = false,
            _ => {}
        }
    }
}

fn stuck() -> Holder {
    Holder {
        id: ProcessId { pid: 77, start_ticks: 1 },
        comm: "python3".into(),
        state: 'D',
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

fn engine() -> EngineSeen {
    let id = ProcessId { pid: 4242, start_ticks: 7 };
    let process = EngineProcess {
        id,
        parent: 1,
        comm: "VLLM::EngineCor".into(),
        state: 'S',
        is_exiting: false,
        cpu_ms: 0,
        anon_bytes: Reading::Value(1 << 30),
        file_bytes: Reading::Value(0),
        shmem_bytes: Reading::Value(0),
        hugetlb_bytes: Reading::Unsupported,
        read_bytes: Reading::Value(0),
        read_chars: Reading::Value(0),
        mapped_files: Reading::Value(0),
        mapped_bytes: Reading::Value(0),
        open_files: Reading::Value(0),
        open_devices: Reading::Value(2),
    };
    EngineSeen::new("vllm".into(), EngineKind::Vllm, id, vec![process], "test".into())
}
