//! The memory of this node, read from procfs without a daemon.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::holders::Holders;
use crate::cli::control::ControlClient;
use crate::daemon::clock;
use crate::model::{
    DeclaredEngine, GpuDriver, HOST_POOL, MemoryPools, Observation, Reading, Readings, SeriesKey,
    Source,
};
use crate::policy::gate::PoolWatches;
use crate::policy::pools::{Pools, SeriesView, needs_driver};
use crate::sources::gpu::{GpuSetup, GpuWatch, Patience};
use crate::sources::memory::MemorySource;

const OWN_PROGRAM: &str = "/proc/self/exe";

/// How long the first report of the NVIDIA driver is waited for, where memory depends on it.
const DRIVER_TIMEOUT: Duration = Duration::from_secs(5);

/// Between two looks for that report.
const DRIVER_TICK: Duration = Duration::from_millis(50);

/// Where this node is read.
#[derive(Clone, Debug)]
pub(crate) struct GateSetup {
    pub(crate) procfs: PathBuf,
    pub(crate) sysfs: PathBuf,
    /// The engines that the configuration declares.
    pub(crate) declared: Vec<DeclaredEngine>,
    /// The daemon of this node, which may have watched for longer.
    pub(crate) daemon: Option<ControlClient>,
    /// The path of NVML; `None`: the loader's search path.
    pub(crate) nvml: Option<PathBuf>,
}

/// Samples memory, and scans for orphans of engines.
pub(crate) struct GateNode {
    began: Instant,
    memory: MemorySource,
    seen: Vec<Observation>,
    latest: LatestReadings,
    watches: PoolWatches,
    /// The query of the NVIDIA driver, where memory depends on it.
    driver: Option<GpuWatch>,
    pools: Pools,
    holders: Holders,
}

/// The last readings of each source.
#[derive(Debug, Default)]
struct LatestReadings(BTreeMap<Source, Readings>);

impl SeriesView for LatestReadings {
    fn latest(&self, name: &str, labels: &[(&str, &str)]) -> Reading<f64> {
        let found = self.0.values().find_map(|readings| {
            let index = readings.schema.series.iter().position(|key| {
                let own = key.labels.iter().map(|(name, value)| (&**name, &**value));
                *key.name == *name && own.eq(labels.iter().copied())
            })?;
            readings.values.get(index).copied()
        });
        found.unwrap_or(Reading::Unsupported)
    }

    fn each(&self, name: &str, call: &mut dyn FnMut(&SeriesKey, Reading<f64>)) {
        for readings in self.0.values() {
            let series = readings.schema.series.iter().zip(&readings.values);
            for (key, value) in series.filter(|(key, _)| *key.name == *name) {
                call(key, *value);
            }
        }
    }
}

/// Whether a GPU of this node may have memory of its own, by sysfs alone.
pub(crate) fn may_have_own_memory(procfs: &Path, sysfs: &Path) -> bool {
    let (began, mut seen) = (Instant::now(), Vec::new());
    MemorySource::open(procfs, sysfs).read(&move || began.elapsed(), &mut seen);
    let mut latest = LatestReadings::default();
    latest.take(seen.drain(..));
    needs_driver(&latest)
}

impl LatestReadings {
    fn take(&mut self, seen: impl Iterator<Item = Observation>) {
        for observation in seen {
            if let Observation::Readings(readings) = observation {
                self.0.insert(readings.source, readings);
            }
        }
    }
}

impl GateNode {
    /// Starts the scan of processes, and the query of the NVIDIA driver where memory depends on it.
    /// Waits a moment for their first results.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(crate) fn start(setup: GateSetup) -> io::Result<Self> {
        let memory = MemorySource::open(&setup.procfs, &setup.sysfs);
        let driver = GpuSetup {
            program: OWN_PROGRAM.into(),
            library: setup.nvml.clone(),
            interval: None,
            patience: Patience::default(),
            procfs: setup.procfs.clone(),
            clock: clock::uptime,
        };
        let mut node = Self {
            began: Instant::now(),
            memory,
            seen: Vec::new(),
            latest: LatestReadings::default(),
            watches: PoolWatches::default(),
            driver: None,
            pools: Pools::default(),
            holders: Holders::start(setup)?,
        };
        node.read_memory();
        if needs_driver(&node.latest) {
            let watch = GpuWatch::start(driver)?;
            watch.set_busy(true);
            node.driver = Some(watch);
            let until = Instant::now() + DRIVER_TIMEOUT;
            while !node.take_driver() && Instant::now() < until {
                std::thread::sleep(DRIVER_TICK);
            }
        }
        Ok(node)
    }

    /// Memory now, by pool, and how it has changed since earlier samples.
    pub(crate) fn sample(&mut self) -> MemoryPools {
        self.read_memory();
        self.take_driver();
        self.holders.take();
        let memory = self.pools.sample(&self.latest);
        for pool in &mut memory.pools {
            if let Some(baseline) = self.holders.baseline(&pool.pool) {
                pool.memory.baseline = baseline;
            }
            if *pool.pool == *HOST_POOL {
                pool.memory.orphans = self.holders.orphans();
            }
        }
        self.watches.take(self.began.elapsed(), memory);
        memory.clone()
    }

    /// The model files of running engines.
    pub(super) fn living(&self) -> &[Arc<str>] {
        self.holders.living()
    }

    fn read_memory(&mut self) {
        let began = self.began;
        self.memory.read(&move || began.elapsed(), &mut self.seen);
        self.latest.take(self.seen.drain(..));
    }

    /// Takes reports of the driver. Returns whether its state is known.
    fn take_driver(&mut self) -> bool {
        let Some(driver) = &mut self.driver else { return true };
        driver.take(clock::uptime(), &mut self.seen);
        let mut is_known = false;
        for observation in self.seen.drain(..) {
            if let Observation::Gpu(readings) = observation {
                is_known |= !matches!(readings.driver, GpuDriver::Unknown { .. });
                self.pools.take_gpus(&readings);
            }
        }
        is_known
    }
}
