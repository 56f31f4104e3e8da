//! The memory of this node, read from procfs without a daemon.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use super::holders::Holders;
use crate::cli::control::Client;
use crate::model::{DeclaredEngine, GateMemory, Observation, Reading, Readings, Source};
use crate::policy::gate::{GateWatch, memory};
use crate::sources::memory::MemorySource;

/// Where this node is read.
#[derive(Clone, Debug)]
pub(crate) struct GateSetup {
    pub(crate) procfs: PathBuf,
    pub(crate) sysfs: PathBuf,
    /// The engines that the configuration declares.
    pub(crate) declared: Vec<DeclaredEngine>,
    /// The daemon of this node, which may have watched for longer.
    pub(crate) daemon: Option<Client>,
}

/// Samples memory, and scans for orphans of engines.
pub(crate) struct GateNode {
    began: Instant,
    memory: MemorySource,
    seen: Vec<Observation>,
    latest: BTreeMap<Source, Readings>,
    watch: GateWatch,
    holders: Holders,
}

impl GateNode {
    /// Starts the scan of processes, and waits a moment for its first result.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(crate) fn start(setup: GateSetup) -> io::Result<Self> {
        let memory = MemorySource::open(&setup.procfs, &setup.sysfs);
        Ok(Self {
            began: Instant::now(),
            memory,
            seen: Vec::new(),
            latest: BTreeMap::new(),
            watch: GateWatch::default(),
            holders: Holders::start(setup)?,
        })
    }

    /// Memory now, and how it has changed since earlier samples.
    pub(crate) fn sample(&mut self) -> GateMemory {
        let began = self.began;
        let clock = move || began.elapsed();
        self.memory.read(&clock, &mut self.seen);
        for observation in self.seen.drain(..) {
            if let Observation::Readings(readings) = observation {
                self.latest.insert(readings.source, readings);
            }
        }
        self.holders.take();
        let latest = |name: &str, labels: &[(&str, &str)]| self.reading(name, labels);
        let mut memory = memory(latest, self.holders.baseline(), self.holders.orphans());
        self.watch.take(clock(), &mut memory);
        memory
    }

    /// The model files of running engines.
    pub(super) fn living(&self) -> &[Arc<str>] {
        self.holders.living()
    }

    fn reading(&self, name: &str, labels: &[(&str, &str)]) -> Reading<f64> {
        let found = self.latest.values().find_map(|readings| {
            let index = readings.schema.series.iter().position(|key| {
                let own = key.labels.iter().map(|(name, value)| (&**name, &**value));
                *key.name == *name && own.eq(labels.iter().copied())
            })?;
            readings.values.get(index).copied()
        });
        found.unwrap_or(Reading::Unsupported)
    }
}
