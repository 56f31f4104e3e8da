//! Observations: all input of the policy.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::names::named;
use super::{
    ClusterReadings, EarlierRuns, EngineHealth, EngineReadings, Event, GpuReadings, HolderReadings,
    LeaseReadings, LoggedInReadings, OperatorCommand, Outcome, Pause, Reading, ReceivedAlerts,
    RestartReadings, SYSLOG_SEQ_BASE, Schema, SeriesKey, TrackedReading,
};

named! {
    /// The source of an observation; the `source` label of `uma_scrape_collector_success`.
    pub enum Source {
        /// `/proc/meminfo`.
        Meminfo = "meminfo",
        /// `/proc/vmstat`.
        Vmstat = "vmstat",
        /// `/proc/zoneinfo`.
        Zoneinfo = "zoneinfo",
        /// `/proc/buddyinfo`.
        Buddyinfo = "buddyinfo",
        /// `/proc/pressure/*`.
        Pressure = "pressure",
        /// `/sys/devices/system/node/node*/{meminfo,cpulist}`.
        Numa = "numa",
        /// `/proc/sys/vm/*`.
        Sysctl = "sysctl",
        /// `/dev/kmsg`, or its substitute.
        KernelLog = "kernel_log",
        /// This process itself.
        Process = "process",
        /// The journal on disk.
        Journal = "journal",
        /// This program: its counters, decisions and rule states.
        Daemon = "daemon",
        /// The black box on disk, with the records of the previous boot.
        BlackBox = "black_box",
        /// Inference engines: `/proc/PID/*`, and their responses.
        Engines = "engines",
        /// Docker, or a server with its API: running containers.
        Docker = "docker",
        /// The NVIDIA driver, through NVML.
        Gpu = "gpu",
        /// Processes that have the NVIDIA driver open: `/proc/PID/fd`.
        Holders = "holders",
        /// Alertmanagers: alerts sent and received.
        Alertmanager = "alertmanager",
        /// `/sys/bus/pci/devices/*`.
        Pci = "pci",
    }
}

/// One record of the kernel log, as raw as it was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelRecord {
    /// The kernel's sequence number within this boot.
    pub seq: u64,
    /// Syslog facility; 0 is the kernel, everything else was written by user space.
    pub facility: u16,
    /// Syslog level, 0 (emergency) to 7 (debug).
    pub level: u8,
    /// The kernel's own clock, in microseconds since boot. It drifts from `CLOCK_MONOTONIC`.
    pub usec: u64,
    /// The task (`T123`) or CPU (`C1`) that printed it, where the kernel says so
    /// (CONFIG_PRINTK_CALLER).
    pub caller: Option<String>,
    /// Wall time: of arrival for a live record, from a fresh clock offset for an old one.
    pub utc: Timestamp,
    /// The message; bytes outside printable ASCII are `\xNN`, as the kernel wrote them.
    pub text: String,
    /// The ` KEY=value` lines below the message, without the leading space, newline-separated.
    pub dictionary: String,
}

impl KernelRecord {
    /// Whether it was read by syslog(2), where users can forge lines of the kernel.
    pub fn is_claimed(&self) -> bool {
        self.seq >= SYSLOG_SEQ_BASE
    }
}

/// One run of one source: a value for each series of its schema.
#[derive(Clone, Debug)]
pub struct Readings {
    /// The source that was read.
    pub source: Source,
    /// The series of the values. The same `Arc` from run to run while nothing changes, so that
    /// receivers can cache data derived from it.
    pub schema: Arc<Schema>,
    /// One reading for each entry of `schema`, in its order.
    pub values: Vec<Reading<f64>>,
    /// Duration of the reading.
    pub took: Duration,
    /// Why the source is down, if it is.
    pub error: Option<Arc<str>>,
}

/// One observation.
#[derive(Clone, Debug)]
pub enum Observation {
    /// A line of the kernel log.
    KernelRecord(KernelRecord),
    /// So many records were overwritten before they could be read.
    KernelRecordsLost(u64),
    /// A record that could not be parsed was skipped.
    KernelRecordMalformed,
    /// A source has been read.
    Readings(Readings),
    /// One value of one series, in rule tests.
    Sample {
        /// Name and labels of the series.
        series: SeriesKey,
        /// Value of the series at the time of the observation.
        value: Reading<f64>,
    },
    /// A decided action has ended.
    Outcome(Outcome),
    /// A person has given an order.
    Operator(OperatorCommand),
    /// An event that is not from the kernel log.
    Event(Event),
    /// The panic switch: `Some` from now on, or `None` again.
    Pause(Option<Pause>),
    /// Data of earlier runs from the journal.
    Past(Box<EarlierRuns>),
    /// A scan for inference engines.
    Engines(Box<EngineReadings>),
    /// A health check of an engine.
    EngineHealth(Box<EngineHealth>),
    /// A supervisor's report of deferred restarts.
    Restarts(Box<RestartReadings>),
    /// The state of the NVIDIA driver and its GPUs.
    Gpu(Box<GpuReadings>),
    /// A scan for processes that have the driver open.
    Holders(Box<HolderReadings>),
    /// A reading of the logged-in users.
    LoggedIn(Box<LoggedInReadings>),
    /// A report of the ledger of leases.
    Leases(Box<LeaseReadings>),
    /// How an engine has read its model files.
    LoadReading(Box<TrackedReading>),
    /// Received alerts.
    ReceivedAlerts(Box<ReceivedAlerts>),
    /// Reports of other nodes.
    Cluster(Box<ClusterReadings>),
}
